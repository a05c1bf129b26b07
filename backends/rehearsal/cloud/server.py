"""The process: builds the cloud, opens the door, and leaves nothing behind when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from backends.core.detached import created_at, is_running
from backends.rehearsal.cloud import launcher
from backends.rehearsal.cloud.apis import all_apis
from backends.rehearsal.cloud.app import Application
from backends.rehearsal.cloud.aws.assembly import AwsSide
from backends.rehearsal.cloud.certificates import Certificates
from backends.rehearsal.cloud.cloud import Cloud
from backends.rehearsal.cloud.control import Control
from backends.rehearsal.cloud.fault_file import FaultFile
from backends.rehearsal.cloud.faults import FaultBook
from backends.rehearsal.cloud.identity import Identity
from backends.rehearsal.cloud.log_store import LogStore
from backends.rehearsal.cloud.object_store import ObjectStore
from backends.rehearsal.cloud.proxy import Door
from backends.rehearsal.cloud.request_log import RequestLog
from backends.rehearsal.cloud.run.container import Containers
from backends.rehearsal.cloud.run.endpoints import Endpoints
from backends.rehearsal.cloud.run.fleet import Fleet
from backends.rehearsal.cloud.run.services import Services
from backends.rehearsal.cloud.seeds import register_actions, stage_reference_model
from backends.rehearsal.cloud.tpu.slices import Slices
from backends.rehearsal.cloud.world import World

HOST = "127.0.0.1"
_SAVE_EVERY_S = 0.5
_OWNER_EVERY_S = 0.5


@dataclass(frozen=True)
class ServerOptions:
    """How the cloud is to run.

    Attributes:
        state_dir: Its folder.
        port: Port on 127.0.0.1; 0 lets the system choose.
        speed: Google's times take this many times less.
        idle_s: Seconds until an idle instance is stopped; None: 15 minutes at that speed.
        empty: A project in which nothing is enabled and nothing staged, where it is a new one.
        owner_pid: Ends when this process does.
    """

    state_dir: Path
    port: int = 0
    speed: float = launcher.DEFAULT_SPEED
    idle_s: float | None = None
    empty: bool = False
    owner_pid: int | None = None

    @property
    def idle(self) -> float:
        """Seconds until an idle instance is stopped."""
        if self.idle_s is not None:
            return self.idle_s
        return max(launcher.IDLE_S / self.speed, launcher.LEAST_IDLE_S)


async def serve(options: ServerOptions) -> None:
    """Run until SIGTERM or SIGINT."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    folder = options.state_dir
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    world_file = folder / "world.json"
    saved = World.load(world_file)
    world = saved or World.fresh(empty=options.empty)
    certificates = Certificates(folder / "certificates")
    identity = Identity(folder / "certificates", world)
    requests = RequestLog(folder / "requests.jsonl")
    cloud = Cloud(
        world=world,
        identity=identity,
        faults=FaultBook(world),
        logs=LogStore(world),
        requests=requests,
        folder=folder,
        speed=options.speed,
        idle_s=options.idle,
    )
    objects = ObjectStore(world, folder / "objects")
    cloud.slices = Slices(cloud)
    fleet = cloud.fleet = Fleet(cloud, Containers(world, objects))
    services = fleet.services = Services(cloud)
    if saved is None and not options.empty:
        stage_reference_model(world, objects)
    register_actions(cloud, services, objects)
    endpoints = Endpoints(cloud, fleet)
    aws = AwsSide(cloud, objects)
    fault_file = FaultFile(folder / "faults.json", cloud.faults)
    door: Door | None = None

    def cut(connection: tuple[str, int]) -> None:
        if door is not None:
            door.cut(connection)

    application = Application(
        cloud,
        all_apis(cloud, services, objects),
        endpoints,
        aws.front,
        Control(cloud, aws).answer,
        cut,
        fault_file.read,
    )
    door = Door(application, certificates, application.serves, requests.refused)
    stop = asyncio.Event()
    _on_signals(stop)
    sock = _bind(options.port)
    await door.open(sock)
    for part in (fleet, cloud.slices, cloud.life, cloud.hosts, aws):
        part.resume()
    background = [
        asyncio.create_task(fleet.reap(), name="reap"),
        asyncio.create_task(_keep_saved(world, world_file), name="save"),
        asyncio.create_task(_end_with(options.owner_pid, stop), name="owner"),
    ]
    launcher.write_record(folder, sock.getsockname()[1], options.speed, world)
    try:
        await stop.wait()
    finally:
        launcher.forget_record(folder, os.getpid())
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        cloud.faults.clear()
        await _end_machines(cloud, services)
        await aws.close()
        await endpoints.close()
        await door.close()
        world.save(world_file)
        requests.close()


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _bind(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, port))
    return sock


async def _keep_saved(world: World, path: Path) -> None:
    while True:
        await asyncio.sleep(_SAVE_EVERY_S)
        if world.dirty:
            with contextlib.suppress(OSError):
                world.save(path)


async def _end_machines(cloud: Cloud, services: Services) -> None:
    await asyncio.gather(services.close(), cloud.life.close())
    await asyncio.to_thread(cloud.hosts.stop_all)
    await cloud.fleet.stop_all()


async def _end_with(pid: int | None, stop: asyncio.Event) -> None:
    if pid is None:
        return
    created = created_at(pid)
    while True:
        if created is None or not is_running(pid, created):
            stop.set()
            return
        await asyncio.sleep(_OWNER_EVERY_S)


def run(options: ServerOptions) -> None:
    """Run in this process until a signal ends it."""
    asyncio.run(serve(options))

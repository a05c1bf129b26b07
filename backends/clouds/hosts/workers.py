"""The load engine's workers on a host, next to the engine, so that no network is in the figures.

A worker's source is copied there once; it is started over a session of the shared connection, which
carries the same messages as the socket pair of a local worker. Times are taken on the host, by its
kernel; its clock is compared with ours over the quickest of some calls, so that all start together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.clouds.hosts.host import STATE_FOLDER, Host
from backends.clouds.hosts.program import PYTHON, UNPACKED, install
from backends.clouds.hosts.tunnel import reap
from backends.core.errors import NotSupportedError
from backends.serving.engine.crew import WORKER_MODULE
from backends.serving.engine.member import Heard, Member
from backends.serving.engine.messages import Message, packed
from backends.serving.engine.packing import OLDEST_PYTHON, worker_source

if TYPE_CHECKING:
    from backends.serving.engine.target import Target

_START_S = 40.0
_CLOCK_CALLS = 15
_READ_BYTES = 1 << 20
_LAST_WORDS = 500
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostWorkers:
    """The cores of one host as a workforce; see `crew.Workforce`.

    Args:
        host: Where the engine runs; see `packing` for what it needs.
        port: The engine's port there, on its loopback.
    """

    name = "host"
    least = 1

    def __init__(self, host: Host, port: int) -> None:
        self._host = host
        self._port = port
        self._cores = 1
        self._archive = ""

    async def look(self) -> None:
        """Copy the program and the worker's source there, and count the cores.

        Raises:
            HostError: The host cannot be reached.
        """
        if self._archive:
            return
        await install(self._host)
        source = worker_source()
        archive = f"{STATE_FOLDER}/worker-{hashlib.sha256(source).hexdigest()[:16]}.zip"
        there = await self._host.run(
            ["test", "-s", archive], timeout_s=20, check=False, repeatable=True
        )
        if there.exit_code != 0:
            await self._host.put(source, archive)
        cores = await self._host.run(
            ["getconf", "_NPROCESSORS_ONLN"], timeout_s=20, repeatable=True
        )
        self._cores = int(cores.stdout.split()[0])
        self._archive = archive

    @property
    def most(self) -> int:
        """All cores but one: the engine's own loop needs it."""
        return max(1, self._cores - 1)

    def check(self, streams_each: int) -> None:
        """Nothing can be told from here; a worker that may not open so many files says so."""

    def members(self, size: int, heard: Heard) -> Sequence[Member]:
        """Workers that are to be started there."""
        return [
            HostMember(number + 1, heard, self._host, self._archive, self._port)
            for number in range(size)
        ]


class HostMember(Member):
    """A worker on a host."""

    def __init__(self, number: int, heard: Heard, host: Host, archive: str, port: int) -> None:
        super().__init__(number, heard)
        self.place = host.label
        self._host = host
        self._archive = archive
        self._port = port
        self._loopback = "127.0.0.1"
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, target: Target) -> None:
        """Start the worker.

        Raises:
            NotSupportedError: The host's Python is too old, or says nothing.
            HostError: The host cannot be reached.
        """
        del target
        words = [PYTHON, UNPACKED, "load", self._archive, WORKER_MODULE]
        self._process = await self._host.attach(words)
        try:
            async with asyncio.timeout(_START_S):
                about = await self._about()
                await self._compare_clocks(str(about["boot_id"]))
                await self._send(b"start\n")
        except (TimeoutError, ValueError, ConnectionError):
            raise NotSupportedError(
                f"{self.place} did not start a worker.",
                words=await self.how_it_ended(),
                next_action="Leave runner out to make the load on this machine.",
            ) from None
        self._loopback = str(about["loopback"])
        self._reading = asyncio.create_task(self._read())

    async def say(self, message: Message) -> None:
        """Send a message; a worker that is gone does not hear it."""
        with suppress(ConnectionError):
            await self._send(packed(self.on_its_clock(message)))

    async def end(self) -> None:
        """End the worker: it goes when our end of its input closes."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        await reap(self._process)

    async def how_it_ended(self) -> str:
        """Return in words how a worker that is gone has come to its end."""
        process = self._process
        if process is None or process.stderr is None:
            return "was never started"
        try:
            async with asyncio.timeout(2.0):
                said = await process.stderr.read()
        except TimeoutError:
            return "closed its connection"
        lines = said.decode("utf-8", "replace")[-_LAST_WORDS:].strip().splitlines()
        return f"has ended ({lines[-1]})" if lines else "has ended with the connection"

    def its_target(self, target: Target) -> Target:
        """The engine on the host's own loopback; not the tunnel's end here."""
        address = (self._loopback, self._port)
        return dataclasses.replace(
            target, family=int(socket.AF_INET), address=address, where=address
        )

    async def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(await self._line())
        if tuple(about["python"]) < OLDEST_PYTHON:
            raise NotSupportedError(
                f"{self.place} has Python {'.'.join(map(str, about['python']))}; a worker needs "
                f"{'.'.join(map(str, OLDEST_PYTHON))}.",
                next_action="Leave runner out to make the load on this machine.",
            )
        return about

    async def _compare_clocks(self, boot_id: str) -> None:
        calls = []
        for _ in range(_CLOCK_CALLS):
            before = time.perf_counter_ns()
            await self._send(b"clock\n")
            there = int(await self._line())
            after = time.perf_counter_ns()
            calls.append((after - before, there - (before + after) // 2))
        took_ns, ahead_ns = min(calls)
        self.lead_s = 2 * max(calls)[0] / 1e9
        ours = await asyncio.to_thread(_our_boot)
        if not boot_id or boot_id != ours:
            self.ahead_ns, self.clock_error_ns = ahead_ns, took_ns // 2

    async def _send(self, data: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            raise ConnectionError
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def _line(self) -> bytes:
        if self._process is None or self._process.stdout is None:
            raise ConnectionError
        return await self._process.stdout.readline()

    async def _read(self) -> None:
        stream = None if self._process is None else self._process.stdout
        try:
            while stream is not None and (data := await stream.read(_READ_BYTES)):
                self.take(data)
        finally:
            self.is_gone = True


def _our_boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""

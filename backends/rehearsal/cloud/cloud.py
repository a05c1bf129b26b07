"""The parts of the rehearsal cloud, handed to every API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.hosts.farm import HostFarm

if TYPE_CHECKING:
    from backends.rehearsal.cloud.compute.life import Life
    from backends.rehearsal.cloud.faults import FaultBook
    from backends.rehearsal.cloud.identity import Identity
    from backends.rehearsal.cloud.log_store import LogStore
    from backends.rehearsal.cloud.request_log import RequestLog
    from backends.rehearsal.cloud.run.fleet import Fleet
    from backends.rehearsal.cloud.tpu.slices import Slices
    from backends.rehearsal.cloud.world import World


@dataclass
class Cloud:
    """What an API needs to answer.

    Attributes:
        world: The project's state.
        identity: Tokens.
        faults: What goes wrong on purpose.
        logs: Cloud Logging.
        requests: The request log.
        folder: The state directory.
        speed: Everything that takes time on Google's side takes this many times less.
        idle_s: Seconds without a request after which an instance is stopped.
        fleet: Instances of Cloud Run revisions.
        slices: TPU requests and nodes.
        life: Virtual machines of Compute Engine.
        hosts: Machines that commands are run on: virtual machines, workers of TPU nodes.
        renew: Told to start from nothing (True: an empty project), when the project is reset.
    """

    world: World
    identity: Identity
    faults: FaultBook
    logs: LogStore
    requests: RequestLog
    folder: Path
    speed: float
    idle_s: float
    fleet: Fleet = field(init=False)
    slices: Slices = field(init=False)
    life: Life = field(init=False)
    hosts: HostFarm = field(init=False)
    renew: list[Callable[[bool], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hosts = HostFarm(self.folder / "hosts", self.speed)

    def after(self, seconds: float) -> float:
        """How long something that takes `seconds` at Google takes here."""
        return seconds / self.speed

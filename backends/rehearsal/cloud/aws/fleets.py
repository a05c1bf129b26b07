"""Machines of endpoints that host inference components: they stand empty until copies are put on.

Managed instance scaling adds a machine when a copy needs one and none has room, and takes one that
has been empty for long enough, down to its least count. Times are those that were measured on
ml.g5.xlarge in us-east-1 in July 2026 (Hugging Face's SageMaker skill for agents): four minutes
until an empty endpoint is InService, twelve until an empty machine is gone.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.catalogue import INSTANCE_TYPES
from backends.rehearsal.cloud.aws.endpoint_configs import types_of
from backends.rehearsal.cloud.aws.hosting import HostingError
from backends.rehearsal.cloud.aws.wire import AwsError
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.hosting import Hosting
    from backends.rehearsal.cloud.cloud import Cloud

EMPTY_START_S = 240.0
IDLE_S = 720.0
_MACHINE_S = 60.0
_POLL_S = 0.05

NO_ROOM = (
    "There is not enough hardware resources on the instances for this endpoint to create a copy of "
    "the inference component."
)
"""Also said of a machine that is there and empty, where more is asked for than it gives."""

# Of a machine's memory only a part can be reserved: ml.g5.xlarge, of 16 GiB, took 1024 MB and
# refused 4096 (same source). That the part is an eighth is this rehearsal's assumption.
_RESERVABLE = 1 / 8

Place = tuple[str, str, str]
"""Region, endpoint and variant."""


@dataclass
class Machine:
    """One machine of a variant.

    Attributes:
        type: Its instance type.
        id: Its id.
        used: Accelerators that copies have.
        empty_since: When its last copy left, by the monotonic clock.
    """

    type: str
    id: str = field(default_factory=lambda: f"i-{secrets.token_hex(8)}")
    used: int = 0
    empty_since: float = field(default_factory=time.monotonic)

    @property
    def free(self) -> int:
        """Accelerators that no copy has."""
        return INSTANCE_TYPES[self.type].gpus - self.used


@dataclass
class Fleet:
    """The machines of one variant, and how many there may be.

    Attributes:
        variant: As the configuration has it.
        machines: Those that are there.
        coming: Those that are waited for.
    """

    variant: Json
    machines: list[Machine] = field(default_factory=list)
    coming: int = 0

    @property
    def least(self) -> int:
        """Machines that are kept though they are empty."""
        scaling = self.variant.get("ManagedInstanceScaling") or {}
        if scaling.get("Status") == "ENABLED":
            return int(scaling.get("MinInstanceCount") or 0)
        return int(self.variant.get("InitialInstanceCount") or 1)

    @property
    def most(self) -> int:
        """Machines that there may be."""
        scaling = self.variant.get("ManagedInstanceScaling") or {}
        if scaling.get("Status") == "ENABLED":
            return int(scaling.get("MaxInstanceCount") or 1)
        return int(self.variant.get("InitialInstanceCount") or 1)


class Fleets:
    """The machines of every such variant.

    Args:
        cloud: Speed.
        hosting: Whether one can be had.
        counted: Told when a variant's number of machines has changed: how many there are, and how
            many there will be.
        admitted: Asked before one more is made.
    """

    def __init__(
        self,
        cloud: Cloud,
        hosting: Hosting,
        counted: Callable[[Place, int, int], None],
        admitted: Callable[[str, dict[str, int]], None],
    ) -> None:
        self._cloud = cloud
        self._hosting = hosting
        self._counted = counted
        self._admitted = admitted
        self._fleets: dict[Place, Fleet] = {}
        self._opened: dict[Place, asyncio.Event] = {}
        self._reaper: asyncio.Task[None] | None = None

    def find(self, place: Place) -> Fleet | None:
        """A variant's machines."""
        return self._fleets.get(place)

    async def opened(self, place: Place) -> None:
        """Return once a variant's machines are looked after."""
        await self._opened.setdefault(place, asyncio.Event()).wait()

    async def open(self, place: Place, variant: Json, *, again: bool = False) -> None:
        """Have the machines that a variant begins with.

        Args:
            place: Whose they are.
            variant: As the configuration has it.
            again: They were there before the rehearsal was started again; those that copies are
                on are made for them.

        Raises:
            HostingError: One could not be had.
        """
        fleet = self._fleets[place] = Fleet(variant)
        self._opened.setdefault(place, asyncio.Event()).set()
        if again:
            self._watch()
            return
        began = time.monotonic()
        count = int(variant.get("InitialInstanceCount") or 1)
        kinds = await asyncio.gather(
            *(self._hosting.place(place[0], variant) for _ in range(count))
        )
        fleet.machines += [Machine(kind) for kind in kinds]
        self._count(place, fleet)
        await asyncio.sleep(max(began + self._cloud.after(EMPTY_START_S) - time.monotonic(), 0))
        for machine in fleet.machines:
            machine.empty_since = time.monotonic()
        self._watch()

    async def claim(
        self, place: Place, gpus: int, memory_mb: int, wanted: Callable[[], bool]
    ) -> Machine | None:
        """Room for a copy: on a machine that is there, else on a new one.

        Args:
            place: The variant.
            gpus: Accelerators that it asks for.
            memory_mb: Memory that it asks for.
            wanted: Whether it still is, while a machine is waited for.

        Returns:
            The machine; None once it is not wanted any more.

        Raises:
            HostingError: There is no room, and none can be made.
        """
        fleet = self._fleets[place]
        if not any(_fits(kind, gpus, memory_mb) for kind in types_of(fleet.variant)):
            raise HostingError(NO_ROOM)
        machine = next((item for item in fleet.machines if item.free >= gpus), None)
        if machine is None:
            machine = await self._one_more(place, fleet, wanted)
            if machine is None:
                return None
        if not _fits(machine.type, gpus, memory_mb):
            raise HostingError(NO_ROOM)
        machine.used += gpus
        return machine

    @staticmethod
    def release(machine: Machine, gpus: int) -> None:
        """Take a copy off a machine."""
        machine.used -= gpus
        if not machine.used:
            machine.empty_since = time.monotonic()

    def close(self, place: Place) -> None:
        """Let every machine of a variant go."""
        self._fleets.pop(place, None)
        self._opened.pop(place, None)

    async def clear(self) -> None:
        """Let everything go."""
        self._fleets.clear()
        self._opened.clear()
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
            self._reaper = None

    # ------------------------------------------------------------------------- inside

    async def _one_more(
        self, place: Place, fleet: Fleet, wanted: Callable[[], bool]
    ) -> Machine | None:
        if len(fleet.machines) + fleet.coming >= fleet.most:
            raise HostingError(NO_ROOM)
        try:
            self._admitted(place[0], dict.fromkeys(types_of(fleet.variant), 1))
        except AwsError as error:
            raise HostingError(error.message) from error
        fleet.coming += 1
        self._count(place, fleet)
        finding = asyncio.ensure_future(self._hosting.place(place[0], fleet.variant))
        try:
            while not finding.done():
                if not wanted():
                    return None
                await asyncio.wait([finding], timeout=_POLL_S)
            machine = Machine(finding.result())
            await asyncio.sleep(self._cloud.after(_MACHINE_S))
            fleet.machines.append(machine)
        finally:
            finding.cancel()
            fleet.coming -= 1
            self._count(place, fleet)
        return machine

    def _count(self, place: Place, fleet: Fleet) -> None:
        if self._fleets.get(place) is fleet:
            self._counted(place, len(fleet.machines), len(fleet.machines) + fleet.coming)

    def _watch(self) -> None:
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._reap(), name="empty machines")

    async def _reap(self) -> None:
        """Take machines that have been empty for long enough."""
        while True:
            await asyncio.sleep(max(self._cloud.after(10.0), _POLL_S))
            for place, fleet in list(self._fleets.items()):
                for machine in list(fleet.machines):
                    idle_s = time.monotonic() - machine.empty_since
                    spare = len(fleet.machines) > fleet.least
                    if spare and not machine.used and idle_s >= self._cloud.after(IDLE_S):
                        fleet.machines.remove(machine)
                        self._count(place, fleet)


def _fits(kind: str, gpus: int, memory_mb: int) -> bool:
    machine = INSTANCE_TYPES[kind]
    return machine.gpus >= gpus and machine.memory_gib * 1024 * _RESERVABLE >= memory_mb

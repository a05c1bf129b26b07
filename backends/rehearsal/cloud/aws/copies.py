"""Copies of inference components: containers on machines of an endpoint, found room and started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.changes import Key
from backends.rehearsal.cloud.aws.fleets import Fleets, Machine, Place
from backends.rehearsal.cloud.aws.hosting import Group, Hosting, HostingError
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.run.instance import Instance

_STARTUP = ("ModelDataDownloadTimeoutInSeconds", "ContainerStartupHealthCheckTimeoutInSeconds")


@dataclass
class Copy:
    """One copy of a component: where it is, and the container."""

    machine: Machine
    group: Group
    gpus: int


class Copies:
    """The copies of every component.

    Args:
        hosting: Their containers.
        fleets: Their machines.
    """

    def __init__(self, hosting: Hosting, fleets: Fleets) -> None:
        self._hosting = hosting
        self._fleets = fleets
        self._copies: dict[Key, list[Copy]] = {}

    def of(self, key: Key) -> list[Copy]:
        """A component's copies; the list itself, to be changed."""
        return self._copies.setdefault(key, [])

    def pick(self, key: Key) -> Instance | None:
        """The copy with the fewest requests; None where no copy can answer."""
        ready = [item for made in self.of(key) if (item := made.group.pick()) is not None]
        return min(ready, key=lambda item: item.inflight, default=None)

    def inflight(self, key: Key) -> int:
        """Requests that are being answered."""
        return sum(item.inflight for made in self.of(key) for item in made.group.instances)

    def clear(self) -> None:
        """Forget all of them; their containers are stopped by who runs them."""
        self._copies.clear()

    async def opened(self, key: Key, item: Json) -> None:
        """Return once the machines of a component's endpoint are looked after."""
        await self._fleets.opened(_place(key, item))

    async def start(
        self, key: Key, item: Json, spec: Json, count: int, wanted: Callable[[], bool], again: bool
    ) -> list[Copy]:
        """Start so many copies; all of them, or none.

        Args:
            key: The component.
            item: As it is kept.
            spec: What each copy is.
            count: How many.
            wanted: Whether they still are, while a machine is waited for.
            again: They were there before the rehearsal was started again.

        Raises:
            HostingError: There is no room for one, or it did not come up.
        """
        tasks = [
            asyncio.ensure_future(self._start(key, item, spec, wanted, again)) for _ in range(count)
        ]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Copy):
                    await self.stop(outcome)
            raise

    async def stop(self, made: Copy) -> None:
        """End a copy; its machine stays, empty."""
        await self._hosting.shrink(made.group, 0)
        self._fleets.release(made.machine, made.gpus)

    async def _start(
        self, key: Key, item: Json, spec: Json, wanted: Callable[[], bool], again: bool
    ) -> Copy:
        region, name = key
        place = _place(key, item)
        needs = spec.get("ComputeResourceRequirements") or {}
        gpus = int(needs.get("NumberOfAcceleratorDevicesRequired") or 0)
        memory_mb = int(needs.get("MinMemoryRequiredInMb") or 0)
        machine = await self._fleets.claim(place, gpus, memory_mb, wanted)
        if machine is None:
            raise HostingError("It is not wanted any more.")
        fleet = self._fleets.find(place)
        variant = dict(fleet.variant if fleet else {})
        variant |= {k: v for k, v in (spec.get("StartupParameters") or {}).items() if k in _STARTUP}
        try:
            group = await self._hosting.start(
                region,
                place[1],
                variant,
                spec["_model"],
                1,
                placed=lambda _: None,
                again=again,
                on=machine.type,
                log_group=f"/aws/sagemaker/InferenceComponents/{name}",
            )
        except BaseException:
            self._fleets.release(machine, gpus)
            raise
        return Copy(machine, group, gpus)


def _place(key: Key, item: Json) -> Place:
    return (key[0], str(item["EndpointName"]), str(item["VariantName"]))

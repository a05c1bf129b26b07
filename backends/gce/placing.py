"""Getting a machine: zone after zone while there is no hardware, and nothing half-made left."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.clouds.google_errors import error_of
from backends.core.errors import (
    CapacityError,
    CloudError,
    ConflictError,
    DevopsError,
    NotFoundError,
    OperationError,
    OutcomeUnknownError,
    QuotaError,
)
from backends.gce.commands import (
    SPEC_LABEL,
    TARGET,
    data_disk,
    delete_disk_argv,
    instance_argv,
    label_of,
)
from backends.gce.machines import seconds_of
from backends.knowledge.gce_failures import signature_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.clouds.google import GoogleCloud
    from backends.clouds.zone_memory import ZoneMemory
    from backends.gce.machines import ComputeApi, Machine

# Hardware is found, or not, within a minute as a rule; Google itself gives up after some more.
PLACE_TIMEOUT_S = 300.0
_LOOK_EVERY_S = 1.0
_CREATE_TIMEOUT_S = 60.0
_DELETE_TIMEOUT_S = 180.0
# After gcloud was cut off, the machine may still be on its way into the API.
_LOOK_FOR_S = 8.0
# Two of Google's clocks need not agree to the millisecond on what came first.
_CLOCKS_S = 2.0


@dataclass(frozen=True)
class Refusal:
    """Why a zone gave none.

    Attributes:
        zone: The zone.
        error: In Google's words.
    """

    zone: str
    error: DevopsError


class Placer:
    """Makes a machine in the first of some zones that has the hardware.

    Args:
        cloud: The project.
        api: Its Compute Engine.
        memory: What zones said lately.
        look_every_s: Seconds between looks at an operation.
    """

    def __init__(
        self,
        cloud: GoogleCloud,
        api: ComputeApi,
        memory: ZoneMemory,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self._cloud = cloud
        self._api = api
        self._memory = memory
        self._every = look_every_s

    async def place(
        self,
        name: str,
        wanted: str,
        creates: Mapping[str, Sequence[str]],
        *,
        kept_disk: bool,
        said: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> tuple[Machine, list[Refusal]]:
        """Make the machine.

        Args:
            name: Its name.
            wanted: What zones are asked for, as the memory names it.
            creates: The exact command by zone, in the order to try.
            kept_disk: Whether its data disk was there before, and must survive a failure.
            said: Told what goes on, in words.
            should_stop: Asked between zones.

        Returns:
            The machine, and the zones that had none.

        Raises:
            CapacityError: No zone had any; each is named with its words.
            QuotaError: A limit forbids it everywhere.
            OperationError: Somebody asked for an end; nothing was left.
            DevopsError: Google refused for another reason.
        """
        refusals: list[Refusal] = []
        for zone, argv in creates.items():
            if should_stop():
                raise stopped(name)
            attempt = _Attempt(name, zone, tuple(argv), kept_disk)
            said(f"creating: asking {zone} for a T4 ({len(refusals) + 1} of {len(creates)})")
            try:
                machine = await self._in_zone(attempt, should_stop)
            except (CapacityError, QuotaError) as error:
                kind = "stockout" if isinstance(error, CapacityError) else "quota"
                self._memory.note(wanted, zone, kind, error.words or error.message)
                await self._clean(attempt)
                refusals.append(Refusal(zone, error))
                if isinstance(error, QuotaError) and "GPUS_ALL_REGIONS" in error.words:
                    # No other zone can say yes.
                    break
                continue
            except ConflictError:
                # Somebody else's machine or disk is in the way; it is not ours to clean.
                raise
            except DevopsError:
                await self._clean(attempt)
                raise
            self._memory.note(wanted, zone, "got")
            return machine, refusals
        raise _nowhere(name, refusals)

    # ------------------------------------------------------------------------- one zone

    async def _in_zone(self, attempt: _Attempt, should_stop: Callable[[], bool]) -> Machine:
        name, zone = attempt.name, attempt.zone
        operation = await self._begin(attempt)
        until = time.monotonic() + PLACE_TIMEOUT_S
        while operation:
            outcome = await self._api.operation(zone, operation)
            if outcome.code:
                words = f"code: {outcome.code}\nmessage: {outcome.message}"
                raise explained(error_of(words, f"Making {name} in {zone}"), name)
            if outcome.done:
                break
            if should_stop():
                raise stopped(name)
            if time.monotonic() > until:
                raise CapacityError(
                    f"{zone} has neither made {name} nor refused it within "
                    f"{PLACE_TIMEOUT_S:.0f} s.",
                    cause="It waits for hardware.",
                    next_action="Other zones are tried.",
                )
            await asyncio.sleep(self._every)
        return await self._api.machine(zone, name)

    async def _begin(self, attempt: _Attempt) -> str:
        """Send the request; returns the operation's name, empty where the machine is there."""
        try:
            text = await self._cloud.gcloud.run(attempt.argv, timeout_s=_CREATE_TIMEOUT_S)
        except (OutcomeUnknownError, ConflictError):
            # It may have been accepted; a second request would be refused, not doubled.
            if await self._came(attempt):
                return ""
            raise
        except DevopsError as error:
            raise explained(error, attempt.name) from error
        operation, attempt.since = operation_in(text)
        return operation

    async def _came(self, attempt: _Attempt) -> bool:
        """Whether the machine of exactly this request is there, and runs or will."""
        until = time.monotonic() + _LOOK_FOR_S
        while True:
            machine = await self._api.machine_or_none(attempt.zone, attempt.name)
            if machine is not None and machine.labels.get(SPEC_LABEL) == attempt.label:
                if machine.status == "RUNNING":
                    return True
                if machine.status not in {"PROVISIONING", "STAGING"}:
                    return False
            elif machine is not None or time.monotonic() > until:
                return False
            await asyncio.sleep(self._every)

    # ------------------------------------------------------------------------- leaving nothing

    async def _clean(self, attempt: _Attempt) -> None:
        """Delete what a refused request left in a zone, and see that it is gone.

        Only what this request made: the machine of exactly its label, and disks that nobody uses
        and that came after it.
        """
        name, zone, kept = attempt.name, attempt.zone, attempt.kept_disk
        project = await self._cloud.project()
        machine = await self._api.machine_or_none(zone, name)
        if machine is not None and machine.labels.get(SPEC_LABEL) != attempt.label:
            return
        if machine is not None:
            flags = () if kept else ("--delete-disks=all",)
            await self._gone(instance_argv("delete", name, project, zone, *flags))
        for disk_name in (name, *(() if kept else (data_disk(name),))):
            disk = await self._api.disk_or_none(zone, disk_name)
            if disk is None or disk.users or not attempt.since:
                continue
            if disk.created_s > attempt.since - _CLOCKS_S:
                await self._gone(delete_disk_argv(disk_name, project, zone))

    async def _gone(self, argv: tuple[str, ...]) -> None:
        try:
            await self._cloud.gcloud.run(argv, timeout_s=_DELETE_TIMEOUT_S)
        except NotFoundError:
            return
        except DevopsError as error:
            error.next_action = f"What was left bills: run {' '.join(argv)}"
            raise


@dataclass
class _Attempt:
    """One request in one zone.

    Attributes:
        name: The machine.
        zone: The zone.
        argv: The command.
        kept_disk: Whether its data disk was there before.
        since: When Google took the request, Unix seconds; 0 while that is not known.
    """

    name: str
    zone: str
    argv: tuple[str, ...]
    kept_disk: bool
    since: float = 0.0

    @property
    def label(self) -> str:
        """What the machine of exactly this request carries."""
        return label_of(self.argv)


def stopped(name: str) -> OperationError:
    """The error for work that somebody ended."""
    return OperationError(f"The work on {name} was cancelled.")


def operation_in(text: str) -> tuple[str, float]:
    """The operation's name, and when Google took it, in what `--async --format=json` printed.

    Raises:
        CloudError: It is not there.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    item: Any = value[0] if isinstance(value, list) and value else value
    if isinstance(item, dict) and "operationType" in item:
        return str(item["name"]), seconds_of(item.get("insertTime"))
    raise CloudError("gcloud did not say which operation makes the machine.", words=text[:500])


def explained(error: DevopsError, name: str) -> DevopsError:
    """The error with the cause and fix of the signature its words carry, if they carry one."""
    found = signature_of(f"{error.words} {error.message}")
    if found is not None:
        error.cause, error.next_action = found.explained(TARGET, name)
    return error


def _nowhere(name: str, refusals: Sequence[Refusal]) -> DevopsError:
    last = refusals[-1].error
    said = "; ".join(f"{item.zone}: {_short(item.error)}" for item in refusals)
    quota = all(isinstance(item.error, QuotaError) for item in refusals)
    kind = QuotaError if quota else CapacityError
    return kind(
        f"No zone could give {name} a T4 ({said}). Nothing was left behind.",
        words="\n".join(f"{item.zone}: {item.error.words}" for item in refusals),
        cause=last.cause,
        next_action=last.next_action,
        details=last.details,
    )


def _short(error: DevopsError) -> str:
    return "out of stock" if isinstance(error, CapacityError) else error.code

"""Finding hardware: zone after zone by the plan's rule, as an operation that outlives its server.

What it holds to:

* one request lives at a time: before it asks, it looks everywhere for one of its name;
* a request whose answer was lost is looked for before it is believed not to be;
* it deletes only requests that carry its own label, and only when the plan's time for that zone is
  over or Google has ended them; never one that has been chosen (PROVISIONING and later);
* WAITING_FOR_RESOURCES is waiting; in the last zone it waits for as long as the request is valid;
* stopping it leaves a living request alone.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.clouds.zone_memory import ZoneMemory
from backends.core.errors import (
    CapacityError,
    CloudError,
    ConflictError,
    DevopsError,
    NotFoundError,
    QuotaError,
)
from backends.knowledge.tpu_failures import signature_of
from backends.tpu.commands import delete_argv
from backends.tpu.records import SPEC_LABEL, TpuRequest
from backends.tpu.running import CREATE_TIMEOUT_S, REFUSALS, explained, look_for
from backends.tpu.state import time_words

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.tpu.looking import TpuLooking

# How often a request is looked at, by its own clock and by a rehearsal's.
_LOOK_EVERY_S = 10.0
_LOOK_EVERY_REHEARSAL_S = 0.4
_DELETE_TIMEOUT_S = 25.0
# A request that is being deleted is waited for: the next one must not live beside it.
_GONE_S = 300.0
# Looks that fail in a row before the search gives up; the request is left alone.
_PATIENCE_LOOKS = 30

# What a refusal means for a zone: our kind of note for each signature.
_KINDS = {
    "no_hardware": "no_hardware",
    "no_zone": "no_hardware",
    "model_refused": "model_refused",
    "gated_machine": "model_refused",
    "quota": "quota",
    "quota_compute": "quota",
    "stockout": "stockout",
}


class _Stopped(Exception):  # noqa: N818 (a wish, not an error)
    """Somebody asked for an end."""


@dataclass
class Search:
    """One search.

    Args:
        target: The target.
        name: The deployment.
        params: What the plan's step says.
        job: Progress out, the wish to stop in.
    """

    target: TpuLooking
    name: str
    params: Mapping[str, Any]
    job: WorkerJob
    tried: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._memory = ZoneMemory(self.target.services.state, self.target.target)
        self._zones = [str(zone) for zone in self.params["zones"]]
        self._began = time.monotonic()
        rehearsal = self.target.cloud.rehearsal
        self._every_s = _LOOK_EVERY_REHEARSAL_S if rehearsal else _LOOK_EVERY_S

    async def run(self) -> dict[str, Any]:
        """Go through the zones.

        Returns:
            Where it was found, or what was left, and what each zone said.

        Raises:
            CapacityError: No zone gave hardware, and nothing is left behind.
            ConflictError: Somebody else has a request of that name.
            DevopsError: Google refused for a reason that no other zone would mend.
        """
        start = 0
        adopt = str(self.params.get("adopt") or "")
        if adopt in self._zones:
            start = self._zones.index(adopt)
        for index in range(start, len(self._zones)):
            zone = self._zones[index]
            last = index == len(self._zones) - 1
            try:
                found = await self._try(zone, last=last)
            except _Stopped:
                return await self._left()
            if found is not None:
                self._memory.note(self._what, zone, "got")
                self._say(f"{zone} gave {found.size}: {found.state}")
                return {
                    "zone": zone,
                    "state": found.state,
                    "size": found.size,
                    "provisioning": found.provisioning,
                    "waited_s": round(time.monotonic() - self._began),
                    "tried": self.tried,
                    "next": self.target.call("wait_until_ready", self.name),
                }
        raise CapacityError(
            f"No zone gave {self._what}: {'; '.join(self.tried)}.",
            cause="Quota is not capacity; every zone of the plan was asked.",
            next_action="Plan again later, with other zones, or with another provisioning model; "
            "what each zone said is remembered for a while.",
        )

    @property
    def _what(self) -> str:
        return str(self.params["what"])

    @property
    def _digest(self) -> str:
        return str(self.params["digest"])

    async def _try(self, zone: str, *, last: bool) -> TpuRequest | None:
        """Ask one zone; the request that became active, or None to move on."""
        request = await self._one_that_lives(zone)
        if request is None:
            request = await self._ask(zone)
        if request is None:
            return None
        return await self._watch(zone, request, last=last)

    async def _one_that_lives(self, zone: str) -> TpuRequest | None:
        """Our own request in that zone, if it lives already.

        Raises:
            ConflictError: There is one elsewhere, or one that is not ours.
        """
        found = [item for item in await self._persistently_all() if item.name == self.name]
        mine = next((item for item in found if item.zone == zone and self._is_mine(item)), None)
        others = [item for item in found if item is not mine]
        if others:
            other = others[0]
            raise ConflictError(
                f"{other.key} is there ({other.state}); a second request is not made beside it.",
                cause="It appeared while this search ran, or was left by another.",
                next_action=f"{self.target.call('get_status', other.key)}, and destroy the one "
                "that is not wanted.",
            )
        return mine

    async def _persistently_all(self) -> list[TpuRequest]:
        for attempt in range(_PATIENCE_LOOKS):
            try:
                return (await self.target.world())[0]
            except DevopsError as error:
                if attempt == _PATIENCE_LOOKS - 1 or isinstance(error, REFUSALS):
                    raise
                self._say(f"cannot look now ({error.code}), looking again")
                await self._pause()
        raise AssertionError("unreachable")

    def _is_mine(self, request: TpuRequest) -> bool:
        return request.managed and request.labels.get(SPEC_LABEL) == self._digest

    async def _ask(self, zone: str) -> TpuRequest | None:
        """Make the request; None where the zone refuses for a reason of its own."""
        self._check_stop()
        self._say(f"asking {zone}")
        argv = shlex.split(str(self.params["commands"][zone]))
        refusal: DevopsError | None = None
        try:
            await self.target.cloud.gcloud.run(argv, timeout_s=CREATE_TIMEOUT_S)
        except DevopsError as error:
            refusal = error
        if refusal is not None and (kind := self._kind_of(refusal)):
            self._note(zone, kind, refusal.words or refusal.message)
            return None
        if isinstance(refusal, REFUSALS):
            raise explained(refusal, self.name)
        found = await look_for(
            self.target, self.name, zone, str(self.params["plane"]), self._digest
        )
        if found is None and refusal is not None:
            raise explained(refusal, self.name)
        if found is None:
            raise CloudError(
                f"Google accepted the request {self.name} in {zone}, but does not show it.",
                next_action="Call list_deployments in a minute, before anything is asked again.",
            )
        return found

    @staticmethod
    def _kind_of(error: DevopsError) -> str | None:
        """What a refusal says about a zone; None where another zone would refuse as well."""
        found = signature_of(f"{error.words} {error.message}")
        if found is not None and found.id in _KINDS:
            return _KINDS[found.id]
        if isinstance(error, CapacityError):
            return "stockout"
        return "quota" if isinstance(error, QuotaError) else None

    async def _watch(self, zone: str, request: TpuRequest, *, last: bool) -> TpuRequest | None:
        """Follow a request until it is active, has ended, or its time in this zone is over."""
        limit_s = float(self.params["zone_wait_s"])
        began = time.monotonic()
        failed_looks = 0
        while True:
            if request.stage == "active":
                return request
            if request.stage in {"failed", "suspended", "deleting"}:
                await self._after_the_end(zone, request)
                return None
            waited = time.monotonic() - began
            if request.stage == "queued" and not last and waited >= limit_s:
                return await self._give_up(zone, request, waited)
            rule = "until it is no longer valid" if last else f"of {time_words(limit_s)}"
            self._say(f"{zone}: {request.state} for {time_words(waited)} {rule}", waited)
            self._check_stop()
            await self._pause()
            try:
                request = await self._look(request)
                failed_looks = 0
            except NotFoundError:
                self.tried.append(f"{zone}: the request was deleted by somebody")
                raise CloudError(
                    f"The request {request.key} is gone: somebody else deleted it.",
                    next_action="Plan again if it was not meant to end.",
                ) from None
            except DevopsError:
                failed_looks += 1
                if failed_looks >= _PATIENCE_LOOKS:
                    raise

    async def _look(self, request: TpuRequest) -> TpuRequest:
        if request.plane == "compute":
            return await self.target.api.instance(request.zone, request.name)
        return await self.target.api.request(request.zone, request.name)

    async def _give_up(self, zone: str, request: TpuRequest, waited: float) -> TpuRequest | None:
        """The plan's time for this zone is over: delete our own request, unless it was chosen."""
        self._note(zone, "waited", f"{request.state} for {time_words(waited)}")
        gone = await self._remove(request)
        if gone is None:
            return None
        # It was chosen between the look and the deletion: then it is what was looked for.
        self.tried.pop()
        return await self._watch(zone, gone, last=True)

    async def _after_the_end(self, zone: str, request: TpuRequest) -> None:
        """Google ended it: remember why, and delete what is left, which counts against quota."""
        words = request.said or request.state
        found = signature_of(words)
        self._note(zone, _KINDS.get(found.id, "failed") if found else "failed", words)
        if request.stage != "deleting":
            await self._remove(request)
        await self._until_gone(request)

    async def _remove(self, request: TpuRequest) -> TpuRequest | None:
        """Delete a request of ours without force; it is returned if it has become more than that.

        Raises:
            ConflictError: It is not ours.
        """
        current = await self._look(request)
        if not self._is_mine(current):
            raise ConflictError(
                f"{current.key} does not carry the label of this search; it is left alone.",
                next_action=self.target.call("get_status", current.key),
            )
        if current.stage in {"provisioning", "active"}:
            return current
        project = await self.target.cloud.project()
        argv = [word for word in delete_argv(current, project) if word != "--force"]
        try:
            await self.target.cloud.gcloud.run(argv, timeout_s=_DELETE_TIMEOUT_S)
        except NotFoundError:
            return None
        except DevopsError:
            # Refused because it was chosen just now, or the answer was lost: look.
            try:
                current = await self._look(request)
            except NotFoundError:
                return None
            if current.stage in {"provisioning", "active"}:
                return current
            if current.stage != "deleting":
                raise
        await self._until_gone(request)
        return None

    async def _until_gone(self, request: TpuRequest) -> None:
        """Wait until a deleted request is no more.

        Raises:
            CloudError: It will not go, so no other may be made.
        """
        until = time.monotonic() + _GONE_S
        while time.monotonic() < until:
            try:
                await self._look(request)
            except NotFoundError:
                return
            except DevopsError as error:
                self._say(f"cannot look now ({error.code}), looking again")
            await self._pause()
        raise CloudError(
            f"{request.key} is still being deleted after {time_words(_GONE_S)}; no second request "
            "is made beside it.",
            next_action=f"{self.target.call('get_status', request.key)}; plan again when it is "
            "gone.",
        )

    async def _left(self) -> dict[str, Any]:
        """What a stopped search leaves behind: nothing is deleted."""
        found = [item for item in await self._persistently_all() if item.name == self.name]
        left = [f"{item.key} ({item.state})" for item in found if self._is_mine(item)]
        return {
            "left": ", ".join(left) or "nothing",
            "tried": self.tried,
            "next": self.target.call("destroy", self.name)
            if left
            else f"plan_deployment(target={self.target.target!r})",
        }

    def _note(self, zone: str, kind: str, words: str) -> None:
        self._memory.note(self._what, zone, kind, words)
        short = re.sub(r"\s+", " ", words).strip()[:160]
        self.tried.append(f"{zone}: {kind.replace('_', ' ')} ({short})")
        self._say(f"{zone}: {kind.replace('_', ' ')}")

    def _say(self, words: str, done: float = 0.0) -> None:
        place = min(len(self.tried) + 1, len(self._zones))
        self.job.progress(done, None, f"zone {place} of {len(self._zones)}: {words}")

    def _check_stop(self) -> None:
        if self.job.should_stop():
            raise _Stopped

    async def _pause(self) -> None:
        await asyncio.sleep(self._every_s)


async def search(
    target: TpuLooking, name: str, params: Mapping[str, Any], job: WorkerJob
) -> dict[str, Any]:
    """Look for hardware; see `Search`."""
    return await Search(target, name, params, job).run()

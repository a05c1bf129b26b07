"""Runs the steps of our plans; where an answer was lost, it looks before it believes anything."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from backends.clouds.google_steps import STEP_TIMEOUT_S, run_gcloud_step
from backends.clouds.process import Secret
from backends.core.errors import (
    ApiDisabledError,
    CapacityError,
    CliMissingError,
    CloudError,
    ConflictError,
    DevopsError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    QuotaError,
    RateLimitedError,
    UnauthenticatedError,
)
from backends.core.plans import Plan, Step
from backends.core.settings import as_environment
from backends.knowledge.signatures import explain
from backends.knowledge.tpu_failures import SIGNATURES
from backends.tpu.records import SPEC_LABEL, TARGET, TpuRequest

if TYPE_CHECKING:
    from backends.tpu.looking import TpuLooking

CREATE_TIMEOUT_S = 25.0
# After gcloud was cut off, the request may still be on its way into the API.
LOOK_FOR_S = 6.0
_LOOK_EVERY_S = 0.5
_GONE_S = 8.0


# Answers after which nothing can have been made. After any other, somebody has to look.
REFUSALS = (
    ApiDisabledError,
    CapacityError,
    CliMissingError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    QuotaError,
    RateLimitedError,
    UnauthenticatedError,
)


async def run_step(target: TpuLooking, plan: Plan, step: Step) -> str:
    """Run one step; returns what it did, in words.

    Raises:
        DevopsError: It failed, with the cause where the words are known.
    """
    from backends.tpu import serving

    kinds: dict[str, Callable[[], Awaitable[str]]] = {
        "gcloud": lambda: run_gcloud_step(target.cloud.gcloud, step),
        "key": lambda: _key(target, step),
        "create": lambda: _create(target, plan, step),
        "search": lambda: _search(target, plan, step),
        "delete": lambda: _delete(target, step),
        "containers": lambda: serving.run_on_hosts(target, plan.name, step),
        "power": lambda: _power(target, plan, step),
    }
    if step.kind not in kinds:
        raise CloudError(f"{target.target} has no step of kind {step.kind!r}.")
    try:
        return await kinds[step.kind]()
    except DevopsError as error:
        raise explained(error, plan.name) from error


def explained(error: DevopsError, name: str) -> DevopsError:
    """The error with the cause and fix of the signature its words carry, if they carry one."""
    return explain(error, SIGNATURES, TARGET, name)


async def _key(target: TpuLooking, step: Step) -> str:
    """A fresh key, which goes from here to Secret Manager by standard input and nowhere else."""
    try:
        await target.cloud.gcloud.run(
            step.argv, timeout_s=STEP_TIMEOUT_S, stdin=Secret(secrets.token_urlsafe(32))
        )
    except ConflictError:
        return "the API key of an earlier deployment of that name is there and is used"
    return "made an API key and kept it in Secret Manager"


async def _create(target: TpuLooking, plan: Plan, step: Step) -> str:
    zone, digest = str(step.data["zone"]), str(step.data["digest"])
    plane = str(step.data["plane"])
    with _asking(target, plan.name):
        # The plan was checked a moment ago; another may have asked since then.
        if (there := await _there(target, plan.name, zone, plane)) is not None:
            raise _taken(target, there, digest)
        began = time.monotonic()
        try:
            await target.cloud.gcloud.run(step.argv, timeout_s=CREATE_TIMEOUT_S)
        except REFUSALS:
            raise
        except DevopsError as error:
            return await _after_no_answer(target, plan, step, error, time.monotonic() - began)
    return f"Google accepted the request {plan.name} in {zone}"


async def _after_no_answer(
    target: TpuLooking, plan: Plan, step: Step, error: DevopsError, waited_s: float
) -> str:
    """What became of a request whose answer does not say.

    It may have been accepted. A create of the same name makes no second, but a caller who believes
    that nothing is there may spend twice under another name. That it is there already is said to
    gcloud as well when the answer to its own first try was lost.
    """
    zone, digest = str(step.data["zone"]), str(step.data["digest"])
    plane = str(step.data["plane"])
    found = await look_for(target, plan.name, zone, plane, digest)
    if found is not None:
        return (
            f"gcloud was not told after {waited_s:.0f} s, but Google has the request {plan.name} "
            f"in {zone}: found there by its label, {found.state}"
        )
    if isinstance(error, ConflictError):
        other = await _there(target, plan.name, zone, plane)
        raise error if other is None else _taken(target, other, digest) from error
    error.next_action = (
        f"{target.call('get_status', plan.name)} says whether it came to be; the same name makes "
        "no second one in that zone."
    )
    raise error


@contextlib.contextmanager
def _asking(target: TpuLooking, name: str) -> Iterator[None]:
    """Ask for one deployment from one place at a time.

    Raises:
        ConflictError: Another server of this state directory is at it.
    """
    with target.services.state.alone(f"{target.target}.{name}") as alone:
        if not alone:
            raise ConflictError(
                f"Another server here is asking for {target.at(name)} at this moment; nothing was "
                "asked for twice.",
                next_action=f"{target.call('get_status', name)} shows what it got.",
            )
        yield


async def _there(target: TpuLooking, name: str, zone: str, plane: str) -> TpuRequest | None:
    """The request of that name in that zone, whoever made it."""
    try:
        return await (
            target.api.instance(zone, name)
            if plane == "compute"
            else target.api.request(zone, name)
        )
    except NotFoundError:
        return None


def _taken(target: TpuLooking, found: TpuRequest, digest: str) -> ConflictError:
    """The refusal for a name that somebody else's request got first."""
    if not found.managed:
        who = "by somebody else: it does not carry our label"
    elif found.labels.get(SPEC_LABEL) == digest:
        who = "by another call of this server, or of one with the same state directory"
    else:
        who = f"by another vLLM DevOps server, with other settings or elsewhere ({found.account})"
    since = time.strftime("%H:%M:%S UTC", time.gmtime(found.created_at))
    return ConflictError(
        f"{target.at(found.name)} is there already, in {found.zone} since {since} "
        f"({found.state}): asked for {who}. Nothing was made twice.",
        next_action=f"{target.call('get_status', found.name)} shows it; take another name for "
        "one more.",
    )


async def look_for(
    target: TpuLooking, name: str, zone: str, plane: str, digest: str
) -> TpuRequest | None:
    """The request that a lost answer was about; None if it did not come to be.

    Args:
        target: The target.
        name: The deployment.
        zone: Where it was asked for.
        plane: `tpu` or `compute`.
        digest: What its label must say.
    """
    until = time.monotonic() + LOOK_FOR_S
    while True:
        found = await _there(target, name, zone, plane)
        if found is not None:
            return found if found.labels.get(SPEC_LABEL) == digest else None
        if time.monotonic() > until:
            return None
        await asyncio.sleep(_LOOK_EVERY_S)


async def _search(target: TpuLooking, plan: Plan, step: Step) -> str:
    from backends.tpu.finding import SEARCH

    with _asking(target, plan.name):
        running = (await asyncio.to_thread(target.searches)).get(plan.name)
        if running is not None:
            raise ConflictError(
                f"{running.id} looks for hardware for {target.at(plan.name)} already; no second "
                "search was started.",
                next_action=f"get_operation(operation_id={running.id!r}, wait_s=40)",
            )
        operation = await asyncio.to_thread(
            target.services.operations.start,
            SEARCH,
            target.target,
            plan.name,
            dict(step.data),
            as_environment(target.services.settings),
        )
    return (
        f"{operation.id} asks in {', '.join(step.data['zones'])}; "
        f"get_operation(operation_id={operation.id!r}, wait_s=40) follows it"
    )


async def _delete(target: TpuLooking, step: Step) -> str:
    """Delete a request, a node or a machine, and see that it goes."""
    what = f"{step.data['name']} in {step.data['zone']}"
    await target.let_go(f"{step.data['name']}@{step.data['zone']}")
    try:
        await target.cloud.gcloud.run(step.argv, timeout_s=STEP_TIMEOUT_S)
    except NotFoundError:
        return f"{what} was gone already"
    except OutcomeUnknownError:
        if not await _going(target, step):
            raise
    until = time.monotonic() + _GONE_S
    while time.monotonic() < until:
        if await _gone(target, step):
            return f"deleted {what}, and saw that it is gone"
        await asyncio.sleep(_LOOK_EVERY_S)
    return f"Google has accepted the deletion of {what} and is at it"


async def _going(target: TpuLooking, step: Step) -> bool:
    """Whether a deletion whose answer was lost has begun."""
    try:
        found = await _seen(target, step)
    except NotFoundError:
        return True
    return found in {"DELETING", "STOPPING", "DEPROVISIONING"}


async def _gone(target: TpuLooking, step: Step) -> bool:
    try:
        await _seen(target, step)
    except NotFoundError:
        return True
    return False


async def _seen(target: TpuLooking, step: Step) -> str:
    """Google's word for the state of what a step deletes.

    Raises:
        NotFoundError: It is gone.
    """
    zone, name, what = (str(step.data[key]) for key in ("zone", "name", "what"))
    if what == "instance":
        return (await target.api.instance(zone, name)).state
    if what == "node":
        return (await target.api.node(zone, name)).state
    return (await target.api.request(zone, name)).state


async def _power(target: TpuLooking, plan: Plan, step: Step) -> str:
    verb = str(step.data["verb"])
    try:
        await target.cloud.gcloud.run(step.argv, timeout_s=STEP_TIMEOUT_S)
    except OutcomeUnknownError:
        request = await target.find(plan.name)
        wanted = {"stop": {"stopping", "stopped"}, "start": {"provisioning", "active"}}[verb]
        if request.stage not in wanted:
            raise
    return f"Google accepted the {verb} of {plan.name}"

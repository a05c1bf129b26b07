"""Runs the steps of our plans: what is quick at once, what takes minutes as an operation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.clouds.google_steps import run_gcloud_step
from backends.core.errors import (
    CloudError,
    ConflictError,
    DevopsError,
    NotFoundError,
    OutcomeUnknownError,
)
from backends.core.plans import Plan, Step
from backends.gce.placing import explained

if TYPE_CHECKING:
    from backends.core.operations import Operation
    from backends.gce.looking import GceLooking

# A call of ours may take 45 s in all.
_STEP_TIMEOUT_S = 20.0
_GONE_S = 12.0
# In the worker there is time: a NAT takes half a minute.
_LONG_STEP_TIMEOUT_S = 120.0


async def run_step(target: GceLooking, plan: Plan, step: Step) -> str:
    """Run one step; returns what it did, in words.

    Raises:
        DevopsError: It failed, with the cause where the words are known.
    """
    try:
        match step.kind:
            case "gcloud":
                return await run_gcloud_step(target.cloud.gcloud, step, timeout_s=_STEP_TIMEOUT_S)
            case "there":
                return await _there(target, plan, step)
            case "stop_engine":
                return await _stop_engine(target, plan)
            case "power_off":
                return await _power_off(target, plan, step)
            case "delete":
                return await _delete(target, plan, step)
    except DevopsError as error:
        raise explained(error, plan.name) from error
    raise CloudError(f"{target.target} has no step of kind {step.kind!r}.")


def start_work(target: GceLooking, kind: str, name: str, params: Mapping[str, Any]) -> Operation:
    """Start background work on a deployment.

    Raises:
        ConflictError: Other work on it is still going on.
    """
    for operation in target.services.operations.all():
        if (operation.target, operation.name) == (target.target, name) and not operation.finished:
            if operation.kind == "benchmark":
                continue
            raise ConflictError(
                f"{target.at(name)} is being worked on: {operation.kind} {operation.id}"
                + (f", {operation.progress}" if operation.progress else "")
                + ".",
                next_action=f"get_operation(operation_id={operation.id!r}, wait_s=40)",
            )
    from backends.core.settings import as_environment

    return target.services.operations.start(
        kind, target.target, name, params, as_environment(target.services.settings)
    )


async def _there(target: GceLooking, plan: Plan, step: Step) -> str:
    """Run the command of the place that the machine has come to be in."""
    machine = await target.ours(plan.name)
    by_place = step.data["by_place"]
    argv = by_place.get(machine.zone) or by_place.get(machine.region)
    if argv is None:
        return f"{step.title.partition(',')[0]}: not needed in {machine.region}"
    own = step.model_copy(update={"argv": tuple(argv)})
    return await run_gcloud_step(target.cloud.gcloud, own, timeout_s=_LONG_STEP_TIMEOUT_S)


async def _stop_engine(target: GceLooking, plan: Plan) -> str:
    await _end_work(target, plan.name)
    machine = await target.ours(plan.name)
    return await target.hosting.stop(machine)


async def _power_off(target: GceLooking, plan: Plan, step: Step) -> str:
    await _end_work(target, plan.name)
    await target.hosting.let_go(await target.ours(plan.name))
    await target.cloud.gcloud.run(step.argv, timeout_s=_STEP_TIMEOUT_S)
    return f"Google switches {plan.name} off"


async def _delete(target: GceLooking, plan: Plan, step: Step) -> str:
    """Delete a machine; Google takes about a minute, and its acceptance is what counts."""
    await _end_work(target, plan.name)
    zone = str(step.data["zone"])
    machine = await target.api.machine_or_none(zone, plan.name)
    if machine is None:
        return f"{plan.name} was gone already"
    await target.hosting.let_go(machine)
    try:
        await target.cloud.gcloud.run(step.argv, timeout_s=_GONE_S)
    except NotFoundError:
        return f"{plan.name} was gone already"
    except OutcomeUnknownError:
        left = await target.api.machine_or_none(zone, plan.name)
        if left is not None and left.status != "STOPPING":
            raise
        return f"Google has accepted the deletion of {plan.name} in {zone} and is at it"
    return f"deleted {plan.name} in {zone}"


async def _end_work(target: GceLooking, name: str) -> None:
    """Stop what is at work on a deployment, so that it does not bring back what ends now."""
    operation = await target.work_on(name)
    if operation is not None and not operation.finished:
        await asyncio.to_thread(target.services.operations.cancel, operation.id)

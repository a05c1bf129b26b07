"""Runs the steps of our plans: one aws command each, and a look where its end is not known."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from backends.core.errors import (
    CloudError,
    ConflictError,
    DevopsError,
    NotFoundError,
    OutcomeUnknownError,
)
from backends.core.names import is_ours
from backends.core.plans import Plan, Step
from backends.core.settings import as_environment
from backends.knowledge.sagemaker_failures import SIGNATURES
from backends.knowledge.signatures import explain
from backends.sagemaker.endpoints import BUSY

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking

# A new role is not known everywhere at once; what needs it is tried again for so long. With the
# other steps of a plan it must stay within a call.
_NEW_ROLE_S = 24.0
_NEW_ROLE_EVERY_S = 3.0
_STEP_TIMEOUT_S = 20.0
# After the CLI was cut off, what it asked for may still be on its way into the API.
_LOOK_FOR_S = 5.0


async def run_step(target: SageMakerLooking, plan: Plan, step: Step) -> str:
    """Run one step; returns what it did, in words.

    Raises:
        DevopsError: It failed, with the cause where the words are known.
    """
    if step.kind == "later":
        return f"{step.title}: left to the operation"
    if step.kind == "operation":
        return await _start_operation(target, plan, step)
    if step.kind == "aws":
        return await run_command(target, plan.name, step)
    raise CloudError(f"{target.target} has no step of kind {step.kind!r}.")


async def run_command(target: SageMakerLooking, name: str, step: Step) -> str:
    """Run a step's command.

    Args:
        target: The target.
        name: The deployment.
        step: With `data`: the thing it is about, its id and region, and what is no fault.

    Raises:
        DevopsError: It failed. Where that is not known, what may have been made is named with its
            undo.
    """
    thing, region = str(step.data.get("thing")), str(step.data.get("region"))
    try:
        return await _sent(target, step)
    except OutcomeUnknownError as error:
        if await _was_done(target, step):
            if thing in {"endpoint", "update"}:
                target.remember(name, region)
            return f"{step.title}: the aws CLI was cut off, but it is done; seen in {region}"
        # Not seen yet is not never: it is named, so that nobody has to remember it.
        # What a later step makes stands among its data.
        creates = step.creates or step.data.get("creates", ())
        undo = step.undo or step.data.get("undo")
        error.made = [f"perhaps {item}" for item in creates]  # type: ignore[attr-defined]
        error.undo = [undo] if undo and creates else []  # type: ignore[attr-defined]
        error.next_action = (
            f"{target.call('get_status', name)} says whether it came to be; planning and deploying "
            "the same name again goes on from what is there."
        )
        raise
    except DevopsError as error:
        raise explained(error, target.target, name) from error


def explained(error: DevopsError, target: str, name: str) -> DevopsError:
    """The error with the cause and fix of the signature its words carry, if they carry one."""
    return explain(error, SIGNATURES, target, name)


async def _sent(target: SageMakerLooking, step: Step) -> str:
    until = time.monotonic() + _NEW_ROLE_S
    while True:
        try:
            await target.aws.run(step.argv, timeout_s=_STEP_TIMEOUT_S)
        except ConflictError as error:
            if "assume role" in error.words and step.data.get("new_role"):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_NEW_ROLE_EVERY_S)
                continue
            if step.data.get("thing") in {"model", "config"} and "already exist" in error.words:
                # Its name stands for its settings: what is there is what was wanted.
                return f"{step.title}: it was there already"
            raise
        except NotFoundError:
            if step.data.get("missing_ok"):
                return f"{step.title}: it was gone already"
            raise
        else:
            if step.data.get("thing") in {"endpoint", "update"}:
                target.remember(str(step.data["id"]), str(step.data["region"]))
            return f"{step.title}: done"


async def _was_done(target: SageMakerLooking, step: Step) -> bool:
    """Whether what a command that was cut off should do has been done."""
    until = time.monotonic() + _LOOK_FOR_S
    while True:
        try:
            if await _is_done(target, step.data):
                return True
        except DevopsError:
            return False
        if time.monotonic() > until:
            return False
        await asyncio.sleep(1.0)


async def _is_done(target: SageMakerLooking, data: dict[str, Any]) -> bool:
    from backends.sagemaker.world import role_of

    thing, name, region = str(data.get("thing")), str(data.get("id")), str(data.get("region"))
    api = target.api
    done = False
    try:
        if thing in {"role", "policy"}:
            role = await role_of(target.aws, region, name)
            done = role is not None and (role.ours if thing == "role" else bool(role.policy))
        elif thing == "model":
            done = bool(await api.model_tags(region, name))
        elif thing == "config":
            api.forget(region, name)
            done = (await api.config(region, name)).managed
        elif thing == "endpoint":
            done = (await api.endpoint(region, name)).managed
        elif thing == "update":
            endpoint = await api.endpoint(region, name)
            done = str(data.get("config")) in {endpoint.config, endpoint.next_config}
        elif thing == "no endpoint":
            done = await _gone(target, region, name)
        elif thing == "component":
            component = await api.component_or_none(region, name)
            done = component is not None and is_ours(await api.component_tags(region, component))
        elif thing == "no component":
            component = await api.component_or_none(region, name)
            done = component is None or component.status == "Deleting"
        elif thing == "copies":
            component = await api.component_or_none(region, name)
            done = component is not None and component.desired == data.get("count")
    except NotFoundError:
        return False
    return done


async def _gone(target: SageMakerLooking, region: str, name: str) -> bool:
    try:
        return (await target.api.endpoint(region, name)).status in BUSY & {"Deleting"}
    except NotFoundError:
        return True


async def _start_operation(target: SageMakerLooking, plan: Plan, step: Step) -> str:
    """Start the worker that goes on when this call is over."""
    later = [item.model_dump(mode="json") for item in plan.steps if item.kind == "later"]
    kind = str(step.data["operation"])
    services = target.services
    operation = await asyncio.to_thread(
        services.operations.start,
        kind,
        target.target,
        plan.name,
        {"region": step.data.get("region"), "steps": later},
        as_environment(services.settings),
    )
    return (
        f"{step.title}: operation {operation.id}; "
        f"get_operation(operation_id={operation.id!r}, wait_s=40)"
    )

"""Runs the steps of our plans: one gcloud command each, and a look where its end is not known."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from backends.cloudrun.commands import SPEC_LABEL, label_of
from backends.clouds.google_steps import STEP_TIMEOUT_S, run_gcloud_step
from backends.core.errors import (
    CloudError,
    DevopsError,
    NotFoundError,
    OutcomeUnknownError,
)
from backends.core.plans import Plan, Step
from backends.knowledge.cloudrun_failures import SIGNATURES
from backends.knowledge.signatures import explain

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.cloudrun.looking import CloudRunLooking

_DEPLOY_TIMEOUT_S = 25.0
_GONE_S = 10.0
# After gcloud was cut off, the service may still be on its way into the API.
_LOOK_FOR_S = 5.0


async def run_long_step(target: CloudRunLooking, step: Step, job: WorkerJob) -> str:
    """Run a step that takes minutes, in a worker.

    Raises:
        DevopsError: It failed, with the cause where the words are known.
    """
    from backends.cloudrun.images import build_image

    if step.kind != "build":
        raise CloudError(f"{target.target} has no long step of kind {step.kind!r}.")
    return await build_image(target, step, job)


async def run_step(target: CloudRunLooking, plan: Plan, step: Step) -> str:
    """Run one step; returns what it did, in words.

    Raises:
        DevopsError: It failed, with the cause where the words are known.
    """
    try:
        if step.kind == "deploy":
            return await _deploy(target, plan, step)
        if step.kind == "delete":
            return await _delete(target, plan, step)
        if step.kind == "gcloud":
            return await run_gcloud_step(target.cloud.gcloud, step)
    except DevopsError as error:
        raise explained(error, target.target, plan.name) from error
    raise CloudError(f"{target.target} has no step of kind {step.kind!r}.")


def explained(error: DevopsError, target: str, name: str) -> DevopsError:
    """The error with the cause and fix of the signature its words carry, if they carry one."""
    return explain(error, SIGNATURES, target, name)


async def _deploy(target: CloudRunLooking, plan: Plan, step: Step) -> str:
    region = str(step.data["region"])
    began = time.monotonic()
    try:
        await target.cloud.gcloud.run(step.argv, timeout_s=_DEPLOY_TIMEOUT_S)
    except OutcomeUnknownError as error:
        # It may have been accepted: a second create would not harm (the name is unique), but a
        # caller who believes that nothing is there may spend twice under another name.
        if await _was_accepted(target, plan.name, region, label_of(step.argv)):
            target.remember(plan.name, region)
            return (
                f"gcloud was cut off after {time.monotonic() - began:.0f} s, but Cloud Run has "
                f"accepted {plan.name} in {region}: found there by its label"
            )
        error.next_action = (
            f"{target.call('get_status', plan.name)} says whether it came to be; deploying the "
            "same name again changes that one and makes no second."
        )
        raise
    target.remember(plan.name, region)
    return f"Cloud Run accepted {plan.name} in {region}"


async def _was_accepted(target: CloudRunLooking, name: str, region: str, label: str) -> bool:
    until = time.monotonic() + _LOOK_FOR_S
    while True:
        try:
            service = await target.api.service(region, name)
            if service.labels.get(SPEC_LABEL) == label:
                return True
        except NotFoundError:
            pass
        except DevopsError:
            return False
        if time.monotonic() > until:
            return False
        await asyncio.sleep(1.0)


async def _delete(target: CloudRunLooking, plan: Plan, step: Step) -> str:
    """Delete a service and see that it is gone.

    gcloud's own waiting takes a failed service for a failed deletion (528).
    """
    region = str(step.data["region"])
    try:
        await target.cloud.gcloud.run(step.argv, timeout_s=STEP_TIMEOUT_S)
    except NotFoundError:
        return f"{plan.name} was gone already"
    until = time.monotonic() + _GONE_S
    while time.monotonic() < until:
        try:
            await target.api.service(region, plan.name)
        except NotFoundError:
            return f"deleted {plan.name} in {region}, and saw that it is gone"
        await asyncio.sleep(0.5)
    return f"Cloud Run has accepted the deletion of {plan.name} in {region} and is at it"

"""What an operation does for minutes: wait for an endpoint to settle, then go on by the plan."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from backends.core.errors import (
    CapacityError,
    CloudError,
    DevopsError,
    NotFoundError,
    OperationError,
    RateLimitedError,
    StepFailedError,
    UnavailableError,
)
from backends.core.plans import Step
from backends.knowledge.sagemaker_failures import signature_of
from backends.sagemaker.commands import delete_endpoint
from backends.sagemaker.endpoints import BROKEN, BUSY, Endpoint
from backends.sagemaker.running import run_command

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.sagemaker.looking import SageMakerLooking

_LOOK_EVERY_S = 5.0
_LOOK_EVERY_REHEARSED_S = 0.5
_GONE_S = 600.0


async def run_later(
    target: SageMakerLooking, kind: str, name: str, params: dict[str, Any], job: WorkerJob
) -> dict[str, Any]:
    """Run in a worker.

    Args:
        target: The target.
        kind: `deploy_fallback`, `deploy_component` or `destroy_when_settled`.
        name: The deployment.
        params: The region, and the plan's later steps.
        job: Progress out, the wish to stop in. Stopping changes nothing that is there.

    Raises:
        OperationError: There is no operation of that kind.
        DevopsError: It failed for good.
    """
    steps = [Step.model_validate(item) for item in params.get("steps", ())]
    region = str(params["region"])
    if kind == "destroy_when_settled":
        return await _destroy(target, name, region, steps, job)
    if kind == "deploy_fallback":
        return await _fall_back(target, name, region, steps, job)
    if kind == "deploy_component":
        from backends.sagemaker.component_later import put_on

        return await put_on(
            target, name, region, steps, job, lambda: _settled(target, name, region, job)
        )
    raise OperationError(f"{target.target} has no operation of kind {kind!r}.")


async def _destroy(
    target: SageMakerLooking, name: str, region: str, steps: Sequence[Step], job: WorkerJob
) -> dict[str, Any]:
    """Wait until SageMaker lets it be deleted, then run the plan's deletions."""
    from backends.sagemaker.component_later import run_component_step

    endpoint = await _settled(target, name, region, job)
    if job.should_stop():
        return {"region": region, "deleted": "nothing: stopped before it settled"}
    done: list[str] = []
    for step in steps:
        job.progress(len(done), len(steps), step.title)
        done.append(await run_component_step(target, name, step, job))
    settled = endpoint.status if endpoint is not None else "gone"
    return {"region": region, "settled_as": settled, "done": done}


async def _fall_back(
    target: SageMakerLooking, name: str, region: str, steps: Sequence[Step], job: WorkerJob
) -> dict[str, Any]:
    """Watch the endpoint; where a region has no capacity, clear it away and try the next."""
    tried: list[str] = []
    order = list(dict.fromkeys(str(step.data["place"]) for step in steps))
    for following in (*order, ""):
        endpoint = await _settled(target, name, region, job)
        if job.should_stop():
            return {"region": region, "tried": tried, "stopped": "as asked; what is there stays"}
        if endpoint is None:
            raise NotFoundError(f"{target.at(name)} in {region} was deleted meanwhile.")
        if endpoint.status not in BROKEN:
            return {"region": region, "tried": tried, "endpoint_status": endpoint.status}
        found = signature_of(endpoint.reason)
        if found is None or found.id != "capacity":
            cause, fix = found.explained(target.target, name) if found else ("", "")
            raise CloudError(
                f"{target.at(name)} failed in {region}, not for want of capacity; no other region "
                "was tried.",
                words=endpoint.reason,
                cause=cause,
                next_action=fix or target.call("get_logs", name),
            )
        tried.append(f"{region}: no capacity")
        if not following:
            raise CapacityError(
                f"No region had capacity for {target.at(name)}: {'; '.join(tried)}.",
                words=endpoint.reason,
                cause=found.cause,
                next_action=f"{target.call('destroy', name)} clears the failed one away; "
                f"find_capacity(target={target.target!r}) shows other regions.",
            )
        job.progress(len(tried), len(order) + 1, f"{region} has no capacity; next: {following}")
        await _clear(target, endpoint)
        await _create(target, name, [item for item in steps if item.data["place"] == following])
        region = following
    raise OperationError("There were no regions to try.")


async def _create(target: SageMakerLooking, name: str, steps: Sequence[Step]) -> None:
    """Make model, configuration and endpoint in the next region.

    Raises:
        StepFailedError: A step failed; what the earlier ones made there is named with its undo.
    """

    async def run(step: Step) -> str:
        return await run_command(target, name, step)

    await run_all(target, name, steps, run)


async def run_all(
    target: SageMakerLooking,
    name: str,
    steps: Sequence[Step],
    run: Callable[[Step], Awaitable[str]],
) -> list[str]:
    """Run steps one after the other; returns what each did, in words.

    Raises:
        StepFailedError: A step failed; what the earlier ones made there is named with its undo.
    """
    done: list[str] = []
    made: list[str] = []
    undo: list[str] = []
    for step in steps:
        try:
            done.append(await run(step))
        except DevopsError as error:
            left = [*made, *getattr(error, "made", [])]
            named = f" Made there before: {'; '.join(left)}." if left else ""
            raise StepFailedError(
                f"{step.title} failed: {error.message}{named}",
                made=left,
                undo=[*undo, *getattr(error, "undo", [])],
                words=error.words,
                cause=error.cause,
                next_action=f"{target.call('destroy', name)} takes all of it away, in every "
                f"region. {error.next_action}",
                code=error.code,
            ) from error
        made += [str(item) for item in step.data.get("creates", ())]
        undo += [str(step.data["undo"])] if step.data.get("undo") else []
    return done


async def _clear(target: SageMakerLooking, endpoint: Endpoint) -> None:
    """Delete a failed endpoint, which nobody can use, before its name is used elsewhere.

    Its configuration and model stay: they cost nothing, and destroy takes them.

    Raises:
        OperationError: It is not ours any more, or does not go away.
    """
    if not endpoint.managed:
        raise OperationError(f"{endpoint.name} in {endpoint.region} is not ours any more.")
    step = Step(
        title=f"Delete the failed endpoint {endpoint.name} in {endpoint.region}",
        kind="aws",
        argv=delete_endpoint(endpoint.region, endpoint.name),
        data={
            "thing": "no endpoint",
            "id": endpoint.name,
            "region": endpoint.region,
            "missing_ok": True,
        },
    )
    await run_command(target, endpoint.name, step)
    until = time.monotonic() + _GONE_S
    while time.monotonic() < until:
        try:
            await target.api.endpoint(endpoint.region, endpoint.name)
        except NotFoundError:
            return
        await asyncio.sleep(_every(target))
    raise OperationError(
        f"{endpoint.name} in {endpoint.region} is still being deleted after {_GONE_S:.0f} s; no "
        "other region was tried.",
        next_action=target.call("get_status", endpoint.name),
    )


async def _settled(
    target: SageMakerLooking, name: str, region: str, job: WorkerJob
) -> Endpoint | None:
    """The endpoint once SageMaker is done with it; None when it is gone."""
    began = time.monotonic()
    while not job.should_stop():
        try:
            endpoint = await target.api.endpoint(region, name)
        except NotFoundError:
            return None
        except (UnavailableError, RateLimitedError) as error:
            job.progress(0, None, f"{region} does not answer now ({error.code}); asking again")
            await asyncio.sleep(_every(target))
            continue
        if endpoint.status not in BUSY:
            return endpoint
        waited = time.monotonic() - began
        job.progress(0, None, f"{name} in {region} is {endpoint.status} ({waited:.0f} s watched)")
        await asyncio.sleep(_every(target))
    return None


def _every(target: SageMakerLooking) -> float:
    return _LOOK_EVERY_REHEARSED_S if target.aws.rehearsal else _LOOK_EVERY_S

"""What an operation does about inference components: each step as soon as SageMaker lets it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from backends.core.errors import (
    CloudError,
    ConflictError,
    DevopsError,
    NotFoundError,
    OperationError,
    OutcomeUnknownError,
    RateLimitedError,
    UnavailableError,
)
from backends.core.plans import Step
from backends.knowledge.sagemaker_failures import signature_of
from backends.sagemaker.component_commands import POLICY_ARN, WAKE_POLICY
from backends.sagemaker.endpoints import BROKEN
from backends.sagemaker.running import run_command

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.sagemaker.looking import SageMakerLooking

# A component that is made or scaled cannot be changed; a start has its window, at most an hour.
_BUSY_FOR_S = 4000.0
_GONE_S = 900.0
_SERVES_WITHIN_S = 8000.0
_AGAIN_S = 15.0
_AGAIN_REHEARSED_S = 0.5

# Commands that come to the same when they are sent twice.
_AGAIN_IS_THE_SAME = frozenset(
    {"copies scaling", "copies policy", "wake policy", "wake alarm", "copies"}
)

Settled = Callable[[], Awaitable[Any]]


class _StoppedError(Exception):
    """Somebody asked for an end."""


async def put_on(
    target: SageMakerLooking,
    name: str,
    region: str,
    steps: Sequence[Step],
    job: WorkerJob,
    settled: Settled,
) -> dict[str, Any]:
    """Put the model on the endpoint once that is in service, and set its scaling up.

    Args:
        target: The target.
        name: The deployment.
        region: Where.
        steps: The plan's later steps.
        job: Progress out, the wish to stop in. Stopping leaves what is there.
        settled: Waits until the endpoint is, and returns it.

    Raises:
        CloudError: The endpoint or the component failed, with the cause where it is known.
        StepFailedError: A command was refused; what was made before is named with its undo.
    """
    from backends.sagemaker.later import run_all

    target.remember(name, region)
    endpoint = await settled()
    if job.should_stop():
        return {"region": region, "stopped": "as asked, before the endpoint was in service"}
    if endpoint is None:
        raise NotFoundError(f"{target.at(name)} in {region} was deleted meanwhile.")
    if endpoint.status in BROKEN:
        raise failed(target, name, endpoint.reason, "Its endpoint failed; no model was put on it.")

    async def one(step: Step) -> str:
        if job.should_stop():
            raise _StoppedError
        job.progress(0, None, step.title)
        done = await run_component_step(target, name, step, job)
        if step.data.get("thing") == "component":
            try:
                await _in_service(target, name, region, job)
            except DevopsError as error:
                # It is there, though it does not serve.
                error.made = list(step.data["creates"])  # type: ignore[attr-defined]
                error.undo = [str(step.data["undo"])]  # type: ignore[attr-defined]
                raise
        return done

    try:
        done = await run_all(target, name, steps, one)
    except _StoppedError:
        return {"region": region, "stopped": "as asked; what is there stays, get_status says what"}
    return {"region": region, "component": name, "done": done}


async def run_component_step(
    target: SageMakerLooking,
    name: str,
    step: Step,
    job: WorkerJob | None = None,
    *,
    within_s: float = _BUSY_FOR_S,
) -> str:
    """Run a step that may have to wait for its turn, and be waited for.

    Args:
        target: The target.
        name: The deployment.
        step: The step.
        job: The wish to stop in.
        within_s: How long its turn is waited for, in seconds.

    Raises:
        OperationError: Its turn did not come, or it took too long.
        DevopsError: It was refused.
    """
    region = str(step.data["region"])
    thing = str(step.data.get("thing"))
    step = await filled(target, name, step)
    done = await _in_turn(target, name, step, job, within_s)
    if thing == "no component":
        await _gone(target, region, str(step.data["id"]))
    return done


async def filled(target: SageMakerLooking, name: str, step: Step) -> Step:
    """A step with what only the one before it has answered.

    Raises:
        NotFoundError: There is no step policy.
    """
    if POLICY_ARN not in step.argv:
        return step
    arn = await target.api.wake_policy_arn(str(step.data["region"]), name, WAKE_POLICY)
    argv = tuple(arn if word == POLICY_ARN else word for word in step.argv)
    return step.model_copy(update={"argv": argv})


async def _in_turn(
    target: SageMakerLooking, name: str, step: Step, job: WorkerJob | None, within_s: float
) -> str:
    thing, until = str(step.data.get("thing")), time.monotonic() + within_s
    while True:
        try:
            return await run_command(target, name, step)
        except OutcomeUnknownError:
            # What is to be gone is not more so when it is deleted twice.
            same = thing in _AGAIN_IS_THE_SAME or thing.startswith("no ")
            if not same or time.monotonic() > until:
                raise
        except ConflictError as error:
            # Only what passes by itself: a component that is being made or scaled.
            if "while it is in state" not in error.words or time.monotonic() > until:
                raise
            if job is not None and job.should_stop():
                raise OperationError("Stopped as asked.", words=error.words) from error
        await asyncio.sleep(every(target))


async def _in_service(target: SageMakerLooking, name: str, region: str, job: WorkerJob) -> None:
    """Wait until the first copy serves.

    Raises:
        CloudError: It will not.
        OperationError: It takes longer than a start with a wait for capacity may.
    """
    began = time.monotonic()
    while not job.should_stop():
        if time.monotonic() - began > _SERVES_WITHIN_S:
            raise OperationError(
                f"The model of {target.at(name)} is not up after {_SERVES_WITHIN_S:.0f} s.",
                next_action=target.call("get_status", name),
            )
        try:
            status = await target.status(name)
        except (UnavailableError, RateLimitedError) as error:
            job.progress(0, None, f"{region} does not answer now ({error.code}); asking again")
            await asyncio.sleep(every(target))
            continue
        if status.state in {"ready", "scaled_to_zero", "degraded"}:
            return
        if status.state == "failed":
            raise CloudError(
                f"The model of {target.at(name)} could not be put on: {status.summary}",
                words=status.error or "",
                cause=status.error_cause or "",
                next_action=status.next_steps[0] if status.next_steps else "Call get_status.",
            )
        job.progress(0, None, f"{status.summary} ({time.monotonic() - began:.0f} s watched)")
        await asyncio.sleep(every(target))


async def _gone(target: SageMakerLooking, region: str, component: str) -> None:
    """Wait until a component is gone: before that its endpoint cannot be deleted.

    Raises:
        OperationError: It does not go.
    """
    until = time.monotonic() + _GONE_S
    while await target.api.component_or_none(region, component) is not None:
        if time.monotonic() > until:
            raise OperationError(
                f"{component} in {region} is still being taken off after {_GONE_S:.0f} s.",
                next_action=target.call("get_status", component),
            )
        await asyncio.sleep(every(target))


def failed(target: SageMakerLooking, name: str, words: str, message: str) -> CloudError:
    """The error for what failed for good, with cause and fix where its words are known."""
    found = signature_of(words)
    cause, fix = found.explained(target.target, name) if found else ("", "")
    return CloudError(
        message, words=words, cause=cause, next_action=fix or target.call("get_status", name)
    )


def every(target: SageMakerLooking) -> float:
    """Seconds between two looks."""
    return _AGAIN_REHEARSED_S if target.aws.rehearsal else _AGAIN_S

"""One state of a deployment that scales to zero, from endpoint, component and logs. No request."""

from __future__ import annotations

from dataclasses import replace

from backends.knowledge.sagemaker import CAPACITY_WAIT_S, TARGET
from backends.knowledge.sagemaker_components import (
    EMPTY_START_S,
    RELEASE_S,
    SCALE_IN_S,
    WAKE_ALARM_S,
    WAKE_INSTANCE_S,
)
from backends.knowledge.sagemaker_failures import signature_of
from backends.sagemaker.components import Component
from backends.sagemaker.endpoints import BROKEN, BUSY, Deployed, Endpoint
from backends.sagemaker.logs import Sight
from backends.sagemaker.state import (
    CAPACITY,
    PULLING,
    Judgement,
    expected,
    explained_failure,
    instances_in_words,
    judge,
    phase_of_log,
    start_views,
)
from backends.serving.startup_log import Phase

_PLACED_USUALLY_S = 300.0


def wake_s() -> float:
    """Usual seconds from the first refused request to the first answer."""
    return WAKE_ALARM_S.value + WAKE_INSTANCE_S.value + sum(expected().values())


def judge_component(
    deployed: Deployed, sight: Sight, now_s: float, asked_s: float | None
) -> Judgement:
    """The state of a deployment that scales to zero.

    Args:
        deployed: What SageMaker says.
        sight: What the logs say of its newest copy.
        now_s: Unix seconds.
        asked_s: How many seconds ago a request of ours found no copy; None: not that we know.
    """
    endpoint, component = deployed.endpoint, deployed.component
    if endpoint is None:
        return _without_endpoint(deployed)
    if endpoint.status in BROKEN or endpoint.status == "Deleting":
        return judge(deployed, sight, now_s)
    # Once it hosts something its own updates, as when instances come or go, change nothing of that.
    if endpoint.status == "Creating" or (endpoint.status in BUSY and component is None):
        return _endpoint_busy(endpoint, now_s)
    if component is None:
        return Judgement(
            "failed",
            "hosts no model yet: its endpoint is in service and empty, and its instances are paid "
            "for until SageMaker takes them",
            cause="The operation that puts the model on it has not come so far, or was ended.",
            fix=f"plan_deployment(target={TARGET!r}, name={deployed.name!r}, "
            "options={'scale_to_zero': true, ...}) as before goes on from what is there",
            unlogged=True,
        )
    return _component(deployed, endpoint, component, sight, now_s, asked_s)


def while_put_on(judged: Judgement, deployed: Deployed, operation_id: str, doing: str) -> Judgement:
    """The state while an operation puts the model on: what is missing is still to come.

    Args:
        judged: As SageMaker and the logs have it.
        deployed: What SageMaker says.
        operation_id: The operation.
        doing: What it does at the moment, in words; may be empty.
    """
    call = f"get_operation(operation_id={operation_id!r}, wait_s=40)"
    endpoint = deployed.endpoint
    waits = endpoint is not None and endpoint.status == "InService" and deployed.component is None
    if waits:
        return Judgement(
            "creating",
            f"has its endpoint; operation {operation_id} puts the model on it"
            + (f" ({doing})" if doing else ""),
            phase=PULLING,
            expected_s=sum(expected().values()),
            fix=call,
        )
    if judged.state == "ready":
        words = f"Operation {operation_id} sets its automatic scaling up."
        return replace(judged, warnings=(words,))
    return judged


def _without_endpoint(deployed: Deployed) -> Judgement:
    return Judgement(
        "stopped",
        "has no endpoint: its configuration and models are kept and cost nothing",
        fix=f"plan_deployment(target={TARGET!r}, name={deployed.name!r}, "
        "options={'scale_to_zero': true, ...})",
    )


def _endpoint_busy(endpoint: Endpoint, now_s: float) -> Judgement:
    """The endpoint itself is being made: it starts empty, and what it hosts comes after."""
    began = endpoint.created_at if endpoint.status == "Creating" else endpoint.modified_at
    elapsed = max(0.0, now_s - began) if began else None
    usual = EMPTY_START_S.value + sum(expected().values())
    phase = PULLING if endpoint.placed else CAPACITY
    what = "an instance is placed; the model is put on when the endpoint is in service"
    cause = fix = None
    if phase == CAPACITY:
        what = "waiting for capacity (no instance is counted)"
        if elapsed is not None and elapsed > _PLACED_USUALLY_S:
            cause, fix = _no_capacity_yet(endpoint.name)
    seconds = f", {elapsed:.0f} s of about {usual:.0f} s" if elapsed is not None else ""
    return Judgement(
        "creating",
        f"is {endpoint.status.lower()}: {what}{seconds}",
        phase=phase,
        phases=start_views(began, endpoint.reason, Sight(), phase, elapsed),
        elapsed_s=elapsed,
        expected_s=usual,
        cause=cause,
        fix=fix,
    )


def _no_capacity_yet(name: str) -> tuple[str, str]:
    return (
        "AWS is looking for a free instance; quota is permission, not hardware. It gives up after "
        f"about {CAPACITY_WAIT_S.value / 60:.0f} minutes, and nothing is charged meanwhile.",
        f"Wait, or destroy(target={TARGET!r}, name={name!r}) and plan_deployment in another region",
    )


def _component(
    deployed: Deployed,
    endpoint: Endpoint,
    component: Component,
    sight: Sight,
    now_s: float,
    asked_s: float | None,
) -> Judgement:
    problems = tuple(
        filter(
            None,
            (
                sight.problem and f"Logs: {sight.problem}",
                component.bounds.problem
                and f"Whether it scales by itself is not known: {component.bounds.problem}",
            ),
        )
    )
    if component.status == "Failed":
        return _failed(deployed, component, sight, problems)
    if component.status == "Deleting":
        return Judgement("stopping", "is having its model taken off", warnings=problems)
    if component.status == "Creating" or (component.desired > 0 and component.copies == 0):
        return _starting(deployed, endpoint, component, sight, now_s, problems)
    if component.copies == 0:
        return _asleep(deployed, endpoint, component, asked_s, problems)
    if component.desired == 0:
        return Judgement("stopping", "is going to zero: its copies end now", warnings=problems)
    return _serving(deployed, endpoint, component, sight, problems)


def _serving(
    deployed: Deployed,
    endpoint: Endpoint,
    component: Component,
    sight: Sight,
    problems: tuple[str, ...],
) -> Judgement:
    failure = sight.progress.failure
    if failure is not None and sight.progress.phase is Phase.FAILED:
        lines = "\n".join(failure.lines)
        cause, fix = explained_failure(lines, deployed.name, failure)
        return Judgement(
            "degraded",
            "is in service, but its newest copy failed and is started again",
            error=lines,
            cause=cause,
            fix=fix,
            warnings=problems,
        )
    changing = component.copies != component.desired
    words = f"is in service with {_copies(component)} on {instances_in_words(deployed, endpoint)}"
    if not component.bounds.on and not component.bounds.problem:
        problems = (*problems, _stays_up(deployed.name))
    return Judgement(
        "ready",
        f"{words}, going to {component.desired}" if changing else words,
        error=component.reason or None,
        warnings=problems,
    )


def _stays_up(name: str) -> str:
    return (
        "Automatic scaling is off: it does not go to zero by itself. "
        f"update_scaling(target={TARGET!r}, name={name!r}, min_instances=0) sets it up."
    )


def _asleep(
    deployed: Deployed,
    endpoint: Endpoint,
    component: Component,
    asked_s: float | None,
    problems: tuple[str, ...],
) -> Judgement:
    wakes = component.bounds.on or bool(component.bounds.problem)
    there = any(variant.count != 0 for variant in endpoint.variants)
    left = (
        f"; {instances_in_words(deployed, endpoint)} still there and paid for until SageMaker "
        "takes it, about "
        f"{RELEASE_S.value / 60:.0f} minutes after the last copy"
        if there
        else "; nothing runs and nothing is billed but its alarms"
    )
    if component.reason:
        found = signature_of(component.reason)
        cause, fix = found.explained(TARGET, deployed.name) if found else (None, None)
        return Judgement(
            "scaled_to_zero" if wakes else "stopped",
            f"is at zero: it was to be woken and could not be{left}",
            error=component.reason,
            cause=cause,
            fix=fix or f"get_logs(target={TARGET!r}, name={deployed.name!r})",
            expected_s=wake_s(),
            warnings=problems,
        )
    if wakes and asked_s is not None:
        return Judgement(
            "starting",
            f"is waking up: a request {asked_s:.0f} s ago found no copy; the alarm on that is "
            f"heard after about {WAKE_ALARM_S.value:.0f} s",
            phase="waking",
            elapsed_s=asked_s,
            expected_s=wake_s(),
            warnings=problems,
        )
    start = f"start_serving(target={TARGET!r}, name={deployed.name!r})"
    if wakes:
        return Judgement(
            "scaled_to_zero",
            f"is at zero{left}; a request wakes it, which takes about {wake_s() / 60:.0f} minutes "
            "in which requests are refused",
            fix=start,
            expected_s=wake_s(),
            warnings=problems,
        )
    return Judgement(
        "stopped",
        f"is at zero and stays there{left}; no request starts it",
        fix=f"start_serving(target={TARGET!r}, name={deployed.name!r})",
        expected_s=wake_s(),
        warnings=problems,
    )


def _starting(
    deployed: Deployed,
    endpoint: Endpoint,
    component: Component,
    sight: Sight,
    now_s: float,
    problems: tuple[str, ...],
) -> Judgement:
    new = component.status == "Creating"
    began = component.created_at if new else component.modified_at
    elapsed = max(0.0, now_s - began) if began else None
    failure = sight.progress.failure
    if failure is not None and sight.progress.phase is Phase.FAILED:
        words = "\n".join(failure.lines)
        cause, fix = explained_failure(words, deployed.name, failure)
        return Judgement(
            "failed",
            f"failed while starting: {failure.kind.value}. SageMaker goes on saying "
            f"{component.status} until its health-check window of {component.startup_timeout_s} s "
            "is over, and its instance is paid for",
            phase=Phase.FAILED.value,
            phases=start_views(began, "", sight, Phase.FAILED.value, elapsed),
            elapsed_s=elapsed,
            expected_s=sum(expected().values()),
            error=words,
            cause=cause,
            fix=fix,
            warnings=(
                *problems,
                "A component cannot be deleted before that; destroy waits for it.",
            ),
        )
    phase, what = _phase(endpoint, sight)
    usual = sum(expected().values())
    seconds = f", {elapsed:.0f} s of about {usual:.0f} s" if elapsed is not None else ""
    long = phase == CAPACITY and elapsed is not None and elapsed > _PLACED_USUALLY_S
    why = _no_capacity_yet(deployed.name) if long else (None, None)
    return Judgement(
        "creating" if new and phase in {CAPACITY, PULLING} else "starting",
        f"{'is starting' if new else 'is waking up'}: {what}{seconds}",
        phase=phase,
        phases=start_views(began, "", sight, phase, elapsed),
        elapsed_s=elapsed,
        expected_s=usual,
        cause=why[0],
        fix=why[1],
        warnings=problems,
    )


def _phase(endpoint: Endpoint, sight: Sight) -> tuple[str, str]:
    if not sight.stream:
        if endpoint.placed:
            return PULLING, "an instance is there and gets the image"
        return CAPACITY, "waiting for capacity (no instance is counted)"
    return phase_of_log(sight)


def _failed(
    deployed: Deployed, component: Component, sight: Sight, problems: tuple[str, ...]
) -> Judgement:
    failure = sight.progress.failure
    lines = "\n".join(failure.lines) if failure else ""
    found = next(filter(None, map(signature_of, (lines, component.reason))), None)
    cause, fix = found.explained(TARGET, deployed.name) if found else (None, None)
    if failure is not None and (found is None or found.id == "health_check"):
        cause, fix = failure.cause, failure.next_action
    return Judgement(
        "failed",
        "failed: its model could not be put on the endpoint, whose instances are paid for until "
        "SageMaker takes them or it is destroyed",
        phase=Phase.FAILED.value,
        phases=start_views(component.created_at, component.reason, sight, "failed", None),
        error="\n".join(dict.fromkeys(filter(None, (component.reason, lines)))) or None,
        cause=cause,
        fix=fix or f"get_logs(target={TARGET!r}, name={deployed.name!r})",
        warnings=problems,
        unlogged=not sight.stream and not sight.problem,
    )


def idle_words() -> str:
    """What it costs after the last request, in words."""
    minutes = (SCALE_IN_S.value + RELEASE_S.value) / 60
    return (
        f"the full price while it is used and about {minutes:.0f} "
        f"minutes after the last request ({SCALE_IN_S.value / 60:.0f} until its copies end, "
        f"{RELEASE_S.value / 60:.0f} until its instance is gone)"
    )


def _copies(component: Component) -> str:
    return f"{component.copies} " + ("copy" if component.copies == 1 else "copies")

"""From what SageMaker and the logs say to one state in our words. No request is made here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from backends.core.answers import Phase as PhaseView
from backends.knowledge.sagemaker import CAPACITY_WAIT_S, PROFILE, TARGET
from backends.knowledge.sagemaker_failures import signature_of
from backends.sagemaker.endpoints import BROKEN, BUSY, Deployed, Endpoint
from backends.sagemaker.logs import Sight
from backends.serving.judgement import Judgement as Common
from backends.serving.start_phases import start_phases
from backends.serving.startup_log import Phase, StartupFailure

CAPACITY, PULLING, HEALTH = "waiting_for_capacity", "pulling_image", "health_checks"

# The profile's start-up phases by the names the engine's log has for them. Before the first line
# of a container stand capacity and the image; the reference has one figure for both.
_LOG_PHASES = {"weights": "loading_weights", "compile": "profiling", "api": HEALTH}
# A fresh start is never quicker than this; an instance that is waited for longer is a shortage.
_PLACED_USUALLY_S = 300.0


@dataclass(frozen=True)
class Judgement(Common):
    """How an endpoint is.

    Attributes:
        unlogged: Whether it failed before a container could write a log.
    """

    unlogged: bool = False


def expected() -> dict[str, float]:
    """Usual seconds of each phase of the reference deployment's start."""
    known = {phase.name: phase.seconds.value for phase in PROFILE.startup}
    return {PULLING: known["container"]} | {
        ours: known[theirs] for theirs, ours in _LOG_PHASES.items()
    }


def judge(deployed: Deployed, sight: Sight, now_s: float) -> Judgement:
    """The state of a deployment.

    Args:
        deployed: What SageMaker says.
        sight: What the logs say of its newest container.
        now_s: Unix seconds.
    """
    endpoint = deployed.endpoint
    if endpoint is None:
        return Judgement(
            "stopped",
            "is stopped: its endpoint is deleted, its configuration and model are kept and cost "
            "nothing",
            fix=f"start_serving(target={TARGET!r}, name={deployed.name!r})",
        )
    if endpoint.status in BROKEN:
        return _failed(deployed, endpoint, sight)
    if endpoint.status == "Deleting":
        return Judgement(
            "stopping", "is being deleted: nobody is answered, and its cost ends when it is gone"
        )
    if endpoint.status in BUSY:
        return _busy(deployed, endpoint, sight, now_s)
    return _in_service(deployed, endpoint, sight)


def looked_after(judged: Judgement, kind: str, operation_id: str, doing: str) -> Judgement:
    """The state of a deployment that a running operation looks after: it is not the last word.

    Args:
        judged: As SageMaker and the logs have it.
        kind: `deploy_fallback` or `destroy_when_settled`.
        operation_id: The operation.
        doing: What it does at the moment, in words; may be empty.
    """
    call = f"get_operation(operation_id={operation_id!r}, wait_s=40)"
    if kind == "destroy_when_settled":
        warning = f"Operation {operation_id} deletes it as soon as it settles."
        return replace(judged, warnings=(*judged.warnings, warning))
    if judged.state not in {"failed", "stopping", "stopped"}:
        return judged
    return replace(
        judged,
        state="creating",
        words=f"{judged.words}; operation {operation_id} goes on in the next region"
        + (f" ({doing})" if doing else ""),
        fix=call,
    )


def _in_service(deployed: Deployed, endpoint: Endpoint, sight: Sight) -> Judgement:
    problem = (f"Logs: {sight.problem}",) if sight.problem else ()
    failure = sight.progress.failure
    if failure is not None and sight.progress.phase is Phase.FAILED:
        cause, fix = explained_failure("\n".join(failure.lines), deployed.name, failure)
        return Judgement(
            "degraded",
            "is in service, but its newest container failed and is started again",
            error="\n".join(failure.lines),
            cause=cause,
            fix=fix,
            warnings=problem,
        )
    return Judgement(
        "ready", f"is in service with {instances_in_words(deployed, endpoint)}", warnings=problem
    )


def _busy(deployed: Deployed, endpoint: Endpoint, sight: Sight, now_s: float) -> Judgement:
    new = endpoint.status == "Creating"
    began = endpoint.created_at if new else endpoint.modified_at
    elapsed = max(0.0, now_s - began) if began else None
    failure = sight.progress.failure
    if failure is not None and sight.progress.phase is Phase.FAILED:
        return _crashed(deployed, endpoint, sight, failure, elapsed)
    phase, what = _phase(endpoint, sight)
    usual = sum(expected().values())
    seconds = f", {elapsed:.0f} s of about {usual:.0f} s" if elapsed is not None else ""
    warnings = [*filter(None, (sight.problem and f"Logs: {sight.problem}", sight.progress.notice))]
    cause = fix = None
    if phase == CAPACITY and elapsed is not None and elapsed > _PLACED_USUALLY_S:
        cause = (
            "AWS is looking for a free instance; quota is permission, not hardware. It gives up "
            f"after about {CAPACITY_WAIT_S.value / 60:.0f} minutes, and nothing is charged "
            "meanwhile."
        )
        fix = (
            f"Wait, or destroy(target={TARGET!r}, name={deployed.name!r}) (which takes effect when "
            "it settles) and plan_deployment in another region."
        )
    what_is = "is starting" if new else f"is {endpoint.status.lower()}; what served goes on serving"
    doing = [word for variant in endpoint.variants for word in variant.doing]
    if not new and doing:
        what += f" ({'; '.join(dict.fromkeys(doing))})"
    return Judgement(
        "creating" if phase in {CAPACITY, PULLING} and new else "starting",
        f"{what_is}: {what}{seconds}",
        phase=phase,
        phases=start_views(_began(endpoint), endpoint.reason, sight, phase, elapsed),
        elapsed_s=elapsed,
        expected_s=usual,
        cause=cause,
        fix=fix,
        warnings=tuple(warnings),
    )


def _phase(endpoint: Endpoint, sight: Sight) -> tuple[str, str]:
    """Where a start stands, and in words."""
    if not sight.stream:
        if endpoint.placed and endpoint.status == "Creating":
            return PULLING, "an instance is placed and pulls the image"
        return CAPACITY, "waiting for capacity (no log yet, so no container was started)"
    return phase_of_log(sight)


def phase_of_log(sight: Sight) -> tuple[str, str]:
    """Where the start of a container stands that has a log, and in words."""
    progress = sight.progress
    if progress.phase is Phase.READY:
        return HEALTH, "the engine is up; SageMaker makes its health checks"
    if not progress.phases:
        return PULLING, "its container has been started and has said nothing of vLLM yet"
    detail = f", {progress.detail}" if progress.detail else ""
    return progress.phase.value, f"{progress.phase.value}{detail}"


def _began(endpoint: Endpoint) -> float:
    return endpoint.created_at if endpoint.status == "Creating" else endpoint.modified_at


def start_views(
    began: float, reason: str, sight: Sight, phase: str, elapsed: float | None
) -> list[PhaseView]:
    """Capacity, image, what the log tells, health checks; those still to come as pending.

    Args:
        began: When the start began, Unix seconds; 0: not known.
        reason: Why it failed, in SageMaker's words; empty if it did not.
        sight: What the logs say.
        phase: Where it stands.
        elapsed: Seconds since it began.
    """
    usual = expected()
    until_log = sight.began_at - began if sight.began_at and began else None
    # Without a log it failed before a container ran: for want of a machine, or with its image.
    early = phase == Phase.FAILED.value and not sight.stream
    found = signature_of(reason) if early else None
    short = found is not None and found.id == "capacity"
    views = [
        PhaseView(
            name=CAPACITY,
            state="failed" if short else "running" if phase == CAPACITY else "done",
            seconds=elapsed if phase == CAPACITY else None,
        ),
        PhaseView(
            name=PULLING,
            state="pending"
            if short or phase == CAPACITY
            else "failed"
            if early
            else "running"
            if phase == PULLING
            else "done",
            # The time until the first line is that of both: SageMaker does not say when it placed.
            seconds=until_log if until_log is not None and until_log >= 0 else None,
            expected_s=usual.pop(PULLING),
        ),
    ]
    health = usual.pop(HEALTH)
    ready = sight.progress.phase is Phase.READY
    views += start_phases(sight.progress, usual, finished=ready)
    failed = sight.progress.failure is not None
    views.append(
        PhaseView(
            name=HEALTH,
            state="failed" if failed else "running" if ready else "pending",
            expected_s=health,
        )
    )
    return views


def _crashed(
    deployed: Deployed,
    endpoint: Endpoint,
    sight: Sight,
    failure: StartupFailure,
    elapsed: float | None,
) -> Judgement:
    """The engine has failed, and SageMaker will not say so before its window is over."""
    words = "\n".join(failure.lines)
    cause, fix = explained_failure(words, deployed.name, failure)
    variant = deployed.config.variants[-1] if deployed.config and deployed.config.variants else None
    window = variant.startup_timeout_s if variant else 1800
    began = sight.began_at or endpoint.created_at
    ends = datetime.fromtimestamp(began + window, UTC).strftime("%H:%M:%S")
    new = endpoint.status == "Creating"
    return Judgement(
        "failed" if new else "degraded",
        f"failed while starting: {failure.kind.value}. SageMaker goes on saying {endpoint.status} "
        f"until its health-check window of {window} s is over, at about {ends} UTC, and is paid "
        "for until it is deleted" + ("" if new else "; what served goes on serving"),
        phase=Phase.FAILED.value,
        phases=start_views(_began(endpoint), endpoint.reason, sight, Phase.FAILED.value, elapsed),
        elapsed_s=elapsed,
        expected_s=sum(expected().values()),
        error=words,
        cause=cause,
        fix=fix,
        warnings=(
            "It cannot be deleted before that; destroy leaves an operation that does it then.",
        ),
    )


def _failed(deployed: Deployed, endpoint: Endpoint, sight: Sight) -> Judgement:
    failure = sight.progress.failure
    lines = "\n".join(failure.lines) if failure else ""
    last = "" if failure is not None else "\n".join(sight.progress.last_lines)
    # The engine's words say more than the platform's "did not pass the ping health check".
    found = next(filter(None, map(signature_of, (lines, endpoint.reason, last))), None)
    if found is not None:
        cause, fix = found.explained(TARGET, deployed.name)
        if found.id == "health_check" and failure is not None:
            cause, fix = failure.cause, failure.next_action
    elif failure is not None:
        cause, fix = failure.cause, failure.next_action
    else:
        cause, fix = "", f"get_logs(target={TARGET!r}, name={deployed.name!r})"
    began = " before a container was started" if not sight.stream and not sight.problem else ""
    return Judgement(
        "failed",
        f"failed{began} ({endpoint.status})",
        phase=Phase.FAILED.value,
        phases=start_views(_began(endpoint), endpoint.reason, sight, Phase.FAILED.value, None),
        unlogged=bool(began),
        error="\n".join(dict.fromkeys(filter(None, (endpoint.reason, lines, last)))) or None,
        cause=cause or None,
        fix=fix,
        warnings=(f"Logs: {sight.problem}",) if sight.problem else (),
    )


def explained_failure(words: str, name: str, failure: StartupFailure) -> tuple[str, str]:
    """SageMaker's own cause and fix of a failure where it has one, else vLLM's."""
    found = signature_of(words)
    if found is not None:
        return found.explained(TARGET, name)
    return failure.cause, failure.next_action


def instances_in_words(deployed: Deployed, endpoint: Endpoint) -> str:
    """How many instances of which types serve, in words."""
    parts: list[str] = []
    for variant in endpoint.variants:
        placed = [pool for pool in variant.pools if pool.count]
        planned = deployed.config.variant(variant.name) if deployed.config else None
        count = variant.count if variant.count is not None else "?"
        if placed:
            parts += [f"{pool.count} x {pool.type}" for pool in placed]
        elif planned is not None and len(planned.types) == 1:
            parts.append(f"{count} x {planned.types[0]}")
        else:
            parts.append(f"{count} instances")
    return ", ".join(parts) or "no instance"

"""From what Cloud Run and the logs say to one state in our words. No request is made here."""

from __future__ import annotations

from dataclasses import dataclass

from backends.cloudrun.instances import LAG_S, Counted
from backends.cloudrun.logs import Sight
from backends.cloudrun.services import RunService
from backends.core.answers import Phase as PhaseView
from backends.core.words import plural
from backends.knowledge.cloudrun import IDLE_S, CloudRunProfile
from backends.knowledge.cloudrun_failures import signature_of
from backends.serving.judgement import Judgement as Common
from backends.serving.start_phases import has_begun, start_phases
from backends.serving.startup_log import Phase, StartupProgress

# A profile's start-up phases by the names the engine's log has for them; what comes before the
# first line of the container is the platform's part.
_LOG_PHASES = {
    "container": "pulling_image",
    "import": "starting_engine",
    "weights": "loading_weights",
    "compile": "profiling",
    "kv_cache": "profiling",
    "api": "starting_api",
}


@dataclass(frozen=True)
class Judgement(Common):
    """How a service is.

    Attributes:
        instances: How many are up, where that was counted.
    """

    instances: int | None = None


def expected_of(profile: CloudRunProfile) -> dict[str, float]:
    """Usual seconds of each phase of the reference deployment's start."""
    expected: dict[str, float] = {}
    for phase in profile.reference.startup:
        name = _LOG_PHASES[phase.name]
        expected[name] = expected.get(name, 0.0) + phase.seconds.value
    return expected


def counts(service: RunService, sight: Sight, now_s: float) -> bool:
    """Whether only a count of its instances tells how a service is: its logs are old or unknown."""
    settled = service.ready and not service.reconciling and bool(service.ready_revision)
    if not settled or service.created_revision != service.ready_revision:
        return False
    if service.manual == 0 or service.warm_instances > 0:
        return False
    if sight.problem:
        return True
    if sight.gone or not sight.last_at:
        return service.max_instances > 1
    return now_s - sight.last_at > LAG_S


def judge(
    profile: CloudRunProfile,
    service: RunService,
    sight: Sight,
    now_s: float,
    counted: Counted | None = None,
) -> Judgement:
    """The state of a service.

    Args:
        profile: What is usual.
        service: What Cloud Run says.
        sight: What the logs say of the newest instance of its newest revision.
        now_s: Unix seconds.
        counted: Its instances as Cloud Monitoring counts them; None: not asked.
    """
    if service.being_deleted:
        return Judgement("stopping", "is being deleted; its cost ends when it is gone")
    if service.manual == 0:
        return Judgement(
            "stopped",
            "is in manual scaling at 0 instances: it costs nothing and answers 503 'Service is "
            "disabled' to everybody",
            fix=f"start_serving(target={profile.target!r}, name={service.name!r})",
        )
    if service.ready is False:
        return _failed(profile, service, sight)
    undecided = service.ready is None or service.reconciling or not service.ready_revision
    if undecided or service.created_revision != service.ready_revision:
        return _starting(profile, service, sight, now_s)
    if service.warm_instances > 0:
        return Judgement("ready", f"keeps {plural(service.warm_instances, 'instance')} up")
    return _asleep_or_awake(profile, service, sight, now_s, counted)


def _asleep_or_awake(
    profile: CloudRunProfile,
    service: RunService,
    sight: Sight,
    now_s: float,
    counted: Counted | None,
) -> Judgement:
    """Of a service that can serve and keeps no instance warm: whether one is up."""
    problems = [f"Logs: {sight.problem}"] if sight.problem else []
    if counted is not None and counted.problem:
        problems.append(f"Instances: {counted.problem}")
    warnings = tuple(problems)
    if sight.progress.phase is Phase.FAILED and not sight.gone and not sight.problem:
        failure = sight.progress.failure
        return Judgement(
            "degraded",
            "can serve, but its newest instance failed",
            error="\n".join(failure.lines) if failure else None,
            cause=failure.cause if failure else None,
            fix=failure.next_action if failure else None,
        )
    number = counted.number if counted is not None else None
    if number == 0:
        return _asleep(profile, " (Cloud Monitoring counts no instance)", warnings, 0)
    loading = not sight.progress.settled and bool(sight.progress.phases)
    silent_s = now_s - sight.last_at
    if number is None and not sight.problem:
        if not sight.last_at or sight.gone:
            return _asleep(profile, "", warnings)
        if silent_s > IDLE_S.value:
            alone = f". That is judged by its logs alone, silent for {silent_s / 60:.0f} minutes"
            return _asleep(profile, alone, warnings)
    if loading and not sight.gone and not sight.problem:
        return _starting(profile, service, sight, now_s, woken=True)
    if counted is not None and number is not None:
        ago = max(0.0, now_s - counted.at)
        words = f"has {plural(number, 'instance')} up, by Cloud Monitoring {ago:.0f} s ago"
    elif sight.problem:
        words = (
            "can serve; whether an instance is up cannot be told, for neither its logs nor its "
            "instance count can be read"
        )
    else:
        words = f"has an instance up, last heard of {silent_s:.0f} s ago"
    return Judgement("ready", words, warnings=warnings, instances=number)


def _asleep(
    profile: CloudRunProfile, how: str, warnings: tuple[str, ...], instances: int | None = None
) -> Judgement:
    usual = sum(expected_of(profile).values())
    return Judgement(
        "scaled_to_zero",
        f"is scaled to zero: it costs nothing now, and the next request wakes it, which takes "
        f"about {usual:.0f} s{how}",
        expected_s=usual,
        warnings=warnings,
        instances=instances,
    )


def _starting(
    profile: CloudRunProfile,
    service: RunService,
    sight: Sight,
    now_s: float,
    *,
    woken: bool = False,
) -> Judgement:
    progress = sight.progress
    expected = expected_of(profile)
    usual = sum(expected.values())
    began = sight.began_at or service.updated_at
    elapsed = max(0.0, now_s - began) if began else None
    if progress.phase is Phase.FAILED and progress.failure is not None:
        failure = progress.failure
        words = "\n".join(failure.lines)
        found = signature_of(words)
        cause, fix = (
            found.explained(profile.target, service.name)
            if found
            else (failure.cause, failure.next_action)
        )
        return Judgement(
            "degraded" if _still_served(service) else "failed",
            f"failed while starting: {failure.kind.value}; Cloud Run may try again"
            + _served_words(service),
            phase=progress.phase.value,
            phases=phases_of(profile, progress, finished=False),
            elapsed_s=elapsed,
            expected_s=usual,
            error=words,
            cause=cause,
            fix=fix,
        )
    known = bool(progress.phases)
    phase = progress.phase.value if known else "pulling_image"
    if progress.phase is Phase.READY:
        phase = "ready"
    detail = f", {progress.detail}" if progress.detail else ""
    seconds = f", {elapsed:.0f} s of about {usual:.0f} s" if elapsed is not None else ""
    who = "has an instance starting" if woken else "is starting"
    waits_for = next(
        (
            item.message
            for item in service.conditions
            if item.ok is None and item.message and not item.message.startswith("Deploying")
        ),
        "",
    )
    said = (progress.notice, sight.trouble, waits_for, sight.before)
    found = signature_of(*said)
    before = f"An instance before this one said: {sight.before}" if sight.before else ""
    warnings = tuple(
        filter(None, (sight.problem, progress.notice, sight.trouble, waits_for, before))
    )
    return Judgement(
        "starting",
        f"{who}: {phase}{detail}{seconds}{_served_words(service)}",
        phase=phase,
        phases=phases_of(profile, progress, finished=False),
        elapsed_s=elapsed,
        expected_s=usual,
        cause=found.explained(profile.target, service.name)[0] if found else None,
        fix=found.explained(profile.target, service.name)[1] if found else None,
        warnings=warnings,
    )


def why_not_ready(
    profile: CloudRunProfile, service: RunService, sight: Sight, phase: str, waited_s: float
) -> tuple[str, str, str] | None:
    """Why a container that answers has no model yet, where that is no mere matter of time.

    Args:
        profile: What is usual.
        service: The service.
        sight: What the logs say of its instance.
        phase: The image's own phase.
        waited_s: Seconds since the revision was made.

    Returns:
        Evidence, cause and what mends it; None while it may just be loading.
    """
    usual = sum(expected_of(profile).values())
    lines = "\n".join(sight.progress.last_lines)
    texts = [sight.progress.notice, sight.trouble, lines]
    if waited_s > 2 * usual:
        texts.append(f"/health: {phase} stuck for {waited_s:.0f} s; a start takes {usual:.0f} s")
    for text in texts:
        found = signature_of(text)
        if found is not None:
            return text, *found.explained(profile.target, service.name)
    return None


def _failed(profile: CloudRunProfile, service: RunService, sight: Sight) -> Judgement:
    trouble = service.trouble
    # What follows is where the log is, as a link of many lines.
    said = trouble.message.partition("\n\nLogs URL")[0] if trouble else "It gives no reason."
    failure = sight.progress.failure
    lines = "\n".join(failure.lines) if failure else ""
    # The engine's words say more than the platform's "failed to start and listen", and those of an
    # instance before more than the silence of one that was just started again.
    own = (lines, sight.progress.notice, sight.trouble, sight.before)
    last = "" if failure is not None else "\n".join(sight.progress.last_lines)
    found = signature_of(*own, last, said)
    if failure is not None and (found is None or found.kind == "symptom"):
        cause, fix = failure.cause, failure.next_action
    elif found is not None:
        cause, fix = found.explained(profile.target, service.name)
    else:
        cause, fix = None, None
    return Judgement(
        "degraded" if _still_served(service) else "failed",
        f"failed: its newest revision {service.created_revision} cannot serve"
        + _served_words(service),
        phase=Phase.FAILED.value,
        phases=phases_of(profile, sight.progress, finished=False),
        error="\n".join(dict.fromkeys(filter(None, (said, *own, last)))),
        cause=cause,
        fix=fix,
        warnings=(sight.problem,) if sight.problem else (),
    )


def _still_served(service: RunService) -> bool:
    serving = service.serving
    return (
        serving is not None
        and bool(service.ready_revision)
        and (serving.revision != service.created_revision)
    )


def _served_words(service: RunService) -> str:
    serving = service.serving
    if not _still_served(service) or serving is None:
        return ""
    return f"; {serving.revision} goes on serving"


def phases_of(
    profile: CloudRunProfile, progress: StartupProgress, *, finished: bool
) -> list[PhaseView]:
    """The phases the log tells of, then those still to come, beside what is usual."""
    expected = expected_of(profile)
    pulling = PhaseView(
        name="pulling_image",
        state="done" if finished or has_begun(progress) else "running",
        expected_s=expected.pop("pulling_image", None),
    )
    return [pulling, *start_phases(progress, expected, finished=finished)]

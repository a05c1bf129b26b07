"""From what Google and the machine say to one state in our words. No request is made here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from backends.core.answers import Phase as PhaseView
from backends.knowledge.tpu import (
    BOOTING,
    COMPILING,
    LOADING,
    PHASES,
    PROVISIONING_PHASE,
    PULLING,
    QUEUED,
    WARM_COMPILING_S,
)
from backends.knowledge.tpu_failures import signature_of
from backends.serving.judgement import Judgement as Common
from backends.serving.startup_log import (
    FailureKind,
    Phase,
    StartupFailure,
    StartupProgress,
)
from backends.tpu.records import TARGET, TpuRequest
from backends.tpu.sight import Machine

_ORDER = tuple(phase.name for phase in PHASES)
_EXPECTED_S = {phase.name: phase.seconds.value for phase in PHASES}
# Loading ends, on a TPU, where the memory is laid out; all that follows is compiling.
_LOADING = {
    Phase.STARTING,
    Phase.LOADING_CONFIG,
    Phase.STARTING_ENGINE,
    Phase.DOWNLOADING,
    Phase.LOADING_WEIGHTS,
}
_TAIL_CHARS = 1000
# What the start script does before it has docker.
_WITHOUT_DOCKER = frozenset({"", "booting", "installing docker", "starting docker"})
# The step that stop_serving notes down.
STOPPED = "stopped"
# A traceback stands before the words with which vLLM ends.
_LINES_BEFORE_THE_END = 60
# Of a run that Google ends by itself, so much is left when it is warned about.
_WARN_LEFT_S = 3600.0


@dataclass(frozen=True)
class Judgement(Common):
    """How a node is.

    Attributes:
        left_s: Seconds until Google ends it; None where it does not.
    """

    left_s: float | None = None


def expected_start_s() -> float:
    """Usual seconds of a cold start once there is hardware."""
    return sum(_EXPECTED_S.values())


def judge(request: TpuRequest, machine: Machine | None, now_s: float) -> Judgement:
    """The state of a deployment.

    Args:
        request: What Google says.
        machine: What a look at its first machine found; None: it was not looked at.
        now_s: Unix seconds.
    """
    gone = request.node is not None and request.node.state == "PREEMPTED"
    if gone or request.stage in {"failed", "suspended", "stopping", "deleting"}:
        return _ended(request)
    if request.stage == "queued":
        return _queued(request, now_s)
    if request.stage == "provisioning":
        return _waiting(request, PROVISIONING_PHASE, "is being provisioned", now_s)
    if request.stage == "stopped":
        return Judgement(
            "stopped",
            "is stopped: its chips are given up and may not be had again at once",
            fix=f"start_serving(target={TARGET!r}, name={request.name!r})",
        )
    judged = _machine(request, machine, now_s)
    left = left_of(request, now_s)
    if left is None:
        return judged
    return _with_time_left(request, judged, left)


def left_of(request: TpuRequest, now_s: float) -> float | None:
    """Seconds until Google ends a run; None where it does not."""
    if request.max_run_s is None or request.stage not in {"active", "stopped", "stopping"}:
        return None
    began = request.node.created_at if request.node else request.created_at
    return max(0.0, began + request.max_run_s - now_s)


def time_words(seconds: float) -> str:
    """A span of time as people say it."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _with_time_left(request: TpuRequest, judged: Judgement, left: float) -> Judgement:
    warnings = judged.warnings
    if left < _WARN_LEFT_S:
        warnings = (
            f"Google ends it in {time_words(left)} (max_run_hours): what it serves ends with it, "
            "and disks go too. Plan the next one before that.",
            *warnings,
        )
    return replace(
        judged, words=f"{judged.words}; {time_words(left)} of its run are left",
        warnings=warnings, left_s=left,
    )  # fmt: skip


def _queued(request: TpuRequest, now_s: float) -> Judgement:
    word = "waits for resources" if request.state != "PENDING" else "waits for hardware (PENDING)"
    since = time_words(max(0.0, now_s - request.created_at))
    return Judgement(
        "creating",
        f"{word} in {request.zone} for {since} ({request.state}): that is waiting, not failing, "
        "and it keeps its place in the queue",
        phase=QUEUED,
        phases=_phases({}, QUEUED),
        elapsed_s=max(0.0, now_s - request.created_at),
    )


def _waiting(request: TpuRequest, phase: str, words: str, now_s: float) -> Judgement:
    return Judgement(
        "creating",
        f"{words} in {request.zone}",
        phase=phase,
        phases=_phases({}, phase),
        elapsed_s=max(0.0, now_s - request.created_at),
        expected_s=expected_start_s(),
    )


def _ended(request: TpuRequest) -> Judgement:
    if request.stage == "stopping":
        return Judgement("stopping", "is being stopped; its chips bill until it is")
    if request.stage == "deleting":
        return Judgement("stopping", "is being deleted; its cost ends when it is gone")
    state = request.state
    preempted = request.node is not None and request.node.state == "PREEMPTED"
    if preempted or (request.stage == "suspended" and request.provisioning == "spot"):
        what, words = "was preempted: its spot capacity was taken back", "PREEMPTED"
    elif request.stage == "suspended":
        ran_out = request.max_run_s is not None
        what = "has run for as long as it asked for" if ran_out else "was suspended"
        words = "maxRunDuration" if ran_out else state
    else:
        what, words = "failed before it had hardware", request.said or state
    found = signature_of(words)
    cause, fix = found.explained(TARGET, request.name) if found else (None, None)
    return Judgement(
        "failed",
        f"{what} ({state}). It still counts against the quota until it is destroyed",
        phase="failed",
        error=request.said or None,
        cause=cause,
        fix=fix or f"destroy(target={TARGET!r}, name={request.name!r})",
    )


def _machine(request: TpuRequest, machine: Machine | None, now_s: float) -> Judgement:
    if machine is None:
        return _waiting(request, BOOTING, "is booting", now_s)
    if machine.problem:
        return _unseen(request, machine, now_s)
    return _seen(request, machine, now_s)


def _seen(request: TpuRequest, machine: Machine, now_s: float) -> Judgement:
    progress = machine.progress
    if machine.no_daemon and machine.phase not in _WITHOUT_DOCKER:
        return _no_daemon(request, machine)
    if machine.phase.startswith("failed") or (machine.disk_full and not machine.phase):
        return _script_failed(request, machine)
    stopped = machine.phase == STOPPED or progress.phase is Phase.STOPPED
    if progress.failure is not None and not stopped:
        return _engine_failed(request, machine, progress.failure, now_s)
    if stopped:
        return Judgement(
            "stopped",
            "has its server stopped; the machine goes on billing",
            fix=f"start_serving(target={TARGET!r}, name={request.name!r})",
        )
    return _starting(request, machine, now_s)


def _no_daemon(request: TpuRequest, machine: Machine) -> Judgement:
    found = signature_of(machine.no_daemon)
    cause, fix = found.explained(TARGET, request.name) if found else (None, None)
    return Judgement(
        "degraded",
        "runs, but docker does not run on it, so whether it serves is not known; the machine goes "
        "on billing",
        error=machine.no_daemon,
        cause=cause,
        fix=fix,
    )


def _engine_failed(
    request: TpuRequest, machine: Machine, failure: StartupFailure, now_s: float
) -> Judgement:
    served = machine.phase == "ready"
    # The log of a start says nothing of an end that came later.
    last = machine.tail[-_TAIL_CHARS:] if served else ""
    words = "\n".join(filter(None, (machine.oom, *([last] if last else failure.lines))))
    found = signature_of(words)
    if found is None and not served and (told := _told_earlier(machine, failure)):
        found, words = signature_of(told), f"{told}\n{words}"
    cause, fix = (
        found.explained(TARGET, request.name) if found else (failure.cause, failure.next_action)
    )
    return Judgement(
        "failed",
        f"{'has died' if served else 'failed while starting'}: {failure.kind.value}; the machine "
        "goes on billing",
        phase="failed",
        phases=_phases(_spans(machine, now_s), None),
        error=words,
        cause=cause,
        fix=fix,
    )


def _told_earlier(machine: Machine, failure: StartupFailure) -> str:
    """The line that says why, where the log's last ones only say that it failed; else empty."""
    if failure.kind is not FailureKind.UNKNOWN:
        return ""
    lines = machine.log.splitlines()[-_LINES_BEFORE_THE_END:]
    return next((line for line in reversed(lines) if signature_of(line)), "")


def _unseen(request: TpuRequest, machine: Machine, now_s: float) -> Judgement:
    """The node is there, but cannot be looked into: normal while it boots, odd later."""
    born = request.node.created_at if request.node else request.created_at
    age = now_s - born
    found = signature_of(machine.problem)
    cause, fix = (
        found.explained(TARGET, request.name)
        if found
        else (machine.cause or None, machine.fix or None)
    )
    if machine.unreachable and age < 4 * _EXPECTED_S[BOOTING] + _EXPECTED_S[PROVISIONING_PHASE]:
        return Judgement(
            "starting",
            f"is booting: {age:.0f} s old, ssh does not answer yet",
            phase=BOOTING,
            phases=_phases({}, BOOTING),
            elapsed_s=max(0.0, now_s - request.created_at),
            expected_s=expected_start_s(),
        )
    return Judgement(
        "unknown",
        "has its node up, but cannot be looked into, so whether it serves is not known",
        error=machine.problem,
        cause=cause,
        fix=fix or f"get_logs(target={TARGET!r}, name={request.name!r}, source='serial')",
    )


def _script_failed(request: TpuRequest, machine: Machine) -> Judgement:
    words = machine.phase.partition(":")[2].strip() or machine.phase
    if not words:  # it could not even note that it has begun
        words = "no space left on device"
    failure = machine.progress.failure
    evidence = "\n".join(failure.lines) if failure else machine.tail[-1000:]
    found = signature_of(f"{words}\n{evidence}")
    cause, fix = (
        found.explained(TARGET, request.name)
        if found
        else (failure.cause, failure.next_action)
        if failure
        else (None, None)
    )
    return Judgement(
        "failed",
        f"failed at boot: {words}; the machine goes on billing",
        phase="failed",
        error="\n".join(filter(None, (words, evidence))),
        cause=cause,
        fix=fix or f"get_logs(target={TARGET!r}, name={request.name!r}, source='startup')",
    )


def _starting(request: TpuRequest, machine: Machine, now_s: float) -> Judgement:
    phase = phase_of(machine)
    spans = _spans(machine, now_s)
    if phase == "ready":
        return Judgement(
            "ready",
            "serves",
            phase=phase,
            phases=_phases(spans, phase),
            elapsed_s=_elapsed(machine, now_s),
            expected_s=expected_start_s(),
        )
    usual = _EXPECTED_S.get(phase, 0.0)
    span = spans.get(phase)
    time_said = f", {span:.0f} s of about {usual:.0f}" if span is not None and usual else ""
    detail = f" ({machine.progress.detail})" if machine.progress.detail else ""
    held_up = machine.phase.partition(": ")[2] if machine.phase.startswith("waiting") else ""
    full = "no space left on device, as good as" if machine.disk_full else ""
    warnings = tuple(filter(None, (machine.progress.notice, held_up, full)))
    what = {COMPILING: "is compiling, the long part of a cold start"}.get(phase, f"is {phase}")
    found = signature_of("\n".join(warnings)) if warnings else None
    return Judgement(
        "starting",
        f"{what}{detail}{time_said}",
        phase=phase,
        phases=_phases(spans, phase),
        elapsed_s=_elapsed(machine, now_s),
        expected_s=expected_start_s(),
        cause=found.explained(TARGET, request.name)[0] if found else None,
        fix=found.explained(TARGET, request.name)[1] if found else None,
        warnings=warnings,
    )


def phase_of(machine: Machine) -> str:
    """Where a start is: booting, pulling, loading, compiling or ready."""
    step = machine.phase
    if step in _WITHOUT_DOCKER:
        return BOOTING
    if step == "pulling" or step.startswith("waiting"):
        return PULLING
    progress = machine.progress
    if progress.phase is Phase.READY:
        return "ready"
    return LOADING if progress.phase in _LOADING else COMPILING


def _spans(machine: Machine, now_s: float) -> dict[str, float]:
    """Seconds spent in each phase so far."""
    starts: dict[str, float] = {}
    for moment, step in machine.phases:
        name = BOOTING if step in _WITHOUT_DOCKER else LOADING if step == "starting" else step
        if name in _ORDER:
            starts.setdefault(name, moment)
    if LOADING in starts:
        compiling = _offset(machine.progress)
        if compiling is not None:
            starts[COMPILING] = starts[LOADING] + compiling
    end = next((moment for moment, step in machine.phases if step == "ready"), now_s)
    if machine.progress.phase is Phase.READY and machine.progress.ready_after_s is not None:
        end = starts.get(LOADING, end) + machine.progress.ready_after_s
    names = sorted(starts, key=lambda name: starts[name])
    ends = [starts[name] for name in names[1:]] + [max(end, starts[names[-1]])] if names else []
    return {name: max(0.0, finish - starts[name]) for name, finish in zip(names, ends, strict=True)}


def _offset(progress: StartupProgress) -> float | None:
    """Seconds into the log at which compiling began."""
    for start in progress.phases:
        if start.phase not in _LOADING and start.phase not in {Phase.FAILED, Phase.STOPPED}:
            return start.offset_s
    return None


def _elapsed(machine: Machine, now_s: float) -> float | None:
    if not machine.phases:
        return None
    end = next((moment for moment, step in machine.phases if step == "ready"), now_s)
    return max(0.0, end - machine.phases[0][0])


def _phases(spans: dict[str, float], current: str | None) -> list[PhaseView]:
    """Every phase in order: done, running or to come, beside what is usual."""
    place = _ORDER.index(current) if current in _ORDER else len(_ORDER)
    views = []
    for index, name in enumerate(_ORDER):
        state = "done" if index < place else "running" if index == place else "pending"
        if current is None and name not in spans:
            continue
        expected = _EXPECTED_S[name] or None
        if name == COMPILING and spans.get(name) is not None and state == "done":
            expected = _closest(spans[name])
        views.append(
            PhaseView(name=name, state=state, seconds=spans.get(name), expected_s=expected)
        )
    return views


def _closest(seconds: float) -> float:
    """The cold or the warm figure, whichever a finished compilation was like."""
    cold, warm = _EXPECTED_S[COMPILING], WARM_COMPILING_S.value
    return cold if abs(seconds - cold) <= abs(seconds - warm) else warm

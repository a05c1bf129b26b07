"""From what Google, the machine and the background work say to one state. No request is made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.core.answers import Phase as PhaseView
from backends.core.answers import State
from backends.gce.commands import TARGET
from backends.gce.machines import Machine
from backends.gce.sights import EngineSight, HostSight, Preparing
from backends.knowledge import gce
from backends.knowledge.gce_failures import signature_of
from backends.serving.judgement import Judgement
from backends.serving.start_phases import start_phases
from backends.serving.startup_log import Phase

if TYPE_CHECKING:
    from backends.core.operations import Operation

# A machine that has just been switched on does not answer ssh yet.
BOOT_PATIENCE_S = 300.0
# What systemd says of a unit that has its start before it, or is at it.
_COMING = {"queued", "activating"}
_PHASE_WORD = re.compile(r"^(?:creating|booting|preparing|loading): ")
_STEP = re.compile(r"preparing \((\d+) of (\d+)\): (.*)")

# Phases of a start before the engine's own, with usual seconds.
EARLY: dict[str, float] = {
    "creating": gce.CREATING_S.value,
    "booting": gce.BOOTING_S.value,
    "preparing": gce.PREPARING_S.value,
}


def loading_expected(machine: Machine | None) -> dict[str, float]:
    """Usual seconds of the engine's phases, as the article measured the whole."""
    model = str(machine.spec.get("model", "")) if machine is not None else ""
    total = gce.LOADING_S["w4a16" if "w4a16" in model else "bf16"].value
    # Shares of the whole: no log with times is published.
    return {
        "starting_engine": 0.12 * total,
        "loading_weights": 0.50 * total,
        "profiling": 0.36 * total,
        "starting_api": 0.02 * total,
    }


def judge_absent(operation: Operation) -> Judgement:
    """A deployment of which there is no machine (yet): only its operation tells."""
    said = str(operation.progress or "")
    if not operation.finished:
        return Judgement(
            "creating",
            said or "is being made",
            phase="creating",
            phases=_early("creating", None),
            expected_s=sum(EARLY.values()) + sum(loading_expected(None).values()),
        )
    words = str(operation.status.get("error") or "It ended without a machine.")
    found = signature_of(words)
    cause, fix = found.explained(TARGET, operation.name) if found else (None, None)
    return Judgement(
        "failed",
        "could not be made: no machine is there",
        phase="creating",
        phases=[PhaseView(name="creating", state="failed", expected_s=EARLY["creating"])],
        error=words,
        cause=cause,
        fix=fix or operation.status.get("next_action"),
    )


def judge(
    machine: Machine,
    sight: HostSight | None,
    operation: Operation | None,
    now_s: float,
    *,
    preempted: bool = False,
) -> Judgement:
    """The state of a machine.

    Args:
        machine: What Google says of it.
        sight: What is seen on it; None where it was not looked at.
        operation: The background work on it, if any was ever started.
        now_s: Unix seconds.
        preempted: Whether Google took it back.
    """
    if machine.status in {"PROVISIONING", "STAGING"}:
        return _under_way("creating", machine, operation, now_s, "Google makes or starts it")
    if machine.status != "RUNNING":
        return _switched_off(machine, preempted)
    if sight is None and operation is not None and not operation.finished:
        return _under_way("booting", machine, operation, now_s, str(operation.progress or ""))
    if sight is None:
        return Judgement("unknown", "runs; whether it serves was not looked at")
    if sight.problem:
        return _out_of_reach(machine, sight, operation, now_s)
    return _on(machine, sight, operation, now_s)


def _on(machine: Machine, sight: HostSight, operation: Operation | None, now_s: float) -> Judgement:
    """The state of a machine that runs and was looked at."""
    preparing, engine = sight.preparing, sight.engine
    if engine.state == "running":
        return _engine_runs(machine, engine, now_s)
    if preparing.state == "running":
        return _under_way("preparing", machine, operation, now_s, _step_words(preparing), preparing)
    if operation is not None and not operation.finished:
        # What failed before it began is being mended; what fails in it ends it.
        return _under_way("booting", machine, operation, now_s, str(operation.progress or ""))
    if preparing.state == "failed":
        return _unprepared(machine, preparing)
    if engine.state == "died":
        return _died(machine, engine)
    return _idle(machine, sight, operation, now_s)


def _unprepared(machine: Machine, preparing: Preparing) -> Judgement:
    return Judgement(
        "failed",
        f"is not prepared: step {preparing.step} of {preparing.steps} failed ({preparing.title})",
        phase="preparing",
        phases=_early("preparing", None, failed=True),
        error=preparing.words or None,
        cause=preparing.cause or None,
        fix=preparing.fix or f"prepare_host(target={TARGET!r}, name={machine.name!r})",
    )


def _died(machine: Machine, engine: EngineSight) -> Judgement:
    return Judgement(
        "failed",
        "runs, but its vLLM has died",
        phase=Phase.FAILED.value,
        phases=start_phases(engine.progress, loading_expected(machine), finished=False),
        error=engine.words or None,
        cause=engine.cause or None,
        fix=engine.fix or f"start_serving(target={TARGET!r}, name={machine.name!r})",
    )


def _switched_off(machine: Machine, preempted: bool) -> Judgement:
    if machine.status in {"STOPPING", "SUSPENDING"}:
        return Judgement(
            "stopping", f"is being stopped ({machine.status}); its cost ends when it is off"
        )
    start = f"start_serving(target={TARGET!r}, name={machine.name!r})"
    if preempted:
        return Judgement(
            "stopped",
            "was taken back by Google: it is a spot machine; only its disks are paid for",
            cause="Spot machines may be stopped at any time.",
            fix=start,
        )
    return Judgement(
        "stopped",
        f"is switched off ({machine.status}); only its disks are paid for",
        fix=start,
    )


def _idle(
    machine: Machine, sight: HostSight, operation: Operation | None, now_s: float
) -> Judgement:
    if sight.engine.restarted and sight.engine.unit in _COMING:
        words = "the machine has restarted, and its systemd unit starts vLLM"
        return _under_way("booting", machine, operation, now_s, words)
    start = f"start_serving(target={TARGET!r}, name={machine.name!r})"
    warnings: tuple[str, ...] = ()
    if operation is not None and operation.state in {"failed", "cancelled"}:
        said = str(operation.status.get("error") or "it was stopped")
        warnings = (f"The work on it ended early ({operation.id}): {said}",)
    if sight.engine.restarted:
        return Judgement(
            "stopped",
            "runs and is paid for; the machine has restarted, and no vLLM runs on it since",
            cause=_not_brought_back(sight.engine.unit),
            fix=start,
            warnings=warnings,
        )
    if sight.preparing.state == "absent":
        return Judgement(
            "stopped",
            "runs and is paid for, but is not prepared yet",
            fix=start,
            warnings=warnings,
        )
    return Judgement(
        "stopped",
        "runs and is paid for, but no vLLM runs on it",
        fix=start,
        warnings=warnings,
    )


def _not_brought_back(unit: str) -> str:
    """Why nothing serves after a restart, from what systemd says of the unit."""
    if not unit:
        return "A restart ends vLLM; only with options.start_at_boot it comes back by itself."
    if unit == "inactive":
        return (
            "Its systemd unit is enabled, but was stopped since the restart (inactive): it starts "
            "vLLM at the next boot, not now."
        )
    return f"Its systemd unit is {unit}, and yet nothing serves."


def _engine_runs(machine: Machine, engine: EngineSight, now_s: float) -> Judgement:
    progress = engine.progress
    expected = loading_expected(machine)
    early = [
        PhaseView(name=name, state="done", expected_s=seconds) for name, seconds in EARLY.items()
    ]
    if progress.phase is Phase.READY:
        phases = [*early, *start_phases(progress, expected, finished=True)]
        return Judgement("ready", "serves", phases=phases)
    usual = sum(expected.values())
    elapsed = max(0.0, now_s - engine.started_at) if engine.started_at else progress.elapsed_s
    detail = f", {progress.detail}" if progress.detail else ""
    memory = f", {engine.vram_mib:.0f} MiB of GPU memory" if engine.vram_mib else ""
    seconds = f", {elapsed:.0f} s of about {usual:.0f} s" if elapsed is not None else ""
    return Judgement(
        "starting",
        f"loading: {progress.phase.value}{detail}{seconds}{memory}",
        phase=progress.phase.value,
        phases=[*early, *start_phases(progress, expected, finished=False)],
        elapsed_s=elapsed,
        expected_s=usual,
        warnings=(progress.notice,) if progress.notice else (),
    )


def _out_of_reach(
    machine: Machine, sight: HostSight, operation: Operation | None, now_s: float
) -> Judgement:
    on_for_s = now_s - machine.started_at if machine.started_at else 0.0
    at_work = operation is not None and not operation.finished
    if on_for_s < BOOT_PATIENCE_S or at_work:
        return _under_way("booting", machine, operation, now_s, "it does not answer ssh yet")
    return Judgement(
        "degraded",
        "runs and is paid for, but cannot be reached",
        error=sight.problem,
        cause="ssh does not answer: it hangs, a firewall rule is missing, or the driver took the "
        "network down.",
        fix=f"get_logs(target={TARGET!r}, name={machine.name!r}, source='serial')",
    )


def _under_way(
    phase: str,
    machine: Machine,
    operation: Operation | None,
    now_s: float,
    words: str,
    preparing: Preparing | None = None,
) -> Judgement:
    """Something goes on, or should: the phases up to it with their time."""
    said = str(operation.progress or "") if operation and not operation.finished else ""
    step = _STEP.fullmatch(said)
    if step and phase == "booting":
        phase, words = "preparing", f"step {step[1]} of {step[2]}: {step[3]}"
    elif said.startswith("preparing") and phase == "booting":
        phase, words = "preparing", said.partition(": ")[2]
    words = _PHASE_WORD.sub("", words)
    began = machine.started_at or machine.created_at
    elapsed = max(0.0, now_s - began) if began else None
    usual = sum(EARLY.values()) + sum(loading_expected(machine).values())
    state: State = "creating" if phase == "creating" else "starting"
    warnings: tuple[str, ...] = ()
    if operation is None or operation.finished:
        if preparing is None and phase == "booting":
            warnings = ()
        elif phase == "preparing":
            warnings = (
                "Nobody follows it: when it is done, "
                f"start_serving(target={TARGET!r}, name={machine.name!r}) goes on.",
            )
    return Judgement(
        state,
        f"{phase}: {words}" if words else phase,
        phase=phase,
        phases=[
            *_early(phase, elapsed),
            *(
                PhaseView(name=name, state="pending", expected_s=seconds)
                for name, seconds in loading_expected(machine).items()
            ),
        ],
        elapsed_s=elapsed,
        expected_s=usual,
        warnings=warnings,
    )


def _early(current: str, seconds: float | None, *, failed: bool = False) -> list[PhaseView]:
    views: list[PhaseView] = []
    names = list(EARLY)
    for name, usual in EARLY.items():
        if names.index(name) < names.index(current):
            views.append(PhaseView(name=name, state="done", expected_s=usual))
        elif name == current:
            views.append(
                PhaseView(
                    name=name,
                    state="failed" if failed else "running",
                    seconds=seconds,
                    expected_s=usual,
                )
            )
        elif not failed:
            views.append(PhaseView(name=name, state="pending", expected_s=usual))
    return views


def _step_words(preparing: Preparing) -> str:
    if not preparing.steps:
        return "it has begun"
    return f"step {preparing.step} of {preparing.steps}: {preparing.title}"

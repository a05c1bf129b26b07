"""The phases of a start as a status shows them: those the log tells of, then those to come."""

from __future__ import annotations

from collections.abc import Mapping

from backends.core.answers import Phase as PhaseView
from backends.serving.startup_log import Phase, StartupProgress

# Phases of a log that are not part of becoming ready.
_NOT_STARTING = frozenset({Phase.READY, Phase.STOPPED, Phase.FAILED})


def has_begun(progress: StartupProgress) -> bool:
    """Whether the log tells of any phase of a start."""
    return any(start.phase not in _NOT_STARTING for start in progress.phases)


def start_phases(
    progress: StartupProgress, expected_s: Mapping[str, float], *, finished: bool
) -> list[PhaseView]:
    """Each phase with its seconds, beside what is usual.

    Args:
        progress: What the log says.
        expected_s: Usual seconds by phase, in order; those not begun are shown as pending.
        finished: Whether it became ready, so that the last phase is over too.
    """
    expected = dict(expected_s)
    starts = [start for start in progress.phases if start.phase not in _NOT_STARTING]
    ends = [start.offset_s for start in progress.phases[1:]] + [progress.elapsed_s]
    phases: list[PhaseView] = []
    for start, end in zip(starts, ends, strict=False):
        name, began = start.phase.value, start.offset_s
        running = start is starts[-1] and not finished
        stopped = "failed" if progress.failure is not None else "running"
        phases.append(
            PhaseView(
                name=name,
                state=stopped if running else "done",
                seconds=end - began if end is not None and began is not None else None,
                expected_s=expected.pop(name, None),
            )
        )
    if not finished and progress.failure is None:
        phases += [
            PhaseView(name=name, state="pending", expected_s=seconds)
            for name, seconds in expected.items()
        ]
    return phases

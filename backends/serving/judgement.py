"""How a deployment is, in our words: what every target's reading of its cloud and logs comes to."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.core.answers import Phase, State


@dataclass(frozen=True)
class Judgement:
    """How a deployment is. Targets that know more add fields of their own.

    Attributes:
        state: In our words.
        words: What that means, one sentence without the deployment's name.
        phase: Where a start stands.
        phases: Every phase with its time.
        elapsed_s: Seconds since the start began.
        expected_s: Usual seconds of a whole start.
        error: The platform's or engine's own words.
        cause: The likely reason.
        fix: What mends it, as a call.
        warnings: What else should be known.
    """

    state: State
    words: str
    phase: str | None = None
    phases: list[Phase] = field(default_factory=list)
    elapsed_s: float | None = None
    expected_s: float | None = None
    error: str | None = None
    cause: str | None = None
    fix: str | None = None
    warnings: tuple[str, ...] = ()

"""How a deployment is, in our words: what every target's reading of its cloud and logs comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backends.core.answers import Phase, State, Status


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

    def status(
        self,
        *,
        target: str,
        name: str,
        summary: str,
        managed: bool,
        simulated: bool,
        usd_per_hour: float | None,
        created_at: str | None,
        facts: Mapping[str, str | int | float | bool],
        next_steps: Sequence[str],
    ) -> Status:
        """What `get_status` answers with; what only some targets know is added to it.

        Args:
            target: The target.
            name: The deployment.
            summary: One sentence.
            managed: Whether it carries our label.
            simulated: Whether it is a rehearsal's.
            usd_per_hour: What it costs now; None where unknown.
            created_at: ISO 8601; None where unknown.
            facts: What else is known of it.
            next_steps: What to do next, as calls.
        """
        ready = self.state == "ready"
        return Status(
            summary=summary,
            warnings=list(self.warnings),
            target=target,
            name=name,
            state=self.state,
            ready=ready,
            engine="vllm",
            managed=managed,
            simulated=simulated,
            phase=self.phase or ("ready" if ready else None),
            phases=self.phases,
            elapsed_s=self.elapsed_s,
            expected_s=self.expected_s,
            usd_per_hour=usd_per_hour,
            created_at=created_at,
            facts=dict(facts),
            error=self.error,
            error_cause=self.cause,
            next_steps=list(next_steps),
        )

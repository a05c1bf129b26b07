"""When a run has taken enough: time and money, counted from its start."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from backends.serving.runs import StopRule
from backends.serving.spec import BenchmarkSpec


@dataclass
class Limits:
    """What a run may take, and what it has taken.

    Args:
        spec: Says the limits and the price.
    """

    spec: BenchmarkSpec
    _started_s: float = field(default_factory=time.monotonic, init=False)

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    @property
    def spent_usd(self) -> float | None:
        """What the deployment cost in that time; None where no price is known."""
        price = self.spec.usd_per_hour
        return None if price is None else self.spent_s / 3600 * price

    def reached(self) -> tuple[StopRule, str] | None:
        """Return the rule that ends the run now, with its words; None while nothing does."""
        spec, usd = self.spec, self.spent_usd
        if spec.max_duration_s is not None and self.spent_s >= spec.max_duration_s:
            return "time", f"the time limit of {spec.max_duration_s:g} s was reached"
        if spec.max_usd is not None and usd is not None and usd >= spec.max_usd:
            return "money", f"the limit of {spec.max_usd:g} USD was reached"
        return None

"""When an open loop sends: the whole schedule, made before the first request and from one seed.

An open loop does not wait for answers, as users do not. Every send has its instant, counted from
the start of the window, and a request's latency counts from it: a client that falls behind cannot
hide that (coordinated omission).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ArrivalKind = Literal["constant", "poisson", "gamma"]

_SECOND_NS = 1e9


@dataclass(frozen=True)
class Arrivals:
    """How requests arrive in an open loop.

    Args:
        requests_per_s: The mean rate, above 0; of a ramp, the rate it starts at.
        kind: `constant` gaps, `poisson` arrivals, or `gamma` gaps of a chosen burstiness.
        burstiness: Shape of the gamma distribution, above 0: 1 is Poisson, below 1 burstier, above
            1 more even. The same number means the same to `vllm bench serve --burstiness`.
        until_requests_per_s: Where a linear ramp ends; None keeps the rate.
        seed: Of the random gaps.

    Raises:
        ValueError: A rate or the burstiness is not above 0.
    """

    requests_per_s: float
    kind: ArrivalKind = "poisson"
    burstiness: float = 1.0
    until_requests_per_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        end = self.until_requests_per_s
        for name, value in (
            ("requests_per_s", self.requests_per_s),
            ("until_requests_per_s", self.requests_per_s if end is None else end),
            ("burstiness", self.burstiness),
        ):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a number above 0")


def send_times_ns(arrivals: Arrivals, count: int) -> list[int]:
    """Return when each of `count` requests is to be sent, in nanoseconds from the start.

    The first is sent at 0. A ramp keeps the shape of the arrivals and bends time, so that the rate
    rises (or falls) linearly from its start to its end over the requests asked for.
    """
    dice = random.Random(arrivals.seed)
    unit = [0.0]  # arrivals at a rate of 1
    for _ in range(count - 1):
        unit.append(unit[-1] + _gap(arrivals, dice))
    bend = _bend(arrivals, unit[-1])
    return [round(bend(at) * _SECOND_NS) for at in unit][:count]


def shared_out(times_ns: Sequence[int], workers: int) -> list[list[int]]:
    """Return the places of the sends each worker makes: in turn, so that all see one load."""
    return [list(range(first, len(times_ns), workers)) for first in range(workers)]


def _gap(arrivals: Arrivals, dice: random.Random) -> float:
    if arrivals.kind == "constant":
        return 1.0
    if arrivals.kind == "poisson":
        return dice.expovariate(1.0)
    return dice.gammavariate(arrivals.burstiness, 1.0 / arrivals.burstiness)


class _bend:  # noqa: N801 - a function with memory
    """Maps the time of arrivals at rate 1 to that of arrivals at the wanted rate."""

    def __init__(self, arrivals: Arrivals, whole: float) -> None:
        self._rate = arrivals.requests_per_s
        end = arrivals.until_requests_per_s
        # requests sent until t are rate*t + slope*t*t/2; the ramp ends when `whole` are sent
        self._slope = 0.0
        if end is not None and whole > 0:
            self._slope = (end**2 - self._rate**2) / (2 * whole)

    def __call__(self, at: float) -> float:
        if self._slope == 0.0:
            return at / self._rate
        root = math.sqrt(max(0.0, self._rate**2 + 2 * self._slope * at))
        return (root - self._rate) / self._slope

"""Arrival schedules: the rates and shapes that were asked for, the same for the same seed."""

from __future__ import annotations

import itertools
import statistics

import pytest

from backends.serving.engine.schedule import ArrivalKind, Arrivals, send_times_ns

S = 1_000_000_000


def gaps_s(arrivals: Arrivals, count: int = 20_000) -> list[float]:
    return [(b - a) / S for a, b in itertools.pairwise(send_times_ns(arrivals, count))]


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert send_times_ns(Arrivals(4.0, "constant"), 5) == [0, S // 4, S // 2, 3 * S // 4, S]


@pytest.mark.parametrize(
    ("kind", "burstiness", "variation"),
    [("poisson", 1.0, 1.0), ("gamma", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 4.0, 0.5)],
)
def test_random_arrivals_have_the_rate_and_the_burstiness(
    kind: ArrivalKind, burstiness: float, variation: float
) -> None:
    gaps = gaps_s(Arrivals(50.0, kind, burstiness, seed=3))
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.04)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.06)


def test_a_seed_makes_the_same_schedule_and_another_seed_another() -> None:
    first = send_times_ns(Arrivals(10.0, seed=1), 50)
    assert first == send_times_ns(Arrivals(10.0, seed=1), 50)
    assert first != send_times_ns(Arrivals(10.0, seed=2), 50)


@pytest.mark.parametrize(("begin", "end"), [(10.0, 100.0), (100.0, 10.0)])
def test_a_ramp_goes_from_one_rate_to_the_other(begin: float, end: float) -> None:
    arrivals = Arrivals(begin, "constant", until_requests_per_s=end)
    times = send_times_ns(arrivals, 5_000)
    assert times == sorted(times)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert S / gaps[0] == pytest.approx(begin, rel=0.02)
    assert S / gaps[-1] == pytest.approx(end, rel=0.02)
    middle = next(at for at, time in enumerate(times) if time >= times[-1] / 2)
    assert S / gaps[middle] == pytest.approx((begin + end) / 2, rel=0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests_per_s": 0.0},
        {"requests_per_s": 1.0, "burstiness": -1.0},
        {"requests_per_s": 1.0, "until_requests_per_s": 0.0},
        {"requests_per_s": float("inf")},
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Arrivals(**wrong)  # type: ignore[arg-type]

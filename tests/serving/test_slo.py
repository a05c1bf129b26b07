"""Objectives: how they are written, which levels and requests meet them."""

from __future__ import annotations

import pytest

from backends.serving.runs import BenchmarkSpec
from backends.serving.slo import good_requests, misses, parse_slo
from tests.serving.made_runs import failed, level, request


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft_p95<=200", "TTFT p95 <= 200 ms"),
        (" TTFT_ms_p95 <= 200ms ", "TTFT p95 <= 200 ms"),
        ("e2e_mean<=4s", "E2E mean <= 4000 ms"),
        ("itl_p99:35.5", "ITL p99 <= 35.5 ms"),
        ("tpot_p50<50", "TPOT p50 <= 50 ms"),
    ],
)
def test_a_bound_is_read_as_people_write_it(text: str, said: str) -> None:
    assert [str(bound) for bound in parse_slo([text])] == [said]


@pytest.mark.parametrize(
    "text", ["ttft<=200", "ttft_p94<=1", "p95<=200", "ttft_p95<=0", "ttft_p95>=200", "", "nonsense"]
)
def test_what_is_no_bound_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="ttft_p95<=200"):
        parse_slo([text])
    with pytest.raises(ValueError, match="twice"):
        parse_slo(["ttft_p95<=200", "ttft_p95<=300"])


def test_a_level_misses_what_its_own_statistics_miss() -> None:
    spec = BenchmarkSpec(max_tokens=11, slo=["ttft_p95<=150", "itl_p50<=9"])
    found = level([request(i, ttft_ms=100, itl_ms=10) for i in range(10)], spec)
    assert found.meets_slo is False
    assert found.slo_misses == ["ITL p50 <= 9 ms: was 10.0 ms"]
    assert found.slo_attainment == 0.0
    met = level([request(i, itl_ms=8) for i in range(10)], spec)
    assert (met.meets_slo, met.slo_misses, met.slo_attainment) == (True, [], 1.0)
    unasked = level([request(0)])
    assert (unasked.meets_slo, unasked.goodput_requests_per_s) == (None, None)


def test_goodput_counts_requests_one_by_one_and_failures_in_the_denominator() -> None:
    spec = BenchmarkSpec(max_tokens=11, slo=["ttft_p95<=150"])
    records = [request(i, ttft_ms=100 if i < 6 else 300) for i in range(8)]
    found = level([*records, failed(8), failed(9)], spec, duration_ms=2000)
    assert found.goodput_requests_per_s == pytest.approx(3.0)
    assert found.slo_attainment == pytest.approx(0.6)
    assert found.meets_slo is False
    assert "20.0% of the requests failed" in found.slo_misses[0]


def test_a_figure_nobody_measured_is_a_miss() -> None:
    bounds = parse_slo(["tpot_p50<=50"])
    assert misses(bounds, level([request(0, events=1)])) == ["TPOT p50 <= 50 ms: not measured"]


def test_each_request_is_held_against_the_statistic_of_its_own_gaps() -> None:
    stalled = request(0, itl_ms=10, events=11)
    stalled.content_ns[-1] += 200_000_000  # one gap of 210 ms among ten
    assert good_requests(parse_slo(["itl_p50<=20"]), [stalled]) == 1
    assert good_requests(parse_slo(["itl_p99<=20"]), [stalled]) == 0
    assert good_requests(parse_slo(["tpot_p99<=20"]), [stalled]) == 0, "30 ms a token in all"
    assert good_requests(parse_slo(["e2e_p99<=350"]), [stalled]) == 0

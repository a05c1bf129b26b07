"""The figures of a level, and the reasons for which they must not be relied on."""

from __future__ import annotations

import pytest

from backends.serving.metrics import MetricsDelta
from backends.serving.runs import BenchmarkSpec
from backends.serving.stats import distribution
from backends.serving.wire import Failure
from tests.serving.made_runs import failed, level, request


def test_the_figures_are_those_the_definitions_say() -> None:
    spec = BenchmarkSpec(max_tokens=21, usd_per_hour=3.6)
    # two tokens an event: 11 events 10 ms apart, 21 tokens, first at 100 ms
    result = level([request(0, tokens=21), request(1, start_ms=200, tokens=21)], spec)
    assert (result.requests, result.errors, result.success_rate) == (2, 0, 1.0)
    assert result.duration_s == pytest.approx(0.401)
    assert result.requests_per_s == pytest.approx(2 / 0.401)
    assert result.output_tokens_per_s == pytest.approx(42 / 0.401)
    assert result.ttft_ms.mean == pytest.approx(100)
    assert result.e2e_ms.mean == pytest.approx(200)
    assert result.itl_ms.p99 == pytest.approx(10)
    assert result.tpot_ms.p50 == pytest.approx(100 / 20)
    assert result.tokens_per_event == pytest.approx(42 / 22)
    assert result.prompt_tokens_mean == 50
    assert result.usd_per_million_output_tokens == pytest.approx(3.6 / (42 / 0.401 * 3600) * 1e6)
    assert result.valid
    assert result.warnings == []


def test_percentiles_are_interpolated_between_ranks_as_numpy_does() -> None:
    figures = distribution([4.0, 1.0, 3.0, 2.0])
    assert (figures.mean, figures.p50) == (2.5, 2.5)
    assert figures.p90 == pytest.approx(3.7)
    assert figures.p99 == pytest.approx(3.97)
    assert distribution([7.0]).p99 == 7.0
    assert distribution([]).mean is None


def test_a_failed_request_never_improves_a_figure() -> None:
    good = [request(i, start_ms=0) for i in range(4)]
    clean = level(good)
    spoiled = level([*good, *[failed(i, took_ms=1) for i in range(4, 8)]])
    assert spoiled.errors == 4
    assert spoiled.success_rate == 0.5
    assert spoiled.requests_per_s == clean.requests_per_s
    assert spoiled.output_tokens_per_s == clean.output_tokens_per_s
    assert spoiled.ttft_ms == clean.ttft_ms
    assert not spoiled.valid
    assert "4 of 8 requests failed" in spoiled.invalid_reasons[0]


def test_the_time_of_failed_requests_counts_in_the_duration() -> None:
    result = level([request(0), failed(1, kind="timeout", took_ms=2000)])
    assert result.duration_s == pytest.approx(2.0)
    assert result.output_tokens_per_s == pytest.approx(11 / 2.0)


def test_errors_are_gathered_by_kind_with_the_first_ones_words() -> None:
    records = [failed(0), failed(1, kind="timeout"), failed(2), request(3)]
    samples = level(records).error_samples
    assert [(s.kind, s.count, s.message) for s in samples] == [
        ("http_503", 2, "said http_503"),
        ("timeout", 1, "said timeout"),
    ]


def test_a_level_in_which_nothing_succeeded_has_no_figures() -> None:
    result = level([failed(0), failed(1)])
    assert result.output_tokens_per_s is None
    assert result.ttft_ms.mean is None
    assert result.usd_per_million_output_tokens is None
    assert result.invalid_reasons == ["no request succeeded"]


def test_one_failure_in_two_hundred_leaves_a_level_valid() -> None:
    records = [request(i) for i in range(199)]
    assert level([*records, failed(199)]).valid


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"loop_lag_ms": [0.1] * 90 + [9.0] * 10}, "came late to read: lag p99 9.0 ms"),
        ({"cpu_s": 0.18}, "used 90% of a core"),
        ({"run_delay_s": 0.3, "duration_ms": 2000}, "waited 15% of the time for a core"),
        ({"cut_short": "cancelled"}, "cut short: cancelled"),
    ],
)
def test_a_client_that_could_not_keep_up_makes_a_level_invalid(
    facts: dict[str, object], reason: str
) -> None:
    result = level([request(0)], **facts)  # type: ignore[arg-type]
    assert not result.valid
    assert any(reason in said for said in result.invalid_reasons)


def test_lag_is_judged_against_the_gaps_it_would_hide() -> None:
    lags = [4.0] * 100
    assert level([request(0, itl_ms=10.0)], loop_lag_ms=lags).valid
    assert not level([request(0, itl_ms=5.0)], loop_lag_ms=lags).valid
    assert level([request(0, itl_ms=1.0)], loop_lag_ms=[0.9] * 100).valid


def test_lost_gaps_are_an_objection_only_when_the_client_was_late() -> None:
    records = [request(0, coalesced=3)]
    calm = level(records, loop_lag_ms=[0.2] * 100)
    assert calm.valid
    assert any("ITL percentiles describe reads" in said for said in calm.warnings)
    late = level(records, loop_lag_ms=[2.0] * 100)
    assert any("their ITL is lost" in said for said in late.invalid_reasons)


def test_requests_that_left_late_are_an_objection() -> None:
    assert level([request(0, send_lag_ms=0.9)]).valid
    result = level([request(0, send_lag_ms=30.0)], concurrency=8)
    assert "fewer than 8 were in flight" in result.invalid_reasons[0]


@pytest.mark.parametrize("run_delay_s", [0.01, 0.09])
def test_a_short_wait_for_a_core_is_a_warning(run_delay_s: float) -> None:
    result = level([request(0)], run_delay_s=run_delay_s)
    assert result.valid
    assert "of the time for a core" in result.warnings[0]


def test_missing_usage_is_said_and_counts_events() -> None:
    result = level([request(0, usage=False, prompt_tokens=None)])
    assert result.token_count_source == "content events (a lower bound)"
    assert result.output_tokens_total == 11
    assert result.prompt_tokens_mean is None
    assert "lower bound" in result.warnings[0]


def test_answers_shorter_than_asked_are_said_when_eos_should_have_been_ignored() -> None:
    result = level([request(0)], BenchmarkSpec(max_tokens=64))
    assert "11.0 output tokens on average, not 64" in result.warnings[0]
    free = level([request(0)], BenchmarkSpec(max_tokens=64, ignore_eos=False))
    assert free.warnings == []


def test_a_failed_warm_up_is_said() -> None:
    result = level([request(0)], warmup_failures=[Failure("timeout", "no end within 5 s")])
    assert result.warnings == ["1 warm-up requests failed (timeout: no end within 5 s)"]


def test_what_the_engine_says_of_cache_preemptions_and_other_traffic_is_said() -> None:
    server = MetricsDelta(
        seconds=1.0,
        prefix_cache_hit_rate=0.4,
        preemptions=3,
        generation_tokens=500,
        restarted=True,
    )
    result = level([request(0)], server=server)
    assert result.prefix_cache_hit_rate == 0.4
    said = " / ".join(result.warnings)
    assert "40% of the prompt tokens came from the prefix cache" in said
    assert "3 preemptions" in said
    assert "counted 500 output tokens in this window, the client 11" in said
    assert "restarted while the level ran" in said


def test_a_hit_rate_that_is_low_is_no_warning() -> None:
    server = MetricsDelta(seconds=1.0, prefix_cache_hit_rate=0.04, generation_tokens=11)
    assert level([request(0)], server=server).warnings == []

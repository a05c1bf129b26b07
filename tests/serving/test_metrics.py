"""Serving statistics from /metrics: what is published, and nothing that is not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backends.core.errors import EndpointError
from backends.serving.metrics import MetricsSnapshot, metrics_delta, parse_metrics, serving_metrics
from tests.serving.mock_servers import RECORDED


def recorded(name: str) -> MetricsSnapshot:
    return parse_metrics((RECORDED / name).read_text(encoding="utf-8"))


def histogram(name: str, buckets: Mapping[str, float], total: float, engine: str = "0") -> str:
    lines = [f"# TYPE {name} histogram"] if engine == "0" else []
    lines += [
        f'{name}_bucket{{engine="{engine}",le="{le}",model_name="m"}} {n}'
        for le, n in buckets.items()
    ]
    count = list(buckets.values())[-1]
    lines += [
        f'{name}_count{{engine="{engine}",model_name="m"}} {count}',
        f'{name}_sum{{engine="{engine}",model_name="m"}} {total}',
    ]
    return "\n".join(lines) + "\n"


def counter(name: str, value: float, engine: str = "0", extra: str = "") -> str:
    head = f"# TYPE {name} counter\n" if engine == "0" else ""
    return f'{head}{name}{{engine="{engine}",model_name="m"{extra}}} {value}\n'


@pytest.mark.parametrize(
    "name",
    [
        "gemma4-0.32.0/metrics.body",
        "gemma4-0.32.0/metrics_before.body",
        "gemma4-0.32.0/metrics_after_load.body",
        "auth-tools/noauth_metrics.body",
    ],
)
def test_every_recorded_body_is_read_and_misses_nothing(name: str) -> None:
    metrics = serving_metrics(recorded(name))
    assert metrics.missing == []
    assert metrics.engines == 1
    assert metrics.running == 0
    assert metrics.waiting_by_reason == {"capacity": 0, "deferred": 0}
    assert metrics.kv_cache_tokens is not None
    assert metrics.engine_started_at_s is not None


def test_a_recorded_load_gives_the_figures_that_stand_in_it() -> None:
    metrics = serving_metrics(recorded("gemma4-0.32.0/metrics_after_load.body"))
    assert metrics.model == "tiny-gemma4"
    assert (metrics.prompt_tokens, metrics.generation_tokens) == (30008, 14648)
    assert metrics.requests == 212
    assert metrics.requests_by_finish_reason is not None
    assert metrics.requests_by_finish_reason["length"] == 212
    assert metrics.prefix_cache_queries == 30008
    assert metrics.prefix_cache_hits == 0
    assert metrics.prefix_cache_hit_rate == 0.0
    assert metrics.kv_cache_tokens == 2_684_354
    assert metrics.ttft_ms is not None
    assert metrics.ttft_ms.count == 212
    assert metrics.ttft_ms.mean == pytest.approx(242.51868224143982 / 212 * 1000)
    # 106 of 212 lie at or below the median: 63 up to 40 ms, 109 up to 60 ms
    assert metrics.ttft_ms.p50 == pytest.approx(40 + 20 * (106 - 63) / (109 - 63))
    assert metrics.itl_ms is not None
    assert metrics.itl_ms.count == 14436


def test_before_the_first_request_a_histogram_has_no_percentiles() -> None:
    name = "vllm:time_to_first_token_seconds"
    text = histogram(name, {"0.1": 0, "+Inf": 0}, 0.0)
    text += counter("vllm:prefix_cache_queries_total", 0)
    text += counter("vllm:prefix_cache_hits_total", 0)
    metrics = serving_metrics(parse_metrics(text))
    assert metrics.ttft_ms is not None
    assert (metrics.ttft_ms.count, metrics.ttft_ms.mean, metrics.ttft_ms.p50) == (0, None, None)
    assert metrics.prefix_cache_queries == 0
    assert metrics.prefix_cache_hit_rate is None, "no look-up has a rate of neither 0 nor 1"


def test_two_recorded_readings_give_rates_and_percentiles_of_the_time_between() -> None:
    before = recorded("gemma4-0.32.0/metrics_before.body")
    after = recorded("gemma4-0.32.0/metrics_after_load.body")
    delta = metrics_delta(before, after, 50.0)
    assert not delta.restarted
    assert delta.missing == []
    assert delta.requests_per_s == pytest.approx((212 - 2) / 50)
    assert delta.generation_tokens_per_s == pytest.approx((14648 - 216) / 50)
    assert delta.prompt_tokens_per_s == pytest.approx((30008 - 17) / 50)
    assert delta.e2e_ms is not None
    assert delta.e2e_ms.count == 210
    assert delta.mean_running == pytest.approx((254.22232920899933 - 1.225627981000116) / 50)
    assert delta.mean_waiting == pytest.approx(193.67071939599987 / 50, rel=1e-5)


def test_percentiles_of_an_interval_do_not_remember_what_came_before() -> None:
    name = "vllm:time_to_first_token_seconds"
    before = parse_metrics(histogram(name, {"0.1": 100, "1.0": 100, "+Inf": 100}, 5.0))
    after = parse_metrics(histogram(name, {"0.1": 100, "1.0": 110, "+Inf": 110}, 11.0))
    delta = metrics_delta(before, after, 1.0)
    assert delta.ttft_ms is not None
    assert delta.ttft_ms.count == 10
    assert delta.ttft_ms.mean == pytest.approx(600)
    assert delta.ttft_ms.p50 == pytest.approx(100 + 900 * 0.5)


def test_a_percentile_in_the_open_last_bucket_is_named_as_a_lower_bound() -> None:
    buckets = {"0.5": 8, "1.0": 9, "+Inf": 10}
    snapshot = parse_metrics(histogram("vllm:e2e_request_latency_seconds", buckets, 30.0))
    metrics = serving_metrics(snapshot)
    assert metrics.e2e_ms is not None
    assert metrics.e2e_ms.at_least == ["p95", "p99"]
    assert metrics.e2e_ms.p99 == 1000
    assert metrics.e2e_ms.p90 == pytest.approx(1000)


def test_a_percentile_in_a_wide_bucket_is_named_as_coarse() -> None:
    buckets = {"0.3": 6, "0.5": 10, "+Inf": 10}
    metrics = serving_metrics(
        parse_metrics(histogram("vllm:request_prefill_time_seconds", buckets, 1.0))
    )
    assert metrics.prefill_ms is not None
    assert metrics.prefill_ms.coarse == ["p50"]


def test_what_is_not_published_is_none_and_named() -> None:
    metrics = serving_metrics(parse_metrics(counter("vllm:generation_tokens_total", 7)))
    assert metrics.generation_tokens == 7
    assert metrics.running is None
    assert metrics.ttft_ms is None
    assert metrics.prefix_cache_hit_rate is None
    assert "vllm:num_requests_running" in metrics.missing
    assert "vllm:time_to_first_token_seconds" in metrics.missing
    assert "vllm:generation_tokens_total" not in metrics.missing
    delta = metrics_delta(parse_metrics(""), parse_metrics(""), 1.0)
    assert delta.generation_tokens_per_s is None
    assert "vllm:generation_tokens_total" in delta.missing


def test_an_empty_body_publishes_nothing() -> None:
    metrics = serving_metrics(parse_metrics(""))
    assert metrics.model is None
    assert metrics.engines is None
    assert len(metrics.missing) == 17


def test_older_names_are_understood() -> None:
    text = (
        '# TYPE vllm:gpu_cache_usage_perc gauge\nvllm:gpu_cache_usage_perc{model_name="m"} 0.25\n'
        + histogram("vllm:time_per_output_token_seconds", {"0.1": 2, "+Inf": 2}, 0.1)
    )
    metrics = serving_metrics(parse_metrics(text))
    assert metrics.kv_cache_usage == 0.25
    assert metrics.itl_ms is not None
    assert metrics.itl_ms.mean == pytest.approx(50)


def test_several_engines_are_added_up() -> None:
    name = "vllm:time_to_first_token_seconds"
    text = (
        counter("vllm:prompt_tokens_total", 10)
        + counter("vllm:prompt_tokens_total", 30, engine="1")
        + histogram(name, {"0.1": 1, "0.2": 1, "+Inf": 1}, 0.1)
        + histogram(name, {"0.1": 1, "0.2": 3, "+Inf": 3}, 0.5, engine="1")
    )
    text += "# TYPE vllm:kv_cache_usage_perc gauge\n"
    text += 'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    metrics = serving_metrics(parse_metrics(text))
    assert metrics.engines == 2
    assert metrics.prompt_tokens == 40
    assert metrics.kv_cache_usage == pytest.approx(0.4)
    assert metrics.ttft_ms is not None
    assert metrics.ttft_ms.count == 4
    assert metrics.ttft_ms.mean == pytest.approx(150)


def test_a_restart_in_between_counts_only_what_came_after_it() -> None:
    name = "vllm:time_to_first_token_seconds"
    before = parse_metrics(
        counter("vllm:generation_tokens_total", 1000)
        + histogram(name, {"0.1": 50, "+Inf": 50}, 2.0)
    )
    after = parse_metrics(
        counter("vllm:generation_tokens_total", 40) + histogram(name, {"0.1": 4, "+Inf": 4}, 0.2)
    )
    delta = metrics_delta(before, after, 10.0)
    assert delta.restarted
    assert delta.generation_tokens == 40
    assert delta.generation_tokens_per_s == 4
    assert delta.ttft_ms is not None
    assert delta.ttft_ms.count == 4
    assert delta.ttft_ms.mean == pytest.approx(50)


def test_a_restart_is_noticed_by_the_process_even_when_every_counter_has_caught_up() -> None:
    before = parse_metrics(
        "process_start_time_seconds 1000\n" + counter("vllm:generation_tokens_total", 10)
    )
    after = parse_metrics(
        "process_start_time_seconds 2000\n" + counter("vllm:generation_tokens_total", 15)
    )
    delta = metrics_delta(before, after, 1.0)
    assert delta.restarted
    assert delta.generation_tokens == 15


def test_an_engine_that_is_new_counts_from_zero() -> None:
    before = parse_metrics(counter("vllm:prompt_tokens_total", 10))
    after = parse_metrics(
        counter("vllm:prompt_tokens_total", 12) + counter("vllm:prompt_tokens_total", 5, "1")
    )
    assert metrics_delta(before, after, 1.0).prompt_tokens == 7


@pytest.mark.parametrize("text", ["<html>Sign in</html>", '{"detail":"Not Found"}', "a b c d"])
def test_what_is_no_metrics_text_is_refused_with_its_beginning(text: str) -> None:
    with pytest.raises(EndpointError) as caught:
        parse_metrics(text)
    assert text[:10] in caught.value.words


def test_no_time_between_two_readings_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0 s"):
        metrics_delta(parse_metrics(""), parse_metrics(""), 0.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_no_number_is_unknown(value: str) -> None:
    snapshot = parse_metrics(f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 2\n")
    state = serving_metrics(snapshot)
    assert state.running is None
    assert state.waiting == 2
    assert "vllm:num_requests_running" in state.missing

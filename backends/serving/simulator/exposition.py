"""`/metrics`: vLLM 0.32's metrics, label for label, from the engine's counts."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    Summary,
    generate_latest,
)
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from backends.serving.simulator.engine import Engine
from backends.serving.simulator.kv_pool import BLOCK_TOKENS
from backends.serving.simulator.stats import Histogram

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

UNCOUNTED_PATHS = frozenset({"/metrics", "/health", "/load", "/ping", "/version"})
"""Paths vLLM leaves out of its http_* metrics."""

_HIGHR_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 7.5, 10.0, 30.0, 60.0),
)

_COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("estimated_flops_per_gpu", "flops", "Estimated number of floating point operations per GPU"),
    ("estimated_read_bytes_per_gpu", "read_bytes", "Estimated number of bytes read per GPU"),
    ("prefix_cache_queries", "prefix_queries", "Prefix cache queries, in queried tokens."),
    ("prefix_cache_hits", "prefix_hits", "Prefix cache hits, in cached tokens."),
    ("num_preemptions", "preemptions", "Cumulative number of preemption from the engine."),
    ("prompt_tokens", "prompt_tokens", "Number of prefill tokens processed."),
    ("prompt_tokens_cached", "prompt_tokens_cached", "Number of cached prompt tokens."),
    ("generation_tokens", "generation_tokens", "Number of generation tokens processed."),
)

_ZERO_COUNTERS = (
    "estimated_write_bytes_per_gpu",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "mm_cache_queries",
    "mm_cache_hits",
)

_HISTOGRAMS: tuple[tuple[str, str, str], ...] = (
    ("request_prompt_tokens", "request_prompt_tokens", "Number of prefill tokens processed."),
    ("request_generation_tokens", "request_generation_tokens", "Number of generation tokens."),
    ("iteration_tokens_total", "iteration_tokens", "Number of tokens per engine_step."),
    (
        "request_max_num_generation_tokens",
        "request_max_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
    ),
    ("request_params_n", "request_n", "Histogram of the n request parameter."),
    ("request_params_max_tokens", "request_max_tokens", "Histogram of max_tokens."),
    ("time_to_first_token_seconds", "ttft_s", "Histogram of time to first token in seconds."),
    ("inter_token_latency_seconds", "itl_s", "Histogram of inter-token latency in seconds."),
    (
        "request_time_per_output_token_seconds",
        "tpot_s",
        "Histogram of time_per_output_token_seconds per request.",
    ),
    ("e2e_request_latency_seconds", "e2e_s", "Histogram of e2e request latency in seconds."),
    ("request_queue_time_seconds", "queue_s", "Histogram of time spent in WAITING phase."),
    ("request_inference_time_seconds", "inference_s", "Histogram of time in RUNNING phase."),
    ("request_prefill_time_seconds", "prefill_s", "Histogram of time in PREFILL phase."),
    ("request_decode_time_seconds", "decode_s", "Histogram of time in DECODE phase."),
    (
        "request_num_preemptions",
        "request_preemptions",
        "Histogram of the number of times a request was preempted.",
    ),
    (
        "request_prefill_kv_computed_tokens",
        "request_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
)


class EngineCollector(Collector):
    """Turns an engine's counts into Prometheus metrics.

    Args:
        engine: The engine.
        model_name: Label of every metric.
        cache_config: Labels of `vllm:cache_config_info`.
    """

    def __init__(self, engine: Engine, model_name: str, cache_config: dict[str, str]) -> None:
        self._engine = engine
        self._labels = {"engine": "0", "model_name": model_name}
        self._cache_config = {"engine": "0", **cache_config}
        self._created = time.time()

    def collect(self) -> Iterator[Metric]:
        """All metrics as they stand."""
        yield from self._gauges()
        yield from self._counters()
        stats = self._engine.stats
        for name, attribute, text in _HISTOGRAMS:
            histogram: Histogram = getattr(stats, attribute)
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.cumulative(), histogram.total)
            family.add_sample(f"vllm:{name}_created", self._labels, self._created)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        running, waiting = len(engine.running), len(engine.waiting)
        usage = engine.pool.usage
        yield self._gauge("num_requests_running", "Number of requests in batches.", running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting.", waiting)
        by_reason = self._family("num_requests_waiting_by_reason", "Waiting by reason.", "reason")
        sleep = self._family("engine_sleep_state", "Engine sleep state.", "sleep_state")
        for family, label, value in (
            (by_reason, "capacity", waiting),
            (by_reason, "deferred", 0),
            (sleep, "awake", 1),
            (sleep, "weights_offloaded", 0),
            (sleep, "discard_all", 0),
        ):
            family.add_metric([*self._labels.values(), label], value)
        yield by_reason
        yield sleep
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent.", usage)
        config = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=list(self._cache_config),
        )
        config.add_metric(list(self._cache_config.values()), 1)
        yield config

    def _counters(self) -> Iterator[Metric]:
        stats = self._engine.stats
        for name, attribute, text in _COUNTERS:
            yield self._counter(name, text, [("", getattr(stats, attribute))])
        for name in _ZERO_COUNTERS:
            yield self._counter(name, "Not simulated: always 0.", [("", 0)])
        computed = stats.prompt_tokens - stats.prompt_tokens_cached
        cached = stats.prompt_tokens_cached
        yield self._counter(
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            [("local_compute", computed), ("local_cache_hit", cached), ("external_kv_transfer", 0)],
            "source",
        )
        tiers = [("device", cached), ("host", 0), ("p2p", 0), ("disk", 0)]
        yield self._counter(
            "prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by cache tier.",
            [*tiers, ("external_unspecified", 0)],
            "source",
        )
        yield self._counter(
            "request_success",
            "Count of successfully processed requests.",
            list(stats.finished.items()),
            "finished_reason",
        )
        rejections = CounterMetricFamily(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            labels=["model_name", "reason"],
        )
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            rejections.add_metric([self._labels["model_name"], reason], 0, created=self._created)
        yield rejections

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _family(self, name: str, text: str, label: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"vllm:{name}", text, labels=[*self._labels, label])

    def _counter(
        self, name: str, text: str, values: list[tuple[str, float]], label: str = ""
    ) -> CounterMetricFamily:
        labels = [*self._labels, label] if label else list(self._labels)
        family = CounterMetricFamily(f"vllm:{name}", text, labels=labels)
        for key, value in values:
            row = [*self._labels.values(), key] if label else list(self._labels.values())
            family.add_metric(row, value, created=self._created)
        return family


class Exposition:
    """Everything `/metrics` shows.

    Args:
        engine: The engine.
        model_name: The model's served name.
        cache_config: Facts of the KV cache for `vllm:cache_config_info`.
    """

    def __init__(self, engine: Engine, model_name: str, cache_config: dict[str, str]) -> None:
        self._registry = CollectorRegistry()
        GCCollector(self._registry)
        PlatformCollector(self._registry)
        ProcessCollector(registry=self._registry)
        self._registry.register(EngineCollector(engine, model_name, cache_config))
        self._requests = Counter(
            "http_requests",
            "Total number of requests by method, status and handler.",
            ["method", "status", "handler"],
            registry=self._registry,
        )
        self._request_bytes = Summary(
            "http_request_size_bytes",
            "Content length of incoming requests by handler.",
            ["handler"],
            registry=self._registry,
        )
        self._response_bytes = Summary(
            "http_response_size_bytes",
            "Content length of outgoing responses by handler.",
            ["handler"],
            registry=self._registry,
        )
        self._highr = PrometheusHistogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels.",
            buckets=_HIGHR_SECONDS,
            registry=self._registry,
        )
        self._durations = PrometheusHistogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler.",
            ["method", "handler"],
            buckets=(0.1, 0.5, 1.0),
            registry=self._registry,
        )

    def count_request(
        self,
        *,
        method: str,
        handler: str,
        status: int,
        duration_s: float,
        request_bytes: int,
        response_bytes: int,
    ) -> None:
        """Count one answered HTTP request. `handler` is its route, or `none`."""
        self._requests.labels(method, f"{status // 100}xx", handler).inc()
        self._request_bytes.labels(handler).observe(request_bytes)
        self._response_bytes.labels(handler).observe(response_bytes)
        self._highr.observe(duration_s)
        self._durations.labels(method, handler).observe(duration_s)

    def render(self) -> bytes:
        """The text of `/metrics`."""
        return generate_latest(self._registry)


def cache_config(
    *,
    kv_tokens: int,
    max_model_len: int,
    kv_cache_dtype: str,
    memory_utilization: float,
    prefix_caching: bool,
) -> dict[str, str]:
    """Labels of `vllm:cache_config_info` that mean something in the simulator."""
    return {
        "block_size": str(BLOCK_TOKENS),
        "cache_dtype": kv_cache_dtype,
        "enable_prefix_caching": str(prefix_caching),
        "gpu_memory_utilization": str(memory_utilization),
        "kv_cache_max_concurrency": f"{kv_tokens / max_model_len:.2f}",
        "kv_cache_size_tokens": str(kv_tokens),
        "num_gpu_blocks": str(kv_tokens // BLOCK_TOKENS),
        "prefix_caching_hash_algo": "builtin",
        "sliding_window": "None",
    }

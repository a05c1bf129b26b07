"""Reads vLLM's `/metrics` as serving statistics, and two readings as rates.

A metric the server does not publish is None and named in `missing`; it is never 0. Several engines
(data parallel) are summed. Names are those of vLLM 0.32.0 (recorded 2026-11-30), with the older
name as an alternative where one was renamed.

Percentiles come from histograms: interpolated inside the bucket, as Prometheus'
`histogram_quantile` does, so they are as fine as the buckets. A percentile in the last, open bucket
is only known to be at least that bucket's lower bound; it is named in `at_least`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from backends.core.errors import EndpointError
from backends.serving.stats import PERCENTILES

COARSE_RATIO = 2.5
"""vLLM's buckets grow by up to this factor; a percentile in a wider one says little."""

_Labels = frozenset[tuple[str, str]]
_T = TypeVar("_T")

_GAUGES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}
_COUNTERS: dict[str, tuple[str, ...]] = {
    "prefix_cache_queries": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
    ),
    "prefix_cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "preemptions": ("vllm:num_preemptions_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "requests": ("vllm:request_success_total",),
}
_HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "ttft_ms": ("vllm:time_to_first_token_seconds",),
    "itl_ms": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot_ms": ("vllm:request_time_per_output_token_seconds",),
    "e2e_ms": ("vllm:e2e_request_latency_seconds",),
    "queue_ms": ("vllm:request_queue_time_seconds",),
    "prefill_ms": ("vllm:request_prefill_time_seconds",),
    "decode_ms": ("vllm:request_decode_time_seconds",),
    "inference_ms": ("vllm:request_inference_time_seconds",),
}
_WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
_CACHE_CONFIG = "vllm:cache_config_info"
_STARTED = "process_start_time_seconds"
_NOT_SERIES_LABELS = ("le",)

# What is read of a body; the rest (the HTTP layer's own, the process's) is three fifths of it.
_READ = (
    *(name for names in (*_GAUGES.values(), *_COUNTERS.values()) for name in names),
    *(name for names in _HISTOGRAMS.values() for name in names),
    _WAITING_BY_REASON,
    _CACHE_CONFIG,
    _STARTED,
)
# A counter's family is named without the suffix of its sample.
_READ_LINES = tuple(
    prefix + name.removesuffix("_total") for name in _READ for prefix in ("", "# TYPE ")
)


@dataclass
class _Histogram:
    """Cumulative counts by upper bound; the last bound is infinity."""

    buckets: dict[float, float] = field(default_factory=dict)
    count: float = 0.0
    total: float = 0.0


@dataclass(frozen=True)
class MetricsSnapshot:
    """One reading of `/metrics`, series by series, so that two can be subtracted.

    Attributes:
        values: Gauges and counters: name -> labels -> value.
        histograms: Name -> labels without `le` -> histogram.
    """

    values: Mapping[str, Mapping[_Labels, float]]
    histograms: Mapping[str, Mapping[_Labels, _Histogram]]


class LatencyStats(BaseModel):
    """What a histogram says, in milliseconds; None where it has counted nothing."""

    model_config = ConfigDict(extra="ignore")

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    at_least: list[str] = Field(
        default_factory=list,
        description="percentiles in the open last bucket: the true value is this or more",
    )
    coarse: list[str] = Field(
        default_factory=list,
        description="percentiles in a wide bucket (from 0, or over 2.5 times): a rough figure",
    )


class _Latencies(BaseModel):
    """The latencies vLLM keeps histograms of. ITL is one sample per token after the first."""

    model_config = ConfigDict(extra="ignore")

    ttft_ms: LatencyStats | None = None
    itl_ms: LatencyStats | None = None
    tpot_ms: LatencyStats | None = None
    e2e_ms: LatencyStats | None = None
    queue_ms: LatencyStats | None = None
    prefill_ms: LatencyStats | None = None
    decode_ms: LatencyStats | None = None
    inference_ms: LatencyStats | None = None


class ServingMetrics(_Latencies):
    """The state of the engine now and its totals since it started; None means "not published"."""

    model: str | None = None
    engines: int | None = None
    running: int | None = Field(None, description="requests in the batch now")
    waiting: int | None = Field(None, description="requests in the engine's queue now")
    waiting_by_reason: dict[str, int] | None = None
    kv_cache_usage: float | None = Field(None, description="0..1, mean over engines")
    kv_cache_tokens: int | None = Field(None, description="size of the KV cache in tokens")
    prefix_cache_queries: int | None = Field(None, description="tokens looked up")
    prefix_cache_hits: int | None = Field(None, description="tokens found")
    prefix_cache_hit_rate: float | None = Field(None, description="0..1")
    preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    requests: int | None = Field(None, description="finished requests")
    requests_by_finish_reason: dict[str, int] | None = None
    engine_started_at_s: float | None = Field(None, description="seconds since 1970")
    missing: list[str] = Field(default_factory=list, description="metrics it does not publish")


class MetricsDelta(_Latencies):
    """What happened between two readings: rates, and percentiles of that interval only.

    `mean_running` and `mean_waiting` are averages over the interval by Little's law: the time all
    finished requests together spent running (or queueing), divided by the interval.
    """

    seconds: float
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    requests: int | None = None
    requests_by_finish_reason: dict[str, int] | None = None
    preemptions: int | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    prefix_cache_hit_rate: float | None = None
    mean_running: float | None = None
    mean_waiting: float | None = None
    restarted: bool = Field(
        False, description="the engine restarted in between: totals since then only"
    )
    missing: list[str] = Field(default_factory=list)


def parse_metrics(text: str) -> MetricsSnapshot:
    """Read the body of `/metrics`.

    Args:
        text: Prometheus' text format, as vLLM answers it.

    Raises:
        EndpointError: It is not Prometheus' text format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    # The parser is pure Python, 20 ms for a whole body: it is given only what is read of it. A
    # body with nothing of that goes in whole, so that what is no metrics text is still refused.
    wanted = [line for line in text.splitlines() if line.startswith(_READ_LINES)]
    text = "\n".join(wanted) + "\n" if wanted else text
    values: dict[str, dict[_Labels, float]] = {}
    histograms: dict[str, dict[_Labels, _Histogram]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not math.isfinite(sample.value):
                    continue  # NaN is how Prometheus says "unknown"
                labels = frozenset(sample.labels.items())
                if family.type != "histogram":
                    values.setdefault(sample.name, {})[labels] = sample.value
                    continue
                series = frozenset(
                    item for item in sample.labels.items() if item[0] not in _NOT_SERIES_LABELS
                )
                histogram = histograms.setdefault(family.name, {}).setdefault(series, _Histogram())
                if sample.name.endswith("_bucket"):
                    histogram.buckets[float(sample.labels["le"])] = sample.value
                elif sample.name.endswith("_count"):
                    histogram.count = sample.value
                elif sample.name.endswith("_sum"):
                    histogram.total = sample.value
    except (ValueError, KeyError) as error:
        raise EndpointError(
            "What /metrics answered is not Prometheus' text format.",
            words=f"{error}; it begins: {text[:200]}",
            cause="Something other than vLLM answers there.",
            next_action="Check the base URL, and look at the raw answer.",
        ) from None
    return MetricsSnapshot(values=values, histograms=histograms)


def serving_metrics(snapshot: MetricsSnapshot) -> ServingMetrics:
    """Return the engine's state and totals of one reading."""
    missing: list[str] = []
    gauges = {name: _series(snapshot.values, names) for name, names in _GAUGES.items()}
    counters = {name: _series(snapshot.values, names) for name, names in _COUNTERS.items()}
    for table, found in ((_GAUGES, gauges), (_COUNTERS, counters)):
        missing += [table[name][0] for name, series in found.items() if series is None]
    latencies: dict[str, LatencyStats | None] = {}
    for name, names in _HISTOGRAMS.items():
        merged = _merged(_series(snapshot.histograms, names))
        latencies[name] = None if merged is None else _latency(merged)
        if merged is None:
            missing.append(names[0])
    totals = {name: _total(series) for name, series in counters.items()}
    usage = gauges["kv_cache_usage"]
    models, engines = _identity(snapshot)
    started = snapshot.values.get(_STARTED)
    return ServingMetrics(
        model=", ".join(models) or None,
        engines=engines or None,
        running=_total(gauges["running"]),
        waiting=_total(gauges["waiting"]),
        waiting_by_reason=_by_label(snapshot.values.get(_WAITING_BY_REASON), "reason"),
        kv_cache_usage=sum(usage.values()) / len(usage) if usage else None,
        kv_cache_tokens=_kv_cache_tokens(snapshot),
        **totals,
        prefix_cache_hit_rate=_rate(totals["prefix_cache_hits"], totals["prefix_cache_queries"]),
        requests_by_finish_reason=_by_label(counters["requests"], "finished_reason"),
        engine_started_at_s=max(started.values()) if started else None,
        **latencies,
        missing=missing,
    )


def metrics_delta(before: MetricsSnapshot, after: MetricsSnapshot, seconds: float) -> MetricsDelta:
    """Return rates and percentiles of the time between two readings of the same endpoint.

    A series that went down was reset by a restart: its value in `after` is what it counted since,
    as Prometheus' `rate` takes it, and `restarted` is set. A series that is new in `after` counts
    from 0.

    Args:
        before: The earlier reading.
        after: The later one.
        seconds: The time between them, above 0.

    Raises:
        ValueError: `seconds` is not above 0.
    """
    if seconds <= 0:
        raise ValueError("the time between two readings must be above 0 s")
    restarted = _restarted(before, after)
    missing: list[str] = []
    grown: dict[str, dict[_Labels, float] | None] = {}
    for name, names in _COUNTERS.items():
        old, new = _series(before.values, names), _series(after.values, names)
        if new is None:
            missing.append(names[0])
        grown[name] = None if new is None else _increase({} if restarted else old or {}, new)
    latencies: dict[str, LatencyStats | None] = {}
    spent_s: dict[str, float] = {}
    for name, names in _HISTOGRAMS.items():
        later = _series(after.histograms, names)
        if later is None:
            missing.append(names[0])
            continue
        earlier = {} if restarted else _series(before.histograms, names) or {}
        merged = _merged({key: _grown(earlier.get(key), value) for key, value in later.items()})
        if merged is not None:
            latencies[name] = _latency(merged)
            spent_s[name] = merged.total
    totals = {name: _total(series) for name, series in grown.items()}
    return MetricsDelta(
        seconds=seconds,
        **totals,
        requests_by_finish_reason=_by_label(grown["requests"], "finished_reason"),
        prompt_tokens_per_s=_rate(totals["prompt_tokens"], seconds),
        generation_tokens_per_s=_rate(totals["generation_tokens"], seconds),
        requests_per_s=_rate(totals["requests"], seconds),
        prefix_cache_hit_rate=_rate(totals["prefix_cache_hits"], totals["prefix_cache_queries"]),
        mean_running=_rate(spent_s.get("inference_ms"), seconds),
        mean_waiting=_rate(spent_s.get("queue_ms"), seconds),
        restarted=restarted,
        **latencies,
        missing=missing,
    )


def _series(
    table: Mapping[str, Mapping[_Labels, _T]], names: tuple[str, ...]
) -> Mapping[_Labels, _T] | None:
    for name in names:
        if table.get(name):
            return table[name]
    return None


def _total(series: Mapping[_Labels, float] | None) -> int | None:
    return None if series is None else round(sum(series.values()))


def _rate(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _by_label(series: Mapping[_Labels, float] | None, label: str) -> dict[str, int] | None:
    if series is None:
        return None
    out: dict[str, int] = {}
    for labels, value in series.items():
        name = dict(labels).get(label, "")
        out[name] = out.get(name, 0) + round(value)
    return out


def _identity(snapshot: MetricsSnapshot) -> tuple[list[str], int]:
    models: set[str] = set()
    engines: set[str] = set()
    for name, series in snapshot.values.items():
        if name.startswith("vllm:"):
            for labels in map(dict, series):
                models.update({labels["model_name"]} if "model_name" in labels else ())
                engines.update({labels["engine"]} if "engine" in labels else ())
    return sorted(models), len(engines)


def _kv_cache_tokens(snapshot: MetricsSnapshot) -> int | None:
    sizes: list[int] = []
    for labels in map(dict, snapshot.values.get(_CACHE_CONFIG, {})):
        size = labels.get("kv_cache_size_tokens", "")
        blocks, block = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if size.isdigit():
            sizes.append(int(size))
        elif blocks.isdigit() and block.isdigit():
            sizes.append(int(blocks) * int(block))
    return sum(sizes) if sizes else None


def _restarted(before: MetricsSnapshot, after: MetricsSnapshot) -> bool:
    old, new = before.values.get(_STARTED), after.values.get(_STARTED)
    if old and new and max(new.values()) - max(old.values()) > 1.0:
        return True
    for names in _COUNTERS.values():
        earlier, later = _series(before.values, names) or {}, _series(after.values, names) or {}
        if any(later[key] < value for key, value in earlier.items() if key in later):
            return True
    return False


def _increase(old: Mapping[_Labels, float], new: Mapping[_Labels, float]) -> dict[_Labels, float]:
    out: dict[_Labels, float] = {}
    for key, value in new.items():
        grown = value - old.get(key, 0.0)
        out[key] = grown if grown >= 0 else value
    return out


def _grown(old: _Histogram | None, new: _Histogram) -> _Histogram:
    if old is None or new.count < old.count:
        return new
    return _Histogram(
        buckets={
            bound: max(0.0, value - old.buckets.get(bound, 0.0))
            for bound, value in new.buckets.items()
        },
        count=new.count - old.count,
        total=new.total - old.total,
    )


def _merged(series: Mapping[_Labels, _Histogram] | None) -> _Histogram | None:
    if not series:
        return None
    merged = _Histogram()
    for histogram in series.values():
        merged.count += histogram.count
        merged.total += histogram.total
        for bound, value in histogram.buckets.items():
            merged.buckets[bound] = merged.buckets.get(bound, 0.0) + value
    return merged


def _latency(histogram: _Histogram) -> LatencyStats:
    if histogram.count <= 0:
        return LatencyStats(count=0)
    found = {f"p{p}": _quantile(histogram, p / 100) for p in PERCENTILES}
    return LatencyStats(
        count=round(histogram.count),
        mean=histogram.total / histogram.count * 1000,
        **{name: None if q is None else q.value_s * 1000 for name, q in found.items()},
        at_least=[name for name, q in found.items() if q is not None and q.open_ended],
        coarse=[name for name, q in found.items() if q is not None and q.coarse],
    )


class _Quantile(NamedTuple):
    value_s: float
    open_ended: bool
    coarse: bool


def _quantile(histogram: _Histogram, share: float) -> _Quantile | None:
    """Return a quantile interpolated inside its bucket, or None without buckets."""
    bounds = sorted(histogram.buckets)
    rank = share * histogram.count
    lower, below = 0.0, 0.0
    for bound in bounds:
        cumulative = histogram.buckets[bound]
        if cumulative >= rank and cumulative > below:
            if math.isinf(bound):
                return _Quantile(lower, open_ended=True, coarse=False)
            value_s = lower + (bound - lower) * (rank - below) / (cumulative - below)
            return _Quantile(value_s, open_ended=False, coarse=bound > COARSE_RATIO * lower)
        if not math.isinf(bound):
            lower = bound
        below = max(below, cumulative)
    return _Quantile(lower, open_ended=True, coarse=False) if bounds else None

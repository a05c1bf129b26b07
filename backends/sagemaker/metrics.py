"""CloudWatch's figures of an endpoint, since vLLM's own /metrics cannot be reached through it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from backends.core.answers import MetricsAnswer

if TYPE_CHECKING:
    from backends.sagemaker.endpoints import Deployed
    from backends.sagemaker.looking import SageMakerLooking

NOT_REACHABLE = (
    "vLLM's own /metrics (running, waiting, KV cache, prefix hits, TTFT) is inside the container, "
    "and SageMaker passes on invocations only; these are CloudWatch's figures of the platform."
)
WINDOW_S = 900
_PERIOD_S = 60
# How far back, and how finely, it is asked when a deployment was last used.
_USED_WITHIN = timedelta(hours=24)
_USED_PERIOD_S = 300
_LAG = "CloudWatch is one to two minutes behind, in steps of a minute."


@dataclass(frozen=True)
class _Metric:
    """A metric: our name, CloudWatch's, its statistic, and what its unit is multiplied by."""

    ours: str
    namespace: str
    theirs: str
    stat: str
    factor: float = 1.0


_SERVING = "AWS/SageMaker"
_HOSTS = "/aws/sagemaker/Endpoints"
# Microseconds to milliseconds (SageMaker documentation, monitoring with CloudWatch).
_US = 1e-3

_COUNTS = (
    _Metric("invocations", _SERVING, "Invocations", "Sum"),
    _Metric("errors_4xx", _SERVING, "Invocation4XXErrors", "Sum"),
    _Metric("errors_5xx", _SERVING, "Invocation5XXErrors", "Sum"),
)
_GAUGES = (
    _Metric("gpu_utilization_percent", _HOSTS, "GPUUtilization", "Average"),
    _Metric("gpu_memory_percent", _HOSTS, "GPUMemoryUtilization", "Average"),
    _Metric("cpu_utilization_percent", _HOSTS, "CPUUtilization", "Average"),
    _Metric("memory_percent", _HOSTS, "MemoryUtilization", "Average"),
    _Metric("disk_percent", _HOSTS, "DiskUtilization", "Average"),
)
_LATENCIES = tuple(
    _Metric(f"{ours}.{ours_stat}", _SERVING, theirs, stat, _US)
    for ours, theirs in (("model", "ModelLatency"), ("overhead", "OverheadLatency"))
    for ours_stat, stat in (
        ("count", "SampleCount"),
        ("mean", "Average"),
        ("p50", "p50"),
        ("p90", "p90"),
        ("p95", "p95"),
        ("p99", "p99"),
    )
)


# Of an inference component: its own namespace for what copies use, its name as the only dimension
# (AWS's guide on SageMaker metrics in CloudWatch; public code that reads them, 2026-12-01).
_COPIES = "/aws/sagemaker/InferenceComponents"
_COPY_GAUGES = tuple(
    _Metric(item.ours, _COPIES, f"{item.theirs}Normalized", item.stat)
    for item in _GAUGES
    if item.theirs != "DiskUtilization"
)
_COPY_COUNTS = (
    *_COUNTS,
    _Metric("refused_at_zero", _SERVING, "NoCapacityInvocationFailures", "Sum"),
)


@dataclass(frozen=True)
class Source:
    """What is measured of one variant, or of one inference component.

    Attributes:
        name: The variant's, or the component's.
        dimensions: As CloudWatch has them.
        counts: What is counted.
        gauges: What is used.
    """

    name: str
    dimensions: Sequence[Mapping[str, str]]
    counts: Sequence[_Metric] = _COUNTS
    gauges: Sequence[_Metric] = _GAUGES


def sources_of(deployed: Deployed) -> list[Source]:
    """What of a deployment CloudWatch measures: each variant, or the component it hosts."""
    if deployed.of_components:
        if deployed.component is None:
            return []
        name = deployed.component.name
        dimensions = [{"Name": "InferenceComponentName", "Value": name}]
        return [Source(name, dimensions, _COPY_COUNTS, _COPY_GAUGES)]
    return [
        Source(
            variant.name,
            [
                {"Name": "EndpointName", "Value": deployed.name},
                {"Name": "VariantName", "Value": variant.name},
            ],
        )
        for variant in (deployed.endpoint.variants if deployed.endpoint else ())
    ]


@dataclass(frozen=True)
class Window:
    """What CloudWatch has of a stretch of time.

    Attributes:
        seconds: How long it is.
        values: By our name, over the whole of it.
        newest: By our name, the last minute that has any.
    """

    seconds: float
    values: Mapping[str, float]
    newest: Mapping[str, float]


async def platform_metrics(
    target: SageMakerLooking, name: str, interval_s: float, *, raw: bool
) -> MetricsAnswer:
    """Figures of the last fifteen minutes.

    Args:
        target: The target.
        name: The deployment.
        interval_s: Has no meaning here: CloudWatch counts in minutes.
        raw: Add the figures as they came.
    """
    deployed = await target.find(name)
    sources = sources_of(deployed)
    now = datetime.now(UTC)
    windows = [
        await read_window(target, deployed.region, source, now - timedelta(seconds=WINDOW_S), now)
        for source in sources
    ]
    first = sources[0] if sources else Source("", ())
    everything = (*first.counts, *first.gauges)
    missing = sorted(
        {item.theirs for item in (*everything, *_LATENCIES)}
        - {
            item.theirs
            for item in (*everything, *_LATENCIES)
            if any(item.ours in window.values for window in windows)
        }
    )
    figures: dict[str, Any] = {}
    rates: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for source, window in zip(sources, windows, strict=True):
        suffix = f" {source.name}" if len(sources) > 1 else ""
        for item in source.counts:
            if item.ours in window.values:
                figures[f"{item.ours}{suffix}"] = window.values[item.ours]
        for item in source.gauges:
            if item.ours in window.newest:
                figures[f"{item.ours}{suffix}"] = round(window.newest[item.ours], 2)
        if "invocations" in window.values:
            rates[f"invocations_per_s{suffix}"] = window.values["invocations"] / window.seconds
        rows += _rows(window, suffix)
    said = figures.get("invocations") if len(sources) == 1 else sum(
        window.values.get("invocations", 0.0) for window in windows
    )  # fmt: skip
    busy = f"{said:g} invocations" if said is not None else "no invocations known"
    return MetricsAnswer(
        summary=f"{target.at(name)}: {busy} in the last {WINDOW_S // 60} minutes, by CloudWatch.",
        warnings=[
            NOT_REACHABLE,
            _LAG,
            *(["interval_s has no effect: CloudWatch counts in minutes."] if interval_s else []),
        ],
        target=target.target,
        name=name,
        basis="simulated" if target.aws.rehearsal else "measured",
        interval_s=float(WINDOW_S),
        now=figures,
        rates=rates,
        latency_ms=rows,
        missing=missing,
        raw=json.dumps([dict(window.values) for window in windows], indent=1) if raw else None,
        next_steps=[
            f"run_benchmark(target={target.target!r}, name={name!r}) measures TTFT and tokens/s",
            f"get_logs(target={target.target!r}, name={name!r}) has vLLM's own statistics, a line "
            "each 10 s under load",
        ],
    )


def _rows(window: Window, suffix: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for ours in ("model", "overhead"):
        found = {
            item.ours.partition(".")[2]: window.values[item.ours]
            for item in _LATENCIES
            if item.ours.startswith(f"{ours}.") and item.ours in window.values
        }
        # SampleCount is a number of requests, not a time.
        count = found.pop("count", 0.0)
        if count:
            rows.append(
                {"latency_ms": f"{ours}{suffix}", "count": round(count)}
                | {stat: round(value, 3) for stat, value in found.items()}
            )
    return rows


async def read_window(
    target: SageMakerLooking,
    region: str,
    source: Source,
    began: datetime,
    ended: datetime,
) -> Window:
    """All metrics of one variant or component between two moments, with one request.

    Raises:
        DevopsError: CloudWatch could not be asked.
    """
    metrics = (*source.counts, *source.gauges, *_LATENCIES)
    seconds = max(_PERIOD_S, int((ended - began).total_seconds()))
    whole = -(-seconds // _PERIOD_S) * _PERIOD_S
    queries = [
        {
            "Id": f"m{index}",
            "MetricStat": {
                "Metric": {
                    "Namespace": item.namespace,
                    "MetricName": item.theirs,
                    "Dimensions": [dict(item) for item in source.dimensions],
                },
                # Percentiles of minutes cannot be put together; the whole is one period then.
                "Period": _PERIOD_S if item in source.gauges else whole,
                "Stat": item.stat,
            },
            "ReturnData": True,
        }
        for index, item in enumerate(metrics)
    ]
    results = await target.aws.items(
        "cloudwatch",
        "get_metric_data",
        "MetricDataResults",
        region,
        MetricDataQueries=queries,
        StartTime=began,
        EndTime=ended,
        ScanBy="TimestampAscending",
    )
    values: dict[str, float] = {}
    newest: dict[str, float] = {}
    for result in results:
        item = metrics[int(str(result["Id"])[1:])]
        # Datapoints come unsorted from some of the APIs (SageMaker L4 repository).
        points = _points(result, 1.0 if item.stat == "SampleCount" else item.factor)
        if not points:
            continue
        newest[item.ours] = points[-1]
        total = sum(points)
        values[item.ours] = total if item.stat in {"Sum", "SampleCount"} else total / len(points)
    return Window(float(seconds), values, newest)


def _points(result: Mapping[str, Any], factor: float) -> Sequence[float]:
    pairs = zip(result.get("Timestamps") or (), result.get("Values") or (), strict=False)
    return [float(value) * factor for _, value in sorted(pairs, key=lambda pair: pair[0])]


async def last_invocation_at(target: SageMakerLooking, name: str) -> float | None:
    """When it was last invoked, within a day, to five minutes.

    Args:
        target: The target.
        name: The deployment.

    Returns:
        Unix seconds, the end of the period at most now; 0: not within a day; None: it has no
        endpoint that could have been.

    Raises:
        DevopsError: CloudWatch could not be asked.
    """
    deployed = await target.find(name)
    sources = sources_of(deployed)
    if not sources:
        return None
    now = datetime.now(UTC)
    queries = [
        {
            "Id": f"m{index}",
            "MetricStat": {
                "Metric": {
                    "Namespace": _SERVING,
                    "MetricName": "Invocations",
                    "Dimensions": [dict(item) for item in source.dimensions],
                },
                "Period": _USED_PERIOD_S,
                "Stat": "Sum",
            },
            "ReturnData": True,
        }
        for index, source in enumerate(sources)
    ]
    results = await target.aws.items(
        "cloudwatch",
        "get_metric_data",
        "MetricDataResults",
        deployed.region,
        MetricDataQueries=queries,
        StartTime=now - _USED_WITHIN,
        EndTime=now,
        ScanBy="TimestampDescending",
    )
    used = [
        moment.timestamp()
        for result in results
        for moment, count in zip(
            result.get("Timestamps") or (), result.get("Values") or (), strict=False
        )
        if count > 0
    ]
    return min(max(used) + _USED_PERIOD_S, now.timestamp()) if used else 0.0


async def benchmark_split(
    target: SageMakerLooking, name: str, began_s: float, ended_s: float
) -> dict[str, Any]:
    """What of the latency of a stretch of time was the model's, and what SageMaker's own.

    The load engine signs and reads by itself, so no CLI or SDK is in its figures; this says what
    the platform added between it and the container.

    Args:
        target: The target.
        name: The deployment.
        began_s: Unix seconds.
        ended_s: Unix seconds.

    Returns:
        Milliseconds by name; `note` says what is missing.
    """
    deployed = await target.find(name)
    serving = deployed.endpoint.serving if deployed.endpoint else None
    chosen = next(
        (
            source
            for source in sources_of(deployed)
            if deployed.of_components or (serving is not None and source.name == serving.name)
        ),
        None,
    )
    if chosen is None:
        return {"note": "the endpoint is gone, so CloudWatch was not asked"}
    window = await read_window(
        target,
        deployed.region,
        chosen,
        datetime.fromtimestamp(began_s, UTC),
        datetime.fromtimestamp(ended_s + _PERIOD_S, UTC),
    )
    split = {
        f"{row['latency_ms']}_latency_ms_{stat}": row[stat]
        for row in _rows(window, "")
        for stat in ("mean", "p50", "p99")
        if stat in row
    }
    if "invocations" in window.values:
        split["invocations"] = window.values["invocations"]
    note = (
        "CloudWatch: ModelLatency is the container's time, OverheadLatency what SageMaker added; "
        "the benchmark's own figures hold no CLI and no SDK (requests are signed in 0.2 ms)"
    )
    if not any(key.startswith("overhead") for key in split):
        note += f". Not known yet: {_LAG} get_metrics has it then"
    return split | {"note": note}

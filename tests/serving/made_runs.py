"""Levels and runs made by hand, with figures a test can foresee."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from backends.serving.findings import findings
from backends.serving.levels import level_result
from backends.serving.loadgen import LevelRaw, RequestRecord
from backends.serving.metrics import LatencyStats, MetricsDelta
from backends.serving.runs import (
    DEFINITIONS,
    BenchmarkRun,
    BenchmarkSpec,
    EndpointFacts,
    Environment,
    LevelResult,
)
from backends.serving.wire import Failure

MS = 1_000_000


def request(
    index: int = 0,
    *,
    start_ms: float = 0.0,
    ttft_ms: float = 100.0,
    itl_ms: float = 10.0,
    events: int = 11,
    tokens: int | None = None,
    prompt_tokens: int | None = 50,
    send_lag_ms: float | None = None,
    coalesced: int = 0,
    usage: bool = True,
) -> RequestRecord:
    """Return a request that succeeded."""
    sent_ns = int(start_ms * MS)
    first_ns = sent_ns + int(ttft_ms * MS)
    times = array("q", [first_ns + int(i * itl_ms * MS) for i in range(events)])
    return RequestRecord(
        index=index,
        request_id=f"r{index}",
        sent_ns=sent_ns,
        send_lag_ns=None if send_lag_ms is None else int(send_lag_ms * MS),
        first_byte_ns=first_ns,
        end_ns=times[-1] + MS,
        content_ns=times,
        first_answer_ns=first_ns,
        coalesced=coalesced,
        prompt_tokens=prompt_tokens,
        completion_tokens=(events if tokens is None else tokens) if usage else None,
        finish_reason="length",
    )


def failed(
    index: int = 0, *, kind: str = "http_503", start_ms: float = 0.0, took_ms: float = 1.0
) -> RequestRecord:
    """Return a request that failed after `took_ms`."""
    sent_ns = int(start_ms * MS)
    return RequestRecord(
        index=index,
        request_id=f"r{index}",
        sent_ns=sent_ns,
        end_ns=sent_ns + int(took_ms * MS),
        failure=Failure(kind, f"said {kind}", 503),
    )


def level(
    records: Sequence[RequestRecord],
    spec: BenchmarkSpec | None = None,
    *,
    concurrency: int = 1,
    duration_ms: float | None = None,
    loop_lag_ms: Sequence[float] = (),
    cpu_s: float | None = None,
    run_delay_s: float | None = None,
    cut_short: str = "",
    warmup_failures: Sequence[Failure] = (),
    server: MetricsDelta | None = None,
) -> LevelResult:
    """Summarise records as one level."""
    end_ns = max((record.end_ns for record in records), default=0)
    raw = LevelRaw(
        records=list(records),
        started_ns=0,
        ended_ns=end_ns if duration_ms is None else int(duration_ms * MS),
        cut_short=cut_short,
        warmup_failures=list(warmup_failures),
        timestamp_source="by hand",
        loop_lag_ns=[int(lag * MS) for lag in loop_lag_ms],
        cpu_s=cpu_s,
        run_delay_s=run_delay_s,
    )
    asked = spec or BenchmarkSpec(max_tokens=11)
    return level_result(raw, asked, concurrency, started_at="2026-11-30T00:00:00Z", server=server)


def rated(
    concurrency: int,
    tokens_per_s: float,
    *,
    ttft_ms: float = 100.0,
    itl_ms: float = 10.0,
    usd_per_hour: float | None = None,
    server: MetricsDelta | None = None,
    max_tokens: int = 100,
) -> LevelResult:
    """Return a level of 20 requests whose throughput is `tokens_per_s`."""
    duration_ms = 20 * max_tokens / tokens_per_s * 1000
    records = [request(i, ttft_ms=ttft_ms, itl_ms=itl_ms, events=max_tokens) for i in range(20)]
    spec = BenchmarkSpec(max_tokens=max_tokens, usd_per_hour=usd_per_hour)
    if server is not None:
        server = server.model_copy(update={"seconds": duration_ms / 1000})
    return level(records, spec, concurrency=concurrency, duration_ms=duration_ms, server=server)


def server_figures(
    running: float, waiting: float, *, ttft_ms: float = 50.0, tokens: int = 2000
) -> MetricsDelta:
    """Return what the engine says of a level."""
    return MetricsDelta(
        seconds=10.0,
        mean_running=running,
        mean_waiting=waiting,
        generation_tokens=tokens,
        ttft_ms=LatencyStats(count=20, mean=ttft_ms),
    )


def run_of(
    levels: Sequence[LevelResult],
    *,
    label: str = "a run",
    run_id: str = "bench-1",
    simulated: bool = False,
    created_at: str = "2026-11-30T10:00:00.000Z",
    model: str = "gemma-4",
    spec: BenchmarkSpec | None = None,
) -> BenchmarkRun:
    """Return a finished run of these levels."""
    run = BenchmarkRun(
        id=run_id,
        state="completed",
        created_at=created_at,
        updated_at=created_at,
        finished_at=created_at,
        label=label,
        simulated=simulated,
        endpoint=EndpointFacts(
            base_url="http://127.0.0.1:1", model=model, source=label, simulated=simulated
        ),
        spec=spec or BenchmarkSpec(max_tokens=100),
        environment=Environment(
            client_cpus=2,
            client_platform="Linux",
            python="3.11",
            product_version="0",
            engine="by hand",
            timestamp_source="by hand",
        ),
        definitions=DEFINITIONS,
        levels=list(levels),
    )
    run.findings = findings(run)
    return run

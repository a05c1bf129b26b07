"""Turns what a load engine saw in one level into figures, and says whether they can be trusted.

The rules that mark a level invalid are the client's examination of itself: figures taken by a
client that came late to read say more about the client than about the server.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

from backends.serving.cells import Cell
from backends.serving.engine.clock import KERNEL, MAX_CLOCK_STEP_NS, READER
from backends.serving.engine.histogram import Histogram
from backends.serving.loadgen import LevelRaw, RequestRecord
from backends.serving.metrics import MetricsDelta
from backends.serving.runs import (
    BenchmarkSpec,
    ErrorSample,
    LevelResult,
    NodeShare,
    SelfCheck,
)
from backends.serving.slo import good_requests, misses
from backends.serving.stats import Distribution, distribution, percentile
from backends.serving.steady import steady_part

MAX_ERROR_SHARE = 0.01
"""Requests that fail leave room for the others: above this share the latencies flatter."""

MAX_LAG_SHARE_OF_ITL = 0.5
MIN_LAG_MS = 1.0
"""Below this lag nothing is objected to: it is what an ordinary scheduler does to anybody."""

MAX_COALESCED_SHARE = 0.01
MAX_CPU_SHARE = 0.8
WARN_RUN_DELAY_SHARE = 0.02
MAX_RUN_DELAY_SHARE = 0.10
MIN_RUN_DELAY_S = 0.1
"""In a level of a tenth of a second one slice given to another process is a large share."""

MAX_SEND_LAG_SHARE_OF_TTFT = 0.01
MAX_IDLE_SHARE = 0.01
"""Of a stream's time, between the end of a request and the next one's send."""

MIN_IDLE_MS = 0.5
"""Less than this a request, on average, is not objected to, however short the requests are."""

MAX_TURNED_AWAY_SHARE = 0.01
MAX_UNSTAMPED_SHARE = 0.01
PREFIX_HITS_WARNING = 0.05
TOKEN_MISMATCH_WARNING = 0.05

TokenSource = Literal["server usage", "content events (a lower bound)"]
_COUNTED: TokenSource = "server usage"
_LOWER_BOUND: TokenSource = "content events (a lower bound)"


def level_result(
    raw: LevelRaw,
    spec: BenchmarkSpec,
    concurrency: int,
    *,
    started_at: str,
    server: MetricsDelta | None = None,
    cell: Cell | None = None,
) -> LevelResult:
    """Summarise one level; see `DEFINITIONS` for what every figure means.

    Args:
        raw: What the engine saw; may be of a level under way or cut short.
        spec: What was asked for.
        concurrency: The level.
        started_at: When it began, for the record.
        server: The engine's own figures for the same window, where they could be read.
        cell: Which one of a sweep it is; None for the closed loop of `concurrency`.
    """
    cell = cell or Cell(concurrency)
    good = [record for record in raw.records if record.failure is None]
    errors = len(raw.records) - len(good)
    offered = len(raw.records) + raw.turned_away
    duration_s = max(0, raw.ended_ns - raw.started_ns) / 1e9
    tokens = [_tokens(record) for record in good]
    total_tokens = sum(tokens)
    tokens_per_s = total_tokens / duration_s if good and duration_s > 0 else None
    itl, itl_p10_ms = _itl(good, raw.gaps)
    events = sum(record.events for record in good)
    prompts = [record.prompt_tokens for record in good if record.prompt_tokens is not None]
    ttft_ms = distribution([_ms(r.content_ns[0] - r.from_ns) for r in good])
    check = _self_check(raw, duration_s, events)
    planned = cell.requests(spec)
    result = LevelResult(
        concurrency=concurrency,
        requests=len(raw.records),
        errors=errors,
        success_rate=len(good) / offered if offered else None,
        duration_s=duration_s,
        requests_per_s=len(good) / duration_s if good and duration_s > 0 else None,
        output_tokens_per_s=tokens_per_s,
        ttft_ms=ttft_ms,
        itl_ms=itl,
        tpot_ms=_tpot(good),
        e2e_ms=distribution([_ms(r.content_ns[-1] - r.from_ns) for r in good]),
        first_answer_ms=distribution(
            [_ms(r.first_answer_ns - r.from_ns) for r in good if r.first_answer_ns is not None]
        ),
        valid=True,
        invalid_reasons=[],
        warnings=[],
        timestamp_source=raw.timestamp_source,
        partial=bool(raw.cut_short),
        requests_planned=planned,
        unfinished=raw.unfinished,
        turned_away=raw.turned_away,
        offered_requests_per_s=_offered_rate(raw.records),
        workers=raw.workers,
        prompt_tokens_mean=sum(prompts) / len(prompts) if prompts else None,
        output_tokens_mean=total_tokens / len(good) if good else None,
        output_tokens_total=total_tokens,
        token_count_source=_token_source(good),
        tokens_per_event=total_tokens / events if events else None,
        error_samples=_error_samples(raw.records),
        usd_per_million_output_tokens=None
        if spec.usd_per_hour is None or not tokens_per_s
        else spec.usd_per_hour / (tokens_per_s * 3600) * 1e6,
        prefix_cache_hit_rate=server.prefix_cache_hit_rate if server else None,
        server=server,
        self_check=check,
        nodes=_nodes(raw, duration_s),
        started_at=started_at,
        prompt_tokens_min=min(prompts, default=None),
        prompt_tokens_max=max(prompts, default=None),
        request_rate=cell.rate,
        context_tokens=cell.context,
        repetition=cell.repetition,
        steady=steady_part(raw, concurrency, usd_per_hour=spec.usd_per_hour),
    )
    if spec.slo:
        _judge(result, spec, good, offered)
    too_slow = _too_slow(result, itl_p10_ms)
    check.limited_the_level = bool(too_slow)
    result.invalid_reasons = _objections(result, raw) + too_slow
    result.valid = not result.invalid_reasons
    result.warnings = _warnings(result, raw, spec)
    return result


def _judge(
    result: LevelResult, spec: BenchmarkSpec, good: Sequence[RequestRecord], offered: int
) -> None:
    """Hold the level against the objective, and every request by itself for goodput."""
    bounds = spec.bounds
    result.slo_misses = misses(bounds, result)
    result.meets_slo = not result.slo_misses
    within = good_requests(bounds, good)
    result.slo_attainment = within / offered if offered else None
    if result.duration_s > 0:
        result.goodput_requests_per_s = within / result.duration_s


def _ms(nanoseconds: int) -> float:
    return nanoseconds / 1e6


def _tokens(record: RequestRecord) -> int:
    counted = record.completion_tokens
    return record.events if counted is None else counted


def _token_source(good: list[RequestRecord]) -> TokenSource | None:
    if not good:
        return None
    if any(record.completion_tokens is None for record in good):
        return _LOWER_BOUND
    return _COUNTED


def _itl(
    good: Iterable[RequestRecord], gaps: Histogram | None
) -> tuple[Distribution, float | None]:
    """Return the distribution of the gaps, and their tenth percentile in milliseconds."""
    kept = [
        after - before
        for record in good
        if not record.folded
        for before, after in itertools.pairwise(record.content_ns)
    ]
    if gaps is None:
        samples = [gap / 1e6 for gap in kept]
        return distribution(samples), percentile(sorted(samples), 10) if samples else None
    everything = Histogram()
    everything.merge(gaps)
    everything.add(kept)
    return everything.distribution_ms(), everything.percentile_ns(10) / 1e6


def _offered_rate(records: Sequence[RequestRecord]) -> float | None:
    """Return the rate at which an open loop meant to send; None for a closed loop."""
    times = [record.intended_ns for record in records if record.intended_ns is not None]
    if len(times) < 2:
        return None
    return (len(times) - 1) / max(1e-9, (max(times) - min(times)) / 1e9)


def _tpot(good: Iterable[RequestRecord]) -> Distribution:
    return distribution(
        [
            _ms(record.content_ns[-1] - record.content_ns[0]) / (_tokens(record) - 1)
            for record in good
            if _tokens(record) > 1 and record.events > 1
        ]
    )


def _error_samples(records: Iterable[RequestRecord]) -> list[ErrorSample]:
    samples: dict[str, ErrorSample] = {}
    for record in records:
        failure = record.failure
        if failure is None:
            continue
        if failure.kind in samples:
            samples[failure.kind].count += 1
        else:
            samples[failure.kind] = ErrorSample(
                kind=failure.kind, count=1, message=failure.message[:500], status=failure.status
            )
    return sorted(samples.values(), key=lambda sample: -sample.count)


def _self_check(raw: LevelRaw, duration_s: float, events: int) -> SelfCheck:
    lags = sorted(raw.loop_lag_ns)
    sends = sorted(r.send_lag_ns for r in raw.records if r.send_lag_ns is not None)
    coalesced = sum(record.coalesced for record in raw.records if record.failure is None)
    whole = duration_s if duration_s > 0 else None
    closed = [r for r in raw.records if r.intended_ns is None and r.send_lag_ns is not None]
    idle_ns = sum(r.send_lag_ns or 0 for r in closed)
    busy_ns = sum(r.end_ns - r.sent_ns for r in closed)
    return SelfCheck(
        loop_lag_p99_ms=percentile(lags, 99) / 1e6 if lags else None,
        loop_lag_max_ms=lags[-1] / 1e6 if lags else None,
        send_lag_p99_ms=percentile(sends, 99) / 1e6 if sends else None,
        cpu_share=raw.cpu_s / whole if whole and raw.cpu_s is not None else None,
        run_delay_share=min(1.0, raw.run_delay_s / whole)
        if whole and raw.run_delay_s is not None
        else None,
        idle_share=idle_ns / (idle_ns + busy_ns) if closed and idle_ns + busy_ns else None,
        idle_mean_ms=_ms(idle_ns) / len(closed) if closed else None,
        coalesced_share=coalesced / events if events else 0.0,
        unstamped_share=raw.unstamped_reads / raw.reads if raw.reads else 0.0,
        clock_step_ms=raw.clock_step_ns / 1e6,
        reconnects=raw.reconnects,
        resent=raw.resent,
        crowded_parses=raw.crowded_parses,
        out_of_files=raw.out_of_files,
    )


def _nodes(raw: LevelRaw, duration_s: float) -> list[NodeShare]:
    """Return what the workers on other nodes had, and what they say of themselves."""
    whole = duration_s if duration_s > 0 else None
    return [
        NodeShare(
            node=share.place,
            requests=share.requests,
            events=share.events,
            timestamp_source=KERNEL if share.stamped else READER,
            loop_lag_p99_ms=percentile(sorted(share.lag_ns), 99) / 1e6 if share.lag_ns else None,
            cpu_share=share.cpu_s / whole if whole else None,
            run_delay_share=min(1.0, share.run_delay_s / whole)
            if whole and share.run_delay_s is not None
            else None,
            clock_error_ms=_ms(share.clock_error_ns),
        )
        for _, share in sorted(raw.shares.items())
        if share.place
    ]


def _objections(result: LevelResult, raw: LevelRaw) -> list[str]:
    """Return why the figures of a level must not be relied on, the client's speed apart."""
    check, reasons = result.self_check, []
    if raw.cut_short:
        reasons.append(f"cut short: {raw.cut_short}")
    if not result.requests - result.errors:
        reasons.append("no request succeeded")
    elif result.errors > MAX_ERROR_SHARE * result.requests:
        reasons.append(
            f"{result.errors} of {result.requests} requests failed: the figures describe only "
            "those that succeeded, on a server with less to do"
        )
    if _starved(result):
        reasons.append(
            f"the client waited {check.run_delay_share:.0%} of the time for a core: the machine "
            "it runs on is too busy"
        )
    if check.clock_step_ms * 1e6 > MAX_CLOCK_STEP_NS:
        reasons.append(
            f"the clock was set by {check.clock_step_ms:.3g} ms while the level ran: receive times "
            "are off by as much"
        )
    if check.unstamped_share > MAX_UNSTAMPED_SHARE:
        reasons.append(
            f"{check.unstamped_share:.1%} of the reads came without the kernel's receive time"
        )
    if check.out_of_files:
        reasons.append(
            f"{check.out_of_files} connections could not be made for want of files or ports on "
            "the client's machine"
        )
    offered = result.requests + result.turned_away
    if result.turned_away > MAX_TURNED_AWAY_SHARE * offered:
        reasons.append(
            f"{result.turned_away} of {offered} requests were never sent: {result.concurrency} "
            "were in flight already, so the rate was not offered"
        )
    return reasons


def _too_slow(result: LevelResult, itl_p10_ms: float | None) -> list[str]:
    """Return what the client was too slow for: what one more worker may cure."""
    check, reasons = result.self_check, []
    lag_ms = check.loop_lag_p99_ms or 0.0
    bound_ms = max(MIN_LAG_MS, MAX_LAG_SHARE_OF_ITL * (itl_p10_ms or 0.0))
    if lag_ms > bound_ms:
        reasons.append(
            f"the client came late to read: lag p99 {lag_ms:.1f} ms, allowed {bound_ms:.1f} ms "
            "(half of the ITL p10, at least 1 ms)"
        )
    if check.coalesced_share > MAX_COALESCED_SHARE and lag_ms > MIN_LAG_MS:
        reasons.append(
            f"{check.coalesced_share:.1%} of the content events came together with the one before "
            "while the client was late: their ITL is lost"
        )
    if check.cpu_share is not None and check.cpu_share > MAX_CPU_SHARE:
        reasons.append(f"the client used {check.cpu_share:.0%} of a core: it was the bottleneck")
    return reasons + _late_sends(result)


def _late_sends(result: LevelResult) -> list[str]:
    """Return what late sends have done to the figures.

    A request of an open loop has its latency counted from when it should have left, so lateness is
    in the figures; a stream of a closed loop that idles makes fewer requests in flight.
    """
    check, ttft_p50_ms = result.self_check, result.ttft_ms.p50
    if check.idle_share is not None:
        idle_ms = check.idle_mean_ms or 0.0
        if check.idle_share <= MAX_IDLE_SHARE or idle_ms <= MIN_IDLE_MS:
            return []
        return [
            f"requests left late: streams stood idle {check.idle_share:.1%} of their time, so "
            f"fewer than {result.concurrency} were in flight"
        ]
    send_ms = check.send_lag_p99_ms
    if send_ms is None or ttft_p50_ms is None:
        return []
    bound_ms = max(MIN_LAG_MS, MAX_SEND_LAG_SHARE_OF_TTFT * ttft_p50_ms)
    if send_ms <= bound_ms:
        return []
    return [
        f"requests left late: {send_ms:.1f} ms (p99) after their time, allowed {bound_ms:.1f} ms"
    ]


def _starved(result: LevelResult) -> bool:
    share = result.self_check.run_delay_share or 0.0
    return share > MAX_RUN_DELAY_SHARE and share * result.duration_s > MIN_RUN_DELAY_S


def _client_warnings(result: LevelResult) -> list[str]:
    """Return what the client had to do that a reader of the figures should know."""
    check, out = result.self_check, []
    if check.resent:
        out.append(
            f"{check.resent} requests were sent again because the server had closed the "
            "connection kept for them; their time counts from the first send"
        )
    if check.crowded_parses:
        out.append(
            f"the client had to parse before it could read on {check.crowded_parses} times, for "
            "want of memory"
        )
    if 0 < check.unstamped_share <= MAX_UNSTAMPED_SHARE:
        out.append(
            f"{check.unstamped_share:.2%} of the reads came without the kernel's receive time"
        )
    if result.turned_away and not any("never sent" in reason for reason in result.invalid_reasons):
        out.append(
            f"{result.turned_away} requests were never sent: {result.concurrency} were in flight"
        )
    return out


def _warnings(result: LevelResult, raw: LevelRaw, spec: BenchmarkSpec) -> list[str]:
    """Return what a reader should know of a level whose figures stand."""
    check, server, out = result.self_check, result.server, []
    if raw.warmup_failures:
        first = raw.warmup_failures[0]
        out.append(
            f"{len(raw.warmup_failures)} warm-up requests failed ({first.kind}: "
            f"{first.message[:120]})"
        )
    delay = check.run_delay_share or 0.0
    if delay > WARN_RUN_DELAY_SHARE and not _starved(result):
        out.append(f"the client waited {delay:.1%} of the time for a core")
    if check.coalesced_share > MAX_COALESCED_SHARE:
        out.append(
            f"{check.coalesced_share:.1%} of the content events came in one read with the one "
            "before: ITL percentiles describe reads, TPOT is exact"
        )
    out += _client_warnings(result)
    if result.token_count_source == _LOWER_BOUND:
        out.append("the server sent no usage: tokens are content events, a lower bound")
    mean = result.output_tokens_mean
    counted_tokens = mean if result.token_count_source == _COUNTED else None
    own_lengths = spec.source == "file"  # a row may ask for its own number
    if (
        spec.ignore_eos
        and not own_lengths
        and abs((counted_tokens or spec.max_tokens) - spec.max_tokens) > 0.5
    ):
        out.append(
            f"requests had {mean:.1f} output tokens on average, not {spec.max_tokens}: "
            "ignore_eos is not honoured there"
        )
    if (result.prefix_cache_hit_rate or 0.0) > PREFIX_HITS_WARNING:
        out.append(
            f"{result.prefix_cache_hit_rate:.0%} of the prompt tokens came from the prefix cache"
            + _why_hits(spec)
        )
    if server is not None and server.restarted:
        out.append("the engine restarted while the level ran")
    if server is not None and server.preemptions:
        out.append(
            f"{server.preemptions} preemptions: the KV cache was too small for this concurrency"
        )
    if server is not None and server.generation_tokens is not None and not raw.cut_short:
        counted, ours = server.generation_tokens, result.output_tokens_total
        if not result.errors and abs(counted - ours) > TOKEN_MISMATCH_WARNING * max(ours, 1):
            out.append(
                f"the server counted {counted} output tokens in this window, the client {ours}: "
                "other traffic, or /metrics answers for one of several instances"
            )
    return out


def _why_hits(spec: BenchmarkSpec) -> str:
    """Say what hits of the prefix cache mean: they are wanted of some data and spoil others."""
    if spec.source in {"shared_prefix", "multi_turn"}:
        return ": prefill is cheaper than of prompts with nothing in common, as these data want it"
    if spec.salted:
        return " although every prompt is salted: prefill looks cheaper than it is"
    return ": prompts repeat or begin alike, and prefill looks cheaper than it is without that"

"""Closed and open loops: when requests leave, and what becomes of those that cannot."""

from __future__ import annotations

import itertools
import statistics

import pytest

from backends.serving.engine import epoll_engine
from backends.serving.engine.schedule import Arrivals, send_times_ns
from backends.serving.levels import level_result
from backends.serving.loadgen import LevelSpec
from backends.serving.spec import BenchmarkSpec
from backends.serving.stats import distribution
from tests.serving.engine.runs import CHAT, bodies, errors, kinds, lag_of, run_level
from tests.serving.mock_servers import MockSse

MS = 1_000_000


async def test_an_open_loop_sends_at_its_times_whatever_the_answers_do(mock: MockSse) -> None:
    mock.configure(ttft_us=100_000)
    times_ns = send_times_ns(Arrivals(100.0, "poisson", seed=7), 60)
    spec = LevelSpec(64, CHAT, bodies(60), warmup_bodies=bodies(64, 2), send_at_ns=times_ns)
    raw = await run_level(mock, spec)
    assert kinds(raw) == ["ok"] * 60
    begin_ns = min(r.from_ns for r in raw.records)
    assert [r.from_ns - begin_ns for r in sorted(raw.records, key=lambda r: r.index)] == times_ns
    assert statistics.median(map(lag_of, raw.records)) < 1 * MS
    truth = mock.truth()
    arrived = sorted(truth[r.request_id].arrived_ns for r in raw.records)
    offsets_ms = [(a - arrived[0] - t) / MS for a, t in zip(arrived, times_ns, strict=True)]
    assert abs(statistics.median(offsets_ms)) < 3
    assert errors(raw, truth).ttft_median_ms < 0.5


async def test_latency_counts_from_the_intended_send(mock: MockSse) -> None:
    """Connections are closed by the server all the time, so that sends come late."""
    spec = LevelSpec(4, CHAT, bodies(20), send_at_ns=[i * 10 * MS for i in range(20)])
    raw = await run_level(mock, spec)
    for record in raw.records:
        assert record.intended_ns is not None
        assert record.from_ns == record.intended_ns
        assert record.sent_ns - record.intended_ns == record.send_lag_ns


async def test_requests_beyond_the_cap_are_turned_away_and_counted(mock: MockSse) -> None:
    mock.configure(ttft_us=200_000)
    spec = LevelSpec(4, CHAT, bodies(30), send_at_ns=[i * 10 * MS for i in range(30)])
    raw = await run_level(mock, spec)
    assert raw.turned_away > 0
    assert len(raw.records) + raw.turned_away == 30
    for record in raw.records:
        in_flight = sum(r.sent_ns <= record.sent_ns < r.end_ns for r in raw.records)
        assert in_flight <= 4


async def test_an_open_loop_is_shared_among_workers(mock: MockSse) -> None:
    spec = LevelSpec(40, CHAT, bodies(40), send_at_ns=[i * 5 * MS for i in range(40)])
    raw = await run_level(mock, spec, workers=2)
    assert kinds(raw) == ["ok"] * 40
    begin_ns = min(r.from_ns for r in raw.records)
    by_index = sorted(raw.records, key=lambda r: r.index)
    assert [r.from_ns - begin_ns for r in by_index] == [i * 5 * MS for i in range(40)]


async def test_a_connection_gone_stale_between_requests_costs_none_of_them(mock: MockSse) -> None:
    """The server closes what has been idle for 20 ms, as uvicorn does after 5 s."""
    mock.configure(idle_us=20_000)
    spec = LevelSpec(
        4,
        CHAT,
        bodies(12, 4),
        warmup_bodies=bodies(4, 2),
        send_at_ns=[i * 21 * MS for i in range(12)],
    )
    raw = await run_level(mock, spec)
    assert kinds(raw) == ["ok"] * 12
    assert raw.warmup_failures == []


async def test_a_level_too_long_to_keep_every_time_has_the_same_figures_from_a_histogram(
    mock: MockSse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoll_engine, "MOST_EVENTS_KEPT", 300)
    mock.configure(jitter=50)
    raw = await run_level(mock, LevelSpec(8, CHAT, bodies(80)))
    folded = [record for record in raw.records if record.folded]
    assert len(folded) > 20
    assert {record.events for record in raw.records} == {16}
    result = level_result(raw, BenchmarkSpec(max_tokens=16), 8, started_at="now")
    truth = mock.truth()
    gaps_ms = [
        (b - a) / MS for sent in truth.values() for a, b in itertools.pairwise(sent.content_ns)
    ]
    true = distribution(gaps_ms)
    assert result.itl_ms.mean == pytest.approx(true.mean, rel=0.01)
    assert result.itl_ms.p50 == pytest.approx(true.p50, rel=0.05)
    assert result.itl_ms.p90 == pytest.approx(true.p90, rel=0.05)
    assert result.tpot_ms.p50 == pytest.approx(5, rel=0.2)
    assert result.output_tokens_total == 80 * 16

"""The steady part of a level, and the spread of levels measured more than once."""

from __future__ import annotations

import pytest

from backends.serving.loadgen import LevelRaw
from backends.serving.repeats import key_of, repeated, representatives, spread
from backends.serving.steady import steady_part, steady_window
from tests.serving.made_runs import MS, rated, request


def test_ramp_up_and_drain_are_left_out() -> None:
    # four streams start 100 ms apart; each request takes 201 ms, the last stream ends late
    records = [
        request(i, start_ms=100 * i + 201 * turn, ttft_ms=100, itl_ms=10, events=11)
        for i in range(4)
        for turn in range(4)
    ]
    window = steady_window(records, 4)
    assert window is not None
    assert window.from_ns == 300 * MS, "when the fourth stream has begun"
    assert window.to_ns == (4 * 201) * MS, "when the first stream has nothing more to send"
    raw = LevelRaw(records=records, started_ns=0, ended_ns=max(r.end_ns for r in records))
    part = steady_part(raw, 4, usd_per_hour=3.6)
    assert part is not None
    assert part.begins_at_s == pytest.approx(0.3)
    assert part.output_tokens_per_s == pytest.approx(4 * 11 / 0.201, rel=0.06)
    whole = 16 * 11 / (raw.ended_ns / 1e9)
    assert part.output_tokens_per_s > 1.2 * whole, "the whole level is dragged down by its ends"
    usd = part.usd_per_million_output_tokens
    assert usd == pytest.approx(1e6 / part.output_tokens_per_s / 1000)


def test_a_stream_between_two_requests_does_not_end_the_steady_part() -> None:
    records = [request(i, start_ms=250 * i, ttft_ms=100, itl_ms=10, events=11) for i in range(4)]
    window = steady_window(records, 1)
    assert window is not None
    assert (window.from_ns, window.to_ns) == (0, records[-1].end_ns)


def test_a_level_that_never_had_its_streams_in_flight_has_no_steady_part() -> None:
    assert steady_window([request(0), request(1, start_ms=500)], 4) is None
    assert steady_window([], 1) is None


def test_several_tokens_an_event_count_as_tokens() -> None:
    record = request(0, ttft_ms=100, itl_ms=10, events=11, tokens=33)
    raw = LevelRaw(records=[record], started_ns=0, ended_ns=record.end_ns)
    part = steady_part(raw, 1)
    assert part is not None
    assert part.output_tokens_per_s == pytest.approx(33 / 0.201)


def test_an_open_loop_has_no_steady_part() -> None:
    record = request(0)
    record.intended_ns = 0
    assert steady_part(LevelRaw(records=[record], ended_ns=record.end_ns), 1) is None


def test_repetitions_are_summed_up_as_a_spread_of_the_valid_ones() -> None:
    levels = [rated(4, rate) for rate in (100.0, 110.0, 90.0, 500.0)]
    levels[3].valid = False
    group = repeated([rated(1, 50.0), *levels])
    assert [(one.concurrency, one.repetitions, one.valid) for one in group] == [(4, 4, 3)]
    rate = group[0].output_tokens_per_s
    assert rate is not None
    assert (rate.mean, rate.min, rate.max) == pytest.approx((100, 90, 110))
    assert rate.stdev == pytest.approx(10)


def test_the_median_repetition_stands_for_its_load() -> None:
    levels = [rated(4, rate) for rate in (100.0, 110.0, 90.0)]
    shown = representatives([*levels, rated(1, 50.0)])
    assert [one.concurrency for one in shown] == [1, 4]
    assert [one.output_tokens_per_s for one in shown] == pytest.approx([50, 100])
    assert key_of(levels[0]) == (False, 4.0, 0)


def test_a_spread_of_one_has_no_deviation_and_of_none_is_nothing() -> None:
    assert spread([]) is None
    one = spread([2.0])
    assert one is not None
    assert (one.mean, one.stdev) == (2.0, None)

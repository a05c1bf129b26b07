"""The small parts of the engine, each by itself."""

from __future__ import annotations

import random
import socket
import statistics
import time

import pytest

from backends.serving.engine.clock import (
    CONTROL_BYTES,
    StampKeeper,
    ask_for_stamps,
    kernel_minus_monotonic_ns,
    now_ns,
    own_stamp,
    stamp_ns,
    stamps_ns,
)
from backends.serving.engine.histogram import Histogram
from backends.serving.engine.messages import Ready, Stop, Unpacker, packed
from backends.serving.engine.pace import LONGEST_NAP_NS, Pace
from backends.serving.stats import distribution, percentile

MS = 1_000_000


def test_the_kernels_stamp_is_the_time_of_arrival_and_not_of_reading() -> None:
    keeper = StampKeeper()
    if not keeper.works:
        pytest.skip("this kernel does not stamp what it receives")
    offset_ns = kernel_minus_monotonic_ns()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        with ours, theirs:
            assert ask_for_stamps(ours)
            before_ns = now_ns()
            theirs.send(b"x")
            after_ns = now_ns()
            while now_ns() < after_ns + 20 * MS:
                pass
            control = ours.recvmsg(10, CONTROL_BYTES)[1]
    keeper.close()
    assert before_ns - 100_000 < stamp_ns(control[0][2], offset_ns) < after_ns + 5 * MS


def test_stamps_one_by_one_and_many_at_once_are_the_same() -> None:
    offset_ns = kernel_minus_monotonic_ns()
    stamps = [own_stamp(offset_ns) for _ in range(100)]
    times = [stamp_ns(stamp, offset_ns) for stamp in stamps]
    assert times == stamps_ns(stamps, offset_ns)
    assert abs(times[-1] - now_ns()) < 50 * MS


def test_the_offset_between_the_clocks_stays_the_same() -> None:
    readings = [kernel_minus_monotonic_ns() for _ in range(50)]
    assert statistics.median(abs(r - readings[0]) for r in readings) < 20_000
    assert abs(readings[0] - (time.time_ns() - time.perf_counter_ns())) < 5 * MS


def test_a_histogram_has_the_percentiles_of_its_samples_to_a_tenth_of_a_percent() -> None:
    dice = random.Random(1)
    samples = [int(dice.lognormvariate(16, 1.5)) for _ in range(50_000)]
    first, second = Histogram(), Histogram()
    first.add(samples[:20_000])
    second.add(samples[20_000:])
    first.merge(second)
    exact = distribution([sample / 1e6 for sample in samples])
    assert len(first) == 50_000
    figures = first.distribution_ms()
    assert figures.mean == pytest.approx(exact.mean)
    for name in ("p50", "p90", "p95", "p99"):
        assert getattr(figures, name) == pytest.approx(getattr(exact, name), rel=1e-3)
    assert first.percentile_ns(10) == pytest.approx(percentile(sorted(samples), 10), rel=1e-3)


def test_a_histogram_of_small_and_of_no_samples_is_exact() -> None:
    histogram = Histogram()
    assert histogram.distribution_ms().p50 is None
    histogram.add([0, 0, 1, 2000])
    assert histogram.percentile_ns(0) == 0
    assert histogram.percentile_ns(100) == 2000


def test_messages_come_whole_however_they_are_cut() -> None:
    sent = packed(Ready()) + packed(Stop()) + packed(Ready())
    for size in (1, 3, 1000):
        unpacker = Unpacker()
        parts = [sent[at : at + size] for at in range(0, len(sent), size)]
        assert [m for part in parts for m in unpacker.feed(part)] == [Ready(), Stop(), Ready()]


def stream(itl_ms: float, tokens: int) -> list[int]:
    return [int((100 + i * itl_ms) * MS) for i in range(tokens)]


def test_naps_are_short_against_the_gaps_and_only_where_several_reads_share_one() -> None:
    pace = Pace(stamped=True)
    pace.settle(100_000)
    assert pace.nap_ns == 0, "nothing is known yet"
    pace.saw(stream(5.0, 100), sent_ns=0)
    pace.settle(100_000)
    assert pace.nap_ns == 1 * MS
    pace.settle(500)
    assert pace.nap_ns == 0, "half a read a nap is no saving"


def test_naps_follow_a_stream_that_becomes_faster_at_once() -> None:
    pace = Pace(stamped=True)
    pace.saw(stream(100.0, 100), sent_ns=0)
    pace.settle(100_000)
    assert pace.nap_ns == LONGEST_NAP_NS
    pace.saw(stream(0.5, 100), sent_ns=0)
    pace.settle(100_000)
    assert pace.nap_ns == 0


def test_short_answers_are_not_slept_over() -> None:
    pace = Pace(stamped=True)
    pace.saw([5 * MS], sent_ns=0)
    pace.settle(100_000)
    assert pace.nap_ns == 0


def test_there_are_no_naps_without_stamps() -> None:
    pace = Pace(stamped=False)
    pace.saw(stream(100.0, 100), sent_ns=0)
    pace.settle(100_000)
    assert pace.nap_ns == 0

"""The engine's times against those of a server that knows when it sent what.

How exact it is on a quiet machine is measured by `benchmarks/load_engine.py`; here medians are held
to bounds that a busy one keeps too.
"""

from __future__ import annotations

import pytest

from backends.serving.engine.clock import KERNEL
from backends.serving.loadgen import LevelSpec
from tests.serving.engine.runs import CHAT, bodies, errors, kinds, run_level
from tests.serving.mock_servers import MockSse

REASONING, TOOL_CALLS, COMMENTS, CRLF, UNICODE = 1, 2, 4, 8, 16


async def test_times_are_the_kernels_and_right(either_mock: MockSse) -> None:
    spec = LevelSpec(8, CHAT, bodies(24), warmup_bodies=bodies(8))
    raw = await run_level(either_mock, spec)
    assert kinds(raw) == ["ok"] * 24
    off = errors(raw, either_mock.truth())
    assert raw.timestamp_source == KERNEL
    assert raw.unstamped_reads == 0
    assert off.ttft_median_ms < 0.3
    assert off.itl_median_ms < 0.1
    assert min(off.ttft_ms) > -0.1, "nothing can be seen before it was sent"


@pytest.mark.parametrize(
    ("style", "split"),
    [
        (REASONING, 0),
        (TOOL_CALLS, 0),
        (COMMENTS, 0),
        (CRLF, 0),
        (UNICODE, 0),
        (UNICODE, 168),
        (REASONING | COMMENTS | CRLF | UNICODE, 0),
        (REASONING | COMMENTS | CRLF | UNICODE, 97),
    ],
)
async def test_every_style_of_stream_has_the_right_times(
    either_mock: MockSse, style: int, split: int
) -> None:
    either_mock.configure(style=style, split=split)
    raw = await run_level(either_mock, LevelSpec(2, CHAT, bodies(4)))
    assert kinds(raw) == ["ok"] * 4
    off = errors(raw, either_mock.truth())
    # a chunk cut in two is there when its second part is, 0.2 ms later
    assert off.ttft_median_ms < 1.0
    assert off.itl_median_ms < 0.5
    for record in raw.records:
        assert record.completion_tokens == 16
        first_answer = record.content_ns[8] if style & REASONING else record.content_ns[0]
        assert record.first_answer_ns == first_answer


async def test_streams_that_tick_together_as_an_engines_do_are_kept_apart(
    either_mock: MockSse,
) -> None:
    either_mock.configure(step=1, itl_us=10_000)
    raw = await run_level(either_mock, LevelSpec(64, CHAT, bodies(128), warmup_bodies=bodies(64)))
    assert kinds(raw) == ["ok"] * 128
    assert errors(raw, either_mock.truth()).itl_median_ms < 0.2


async def test_the_level_is_shared_among_workers_and_put_together(either_mock: MockSse) -> None:
    spec = LevelSpec(5, CHAT, bodies(17), warmup_bodies=bodies(5))
    raw = await run_level(either_mock, spec, workers=3)
    assert raw.workers == 3
    assert sorted(record.index for record in raw.records) == list(range(17))
    off = errors(raw, either_mock.truth())
    assert off.ttft_median_ms < 0.5
    sent = sorted(record.sent_ns for record in raw.records)
    assert sent[4] - sent[0] < 100_000_000, "one instant, as far as a busy machine has cores"


async def test_a_long_answer_is_read_in_parts_and_has_every_event(mock: MockSse) -> None:
    mock.configure(itl_us=500, ttft_us=5_000)
    raw = await run_level(mock, LevelSpec(2, CHAT, bodies(2, 3000)))
    assert kinds(raw) == ["ok"] * 2
    assert errors(raw, mock.truth()).itl_median_ms < 0.3


async def test_a_prompt_larger_than_a_socket_takes_at_once_is_sent_whole(
    either_mock: MockSse,
) -> None:
    spec = LevelSpec(2, CHAT, bodies(4, 4, text="word " * 800_000))
    raw = await run_level(either_mock, spec)
    assert kinds(raw) == ["ok"] * 4
    assert {record.prompt_tokens for record in raw.records} == {len(spec.bodies[0]) // 5}


async def test_an_answer_that_ends_in_a_way_of_its_own_ends_at_its_last_byte(mock: MockSse) -> None:
    """Where usage is not sent and chunks are cut, the end is not in one read."""
    mock.configure(usage=0, split=3)
    raw = await run_level(mock, LevelSpec(2, CHAT, bodies(4)))
    assert kinds(raw) == ["ok"] * 4
    assert {record.completion_tokens for record in raw.records} == {None}

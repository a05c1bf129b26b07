"""The reader of answers: however the bytes are cut, each event has the time of its last byte."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence

import pytest

from backends.serving.engine.answer import AnswerReader, learn
from backends.serving.loadgen import RequestRecord
from backends.serving.wire import StreamTally
from tests.serving.mock_servers import RECORDED, STREAM_HEAD, content

END = b"0\r\n\r\n"
STREAMS = {
    "chat": "gemma4-0.32.0/chat_stream.body",
    "without usage": "gemma4-0.32.0/chat_stream_nousage.body",
    "usage in every chunk": "gemma4-0.32.0/chat_stream_continuous.body",
    "text completion": "gemma4-0.32.0/completions_stream.body",
    "tool call": "auth-tools/chat_tool_auto_stream.body",
}


def recorded(name: str) -> list[bytes]:
    """Return the events of a recorded stream, as uvicorn sends each in a chunk of its own."""
    body = (RECORDED / STREAMS[name]).read_bytes()
    return [event + b"\n\n" for event in body.split(b"\n\n") if event]


def framed(events: Sequence[bytes]) -> list[bytes]:
    return [b"%x\r\n%s\r\n" % (len(event), event) for event in events]


def made(*texts: str, crlf: bool = False, comments: bool = False) -> list[bytes]:
    """Return events in a style of our own: unicode as it is, maybe CRLF, maybe comments."""
    events = [f"data: {content(text)}\n\n" for text in texts]
    events += [f"data: {content('.', finish='stop')}\n\n", "data: [DONE]\n\n"]
    out = [(": ping\n\n" if comments else "") + event for event in events]
    return [(event.replace("\n", "\r\n") if crlf else event).encode() for event in out]


def reasoning() -> list[bytes]:
    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps({'id': 'c', 'choices': [choice]})}\n\n".encode()

    thoughts = [chunk({"reasoning": f"hm {i}"}) for i in range(5)]
    answers = [chunk({"content": f" so {i}"}) for i in range(5)]
    last = chunk({"content": ""}, "stop")
    return [
        chunk({"role": "assistant", "content": ""}),
        *thoughts,
        *answers,
        last,
        b"data: [DONE]\n\n",
    ]


CASES = {
    **{name: recorded(name) for name in STREAMS},
    "unicode": made("Grö", "ße", "日本語", "😀", 'say \\"hi\\"', "\\n"),
    "crlf": made("a", "b", "c", crlf=True),
    "comments": made("a", "b", "c", comments=True),
    "reasoning": reasoning(),
}


def read(reads: Sequence[bytes]) -> tuple[RequestRecord, AnswerReader]:
    """Read an answer whose n-th read came at n+1."""
    record = RequestRecord(0, "r", sent_ns=0)
    reader = AnswerReader(record)
    reader.feed(reads, range(1, len(reads) + 1))
    reader.finish()
    return record, reader


def truth(events: Sequence[bytes], cuts: Sequence[int]) -> tuple[list[int], StreamTally]:
    """Return the times by the plainest of means: an event is there when its chunk is."""
    tally, at = StreamTally(), len(STREAM_HEAD)
    for event, chunk in zip(events, framed(events), strict=True):
        at += len(chunk)
        time = sum(cut < at for cut in cuts) + 1
        for line in event.splitlines():
            if line.startswith(b"data:"):
                tally.take(line[5:].strip(), time)
    return list(tally.content_ns), tally


def pieces(whole: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *cuts, len(whole)]
    return [whole[a:b] for a, b in itertools.pairwise(edges)]


def check(events: Sequence[bytes], cuts: Sequence[int]) -> None:
    whole = STREAM_HEAD + b"".join(framed(events)) + END
    record, reader = read(pieces(whole, cuts))
    times, tally = truth(events, cuts)
    assert list(record.content_ns) == times, cuts
    assert record.failure is None
    assert reader.is_complete
    assert reader.keeps_alive
    assert (record.first_answer_ns, record.finish_reason, record.completion_tokens) == (
        tally.first_answer_ns,
        tally.finish_reason,
        tally.completion_tokens,
    )


@pytest.mark.parametrize("name", CASES)
def test_an_answer_cut_in_two_at_any_byte_has_the_times_of_the_last_bytes(name: str) -> None:
    events = CASES[name]
    whole = len(STREAM_HEAD) + sum(map(len, framed(events))) + len(END)
    for cut in range(1, whole):
        check(events, [cut])


@pytest.mark.parametrize("name", CASES)
def test_an_answer_cut_into_reads_of_whole_chunks_and_in_one_place_more_is_read_right(
    name: str,
) -> None:
    """What a network does to a server that sends chunk by chunk: it splits one, or joins two."""
    events, at, edges = CASES[name], len(STREAM_HEAD), [len(STREAM_HEAD)]
    for chunk in framed(events):
        at += len(chunk)
        edges.append(at)
    check(events, edges)
    for cut in range(1, at + len(END), 3):
        check(events, sorted({*edges, cut}))
    for joined in edges:
        check(events, [edge for edge in edges if edge != joined])


def random_cuts(length: int, count: int, seed: int) -> Iterator[list[int]]:
    dice = random.Random(seed)
    for _ in range(count):
        yield sorted(dice.sample(range(1, length), dice.randrange(1, min(200, length - 1))))


@pytest.mark.parametrize("name", CASES)
def test_an_answer_cut_into_anything_at_all_is_read_right(name: str) -> None:
    events = CASES[name]
    whole = len(STREAM_HEAD) + sum(map(len, framed(events))) + len(END)
    for cuts in random_cuts(whole, 60, seed=len(name)):
        check(events, cuts)
    check(events, range(1, whole))  # a read for every byte


@pytest.mark.parametrize(
    ("name", "most"),
    [("chat", 6), ("text completion", 4), ("unicode", 3), ("reasoning", 6)],
)
def test_nearly_every_event_takes_the_shortcut(name: str, most: int) -> None:
    """Role, the first of each kind, finish, usage and [DONE] are read in full; the rest is not."""
    events = CASES[name]
    _, reader = read([STREAM_HEAD, *framed(events), END])
    assert reader.full_events <= most < len(events)


def test_one_byte_of_difference_leaves_the_shortcut() -> None:
    plain = [f"data: {content(text)}\n\n".encode() for text in "abcd"]
    cases = {
        "an empty text is no token": (f"data: {content('')}\n\n".encode(), 4),
        "a text that closes early": (plain[0].replace(b'"a"', b'"","content":"x"'), 5),
        "an error": (b'data: {"error":{"message":"out of memory"}}\n\n', 4),
        "a finish without text": (f"data: {content('', finish='length')}\n\n".encode(), 4),
    }
    for name, (event, events) in cases.items():
        record, _ = read([STREAM_HEAD, *framed([*plain, event])])
        assert len(record.content_ns) == events, name


def test_what_follows_an_error_in_the_stream_is_no_token() -> None:
    plain = [f"data: {content(text)}\n\n".encode() for text in "abcd"]
    error = b'data: {"error":{"message":"engine died","code":500}}\n\n'
    record, _ = read([STREAM_HEAD, *framed([*plain, error, *plain, b"data: [DONE]\n\n"]), END])
    assert len(record.content_ns) == 4
    assert record.failure is not None
    assert record.failure.kind == "in_stream_error"


@pytest.mark.parametrize(
    "event",
    [
        content("a", finish="stop").encode(),
        b'{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}',
        b'{"choices":[{"delta":{"content":"a","reasoning":"b"}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"a"}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"x":1}],"content":"a"}}]}',
        b'{"choices":[{"delta":{"content":""}}]}',
        b'{"error":{"content":"a"},"choices":[{"delta":{"content":"a"}}]}',
    ],
)
def test_a_pattern_that_would_hide_something_is_not_learned(event: bytes) -> None:
    assert learn(event) is None


def test_where_every_event_differs_learning_is_given_up_and_reading_is_not() -> None:
    events = [
        f"data: {content('x').replace('c1', f'id-{number}')}\n\n".encode() for number in range(40)
    ]
    record, reader = read([STREAM_HEAD, *framed(events)])
    assert len(record.content_ns) == 40
    assert reader.full_events == 40


def test_events_that_came_together_are_counted() -> None:
    events = made("a", "b", "c")
    record, _ = read([STREAM_HEAD, b"".join(framed(events[:3])), *framed(events[3:]), END])
    assert record.coalesced == 2
    assert list(record.content_ns) == [2, 2, 2, 3]


def test_times_are_kept_when_an_answer_is_handed_in_piece_by_piece() -> None:
    events = recorded("chat")
    reads = [STREAM_HEAD, *framed(events), END]
    record = RequestRecord(0, "r", sent_ns=0)
    reader = AnswerReader(record)
    for at, data in enumerate(reads):
        reader.feed([data], [at + 1])
    reader.finish()
    assert record.content_ns == read(reads)[0].content_ns
    assert record.failure is None

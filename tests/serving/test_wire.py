"""The bytes of a stream mean the same however they are cut."""

from __future__ import annotations

import pytest
from pydantic_core import from_json

from backends.serving.wire import (
    HttpResponseReader,
    SseDecoder,
    StreamTally,
    WireError,
    body_words,
)
from tests.serving.mock_servers import RECORDED, ROLE, chunked, content, usage

STREAMS = [
    "gemma4-0.32.0/chat_stream.body",
    "gemma4-0.32.0/chat_stream_continuous.body",
    "gemma4-0.32.0/chat_stream_nousage.body",
    "gemma4-0.32.0/completions_stream.body",
    "auth-tools/chat_tool_auto_stream.body",
]


def events_of(parts: list[bytes]) -> list[bytes]:
    decoder = SseDecoder()
    return [event for part in parts for event in decoder.feed(part)]


def tally_of(events: list[bytes]) -> StreamTally:
    tally = StreamTally(keep_text=True)
    for at_ns, event in enumerate(events):
        tally.take(event, at_ns)
    return tally


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_gives_the_same_events_cut_at_any_byte(name: str) -> None:
    body = (RECORDED / name).read_bytes()
    expected = events_of([body])
    assert expected[-1] == b"[DONE]"
    assert len(expected) == body.count(b"data: ")
    assert events_of([bytes([byte]) for byte in body]) == expected
    for cut in range(0, len(body), 7):
        assert events_of([body[:cut], body[cut:]]) == expected


def test_a_recorded_chat_is_counted_as_the_server_counted_it() -> None:
    tally = tally_of(events_of([(RECORDED / STREAMS[0]).read_bytes()]))
    assert tally.failure() is None
    assert (tally.prompt_tokens, tally.completion_tokens) == (16, 12)
    assert len(tally.content_ns) == 12
    assert tally.content_ns[0] == 1, "the chunk that carries only the role is no content event"
    assert tally.finish_reason == "length"
    assert tally.model == "tiny-gemma4"


def test_a_recorded_text_completion_is_read_too() -> None:
    tally = tally_of(events_of([(RECORDED / STREAMS[3]).read_bytes()]))
    assert tally.failure() is None
    assert (tally.prompt_tokens, tally.completion_tokens, len(tally.content_ns)) == (3, 8, 8)


def test_crlf_comments_other_fields_and_several_data_lines_are_read_as_the_standard_says() -> None:
    body = (
        b': ping\r\n\r\nevent: x\r\nid: 7\r\ndata: {"a":\r\ndata:1}\r\n\r\nretry: 3\n\ndata: b\n\n'
    )
    assert events_of([body]) == [b'{"a":\n1}', b"b"]
    assert events_of([bytes([byte]) for byte in body]) == [b'{"a":\n1}', b"b"]


def test_a_character_cut_in_two_stays_whole() -> None:
    body = f"data: {content('Größe 日本 🚀', finish='stop')}\n\n".encode()
    for cut in range(len(body)):
        tally = tally_of(events_of([body[:cut], body[cut:]]))
        assert "".join(tally.text) == "Größe 日本 🚀"


@pytest.mark.parametrize(
    "bad",
    [
        b'{"choices": [{"delta": {"content": "\\ud83d"}}]}',
        b"[" * 100_000,
        b'{"choices": [\xff]}',
        b'{"choices": [}',
    ],
    ids=["half a surrogate pair", "too deep", "no UTF-8", "no JSON"],
)
def test_what_is_no_text_or_no_json_is_a_failure_of_that_request(bad: bytes) -> None:
    failure = tally_of([bad]).failure()
    assert failure is not None
    assert failure.kind == "malformed_event"


def test_a_whole_surrogate_pair_is_the_character_it_stands_for() -> None:
    tally = tally_of([b'{"choices": [{"delta": {"content": "\\ud83d\\ude80"}}]}'])
    assert tally.text == ["\N{ROCKET}"]


def test_an_event_without_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(WireError, match="larger than"):
        events_of([b"x" * 1_000_000] * 20)


def test_reasoning_counts_as_content_but_not_as_answer() -> None:
    chunks = [
        ROLE.encode(),
        b'{"choices":[{"delta":{"reasoning":"hm"}}]}',
        b'{"choices":[{"delta":{"reasoning_content":"so"}}]}',
        content("Yes", finish="stop").encode(),
    ]
    tally = tally_of(chunks)
    assert list(tally.content_ns) == [1, 2, 3]
    assert tally.first_answer_ns == 3
    assert ("".join(tally.reasoning), "".join(tally.text)) == ("hmso", "Yes")


def test_tool_call_deltas_count_as_content_and_are_put_together() -> None:
    chunks = [
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"t1","function":'
        b'{"name":"f","arguments":""}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\":"}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]},'
        b'"finish_reason":"tool_calls"}]}',
    ]
    tally = tally_of(chunks)
    assert len(tally.content_ns) == 3
    assert tally.tool_calls == {0: {"id": "t1", "name": "f", "arguments": '{"a":1}'}}


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([content("a")], "missing_done"),
        ([content("a"), "[DONE]"], "missing_finish_reason"),
        ([ROLE, '{"choices":[{"delta":{},"finish_reason":"stop"}]}', "[DONE]"], "empty"),
        ([content("a", finish="abort"), "[DONE]"], "aborted"),
        ([content("a"), '{"error":{"message":"boom","code":500}}', "[DONE]"], "in_stream_error"),
        ([content("a"), "not json", "[DONE]"], "malformed_event"),
        ([content("a"), '{"choices":[7]}', "[DONE]"], "malformed_event"),
        (["[1]", "[DONE]"], "malformed_event"),
    ],
)
def test_a_stream_that_ends_badly_has_failed(events: list[str], kind: str) -> None:
    failure = tally_of([event.encode() for event in events]).failure()
    assert failure is not None
    assert failure.kind == kind


def test_content_after_an_error_in_the_stream_is_not_counted() -> None:
    tally = tally_of([b'{"error":{"message":"boom","code":500}}', content("a").encode()])
    assert len(tally.content_ns) == 0
    assert tally.error is not None
    assert (tally.error.message, tally.error.status) == ("boom", 500)


def read_response(parts: list[bytes]) -> tuple[HttpResponseReader, bytes]:
    reader = HttpResponseReader()
    return reader, b"".join(reader.feed(part) for part in parts)


def test_a_chunked_response_is_the_same_cut_at_any_byte() -> None:
    response = b"".join(chunked([b"hello ", b"big\r\n world"]))
    for cut in range(len(response)):
        reader, body = read_response([response[:cut], response[cut:]])
        assert (body, reader.complete, reader.keep_alive) == (b"hello big\r\n world", True, True)
    reader, body = read_response([bytes([byte]) for byte in response])
    assert (body, reader.complete) == (b"hello big\r\n world", True)


def test_chunk_extensions_trailers_and_informational_heads_are_understood() -> None:
    response = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b"3;ext=1\r\nabc\r\n0\r\nx-trailer: 1\r\n\r\n"
    )
    for cut in range(len(response)):
        reader, body = read_response([response[:cut], response[cut:]])
        assert (reader.status, body, reader.complete) == (200, b"abc", True)


def test_a_body_with_a_length_and_one_that_ends_with_the_connection_are_read() -> None:
    reader, body = read_response([b"HTTP/1.1 400 X\r\nContent-Length: 4\r\n\r\nab", b"cd"])
    assert (reader.status, body, reader.complete) == (400, b"abcd", True)
    reader, body = read_response([b"HTTP/1.0 200 OK\r\n\r\nab", b"cd"])
    assert not reader.complete
    reader.eof()
    assert (body, reader.complete, reader.keep_alive) == (b"abcd", True, False)


def test_connection_close_is_noticed() -> None:
    reader, _ = read_response(
        [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"]
    )
    assert reader.complete
    assert not reader.keep_alive


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabXX",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK",
        b"x" * 70_000,
    ],
)
def test_what_is_not_http_is_refused(response: bytes) -> None:
    parts = [response[at : at + 1000] for at in range(0, len(response), 1000)]
    with pytest.raises(WireError):
        read_response([*parts, b"!"])


def test_a_connection_that_closes_too_early_is_an_error() -> None:
    reader, _ = read_response(chunked([b"abc"], end=False))
    with pytest.raises(WireError, match="before the response was complete"):
        reader.eof()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gemma4-0.32.0/err_wrong_model.body", "The model `nope` does not exist"),
        ("gemma4-0.32.0/err_unknown_route.body", "Not Found"),
        ("auth-tools/noauth_v1_models.body", "Unauthorized"),
    ],
)
def test_the_words_of_a_refusal_are_found_in_every_shape_vllm_uses(name: str, words: str) -> None:
    assert words in body_words((RECORDED / name).read_bytes())


def test_the_words_of_a_page_that_is_not_json_are_its_text() -> None:
    assert body_words(b"<html>403 Forbidden</html>") == "<html>403 Forbidden</html>"


def test_usage_that_is_not_a_number_is_not_taken() -> None:
    chunk = from_json(usage(1, 2).encode())
    assert chunk["usage"]["completion_tokens"] == 2
    tally = tally_of([b'{"choices":[],"usage":{"completion_tokens":"many"}}'])
    assert tally.completion_tokens is None

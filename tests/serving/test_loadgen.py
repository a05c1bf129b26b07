"""The load engine against servers whose truth is known, and every way a request can fail."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from backends.core.errors import EndpointUnreachableError, NotSupportedError
from backends.serving.endpoint import Endpoint
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.loadgen import LevelProgress, LevelRaw, LevelSpec
from tests.serving.mock_servers import (
    GOOD,
    ROLE,
    MockSse,
    Reply,
    Request,
    Route,
    chunked,
    compile_mock,
    content,
    run_mock,
    scripted,
    stream,
    unused_port,
    usage,
    whole,
)
from tests.serving.test_endpoint import self_signed

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockSse]:
    program = compile_mock(tmp_path_factory.mktemp("mock"))
    with run_mock(program, ttft_us=30_000, itl_us=5_000) as server:
        yield server


@pytest.fixture
def fresh_mock(mock: MockSse) -> Iterator[MockSse]:
    """The mock with its knobs as they were and nothing in its log."""
    mock.forget()
    yield mock
    mock.configure(ttft_us=30_000, itl_us=5_000, tpc=1, split=0, role=1, step=0, jitter=0, usage=1)


def bodies(count: int, tokens: int = 16, *, stream_: bool = True) -> list[bytes]:
    asked = {
        "model": "mock-model",
        "max_tokens": tokens,
        "stream": stream_,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "Hi"}],
    }
    return [json.dumps(asked).encode()] * count


async def run_level(
    base_url: str,
    spec: LevelSpec,
    *,
    headers: dict[str, str] | None = None,
    progress: list[LevelProgress] | None = None,
    cancel_after: int | None = None,
    ca_file: Path | None = None,
) -> LevelRaw:
    """Run a level; `cancel_after` cancels once that many requests are done."""
    seen: list[LevelProgress] = [] if progress is None else progress

    async def provide() -> dict[str, str]:
        return headers or {}

    endpoint = Endpoint(base_url, headers=provide, ca_file=ca_file)

    def cancel() -> bool:
        if cancel_after is None:
            return False
        return bool(seen) and len(seen[-1].raw.records) >= cancel_after

    return await EpollEngine().run_level(spec, endpoint, seen.append, cancel)


async def one_request(reply: Reply | Route, *, timeout_s: float = 5.0) -> LevelRaw:
    """Run a level of a single request that the server answers like this."""
    async with scripted({CHAT: reply}) as server:
        spec = LevelSpec(1, CHAT, bodies(1), timeout_s=timeout_s)
        return await run_level(server.base_url, spec)


def kinds(raw: LevelRaw) -> list[str]:
    return [record.failure.kind if record.failure else "ok" for record in raw.records]


# ---- the truth ----------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_every_time_is_the_one_at_which_the_server_sent(
    fresh_mock: MockSse, concurrency: int
) -> None:
    raw = await run_level(fresh_mock.base_url, LevelSpec(concurrency, CHAT, bodies(16)))
    truth = fresh_mock.truth()
    assert kinds(raw) == ["ok"] * 16
    ttft_errors_ms, itl_errors_ms = [], []
    for record in raw.records:
        sent = truth[record.request_id]
        assert len(record.content_ns) == len(sent.content_ns) == 16
        true_ttft_ns = sent.content_ns[0] - sent.arrived_ns
        ttft_errors_ms.append((record.content_ns[0] - record.sent_ns - true_ttft_ns) / 1e6)
        gaps = zip(record.content_ns, record.content_ns[1:], strict=False)
        true_gaps = zip(sent.content_ns, sent.content_ns[1:], strict=False)
        itl_errors_ms += [
            abs((b - a) - (d - c)) / 1e6 for (a, b), (c, d) in zip(gaps, true_gaps, strict=True)
        ]
    assert statistics.median(ttft_errors_ms) < 2.0
    assert min(ttft_errors_ms) > -0.1, "nothing can be seen before it was sent"
    assert statistics.median(itl_errors_ms) < 1.0


async def test_the_role_chunk_is_no_token_wherever_it_comes(fresh_mock: MockSse) -> None:
    fresh_mock.configure(role=2, itl_us=20_000)
    raw = await run_level(fresh_mock.base_url, LevelSpec(1, CHAT, bodies(1, 4)))
    record = raw.records[0]
    assert len(record.content_ns) == 4
    assert record.first_byte_ns < record.content_ns[0] - 15_000_000
    # the role chunk came at 30 ms, the first content one ITL later
    assert (record.content_ns[0] - record.sent_ns) / 1e6 == pytest.approx(50, abs=12)


async def test_chunks_of_several_tokens_are_events_and_usage_counts_tokens(
    fresh_mock: MockSse,
) -> None:
    fresh_mock.configure(tpc=4)
    raw = await run_level(fresh_mock.base_url, LevelSpec(2, CHAT, bodies(4, 16)))
    assert [len(record.content_ns) for record in raw.records] == [4] * 4
    assert [record.completion_tokens for record in raw.records] == [16] * 4


async def test_chunks_split_by_the_network_are_put_together(fresh_mock: MockSse) -> None:
    fresh_mock.configure(split=37)
    raw = await run_level(fresh_mock.base_url, LevelSpec(2, CHAT, bodies(4)))
    assert kinds(raw) == ["ok"] * 4
    assert [len(record.content_ns) for record in raw.records] == [16] * 4


async def test_text_completions_are_measured_too(fresh_mock: MockSse) -> None:
    raw = await run_level(fresh_mock.base_url, LevelSpec(2, "/v1/completions", bodies(4)))
    assert [(len(r.content_ns), r.completion_tokens) for r in raw.records] == [(16, 16)] * 4


async def test_the_warm_up_is_sent_first_at_the_same_concurrency_and_not_counted(
    fresh_mock: MockSse,
) -> None:
    order: list[str] = []

    async def before() -> None:
        order.append(f"before with {len(fresh_mock.truth())} sent")

    async def after() -> None:
        order.append(f"after with {len(fresh_mock.truth())} sent")

    spec = LevelSpec(
        4,
        CHAT,
        bodies(8),
        warmup_bodies=bodies(4, 2),
        before_window=before,
        after_window=after,
    )
    raw = await run_level(fresh_mock.base_url, spec)
    assert order == ["before with 4 sent", "after with 12 sent"]
    assert len(raw.records) == 8
    assert raw.warmup_failures == []
    truth = fresh_mock.truth().values()
    warm = [sent for sent in truth if "-w" in sent.request_id]
    assert [len(sent.content_ns) for sent in warm] == [2] * 4
    spread_ns = max(s.arrived_ns for s in warm) - min(s.arrived_ns for s in warm)
    assert spread_ns < 30_000_000, "all four were in flight at once"


async def test_as_many_requests_are_in_flight_as_asked_for_all_the_time(
    fresh_mock: MockSse,
) -> None:
    raw = await run_level(fresh_mock.base_url, LevelSpec(4, CHAT, bodies(12)))
    for record in raw.records:
        middle = (record.sent_ns + record.end_ns) // 2
        in_flight = sum(r.sent_ns <= middle <= r.end_ns for r in raw.records)
        assert in_flight <= 4
    # three waves of 30 + 15 x 5 ms; a stream that idled would make a fourth
    assert (raw.ended_ns - raw.started_ns) / 1e6 == pytest.approx(3 * 105, abs=70)


async def test_many_streams_are_kept_apart(fresh_mock: MockSse) -> None:
    fresh_mock.configure(jitter=50)
    raw = await run_level(fresh_mock.base_url, LevelSpec(64, CHAT, bodies(128, 8)))
    assert kinds(raw) == ["ok"] * 128
    assert {len(record.content_ns) for record in raw.records} == {8}
    assert len({record.request_id for record in raw.records}) == 128
    assert raw.reconnects == 0


async def test_https_is_measured_with_the_certificate_verified(tmp_path: Path) -> None:
    pem, tls = self_signed(tmp_path)
    async with scripted({CHAT: stream(GOOD)}, tls=tls) as server:
        spec = LevelSpec(2, CHAT, bodies(4))
        raw = await run_level(server.base_url, spec, ca_file=pem)
        assert kinds(raw) == ["ok"] * 4
        with pytest.raises(EndpointUnreachableError) as caught:
            await run_level(server.base_url, spec)
    assert "certificate" in caught.value.words.lower()


# ---- the ways to fail ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "kind"),
    [
        ("http:503", "http_503"),
        ("http:429", "http_429"),
        ("reset:3", "connection_lost"),
        ("close:3", "connection_lost"),
        ("stall:2", "timeout"),
        ("errchunk:2", "in_stream_error"),
    ],
)
async def test_a_server_that_fails_makes_the_request_failed(
    fresh_mock: MockSse, wish: str, kind: str
) -> None:
    spec = LevelSpec(2, CHAT, bodies(3), timeout_s=0.4)
    raw = await run_level(fresh_mock.base_url, spec, headers={"x-mock-fail": wish})
    assert kinds(raw) == [kind] * 3
    failures = [record.failure for record in raw.records]
    if kind == "http_429":
        assert failures[0] is not None
        assert failures[0].retry_after_s == 7
    if kind == "in_stream_error":
        assert failures[0] is not None
        assert (failures[0].message, failures[0].status) == ("mock engine failure", 500)


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (stream([ROLE, content("a", finish="stop")]), "missing_done", "without [DONE]"),
        (stream([content("a"), "[DONE]"]), "missing_finish_reason", "finish_reason"),
        (stream([content("a"), "{nope", "[DONE]"]), "malformed_event", "not JSON"),
        (stream([ROLE, content("", finish="stop"), "[DONE]"]), "empty", "no content"),
        (whole(200, b'{"choices":[]}'), "not_streamed", "answered whole"),
        (Reply([b"SSH-2.0-OpenSSH\r\n\r\n"], "close"), "malformed_answer", "not an HTTP/1.1"),
        (whole(401, b'{"error":"Unauthorized"}'), "http_401", "Unauthorized"),
        (whole(404, b'{"error":{"message":"The model does not exist"}}'), "http_404", "not exist"),
        (Reply([], "close"), "connection_lost", "closed before"),
    ],
)
async def test_what_vllm_would_not_send_is_a_failure_with_words(
    reply: Reply, kind: str, words: str
) -> None:
    raw = await one_request(reply)
    assert kinds(raw) == [kind]
    failure = raw.records[0].failure
    assert failure is not None
    assert words in failure.message


async def test_crlf_comments_and_events_cut_anywhere_are_read_right() -> None:
    lines = [": ping", f"data: {ROLE}", "", f"data: {content('Grö')}", ""]
    lines += [f"data: {content('ße', finish='stop')}", "", f"data: {usage(3, 2)}", ""]
    body = "\r\n".join([*lines, "data: [DONE]", "", ""]).encode()
    pieces = [body[at : at + 11] for at in range(0, len(body), 11)]
    raw = await one_request(Reply(chunked(pieces)))
    assert kinds(raw) == ["ok"]
    record = raw.records[0]
    assert (len(record.content_ns), record.prompt_tokens, record.completion_tokens) == (2, 3, 2)
    assert record.finish_reason == "stop"


async def test_events_that_come_in_one_read_are_counted_as_coalesced() -> None:
    raw = await one_request(Reply([b"".join(stream(GOOD).pieces)]))
    assert kinds(raw) == ["ok"]
    assert raw.records[0].coalesced == 1


async def test_reasoning_makes_the_first_token_and_the_answer_its_own_time() -> None:
    events = [
        ROLE,
        '{"choices":[{"delta":{"reasoning":"hm"}}]}',
        content("Yes", finish="stop"),
        usage(1, 2),
        "[DONE]",
    ]
    record = (await one_request(stream(events))).records[0]
    assert len(record.content_ns) == 2
    assert record.first_answer_ns == record.content_ns[1]


async def test_a_connection_that_the_server_closes_is_replaced() -> None:
    pieces: Sequence[bytes] = stream(GOOD).pieces
    head = pieces[0].replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with scripted({CHAT: Reply([head, *pieces[1:]], "close")}) as server:
        raw = await run_level(server.base_url, LevelSpec(2, CHAT, bodies(6)))
    assert kinds(raw) == ["ok"] * 6
    assert raw.reconnects == 4


async def test_a_failure_does_not_spoil_the_stream_for_the_next_request() -> None:
    calls = iter(range(100))

    def every_other(_: Request) -> Reply:
        if next(calls) % 2 == 0:
            return stream([ROLE, content("a")], then="reset", end=False)
        return stream(GOOD)

    async with scripted({CHAT: every_other}) as server:
        raw = await run_level(server.base_url, LevelSpec(1, CHAT, bodies(6)))
    assert kinds(raw) == ["connection_lost", "ok"] * 3


async def test_a_key_that_the_server_echoes_is_masked() -> None:
    reply = whole(401, b'{"error":{"message":"no such key sk-secret-1"}}')
    async with scripted({CHAT: reply}) as server:
        raw = await run_level(
            server.base_url,
            LevelSpec(1, CHAT, bodies(1)),
            headers={"authorization": "Bearer sk-secret-1"},
        )
    failure = raw.records[0].failure
    assert failure is not None
    assert failure.message == "no such key ***"


async def test_too_many_failures_end_the_level(fresh_mock: MockSse) -> None:
    spec = LevelSpec(2, CHAT, bodies(100), max_error_rate=0.5)
    raw = await run_level(fresh_mock.base_url, spec, headers={"x-mock-fail": "http:503"})
    assert 8 <= len(raw.records) <= 10
    assert "8 of 8 requests had failed" in raw.cut_short


async def test_a_cancelled_level_returns_what_it_has_and_closes_its_connections(
    fresh_mock: MockSse,
) -> None:
    progress: list[LevelProgress] = []
    spec = LevelSpec(4, CHAT, bodies(400))
    raw = await run_level(fresh_mock.base_url, spec, progress=progress, cancel_after=8)
    assert raw.cut_short == "cancelled"
    assert 8 <= len(raw.records) < 60
    assert raw.unfinished == 4
    assert progress[-1].phase == "measuring"
    assert {update.phase for update in progress} == {"starting", "measuring"}


async def test_a_level_nobody_answers_is_an_error() -> None:
    spec = LevelSpec(2, CHAT, bodies(2))
    with pytest.raises(EndpointUnreachableError) as caught:
        await run_level(f"http://127.0.0.1:{unused_port()}", spec)
    assert "no connection" in caught.value.message


@pytest.mark.parametrize(
    ("base_url", "variable", "proxy"),
    [
        ("http://gemma.example", "HTTP_PROXY", "http://proxy.example:3128"),
        ("https://gemma.example", "HTTPS_PROXY", "socks5://proxy.example:1080"),
    ],
)
async def test_a_proxy_that_would_be_measured_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, base_url: str, variable: str, proxy: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    spec = LevelSpec(1, CHAT, bodies(1))
    with pytest.raises(NotSupportedError) as caught:
        await run_level(base_url, spec)
    assert "NO_PROXY" in caught.value.next_action


async def test_a_header_that_would_split_the_request_is_refused(fresh_mock: MockSse) -> None:
    spec = LevelSpec(1, CHAT, bodies(1))
    with pytest.raises(NotSupportedError) as caught:
        await run_level(fresh_mock.base_url, spec, headers={"authorization": "a\r\nx-evil: 1"})
    assert "evil" not in caught.value.message
    assert fresh_mock.truth() == {}

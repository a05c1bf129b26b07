"""What makes an endpoint healthy, and what a report says when it is not."""

from __future__ import annotations

import json

import pytest

from backends.serving.endpoint import Endpoint, EndpointClient
from backends.serving.health import CHAT_MAX_TOKENS, HealthReport, check_health
from tests.serving.mock_servers import (
    GOOD,
    MODELS,
    RECORDED,
    ROLE,
    Reply,
    Request,
    Route,
    content,
    scripted,
    stream,
    unused_port,
    usage,
    whole,
)

TOO_LONG = whole(400, (RECORDED / "gemma4-0.32.0" / "err_max_tokens.body").read_bytes())
NO_PARSER = whole(
    400, (RECORDED / "gemma4-0.32.0" / "err_tool_choice_without_parser.body").read_bytes()
)
ANSWER = stream(GOOD)
TOOL_CALL = stream(
    [
        ROLE,
        '{"model":"m","choices":[{"delta":{"tool_calls":[{"index":0,"id":"t","function":'
        '{"name":"get_weather","arguments":"{\\"city\\":\\"Paris\\"}"}}]},'
        '"finish_reason":"tool_calls"}]}',
        usage(30, 12),
        "[DONE]",
    ]
)


def vllm(
    chat: Reply = ANSWER, *, too_long: Reply = TOO_LONG, tools: Reply = TOOL_CALL
) -> dict[str, Route | Reply]:
    """Routes of a server that answers a plain chat, one past the limit, and one with tools."""

    def answer(request: Request) -> Reply:
        asked = json.loads(request.body)
        if asked["max_tokens"] > 2048:
            return too_long
        return tools if "tools" in asked else chat

    return {
        "/health": whole(200, b""),
        "/version": whole(200, b'{"version":"0.32.0"}'),
        "/v1/models": whole(200, MODELS),
        "/v1/chat/completions": answer,
    }


async def examine(
    routes: dict[str, Route | Reply], *, model: str | None = None, deep: bool = False
) -> HealthReport:
    async with scripted(routes) as server:
        endpoint = Endpoint(server.base_url, model=model, source="the test's server")
        async with EndpointClient(endpoint) as client:
            return await check_health(client, deep=deep, timeout_s=0.8)


def failed(report: HealthReport) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if not check.ok}


async def test_a_server_that_answers_the_right_model_with_content_is_healthy() -> None:
    report = await examine(vllm())
    assert report.healthy
    assert [check.name for check in report.checks] == ["answers", "model", "chat"]
    assert (report.model, report.max_model_len, report.version) == ("m", 2048, "0.32.0")
    assert report.summary == "the test's server is healthy: 3 of 3 checks passed."
    assert report.chat is not None
    assert report.chat.text == "Paris"
    assert all(check.duration_ms >= 0 for check in report.checks)


async def test_a_deep_examination_covers_stream_usage_limit_and_tools() -> None:
    report = await examine(vllm(), deep=True)
    assert report.healthy
    assert failed(report) == {}
    assert [check.name for check in report.checks][3:] == [
        "streaming",
        "usage",
        "context_limit",
        "tool_call",
    ]


async def test_the_chat_leaves_room_for_a_reasoning_parser() -> None:
    seen: list[int] = []

    def answer(request: Request) -> Reply:
        seen.append(json.loads(request.body)["max_tokens"])
        return stream(GOOD)

    await examine({**vllm(), "/v1/chat/completions": answer})
    assert seen == [CHAT_MAX_TOKENS]
    assert CHAT_MAX_TOKENS >= 64


async def test_an_answer_of_reasoning_alone_is_content() -> None:
    events = [
        ROLE,
        '{"model":"m","choices":[{"delta":{"reasoning":"hm"},"finish_reason":"length"}]}',
        usage(9, 64),
        "[DONE]",
    ]
    report = await examine(vllm(stream(events)))
    assert report.healthy
    assert "reasoning only" in report.checks[-1].detail


async def test_nobody_listening_is_a_report_and_no_exception() -> None:
    async with EndpointClient(Endpoint(f"http://127.0.0.1:{unused_port()}")) as client:
        report = await check_health(client)
    assert not report.healthy
    assert list(failed(report)) == ["answers"]
    assert "Nothing listens" in report.summary
    assert report.checks[0].next_action


async def test_an_engine_that_died_behind_its_server_is_not_healthy() -> None:
    report = await examine({**vllm(), "/health": whole(503, b"")})
    assert not report.healthy
    assert "engine process has died" in failed(report)["answers"]


async def test_another_model_than_expected_is_not_healthy_and_names_both() -> None:
    report = await examine(vllm(), model="gemma-4-31b")
    assert not report.healthy
    assert failed(report)["model"] == "/v1/models lists m, not gemma-4-31b"
    assert report.served_models == ["m"]


async def test_an_answer_from_another_model_is_not_healthy() -> None:
    events = [content("Paris", finish="stop").replace('"model":"m"', '"model":"other"')]
    report = await examine(vllm(stream([*events, usage(1, 1), "[DONE]"])))
    assert not report.healthy
    assert failed(report)["chat"] == "asked for m, answered by other"


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (
            stream([ROLE, content(" ", finish="stop"), usage(9, 1), "[DONE]"]),
            "the answer was empty",
        ),
        (stream([ROLE, content("a")]), "missing_done"),
        (whole(500, b'{"error":{"message":"CUDA error"}}'), "CUDA error"),
        (Reply([], "stall"), "did not end within 0.8 s"),
    ],
)
async def test_a_chat_that_brings_nothing_is_not_healthy(chat: Reply, words: str) -> None:
    report = await examine(vllm(chat))
    assert not report.healthy
    assert words in failed(report)["chat"]
    assert words in report.summary


async def test_a_server_without_tool_parser_is_healthy_and_says_what_it_lacks() -> None:
    report = await examine(vllm(tools=NO_PARSER), deep=True)
    assert report.healthy
    assert "--tool-call-parser" in failed(report)["tool_call"]
    assert report.summary.endswith("6 of 7 checks passed; not available: tool_call.")


async def test_text_instead_of_a_tool_call_is_said() -> None:
    report = await examine(vllm(tools=stream(GOOD)), deep=True)
    assert "no tool call came, but text: 'Paris'" in failed(report)["tool_call"]


@pytest.mark.parametrize(
    ("too_long", "words"),
    [
        (stream(GOOD), "was accepted"),
        (whole(400, b'{"error":{"message":"no"}}'), "the limit 2048 is not named"),
        (Reply([], "stall"), "was not refused"),
    ],
)
async def test_a_context_limit_that_does_not_hold_is_not_healthy(
    too_long: Reply, words: str
) -> None:
    report = await examine(vllm(too_long=too_long), deep=True)
    assert not report.healthy
    assert words in failed(report)["context_limit"]


async def test_a_buffering_proxy_and_missing_usage_are_found() -> None:
    body = (RECORDED / "gemma4-0.32.0" / "chat.body").read_bytes()
    body = body.replace(b'"tiny-gemma4"', b'"m"').replace(b'"prompt_tokens":27', b'"x":27')
    report = await examine(vllm(whole(200, body)), deep=True)
    assert not report.healthy
    assert set(failed(report)) == {"streaming", "usage"}


async def test_a_server_that_hides_its_version_is_healthy_all_the_same() -> None:
    routes = vllm()
    del routes["/version"]
    report = await examine(routes)
    assert report.healthy
    assert report.version is None

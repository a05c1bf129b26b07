"""Conversations that hold what the model itself has answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.serving.endpoint import Endpoint
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.engine.turns import Conversations, answer_mark
from backends.serving.levels import level_result
from backends.serving.loadgen import LevelRaw, LevelSpec
from backends.serving.spec import BenchmarkSpec
from backends.serving.sweep import run_benchmark
from tests.serving.engine.runs import CHAT
from tests.serving.mock_servers import (
    MODELS,
    ROLE,
    Reply,
    Request,
    Route,
    content,
    scripted,
    stream,
    usage,
    whole,
)

TURNS = 3


def said(request: Request) -> list[dict[str, str]]:
    messages = json.loads(request.body)["messages"]
    assert isinstance(messages, list)
    return messages


def echo(request: Request) -> Reply:
    """Answer with the conversation's name and how many messages came, in difficult letters."""
    messages = said(request)
    name = messages[0]["content"].split()[0]
    words = json.dumps(f'{name} "{len(messages)}" é\n')[1:-1]
    half = words.index(" ")
    events = [ROLE, content(words[:half]), content(words[half:], finish="stop")]
    return stream([*events, usage(9, 2), "[DONE]"])


def bodies(conversations: int) -> list[bytes]:
    out = []
    for number in range(conversations):
        messages = [{"role": "user", "content": f"c{number} hello"}]
        for turn in range(TURNS):
            if turn:
                messages.append({"role": "assistant", "content": answer_mark(turn - 1)})
                messages.append({"role": "user", "content": f"and {turn}"})
            out.append(json.dumps({"messages": messages, "stream": True}).encode())
    return out


async def run(base_url: str, *, workers: int | None = None, streams: int = 2) -> LevelRaw:
    spec = LevelSpec(streams, CHAT, bodies(5), turns=TURNS, max_error_rate=1.0)
    return await EpollEngine(workers).run_level(
        spec, Endpoint(base_url), lambda _: None, lambda: False
    )


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_turn_holds_what_was_answered_before_it(workers: int) -> None:
    async with scripted({CHAT: echo}) as server:
        raw = await run(server.base_url, workers=workers)
        requests = list(server.requests)
    assert [record.failure for record in raw.records] == [None] * 15
    assert sorted(record.index for record in raw.records) == list(range(15))
    seen: dict[str, list[list[dict[str, str]]]] = {}
    for request in requests:
        messages = said(request)
        seen.setdefault(messages[0]["content"].split()[0], []).append(messages)
    assert len(seen) == 5
    for name, turns in seen.items():
        assert [len(messages) for messages in turns] == [1, 3, 5], "in their order"
        answers = [m["content"] for m in turns[-1] if m["role"] == "assistant"]
        assert answers == [f'{name} "1" é\n', f'{name} "3" é\n']


async def test_a_conversation_is_broken_off_by_a_turn_that_fails_and_all_of_it_counts() -> None:
    def second_turn_fails(request: Request) -> Reply:
        messages = said(request)
        if len(messages) == 3 and messages[0]["content"].startswith("c1"):
            return whole(500, b'{"error":{"message":"broken"}}')
        return echo(request)

    async with scripted({CHAT: second_turn_fails}) as server:
        raw = await run(server.base_url)
    failures = {r.index: r.failure.kind for r in raw.records if r.failure is not None}
    assert failures == {4: "http_500", 5: "turn_not_sent"}
    assert len(raw.records) == 15
    assert level_result(raw, BenchmarkSpec(), 2, started_at="now").errors == 2


def test_answers_are_put_where_they_belong_and_forgotten_with_the_conversation() -> None:
    talks = Conversations(list(enumerate(bodies(2))), TURNS)
    assert [index for index, _ in talks.first] == [0, 3]
    one = talks.after(0, "first")
    assert one is not None
    two = talks.after(one[0], 'sec"ond')
    assert two is not None
    contents = [m["content"] for m in json.loads(two[1])["messages"]]
    assert contents == ["c0 hello", "first", "and 1", 'sec"ond', "and 2"]
    assert talks.after(two[0], "third") is None
    assert list(talks.broken_off(3)) == [4, 5]
    assert not talks._answers


async def test_a_benchmark_can_be_asked_for_it(tmp_path: Path) -> None:
    routes: dict[str, Route | Reply] = {CHAT: echo, "/v1/models": whole(200, MODELS)}
    given: dict[str, Any] = {"levels": [2], "turns": 2, "turn_answers": "own", "max_tokens": 4}
    async with scripted(routes) as server:
        spec = BenchmarkSpec.asked(given)
        run = await run_benchmark(spec, Endpoint(server.base_url, model="m"), tmp_path)
        last = [said(request) for request in server.requests if request.path == CHAT]
    assert run.levels[0].errors == 0
    assert run.levels[0].requests == 4
    assert run.prompts is not None
    assert "an answer of 4 tokens" in run.prompts
    later = [messages for messages in last if len(messages) == 3]
    assert len(later) in (2, 4), "once more where the machine was too busy for the client"
    assert all('"1" é' in messages[1]["content"] for messages in later)


def test_own_answers_go_with_a_closed_loop_of_conversations() -> None:
    for given in (
        {"turn_answers": "own", "request_rates": [1.0]},
        {"turn_answers": "own", "prompt_source": "generated"},
    ):
        with pytest.raises(ValueError, match="turn_answers=own goes with"):
            BenchmarkSpec.asked(given)
    assert BenchmarkSpec.asked({"turn_answers": "own"}).source == "multi_turn"

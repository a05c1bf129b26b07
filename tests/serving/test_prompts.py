"""Prompts: as long as asked for, and no two alike."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from backends.serving.endpoint import Endpoint, EndpointClient
from backends.serving.prompts import PromptMaker
from backends.serving.runs import BenchmarkSpec
from tests.serving.mock_servers import Reply, Request, Route, scripted, whole


def tokenizer(request: Request) -> Reply:
    """Count one and a half tokens a word and eight for the template."""
    asked = json.loads(request.body)
    text = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
    count = 8 + round(1.5 * len(text.split()))
    return whole(200, json.dumps({"count": count, "max_model_len": 4096}).encode())


def short_words(request: Request) -> Reply:
    """Count as many do: a word of at most six letters is one token, and so are up to 3 digits."""
    asked = json.loads(request.body)
    messages = asked.get("messages") or [{"content": asked["prompt"]}]
    count = 1 + sum(4 + pieces(message["content"]) for message in messages)
    return whole(200, json.dumps({"count": count, "max_model_len": 4096}).encode())


def pieces(text: str) -> int:
    return len(re.findall(r" ?[A-Za-z]{1,6}|(?<=9)\d|\d{1,3}|[^\sA-Za-z\d]", text))


def tokens_of(body: bytes) -> int:
    messages = json.loads(body)["messages"]
    return 1 + sum(4 + pieces(message["content"]) for message in messages)


async def made(
    spec: BenchmarkSpec,
    *,
    salt: str = "run-1",
    tokenize: bool = True,
    count: Route = tokenizer,
) -> PromptMaker:
    maker = PromptMaker(spec, "m", salt)
    async with (
        scripted({"/tokenize": count} if tokenize else {}) as server,
        EndpointClient(Endpoint(server.base_url, model="m")) as client,
    ):
        await maker.calibrate(client)
    return maker


async def test_no_two_prompts_of_any_level_phase_or_run_begin_alike() -> None:
    spec = BenchmarkSpec()
    first, second = await made(spec), await made(spec, salt="run-2")
    prompts = [
        maker.prompt(level, index, phase)
        for maker in (first, second)
        for level in (1, 8)
        for index in range(50)
        for phase in "wm"
    ]
    assert len({prompt[:14] for prompt in prompts}) == len(prompts)


async def test_generated_prompts_have_the_tokens_asked_for_by_the_servers_count() -> None:
    for wanted in (20, 200, 3000):
        spec = BenchmarkSpec(prompt_source="generated", prompt_tokens=wanted)
        maker = await made(spec)
        prompt = maker.prompt(4, 7, "m")
        counted = 8 + round(1.5 * len(prompt.split()))
        assert abs(counted - wanted) <= max(2, wanted // 100)
        assert "by the server's tokenizer" in maker.description


async def test_a_length_below_the_template_gives_the_shortest_prompt() -> None:
    maker = await made(BenchmarkSpec(prompt_source="generated", prompt_tokens=1))
    assert len(maker.prompt(1, 0, "m").split()) == 2


async def test_without_tokenize_the_length_is_an_estimate_and_says_so() -> None:
    spec = BenchmarkSpec(prompt_source="generated", prompt_tokens=200)
    maker = await made(spec, tokenize=False)
    assert "about 200 tokens by estimate" in maker.description
    assert 100 < len(maker.prompt(1, 0, "m").split()) < 200


async def test_the_seed_decides_the_words_and_the_salt_does_not() -> None:
    spec = BenchmarkSpec(prompt_source="generated", prompt_tokens=100, seed=1)
    one, two = await made(spec), await made(spec, salt="run-2")
    other = await made(spec.model_copy(update={"seed": 2}))

    def words(maker: PromptMaker) -> str:
        return maker.prompt(1, 0, "m").split(" ", 1)[1]

    assert words(one) == words(two) != words(other)


async def test_the_bodies_ask_for_what_the_spec_says() -> None:
    spec = BenchmarkSpec(prompt="Count to ten.", max_tokens=64, warmup_max_tokens=8)
    maker = await made(spec)
    body = json.loads(maker.bodies(2, 3)[2])
    assert body["model"] == "m"
    assert body["max_tokens"] == 64
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["ignore_eos"] is True
    assert body["messages"][0]["content"].endswith("Count to ten.")
    assert json.loads(maker.bodies(2, 1, warmup=True)[0])["max_tokens"] == 8
    plain = await made(spec.model_copy(update={"endpoint_kind": "completions"}))
    assert json.loads(plain.bodies(2, 1)[0])["prompt"].endswith("Count to ten.")


@pytest.mark.parametrize("wanted", [40, 256, 3000])
async def test_every_made_prompt_has_exactly_the_length_asked_for(wanted: int) -> None:
    spec = BenchmarkSpec(prompt_source="generated", prompt_tokens=wanted)
    maker = await made(spec, count=short_words)
    bodies = maker.bodies(4, 40)
    assert {tokens_of(body) for body in bodies} == {wanted}
    assert len(set(bodies)) == 40
    assert "in the one counted" not in maker.description


async def test_a_grid_has_prompts_of_every_context() -> None:
    spec = BenchmarkSpec(mode="grid", contexts=[64, 512])
    maker = await made(spec, count=short_words)
    for context in (64, 512):
        assert {tokens_of(body) for body in maker.bodies("1", 8, context=context)} == {context}


async def test_shared_prefixes_are_equal_within_a_run_and_new_in_the_next() -> None:
    spec = BenchmarkSpec(
        prompt_source="shared_prefix", prefix_tokens=200, prefixes=2, prompt_tokens=50
    )
    maker = await made(spec, count=short_words)
    other = await made(spec, salt="run-2", count=short_words)
    prompts = [maker.prompt("4", index, "m") for index in range(6)]
    heads = [prompt.split("\n\n")[0] for prompt in prompts]
    assert heads[0] == heads[2] == heads[4] != heads[1] == heads[3]
    assert len({prompt.split("\n\n")[1] for prompt in prompts}) == 6
    assert other.prompt("4", 0, "m")[:14] != prompts[0][:14]
    assert {tokens_of(body) for body in maker.bodies("4", 6)} == {250}
    assert pieces(heads[0]) == pytest.approx(200, abs=1)


async def test_conversations_grow_by_a_turn_and_keep_what_was_said() -> None:
    spec = BenchmarkSpec(prompt_source="multi_turn", turns=3, prompt_tokens=60, max_tokens=20)
    maker = await made(spec, count=short_words)
    assert spec.requests_for(2) == 6, "two conversations of three turns"
    bodies = maker.bodies("2", 6)
    talks = [json.loads(body)["messages"] for body in bodies]
    assert [len(talk) for talk in talks] == [1, 1, 3, 3, 5, 5]
    for first, second, third in ((talks[0], talks[2], talks[4]), (talks[1], talks[3], talks[5])):
        assert second[: len(first)] == first
        assert third[: len(second)] == second
        assert [message["role"] for message in third] == ["user", "assistant"] * 2 + ["user"]
    assert [tokens_of(body) for body in bodies[::2]] == [60, 140, 220]
    assert talks[0][0]["content"][:14] != talks[1][0]["content"][:14]


async def test_a_file_is_gone_through_in_its_order_and_round(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("prompt,max_tokens\none,3\ntwo,\nthree,\n", encoding="utf-8")
    spec = BenchmarkSpec(prompt_source="file", dataset_path=path, max_tokens=9)
    maker = await made(spec)
    bodies = [json.loads(body) for body in maker.bodies("1", 2) + maker.bodies("2", 2)]
    assert [body["messages"][0]["content"] for body in bodies] == ["one", "two", "three", "one"]
    assert [body["max_tokens"] for body in bodies] == [3, 9, 9, 3]
    assert "3 prompts of mine.csv in their order, without salt" in maker.description
    salted = await made(spec.model_copy(update={"salt": True}))
    texts = [json.loads(body)["messages"][0]["content"] for body in salted.bodies("1", 4)]
    assert texts[0].endswith("one")
    assert texts[3].endswith("one")
    assert texts[0] != texts[3]


async def test_the_built_in_tasks_are_salted() -> None:
    maker = await made(BenchmarkSpec(prompt_source="builtin"))
    texts = [json.loads(body)["messages"][0]["content"] for body in maker.bodies("1", 25)]
    assert texts[0][15:] == texts[24][15:]
    assert texts[0] != texts[24]


async def test_conversations_of_a_grid_grow_by_each_context() -> None:
    spec = BenchmarkSpec(
        mode="grid", contexts=[60, 300], prompt_source="multi_turn", turns=2, max_tokens=20
    )
    maker = await made(spec, count=short_words)
    for context in (60, 300):
        bodies = maker.bodies("1", 2, context=context)
        assert [tokens_of(body) for body in bodies] == [context, 2 * context + 20]

"""Prompts: as long as asked for, and no two alike."""

from __future__ import annotations

import json

from backends.serving.endpoint import Endpoint, EndpointClient
from backends.serving.prompts import PromptMaker
from backends.serving.runs import BenchmarkSpec
from tests.serving.mock_servers import Reply, Request, scripted, whole


def tokenizer(request: Request) -> Reply:
    """Count one and a half tokens a word and eight for the template."""
    asked = json.loads(request.body)
    text = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
    count = 8 + round(1.5 * len(text.split()))
    return whole(200, json.dumps({"count": count, "max_model_len": 4096}).encode())


async def made(spec: BenchmarkSpec, *, salt: str = "run-1", tokenize: bool = True) -> PromptMaker:
    maker = PromptMaker(spec, "m", salt)
    async with (
        scripted({"/tokenize": tokenizer} if tokenize else {}) as server,
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

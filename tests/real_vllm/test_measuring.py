"""The load engine against a real vLLM: what only the engine itself can confirm.

Skipped where no vLLM is at hand (see conftest).
"""

from __future__ import annotations

import json
from pathlib import Path

from backends.serving.endpoint import Endpoint
from backends.serving.spec import BenchmarkSpec
from backends.serving.sweep import run_benchmark
from tests.real_vllm.engines import KEY, NAME, Served


async def key() -> dict[str, str]:
    return {"authorization": f"Bearer {KEY}"}


async def test_conversations_with_the_models_own_answers_hit_the_prefix_cache(
    real: Served, tmp_path: Path
) -> None:
    spec = BenchmarkSpec(
        levels=[2],
        prompt_source="multi_turn",
        turns=3,
        turn_answers="own",
        prompt_tokens=200,
        max_tokens=48,
    )
    endpoint = Endpoint(str(real.client.base_url), model=NAME, headers=key)
    run = await run_benchmark(spec, endpoint, tmp_path)
    (level,) = run.levels
    assert (level.requests, level.errors) == (6, 0)
    assert level.output_tokens_total == 6 * 48
    assert level.prompt_tokens_min is not None
    assert level.prompt_tokens_max is not None
    # by the third turn a conversation holds three questions and two answers
    assert level.prompt_tokens_max > level.prompt_tokens_min + 2 * 200
    assert level.prefix_cache_hit_rate is not None
    assert level.prefix_cache_hit_rate > 0


def test_the_route_that_sagemaker_calls_streams_a_chat_as_the_other_does(real: Served) -> None:
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 4,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with real.client.stream("POST", "/invocations", json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[-2])["usage"]["completion_tokens"] == 4

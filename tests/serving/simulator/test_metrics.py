"""`/metrics` against the one recorded from vLLM 0.32.0, and moving while requests run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.simulator.running import NAME, Simulator, start
from tests.support.processes import wait_for

RECORDED = Path(__file__).parents[2] / "recorded" / "vllm" / "gemma4-0.32.0"
COMPLETIONS = "/v1/completions"


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def label_sets(family: Any) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Samples with their labels; the served name is the same on both sides."""
    return {(s.name, frozenset(s.labels.items())) for s in family.samples}


def ask(simulator: Simulator, prompt: str, tokens: int, **more: Any) -> httpx.Response:
    body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}
    return simulator.client.post(COMPLETIONS, json=body)


def test_every_vllm_metric_is_there_with_its_labels_and_buckets(fast: Simulator) -> None:
    ask(fast, "hello", 4)
    theirs = families((RECORDED / "metrics_after_load.body").read_text())
    ours = families(fast.client.get("/metrics").text)
    for name, family in theirs.items():
        if not name.startswith("vllm:"):
            continue
        assert name in ours
        assert ours[name].type == family.type, name
        if name != "vllm:cache_config_info":
            assert label_sets(ours[name]) == label_sets(family), name
    assert {name for name in ours if name.startswith("vllm:")} <= set(theirs)


def test_cache_facts_are_in_the_info_metric(fast: Simulator) -> None:
    theirs = families((RECORDED / "metrics.body").read_text())["vllm:cache_config_info"]
    ours = families(fast.client.get("/metrics").text)["vllm:cache_config_info"]
    labels = ours.samples[0].labels
    assert set(labels) <= set(theirs.samples[0].labels)
    assert int(labels["kv_cache_size_tokens"]) // 16 == int(labels["num_gpu_blocks"])


def test_http_metrics_count_requests_by_route_and_leave_probes_out(fast: Simulator) -> None:
    ask(fast, "hello", 1)
    fast.client.get("/health")
    fast.client.get("/nothing")
    theirs = families((RECORDED / "metrics_after_load.body").read_text())
    ours = families(fast.client.get("/metrics").text)
    assert {name for name in theirs if name.startswith("http_")} == {
        name for name in ours if name.startswith("http_")
    }
    handlers = {sample.labels["handler"] for sample in ours["http_requests"].samples}
    assert {COMPLETIONS, "none"} <= handlers
    assert not handlers & {"/health", "/metrics", "/nothing"}


def test_counters_and_histograms_follow_the_requests(fast: Simulator) -> None:
    names = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count")
    before = {name: fast.metric(f"vllm:{name}") for name in names}
    success = fast.metric("vllm:request_success_total", finished_reason="length")
    itls = fast.metric("vllm:inter_token_latency_seconds_count")
    usage = ask(fast, "a few words of a prompt", 10).json()["usage"]
    assert {name: fast.metric(f"vllm:{name}") - before[name] for name in names} == {
        "prompt_tokens_total": usage["prompt_tokens"],
        "generation_tokens_total": 10,
        "time_to_first_token_seconds_count": 1,
    }
    assert fast.metric("vllm:request_success_total", finished_reason="length") == success + 1
    assert fast.metric("vllm:inter_token_latency_seconds_count") == itls + 9


def test_an_equal_prompt_shows_as_prefix_hits_and_a_salted_one_does_not(fast: Simulator) -> None:
    prompt = "one two three four five six seven eight nine ten " * 10

    def hits(text: str) -> float:
        before = fast.metric("vllm:prefix_cache_hits_total")
        ask(fast, text, 1)
        return fast.metric("vllm:prefix_cache_hits_total") - before

    assert hits("first salt " + prompt) == 0
    assert hits("first salt " + prompt) > 80
    assert hits("other salt " + prompt) == 0


def test_gauges_show_what_runs_and_waits_and_not_what_the_gate_holds(tmp_path: Path) -> None:
    arguments = ("--max-num-seqs=2", "--admission-cap=3", "--max-model-len=4096")
    with start(tmp_path, *arguments) as simulator:
        simulator.wait_until_ready()

        async def scenario() -> None:
            url = str(simulator.client.base_url)
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}
                tasks = [asyncio.create_task(client.post(COMPLETIONS, json=body)) for _ in range(6)]
                await asyncio.to_thread(wait_for, running_and_waiting)
                assert simulator.metric("vllm:kv_cache_usage_perc") > 0
                assert simulator.client.get("/load").json() == {"server_load": 3}
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        def running_and_waiting() -> bool:
            """Two run, one waits in the engine, three wait in front of it."""
            running = simulator.metric("vllm:num_requests_running")
            waiting = simulator.metric("vllm:num_requests_waiting")
            reason = simulator.metric("vllm:num_requests_waiting_by_reason", reason="capacity")
            assert running + waiting <= 3
            return (running, waiting, reason) == (2, 1, 1)

        def idle() -> bool:
            """All clients have gone."""
            return simulator.metric("vllm:num_requests_running") == 0

        asyncio.run(scenario())
        # Clients that leave are noticed. Those in the gate may be let in before they are.
        wait_for(idle)
        assert 3 <= simulator.metric("vllm:request_success_total", finished_reason="abort") <= 6
        assert simulator.metric("vllm:kv_cache_usage_perc") == 0
        assert ask(simulator, "still there?", 1).status_code == 200

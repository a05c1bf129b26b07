"""What we take for granted of vLLM, checked against a real one; and the simulator's likeness.

Skipped where no vLLM is at hand (see conftest). The model's text is random, so shapes, names,
counts and errors are compared, never words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backends.serving.startup_log import Phase, read_startup_log
from tests.real_vllm.engines import MAX_MODEL_LEN, NAME, Served
from tests.real_vllm.shapes import differences

CHAT: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 8,
    "temperature": 0,
    "ignore_eos": True,
}
COMPLETION: dict[str, Any] = {
    "model": NAME,
    "prompt": "def main():",
    "max_tokens": 8,
    "temperature": 0,
    "ignore_eos": True,
}
LONG_CHAT = {**CHAT, "messages": [{"role": "user", "content": "word " * 9000}]}

# A name for the test's id, the method, the path and the body.
Request = tuple[str, str, str, dict[str, Any] | bytes | None]

ANSWERED: tuple[Request, ...] = (
    ("version", "GET", "/version", None),
    ("models", "GET", "/v1/models", None),
    ("load", "GET", "/load", None),
    ("chat", "POST", "/v1/chat/completions", CHAT),
    ("chat n=2", "POST", "/v1/chat/completions", {**CHAT, "n": 2, "temperature": 1}),
    (
        "chat with parts",
        "POST",
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    ),
    ("completion", "POST", "/v1/completions", COMPLETION),
    ("tokenize", "POST", "/tokenize", {"model": NAME, "prompt": "def main():"}),
    ("detokenize", "POST", "/detokenize", {"model": NAME, "tokens": [300, 301, 302]}),
)

REFUSED: tuple[Request, ...] = (
    ("wrong model", "POST", "/v1/chat/completions", {**CHAT, "model": "nope"}),
    ("too long", "POST", "/v1/chat/completions", LONG_CHAT),
    ("max_tokens over the context", "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5000}),
    ("no messages", "POST", "/v1/chat/completions", {"model": NAME}),
    ("bad temperature", "POST", "/v1/chat/completions", {**CHAT, "temperature": -1}),
    ("malformed JSON", "POST", "/v1/chat/completions", b'{"model": '),
    ("unknown route", "GET", "/v1/nothing", None),
    ("GET where POST is due", "GET", "/v1/chat/completions", None),
    ("wrong model, completion", "POST", "/v1/completions", {**COMPLETION, "model": "nope"}),
)

ids = [request[0] for request in ANSWERED]
refused_ids = [request[0] for request in REFUSED]


def ask(served: Served, request: Request) -> httpx.Response:
    _, method, path, body = request
    if isinstance(body, bytes):
        headers = {"content-type": "application/json"}
        return served.client.request(method, path, content=body, headers=headers)
    return served.client.request(method, path, json=body)


def events(served: Served, path: str, body: dict[str, Any]) -> Iterator[str]:
    with served.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line:
                assert line.startswith("data: ")
                yield line.removeprefix("data: ")


def chunks(
    served: Served, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> list[dict[str, Any]]:
    said = list(events(served, path, body))
    assert said[-1] == "[DONE]"
    return [json.loads(event) for event in said[:-1]]


def test_the_log_of_a_real_start_is_understood(real: Served) -> None:
    progress = real.progress
    assert progress.phase is Phase.READY
    seen = [start.phase for start in progress.phases]
    assert seen == sorted(seen, key=list(Phase).index)
    assert {Phase.LOADING_CONFIG, Phase.STARTING_ENGINE, Phase.LOADING_WEIGHTS} <= set(seen)
    assert {Phase.ALLOCATING_KV, Phase.STARTING_API} <= set(seen)
    facts = progress.facts
    assert facts.max_model_len == MAX_MODEL_LEN
    assert (facts.kv_tokens or 0) > MAX_MODEL_LEN
    assert facts.vllm_version
    assert facts.url


def test_the_key_is_in_no_line_of_the_log(real: Served) -> None:
    assert "test-key" not in real.log.read_text()


def test_health_is_open_and_empty_and_the_models_need_the_key(real: Served) -> None:
    health = real.client.get("/health", headers={"Authorization": ""})
    assert (health.status_code, health.content) == (200, b"")
    refused = real.client.get("/v1/models", headers={"Authorization": ""})
    assert refused.status_code == 401
    assert refused.json() == {"error": "Unauthorized"}
    (card,) = real.client.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == (NAME, MAX_MODEL_LEN)


def test_a_chat_counts_its_tokens(real: Served) -> None:
    answer = real.client.post("/v1/chat/completions", json=CHAT).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens"] > 0


def test_a_stream_begins_with_the_role_and_ends_with_usage_and_done(real: Served) -> None:
    said = chunks(real, {**CHAT, "stream_options": {"include_usage": True}})
    first = said[0]["choices"][0]["delta"]
    assert (first["role"], first["content"]) == ("assistant", "")
    assert said[-1]["choices"] == []
    assert said[-1]["usage"]["completion_tokens"] == 8
    finish = [c["choices"][0]["finish_reason"] for c in said if c["choices"]]
    assert finish[-1] == "length"
    assert set(finish[:-1]) == {None}


def test_a_stream_without_usage_has_none(real: Served) -> None:
    said = chunks(real, CHAT)
    assert all(chunk["choices"] for chunk in said)
    assert not any(chunk.get("usage") for chunk in said)


@pytest.mark.parametrize("request_", REFUSED, ids=refused_ids)
def test_every_refusal_is_json_with_a_message(real: Served, request_: Request) -> None:
    response = ask(real, request_)
    assert 400 <= response.status_code < 500
    body = response.json()
    if "detail" in body:  # FastAPI's own, for routes and methods it does not have
        assert response.status_code in (404, 405)
    else:
        assert {"message", "type", "param", "code"} <= set(body["error"])
        assert body["error"]["code"] == response.status_code


def families(served: Served) -> dict[str, tuple[str, set[str]]]:
    """Every vLLM metric: its type and the names of its labels."""
    text = served.client.get("/metrics").text
    return {
        family.name: (family.type, {label for s in family.samples for label in s.labels})
        for family in text_string_to_metric_families(text)
        if family.name.startswith("vllm:")
    }


def test_the_metrics_that_statistics_are_made_of_are_there(real: Served) -> None:
    real.client.post("/v1/chat/completions", json=CHAT)
    found = families(real)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert found[f"vllm:{name}"][0] == "gauge"
    for name in ("prompt_tokens", "generation_tokens", "request_success", "num_preemptions"):
        assert found[f"vllm:{name}"][0] == "counter"
    for name in (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
    ):
        assert found[f"vllm:{name}"][0] == "histogram"
    assert {"finished_reason", "model_name"} <= found["vllm:request_success"][1]


@pytest.mark.parametrize("request_", ANSWERED, ids=ids)
def test_the_simulator_answers_in_the_same_shape(
    real: Served, simulated: Served, request_: Request
) -> None:
    ours, theirs = ask(simulated, request_), ask(real, request_)
    assert ours.status_code == theirs.status_code == 200
    assert ours.headers["content-type"] == theirs.headers["content-type"]
    assert not list(differences(theirs.json(), ours.json()))


@pytest.mark.parametrize("request_", REFUSED, ids=refused_ids)
def test_the_simulator_refuses_with_the_same_status_and_shape(
    real: Served, simulated: Served, request_: Request
) -> None:
    ours, theirs = ask(simulated, request_), ask(real, request_)
    assert ours.status_code == theirs.status_code
    assert not list(differences(theirs.json(), ours.json()))
    if "error" in theirs.json():
        for field in ("type", "param", "code"):
            assert ours.json()["error"][field] == theirs.json()["error"][field]


@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without usage"])
def test_the_simulator_streams_in_the_same_shape(
    real: Served, simulated: Served, usage: bool
) -> None:
    body = {**CHAT, "stream_options": {"include_usage": usage}}
    ours, theirs = chunks(simulated, body), chunks(real, body)
    # The first, one in the middle and the last of the answer, and the usage after it.
    for index in (0, 1, -2, -1):
        assert not list(differences(theirs[index], ours[index], f"chunk {index}"))


@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without usage"])
def test_the_simulator_streams_completions_in_the_same_shape(
    real: Served, simulated: Served, usage: bool
) -> None:
    body = {**COMPLETION, "stream_options": {"include_usage": usage}}
    ours, theirs = (chunks(served, body, "/v1/completions") for served in (simulated, real))
    for index in (0, 1, -2, -1):
        assert not list(differences(theirs[index], ours[index], f"chunk {index}"))


def test_the_simulators_metrics_are_all_vllms_own(real: Served, simulated: Served) -> None:
    for served in (real, simulated):
        served.client.post("/v1/chat/completions", json=CHAT)
    theirs = families(real)
    for name, (kind, labels) in families(simulated).items():
        assert name in theirs
        assert theirs[name][0] == kind, name
        # A label's value may not have occurred yet on one side, and an info metric's labels are
        # settings, of which the simulator has fewer.
        if labels and theirs[name][1] and not name.endswith("_info"):
            assert labels == theirs[name][1], name
        assert labels <= theirs[name][1] or not theirs[name][1], name


def test_the_simulators_log_is_read_as_a_ready_vllm(simulated: Served) -> None:
    progress = read_startup_log(simulated.log)
    assert progress.phase is Phase.READY
    assert progress.facts.max_model_len == MAX_MODEL_LEN
    assert progress.facts.kv_tokens
    assert progress.facts.vllm_version

"""The simulator's answers against those recorded from a real vLLM 0.32.0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.simulator.running import NAME, Simulator, start

RECORDED = Path(__file__).parents[2] / "recorded" / "vllm"
CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 12,
    "temperature": 0,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 5},
            },
            "required": ["city", "unit", "days"],
        },
    },
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    """As the recorded server: no parsers."""
    folder = tmp_path_factory.mktemp("plain")
    with start(folder, "--reasoning-parser=", "--tool-call-parser=") as simulator:
        simulator.wait_until_ready()
        yield simulator


def recorded(name: str) -> Any:
    return json.loads((RECORDED / "gemma4-0.32.0" / name).read_text())


def shape(value: Any) -> Any:
    """Keys in order, and types; of a list, its first element."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def events(text: str) -> list[str]:
    assert text.endswith("\n\n")
    return [part.removeprefix("data: ") for part in text.strip().split("\n\n")]


def chunks(simulator: Simulator, body: dict[str, Any], path: str = CHAT) -> list[dict[str, Any]]:
    response = simulator.client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    said = events(response.text)
    assert said[-1] == "[DONE]"
    return [json.loads(event) for event in said[:-1]]


REFUSALS = json.loads((RECORDED / "refusals-0.32.0.json").read_text())


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: f"{case['method']} {case['path']}")
def test_what_vllm_refuses_is_refused_in_the_same_words(
    fast: Simulator, case: dict[str, Any]
) -> None:
    response = fast.client.request(
        case["method"],
        case["path"],
        content=case["body"],
        headers={"content-type": case["content_type"]},
    )
    assert response.status_code == case["status"]
    assert (response.json() if response.content else None) == case["answer"]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("err_malformed_json", b'{"model":"tiny-gemma4","messages":['),
        ("err_wrong_model", {"model": "nope", "messages": [{"role": "user", "content": "x"}]}),
        ("err_too_long", {**HELLO, "messages": [{"role": "user", "content": "word " * 3000}]}),
        ("err_max_tokens", {**HELLO, "max_tokens": 999_999}),
        ("err_missing_messages", {"model": NAME}),
        ("err_bad_temperature", {**HELLO, "temperature": -1}),
        (
            "err_image_on_text_model",
            {
                **HELLO,
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:x"}}],
                    }
                ],
            },
        ),
    ],
)
def test_the_recorded_errors_come_word_for_word(
    fast: Simulator, name: str, body: bytes | dict[str, Any]
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    response = fast.client.post(CHAT, content=content, headers=headers)
    expected = recorded(f"{name}.body")
    assert response.json() == expected
    assert response.status_code == expected["error"]["code"]


def test_a_post_route_says_which_method_it_takes(fast: Simulator) -> None:
    response = fast.client.get(CHAT)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_tool_choice_without_a_parser_is_refused_as_vllm_does(plain: Simulator) -> None:
    body = {**HELLO, "tools": [WEATHER], "tool_choice": "auto"}
    response = plain.client.post(CHAT, json=body)
    assert response.json() == recorded("err_tool_choice_without_parser.body")


def test_every_answer_says_that_it_is_simulated(fast: Simulator) -> None:
    for path in ("/health", "/version", "/metrics", "/v1/models", "/nothing"):
        assert fast.client.get(path).headers["x-vllm-devops-simulated"] == "1"
    assert fast.client.get("/version").json() == {"version": "0.32.0+simulated"}
    assert fast.client.post(CHAT, json=HELLO).headers["x-vllm-devops-simulated"] == "1"
    assert "this is the vllm-devops simulator, not vLLM" in fast.log.splitlines()[0]


def test_health_and_ping_are_empty_and_open(fast: Simulator) -> None:
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        response = fast.client.request(method, path)
        assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    ("name", "method", "path", "body"),
    [
        ("models", "GET", "/v1/models", None),
        ("chat", "POST", CHAT, HELLO),
        ("chat_n2", "POST", CHAT, {**HELLO, "n": 2, "temperature": 1}),
        ("completions", "POST", "/v1/completions", {"model": NAME, "prompt": "def main():"}),
        ("tokenize", "POST", "/tokenize", {"model": NAME, "prompt": "def main():"}),
        ("detokenize", "POST", "/detokenize", {"model": NAME, "tokens": [270, 300, 301]}),
    ],
)
def test_answers_have_the_recorded_keys_in_order_and_their_types(
    tmp_path: Path, fast: Simulator, name: str, method: str, path: str, body: Any
) -> None:
    answer = fast.client.request(method, path, json=body).json()
    expected = recorded(f"{name}.body")
    if name.startswith("chat"):
        # The recorded server had no reasoning parser, ours has.
        assert answer["usage"].pop("completion_tokens_details") == {"reasoning_tokens": 0}
        expected["usage"].pop("completion_tokens_details")
    assert shape(answer) == shape(expected)


def test_tokenize_of_a_chat_shows_the_turns_and_their_pieces(fast: Simulator) -> None:
    body = {"messages": HELLO["messages"], "return_token_strs": True}
    answer = fast.client.post("/tokenize", json=body).json()
    assert answer["token_strs"][:3] == ["<bos>", "<|turn>", "user"]
    assert "".join(answer["token_strs"][4:-5]) == "Say hello."
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    usage = fast.client.post(CHAT, json=HELLO).json()["usage"]
    assert usage["prompt_tokens"] == answer["count"]


def test_detokenize_undoes_tokenize(fast: Simulator) -> None:
    text = "Ünïcode, 3.14 and\n\n  <|turn> a veryveryverylongword — 漢字 🙂 end  "
    tokens = fast.client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert fast.client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}


def outline(said: list[dict[str, Any]]) -> list[Any]:
    """Shapes of a stream's events; equal neighbours once, as busy servers merge tokens."""
    return [key for key, _ in groupby(said, key=shape)]


@pytest.mark.parametrize(
    ("name", "path", "options"),
    [
        ("chat_stream", CHAT, {"include_usage": True}),
        ("chat_stream_continuous", CHAT, {"include_usage": True, "continuous_usage_stats": True}),
        ("chat_stream_nousage", CHAT, None),
        ("completions_stream", "/v1/completions", {"include_usage": True}),
    ],
)
def test_streams_have_the_recorded_shape_from_the_first_event_to_the_last(
    plain: Simulator, name: str, path: str, options: dict[str, bool] | None
) -> None:
    text = (RECORDED / "gemma4-0.32.0" / f"{name}.body").read_text()
    said = [json.loads(event) for event in events(text)[:-1]]
    tokens = 8
    body = {**HELLO, "max_tokens": tokens, "ignore_eos": True, "stream_options": options}
    if path != CHAT:
        body = {**body, "prompt": "def main():"}
        del body["messages"]
    ours = chunks(plain, body, path)
    assert outline(ours) == outline(said)
    finish = [chunk["choices"][0]["finish_reason"] for chunk in ours if chunk["choices"]]
    assert finish[-1] == "length"
    assert set(finish[:-1]) == {None}
    if options:
        assert ours[-1]["usage"]["completion_tokens"] == tokens


def test_a_stream_says_the_same_as_a_whole_answer(fast: Simulator) -> None:
    body = {**HELLO, "max_tokens": 60, "stream_options": {"include_usage": True}}
    whole = fast.client.post(CHAT, json={**HELLO, "max_tokens": 60}).json()
    said = chunks(fast, body)
    deltas = [chunk["choices"][0]["delta"] for chunk in said if chunk["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert said[-1]["usage"] == {
        key: value for key, value in whole["usage"].items() if key != "prompt_tokens_details"
    }


def text_of(simulator: Simulator, **changes: Any) -> str:
    body = {**HELLO, "max_tokens": 30, **changes}
    answer = simulator.client.post(CHAT, json=body).json()
    return str(answer["choices"][0]["message"]["content"])


def test_replies_repeat_at_temperature_0_or_with_a_seed_and_not_otherwise(
    fast: Simulator,
) -> None:
    assert text_of(fast) == text_of(fast)
    assert text_of(fast, temperature=1, seed=3) == text_of(fast, temperature=1, seed=3)
    assert text_of(fast, temperature=1, seed=3) != text_of(fast, temperature=1, seed=4)
    assert text_of(fast, temperature=1) != text_of(fast, temperature=1)
    other = [{"role": "user", "content": "Say goodbye."}]
    assert text_of(fast) != text_of(fast, messages=other)


def test_a_reply_ends_by_itself_unless_told_to_ignore_the_end(fast: Simulator) -> None:
    body = {**HELLO, "max_tokens": 1000}
    natural = fast.client.post(CHAT, json=body).json()
    assert natural["choices"][0]["finish_reason"] == "stop"
    assert 100 < natural["usage"]["completion_tokens"] < 1000
    forced = fast.client.post(CHAT, json={**body, "ignore_eos": True}).json()
    assert forced["choices"][0]["finish_reason"] == "length"
    assert forced["usage"]["completion_tokens"] == 1000


def test_max_completion_tokens_wins_over_max_tokens(fast: Simulator) -> None:
    body = {**HELLO, "max_tokens": 50, "max_completion_tokens": 5}
    assert fast.client.post(CHAT, json=body).json()["usage"]["completion_tokens"] == 5


def test_output_is_cut_at_the_context_limit_not_refused(fast: Simulator) -> None:
    body = {**HELLO, "max_tokens": 2048, "ignore_eos": True}
    usage = fast.client.post(CHAT, json=body).json()["usage"]
    assert usage["total_tokens"] == 2048


def test_a_stop_string_ends_the_text_before_it(fast: Simulator) -> None:
    plain = text_of(fast)
    word = plain.split()[6]
    body = {**HELLO, "max_tokens": 30, "stop": [word]}
    choice = fast.client.post(CHAT, json=body).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", word)
    assert plain.startswith(choice["message"]["content"] + word)


def test_several_prompts_and_choices_are_answered_in_order(fast: Simulator) -> None:
    body = {"prompt": ["one two", "three"], "n": 2, "max_tokens": 3, "temperature": 1}
    answer = fast.client.post("/v1/completions", json=body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens"] == 3


def test_prompts_may_be_token_ids(fast: Simulator) -> None:
    body = {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 2}
    usage = fast.client.post("/v1/completions", json=body).json()["usage"]
    assert usage["prompt_tokens"] == 5


def test_echo_puts_the_prompt_first(fast: Simulator) -> None:
    body = {"prompt": "Once upon", "max_tokens": 2, "echo": True}
    answer = fast.client.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"].startswith("Once uponThis")
    said = chunks(fast, body, "/v1/completions")
    assert said[0]["choices"][0]["text"].startswith("Once uponThis")


@pytest.mark.parametrize(
    ("body", "kind"),
    [(HELLO, "chat.completion"), ({"prompt": "a", "max_tokens": 2}, "text_completion")],
)
def test_invocations_answers_whichever_request_it_is_given(
    fast: Simulator, body: dict[str, Any], kind: str
) -> None:
    assert fast.client.post("/invocations", json=body).json()["object"] == kind


def test_logprobs_are_refused_and_not_invented(fast: Simulator) -> None:
    for path, body in (
        (CHAT, {**HELLO, "logprobs": True}),
        ("/v1/completions", {"prompt": "a", "logprobs": 1}),
    ):
        response = fast.client.post(path, json=body)
        assert response.status_code == 400
        assert "logprobs are not supported" in response.json()["error"]["message"]


def test_a_user_turn_with_tools_is_answered_by_a_call_that_fits_the_schema(
    fast: Simulator,
) -> None:
    other = {"type": "function", "function": {"name": "delete_all", "parameters": {}}}
    messages = [{"role": "user", "content": "How is the weather?"}]
    body = {**HELLO, "max_tokens": 100, "messages": messages, "tools": [other, WEATHER]}
    choice = fast.client.post(CHAT, json=body).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"]["name"] == "get_weather"
    arguments = json.loads(call["function"]["arguments"])
    assert isinstance(arguments["city"], str)
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert 1 <= arguments["days"] <= 5


def test_a_tool_result_is_answered_in_words(fast: Simulator) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    body = {**HELLO, "messages": messages, "tools": [WEATHER]}
    message = fast.client.post(CHAT, json=body).json()["choices"][0]["message"]
    assert message["content"]
    assert "tool_calls" not in message


@pytest.mark.parametrize(
    ("choice", "finish"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "stop"),
    ],
)
def test_a_wanted_tool_is_called_whatever_was_said(
    fast: Simulator, choice: Any, finish: str
) -> None:
    body = {**HELLO, "max_tokens": 100, "tools": [WEATHER], "tool_choice": choice}
    answer = fast.client.post(CHAT, json=body).json()["choices"][0]
    assert answer["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert answer["finish_reason"] == finish


def test_tool_choice_none_leaves_the_tools_alone(fast: Simulator) -> None:
    body = {**HELLO, "tools": [WEATHER], "tool_choice": "none"}
    assert fast.client.post(CHAT, json=body).json()["choices"][0]["message"]["content"]


def test_a_streamed_tool_call_comes_in_pieces_that_join_to_its_arguments(
    fast: Simulator,
) -> None:
    body = {**HELLO, "max_tokens": 100, "tools": [WEATHER], "tool_choice": "required"}
    said = chunks(fast, body)
    calls = [call for chunk in said for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert calls[0]["id"].startswith("chatcmpl-tool-")
    assert len(calls) > 2
    joined = "".join(call["function"]["arguments"] for call in calls)
    assert set(json.loads(joined)) == {"city", "unit", "days"}
    assert said[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_thinking_comes_apart_from_the_content_and_is_counted(fast: Simulator) -> None:
    body = {
        **HELLO,
        "max_tokens": 80,
        "chat_template_kwargs": {"enable_thinking": True},
    }
    answer = fast.client.post(CHAT, json=body).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning"]
    assert message["content"]
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 40}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(fast, body)]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == message["reasoning"]
    short = fast.client.post(CHAT, json={**body, "max_tokens": 10}).json()
    assert short["choices"][0]["message"]["content"] is None


def test_a_json_schema_is_satisfied(fast: Simulator) -> None:
    schema = WEATHER["function"]["parameters"]  # type: ignore[index]
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
    text = text_of(fast, max_tokens=100, response_format=wanted)
    assert set(json.loads(text)) == {"city", "unit", "days"}
    assert json.loads(text_of(fast, max_tokens=100, response_format={"type": "json_object"}))


def test_an_image_takes_its_tokens_where_images_are_served(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "What is this?"}
    with start(tmp_path, "--time-scale=20") as simulator:
        simulator.wait_until_ready()
        counts = [
            simulator.client.post(
                CHAT, json={**HELLO, "messages": [{"role": "user", "content": content}]}
            ).json()["usage"]["prompt_tokens"]
            for content in ([text], [text, part])
        ]
    assert counts[1] - counts[0] == 256


def test_only_v1_needs_the_key(tmp_path: Path) -> None:
    key = "test-key-not-secret"
    expected = json.loads((RECORDED / "auth-tools/noauth_v1_models.body").read_text())
    with start(tmp_path, env={"VLLM_API_KEY": key}) as simulator:
        simulator.wait_until_ready()
        for path in ("/health", "/version", "/metrics"):
            assert simulator.client.get(path).status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = simulator.client.get("/v1/models", headers=headers)
            assert (refused.status_code, refused.json()) == (401, expected)
        allowed = {"authorization": f"Bearer {key}"}
        assert simulator.client.get("/v1/models", headers=allowed).status_code == 200
        assert key not in simulator.log


def test_several_served_names_are_listed_and_each_is_answered(tmp_path: Path) -> None:
    with start(tmp_path, "--served-model-name", "one", "two") as simulator:
        simulator.wait_until_ready()
        cards = simulator.client.get("/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["one", "two"]
        body = {**HELLO, "model": "two", "max_tokens": 1}
        assert simulator.client.post(CHAT, json=body).json()["model"] == "two"
        refused = simulator.client.post(CHAT, json={**HELLO, "model": "three"})
        assert "Valid aliases: one, two." in refused.json()["error"]["message"]


def test_a_broken_request_does_not_stop_the_next_one(fast: Simulator) -> None:
    with httpx.Client(base_url=fast.client.base_url) as client:
        for _ in range(3):
            client.post(CHAT, content=b"\xff\xfe", headers={"content-type": "application/json"})
        assert client.post(CHAT, json=HELLO).status_code == 200

"""Resources and prompts: what a client reads and offers without a tool call."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from mcp import MCPError
from mcp.types import INVALID_PARAMS

from tests.support.clients import FAST, connected, make_app
from tests.support.probe import ERAS, Era

PROMPTS = {"deploy-and-verify", "benchmark-and-compare", "triage-outage", "tear-down-everything"}


@pytest.mark.parametrize("era", ERAS)
async def test_resources_and_templates_are_listed_with_a_type_and_a_description(
    state_dir: Path, era: Era
) -> None:
    async with connected(make_app(state_dir), era) as caller:
        resources = (await caller.client.list_resources()).resources
        templates = (await caller.client.list_resource_templates()).resource_templates
    assert {str(item.uri) for item in resources} == {
        "config://targets",
        "config://vllm-deployment-template",
        "audit://log",
    }
    assert {item.uri_template for item in templates} == {
        "deployment://{target}/{name}",
        "benchmark://{benchmark_id}",
    }
    for item in [item.model_dump() for item in (*resources, *templates)]:
        assert item["description"]
        assert item["mime_type"] in {"application/json", "application/jsonl"}


async def read(state_dir: Path, era: Era, uri: str) -> str:
    async with connected(make_app(state_dir), era) as caller:
        (content,) = (await caller.client.read_resource(uri)).contents
    return str(content.model_dump()["text"])


@pytest.mark.parametrize("era", ERAS)
async def test_a_deployment_can_be_read_as_a_resource(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir, confirm="plan"), era) as caller:
        await caller.deploy("demo")
        status = json.loads(await read(state_dir, era, "deployment://local/demo"))
        assert status["name"] == "demo"
        assert status["state"] in {"starting", "ready"}
        await caller.destroy("demo")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("deployment://local/nobody", "There is no deployment 'nobody' on local"),
        ("deployment://moon/demo", "Allowed: "),
        ("deployment://local/..%2f..%2fetc", ""),
        ("benchmark://bench-none", "bench-none"),
        ("benchmark://..%2f..%2fetc%2fpasswd", ""),
        ("config://nonsense", "config://nonsense"),
        ("file:///etc/passwd", "file:///etc/passwd"),
    ],
)
@pytest.mark.parametrize("era", ERAS)
async def test_what_is_not_there_is_an_error_in_words_and_the_server_goes_on(
    state_dir: Path, era: Era, uri: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(make_app(state_dir), era) as caller:
        with pytest.raises(MCPError) as caught:
            await caller.client.read_resource(uri)
        assert caught.value.code == -32602
        assert words in caught.value.message
        assert "root:" not in str(caught.value)
        assert (await caller.tool("get_help")).ok
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("era", ERAS)
async def test_the_audit_log_is_empty_text_before_anything_was_changed(
    state_dir: Path, era: Era
) -> None:
    assert await read(state_dir, era, "audit://log") == ""


async def test_the_target_matrix_says_what_every_target_can_do(state_dir: Path) -> None:
    (target,) = json.loads(await read(state_dir, "modern", "config://targets"))
    assert target["target"] == "local"
    for tool in ("deploy", "destroy", "run_benchmark", "get_logs"):
        assert tool in target["can"].split(", ")


async def test_the_deployment_template_names_every_option_with_its_meaning(
    state_dir: Path,
) -> None:
    template = json.loads(await read(state_dir, "modern", "config://vllm-deployment-template"))
    properties = template["local"]["properties"]
    assert set(FAST) <= set(properties)
    for name, entry in properties.items():
        if name != "name":
            assert entry.get("description"), name


@pytest.mark.parametrize("era", ERAS)
async def test_the_four_prompts_are_listed_and_speak_of_tools_that_exist(
    state_dir: Path, era: Era
) -> None:
    async with connected(make_app(state_dir), era) as caller:
        tools = {tool.name for tool in (await caller.client.list_tools()).tools}
        prompts = (await caller.client.list_prompts()).prompts
        assert {prompt.name for prompt in prompts} == PROMPTS
        for prompt in prompts:
            assert prompt.title
            assert prompt.description
            # None needs an argument: a person picks it and it works.
            assert not any(argument.required for argument in prompt.arguments or [])
            (message,) = (await caller.client.get_prompt(prompt.name)).messages
            text = str(message.content.model_dump()["text"])
            named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text))
            spoken = {name for name in named if name != "plan_id"}
            assert spoken, prompt.name
            assert spoken <= tools, prompt.name


@pytest.mark.parametrize("era", ERAS)
async def test_a_prompt_carries_its_arguments(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir), era) as caller:
        answer = await caller.client.get_prompt(
            "triage-outage", {"target": "local", "name": "demo", "symptom": "502 since noon"}
        )
    text = str(answer.messages[0].content.model_dump()["text"])
    assert "local/demo" in text
    assert "502 since noon" in text
    assert "Change nothing yet" in text


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("deploy-and-verify", {"modle": "x"}, "Allowed: target, model"),
        ("deploy", {}, "Allowed: deploy-and-verify"),
        ("", None, "Allowed: deploy-and-verify"),
    ],
)
async def test_a_wrong_prompt_or_argument_is_refused_with_what_there_is(
    state_dir: Path, era: Era, name: str, arguments: dict[str, str] | None, words: str
) -> None:
    async with connected(make_app(state_dir), era) as caller:
        with pytest.raises(MCPError) as caught:
            await caller.client.get_prompt(name, arguments)
        assert words in caught.value.message
        assert caught.value.code == INVALID_PARAMS


@pytest.mark.parametrize("head", ["nothing://", "deployment://local/", "benchmark://"])
async def test_an_address_of_any_length_is_not_repeated_whole(state_dir: Path, head: str) -> None:
    async with connected(make_app(state_dir)) as caller:
        with pytest.raises(MCPError) as caught:
            await caller.client.read_resource(head + "a" * 300_000)
        assert caught.value.code == -32602
        assert len(caught.value.message) < 300
        assert "300" in caught.value.message

"""The tool list as clients see it: names, kinds, schemas, size, and what modes leave out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from backends.core.names import TARGETS
from tests.support.clients import connected, make_app
from tests.support.probe import ERAS, Era

SNAPSHOT = Path(__file__).parent / "snapshots" / "tools.json"

READ = {
    "get_help",
    "list_deployments",
    "list_models",
    "plan_deployment",
    "wait_until_ready",
    "get_status",
    "verify_model_health",
    "query_model",
    "get_metrics",
    "get_logs",
    "diagnose",
    "get_benchmarks",
    "get_operation",
    "find_capacity",
}
WRITE = {
    "deploy",
    "run_benchmark",
    "cancel_operation",
    "start_serving",
    "update_scaling",
    "shift_traffic",
    "prepare_host",
    "probe_cold_start",
    "stage_model",
    "save_hf_token",
}
DESTRUCTIVE = {"stop_serving", "destroy"}

MOST_TOOLS = 26
# The budget is 5,000 tokens for the whole list. Counting exactly needs cl100k's vocabulary, which
# is a download; measured with tiktoken 0.14 on 2026-11-30: 12,346 characters were 2,758 tokens,
# 4.48 characters a token, and 4.22 for the densest single tool. At 4.2 the budget holds whatever
# kind of tool is added.
MOST_CHARS = int(5_000 * 4.2)


async def tools_of(state_dir: Path, era: Era = "modern", **settings: object) -> dict[str, Any]:
    app = make_app(state_dir, **({"targets": TARGETS} | settings))
    async with connected(app, era) as caller:
        listed = await caller.client.list_tools()
    tools = [
        tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools
    ]
    return {tool["name"]: tool for tool in tools}


async def test_the_tool_list_is_as_in_the_snapshot(state_dir: Path) -> None:
    """After a wanted change: TESTS_UPDATE_SNAPSHOTS=1 pytest tests/test_server_tools.py."""
    tools = await tools_of(state_dir)
    if os.environ.get("TESTS_UPDATE_SNAPSHOTS"):
        text = json.dumps(tools, indent=1, ensure_ascii=False) + "\n"
        SNAPSHOT.write_text(text, encoding="utf-8")
    snapshot = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert list(tools) == list(snapshot)
    for name, tool in tools.items():
        assert tool == snapshot[name], f"{name} has changed"


@pytest.mark.parametrize("era", ERAS)
async def test_both_eras_list_the_same_tools(state_dir: Path, era: Era) -> None:
    assert await tools_of(state_dir, era) == await tools_of(state_dir)


async def test_the_whole_list_stays_within_26_tools_and_5000_tokens(state_dir: Path) -> None:
    tools = list((await tools_of(state_dir)).values())
    text = json.dumps(tools, separators=(",", ":"), ensure_ascii=False)
    assert len(tools) <= MOST_TOOLS
    assert len(text) <= MOST_CHARS


async def test_every_tool_declares_its_kind(state_dir: Path) -> None:
    tools = await tools_of(state_dir)
    assert set(tools) == READ | WRITE | DESTRUCTIVE
    for name, tool in tools.items():
        hints = tool["annotations"]
        assert hints["title"]
        if name in READ:
            assert hints["readOnlyHint"] is True
            assert hints["idempotentHint"] is True
        else:
            assert hints["readOnlyHint"] is False
            assert hints["destructiveHint"] is (name in DESTRUCTIVE)
        asks = tool.get("_meta", {}).get("anthropic/requiresUserInteraction", False)
        assert asks is (name in DESTRUCTIVE)


async def test_schemas_are_closed_and_carry_no_noise(state_dir: Path) -> None:
    for name, tool in (await tools_of(state_dir)).items():
        schema = tool["inputSchema"]
        assert schema["additionalProperties"] is False, name
        assert "title" not in schema, name
        assert "approval" not in schema["properties"], "the person's answer is no argument"
        for argument, entry in schema["properties"].items():
            assert "title" not in entry, f"{name}.{argument}"
            assert {"type", "enum", "$ref"} & set(entry), f"{name}.{argument} has no type"
        assert tool["description"].strip() == tool["description"], f"{name} is not dedented"
        assert "\n    " not in tool["description"], f"{name} is not dedented"
        assert "outputSchema" not in tool, name


async def test_destructive_tools_have_no_default_for_what_they_destroy(state_dir: Path) -> None:
    tools = await tools_of(state_dir)
    for name in DESTRUCTIVE:
        assert {"target", "name"} <= set(tools[name]["inputSchema"]["required"])


async def test_the_target_enum_is_narrowed_to_the_targets_on_offer(state_dir: Path) -> None:
    for name, tool in (await tools_of(state_dir, targets="local")).items():
        target = tool["inputSchema"]["properties"].get("target")
        if target is not None:
            assert target["enum"] == ["local"], name


@pytest.mark.parametrize(
    ("mode", "kept"),
    [("read-only", READ), ("no-destroy", READ | WRITE), ("full", READ | WRITE | DESTRUCTIVE)],
)
async def test_a_mode_removes_the_tools_it_forbids(
    state_dir: Path, mode: str, kept: set[str]
) -> None:
    assert set(await tools_of(state_dir, mode=mode)) == kept


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_that_the_mode_hides_says_why_and_does_nothing(
    state_dir: Path, era: Era
) -> None:
    async with connected(make_app(state_dir, mode="read-only"), era) as caller:
        for name in sorted(WRITE | DESTRUCTIVE):
            reply = await caller.tool(name, target="local", name="demo")
            assert "VLLM_DEVOPS_MODE=read-only" in reply.error["message"]
            assert name in reply.text
            assert "get_help" in reply.error["next_action"]
    assert not state_dir.exists()


@pytest.mark.parametrize("era", ERAS)
async def test_an_unknown_tool_is_named_with_those_close_to_it(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir), era) as caller:
        reply = await caller.tool("get_log")
        assert reply.error["code"] == "invalid_input"
        assert "get_logs" in reply.text
        assert "destroy" not in reply.text


@pytest.mark.parametrize("era", ERAS)
async def test_the_server_introduces_itself(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir), era) as caller:
        info = caller.client.server_info
        instructions = caller.client.instructions or ""
    assert info is not None
    assert (info.name, info.version, info.title) == ("vllm-devops", "0.1.0", "vLLM DevOps")
    assert len(instructions) <= 2000
    # A client that cuts early still tells its model how to start and in which order to go on.
    assert "get_help" in instructions[:300]
    assert "plan_deployment -> deploy" in instructions[:300]

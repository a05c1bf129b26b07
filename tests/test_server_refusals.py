"""Bad arguments to every tool are refused by name, echo nothing, and change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import Caller, connected, make_app
from tests.support.probe import ERAS, Era, Probe
from tests.support.processes import tree_of
from tests.support.reply import Reply

# What somebody might paste into the wrong argument. It must not come back, nor be logged.
SECRET = "hf_SuperSecretTokenThatNobodyMaySee"

# A target for the tools that only clouds have. What is refused here is refused before it is asked.
CLOUD = "cloudrun-l4"
ON_OFFER = (CLOUD, "local")

# The arguments without which a call of the tool would be refused anyway.
NEEDED: dict[str, dict[str, Any]] = {
    "get_help": {},
    "list_deployments": {},
    "list_models": {},
    "find_capacity": {"target": CLOUD},
    "stage_model": {"target": CLOUD, "model": "google/gemma-4-E2B-it"},
    "save_hf_token": {"target": CLOUD},
    "update_scaling": {"target": CLOUD, "name": "demo"},
    "shift_traffic": {"target": CLOUD, "name": "demo", "to": "candidate"},
    "probe_cold_start": {"target": CLOUD, "name": "demo"},
    "plan_deployment": {},
    "deploy": {"target": "local"},
    "wait_until_ready": {"target": "local"},
    "get_status": {"target": "local"},
    "verify_model_health": {"target": "local"},
    "query_model": {"target": "local", "prompt": "hello"},
    "get_metrics": {"target": "local"},
    "get_logs": {"target": "local"},
    "diagnose": {},
    "run_benchmark": {"target": "local"},
    "get_benchmarks": {},
    "get_operation": {},
    "cancel_operation": {"operation_id": "op-none"},
    "start_serving": {"target": "local", "name": "demo"},
    "stop_serving": {"target": "local", "name": "demo"},
    "destroy": {"target": "local", "name": "demo"},
}

# tool, the argument that is wrong, its value. Every argument of every tool that can be wrong.
WRONG: list[tuple[str, str, Any]] = [
    ("get_help", "topic", SECRET),
    ("get_help", "target", SECRET),
    ("list_deployments", "target", SECRET),
    ("list_deployments", "limit", 0),
    ("list_deployments", "limit", 101),
    ("list_deployments", "limit", SECRET),
    ("list_deployments", "cursor", SECRET),
    ("list_deployments", "cursor", SECRET * 3),
    ("list_models", "target", SECRET),
    ("list_models", "inspect", SECRET * 20),
    ("list_models", "inspect", ""),
    ("list_models", "limit", SECRET),
    ("list_models", "cursor", SECRET),
    ("find_capacity", "target", SECRET),
    ("find_capacity", "place", [SECRET]),
    ("find_capacity", "place", ""),
    ("find_capacity", "limit", SECRET),
    ("find_capacity", "cursor", SECRET * 3),
    ("stage_model", "target", SECRET),
    ("stage_model", "model", ""),
    ("stage_model", "model", SECRET * 20),
    ("stage_model", "destination", [SECRET]),
    ("stage_model", "destination", ""),
    ("stage_model", "commands_only", SECRET),
    ("save_hf_token", "target", SECRET),
    ("save_hf_token", "file", SECRET),
    ("save_hf_token", "file", [SECRET]),
    ("update_scaling", "target", SECRET),
    ("update_scaling", "name", SECRET * 3),
    ("update_scaling", "min_instances", -1),
    ("update_scaling", "max_instances", 0),
    ("update_scaling", "instances", 101),
    ("update_scaling", "instances", 0),
    ("update_scaling", "automatic", SECRET),
    ("shift_traffic", "target", SECRET),
    ("shift_traffic", "name", SECRET * 3),
    ("shift_traffic", "to", SECRET * 5),
    ("shift_traffic", "percent", 101),
    ("shift_traffic", "percent", SECRET),
    ("shift_traffic", "check", SECRET),
    ("probe_cold_start", "target", SECRET),
    ("probe_cold_start", "name", SECRET * 3),
    ("plan_deployment", "target", SECRET),
    ("plan_deployment", "target", 7),
    ("plan_deployment", "model", ""),
    ("plan_deployment", "name", ""),
    ("plan_deployment", "options", ""),
    ("plan_deployment", "options", {"profile": ""}),
    ("deploy", "model", ""),
    ("plan_deployment", "name", SECRET * 3),
    ("plan_deployment", "name", SECRET),
    ("plan_deployment", "name", "-demo"),
    ("plan_deployment", "model", SECRET),
    ("plan_deployment", "model", {"id": SECRET}),
    ("plan_deployment", "detail", SECRET),
    ("get_benchmarks", "detail", SECRET),
    ("plan_deployment", "max_model_len", 255),
    ("plan_deployment", "max_model_len", SECRET),
    ("plan_deployment", "max_num_seqs", 0),
    ("plan_deployment", "max_num_seqs", 4097),
    ("plan_deployment", "options", SECRET),
    ("plan_deployment", "options", {"port": SECRET}),
    ("plan_deployment", "options", {"profile": SECRET}),
    ("plan_deployment", "options", {"fail": SECRET}),
    ("plan_deployment", "options", {"engine": SECRET}),
    ("plan_deployment", "options", {"dry_runn": SECRET}),
    ("plan_deployment", "options", {"startup_speed": -1}),
    ("plan_deployment", "options", {"port": 70_000}),
    ("plan_deployment", "options", {"engine": "simulator", "dtype": "float16"}),
    ("plan_deployment", "options", {"name": "demo"}),
    ("plan_deployment", "format", SECRET),
    ("plan_deployment", "load", SECRET),
    ("plan_deployment", "load", {"hours_a_day": SECRET}),
    ("plan_deployment", "load", {"hours_a_day": 25}),
    ("diagnose", "target", SECRET),
    ("diagnose", "name", SECRET * 3),
    ("diagnose", "text", [SECRET]),
    ("diagnose", "ask_model", SECRET),
    ("deploy", "target", SECRET),
    ("deploy", "name", SECRET),
    ("deploy", "model", SECRET),
    ("deploy", "max_model_len", 1),
    ("deploy", "max_num_seqs", SECRET),
    ("deploy", "options", {"port": SECRET}),
    ("deploy", "plan_id", SECRET),
    ("deploy", "plan_id", f"plan-../../{SECRET}"),
    ("wait_until_ready", "target", SECRET),
    ("wait_until_ready", "timeout_s", 41),
    ("wait_until_ready", "timeout_s", -1),
    ("wait_until_ready", "timeout_s", SECRET),
    ("get_status", "target", SECRET),
    ("get_status", "name", SECRET * 3),
    ("get_status", "detail", SECRET),
    ("verify_model_health", "target", SECRET),
    ("verify_model_health", "deep", SECRET),
    ("query_model", "target", SECRET),
    ("query_model", "prompt", ""),
    ("query_model", "prompt", {"text": SECRET}),
    ("query_model", "system", [SECRET]),
    ("query_model", "max_tokens", 0),
    ("query_model", "max_tokens", SECRET),
    ("query_model", "temperature", 2.1),
    ("query_model", "temperature", SECRET),
    ("get_metrics", "target", SECRET),
    ("get_metrics", "interval_s", 31),
    ("get_metrics", "interval_s", SECRET),
    ("get_metrics", "raw", SECRET),
    ("get_logs", "target", SECRET),
    ("get_logs", "source", SECRET * 3),
    ("get_logs", "lines", 0),
    ("get_logs", "lines", 2001),
    ("run_benchmark", "target", SECRET),
    ("run_benchmark", "concurrency", []),
    ("run_benchmark", "concurrency", [0]),
    ("run_benchmark", "concurrency", [SECRET]),
    ("run_benchmark", "concurrency", [1] * 17),
    ("run_benchmark", "requests", 0),
    ("run_benchmark", "max_tokens", SECRET),
    ("run_benchmark", "prompt_tokens", 0),
    ("run_benchmark", "prompt", {"text": SECRET}),
    ("run_benchmark", "options", [SECRET]),
    ("get_benchmarks", "benchmark_ids", SECRET),
    ("get_benchmarks", "benchmark_ids", [SECRET * 3]),
    ("get_benchmarks", "target", SECRET),
    ("get_benchmarks", "limit", 0),
    ("get_benchmarks", "cursor", SECRET),
    ("get_operation", "operation_id", SECRET * 3),
    ("get_operation", "wait_s", 41),
    ("get_operation", "wait_s", SECRET),
    ("get_operation", "cursor", SECRET),
    ("cancel_operation", "operation_id", SECRET * 3),
    ("cancel_operation", "operation_id", 7),
    ("start_serving", "target", SECRET),
    ("start_serving", "name", SECRET * 3),
    ("start_serving", "restart", SECRET),
    ("stop_serving", "target", SECRET),
    ("stop_serving", "name", SECRET * 3),
    ("stop_serving", "options", SECRET),
    ("stop_serving", "options", {"power_off": SECRET}),
    ("stop_serving", "plan_id", SECRET),
    ("destroy", "target", SECRET),
    ("destroy", "name", SECRET * 3),
    ("destroy", "options", SECRET),
    ("destroy", "options", {"power_off": SECRET}),
    ("destroy", "plan_id", SECRET),
    ("destroy", "plan_id", {"id": SECRET}),
]


def check_refused(reply: Reply, argument: str) -> None:
    error = reply.error
    assert error["code"] == "invalid_input", reply.text
    assert argument in error["field"], reply.text
    assert argument in reply.text
    assert "https://errors.pydantic.dev" not in reply.text
    check_secret_free(reply)


def check_secret_free(reply: Reply) -> None:
    whole = json.dumps(reply.whole).lower()
    # Not even a recognisable part of it.
    assert SECRET[:12].lower() not in whole


async def call(caller: Caller, tool: str, argument: str, value: object) -> Reply:
    return await caller.tool(tool, **(NEEDED[tool] | {argument: value}))


async def test_every_tool_and_every_argument_is_in_these_tables(state_dir: Path) -> None:
    async with connected(make_app(state_dir, targets=ON_OFFER)) as caller:
        tools = (await caller.client.list_tools()).tools
    assert {tool.name for tool in tools} == set(NEEDED)
    for tool in tools:
        tried = {argument for name, argument, _ in WRONG if name == tool.name}
        free = {"name", "limit", "concurrency", "operation_id", "prompt_tokens", "source"}
        assert set(tool.input_schema["properties"]) - tried <= free, tool.name
        assert sorted(tool.input_schema.get("required", [])) == sorted(
            key for key in NEEDED[tool.name]
        )


@pytest.mark.parametrize("era", ERAS)
async def test_every_tool_refuses_an_unknown_argument_by_name(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir, targets=ON_OFFER), era) as caller:
        for tool, needed in NEEDED.items():
            reply = await call(caller, tool, "dry_runn", SECRET)
            check_refused(reply, "dry_runn")
            assert tool in reply.text
            # What the tool does have, so that the call can be mended.
            for known in needed:
                assert known in reply.text
    assert not state_dir.exists()


@pytest.mark.parametrize("era", ERAS)
async def test_every_tool_refuses_a_wrong_value_by_name_without_echoing_it(
    state_dir: Path, era: Era, capfd: pytest.CaptureFixture[str]
) -> None:
    async with connected(make_app(state_dir, targets=ON_OFFER), era) as caller:
        for tool, argument, value in WRONG:
            reply = await call(caller, tool, argument, value)
            try:
                check_refused(reply, argument)
            except AssertionError as error:
                raise AssertionError(f"{tool}({argument}={value!r}): {error}") from error
    assert "error" not in capfd.readouterr().err.lower()
    logged = b"".join(tree_of(state_dir).values()) if state_dir.exists() else b""
    assert SECRET.encode() not in logged


@pytest.mark.parametrize("era", ERAS)
async def test_every_tool_names_a_missing_required_argument(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir, targets=ON_OFFER), era) as caller:
        for tool, needed in NEEDED.items():
            for argument in needed:
                left = {key: value for key, value in needed.items() if key != argument}
                reply = await caller.tool(tool, **left)
                check_refused(reply, argument)
                assert "required" in reply.text
    assert not state_dir.exists()


@pytest.mark.parametrize("era", ERAS)
async def test_an_unknown_target_is_refused_with_those_on_offer(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir, targets=ON_OFFER), era) as caller:
        for tool, needed in NEEDED.items():
            if "target" not in needed:
                continue
            reply = await call(caller, tool, "target", "cloudrun-h100")
            check_refused(reply, "target")
            assert "local" in reply.text
            assert CLOUD in reply.text


@pytest.mark.parametrize("era", ERAS)
async def test_an_unknown_deployment_is_refused_and_list_deployments_offered(
    state_dir: Path, era: Era
) -> None:
    async with connected(make_app(state_dir, targets=ON_OFFER), era) as caller:
        for tool, needed in NEEDED.items():
            if needed.get("target") != "local" or tool in {"plan_deployment", "deploy"}:
                continue
            reply = await call(caller, tool, "name", "nobody")
            assert reply.error["code"] == "not_found", reply.text
            assert "local" in reply.text
            assert "nobody" in reply.text
            assert "list_deployments" in reply.error["next_action"]
    assert not (state_dir / "deployments").exists()
    assert not (state_dir / "operations").exists()


async def test_a_name_left_out_with_nothing_deployed_says_how_to_begin(state_dir: Path) -> None:
    async with connected(make_app(state_dir, targets=ON_OFFER)) as caller:
        reply = await caller.tool("query_model", target="local", prompt="hello")
    assert reply.error["code"] == "not_found"
    assert "plan_deployment" in reply.error["next_action"]


async def test_paths_in_names_and_ids_reach_no_file(state_dir: Path, tmp_path: Path) -> None:
    secret = tmp_path / "operation.json"
    secret.write_text('{"id":"x","stolen":"treasure"}', encoding="utf-8")
    async with connected(make_app(state_dir, targets=ON_OFFER)) as caller:
        for outside in ("../..", "..", ".", "../../operation", str(tmp_path)):
            for tool, argument, more in (
                ("get_operation", "operation_id", {}),
                ("cancel_operation", "operation_id", {}),
                ("get_status", "name", {"target": "local"}),
                ("get_logs", "name", {"target": "local"}),
                ("destroy", "name", {"target": "local"}),
            ):
                reply = await caller.tool(tool, **(more | {argument: outside}))
                assert reply.error["code"] in {"not_found", "invalid_input"}, reply.text
                assert "treasure" not in reply.text
            reply = await caller.tool("get_benchmarks", benchmark_ids=[outside])
            assert reply.is_error
    assert secret.exists()


@pytest.mark.parametrize("era", ERAS)
def test_over_stdio_a_refused_value_is_neither_in_the_reply_nor_on_stderr(
    era: Era, state_dir: Path
) -> None:
    with Probe(
        era=era, env={"VLLM_DEVOPS_LOG_LEVEL": "INFO", "VLLM_DEVOPS_TARGETS": ",".join(ON_OFFER)}
    ) as probe:
        for tool, argument, value in WRONG:
            check_secret_free(probe.tool(tool, **(NEEDED[tool] | {argument: value})))
        stderr = probe.stderr
    assert SECRET not in stderr
    assert probe.foreign == []
    logged = b"".join(tree_of(state_dir).values()) if state_dir.exists() else b""
    assert SECRET.encode() not in logged

"""Settings: a wrong value never stops the server, is never echoed, and is always reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.app import App
from tests.support import fake_vllm
from tests.support.clients import FAST, connected, make_app
from tests.support.probe import ACCEPT, ERAS, ROOT, Era, Probe
from tests.support.processes import tree_of
from tests.support.reply import missing_in_text

KEY = "sk-operators-own-0123456789abcdef"

# variable, a wrong value, what is used instead
WRONG = [
    ("VLLM_DEVOPS_MODE", "everything", "read-only"),
    ("VLLM_DEVOPS_TARGETS", "moon", "cloudrun-l4"),
    ("VLLM_DEVOPS_TARGETS", "local,moon", "cloudrun-l4"),
    ("VLLM_DEVOPS_CONFIRM", "never", "person"),
    ("VLLM_DEVOPS_MAX_USD_PER_HOUR", "lots", "0"),
    ("VLLM_DEVOPS_MAX_USD_PER_HOUR", "-1", "0"),
    ("VLLM_DEVOPS_PLAN_TTL_MINUTES", "0", "15"),
    ("VLLM_DEVOPS_PLAN_TTL_MINUTES", "1e9", "15"),
    ("VLLM_DEVOPS_LOCAL_ENGINE", "sglang", "simulator"),
    ("VLLM_DEVOPS_LOCAL_USD_PER_HOUR", "cheap", "0"),
    ("VLLM_BASE_URL", "ftp://127.0.0.1", "(not set)"),
    ("VLLM_BASE_URL", "http://[", "(not set)"),
    ("VLLM_BASE_URL", "http://127.0.0.1:99999", "(not set)"),
    ("VLLM_BASE_URL", "http://a b", "(not set)"),
    ("VLLM_BASE_URL", "http://127.0.0.1:8000/?x=1", "(not set)"),
    ("VLLM_BASE_URL", f"http://user:{KEY}@127.0.0.1:1", "(not set)"),
    ("VLLM_DEVOPS_LOG_LEVEL", "LOUD", "WARNING"),
    ("VLLM_DEVOPS_STATE_DIR", "~nobody-of-that-name/state", "/"),
]


def settings_of(answer: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {row["variable"]: row for row in answer["settings"]}


@pytest.mark.parametrize(("variable", "value", "instead"), WRONG)
async def test_a_wrong_value_is_replaced_by_the_safest_and_reported(
    variable: str, value: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    async with connected(App.from_environment()) as caller:
        reply = await caller.tool("get_help", topic="settings")
        row = settings_of(reply.ok)[variable]
        assert row["value"].startswith(instead)
        assert row["problem"]
        assert missing_in_text(reply) == []
        assert KEY not in json.dumps(reply.whole)
        doctor = (await caller.tool("get_help", topic="doctor")).ok
        (check,) = [check for check in doctor["doctor"] if check["name"] == variable]
        assert check["ok"] is False
        # Also in an answer that has nothing to do with settings, in both of its parts.
        listed = await caller.tool("list_deployments")
        assert variable in listed.ok["warnings"][0]
        assert variable in listed.text


@pytest.mark.parametrize("era", ERAS)
def test_with_every_setting_wrong_at_once_the_server_starts_in_its_safest_state(era: Era) -> None:
    env = {variable: value for variable, value, _ in WRONG}
    with Probe(era=era, env=env) as probe:
        reply = probe.tool("get_help", topic="settings")
        rows = settings_of(reply.ok)
        assert {name for name, row in rows.items() if "problem" in row} == set(env)
        assert rows["VLLM_DEVOPS_MODE"]["value"] == "read-only"
        names = {tool["name"] for tool in probe.call("tools/list")["tools"]}
        assert "get_help" in names
        assert not names & {"deploy", "destroy", "run_benchmark"}
        assert KEY not in json.dumps(reply.whole) + probe.stderr
        assert probe.foreign == []


async def test_an_empty_variable_is_an_unset_one(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client's configuration expands ${VAR:-} to nothing.
    for variable, _, _ in WRONG:
        monkeypatch.setenv(variable, "")
    app = App.from_environment()
    assert app.problems == ()
    assert app.settings.mode.value == "full"
    assert app.state.root == state_dir


async def test_the_environment_wins_over_the_env_file_which_wins_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.env"
    file.write_text(
        "VLLM_DEVOPS_MODE=no-destroy\nVLLM_DEVOPS_PLAN_TTL_MINUTES=3\nUNKNOWN=1\n", encoding="utf-8"
    )
    monkeypatch.setenv("VLLM_DEVOPS_ENV_FILE", str(file))
    monkeypatch.setenv("VLLM_DEVOPS_MODE", "read-only")
    settings = App.from_environment().settings
    assert settings.mode.value == "read-only"
    assert settings.plan_ttl_minutes == 3
    assert settings.confirm.value == "person"


async def test_an_env_file_that_cannot_be_read_is_reported_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.env"
    file.write_bytes(b"VLLM_DEVOPS_MODE=\xff\xfe\n")
    monkeypatch.setenv("VLLM_DEVOPS_ENV_FILE", str(file))
    async with connected(App.from_environment()) as caller:
        answer = (await caller.tool("get_help", topic="settings")).ok
    assert "cannot be read" in settings_of(answer)[str(file)]["problem"]
    assert str(file) in answer["warnings"][0]


async def test_the_api_key_reaches_the_engine_and_nothing_else(
    state_dir: Path, tmp_path: Path
) -> None:
    app = make_app(
        state_dir,
        api_key=KEY,
        confirm="plan",
        vllm_bin=str(fake_vllm.make_program(tmp_path / "vllm")),
    )
    replies = []
    async with connected(app) as caller:
        for name, more in (
            ("sim", {"options": FAST}),
            ("real", {"model": "google/gemma-4-E2B-it", "options": {"engine": "vllm"}}),
        ):
            where = {"target": "local", "name": name}
            planned = await caller.tool("plan_deployment", **where, format="shell", **more)
            replies.append(planned)
            replies.append(await caller.tool("deploy", target="local", plan_id=planned.plan_id))
            ready = await caller.tool("wait_until_ready", **where, timeout_s=20)
            assert ready.ok["state"] == "ready"
            replies += [ready, await caller.tool("get_status", **where, detail=True)]
            # The engine wants the key, so an answer proves that it was given to both sides.
            answer = await caller.tool("query_model", **where, prompt="hello", max_tokens=16)
            assert answer.ok["usage"]["completion_tokens"] > 0
            started = await caller.tool(
                "run_benchmark", **where, concurrency=[1], requests=1, max_tokens=16
            )
            operation = started.ok["operation_id"]
            done = await caller.tool("get_operation", operation_id=operation, wait_s=30)
            assert done.ok["state"] == "succeeded"
            replies += [answer, started, done, await caller.tool("get_logs", **where)]
        for topic in ("settings", "doctor"):
            replies.append(await caller.tool("get_help", topic=topic))
        files = tree_of(state_dir)
        for name in ("sim", "real"):
            await caller.destroy(name)
    assert any(path.endswith("engine.log") for path in files)
    assert "audit.jsonl" in files
    for reply in replies:
        assert KEY not in json.dumps(reply.whole)
    for path, content in files.items():
        assert KEY.encode() not in content, path


@pytest.mark.parametrize("era", ERAS)
async def test_a_state_directory_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, era: Era
) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("not a folder", encoding="utf-8")
    async with connected(make_app(blocked / "state"), era) as caller:
        for tool, arguments in (
            ("plan_deployment", {"target": "local", "options": FAST}),
            ("deploy", {"target": "local", "options": FAST}),
            ("cancel_operation", {"operation_id": "op-none"}),
        ):
            reply = await caller.tool(tool, **arguments)
            assert reply.error["code"] == "settings", reply.text
            assert str(blocked / "state") in reply.text
            assert "VLLM_DEVOPS_STATE_DIR" in reply.error["next_action"]
        # What needs no file goes on.
        assert (await caller.tool("list_deployments")).ok["items"] == []
        doctor = (await caller.tool("get_help", topic="doctor")).ok["doctor"]
        (check,) = [check for check in doctor if check["name"] == "state directory"]
        assert check["ok"] is False
        assert "VLLM_DEVOPS_STATE_DIR" in check["detail"]


async def test_the_state_directory_is_readable_by_its_owner_only(state_dir: Path) -> None:
    async with connected(make_app(state_dir, confirm="plan")) as caller:
        await caller.deploy("demo")
        modes = {
            str(path.relative_to(state_dir)): path.stat().st_mode & 0o777
            for path in [state_dir, *state_dir.rglob("*.json*")]
        }
        await caller.destroy("demo")
    assert modes["."] == 0o700
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes


async def test_asking_about_settings_does_not_make_a_state_directory(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        for topic in ("overview", "settings", "targets", "options", "errors"):
            (await caller.tool("get_help", topic=topic)).expect_ok()
        (await caller.tool("list_deployments")).expect_ok()
        (await caller.tool("get_operation")).expect_ok()
        (await caller.tool("get_benchmarks")).expect_ok()
        assert await caller.client.read_resource("audit://log")
    assert not state_dir.exists()


def test_a_relative_state_directory_is_one_place_for_every_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", "state/of mine")
    found = []
    for folder in (tmp_path, ROOT):
        monkeypatch.chdir(folder)
        found.append(App.from_environment().state.root)
    assert found == [ROOT / "state" / "of mine"] * 2


def test_the_example_file_lists_every_setting_and_is_what_the_program_prints() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "backends.core.settings"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ.copy(),
    ).stdout
    for variable, _, _ in WRONG:
        assert f"# {variable}=" in printed
    assert (ROOT / ".env.example").read_text(encoding="utf-8") == printed


def test_elsewhere_written_settings_reach_the_worker_too(tmp_path: Path) -> None:
    """A worker must find the state directory and the key also when `.env` holds them."""
    file = tmp_path / "settings.env"
    state = tmp_path / "elsewhere"
    file.write_text(
        f"VLLM_DEVOPS_STATE_DIR={state}\nVLLM_API_KEY={KEY}\nVLLM_DEVOPS_CONFIRM=plan\n",
        encoding="utf-8",
    )
    env = {"VLLM_DEVOPS_ENV_FILE": str(file)}
    with Probe(env=env, answering=lambda _: ACCEPT) as probe:
        planned = probe.tool("plan_deployment", target="local", name="demo", options=FAST)
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        assert probe.tool("wait_until_ready", target="local").ok["state"] == "ready"
        started = probe.tool(
            "run_benchmark", target="local", concurrency=[1], requests=1, max_tokens=16
        )
        operation = started.ok["operation_id"]
        done = probe.tool("get_operation", operation_id=operation, wait_s=30)
        assert done.ok["state"] == "succeeded", done.text


def test_showing_the_settings_to_a_reader_that_leaves_early_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    shown = subprocess.run(
        [sys.executable, "-m", "backends.rehearsal.show_env"],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        timeout=30,
        check=False,
    )
    os.close(writer)
    assert shown.stderr == b""

"""Engines that fail: what waiting, status and the next call say, from the engine's own words."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from backends.core.state import write_json
from tests.serving.mock_servers import Reply, Route, scripted, whole
from tests.support.clients import connected, make_app
from tests.support.probe import ERAS, Era
from tests.support.processes import gone, wait_for
from tests.support.reply import missing_in_text


def record_of(state_dir: Path, name: str = "demo") -> dict[str, Any]:
    path = state_dir / "deployments" / "local" / name / "deployment.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(record, dict)
    return record


@pytest.mark.parametrize(
    ("failure", "cause", "words"),
    [
        ("oom", "memory", "OutOfMemoryError"),
        ("kv", "KV cache", "KV cache"),
        ("bad-model", "model", "cached snapshot folder"),
    ],
)
async def test_a_start_that_fails_says_why_in_the_logs_words(
    state_dir: Path, failure: str, cause: str, words: str
) -> None:
    async with connected(make_app(state_dir)) as caller:
        (await caller.deploy("demo", fail=failure)).expect_ok()
        reply = await caller.tool("wait_until_ready", target="local", timeout_s=20)
        answer = reply.ok
        assert answer["state"] == "failed"
        assert answer["ready"] is False
        assert words.lower() in answer["error"].lower()
        assert cause.lower() in answer["error_cause"].lower()
        assert "while starting" in answer["summary"]
        assert "get_logs(target='local', name='demo')" in answer["next_steps"]
        assert missing_in_text(reply) == []
        # Whoever asks next is told the same and not a refused connection.
        asked = await caller.tool("query_model", target="local", prompt="hello")
        assert asked.error["code"] == "conflict"
        assert words.lower() in asked.error["words"].lower()
        health = await caller.tool("verify_model_health", target="local")
        assert health.error["code"] == "conflict"
        (item,) = (await caller.tool("list_deployments")).ok["items"]
        assert item["state"] == "failed"
        logs = (await caller.tool("get_logs", target="local", lines=200)).ok
        assert words.lower() in logs["text"].lower()


async def test_an_engine_that_dies_of_a_request_is_failed_with_its_last_words(
    state_dir: Path,
) -> None:
    async with connected(make_app(state_dir)) as caller:
        await caller.deploy("demo", fail="crash-after:1")
        ready = await caller.tool("wait_until_ready", target="local", timeout_s=20)
        assert ready.ok["state"] == "ready"
        pid = record_of(state_dir)["pid"]
        for _ in range(2):
            reply = await caller.tool("query_model", target="local", prompt="hello", max_tokens=16)
        assert reply.is_error
        assert reply.error["next_action"]
        # For a few seconds vLLM's API process outlives its engine: degraded, not ready.
        status = (await caller.tool("get_status", target="local")).ok
        assert status["state"] in {"degraded", "failed"}
        await asyncio.to_thread(wait_for, lambda: gone(pid))
        status = (await caller.tool("get_status", target="local")).ok
        assert status["state"] == "failed"
        assert "after it was ready" in status["summary"]
        assert "engine core exited unexpectedly" in status["error"]
        again = await caller.tool("start_serving", target="local", name="demo")
        assert again.ok["state"] == "starting"


async def test_an_engine_that_never_gets_ready_is_starting_and_the_wait_is_bounded(
    state_dir: Path,
) -> None:
    async with connected(make_app(state_dir)) as caller:
        await caller.deploy("demo", fail="stall-startup")
        reply = await caller.tool("wait_until_ready", target="local", timeout_s=1.5)
        answer = reply.ok
        assert answer["state"] == "starting"
        assert answer["waited_s"] <= 1.7
        assert answer["next_steps"] == ["wait_until_ready(target='local', name='demo')"]
        query = await caller.tool("query_model", target="local", prompt="hello")
        assert query.error["code"] == "conflict"
        assert "wait_until_ready" in query.error["next_action"]
        await caller.destroy("demo")


async def test_a_request_that_stalls_does_not_hang_the_caller_or_the_server(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backends.core import tools

    monkeypatch.setattr(tools, "CALL_LIMIT_S", 2.0)
    async with connected(make_app(state_dir)) as caller:
        await caller.deploy("demo", fail="stall")
        await caller.tool("wait_until_ready", target="local", timeout_s=20)
        stuck = asyncio.create_task(caller.tool("query_model", target="local", prompt="hello"))
        assert (await caller.tool("list_deployments")).ok["total"] == 1
        reply = await stuck
        assert reply.is_error
        assert reply.error["next_action"]
        (await caller.destroy("demo")).expect_ok()


@pytest.mark.parametrize("era", ERAS)
async def test_an_engine_killed_behind_our_back_is_failed_also_for_the_next_server(
    state_dir: Path, era: Era
) -> None:
    async with connected(make_app(state_dir), era) as caller:
        await caller.deploy("demo")
        await caller.tool("wait_until_ready", target="local", timeout_s=20)
        pid = record_of(state_dir)["pid"]
        os.killpg(pid, signal.SIGKILL)
        await asyncio.to_thread(wait_for, lambda: gone(pid))
        status = (await caller.tool("get_status", target="local")).ok
        assert status["state"] == "failed"
        assert "start_serving(target='local', name='demo')" in status["next_steps"]
    async with connected(make_app(state_dir), era) as caller:
        status = (await caller.tool("get_status", target="local")).ok
        assert status["state"] == "failed"
        stopping = await caller.tool("stop_serving", target="local", name="demo")
        assert stopping.error["code"] == "conflict", "there is nothing to stop"
        (await caller.tool("start_serving", target="local", name="demo")).expect_ok()
        ready = await caller.tool("wait_until_ready", target="local", timeout_s=20)
        assert ready.ok["state"] == "ready"
        logs = await caller.tool("get_logs", target="local", source="previous")
        assert logs.ok["lines"] > 0


async def test_a_restarted_server_knows_what_runs(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        await caller.deploy("demo")
    async with connected(make_app(state_dir)) as caller:
        ready = await caller.tool("wait_until_ready", target="local", timeout_s=20)
        assert ready.ok["state"] == "ready"


async def test_an_engine_whose_pid_was_never_written_down_is_found_again(state_dir: Path) -> None:
    path = state_dir / "deployments" / "local" / "demo" / "deployment.json"
    async with connected(make_app(state_dir)) as caller:
        await caller.deploy("demo")
        record = record_of(state_dir)
        # As if the server had died between starting the process and writing its pid.
        lost = record | {"pid": None, "pid_created": None}
        write_json(path, lost)
    async with connected(make_app(state_dir, confirm="plan")) as caller:
        ready = await caller.tool("wait_until_ready", target="local", timeout_s=20)
        assert ready.ok["state"] == "ready"
        assert record_of(state_dir)["pid"] == record["pid"]
        (await caller.destroy("demo")).expect_ok()
    assert gone(record["pid"])


async def test_a_foreign_process_that_got_the_old_pid_is_not_taken_for_ours_nor_killed(
    state_dir: Path,
) -> None:
    path = state_dir / "deployments" / "local" / "demo" / "deployment.json"
    async with connected(make_app(state_dir, confirm="plan")) as caller:
        await caller.deploy("demo")
        record = record_of(state_dir)
        os.killpg(record["pid"], signal.SIGKILL)
        await asyncio.to_thread(wait_for, lambda: gone(record["pid"]))
        # A process of somebody else, created at another time: this one.
        write_json(path, record | {"pid": os.getpid()})
        status = (await caller.tool("get_status", target="local")).ok
        assert status["state"] == "failed"
        (await caller.destroy("demo")).expect_ok()
    assert not path.exists()


async def test_a_deployment_stopped_under_load_can_be_started_again_at_once(
    state_dir: Path,
) -> None:
    async with connected(make_app(state_dir, confirm="plan")) as caller:
        await caller.deploy("demo")
        await caller.tool("wait_until_ready", target="local", timeout_s=20)
        busy = asyncio.create_task(
            caller.tool("query_model", target="local", prompt="hello", max_tokens=4000)
        )
        await asyncio.sleep(0.3)
        planned = await caller.tool("stop_serving", target="local", name="demo")
        stopped = await caller.tool(
            "stop_serving", target="local", name="demo", plan_id=planned.plan_id
        )
        stopped.expect_ok()
        cut = await busy
        assert cut.is_error
        assert cut.error["next_action"]
        (await caller.tool("start_serving", target="local", name="demo")).expect_ok()
        ready = await caller.tool("wait_until_ready", target="local", timeout_s=20)
        assert ready.ok["state"] == "ready"


async def test_a_damaged_record_is_listed_as_unknown_and_hides_none_of_the_others(
    state_dir: Path,
) -> None:
    async with connected(make_app(state_dir)) as caller:
        await caller.deploy("demo")
        folder = state_dir / "deployments" / "local" / "broken"
        folder.mkdir()
        (folder / "deployment.json").write_text("{half", encoding="utf-8")
        listed = (await caller.tool("list_deployments")).ok
        states = {item["name"]: item["state"] for item in listed["items"]}
        assert states.keys() == {"broken", "demo"}
        assert states["broken"] == "unknown"
        assert states["demo"] != "unknown"
        assert str(folder / "deployment.json") in str(listed)
        assert (await caller.tool("get_status", target="local", name="demo")).ok
        reply = await caller.tool("get_status", target="local", name="broken")
        assert str(folder / "deployment.json") in reply.text


async def test_an_engine_that_was_ready_and_hangs_is_degraded_and_not_starting(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.local.looking._LISTENS_WITHIN_S", 0.0)
    monkeypatch.setattr("backends.local.looking._HEALTH_TIMEOUT_S", 0.3)
    async with connected(make_app(state_dir, confirm="plan")) as caller:
        await caller.deploy("demo")
        await caller.tool("wait_until_ready", target="local", timeout_s=20)
        # The engine's log says when it became ready in whole seconds.
        await asyncio.sleep(1.1)
        pid = record_of(state_dir)["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            status = (await caller.tool("get_status", target="local")).ok
        finally:
            os.kill(pid, signal.SIGCONT)
        assert status["state"] == "degraded"
        assert "was ready, runs, and does not answer" in status["summary"]
        assert any("restart=true" in step for step in status["next_steps"])
        ready = await caller.tool("wait_until_ready", target="local", timeout_s=20)
        assert ready.ok["state"] == "ready"
        (await caller.destroy("demo")).expect_ok()


async def test_a_stranger_on_the_port_of_a_starting_engine_is_not_taken_for_it(
    state_dir: Path,
) -> None:
    async with connected(make_app(state_dir, confirm="plan")) as caller:
        await caller.deploy("demo", startup_speed=1)
        port = record_of(state_dir)["port"]
        models = b'{"object":"list","data":[{"id":"stranger","object":"model"}]}'
        routes: dict[str, Route | Reply] = {
            "/health": whole(200, b""),
            "/v1/models": whole(200, models),
            "/version": whole(200, b'{"version":"1"}'),
        }
        async with scripted(routes, port=port):
            status = (await caller.tool("get_status", target="local")).ok
            assert status["state"] == "degraded"
            assert f"something else answers on its port {port}" in status["summary"]
            assert "models" not in status
        assert (await caller.tool("get_status", target="local")).ok["state"] == "starting"
        (await caller.destroy("demo")).expect_ok()

"""Plans: what is shown is what is run, once, and only while the world is as it was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from tests.support import fake_vllm
from tests.support.clients import FAST, Caller, connected, make_app
from tests.support.probe import ERAS, Era
from tests.support.processes import gone, tree_of, wait_for
from tests.support.reply import Reply


def record_of(state_dir: Path, name: str) -> dict[str, Any]:
    path = state_dir / "deployments" / "local" / name / "deployment.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(record, dict)
    return record


def deployments(state_dir: Path) -> list[str]:
    folder = state_dir / "deployments" / "local"
    return sorted(path.name for path in folder.glob("[!.]*"))


def check_plan_refused(reply: Reply, reason: str) -> None:
    error = reply.error
    assert (error["code"], error["reason"]) == ("plan", reason), reply.text


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("era", ERAS)
async def test_deploy_without_a_plan_id_only_plans(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir), era) as caller:
        answer = (await caller.tool("deploy", target="local", name="demo", options=FAST)).ok
        assert answer["summary"].startswith("Plan only, nothing done yet")
        assert answer["steps"][0]["creates"]
        assert answer["steps"][0]["undo"] == "destroy(target='local', name='demo')"
        assert answer["price"]["usd_per_hour"] == 0
        listed = (await caller.tool("list_deployments")).ok
    assert listed["items"] == []
    assert deployments(state_dir) == []


async def test_the_command_shown_is_the_command_run(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        planned = await caller.tool("plan_deployment", target="local", name="demo", options=FAST)
        shown = planned.ok["steps"][0]["command"]
        done = (await caller.tool("deploy", target="local", plan_id=planned.plan_id)).ok
        running = psutil.Process(record_of(state_dir, "demo")["pid"]).cmdline()
    assert " ".join(running) == shown
    assert done["plan_hash"] == planned.ok["plan_hash"]


async def test_the_plan_as_a_script_holds_the_same_command_and_its_undo(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        planned = await caller.tool(
            "plan_deployment", target="local", name="demo", format="shell", options=FAST
        )
    script = planned.ok["document"]
    subprocess.run(["bash", "-n", "-c", script], check=True)
    assert planned.ok["steps"][0]["command"] in script.splitlines()
    assert "undo: destroy(target='local', name='demo')" in script


async def test_planning_changes_nothing_but_the_plan_book(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        for _ in range(3):
            await caller.plan("demo")
    written = tree_of(state_dir)
    assert len(written) == 3
    assert all(path.startswith("plans/") for path in written)


@pytest.mark.parametrize("era", ERAS)
async def test_a_plan_id_works_once(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir), era) as caller:
        plan_id = await caller.plan("demo")
        (await caller.tool("deploy", target="local", plan_id=plan_id)).expect_ok()
        check_plan_refused(await caller.tool("deploy", target="local", plan_id=plan_id), "used")
        await caller.destroy("demo")
        check_plan_refused(await caller.tool("deploy", target="local", plan_id=plan_id), "used")
    assert deployments(state_dir) == []


async def test_of_two_servers_given_the_same_plan_id_at_once_exactly_one_runs_it(
    state_dir: Path,
) -> None:
    async with (
        connected(make_app(state_dir)) as one,
        connected(make_app(state_dir)) as two,
    ):
        plan_id = await one.plan("demo")
        replies = await asyncio.gather(
            *(c.tool("deploy", target="local", plan_id=plan_id) for c in (one, two, one, two))
        )
    won = [reply for reply in replies if not reply.is_error]
    assert len(won) == 1
    for reply in replies:
        if reply.is_error:
            assert reply.error["code"] == "plan"
            assert reply.error["reason"] in {"used", "stale"}
    plans = [
        json.loads(line)
        for line in (state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert sum(line["event"] == "plan" for line in plans) == 1


async def test_a_plan_id_expires(state_dir: Path) -> None:
    async with connected(make_app(state_dir, plan_ttl_minutes=0.001)) as caller:
        plan_id = await caller.plan("demo")
        await asyncio.sleep(0.07)
        check_plan_refused(await caller.tool("deploy", target="local", plan_id=plan_id), "expired")
    assert deployments(state_dir) == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_plan_id_does_not_fit_another_verb_name_or_argument(
    state_dir: Path, era: Era
) -> None:
    async with connected(make_app(state_dir, confirm="plan"), era) as caller:
        plan_id = await caller.plan("demo")
        for tool in ("destroy", "stop_serving"):
            reply = await caller.tool(tool, target="local", name="demo", plan_id=plan_id)
            check_plan_refused(reply, "mismatch")
        for other in (
            {"name": "other"},
            {"max_num_seqs": 3},
            {"max_model_len": 4096},
            {"model": "gemma-4-E4B-it"},
            {"options": {"startup_speed": 7}},
            {"options": {"fail": "oom"}},
        ):
            reply = await caller.tool("deploy", target="local", plan_id=plan_id, **other)
            check_plan_refused(reply, "mismatch")
        unknown = await caller.tool("deploy", target="local", plan_id="plan-20261130-000000-dead")
        check_plan_refused(unknown, "unknown")
        assert deployments(state_dir) == []
        # None of these has used the id up, and what agrees with the plan may be repeated.
        again = await caller.tool(
            "deploy", target="local", name="demo", options=FAST, plan_id=plan_id
        )
        assert again.ok["state"] == "starting"
        await caller.destroy("demo")


async def test_a_destroy_plan_does_not_fit_another_deployment(state_dir: Path) -> None:
    async with connected(make_app(state_dir, confirm="plan")) as caller:
        await caller.deploy("one")
        await caller.deploy("two")
        planned = await caller.tool("destroy", target="local", name="one")
        reply = await caller.tool("destroy", target="local", name="two", plan_id=planned.plan_id)
        check_plan_refused(reply, "mismatch")
    assert deployments(state_dir) == ["one", "two"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_plan_whose_port_was_taken_meanwhile_is_refused_and_works_once_it_is_free(
    state_dir: Path, era: Era
) -> None:
    async with connected(make_app(state_dir), era) as caller:
        port = free_port()
        plan_id = await caller.plan("demo", port=port)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            sock.listen()
            reply = await caller.tool("deploy", target="local", plan_id=plan_id)
            check_plan_refused(reply, "stale")
            assert f"Port {port}" in reply.text
            assert "Nothing was done" in reply.text
            assert deployments(state_dir) == []
        (await caller.tool("deploy", target="local", plan_id=plan_id)).expect_ok()
        await caller.destroy("demo")


async def test_a_taken_port_is_refused_when_planning(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        with listening() as port:
            reply = await caller.tool("plan_deployment", target="local", options={"port": port})
    assert reply.error["code"] == "conflict"
    assert str(port) in reply.text
    assert "options.port" in reply.error["next_action"]


async def test_a_plan_whose_name_was_taken_meanwhile_is_refused(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        first = await caller.plan("demo")
        await caller.deploy("demo")
        pid = record_of(state_dir, "demo")["pid"]
        reply = await caller.tool("deploy", target="local", plan_id=first)
        check_plan_refused(reply, "stale")
        assert "exists already" in reply.text
        assert record_of(state_dir, "demo")["pid"] == pid
        taken = await caller.tool("plan_deployment", target="local", name="demo")
        assert taken.error["code"] == "conflict"


async def test_a_destroy_plan_is_refused_with_the_difference_when_the_process_changed(
    state_dir: Path,
) -> None:
    async with connected(make_app(state_dir, confirm="plan")) as caller:
        await caller.deploy("demo")
        pid = record_of(state_dir, "demo")["pid"]
        planned = await caller.tool("destroy", target="local", name="demo")
        (await caller.tool("start_serving", target="local", name="demo", restart=True)).expect_ok()
        now = record_of(state_dir, "demo")["pid"]
        reply = await caller.tool("destroy", target="local", name="demo", plan_id=planned.plan_id)
        check_plan_refused(reply, "stale")
        assert f"pid {pid}" in reply.error["message"]
        assert f"pid {now}" in reply.error["message"]
        assert not gone(now)


async def test_a_plan_survives_a_restart_of_the_server(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        plan_id = await caller.plan("demo")
    async with connected(make_app(state_dir)) as caller:
        assert (await caller.tool("deploy", target="local", plan_id=plan_id)).ok["name"] == "demo"
        await caller.destroy("demo")


async def plan_vllm(caller: Caller, name: str) -> Reply:
    return await caller.tool(
        "plan_deployment",
        target="local",
        name=name,
        model="google/gemma-4-E2B-it",
        options={"engine": "vllm"},
    )


async def test_a_budget_counts_what_already_runs_and_refuses_what_would_exceed_it(
    state_dir: Path, tmp_path: Path
) -> None:
    app = make_app(
        state_dir,
        max_usd_per_hour=1.0,
        local_usd_per_hour=0.6,
        confirm="plan",
        vllm_bin=str(fake_vllm.make_program(tmp_path / "vllm")),
    )
    async with connected(app) as caller:
        first, second = await plan_vllm(caller, "one"), await plan_vllm(caller, "two")
        assert first.ok["price"]["usd_per_hour"] == 0.6
        (await caller.tool("deploy", target="local", plan_id=first.plan_id)).expect_ok()
        assert (await caller.tool("list_deployments")).ok["usd_per_hour_now"] == 0.6
        # Neither a plan made while there was room nor a new one gets through.
        for reply in (
            await caller.tool("deploy", target="local", plan_id=second.plan_id),
            await plan_vllm(caller, "three"),
        ):
            assert reply.error["code"] == "over_budget"
            for figure in ("0.6", "1.0"):
                assert figure in reply.error["message"]
            assert "VLLM_DEVOPS_MAX_USD_PER_HOUR" in reply.text
        assert deployments(state_dir) == ["one"]
        # What costs nothing is no matter of budget.
        (await caller.deploy("free")).expect_ok()
        await caller.destroy("one")
        (await caller.tool("deploy", target="local", plan_id=second.plan_id)).expect_ok()
        for name in ("free", "two"):
            await caller.destroy(name)
        assert (await caller.tool("list_deployments")).ok["usd_per_hour_now"] == 0


async def test_starting_a_stopped_deployment_again_is_a_matter_of_budget(
    state_dir: Path, tmp_path: Path
) -> None:
    app = make_app(
        state_dir,
        max_usd_per_hour=1.0,
        local_usd_per_hour=0.6,
        confirm="plan",
        vllm_bin=str(fake_vllm.make_program(tmp_path / "vllm")),
    )
    async with connected(app) as caller:
        for name in ("one", "two"):
            planned = await plan_vllm(caller, name)
            (await caller.tool("deploy", target="local", plan_id=planned.plan_id)).expect_ok()
            stopping = await caller.tool("stop_serving", target="local", name=name)
            await caller.tool("stop_serving", target="local", name=name, plan_id=stopping.plan_id)
        (await caller.tool("start_serving", target="local", name="one")).expect_ok()
        reply = await caller.tool("start_serving", target="local", name="two")
        assert reply.error["code"] == "over_budget"
        assert record_of(state_dir, "two")["stopped_at"] is not None


async def test_a_process_that_cannot_be_started_leaves_no_deployment_behind(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> NoReturn:
        raise OSError(12, "Cannot allocate memory")

    async with connected(make_app(state_dir)) as caller:
        plan_id = await caller.plan("demo")
        monkeypatch.setattr(subprocess, "Popen", no_memory)
        reply = await caller.tool("deploy", target="local", plan_id=plan_id)
        monkeypatch.undo()
        assert reply.error["code"] == "step_failed"
        assert reply.error["failure"] == "engine_failed"
        assert "Step 1 of 1" in reply.text
        assert "Cannot allocate memory" in reply.error["words"]
        assert deployments(state_dir) == []
        # So the name is free again.
        (await caller.deploy("demo")).expect_ok()


async def test_a_step_that_fails_half_way_says_what_the_steps_before_it_did(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> NoReturn:
        raise OSError(16, "Device or resource busy")

    async with connected(make_app(state_dir, confirm="plan")) as caller:
        await caller.deploy("demo")
        pid = record_of(state_dir, "demo")["pid"]
        planned = await caller.tool("destroy", target="local", name="demo")
        monkeypatch.setattr(shutil, "rmtree", busy)
        reply = await caller.tool("destroy", target="local", name="demo", plan_id=planned.plan_id)
        monkeypatch.undo()
        assert reply.error["code"] == "step_failed", reply.text
        assert "Step 2 of 2" in reply.error["message"]
        assert "Device or resource busy" in reply.text
        assert f"stopped pid {pid}" in reply.error["done_before_the_failure"]
        assert wait_for(lambda: gone(pid))
        assert deployments(state_dir) == ["demo"]
        assert (await caller.destroy("demo")).ok["done"][0] == "it was not running"
    assert deployments(state_dir) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("profile", {"a": 1}),
        ("profile", ["cloudrun-l4"]),
        ("extra_args", [{"a": 1}]),
        ("port", {}),
        ("startup_speed", 1e-300),
        ("startup_speed", 1e308),
    ],
)
async def test_a_wrong_option_is_named_once_whatever_it_holds(
    state_dir: Path, option: str, value: object
) -> None:
    async with connected(make_app(state_dir)) as caller:
        reply = await caller.tool("plan_deployment", target="local", options={option: value})
    assert reply.error["field"].startswith(f"options.{option}")
    assert ", " not in reply.error["field"]


async def test_an_option_that_is_null_is_one_that_was_not_said(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        reply = await caller.tool("plan_deployment", target="local", options={"port": None})
    assert reply.plan_id

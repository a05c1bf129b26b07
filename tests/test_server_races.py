"""Several calls change one deployment at once, through one server or two: one engine is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest

from backends.core.plans import Plan
from backends.local.backend import LocalBackend
from backends.local.records import MARK
from tests.support.clients import FAST, Caller, connected, make_app

WHERE = {"target": "local", "name": "demo"}


@asynccontextmanager
async def two_servers(state_dir: Path) -> AsyncIterator[tuple[Caller, Caller]]:
    """Clients of two servers on one state directory."""
    async with AsyncExitStack() as stack:
        apps = [make_app(state_dir, confirm="plan") for _ in range(2)]
        first, second = [await stack.enter_async_context(connected(app)) for app in apps]
        yield first, second
        # What a failing test left without a record, nothing else would end.
        for pid in engines(state_dir):
            psutil.Process(pid).kill()


def engines(state_dir: Path) -> list[int]:
    """The processes that carry the mark of a deployment in this state directory."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(MARK, "").startswith(str(state_dir))
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


async def test_plans_of_one_name_run_at_once_start_one_engine(state_dir: Path) -> None:
    async with two_servers(state_dir) as callers:
        ids = [await caller.plan("demo") for caller in callers * 3]
        replies = await asyncio.gather(
            *(
                caller.tool("deploy", target="local", plan_id=plan_id)
                for caller, plan_id in zip(callers * 3, ids, strict=True)
            )
        )
        assert sum(not reply.is_error for reply in replies) == 1
        assert all("exists already" in reply.text for reply in replies if reply.is_error)
        assert len(engines(state_dir)) == 1


@pytest.mark.parametrize("restart", [False, True])
async def test_starts_at_once_leave_one_engine(state_dir: Path, restart: bool) -> None:
    async with two_servers(state_dir) as callers:
        first = callers[0]
        await first.deploy("demo")
        planned = await first.tool("stop_serving", **WHERE)
        (await first.tool("stop_serving", **WHERE, plan_id=planned.plan_id)).expect_ok()
        replies = await asyncio.gather(
            *(caller.tool("start_serving", **WHERE, restart=restart) for caller in callers * 2)
        )
        for reply in replies:
            reply.expect_ok()
        assert len(engines(state_dir)) == 1
        (await first.destroy("demo")).expect_ok()
        assert engines(state_dir) == []


async def test_an_engine_started_between_the_steps_of_a_destroy_does_not_outlive_it(
    state_dir: Path,
) -> None:
    app = make_app(state_dir)
    async with connected(app) as caller:
        await caller.deploy("demo")
        backend = app.backends.get("local")
        assert isinstance(backend, LocalBackend)
        plan: Plan = await backend.plan_destroy("demo")
        stop, remove = plan.steps
        await backend.run_step(plan, stop)
        (await caller.tool("start_serving", **WHERE)).expect_ok()
        await backend.run_step(plan, remove)
        assert engines(state_dir) == []
        assert list((state_dir / "deployments" / "local").iterdir()) == []


async def test_the_port_of_a_deployment_that_does_not_listen_is_not_given_to_another(
    state_dir: Path,
) -> None:
    async with connected(make_app(state_dir, confirm="plan")) as caller:
        await caller.deploy("demo")
        port = int((await caller.tool("get_status", **WHERE)).ok["url"].rpartition(":")[2])
        planned = await caller.tool("stop_serving", **WHERE)
        (await caller.tool("stop_serving", **WHERE, plan_id=planned.plan_id)).expect_ok()
        refused = await caller.tool(
            "plan_deployment", target="local", name="other", options=FAST | {"port": port}
        )
        assert "taken by another deployment" in refused.text
        assert refused.error["code"] == "conflict"

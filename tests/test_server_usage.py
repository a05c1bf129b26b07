"""Lists with cost, last requests and what could be saved; the idle rule; time-to-live."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.core.answers import Deployment
from backends.core.state import stamp
from backends.local import LocalBackend
from tests.support.clients import Caller, connected, make_app


def ago(hours: float) -> str:
    return stamp(datetime.now(UTC) - timedelta(hours=hours))


def fake(monkeypatch: pytest.MonkeyPatch, items: list[Deployment], last: float | None) -> None:
    """What the cloud of a test says: deployments, and when a request last came."""

    async def deployments(self: LocalBackend) -> list[Deployment]:
        del self
        return [item.model_copy() for item in items]

    async def last_request_at(self: LocalBackend, name: str) -> float | None:
        del self, name
        return last

    monkeypatch.setattr(LocalBackend, "deployments", deployments)
    monkeypatch.setattr(LocalBackend, "last_request_at", last_request_at)


def running(**more: object) -> Deployment:
    facts = {"target": "local", "name": "demo", "state": "ready", "usd_per_hour": 2.0}
    return Deployment.model_validate(facts | {"created_at": ago(10)} | more)


async def test_what_nobody_has_asked_for_hours_could_be_saved_and_every_answer_says_so(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, [running()], time.time() - 3 * 3600)
    async with connected(make_app(state_dir, idle_minutes=60)) as caller:
        before = await caller.tool("get_help")
        listed = (await caller.tool("list_deployments")).ok
        after = await caller.tool("get_help")
    (item,) = listed["items"]
    assert item["usd_since_start_at_most"] == pytest.approx(20, abs=0.1)
    assert item["no_request_for_h"] == pytest.approx(3, abs=0.05)
    (saving,) = listed["could_save"]
    assert saving["usd_per_hour"] == 2
    assert saving["call"] == "destroy(target='local', name='demo')"
    assert "nobody uses it" in after.text
    assert "local/demo" in after.text
    assert "nobody uses it" not in before.text, "nothing is asked only to warn"


@pytest.mark.parametrize(
    ("item", "last", "idle_minutes"),
    [
        (running(), time.time() - 60, 60),
        (running(), None, 60),
        (running(created_at=ago(0.2)), 0.0, 60),
        (running(), 0.0, 0),
        (running(usd_per_hour=0.0, state="scaled_to_zero"), 0.0, 60),
    ],
    ids=["used", "unknown is not idle", "just started", "rule is off", "costs nothing"],
)
async def test_what_is_used_young_free_or_unknown_is_not_called_idle(
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    item: Deployment,
    last: float | None,
    idle_minutes: float,
) -> None:
    fake(monkeypatch, [item], last)
    async with connected(make_app(state_dir, idle_minutes=idle_minutes)) as caller:
        listed = (await caller.tool("list_deployments")).ok
        after = await caller.tool("get_help")
    assert "could_save" not in listed
    assert "nobody uses it" not in after.text


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"state": "failed"}, "failed"),
        ({"ends_at": ago(1)}, "ttl_hours"),
        ({"note": "orphan node: v6e-1"}, "owns it"),
        ({"state": "stopped", "note": "only its data disk is kept"}, "stopped"),
    ],
)
async def test_failed_overdue_and_orphaned_things_could_be_saved(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, object], why: str
) -> None:
    fake(monkeypatch, [running(**more)], None)
    async with connected(make_app(state_dir)) as caller:
        listed = (await caller.tool("list_deployments")).ok
    assert why in listed["could_save"][0]["why"]
    assert listed["next_steps"] == ["destroy(target='local', name='demo')"]


async def test_what_is_not_ours_is_left_to_the_person(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, [running(managed=False)], 0.0)
    async with connected(make_app(state_dir)) as caller:
        listed = (await caller.tool("list_deployments")).ok
    assert "Ask the person" in listed["could_save"][0]["call"]


async def test_a_time_to_live_is_shown_with_its_end_and_said_not_to_be_enforced(
    state_dir: Path,
) -> None:
    async with connected(make_app(state_dir)) as caller:
        planned = await _plan(caller)
        assert any("nothing ends it by itself" in warning for warning in planned["warnings"])
        await caller.tool("deploy", target="local", plan_id=planned["plan_id"])
        listed = (await caller.tool("list_deployments")).ok
        ends = datetime.fromisoformat(listed["items"][0]["ends_at"])
        assert ends - datetime.now(UTC) == pytest.approx(
            timedelta(hours=2), abs=timedelta(minutes=2)
        )
        await caller.destroy("demo")


async def _plan(caller: Caller) -> dict[str, Any]:
    options = {"startup_speed": 1000, "ttl_hours": 2}
    planned = await caller.tool("plan_deployment", target="local", name="demo", options=options)
    return planned.ok


async def test_what_was_destroyed_is_no_longer_called_idle(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(make_app(state_dir, idle_minutes=60)) as caller:
        await caller.deploy("demo")
        with monkeypatch.context() as patched:
            fake(patched, [running(), running(name="demo-2")], time.time() - 3 * 3600)
            await caller.tool("list_deployments")
        destroyed = await caller.destroy("demo")
    assert not destroyed.is_error, destroyed.text
    assert "local/demo, 2 USD" not in destroyed.text
    assert "local/demo-2, 2 USD" in destroyed.text


async def test_a_look_at_one_target_does_not_forget_what_others_cost(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(state_dir, idle_minutes=60)
    fake(monkeypatch, [running()], time.time() - 3 * 3600)
    app.usage.idle = ["gce-t4/one, 0.5 USD/h: it has failed", "local/gone, 1 USD/h: it has failed"]
    async with connected(app) as caller:
        one = await caller.tool("list_deployments", target="local")
        assert "gce-t4/one" in one.text
        assert "local/gone" not in one.text
        whole = await caller.tool("list_deployments")
    assert "gce-t4/one" not in whole.text

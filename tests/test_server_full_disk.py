"""With a full disk nothing new is begun, but what costs money can still be ended."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connected, make_app
from tests.support.processes import gone, wait_for
from tests.test_server_plans import deployments, record_of


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """A disk that is full while the one item is true: no new file, and no byte more in an old."""
    switch = [False]
    opened, wrote = os.open, os.write

    def open_(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if switch[0] and flags & os.O_CREAT and not Path(path).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, flags, *more, **named)

    def write(descriptor: int, data: bytes) -> int:
        if switch[0] and stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return wrote(descriptor, data)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "write", write)
    yield switch
    switch[0] = False


async def test_a_deployment_is_destroyed_although_nothing_can_be_written(
    state_dir: Path, full: list[bool]
) -> None:
    async with connected(make_app(state_dir)) as caller:
        await caller.deploy("demo")
        pid = record_of(state_dir, "demo")["pid"]
        lines = (state_dir / "audit.jsonl").read_text(encoding="utf-8")
        full[0] = True
        planned = await caller.tool("destroy", target="local", name="demo")
        assert any("known to this server only" in text for text in planned.ok["warnings"])
        assert any("Not in the audit log" in text for text in planned.ok["warnings"])
        destroyed = await caller.tool(
            "destroy", target="local", name="demo", plan_id=planned.plan_id
        )
        assert any("No space left on device" in text for text in destroyed.ok["warnings"])
        assert wait_for(lambda: gone(pid))
        again = await caller.tool("destroy", target="local", name="demo", plan_id=planned.plan_id)
        assert again.error["reason"] == "used"
    assert deployments(state_dir) == []
    assert (state_dir / "audit.jsonl").read_text(encoding="utf-8") == lines


async def test_a_plan_made_before_the_disk_was_full_still_ends_what_runs(
    state_dir: Path, full: list[bool]
) -> None:
    async with connected(make_app(state_dir)) as caller:
        await caller.deploy("demo")
        planned = await caller.tool("stop_serving", target="local", name="demo")
        full[0] = True
        stopped = await caller.tool(
            "stop_serving", target="local", name="demo", plan_id=planned.plan_id
        )
        assert stopped.ok["state"] == "stopped"
        assert any("Not in the audit log" in text for text in stopped.ok["warnings"])


async def test_nothing_new_is_begun_that_cannot_be_written_down(
    state_dir: Path, full: list[bool]
) -> None:
    async with connected(make_app(state_dir)) as caller:
        plan_id = await caller.plan("demo")
        full[0] = True
        refused = await caller.tool("deploy", target="local", name="demo", plan_id=plan_id)
        assert refused.error["code"] == "settings"
        assert "No space left on device" in refused.text
        assert (await caller.tool("list_deployments")).ok["items"] == []

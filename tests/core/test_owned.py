"""What is open between calls ends in one place, whatever happens on the way."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from backends import worker
from backends.app import App
from backends.clouds import process
from backends.clouds.google_auth import GoogleLogin
from backends.clouds.google_prices import COMPUTE, PriceList
from backends.clouds.google_rest import GoogleRest
from backends.core import owned as module
from backends.core.errors import NotFoundError
from backends.core.owned import Owned, together
from tests.support.processes import wait_for


class Silent:
    """A proxy that takes connections and never says anything."""

    def __init__(self) -> None:
        self.open = 0
        self.came = asyncio.Event()
        self.left = asyncio.Event()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.came.set()
        while await reader.read(4096):
            pass
        self.open -= 1
        self.left.set()
        writer.close()


class Login:
    """A login that lives."""

    quota_project = ""

    async def access_token(self) -> str:
        return "token"


@pytest.fixture
async def silent() -> AsyncIterator[tuple[Silent, GoogleRest]]:
    there = Silent()
    server = await asyncio.start_server(there.meet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def env() -> dict[str, str]:
        return {"HTTPS_PROXY": f"http://127.0.0.1:{port}"}

    yield there, GoogleRest(cast("GoogleLogin", Login()), env)
    server.close()
    await server.wait_closed()


async def within(event: asyncio.Event) -> None:
    """Wait for it, with a bound."""
    async with asyncio.timeout(10):
        await event.wait()


async def test_a_price_list_that_is_read_on_behind_a_call_ends_with_the_application(
    silent: tuple[Silent, GoogleRest],
) -> None:
    there, rest = silent
    owned = Owned()
    owned.at_end(rest.close)
    prices = PriceList(rest, owned)
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    assert await prices.skus(COMPUTE, 0.2) == ()
    assert loop.time() - asked_at < 2.0, "it delays no call beyond its share"
    assert "not answered within" in prices.problem
    await within(there.came)
    before = asyncio.all_tasks()
    await owned.close()
    await within(there.left)
    assert len(asyncio.all_tasks()) < len(before)
    assert there.open == 0


async def test_what_a_failed_call_left_in_the_air_is_closed_with_the_client(
    silent: tuple[Silent, GoogleRest],
) -> None:
    there, rest = silent
    asking = asyncio.create_task(rest.get("https://tpu.googleapis.com/v2/x", "x"))
    await within(there.came)
    await rest.close()
    assert asking.cancelled()
    await within(there.left)
    again = asyncio.create_task(rest.get("https://tpu.googleapis.com/v2/x", "x", timeout_s=0.1))
    with pytest.raises(Exception, match="no answer within"):
        await again
    await rest.close()


async def test_the_first_failure_ends_what_was_done_beside_it() -> None:
    ended = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def fails() -> None:
        raise NotFoundError("It is not there.")

    with pytest.raises(NotFoundError):
        await together(slow(), fails())
    assert ended.is_set()
    assert [*await together(asyncio.sleep(0, "a"), asyncio.sleep(0, 2))] == ["a", 2]


async def test_what_fails_or_hangs_at_the_end_keeps_nothing_else_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    monkeypatch.setattr(module, "_LEAST_S", 0.1)
    closed: list[str] = []
    owned = Owned()

    async def closes() -> None:
        closed.append("closed")

    async def fails() -> None:
        raise OSError("it is gone")

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def stubborn() -> None:
        while not closed:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    for closer in (closes, fails, hangs):
        owned.at_end(closer)
    task = owned.task(stubborn())
    await asyncio.sleep(0)
    await owned.close()
    assert closed == ["closed"]
    assert caplog.text.count("could not be closed") == 2
    task.cancel()
    await asyncio.wait({task}, timeout=10)


_LEAVES_ONE_BEHIND = """
import subprocess, sys, time
subprocess.Popen(["sleep", "3"], start_new_session=True)
open(sys.argv[1], "w").close()
time.sleep(60)
"""


def test_a_command_that_is_cancelled_as_the_loop_ends_leaves_no_pipe_open(tmp_path: Path) -> None:
    """As ssh does with the connection that it shares: what it started has its output still."""
    begun = tmp_path / "begun"

    def has_begun() -> bool:
        """the command has started another"""
        return begun.exists()

    async def main() -> None:
        argv = [sys.executable, "-c", _LEAVES_ONE_BEHIND, str(begun)]
        task = asyncio.create_task(process.run(argv, timeout_s=60))
        await asyncio.to_thread(wait_for, has_begun, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(main())
        gc.collect()
    assert not [str(item.message) for item in said if item.category is ResourceWarning]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_worker_closes_what_it_opened_however_its_work_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(tmp_path))
    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    async def work(app: App, job: worker.Job) -> dict[str, str]:
        del job
        app.services.owned.at_end(close)
        if fails:
            raise NotFoundError("It is not there.")
        return {}

    monkeypatch.setitem(worker.JOBS, "trial", work)
    job = worker.Job(folder=tmp_path, kind="trial", target="local", name="x", params={})
    assert await worker.work(job) == int(fails)
    assert closed == ["closed"]

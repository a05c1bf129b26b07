"""What goes wrong with servers, connections, workers and machines, and what a level says of it."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from backends.core.errors import NotSupportedError
from backends.serving.endpoint import Endpoint
from backends.serving.engine import crew, epoll_engine
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.levels import level_result
from backends.serving.loadgen import LevelProgress, LevelRaw, LevelSpec
from backends.serving.spec import BenchmarkSpec
from tests.serving.engine.runs import CHAT, bodies, kinds, run_level
from tests.serving.mock_servers import GOOD, MockSse, Reply, Request, scripted, stream, whole
from tests.support.processes import gone, wait_for

ROOT = Path(__file__).resolve().parents[3]


def workers_of(pid: int) -> list[psutil.Process]:
    return [
        child for child in psutil.Process(pid).children() if "engine.worker" in str(child.cmdline())
    ]


async def watched(
    server: MockSse,
    spec: LevelSpec,
    on_measuring: Callable[[list[psutil.Process]], None],
    *,
    workers: int = 1,
    cancel: Callable[[], bool] = lambda: False,
) -> LevelRaw:
    """Run a level and do something to its workers once it is being measured."""
    done = False

    def watch(progress: LevelProgress) -> None:
        nonlocal done
        if progress.phase == "measuring" and progress.done and not done:
            done = True
            on_measuring(workers_of(os.getpid()))

    return await EpollEngine(workers).run_level(spec, Endpoint(server.base_url), watch, cancel)


# ---- workers ------------------------------------------------------------------------------------


async def test_a_worker_that_is_killed_ends_the_level_with_the_reason(mock: MockSse) -> None:
    spec = LevelSpec(4, CHAT, bodies(400))
    raw = await watched(mock, spec, lambda found: found[0].kill(), workers=2)
    assert raw.cut_short.endswith("of 2 was killed by signal 9")
    assert 0 < len(raw.records) < 400
    assert raw.unfinished
    assert workers_of(os.getpid()) == []
    result = level_result(raw, BenchmarkSpec(), 4, started_at="now")
    assert not result.valid
    assert any("killed by signal 9" in reason for reason in result.invalid_reasons)


async def test_a_worker_that_falls_silent_ends_the_level_with_the_reason(
    mock: MockSse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "SILENCE_S", 1.0)
    raw = await watched(mock, LevelSpec(4, CHAT, bodies(400)), lambda found: found[0].suspend())
    assert "worker 1 of 1 has said nothing for 1 s" in raw.cut_short
    assert workers_of(os.getpid()) == []


async def test_a_cancelled_level_ends_within_a_third_of_a_second_and_reaps_its_workers(
    mock: MockSse,
) -> None:
    mock.configure(ttft_us=50_000, itl_us=20_000)
    asked_at = 0.0

    def ask(_: list[psutil.Process]) -> None:
        nonlocal asked_at
        asked_at = time.monotonic()

    spec = LevelSpec(8, CHAT, bodies(400, 8))
    raw = await watched(mock, spec, ask, workers=2, cancel=lambda: asked_at > 0)
    took_s = time.monotonic() - asked_at
    assert raw.cut_short == "cancelled"
    assert raw.unfinished == 8
    assert took_s < 1.0, "0.3 s on a quiet machine"
    assert workers_of(os.getpid()) == []


async def test_a_level_is_cancelled_even_while_a_worker_does_not_listen(mock: MockSse) -> None:
    asked = False

    def ask(found: list[psutil.Process]) -> None:
        nonlocal asked
        asked = True
        found[0].suspend()

    raw = await watched(mock, LevelSpec(4, CHAT, bodies(400)), ask, cancel=lambda: asked)
    assert raw.cut_short == "cancelled"
    assert workers_of(os.getpid()) == []


async def test_a_task_that_is_cancelled_leaves_no_worker(mock: MockSse) -> None:
    level = asyncio.create_task(run_level(mock, LevelSpec(2, CHAT, bodies(400))))
    await asyncio.to_thread(wait_for, lambda: workers_of(os.getpid()))
    level.cancel()
    with pytest.raises(asyncio.CancelledError):
        await level
    assert workers_of(os.getpid()) == []


def test_workers_end_when_their_coordinator_is_killed(mock: MockSse, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "backends.serving.benchmark", "--base-url", mock.base_url]
    argv += ["--concurrency", "2", "--requests", "2000", "--output", str(tmp_path / "run.json")]
    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        found = wait_for(lambda: workers_of(process.pid))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    wait_for(lambda: all(gone(worker.pid) for worker in found))


# ---- the client's machine -----------------------------------------------------------------------


@pytest.fixture
def busy_core() -> Iterator[int]:
    """A core that another process keeps busy for as long as the test takes."""
    core = max(psutil.Process().cpu_affinity())
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    psutil.Process(busy.pid).cpu_affinity([core])
    yield core
    busy.kill()
    busy.wait(timeout=10)


async def test_a_client_starved_on_purpose_marks_its_level_invalid(
    mock: MockSse, busy_core: int
) -> None:
    """Nice 19 beside a busy loop: it gets about a hundredth of the core."""

    def starve(found: list[psutil.Process]) -> None:
        found[0].cpu_affinity([busy_core])
        found[0].nice(19)

    raw = await watched(mock, LevelSpec(16, CHAT, bodies(96, 64)), starve)
    assert kinds(raw) == ["ok"] * 96
    result = level_result(raw, BenchmarkSpec(max_tokens=64), 16, started_at="now")
    assert not result.valid
    reasons = " / ".join(result.invalid_reasons)
    assert "of the time for a core: the machine it runs on is too busy" in reasons
    assert "came late to read" in reasons


async def test_a_level_with_more_streams_than_files_may_be_open_is_refused(
    mock: MockSse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(NotSupportedError, match="open files"):
        await run_level(mock, LevelSpec(500, CHAT, bodies(500)))


@pytest.mark.parametrize("missing", ["stamps", "epoll"])
async def test_a_system_without_stamps_or_epoll_is_measured_and_said(
    mock: MockSse, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are made to believe that they run on such a system."""
    lines = {
        "stamps": "import socket\nfrom backends.serving.engine import clock\n"
        "clock.ask_for_stamps = lambda sock: False\n",
        "epoll": "import select\ndel select.epoll\n",
    }
    (tmp_path / "elsewhere.py").write_text(lines[missing], encoding="utf-8")
    monkeypatch.setattr(
        crew,
        "WORKER",
        (
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
            "import elsewhere; from backends.serving.engine.worker import main; sys.exit(main())",
        ),
    )
    raw = await run_level(mock, LevelSpec(4, CHAT, bodies(12), warmup_bodies=bodies(4)))
    assert kinds(raw) == ["ok"] * 12
    assert {len(record.content_ns) for record in raw.records} == {16}
    assert raw.timestamp_source.startswith("perf_counter" if missing == "stamps" else "kernel")


async def test_a_clock_that_was_set_meanwhile_makes_the_level_invalid() -> None:
    raw = LevelRaw(clock_step_ns=3_000_000)
    result = level_result(raw, BenchmarkSpec(), 1, started_at="now")
    assert any("clock was set by 3 ms" in reason for reason in result.invalid_reasons)


# ---- connections --------------------------------------------------------------------------------


async def test_a_request_that_meets_a_closed_connection_is_sent_again_and_counted() -> None:
    """The server closes every kept connection as the second request on it arrives."""
    seen: dict[str, int] = {}
    closed = 0

    def close_on_second(request: Request) -> Reply:
        nonlocal closed
        request_id = request.headers["x-request-id"]
        seen[request_id] = seen.get(request_id, 0) + 1
        if len(seen) % 2 == 0 and seen[request_id] == 1:
            closed += 1
            return Reply([], "reset")
        return stream(GOOD)

    async with scripted({CHAT: close_on_second}) as server:
        raw = await run_level(MockSse(server.base_url), LevelSpec(1, CHAT, bodies(6)))
    assert kinds(raw) == ["ok"] * 6
    assert raw.resent == closed == 3
    result = level_result(raw, BenchmarkSpec(max_tokens=2), 1, started_at="now")
    assert any("3 requests were sent again" in warning for warning in result.warnings)


async def test_a_request_that_breaks_twice_or_after_a_word_has_failed() -> None:
    async with scripted({CHAT: Reply([], "reset")}) as server:
        raw = await run_level(MockSse(server.base_url), LevelSpec(1, CHAT, bodies(3)))
    assert kinds(raw) == ["connection_lost"] * 3
    assert raw.resent == 0, "each met a fresh connection"


async def test_connections_are_opened_before_the_window_and_kept(mock: MockSse) -> None:
    raw = await run_level(mock, LevelSpec(8, CHAT, bodies(32), warmup_bodies=bodies(8, 2)))
    assert raw.reconnects == 0
    assert raw.resent == 0


async def test_refusals_rest_before_the_next_try_and_say_how_long_to_wait() -> None:
    answer = whole(429, b'{"error":{"message":"full"}}', headers="retry-after: 2\r\n")
    async with scripted({CHAT: answer}) as server:
        began = time.monotonic()
        raw = await run_level(MockSse(server.base_url), LevelSpec(1, CHAT, bodies(4)))
    assert time.monotonic() - began > 3 * 0.1
    assert kinds(raw) == ["http_429"] * 4
    assert {record.failure.retry_after_s for record in raw.records if record.failure} == {2.0}


# ---- authorisation ------------------------------------------------------------------


async def test_headers_are_asked_for_again_in_a_long_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epoll_engine, "HEADER_REFRESH_S", 0.2)
    asked = 0

    async def provide() -> dict[str, str]:
        nonlocal asked
        asked += 1
        return {"authorization": f"Bearer token-{asked}"}

    async with scripted({CHAT: stream(GOOD)}) as server:
        endpoint = Endpoint(server.base_url, headers=provide)
        spec = LevelSpec(2, CHAT, bodies(120))
        raw = await EpollEngine().run_level(spec, endpoint, lambda _: None, lambda: False)
        used = [request.headers["authorization"] for request in server.requests]
    assert kinds(raw) == ["ok"] * 120
    numbers = [int(value.removeprefix("Bearer token-")) for value in used]
    assert numbers == sorted(numbers)
    assert numbers[-1] > numbers[0]

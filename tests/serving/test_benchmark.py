"""A benchmark from its first request to its files: alive, cancelled, stopped and failed."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from backends.core.errors import EndpointError, EndpointRejectedError, EndpointUnreachableError
from backends.serving.benchmark import BenchmarkProgress, BenchmarkRun, BenchmarkSpec, run_benchmark
from backends.serving.endpoint import Endpoint
from backends.serving.engine.epoll_engine import EpollEngine
from tests.serving.mock_servers import (
    RECORDED,
    MockSse,
    Reply,
    Request,
    Route,
    compile_mock,
    content,
    run_mock,
    scripted,
    stream,
    unused_port,
    usage,
    whole,
)

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = {
    "concurrency",
    "requests",
    "errors",
    "success_rate",
    "duration_s",
    "requests_per_s",
    "output_tokens_per_s",
    "ttft_ms",
    "itl_ms",
    "tpot_ms",
    "e2e_ms",
    "valid",
    "invalid_reasons",
    "timestamp_source",
}


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockSse]:
    program = compile_mock(tmp_path_factory.mktemp("mock"))
    with run_mock(program, ttft_us=20_000, itl_us=4_000) as server:
        yield server


class OneWorker(EpollEngine):
    """The engine as it is, but for measuring a level again, which a test that counts forbids."""

    def add_worker(self) -> bool:
        return False


def on_disk(folder: Path) -> dict[str, object]:
    found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@asynccontextmanager
async def vllm(chat: Reply | Route, **more: Reply | Route) -> AsyncIterator[Endpoint]:
    """A scripted vLLM that answers chats like this."""
    routes: dict[str, Route | Reply] = {
        "/v1/models": whole(200, b'{"data":[{"id":"m","max_model_len":2048}]}'),
        "/v1/chat/completions": chat,
        **{f"/{path}": reply for path, reply in more.items()},
    }
    async with scripted(routes) as server:
        yield Endpoint(server.base_url, source="a scripted vLLM")


def answer(tokens: int) -> Reply:
    events = [content(f"t{i}") for i in range(tokens - 1)]
    return stream([*events, content("end", finish="length"), usage(9, tokens), "[DONE]"])


async def test_a_run_measures_every_level_and_writes_it_down(mock: MockSse, tmp_path: Path) -> None:
    spec = BenchmarkSpec(levels=[1, 4], max_tokens=16, usd_per_hour=1.0, label="mine")
    endpoint = Endpoint(mock.base_url, simulated=True)
    run = await run_benchmark(spec, endpoint, tmp_path, run_id="bench-x")
    assert run.state == "completed"
    assert [level.concurrency for level in run.levels] == [1, 4]
    assert [level.requests for level in run.levels] == [4, 8]
    first = run.levels[0]
    assert first.ttft_ms.p50 == pytest.approx(20, abs=8)
    assert first.itl_ms.p50 == pytest.approx(4, abs=2)
    assert first.tpot_ms.p50 == pytest.approx(4, abs=2)
    assert first.e2e_ms.p50 == pytest.approx(20 + 15 * 4, abs=20)
    assert first.output_tokens_total == 64
    assert first.usd_per_million_output_tokens is not None
    written = on_disk(tmp_path)
    assert BenchmarkRun.model_validate(written) == run
    assert written["id"] == "bench-x"
    assert written["schema_version"] == 1
    assert written["simulated"] is True
    assert written["current"] is None
    assert "role" in run.definitions["content event"]
    levels = written["levels"]
    assert isinstance(levels, list)
    for level in levels:
        assert set(level) >= REQUIRED
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            assert set(level[name]) == {"mean", "p50", "p90", "p95", "p99"}
    rows = list(csv.DictReader((tmp_path / "levels.csv").read_text("utf-8").splitlines()))
    assert [row["concurrency"] for row in rows] == ["1", "4"]
    assert float(rows[0]["ttft_ms_p50"]) == first.ttft_ms.p50
    assert "Every figure is simulated" in run.findings[-1]


async def test_progress_goes_from_nothing_to_all_and_never_back(
    mock: MockSse, tmp_path: Path
) -> None:
    seen: list[tuple[float, str]] = []

    def note(progress: BenchmarkProgress) -> None:
        seen.append((progress.fraction, progress.message))

    spec = BenchmarkSpec(levels=[1, 2], max_tokens=8)
    await run_benchmark(spec, Endpoint(mock.base_url), tmp_path, note)
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert any("concurrency 2 warm-up" in message for _, message in seen)


async def test_what_is_measured_stands_on_disk_while_a_level_runs(
    mock: MockSse, tmp_path: Path
) -> None:
    found: list[dict[str, object]] = []

    def look(_: BenchmarkProgress) -> None:
        current = on_disk(tmp_path)["current"]
        if isinstance(current, dict) and current["so_far"] is not None:
            found.append(current)

    spec = BenchmarkSpec(levels=[2], max_tokens=64, requests_per_level=24)
    await run_benchmark(spec, Endpoint(mock.base_url), tmp_path, look)
    assert found, "a level of three seconds was written down at least once while it ran"
    so_far = found[0]["so_far"]
    assert isinstance(so_far, dict)
    assert so_far["partial"] is True
    assert 0 < so_far["requests"] < 24
    assert so_far["ttft_ms"]["p50"] > 0
    assert not list(tmp_path.glob(".*")), "no temporary file is left"


async def test_a_cancelled_run_keeps_what_it_measured(mock: MockSse, tmp_path: Path) -> None:
    last: list[BenchmarkProgress] = []

    def stop() -> bool:
        current = last[-1].run.current if last else None
        return bool(
            current
            and current.concurrency == 2
            and current.phase == "measuring"
            and current.requests_done >= 2
        )

    spec = BenchmarkSpec(levels=[1, 2, 4], max_tokens=32, requests_per_level=16)
    run = await run_benchmark(spec, Endpoint(mock.base_url), tmp_path, last.append, stop)
    assert run.state == "cancelled"
    assert run.state_reason == "cancelled at concurrency 2"
    whole_level, cut = run.levels
    assert (whole_level.requests, whole_level.partial) == (16, False)
    assert 2 <= cut.requests < 16
    assert cut.partial
    assert not cut.valid
    assert on_disk(tmp_path)["state"] == "cancelled"


async def test_a_level_that_fails_too_often_ends_the_sweep_and_keeps_the_levels_before(
    tmp_path: Path,
) -> None:
    open_requests = 0

    def one_at_a_time(_: Request) -> Reply:
        nonlocal open_requests
        open_requests += 1
        # warm-up and four requests of level 1, then everything is refused
        return answer(4) if open_requests <= 5 else whole(429, b'{"error":{"message":"full"}}')

    async with vllm(one_at_a_time) as endpoint:
        spec = BenchmarkSpec(levels=[1, 2, 4], max_tokens=4)
        run = await run_benchmark(spec, endpoint, tmp_path, engine=OneWorker())
    assert run.state == "stopped"
    assert run.stopped_by == "errors"
    assert run.state_reason == "at concurrency 2 4 of 4 requests failed (4 x http_429)"
    assert [level.concurrency for level in run.levels] == [1, 2]
    assert run.levels[0].output_tokens_per_s
    assert run.levels[1].error_samples[0].message == "full"
    assert not run.levels[1].valid
    assert any("Concurrency 2 is not valid" in finding for finding in run.findings)


async def test_a_run_without_one_success_fails_with_the_servers_words(tmp_path: Path) -> None:
    refused = whole(400, (RECORDED / "gemma4-0.32.0" / "err_max_tokens.body").read_bytes())
    async with vllm(refused) as endpoint:
        with pytest.raises(EndpointError) as caught:
            await run_benchmark(BenchmarkSpec(levels=[2]), endpoint, tmp_path)
    assert "4 x http_400" in caught.value.message
    assert "max_model_len=2048" in caught.value.words
    written = on_disk(tmp_path)
    assert written["state"] == "failed"
    error = written["error"]
    assert isinstance(error, dict)
    assert error["words"] == caught.value.words
    assert error["next_action"]


async def test_a_wrong_model_fails_before_any_load(mock: MockSse, tmp_path: Path) -> None:
    mock.forget()
    endpoint = Endpoint(mock.base_url, model="gemma-4-31b")
    with pytest.raises(EndpointRejectedError) as caught:
        await run_benchmark(BenchmarkSpec(), endpoint, tmp_path)
    assert caught.value.cause == "It serves: mock-model."
    assert mock.truth() == {}
    assert on_disk(tmp_path)["state"] == "failed"


async def test_nobody_listening_fails_at_once(tmp_path: Path) -> None:
    endpoint = Endpoint(f"http://127.0.0.1:{unused_port()}")
    with pytest.raises(EndpointUnreachableError):
        await run_benchmark(BenchmarkSpec(), endpoint, tmp_path)
    assert on_disk(tmp_path)["state"] == "failed"


async def test_a_run_whose_task_is_cancelled_says_so_on_disk(mock: MockSse, tmp_path: Path) -> None:
    started = asyncio.Event()
    spec = BenchmarkSpec(levels=[1], requests_per_level=100)
    task = asyncio.create_task(
        run_benchmark(spec, Endpoint(mock.base_url), tmp_path, lambda _: started.set())
    )
    async with asyncio.timeout(10):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    written = on_disk(tmp_path)
    assert written["state"] == "failed"
    assert "CancelledError" in str(written["state_reason"])


async def test_the_engines_own_figures_of_each_level_stand_beside_the_clients(
    tmp_path: Path,
) -> None:
    generated = 0

    def chat(_: Request) -> Reply:
        nonlocal generated
        generated += 4
        return answer(4)

    def metrics(_: Request) -> Reply:
        text = (
            "# TYPE vllm:generation_tokens_total counter\n"
            f'vllm:generation_tokens_total{{engine="0"}} {generated}\n'
            "# TYPE vllm:prefix_cache_queries_total counter\n"
            f'vllm:prefix_cache_queries_total{{engine="0"}} {generated * 10}\n'
            "# TYPE vllm:prefix_cache_hits_total counter\n"
            f'vllm:prefix_cache_hits_total{{engine="0"}} {generated * 5}\n'
        )
        return whole(200, text.encode(), kind="text/plain")

    async with vllm(chat, metrics=metrics) as endpoint:
        run = await run_benchmark(BenchmarkSpec(levels=[1, 2], max_tokens=4), endpoint, tmp_path)
    for level in run.levels:
        assert level.server is not None
        assert level.server.generation_tokens == level.output_tokens_total, "without the warm-up"
        assert level.prefix_cache_hit_rate == pytest.approx(0.5)
        assert any("50% of the prompt tokens" in warning for warning in level.warnings)


async def test_an_endpoint_without_metrics_is_measured_and_said_once(tmp_path: Path) -> None:
    async with vllm(answer(4)) as endpoint:
        run = await run_benchmark(BenchmarkSpec(levels=[1, 2], max_tokens=4), endpoint, tmp_path)
    assert run.state == "completed"
    assert [level.server for level in run.levels] == [None, None]
    assert sum("no engine figures" in warning for warning in run.warnings) == 1


def halting(times: int) -> Callable[[BenchmarkProgress], None]:
    """Return a watcher that halts the measuring process for 0.3 s, in so many levels."""
    halted: set[int] = set()

    def halt(progress: BenchmarkProgress) -> None:
        workers = [
            child
            for child in psutil.Process().children()
            if "engine.worker" in str(child.cmdline())
        ]
        if "measuring" in progress.message and workers[0].pid not in halted and times > len(halted):
            halted.add(workers[0].pid)
            workers[0].suspend()
            asyncio.get_running_loop().call_later(0.3, workers[0].resume)

    return halt


async def test_a_client_that_is_held_up_measures_again_with_one_more_process(
    mock: MockSse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    spec = BenchmarkSpec(levels=[4], max_tokens=400, requests_per_level=8)
    run = await run_benchmark(spec, Endpoint(mock.base_url), tmp_path, halting(1))
    (level,) = run.levels
    assert level.repeated
    assert level.workers == 2
    assert level.requests == 8


async def test_a_client_that_is_held_up_every_time_marks_its_own_level_invalid(
    mock: MockSse, tmp_path: Path
) -> None:
    spec = BenchmarkSpec(levels=[4], max_tokens=400, requests_per_level=8)
    run = await run_benchmark(spec, Endpoint(mock.base_url), tmp_path, halting(2))
    assert run.state == "completed"
    reasons = " / ".join(run.levels[0].invalid_reasons)
    assert "the client came late to read" in reasons
    assert "their ITL is lost" in reasons


async def test_what_watches_a_run_does_not_disturb_it(mock: MockSse, tmp_path: Path) -> None:
    def hold_up(_: BenchmarkProgress) -> None:
        end_s = time.perf_counter() + 0.1
        while time.perf_counter() < end_s:
            pass

    spec = BenchmarkSpec(levels=[4], max_tokens=100, requests_per_level=8)
    run = await run_benchmark(spec, Endpoint(mock.base_url), tmp_path, hold_up)
    assert run.levels[0].self_check.coalesced_share < 0.1, "held up, nearly all would coalesce"


async def test_every_request_of_a_run_is_different(tmp_path: Path) -> None:
    prompts: list[str] = []

    def chat(request: Request) -> Reply:
        prompts.append(json.loads(request.body)["messages"][0]["content"])
        return answer(2)

    async with vllm(chat) as endpoint:
        for _ in range(2):
            await run_benchmark(BenchmarkSpec(levels=[1, 2], max_tokens=2), endpoint, tmp_path)
    # a level in which the client was slow is measured again
    assert len(prompts) == len(set(prompts)) >= 2 * (1 + 4 + 2 + 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"levels": []},
        {"levels": [0]},
        {"levels": [4097]},
        {"levels": [2, 2]},
        {"max_tokens": 0},
        {"prompt": "x", "prompt_source": "generated"},
        {"usd_per_hour": 0.0},
        {"concurency": 4},
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BenchmarkSpec.model_validate(wrong)


def test_every_stream_of_a_level_has_at_least_one_request() -> None:
    spec = BenchmarkSpec()
    assert [spec.requests_for(c) for c in (1, 2, 3, 8, 64)] == [4, 4, 6, 16, 128]
    assert BenchmarkSpec(requests_per_level=5).requests_for(8) == 8
    assert BenchmarkSpec(warmup_requests=0).warmup_for(8) == 0


# ---- the command line ---------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "backends.serving.benchmark", *arguments]


def test_the_command_line_measures_and_prints_a_table(mock: MockSse, tmp_path: Path) -> None:
    output = tmp_path / "results" / "mine.json"
    done = subprocess.run(
        command(
            *("--base-url", mock.base_url, "--model", "mock-model", "--concurrency", "1,2"),
            *("--requests", "4", "--max-tokens", "8", "--output", str(output)),
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: a busy machine made a level invalid
    assert "| concurrency | requests |" in done.stdout
    assert "100% completed" in done.stderr
    run = BenchmarkRun.model_validate_json(output.read_text(encoding="utf-8"))
    assert [level.concurrency for level in run.levels] == [1, 2]
    assert (tmp_path / "results" / "mine.levels.csv").exists()


def test_the_command_line_keeps_what_it_measured_when_interrupted(
    mock: MockSse, tmp_path: Path
) -> None:
    output = tmp_path / "run.json"
    process = subprocess.Popen(
        command(
            *("--base-url", mock.base_url, "--concurrency", "1,2", "--requests", "1000"),
            *("--max-tokens", "4", "--output", str(output)),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "measuring: " in line and "tokens/s" in line:
                process.send_signal(signal.SIGINT)
                break
        process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    run = BenchmarkRun.model_validate_json(output.read_text(encoding="utf-8"))
    assert run.state == "cancelled"
    assert run.levels[0].requests > 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--base-url", "nonsense"], 2, "base_url: not an endpoint address"),
        (
            ["--base-url", "http://127.0.0.1:1", "--concurrency", "1,x"],
            2,
            "whole numbers separated by commas",
        ),
        (["--base-url", "http://127.0.0.1:1", "--max-tokens", "0"], 2, "max_tokens"),
        (["--base-url", "http://127.0.0.1:1"], 1, "Nothing listens"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    arguments: list[str], code: int, words: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        command(*arguments, "--output", str(tmp_path / "run.json")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "VLLM_API_KEY": "sk-in-the-environment"},
    )
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "sk-in-the-environment" not in done.stderr + done.stdout

"""The simulator as a process: start, log, failures, many streams, end."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from backends.serving.simulator.config import FAILURES
from tests.serving.simulator.running import NAME, PROJECT, START_TIMEOUT_S, Simulator, start
from tests.support.processes import wait_for

COMPLETIONS = "/v1/completions"


def ended(simulator: Simulator) -> tuple[int, str]:
    """Exit code and log of a simulator that ends by itself."""
    return simulator.process.wait(START_TIMEOUT_S), simulator.log


def test_connections_are_refused_until_it_is_ready_and_the_port_is_taken(tmp_path: Path) -> None:
    # 255 s of start-up phases, a hundred times faster.
    with start(tmp_path, "--startup-speed=100") as simulator:

        def loading() -> bool:
            """The weights are being loaded."""
            return "Starting to load model" in simulator.log

        wait_for(loading, START_TIMEOUT_S)
        assert not simulator.listening()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", simulator.port))
        simulator.wait_until_ready()
        assert simulator.client.get("/health").status_code == 200


def test_the_log_has_the_lines_a_vllm_log_has(tmp_path: Path) -> None:
    with start(tmp_path, "--max-model-len=16384") as simulator:
        simulator.wait_until_ready()
        simulator.client.get("/health")
        log = simulator.log
    for pattern in (
        r"\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[\S+\] version 0\.32\.0",
        r"Resolved architecture: Gemma4ForConditionalGeneration",
        r"Using max model len 16384",
        r"Initializing a V1 LLM engine \(v0\.32\.0\)",
        r"Model loading took 9\.75 GiB memory and [\d.]+ seconds",
        r"Available KV cache memory: 10\.\d+ GiB",
        r"GPU KV cache size: [\d,]+ tokens, Maximum concurrency for 16,384 tokens per request: "
        r"[\d.]+x",
        r"init engine \(profile, create kv cache, warmup model\) took [\d.]+ s "
        r"\(compilation: [\d.]+ s\)",
        r"Starting vLLM server on http://127\.0\.0\.1:\d+",
        r"Application startup complete\.",
        r'"GET /health HTTP/1\.1" 200 OK',
    ):
        assert re.search(pattern, log), pattern


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--fail=oom"],
            ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62 GiB", "21.96 GiB"],
        ),
        (
            ["--fail=kv"],
            [
                "Available KV cache memory: -0.29 GiB",
                "ValueError: No available memory for the cache blocks.",
                "RuntimeError: Engine core initialization failed.",
            ],
        ),
        (["--fail=bad-model"], ["huggingface_hub.errors.LocalEntryNotFoundError"]),
        (
            ["--max-model-len=200000"],
            ["User-specified max_model_len (200000) is greater than the derived max_model_len"],
        ),
        (
            ["--profile=sagemaker-l4", "--checkpoint=gemma-4-31B-it-qat-w4a16-ct"],
            ["ValueError: No available memory for the cache blocks."],
        ),
        (
            ["--profile=sagemaker-l4", "--checkpoint=gemma-4-31B-it"],
            ["torch.OutOfMemoryError", "EngineCore failed to start."],
        ),
        (
            [
                *("--profile=cloudrun-l4", "--checkpoint=gemma-4-26B-A4B-it-qat-w4a16-ct"),
                *("--max-model-len=262144", "--kv-cache-dtype=auto"),
                "--gpu-memory-utilization=0.85",
            ],
            ["To serve at least one request with the model's max seq len (262144)"],
        ),
    ],
    ids=["oom", "kv", "bad model", "context", "no room for kv", "too large", "kv too small"],
)
def test_a_start_that_fails_says_why_as_vllm_does_and_exits_1(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    with start(tmp_path, *arguments) as simulator:
        code, log = ended(simulator)
    assert code == 1
    for text in words:
        assert text in log
    assert "Application startup complete" not in log


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-flag"],
        ["--profile=moon"],
        ["--checkpoint=gpt"],
        ["--fail=nonsense"],
        ["--fail=crash-after:soon"],
        ["--max-num-seqs=0"],
        ["--time-scale=0"],
        ["--gpu-memory-utilization=1.5"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_wrong_argument_exits_2_and_is_named(tmp_path: Path, arguments: list[str]) -> None:
    with start(tmp_path, *arguments) as simulator:
        code, log = ended(simulator)
    assert code == 2
    name, _, value = arguments[0].partition("=")
    assert name in log or value in log


def test_a_port_in_use_is_the_error_98_of_vllm(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-m", "backends.serving.simulator", f"--port={port}"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    assert result.returncode == 1
    assert "OSError: [Errno 98] Address already in use" in result.stderr


def test_it_can_be_started_again_at_once_on_the_port_it_just_left(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        with start(tmp_path, f"--port={port}") as simulator:
            simulator.wait_until_ready()
            # A connection that the server closes first stays behind in TIME_WAIT.
            simulator.client.get("/health", headers={"connection": "close"})
            simulator.process.terminate()
            assert simulator.process.wait(10) == 0


@pytest.mark.parametrize("when", ["starting", "idle", "streaming"])
def test_sigterm_ends_it_within_2_seconds_with_code_0(tmp_path: Path, when: str) -> None:
    arguments = ["--startup-speed=1"] if when == "starting" else []
    with start(tmp_path, *arguments) as simulator:
        if when == "starting":

            def announced() -> bool:
                """It has begun to start."""
                return "SIMULATOR" in simulator.log

            wait_for(announced, START_TIMEOUT_S)
        else:
            simulator.wait_until_ready()
            simulator.client.get("/health")
        cut = threading.Thread(target=stream_until_cut, args=(simulator,))
        if when == "streaming":
            cut.start()

            def streaming() -> bool:
                """A stream runs."""
                return simulator.metric("vllm:num_requests_running") == 1

            wait_for(streaming)
        started_s = time.monotonic()
        simulator.process.send_signal(signal.SIGTERM)
        assert simulator.process.wait(10) == 0
        assert time.monotonic() - started_s < 2
        if when == "streaming":
            cut.join(10)
            assert not cut.is_alive()
        assert "Traceback" not in simulator.log


def stream_until_cut(simulator: Simulator) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    url = f"http://127.0.0.1:{simulator.port}{COMPLETIONS}"
    with httpx.stream("POST", url, json=body, timeout=30) as response:
        text = response.read().decode()
    assert '"error"' in text


def test_an_engine_that_dies_answers_500_then_503_then_ends_with_1(tmp_path: Path) -> None:
    with start(tmp_path, "--fail=crash-after:2", "--time-scale=20") as simulator:
        simulator.wait_until_ready()
        body = {"prompt": "x", "max_tokens": 4}
        assert simulator.client.post(COMPLETIONS, json=body).status_code == 200
        # The second answer goes out, or the crash is faster.
        assert simulator.client.post(COMPLETIONS, json=body).status_code in (200, 500)
        health = simulator.client.get("/health")
        assert (health.status_code, health.content) == (503, b"")
        refused = simulator.client.post(COMPLETIONS, json=body)
        assert refused.status_code == 500
        assert refused.json()["error"]["message"].startswith("EngineCore encountered an issue.")
        code, log = ended(simulator)
    assert code == 1
    assert "EngineDeadError" in log


def test_requests_in_flight_hear_of_the_crash(tmp_path: Path) -> None:
    arguments = ("--fail=crash-after:1", "--time-scale=20", "--admission-cap=0")
    with start(tmp_path, *arguments) as simulator:
        simulator.wait_until_ready()

        async def scenario() -> tuple[httpx.Response, httpx.Response]:
            url = str(simulator.client.base_url)
            long = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True}
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                whole = asyncio.create_task(client.post(COMPLETIONS, json=long))
                stream = asyncio.create_task(
                    client.post(COMPLETIONS, json={**long, "stream": True})
                )
                await asyncio.to_thread(wait_for, both_run)
                await client.post(COMPLETIONS, json={"prompt": "y", "max_tokens": 1})
                return await whole, await stream

        def both_run() -> bool:
            """Both requests are in the batch."""
            return simulator.metric("vllm:num_requests_running") == 2

        whole, stream = asyncio.run(scenario())
    assert whole.status_code == 500
    said = stream.text.strip().split("\n\n")
    assert "EngineCore encountered an issue" in json.loads(said[-2][6:])["error"]["message"]
    assert said[-1] == "data: [DONE]"


def test_a_stalled_engine_is_healthy_and_silent(tmp_path: Path) -> None:
    with start(tmp_path, "--fail=stall") as simulator:
        simulator.wait_until_ready()
        with pytest.raises(httpx.ReadTimeout):
            simulator.client.post(COMPLETIONS, json={"prompt": "x"}, timeout=0.5)
        assert simulator.client.get("/health").status_code == 200


def test_a_stalled_start_never_listens(tmp_path: Path) -> None:
    with start(tmp_path, "--fail=stall-startup") as simulator:

        def stuck() -> bool:
            """It hangs while it loads."""
            return "0% Completed" in simulator.log

        wait_for(stuck, START_TIMEOUT_S)
        assert not simulator.listening()
        simulator.process.terminate()
        assert simulator.process.wait(5) == 0


def test_every_failure_that_can_be_played_is_in_the_help() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "backends.serving.simulator", "--help"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=True,
    )
    text = "".join(result.stdout.split())
    assert all(failure in text for failure in (*FAILURES, "crash-after:N"))


def test_a_thousand_and_twenty_four_streams_all_complete(tmp_path: Path) -> None:
    streams, tokens = 1024, 8
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    body = {"prompt": "x", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    payload = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(payload), payload)
    )

    async def one(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    async def all_of_them(port: int) -> list[bytes]:
        return await asyncio.wait_for(asyncio.gather(*(one(port) for _ in range(streams))), 60)

    arguments = ("--max-num-seqs=1024", "--admission-cap=0", "--time-scale=5")
    with start(tmp_path, *arguments) as simulator:
        simulator.wait_until_ready()
        answers = asyncio.run(all_of_them(simulator.port))
        finished = simulator.metric("vllm:request_success_total", finished_reason="length")
    assert finished == streams
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b'"completion_tokens":%d}' % tokens in answer
        assert b"data: [DONE]" in answer
        assert f'"model":"{NAME}"'.encode() in answer

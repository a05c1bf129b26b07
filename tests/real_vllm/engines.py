"""Starting a server as the product would, waiting by its log, and stopping it whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from backends.serving.startup_log import StartupLog, StartupProgress

PROJECT = Path(__file__).parents[2]
NAME = "tiny-gemma4"
KEY = "test-key-not-secret"
MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 8

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
# The first request of a kind may compile something: measured up to 27 s.
REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Served:
    """A server that is ready, what its log said, and a client that knows the key."""

    progress: StartupProgress
    client: httpx.Client
    log: Path


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(argv: Sequence[str], env: Mapping[str, str], log: Path, url: str) -> Iterator[Served]:
    """Start a server, wait until its log says that it is ready, and stop it at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **env},
            cwd=PROJECT,
            start_new_session=True,
        )
    try:
        progress = wait_until_settled(process, log, START_TIMEOUT_S)
        assert progress.ready_after_s is not None, progress.model_dump_json(indent=1)
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S) as client:
            yield Served(progress, client, log)
    finally:
        stop(process)


def wait_until_settled(
    process: subprocess.Popen[bytes], log: Path, timeout_s: float
) -> StartupProgress:
    """Read the log as it grows until waiting longer changes nothing."""
    reader = StartupLog()
    step_s = 0.2
    with log.open("rb") as grown:
        for _ in range(int(timeout_s / step_s)):
            try:
                code = process.wait(step_s)
            except subprocess.TimeoutExpired:
                reader.feed(grown.read())
            else:
                reader.feed(grown.read())
                reader.process_ended(code)
            if reader.progress.settled:
                return reader.progress
    raise AssertionError(f"not ready after {timeout_s} s: {reader.progress}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to stop, and end its whole group if it does not."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_TIMEOUT_S)

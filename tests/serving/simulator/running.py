"""A simulator in its own process, as users run it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.processes import wait_for

PROJECT = Path(__file__).parents[3]
NAME = "tiny-gemma4"
START_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Simulator:
    """A started simulator.

    Args:
        process: Its process.
        port: Where it listens, once it is ready.
        log_path: What it writes.
        client: A client of it.
    """

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path
    client: httpx.Client

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self.log_path.read_text()

    def listening(self) -> bool:
        """Whether connections are accepted."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except ConnectionRefusedError:
            return False
        return True

    def wait_until_ready(self) -> None:
        """Wait until connections are accepted; fails if the process ends instead."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return self.listening()

        wait_for(ready, START_TIMEOUT_S)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample of `/metrics`."""
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no {name} {labels}")


@contextmanager
def start(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Simulator]:
    """Start a simulator on a socket of ours; it is killed at the end if it still runs."""
    log_path = folder / "simulator.log"
    with socket.socket() as sock, log_path.open("wb") as log:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        command = [sys.executable, "-m", "backends.serving.simulator", f"--fd={sock.fileno()}"]
        process = subprocess.Popen(
            [*command, f"--served-model-name={NAME}", *arguments],
            cwd=PROJECT,
            env={**os.environ, **(env or {})},
            pass_fds=[sock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield Simulator(process, port, log_path, client)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(10)

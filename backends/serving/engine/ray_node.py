"""What stands on a Ray node: it starts a worker there and carries its words, and measures nothing.

Sent to the nodes by value, so it imports the standard library alone. The worker is a process of its
own beside the actor, started from source code that the coordinator sent, so both speak the same
protocol whatever is installed there.
"""

from __future__ import annotations

import importlib.util
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

LAST_WORDS = 2000
READ_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 10.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return what tells this boot of this machine from any other; empty where that is unknown."""
    with suppress(OSError):
        return Path(BOOT_ID).read_text(encoding="ascii").strip()
    return ""


class NodeWorker:
    """One worker on this node. An actor; its methods are called from the coordinator.

    Args:
        source: The worker's source code, a zip archive.
        module: What to run of it.
    """

    def __init__(self, source: bytes, module: str) -> None:
        self._source = source
        self._module = module
        self._folder = tempfile.TemporaryDirectory(prefix="vllm-devops-worker-")
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def about(self, needed: list[str], where: tuple[str, int]) -> dict[str, Any]:
        """Return what this node is, what it lacks, and how it reaches an address.

        Args:
            needed: Modules that the worker imports.
            where: Host name and port it will connect to.
        """
        found: dict[str, Any] = {
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "missing": [name for name in needed if importlib.util.find_spec(name) is None],
        }
        try:
            with socket.create_connection(where, timeout=CONNECT_TIMEOUT_S) as there:
                found |= {"family": int(there.family), "address": there.getpeername()}
        except OSError as error:
            found["unreachable"] = error.strerror or str(error) or type(error).__name__
        return found

    def clock(self) -> int:
        """Return this node's monotonic clock as its worker reads it, in nanoseconds."""
        return time.perf_counter_ns()

    def start(self) -> None:
        """Start the worker."""
        archive = Path(self._folder.name) / "worker.zip"
        archive.write_bytes(self._source)
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, [str(archive), os.environ.get("PYTHONPATH")]))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                cwd=self._folder.name,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._channel = ours

    def say(self, data: bytes) -> None:
        """Pass bytes to the worker; one that is gone does not hear them."""
        if self._channel is not None:
            with suppress(ConnectionError):
                self._channel.sendall(data)

    def hear(self, timeout_s: float) -> tuple[bytes, str]:
        """Return what the worker has said, waiting for it a little, and how it ended if it has."""
        channel = self._channel
        if channel is None:
            return b"", "was never started"
        if not select.select([channel], [], [], timeout_s)[0]:
            return b"", ""
        try:
            data = channel.recv(READ_BYTES)
        except ConnectionError:
            data = b""
        return data, "" if data else self._how_it_ended()

    def end(self) -> None:
        """End the worker, at once, and reap it."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._words.close()
        self._folder.cleanup()

    def _how_it_ended(self) -> str:
        if self._process is None:
            return "was never started"
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code < 0:
            return f"was killed by signal {-code}"
        self._words.seek(0)
        lines = self._words.read()[-LAST_WORDS:].decode("utf-8", "replace").strip().splitlines()
        return f"ended with code {code}" + (f" ({lines[-1]})" if lines else "")

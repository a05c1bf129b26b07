"""A simulator of a test's own, for endpoints that our server did not start."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

from tests.support.probe import ROOT
from tests.support.processes import wait_for


@contextlib.contextmanager
def simulator(port: int, *arguments: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a simulator; gives its address once it answers.

    Args:
        port: Where it listens on 127.0.0.1.
        arguments: More of its arguments.
        env: Its whole environment, besides what the test process has.
    """
    argv = [sys.executable, "-m", "backends.serving.simulator", f"--port={port}", *arguments]
    process = subprocess.Popen(
        argv,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, "the simulator has ended"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        wait_for(answers, 20)
        yield url
    finally:
        process.kill()
        process.wait()

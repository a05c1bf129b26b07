"""Processes that outlive this server: workers and local engines, each leading its own session."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backends.core.settings import PROJECT_DIR
from backends.core.state import private_folder


@dataclass(frozen=True)
class Detached:
    """A process that was started to outlive this one.

    Attributes:
        pid: Its process id, which is also its group and session.
        created: When the kernel says it was created, to tell it from a later one of that number.
    """

    pid: int
    created: float | None


def detach(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    on_exit: Callable[[int], None] | None = None,
) -> Detached:
    """Start a process in a session of its own and return at once.

    Args:
        argv: The program and its arguments.
        log: File that its output is appended to.
        env: Variables added to this process's own; may hold secrets, is never written down.
        on_exit: Told the exit code, if this server still lives when it ends.

    Raises:
        OSError: The program could not be started.
    """
    private_folder(log.parent)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=PROJECT_DIR,
            env={**os.environ, **env},
            start_new_session=True,
        )
    started = Detached(process.pid, created_at(process.pid))

    def reap() -> None:
        code = process.wait()
        if on_exit is not None:
            on_exit(code)

    threading.Thread(target=reap, name=f"reap-{process.pid}", daemon=True).start()
    return started


def created_at(pid: int) -> float | None:
    """When process `pid` was created, in seconds since the epoch; None if there is none."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def is_running(pid: int, created: float | None) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    import psutil

    try:
        process = psutil.Process(pid)
        if created is not None and abs(process.create_time() - created) > 1.0:
            return False
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def signal_group(pid: int, number: signal.Signals) -> bool:
    """Signal the process and all it started; False where nothing of it is left."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    return True


def end(pid: int, created: float | None, patience_s: float) -> bool:
    """End a detached process with all it started: asked first, then killed. Blocks.

    Args:
        pid: Its process id.
        created: Its creation time, so that nobody else is ended in its place.
        patience_s: Seconds between asking and killing.

    Returns:
        Whether it was there to be ended.
    """
    if not is_running(pid, created):
        return False
    signal_group(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while is_running(pid, created) and time.monotonic() < deadline:
        time.sleep(0.02)
    # Also what outlived its leader in the group (an engine core whose API process died).
    signal_group(pid, signal.SIGKILL)
    deadline = time.monotonic() + 2.0
    while is_running(pid, created) and time.monotonic() < deadline:
        time.sleep(0.02)
    return True

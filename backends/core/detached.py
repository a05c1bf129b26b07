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
from typing import TYPE_CHECKING

from backends.core.settings import PROJECT_DIR
from backends.core.state import private_folder

if TYPE_CHECKING:
    import psutil

# The kernel counts in hundredths of a second, and a number is not given out again that fast.
_SAME_MOMENT_S = 0.05


@dataclass(frozen=True)
class Detached:
    """A process that was started to outlive this one.

    Attributes:
        pid: Its process id, which is also its group and session.
        created: What `created_at` says of it, to tell it from a later one of that number.
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
    """When process `pid` was created, in seconds; None if there is none.

    Counted from the boot where the kernel says so (Linux): counted from the epoch it would change
    whenever somebody sets the clock, and what runs would be taken for a stranger.
    """
    import psutil

    try:
        return _moment_of_birth(psutil.Process(pid))
    except psutil.Error:
        return None


def is_running(pid: int, created: float | None) -> bool:
    """Whether that very process still runs (a zombie does not).

    A process whose creation is not known is nobody's: it would be signalled on a guess.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        born = _moment_of_birth(process)
        if created is None or abs(born - created) > _SAME_MOMENT_S:
            return False
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):  # no such process, or no such number
        return False


def _moment_of_birth(process: psutil.Process) -> float:
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        # proc_pid_stat(5): field 22, in clock ticks; the name before it may hold anything.
        return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return float(process.create_time())


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

"""Processes that tests leave behind are found by their records and ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

_T = TypeVar("_T")


def _recorded_pids(root: Path) -> Iterator[int]:
    for pattern in ("**/deployments/*/*/deployment.json", "**/operations/*/operation.json"):
        for path in root.glob(pattern):
            # Not parsed: some tests damage their records.
            found = re.search(r'"pid": ?(\d+)', path.read_text(encoding="utf-8"))
            if found is not None:
                yield int(found[1])


def end_all_under(root: Path) -> None:
    """Kill every engine and worker that a state directory below `root` knows of."""
    for pid in _recorded_pids(root):
        # Only what still carries this folder in its environment or command line is ours.
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process = psutil.Process(pid)
            words = [*process.cmdline(), *process.environ().values()]
            if any(str(root) in word for word in words):
                os.killpg(pid, signal.SIGKILL)


def wait_for(what: Callable[[], _T | None], within_s: float = 10) -> _T:
    """What `what` returns, as soon as that is true; fails after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s} s: {getattr(what, '__doc__', None) or what}")


def gone(pid: int) -> bool:
    """Whether no process of that id runs (a zombie does not run)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def tree_of(root: Path) -> dict[str, bytes]:
    """Every file below `root` with its content."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }

"""Reads an engine's log as it grows: each look costs what is new, however long the log is."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from backends.serving.startup_log import StartupLog, StartupProgress

# Of a log first seen when it is longer than this, its beginning and its end are read.
_FIRST_LOOK_BYTES = 4 * 1024 * 1024


@dataclass
class _Followed:
    identity: tuple[int, int]
    offset: int = 0
    log: StartupLog = field(default_factory=StartupLog)


class LogFollower:
    """Remembers how far each log was read. One of these per server."""

    def __init__(self) -> None:
        self._logs: dict[Path, _Followed] = {}
        # Looks run on worker threads; two at once would feed the same lines twice.
        self._lock = threading.Lock()

    def progress(self, path: Path) -> StartupProgress:
        """What the log says by now; nothing yet where there is no file.

        A log that was replaced (the engine was started again) is read anew.
        """
        with self._lock:
            return self._read(path)

    def _read(self, path: Path) -> StartupProgress:
        try:
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                identity = (facts.st_dev, facts.st_ino)
                known = self._logs.get(path)
                if known is None or known.identity != identity or facts.st_size < known.offset:
                    known = self._logs[path] = _Followed(identity)
                if facts.st_size - known.offset > _FIRST_LOOK_BYTES:
                    half = _FIRST_LOOK_BYTES // 2
                    if known.offset == 0:
                        known.log.feed(file.read(half))
                    file.seek(facts.st_size - half)
                    # The first piece of a line cut in two would be read as a line of its own.
                    known.log.feed(b"\n" + file.read(half).partition(b"\n")[2])
                else:
                    file.seek(known.offset)
                    known.log.feed(file.read(facts.st_size - known.offset))
                known.offset = facts.st_size
        except FileNotFoundError:
            self._logs.pop(path, None)
            return StartupProgress()
        return known.log.progress

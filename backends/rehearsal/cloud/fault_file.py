"""Faults from a file, for who cannot call the control API: read again whenever it changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from backends.rehearsal.cloud.faults import FaultBook, FaultError


class FaultFile:
    """A JSON list of faults; what is in it is on, what is taken out is off.

    Args:
        path: The file; it need not exist.
        book: Where its faults are switched on.
    """

    def __init__(self, path: Path, book: FaultBook) -> None:
        self._path = path
        self._book = book
        self._changed = 0
        self._ids: list[str] = []

    def read(self) -> None:
        """Take in the file, if it has changed since the last time."""
        try:
            changed = self._path.stat().st_mtime_ns
        except OSError:
            changed = 0
        if changed == self._changed:
            return
        self._changed = changed
        for fault_id in self._ids:
            self._book.remove(fault_id)
        self._ids = []
        if not changed:
            return
        try:
            specs = json.loads(self._path.read_text(encoding="utf-8"))
            for spec in specs:
                self._ids += [str(made["id"]) for made in self._book.add(spec)]
        except (OSError, ValueError, TypeError, FaultError) as error:
            print(f"{self._path} is not a list of faults: {error}", file=sys.stderr, flush=True)

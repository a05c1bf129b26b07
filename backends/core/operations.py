"""Long operations: detached workers whose state is on disk and that outlive this server.

A folder an operation: `operation.json` (what was asked, and the worker's pid), `status.json`
(written by the worker: state, progress, result), `log` (its output), `cancel` (the wish to stop).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from backends.core.detached import detach, end, is_running, signal_group
from backends.core.errors import DevopsError, NotFoundError, OperationError
from backends.core.state import StateDir, new_id, now, read_json, stamp, write_json, writing

_ID = re.compile(r"op-[0-9]{8}-[0-9]{6}-[0-9a-f]{4,16}")
FINISHED = frozenset({"succeeded", "failed", "cancelled"})
_CANCEL_PATIENCE_S = 15.0
# The kernel ends a killed process in its own time; it is answered as it then is.
_KILL_PATIENCE_S = 2.0
_LOG_TAIL_BYTES = 4_000


class _Asked(BaseModel):
    """`operation.json`."""

    kind: str
    target: str
    name: str
    params: dict[str, Any]
    started_at: str
    pid: int | None = None
    pid_created: float | None = None


class _Status(BaseModel):
    """`status.json`: what is relied on; the rest is passed on as it is."""

    model_config = ConfigDict(extra="allow")

    state: str = "queued"
    done: float | None = None
    total: float | None = None
    message: str | None = None
    error: str | None = None
    result: dict[str, Any] | None = None


@dataclass(frozen=True)
class Operation:
    """An operation as it stands on disk.

    Attributes:
        id: Its id.
        kind: What it does, e.g. `benchmark`.
        target: Where.
        name: On which deployment.
        params: What was asked.
        state: queued, running, succeeded, failed or cancelled.
        started_at: ISO time.
        status: The worker's last word: done, total, message, result, error, updated_at.
        folder: Where its files are.
    """

    id: str
    kind: str
    target: str
    name: str
    params: dict[str, Any]
    state: str
    started_at: str
    folder: Path
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in FINISHED

    @property
    def progress(self) -> str | None:
        """Progress in words."""
        message = self.status.get("message")
        return str(message) if message else None

    def log_tail(self) -> str:
        """The end of the worker's log."""
        try:
            with (self.folder / "log").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _LOG_TAIL_BYTES))
                return file.read().decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return ""


class Operations:
    """Starts, reads and stops operations.

    Args:
        state: The state directory.
        worker: The command that runs one; gets the operation's folder as its last argument.
    """

    def __init__(self, state: StateDir, worker: tuple[str, ...] | None = None) -> None:
        self._root = state.operations
        self._worker = worker or (sys.executable, "-m", "backends.worker")

    def start(
        self, kind: str, target: str, name: str, params: Mapping[str, Any], env: Mapping[str, str]
    ) -> Operation:
        """Start a worker and return at once.

        Args:
            kind: What the worker is to do.
            target: On which target.
            name: On which deployment.
            params: What it needs; written to disk, so never a secret.
            env: Variables for the worker, secrets included; never written down.

        Raises:
            OperationError: The worker process could not be started.
            SettingsError: The state directory cannot be written; nothing runs.
        """
        operation_id = new_id("op")
        folder = self._root / operation_id
        record: dict[str, Any] = {
            "id": operation_id,
            "kind": kind,
            "target": target,
            "name": name,
            "params": dict(params),
            "started_at": stamp(),
        }
        # Written before the worker starts: if we die in between, the folder says what was meant.
        write_json(folder / "operation.json", record)
        try:
            process = detach([*self._worker, str(folder)], log=folder / "log", env=env)
        except OSError as error:
            write_json(folder / "status.json", {"state": "failed", "error": str(error)})
            raise OperationError(
                f"The worker for {kind} could not be started.", words=str(error)
            ) from error
        try:
            write_json(
                folder / "operation.json",
                record | {"pid": process.pid, "pid_created": process.created},
            )
        except DevopsError:
            # A worker that nobody can find again must not go on: this call says it failed.
            end(process.pid, process.created, _KILL_PATIENCE_S)
            raise
        return self.get(operation_id)

    def get(self, operation_id: str) -> Operation:
        """One operation.

        Raises:
            NotFoundError: There is none of that id.
            OperationError: Its files are damaged.
        """
        folder = self._folder(operation_id)
        asked = self._asked(folder)
        status = self._status(folder)
        state = status.state
        if state not in FINISHED and not self._alive(asked):
            # Read once more: it may have finished between the two looks.
            status = self._status(folder)
            state = status.state
            if state not in FINISHED:
                cancelled = (folder / "cancel").exists()
                state = "cancelled" if cancelled else "failed"
                status.error = status.error or (
                    "The worker was stopped before it could finish."
                    if cancelled
                    else "The worker died without a word (killed, or the machine restarted)."
                )
        return Operation(
            id=operation_id,
            kind=asked.kind,
            target=asked.target,
            name=asked.name,
            params=asked.params,
            state=state,
            started_at=asked.started_at,
            folder=folder,
            status=status.model_dump(exclude_none=True),
        )

    def all(self) -> list[Operation]:
        """Every operation, newest first; one that cannot be read is failed and says so."""
        if not self._root.is_dir():
            return []
        ids = sorted((path.name for path in self._root.iterdir() if path.is_dir()), reverse=True)
        found: list[Operation] = []
        for operation_id in ids:
            # A folder whose record is not yet written, or is foreign, is not an operation.
            with contextlib.suppress(NotFoundError):
                found.append(self._get_or_damaged(operation_id))
        return found

    def _get_or_damaged(self, operation_id: str) -> Operation:
        try:
            return self.get(operation_id)
        except NotFoundError:
            raise
        except DevopsError as error:
            return Operation(
                id=operation_id,
                kind="unknown",
                target="unknown",
                name="unknown",
                params={},
                state="failed",
                started_at="unknown",
                folder=self._root / operation_id,
                status={"message": error.message, "error": error.message},
            )

    def cancel(self, operation_id: str) -> Operation:
        """Stop an operation; what it has produced stays. Waits at most 15 s, then kills it.

        Raises:
            NotFoundError: There is none of that id.
        """
        operation = self.get(operation_id)
        if operation.finished:
            return operation
        wish = operation.folder / "cancel"
        with writing(wish):
            wish.touch()
        asked = self._asked(operation.folder)
        if self._signal(asked, signal.SIGTERM):
            deadline = time.monotonic() + _CANCEL_PATIENCE_S
            while self._alive(asked) and time.monotonic() < deadline:
                time.sleep(0.05)
            if self._signal(asked, signal.SIGKILL):
                deadline = time.monotonic() + _KILL_PATIENCE_S
                while self._alive(asked) and time.monotonic() < deadline:
                    time.sleep(0.02)
        return self.get(operation_id)

    def _folder(self, operation_id: str) -> Path:
        if not _ID.fullmatch(operation_id):
            raise _no_such(operation_id)
        return self._root / operation_id

    def _asked(self, folder: Path) -> _Asked:
        raw = read_json(folder / "operation.json")
        if raw is None:
            raise _no_such(folder.name)
        try:
            return _Asked.model_validate(raw)
        except ValidationError as error:
            raise _damaged(folder / "operation.json", error) from error

    def _status(self, folder: Path) -> _Status:
        try:
            return _Status.model_validate(read_json(folder / "status.json") or {})
        except ValidationError as error:
            raise _damaged(folder / "status.json", error) from error

    def _alive(self, asked: _Asked) -> bool:
        if asked.pid is None:
            # Between the two writes of `start`, for a moment only.
            return asked.started_at > stamp(now() - timedelta(seconds=5))
        return is_running(asked.pid, asked.pid_created)

    def _signal(self, asked: _Asked, number: signal.Signals) -> bool:
        if asked.pid is None or not self._alive(asked):
            return False
        return signal_group(asked.pid, number)


def _no_such(operation_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no operation {operation_id[:64]!r}.",
        next_action="Call get_operation without an id to list them.",
    )


def _damaged(path: Path, error: ValidationError) -> OperationError:
    fields = ", ".join(str(item["loc"][0]) for item in error.errors() if item["loc"])
    return OperationError(
        f"{path} is damaged: {fields}.",
        next_action=f"Look at {path.parent}; move it away if it is of no use.",
    )

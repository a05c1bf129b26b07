"""What this machine runs for us: one folder a deployment, whose record stands in for a label.

The processes are the truth; a record only says which ones are ours. One that was started but whose
pid was never written down (we died in between) is found by the mark in its environment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.core.detached import created_at, detach, end, is_running
from backends.core.errors import ConflictError, DevopsError, EngineError, SettingsError
from backends.core.names import MANAGED_BY_US, NAME_PATTERN
from backends.core.state import StateDir, private_folder, read_json, stamp, write_json, writing

MARK = "VLLM_DEVOPS_DEPLOYMENT"
EngineKind = Literal["simulator", "vllm"]

_log = logging.getLogger("vllm_devops")

# Longer than a stop with all its patience: who waits for one gets its turn.
_TURN_S = 16.0


class Record(BaseModel):
    """One deployment on this machine.

    Attributes:
        name: Its name.
        engine: simulator or vllm.
        argv: The command it is started with.
        env: Variables set for it; never a secret.
        port: The port on 127.0.0.1.
        model: The name it is served under.
        spec: The request it was made from.
        managed_by: Our label.
        created_at: ISO time of the deployment.
        started_at: ISO time of the last start.
        stopped_at: ISO time it was stopped on purpose; None while it is meant to run.
        pid: Its process.
        pid_created: The process's creation time.
        exit_code: How it ended, where somebody saw it.
    """

    model_config = ConfigDict(populate_by_name=True)

    name: str
    engine: EngineKind
    argv: list[str]
    env: dict[str, str] = Field(default_factory=dict)
    port: int
    model: str
    spec: dict[str, Any] = Field(default_factory=dict)
    managed_by: str = Field(MANAGED_BY_US, alias="managed-by")
    created_at: str
    started_at: str | None = None
    stopped_at: str | None = None
    pid: int | None = None
    pid_created: float | None = None
    exit_code: int | None = None

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.pid is not None and is_running(self.pid, self.pid_created)


class Records:
    """The deployments of this machine.

    Args:
        state: The state directory.
    """

    def __init__(self, state: StateDir) -> None:
        self._root = state.deployments("local")

    def folder(self, name: str) -> Path:
        """Where a deployment's record and logs are."""
        return self._root / name

    def log(self, name: str) -> Path:
        """The log of its present or last start."""
        return self.folder(name) / "engine.log"

    def previous_log(self, name: str) -> Path:
        """The log of the start before."""
        return self.folder(name) / "engine.previous.log"

    def get(self, name: str) -> Record | None:
        """The record of that name, if there is one."""
        if not re.fullmatch(NAME_PATTERN, name):
            return None
        raw = read_json(self._path(name))
        if raw is None:
            return None
        try:
            record = Record.model_validate(raw)
        except ValidationError as error:
            fields = ", ".join(str(item["loc"][0]) for item in error.errors() if item["loc"])
            raise DevopsError(
                f"The record of local/{name} is damaged: {fields or 'no object'}.",
                next_action=f"Look at {self._path(name)}; end its process by hand if it runs, and "
                "remove the folder.",
            ) from error
        ending = read_json(self._exit_path(name)) or {}
        if record.pid is not None and ending.get("pid") == record.pid:
            record.exit_code = ending.get("exit_code")
        if record.pid is None and record.started_at is not None and record.stopped_at is None:
            found = _find_by_mark(self._mark(name))
            if found is not None:
                record.pid, record.pid_created = found, created_at(found)
                self.put(record)
        return record

    def names(self) -> list[str]:
        """The names of all deployments, whether or not their records can be read."""
        if not self._root.is_dir():
            return []
        return sorted(path.parent.name for path in self._root.glob("*/deployment.json"))

    def ports(self) -> set[int]:
        """The ports of all deployments whose records can be read."""
        found: set[int] = set()
        for name in self.names():
            with contextlib.suppress(DevopsError):
                record = self.get(name)
                found |= {record.port} if record is not None else set()
        return found

    @contextlib.contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """One change of a deployment at a time, whichever call of whichever server makes it.

        Two that look, find nothing running, and both start an engine would leave one that no
        record names and nothing ever stops. Blocks for at most 16 s.

        Raises:
            ConflictError: Another change of it is still under way.
        """
        path = self._root / f".{name}.lock"
        deadline = time.monotonic() + _TURN_S
        while (lock := self._try_lock(path)) is None:
            if time.monotonic() > deadline:
                raise ConflictError(
                    f"local/{name} is being changed by another call.",
                    next_action="Call get_status to see what became of it, then try again.",
                )
            time.sleep(0.02)
        try:
            yield
        finally:
            if not self.folder(name).exists():
                path.unlink(missing_ok=True)
            os.close(lock)

    def _try_lock(self, path: Path) -> int | None:
        with writing(path):
            private_folder(path.parent)
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it before may have removed the file: then this locks nothing.
            if os.fstat(lock).st_ino == path.stat().st_ino:
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(lock)
        return None

    def put(self, record: Record) -> None:
        """Write a record down."""
        write_json(self._path(record.name), record.model_dump(mode="json", by_alias=True))

    def start(self, record: Record, secret_env: dict[str, str]) -> Record:
        """Start its process. The wish to run is written first, the pid right after.

        Raises:
            EngineError: The program could not be started.
        """
        log = self.log(record.name)
        with writing(log):
            if log.exists():
                log.replace(self.previous_log(record.name))
        record = record.model_copy(
            update={
                "started_at": stamp(),
                "stopped_at": None,
                "pid": None,
                "pid_created": None,
                "exit_code": None,
            }
        )
        self.put(record)

        def ended(code: int) -> None:
            # A file of its own: who stops or removes the deployment writes the record meanwhile.
            ending = {"pid": process.pid, "exit_code": code}
            try:
                temporary = self._exit_path(record.name).with_suffix(".new")
                temporary.write_text(json.dumps(ending), encoding="utf-8")
                temporary.replace(self._exit_path(record.name))
            except OSError as error:
                if not isinstance(error, FileNotFoundError):  # removed meanwhile
                    _log.warning("how local/%s ended is not written down: %s", record.name, error)

        try:
            process = detach(
                record.argv,
                log=log,
                env={**record.env, **secret_env, MARK: self._mark(record.name)},
                on_exit=ended,
            )
        except OSError as error:
            self.put(record.model_copy(update={"stopped_at": stamp()}))
            raise EngineError(
                f"{record.argv[0]} could not be started.",
                words=str(error),
                next_action="Check the path with get_help(topic='doctor').",
            ) from error
        record = record.model_copy(update={"pid": process.pid, "pid_created": process.created})
        self.put(record)
        return record

    def stop(self, record: Record, patience_s: float) -> bool:
        """End its process; True where it ran. Blocks for at most `patience_s` and two seconds."""
        # The wish first: if we die in between, it was stopped on purpose all the same.
        current = self.get(record.name) or record
        try:
            self.put(current.model_copy(update={"stopped_at": stamp()}))
        except SettingsError as error:
            # A full disk must not keep it running.
            _log.warning("that local/%s was stopped is not written down: %s", record.name, error)
        return record.pid is not None and end(record.pid, record.pid_created, patience_s)

    def remove(self, name: str) -> None:
        """Remove the folder with the record and the logs."""
        try:
            shutil.rmtree(self.folder(name))
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            # The exit code of a process that ended this moment was written into it.
            shutil.rmtree(self.folder(name))

    def _path(self, name: str) -> Path:
        return self.folder(name) / "deployment.json"

    def _exit_path(self, name: str) -> Path:
        return self.folder(name) / "exit.json"

    def _mark(self, name: str) -> str:
        return str(self.folder(name))


def _find_by_mark(mark: str) -> int | None:
    import psutil

    for process in psutil.process_iter(["pid"]):
        try:
            if process.environ().get(MARK) == mark and process.pid == _session_of(process.pid):
                return int(process.pid)
        except (psutil.Error, OSError):
            # Other people's processes do not show their environment; ours do.
            continue
    return None


def _session_of(pid: int) -> int:
    return os.getsid(pid)

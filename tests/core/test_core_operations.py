"""Operations on disk: damaged or foreign files are named, hide nothing and get nobody killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.core import detached
from backends.core.detached import created_at, is_running
from backends.core.errors import DevopsError, NotFoundError, OperationError, SettingsError
from backends.core.operations import Operations
from backends.core.state import StateDir, write_json

ID = "op-20261130-000000-aaaa"
OTHER = "op-20261130-000001-bbbb"


@pytest.fixture
def operations(tmp_path: Path) -> Operations:
    return Operations(StateDir(tmp_path))


def written(root: Path, operation_id: str = ID, **changes: Any) -> Path:
    """The folder of an operation whose worker is gone."""
    record: dict[str, Any] = {
        "id": operation_id,
        "kind": "benchmark",
        "target": "local",
        "name": "demo",
        "params": {},
        "started_at": "2026-11-30T00:00:00.000Z",
        "pid": 2**31 - 1,
        "pid_created": 1.0,
    }
    folder = root / "operations" / operation_id
    write_json(folder / "operation.json", record | changes)
    return folder


@pytest.mark.parametrize(
    "damage",
    [
        {"params": 7},
        {"kind": None},
        {"pid": "x"},
        {"started_at": 9},
    ],
)
def test_a_damaged_operation_is_named_and_hides_none_of_the_others(
    operations: Operations, tmp_path: Path, damage: dict[str, Any]
) -> None:
    folder = written(tmp_path, **damage)
    written(tmp_path, OTHER)
    with pytest.raises(OperationError, match=next(iter(damage))) as caught:
        operations.get(ID)
    assert str(folder) in caught.value.next_action
    with pytest.raises(OperationError):
        operations.cancel(ID)
    assert {found.id: found.state for found in operations.all()} == {ID: "failed", OTHER: "failed"}


@pytest.mark.parametrize("status", ["\x88\xff", '{"done": "half"}', '{"result": [1]}', "{half"])
def test_a_damaged_status_is_named_and_hides_none_of_the_others(
    operations: Operations, tmp_path: Path, status: str
) -> None:
    path = written(tmp_path) / "status.json"
    path.write_bytes(status.encode("latin-1"))
    written(tmp_path, OTHER)
    with pytest.raises(DevopsError, match=r"status\.json"):
        operations.get(ID)
    assert [found.id for found in operations.all()] == [OTHER, ID]


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "\x00", "op-1", f"{ID}\n", "ä"])
def test_what_is_no_operation_id_is_nobodys_operation(operations: Operations, name: str) -> None:
    with pytest.raises(NotFoundError):
        operations.get(name)
    with pytest.raises(NotFoundError):
        operations.cancel(name)


def test_a_process_that_may_be_somebody_elses_is_never_signalled(
    operations: Operations, tmp_path: Path
) -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        for created in (None, 1.0):
            written(tmp_path, pid=bystander.pid, pid_created=created)
            assert operations.cancel(ID).finished
            assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_is_known_again_after_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("only Linux says when a process began without asking the clock")
    before = created_at(os.getpid())
    # psutil derives the moment from the boot time, which moves with the clock.
    monkeypatch.setattr("psutil.Process.create_time", lambda _: 1.0)
    assert before is not None
    assert is_running(os.getpid(), before)
    assert not is_running(os.getpid(), before + 1)
    assert detached.created_at(2**31 - 1) is None


def test_a_worker_that_does_not_listen_is_gone_when_its_cancel_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.core.operations._CANCEL_PATIENCE_S", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    operations = Operations(StateDir(tmp_path), (sys.executable, "-c", deaf))
    started = operations.start("benchmark", "local", "demo", {}, {})
    assert not started.finished
    assert operations.cancel(started.id).state == "cancelled"


def test_a_worker_whose_pid_cannot_be_written_down_does_not_go_on(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[detached.Detached] = []

    def detach(*arguments: Any, **named: Any) -> detached.Detached:
        started.append(detached.detach(*arguments, **named))
        return started[-1]

    def write(path: Path, value: dict[str, Any]) -> None:
        if "pid" in value:
            raise SettingsError(f"{path} cannot be written.")
        write_json(path, value)

    monkeypatch.setattr("backends.core.operations.detach", detach)
    monkeypatch.setattr("backends.core.operations.write_json", write)
    with pytest.raises(SettingsError):
        operations.start("benchmark", "local", "demo", {}, {})
    assert not is_running(started[0].pid, started[0].created)

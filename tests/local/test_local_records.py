"""Processes that stand for deployments: what is written down about them, whoever is faster."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from backends.core.errors import ConflictError, EngineError
from backends.core.state import StateDir
from backends.local.records import Record, Records
from tests.support.processes import wait_for

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
ENDS = [sys.executable, "-c", "import sys; sys.exit(3)"]


def a_record(argv: list[str]) -> Record:
    return Record(
        name="demo",
        engine="simulator",
        argv=argv,
        port=1,
        model="m",
        created_at="2026-11-30T00:00:00Z",
    )


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(StateDir(tmp_path))


def test_the_exit_code_of_a_process_that_ended_is_known(records: Records) -> None:
    records.start(a_record(ENDS), {})

    def code() -> int | None:
        found = records.get("demo")
        return found.exit_code if found is not None else None

    assert wait_for(code) == 3
    assert not a_record(ENDS).alive


def test_the_exit_code_of_the_start_before_is_not_that_of_this_one(records: Records) -> None:
    records.start(a_record(ENDS), {})
    wait_for(lambda: (records.get("demo") or a_record([])).exit_code)
    record = records.start(a_record(SLEEPS), {})
    found = records.get("demo")
    assert found is not None
    assert found.pid == record.pid
    assert found.exit_code is None
    assert found.alive
    records.stop(found, 1)


def test_a_process_that_is_stopped_stays_stopped_on_purpose(records: Records) -> None:
    # The exit code is written at the same moment by another thread: neither may undo the other.
    for _ in range(5):
        record = records.start(a_record(SLEEPS), {})
        assert records.stop(record, 2)
        wait_for(lambda: (records.get("demo") or a_record([])).exit_code)
        found = records.get("demo")
        assert found is not None
        assert found.stopped_at is not None
        assert found.exit_code == -15


def test_a_removed_deployment_does_not_come_back_when_its_process_has_ended(
    records: Records,
) -> None:
    for _ in range(5):
        record = records.start(a_record(SLEEPS), {})
        records.stop(record, 2)
        records.remove("demo")
        # The thread that notes the exit code may be later than the removal.
        for thread in threading.enumerate():
            if thread.name == f"reap-{record.pid}":
                thread.join(5)
        assert not records.folder("demo").exists()
        assert records.names() == []


def test_an_environment_with_secrets_is_given_to_the_process_and_not_written_down(
    records: Records, tmp_path: Path
) -> None:
    out = tmp_path / "seen"
    argv = [
        sys.executable,
        "-c",
        "import os, pathlib; pathlib.Path(os.environ['OUT']).write_text(os.environ['KEY'])",
    ]
    record = a_record(argv).model_copy(update={"env": {"OUT": str(out)}})
    records.start(record, {"KEY": "sk-very-secret-0123456789"})
    # Its exit code is the last that is written about it.
    wait_for((records.folder("demo") / "exit.json").exists)
    assert out.read_text(encoding="utf-8") == "sk-very-secret-0123456789"
    for path in records.folder("demo").iterdir():
        assert "sk-very-secret" not in path.read_text(encoding="utf-8"), path


def test_a_program_that_is_not_there_is_an_engine_error_with_the_systems_words(
    records: Records,
) -> None:
    with pytest.raises(EngineError, match="could not be started") as caught:
        records.start(a_record(["/nonexistent/vllm"]), {})
    assert "No such file" in caught.value.words
    assert "doctor" in caught.value.next_action


@pytest.mark.parametrize("name", ["../up", "UPPER", "", "a/b", ".hidden", "a" * 64])
def test_a_name_that_is_no_deployment_name_is_nobodys_record(records: Records, name: str) -> None:
    assert records.get(name) is None


def test_who_waits_too_long_for_its_turn_is_told_so(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.local.records._TURN_S", 0.1)
    with (
        records.changing("demo"),
        pytest.raises(ConflictError, match="being changed by another call"),
        records.changing("demo"),
    ):
        pass
    with records.changing("demo"):  # and its turn comes when the other has finished
        pass
    assert not records.folder("demo").parent.exists() or not list(
        records.folder("demo").parent.iterdir()
    )

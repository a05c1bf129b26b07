"""Files of the state directory: whole or not at all, never a secret, never someone else's."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from backends.core.audit import AuditLog
from backends.core.errors import DevopsError, InvalidInputError, PlanError, SettingsError
from backends.core.masking import mask
from backends.core.names import check_name
from backends.core.paging import page
from backends.core.plans import Plan, PlanBook, Step, differences, run_steps
from backends.core.state import StateDir, read_json, write_json, write_text


def a_plan(**changes: object) -> Plan:
    fields: dict[str, object] = {
        "verb": "deploy",
        "target": "local",
        "name": "demo",
        "summary": "start it.",
        "steps": [Step(title="Start it", kind="start", argv=("run", "--port=1"))],
        "live": {"port 1": "free"},
    }
    return Plan.model_validate(fields | changes)


def test_a_reader_sees_the_old_file_or_the_new_one_and_never_half(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    values = [{"n": n, "filler": "x" * 20_000} for n in range(2)]
    write_json(path, values[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for value in values:
                write_json(path, value)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert read_json(path) in values
    finally:
        stop.set()
        writer.join()
    assert [file.name for file in path.parent.iterdir()] == ["b.json"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "value.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert [file.name for file in path.parent.iterdir()] == ["value.json"]


def test_new_folders_and_files_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "x" / "y" / "z.json"
    write_json(path, {})
    for made in (tmp_path / "x", tmp_path / "x" / "y"):
        assert made.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError) as caught:
        write_json(tmp_path / "file" / "state" / "x.json", {})
    assert "VLLM_DEVOPS_STATE_DIR" in caught.value.next_action
    with pytest.raises(SettingsError):
        StateDir(tmp_path / "file" / "state").ensure()


@pytest.mark.parametrize("text", ["{half", "[1]", '"text"', "\x00"])
def test_a_damaged_file_is_named_and_not_taken_for_an_absent_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DevopsError, match=r"x\.json"):
        read_json(path)
    assert read_json(tmp_path / "absent.json") is None


def test_a_file_that_is_no_text_or_no_file_is_damaged_too(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\x88\xff{}")
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(DevopsError, match=path.name) as caught:
            read_json(path)
        assert str(path) in caught.value.next_action


def test_a_damaged_plan_is_refused_and_foreign_files_hinder_no_plan(tmp_path: Path) -> None:
    book = PlanBook(StateDir(tmp_path), ttl_minutes=15)
    stored = book.keep(a_plan())
    write_json(tmp_path / "plans" / f"{stored.plan_id}.json", {})
    with pytest.raises(PlanError) as caught:
        book.find(stored.plan_id, "deploy", "local", "demo")
    assert caught.value.reason == "damaged"
    (tmp_path / "plans" / "plan-folder").mkdir()
    os.utime(tmp_path / "plans" / "plan-folder", (0, 0))
    assert book.keep(a_plan())


def test_an_audit_log_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(SettingsError, match=r"audit\.jsonl cannot be read"):
        AuditLog(StateDir(tmp_path)).tail()


def test_lines_of_several_writers_never_mix_in_the_audit_log(tmp_path: Path) -> None:
    state = StateDir(tmp_path)

    def write(writer: int) -> None:
        log = AuditLog(state)
        for index in range(50):
            log.record(
                event="started",
                call_id=f"{writer}-{index}",
                tool="deploy",
                client="test",
                arguments={"name": "demo", "options": {"text": "x" * 300}},
                outcome="",
            )

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in state.audit_log.read_text("utf-8").splitlines()]
    assert len({line["call_id"] for line in lines}) == 200


def test_the_tail_of_the_audit_log_is_whole_lines_of_bounded_length(tmp_path: Path) -> None:
    log = AuditLog(StateDir(tmp_path))
    for index in range(200):
        log.record(
            event="started",
            call_id=str(index),
            tool="deploy",
            client="test",
            arguments={"prompt": "ü" * 10_000},
            outcome="",
        )
    tail = log.tail(5_000)
    assert len(tail.encode()) <= 5_000
    lines = [json.loads(line) for line in tail.splitlines()]
    assert lines[-1]["call_id"] == "199"
    assert "10000 characters" in lines[-1]["arguments"]["prompt"]


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnop",
        "sk-proj-abcdefghijklmnop",
        "ya29.a0AfB_byC-abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnop1234",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    ],
)
def test_credentials_are_masked_wherever_they_stand(secret: str) -> None:
    for text in (secret, f"--token={secret}", f'{{"key": "{secret}"}}', f"Bearer {secret} rest"):
        masked = mask(text)
        assert secret[8:] not in masked
        assert "***" in masked
    assert mask("a plain sentence about hf_hub and sk-learn") == (
        "a plain sentence about hf_hub and sk-learn"
    )


def test_a_plan_is_found_used_once_and_then_refused(tmp_path: Path) -> None:
    book = PlanBook(StateDir(tmp_path), ttl_minutes=15)
    stored = book.keep(a_plan())
    found = book.find(stored.plan_id, "deploy", "local", None)
    assert found.plan == a_plan()
    book.use(found, a_plan())
    with pytest.raises(PlanError) as caught:
        book.use(found, a_plan())
    assert caught.value.reason == "used"


@pytest.mark.parametrize("plan_id", ["plan-../../x", "../plans/x", "", "plan-none", "/etc/passwd"])
def test_an_id_that_was_never_given_out_finds_nothing(tmp_path: Path, plan_id: str) -> None:
    book = PlanBook(StateDir(tmp_path), ttl_minutes=15)
    book.keep(a_plan())
    with pytest.raises(PlanError) as caught:
        book.find(plan_id, "deploy", "local", None)
    assert caught.value.reason == "unknown"


def test_a_plan_for_one_target_does_not_run_on_another(tmp_path: Path) -> None:
    book = PlanBook(StateDir(tmp_path), ttl_minutes=15)
    stored = book.keep(a_plan())
    with pytest.raises(PlanError) as caught:
        book.find(stored.plan_id, "deploy", "cloudrun-l4", None)
    assert caught.value.reason == "mismatch"
    assert "local/demo" in str(caught.value)


def test_what_changed_between_two_plans_is_said_in_words() -> None:
    assert differences(a_plan(), a_plan()) == []
    assert differences(a_plan(), a_plan(live={"port 1": "taken"})) == [
        "port 1 was 'free' and is 'taken'"
    ]
    other = a_plan(steps=[Step(title="Start it", kind="start", argv=("run", "--port=2"))])
    (said,) = differences(a_plan(), other)
    assert "run --port=2" in said


def test_wording_does_not_change_a_plans_hash_and_deeds_do() -> None:
    assert a_plan().hash() == a_plan(summary="other words.", warnings=["careful"]).hash()
    assert a_plan().hash() != a_plan(name="other").hash()
    assert a_plan().hash() != a_plan(live={}).hash()


async def test_a_failing_step_names_what_was_made_with_the_undo_of_each() -> None:
    steps = [
        Step(title="Make a", kind="x", creates=("a",), undo="remove a"),
        Step(title="Make b", kind="x", creates=("b",), undo="remove b"),
        Step(title="Make c", kind="x", creates=("c",), undo="remove c"),
    ]

    async def run(step: Step) -> str:
        if step.title == "Make c":
            raise SettingsError("c is not to be made.", words="no c", next_action="Mend it.")
        return f"made {step.creates[0]}"

    with pytest.raises(DevopsError, match="Step 3 of 3") as caught:
        await run_steps(a_plan(steps=steps), run)
    assert caught.value.details == {
        "failure": "settings",
        "done_before_the_failure": "made a; made b",
        "made_before_the_failure": "a; b",
        "undo": "remove b; remove a",
    }
    assert caught.value.words == "no c"
    assert caught.value.next_action == "Mend it."


def test_a_list_is_walked_in_pages_to_its_end() -> None:
    seen: list[int] = []
    cursor: str | None = None
    for _ in range(4):
        items, cursor = page(range(10), 3, cursor)
        seen += items
    assert seen == list(range(10))
    assert cursor is None
    assert page([1], 5, "7") == ([], None)


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "", "²"])
def test_a_cursor_that_was_never_given_out_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidInputError):
        page([1, 2, 3], 1, cursor)


@pytest.mark.parametrize("name", ["a", "gemma4", "a-1", "a" * 48])
def test_good_names_pass(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "A", "1a", "-a", "a-", "a_b", "a.b", "a/b", "a b", "a" * 49, "ä", "a\n"]
)
def test_bad_names_are_refused_without_an_echo(name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_name(name)
    assert caught.value.field == "name"

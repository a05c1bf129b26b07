"""Nothing is changed that was not shown and agreed to."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import pytest

from backends.core.errors import PermissionDeniedError
from backends.setup.desk import Desk

COMMAND = ("gcloud", "services", "enable", "run.googleapis.com", "--project=p")


class Room:
    """A desk, what was said at it, and what was run."""

    def __init__(self, *, ask: Callable[[str], str] | None = None, **options: bool) -> None:
        self.out = io.StringIO()
        self.desk = Desk(out=self.out, ask=ask, **options)
        self.ran: list[tuple[str, ...]] = []

    async def run(self, argv: Sequence[str]) -> str:
        """Run a command."""
        self.ran.append(tuple(argv))
        return ""

    @property
    def said(self) -> str:
        """All that was said."""
        return self.out.getvalue()


async def test_a_command_is_shown_whole_and_run_when_that_is_agreed_to() -> None:
    for room in (Room(yes=True), Room(ask=lambda _: "y")):
        assert await room.desk.change(COMMAND, room.run)
        assert "$ gcloud services enable run.googleapis.com --project=p" in room.said
        assert room.ran == [COMMAND]
        assert room.desk.missing_still == 0


@pytest.mark.parametrize(
    ("room", "why"),
    [
        (Room(), "nobody can be asked here (--yes does it)"),
        (Room(yes=True, dry_run=True), "would run that"),
        (Room(ask=lambda _: "n"), "not done"),
        (Room(ask=lambda _: ""), "not done"),
    ],
    ids=["nobody there", "dry run", "no", "enter"],
)
async def test_without_a_yes_it_is_only_named(room: Room, why: str) -> None:
    assert not await room.desk.change(COMMAND, room.run)
    assert room.ran == []
    assert "$ gcloud services enable" in room.said
    assert why in room.said
    assert room.desk.missing_still == 1


async def test_a_refusal_is_told_in_its_own_words_and_counts_as_missing() -> None:
    async def refuse(argv: Sequence[str]) -> str:
        raise PermissionDeniedError("Refused.", words="Permission 'x' denied", next_action="Ask.")

    room = Room(yes=True)
    assert not await room.desk.change(COMMAND, refuse)
    assert "Permission 'x' denied" in room.said
    assert "Ask." in room.said
    assert room.desk.missing_still == 1


def test_what_needs_a_person_at_a_terminal_is_never_run_without_one() -> None:
    room = Room(yes=True)
    assert not room.desk.hand_over(("false",))
    assert "needs a person at a terminal" in room.said
    assert Room(ask=lambda _: "y").desk.hand_over(("true",))
    failed = Room(ask=lambda _: "y")
    assert not failed.desk.hand_over(("false",))
    assert failed.desk.missing_still == 1

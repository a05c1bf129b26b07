"""What the demo and the probe print."""

from __future__ import annotations

import io
from typing import Any

import pytest

from backends.rehearsal.terminal import Terminal


class Screen(io.StringIO):
    """A terminal, as far as the printer knows."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_a_live_line_is_replaced_and_gone_when_the_next_line_comes() -> None:
    screen = Screen()
    terminal = Terminal(screen, width=60)
    terminal.progress(0.5, "half")
    terminal.progress(1.0, "whole")
    terminal.say("done")
    last_line = screen.getvalue().split("\n")[0]
    assert last_line.count("\r\x1b[K") == 3
    assert last_line.endswith("  done")


def test_without_a_terminal_progress_is_printed_for_new_words_only() -> None:
    out = io.StringIO()
    terminal = Terminal(out, width=60)
    for text in ("loading, 1 s", "loading, 2 s", "ready, 3 s"):
        terminal.progress(None, text)
    assert [line.strip() for line in out.getvalue().splitlines()] == [
        "… loading, 1 s",
        "… ready, 3 s",
    ]


def test_no_colour_is_printed_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    Terminal(screen, width=60).warn("careful")
    assert screen.getvalue() == "  ! careful\n"


def test_a_table_aligns_numbers_and_says_what_is_unknown() -> None:
    out = io.StringIO()
    rows: list[dict[str, Any]] = [
        {"c": 1, "tok": 49.4912, "ok": True},
        {"c": 128, "tok": None, "ok": False},
    ]
    Terminal(out, width=60).table(rows, {"c": "users", "tok": "tok/s", "ok": "ok"})
    assert out.getvalue().splitlines() == [
        "    users  tok/s   ok",
        "        1  49.49  yes",
        "      128      -   no",
    ]


def test_long_lines_are_wrapped_or_cut_at_the_width() -> None:
    out = io.StringIO()
    terminal = Terminal(out, width=40)
    terminal.call("query_model", {"prompt": "word " * 20, "deep": True, "levels": [1, 2]})
    terminal.detail("x" * 100)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert "deep=true, levels=[1, 2])" in " ".join(" ".join(lines).split())
    assert lines[-1].endswith("…")

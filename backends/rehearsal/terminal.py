"""How the demo and the probe print: calls, answers, a live line while waiting, tables."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31", "32", "33", "36"
# Numbers of a progress line change all the time. Where there is no line to write over, one is
# printed for new words, and now and then for new numbers.
_NUMBERS = re.compile(r"[\d.]+")
_SAY_AGAIN_S = 5.0


class Terminal:
    """Prints to a terminal with colour and one live line, elsewhere as plain lines.

    Args:
        out: Where to, by default stdout; colour needs a terminal, and no NO_COLOR in the
            environment.
        width: Columns; by default those of the terminal, at most 110.
    """

    def __init__(self, out: TextIO | None = None, width: int | None = None) -> None:
        self._out = out or sys.stdout
        self._live = self._out.isatty()
        self._colour = self._live and "NO_COLOR" not in os.environ
        self._width = width or min(110, shutil.get_terminal_size((110, 24)).columns)
        self._live_shown = False
        self._said_words = ""
        self._said_at = 0.0

    def heading(self, text: str) -> None:
        """A part of the walk begins."""
        self._line("")
        self._line(self._paint(text, _BOLD))

    def call(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """A tool is called."""
        said = ", ".join(f"{key}={_shown(value)}" for key, value in arguments.items())
        self._line("")
        self._wrapped(f"→ {tool}({said})", indent="    ", first="", colour=_CYAN)

    def say(self, text: str) -> None:
        """An answer's words, indented."""
        for line in text.splitlines():
            self._wrapped(line, indent="    ", first="  ")

    def detail(self, text: str) -> None:
        """One line that may be cut at the terminal's width."""
        self._line(self._paint(_cut(f"    {text}", self._width), _DIM))

    def aside(self, text: str) -> None:
        """What a line before it means; whole, over as many lines as it takes."""
        self._wrapped(text, indent="      ", first="      ", colour=_DIM)

    def warn(self, text: str) -> None:
        """Something to take note of."""
        self._wrapped(f"! {text}", indent="    ", first="  ", colour=_YELLOW)

    def good(self, text: str) -> None:
        """Something that was made sure of."""
        self._wrapped(f"✓ {text}", indent="    ", first="  ", colour=_GREEN)

    def bad(self, text: str) -> None:
        """Something that went wrong."""
        for line in text.splitlines():
            self._wrapped(line, indent="  ", first="", colour=_RED)

    def ask(self, question: str, answer: str) -> None:
        """A question the server put to the person, and what the person said."""
        lines = question.splitlines()
        self._wrapped(f"? {lines[0]}", indent="    ", first="  ", colour=_YELLOW)
        for line in lines[1:]:
            self._wrapped(line, indent="      ", first="    ", colour=_YELLOW)
        self._wrapped(f"← {answer}", indent="    ", first="  ", colour=_BOLD)

    def progress(self, fraction: float | None, text: str) -> None:
        """The present state of something that takes time, in place of the one before.

        Args:
            fraction: How far it is, 0 to 1; None where nobody knows.
            text: What it does now.
        """
        if not text:
            return
        if self._live:
            bar = "" if fraction is None else f"{_bar(fraction)} "
            line = self._paint(_cut(f"  {bar}{text}", self._width - 1), _DIM)
            self._out.write(f"\r\x1b[K{line}")
            self._out.flush()
            self._live_shown = True
        else:
            words, now = _NUMBERS.sub("", text), time.monotonic()
            if words != self._said_words or now - self._said_at > _SAY_AGAIN_S:
                self._said_words, self._said_at = words, now
                self.detail(f"… {text}")

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
        """A table with right-aligned numbers.

        Args:
            rows: One mapping a row.
            columns: Key of a row, to the heading shown.
        """
        cells = [[_cell(row.get(key)) for key in columns] for row in rows]
        heads = list(columns.values())
        widths = [
            max(len(head), *(len(row[index]) for row in cells)) if cells else len(head)
            for index, head in enumerate(heads)
        ]
        numeric = [
            all(isinstance(row.get(key), int | float) or row.get(key) is None for row in rows)
            for key in columns
        ]

        def line(texts: Sequence[str]) -> str:
            padded = (
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(texts, widths, numeric, strict=True)
            )
            return _cut("    " + "  ".join(padded).rstrip(), self._width)

        self._line(self._paint(line(heads), _BOLD))
        for row in cells:
            self._line(line(row))

    def _wrapped(self, text: str, *, indent: str, first: str, colour: str | None = None) -> None:
        lines = textwrap.wrap(
            text,
            self._width,
            initial_indent=first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines or [""]:
            self._line(self._paint(line, colour) if colour else line)

    def _line(self, text: str) -> None:
        if self._live_shown:
            self._out.write("\r\x1b[K")
            self._live_shown = False
        self._out.write(f"{text}\n")
        self._out.flush()

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}": {_shown(item)}' for key, item in value.items()) + "}"
    return str(value)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _bar(fraction: float, cells: int = 20) -> str:
    full = round(max(0.0, min(1.0, fraction)) * cells)
    return "█" * full + "░" * (cells - full)

"""What a text says went wrong: every known signature in it, ranked, with the lines that show it.

Reads a text of any length in pieces: memory is bounded, and 100 MB take seconds. Lines may carry
colours, prefixes of processes and clouds, or be JSON; they may be cut short or mixed with others.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from backends.knowledge.failures import Entry, entries, why_first
from backends.knowledge.signatures import Signature

MAX_LINE_CHARS = 4_000
"""Longer lines are cut: what names a failure stands at the beginning of one."""

_PIECE_CHARS = 1 << 20
_WINDOW_LINES = 3
_CHECKS_PER_PIECE = 40
_LINES_OF_A_WORD = 160
_TELLING = 8
_EVIDENCE_CHARS = 600

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_MESSAGE_KEYS = ("message", "textPayload", "msg", "log", "event", "text")
_BAD = re.compile(
    r"\b(?:ERROR|ERR!|CRITICAL|FATAL|panic|panicked|Traceback)|\b\w*(?:Error|Exception|Fault)\b\s*[:(]"
    r"|\b(?:failed|failure|denied|refused|cannot|could not|unable to|timed out|exceeded|invalid|"
    r"killed|crash\w*|fault)\b",
    re.IGNORECASE,
)
_BAD_HINTS = (
    *("error", "err!", "critical", "fatal", "panic", "traceback", "exception", "fault", "fail"),
    *("denied", "refused", "cannot", "could not", "unable to", "timed out", "exceeded", "invalid"),
    *("killed", "crash"),
)
_LAST_WORDS = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit|Interrupt)\b(?::|$)")
_FRAME = re.compile(r'^\s*(?:File "|\^+\s*$|~+\^)|^\s{4,}\S')
_QUIET = re.compile(r"\b(?:INFO|DEBUG)\b")
_STARTED = "application startup complete"
_DIGITS = re.compile(r"\d+")


@dataclass
class Hit:
    """One signature found in a text.

    Attributes:
        entry: The signature.
        first_line: Number of the first line that shows it, from 1.
        last_line: Number of the last.
        count: Lines that show it (at least so many, in a huge text).
        evidence: The first line, or the few, that show it.
        cause: Why, with the words caught filled in.
        fix: What mends it.
    """

    entry: Entry
    first_line: int
    last_line: int
    count: int
    evidence: str
    cause: str
    fix: str


@dataclass
class Reading:
    """What was found in a text.

    Attributes:
        hits: Failures, the most likely reason first.
        harmless: What looks bad and is not.
        telling: Where no failure is known: the lines that say most.
        past: Failures that an engine which came up later has left behind.
        lines: Lines read.
    """

    hits: list[Hit] = field(default_factory=list)
    harmless: list[Hit] = field(default_factory=list)
    telling: list[str] = field(default_factory=list)
    past: list[Hit] = field(default_factory=list)
    lines: int = 0


def read_text(
    text: str | Iterable[str],
    *,
    target: str | None = None,
    name: str = "NAME",
    own: Sequence[Signature] | None = None,
) -> Reading:
    """Look for everything known in a text.

    Args:
        text: The text, whole or in pieces of any length.
        target: Where it comes from, for its own table and the calls in `fix`; None: unknown.
        name: The deployment's name, for the calls.
        own: The target's own signatures, where it says them itself.
    """
    reader = _Reader(target, name, own)
    for lines in _pieces([text] if isinstance(text, str) else text):
        reader.feed(lines)
    return reader.reading()


class _Reader:
    """Keeps the hits while a text passes by."""

    def __init__(self, target: str | None, name: str, own: Sequence[Signature] | None) -> None:
        self._target = target or "TARGET"
        self._at_target = target is not None
        self._name = name
        self._entries = entries(target, own)
        self._hits: dict[str, Hit] = {}
        self._claimed: dict[int, Entry] = {}
        self._telling: dict[str, tuple[int, int, str]] = {}
        self._count = 0
        self._started_line = 0

    def feed(self, lines: list[str]) -> None:
        """Look through the next lines."""
        lowered = [line.lower() for line in lines]
        text = "\n".join(lowered)
        starts = _starts(lowered)
        self._claimed.clear()
        claims: list[tuple[int, Entry, re.Match[str], str]] = []
        for entry in self._entries:
            numbers = _lines_with(entry.hints, text, starts) if entry.hints else range(len(lines))
            claims += self._matches(entry, lines, numbers)
        for index, entry, _, _ in sorted(claims, key=lambda item: item[1].rank):
            rival = self._claimed.get(index)
            if rival is None or why_first(entry, rival, at_target=self._at_target):
                self._claimed[index] = entry
        for index, entry, match, evidence in claims:
            if self._claimed[index] is entry:
                self._note(entry, self._count + index + 1, match, evidence)
        for index, line in enumerate(lowered):
            if _STARTED in line:
                self._started_line = self._count + index + 1
        self._note_telling(lines, _lines_with(_BAD_HINTS, text, starts, last=True))
        self._count += len(lines)

    def _matches(
        self, entry: Entry, lines: list[str], numbers: Iterable[int]
    ) -> Iterator[tuple[int, Entry, re.Match[str], str]]:
        checks = 0
        done = -1
        for number in numbers:
            if checks >= _CHECKS_PER_PIECE and entry.id in self._hits:
                break  # seen often enough here to be known
            if number <= done:
                continue
            checks += 1
            search = entry.signature.pattern.search
            match = search(lines[number])
            evidence = lines[number]
            if match is None:
                window = lines[max(0, number - 1) : number + _WINDOW_LINES]
                evidence = "\n".join(window)
                match = search(evidence)
            if match is not None:
                done = number
                yield number, entry, match, evidence

    def _note(self, entry: Entry, line: int, match: re.Match[str], evidence: str) -> None:
        hit = self._hits.get(entry.id)
        if hit is None:
            cause, fix = entry.signature.explained(self._target, self._name, match)
            shown = evidence.strip()[:_EVIDENCE_CHARS]
            self._hits[entry.id] = Hit(entry, line, line, 1, shown, cause, fix)
        else:
            hit.last_line, hit.count = max(line, hit.last_line), hit.count + 1

    def _note_telling(self, lines: list[str], numbers: list[int]) -> None:
        for index in numbers:
            line = lines[index]
            if not _BAD.search(line) or index in self._claimed or _FRAME.search(line):
                continue
            stripped = line.strip()
            score = 1 + 2 * bool(_LAST_WORDS.search(stripped)) - 2 * bool(_QUIET.search(line))
            score += 1 if re.search(r"\b(?:ERROR|CRITICAL|FATAL)\b", line) else 0
            if score <= 0:
                continue
            alike = _DIGITS.sub("0", stripped)[:160]
            self._telling[alike] = (score, self._count + index, stripped[:_EVIDENCE_CHARS])
        if len(self._telling) > 50 * _TELLING:
            best = sorted(self._telling.items(), key=lambda item: item[1][:2])[-10 * _TELLING :]
            self._telling = dict(best)

    def reading(self) -> Reading:
        """What was found in all."""
        found = Reading(lines=self._count)
        failures = [hit for hit in self._hits.values() if not hit.entry.harmless]
        found.harmless = [hit for hit in self._hits.values() if hit.entry.harmless]
        current = [hit for hit in failures if hit.last_line > self._started_line]
        found.past = [hit for hit in failures if hit.last_line <= self._started_line]
        # A reason before what follows from it; then the first word, since the rest is its echo.
        current.sort(key=lambda hit: (hit.entry.signature.kind != "cause", hit.first_line))
        found.hits = current
        if not current:
            best = sorted(self._telling.values(), key=lambda item: item[:2])[-_TELLING:]
            after = [item for item in best if item[1] >= self._started_line]
            found.telling = [text for _, _, text in sorted(after, key=lambda item: item[1])]
        return found


def _starts(lines: list[str]) -> list[int]:
    """Where each line starts in the joined text."""
    starts, position = [], 0
    for line in lines:
        starts.append(position)
        position += len(line) + 1
    return starts


def _lines_with(
    hints: tuple[str, ...], text: str, starts: list[int], *, last: bool = False
) -> list[int]:
    """Numbers of lines in which one of some words stands; of a frequent word, not all.

    Args:
        hints: The words, lower case.
        text: The lines, lower case, joined.
        starts: Where each begins.
        last: Of a frequent word the last lines, not the first.
    """
    found: set[int] = set()
    for hint in hints:
        position = text.rfind(hint) if last else text.find(hint)
        for _ in range(_LINES_OF_A_WORD):
            if position < 0:
                break
            number = bisect_right(starts, position) - 1
            found.add(number)
            if last:
                position = text.rfind(hint, 0, starts[number])
            elif number + 1 < len(starts):
                position = text.find(hint, starts[number + 1])
            else:
                break
    return sorted(found)


def _pieces(chunks: Iterable[str]) -> Iterator[list[str]]:
    """Lines, cleaned, in lists of about a megabyte."""
    rest = ""
    lines: list[str] = []
    size = 0
    for chunk in chunks:
        for start in range(0, len(chunk), _PIECE_CHARS):
            text = rest + chunk[start : start + _PIECE_CHARS]
            found = text.split("\n")
            rest = found.pop()
            if len(rest) > MAX_LINE_CHARS:
                rest = rest[:MAX_LINE_CHARS]
            for line in found:
                cleaned = _cleaned(line)
                lines += cleaned
                size += sum(map(len, cleaned))
            if size >= _PIECE_CHARS:
                yield lines
                lines, size = [], 0
    lines += _cleaned(rest)
    if lines:
        yield lines


def _cleaned(line: str) -> list[str]:
    """A line without colours; the message of a JSON line, which may have several lines."""
    if len(line) > MAX_LINE_CHARS and not line.startswith("{"):
        line = line[:MAX_LINE_CHARS]
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    line = line.rstrip("\r ")
    if line.startswith("{") and line.endswith("}"):
        try:
            parsed = json.loads(line[: 16 * MAX_LINE_CHARS])
        except ValueError:
            return [line[:MAX_LINE_CHARS]]
        message = _message(parsed)
        if message:
            return [part[:MAX_LINE_CHARS] for part in message.splitlines()] or [""]
    return [line[:MAX_LINE_CHARS]] if line else []


def _message(parsed: object) -> str:
    if not isinstance(parsed, dict):
        return ""
    for key in _MESSAGE_KEYS:
        value = parsed.get(key)
        if isinstance(value, str):
            return value
    for key in ("jsonPayload", "protoPayload", "error", "status"):
        inner = _message(parsed.get(key))
        if inner:
            return inner
    return ""

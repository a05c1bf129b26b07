"""The anatomy of a log line of vLLM, wherever it was collected, and the end of a huge log file."""

from __future__ import annotations

import re
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from backends.core.errors import EngineError, NotFoundError

YEAR_S = 366 * 86_400.0

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ISO = re.compile(
    r"^\s*(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?\s+(?:-\s+)?"
)
_PROCESS = re.compile(r"^\(([A-Za-z][\w-]*)(?: rank=\d+)?(?: pid=\d+)?\)\s?")
_LEVEL = re.compile(
    r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[?[\w./-]+:\d+\] ?"
)
_UVICORN = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL):\s+")
_GLOG = re.compile(r"^\[?([IWEF])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})\d*\s")
_GLOG_LEVEL = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}


class LogLine(NamedTuple):
    """A log line taken apart.

    Args:
        raw: The whole line, colours and line end taken off.
        text: What was said, without time, process and level.
        level: DEBUG to CRITICAL, or empty for a line that was printed, not logged.
        process: vLLM's name of the process (APIServer, EngineCore, Worker_TP0), or empty.
    """

    raw: str
    text: str
    level: str
    process: str

    @property
    def quiet(self) -> bool:
        """True for what is logged at INFO, DEBUG or WARNING: never the reason of a failure."""
        return self.level in ("INFO", "DEBUG", "WARNING")


def strip_colours(text: str) -> str:
    """`text` without ANSI escape sequences."""
    return _ANSI.sub("", text)


def take_apart(raw: str, clock: Clock, at_s: float | None = None) -> LogLine:
    """Split a line into its parts and let `clock` see its time.

    Args:
        raw: One line without colours and line end.
        clock: Told the best time the line has: `at_s`, else its RFC 3339 prefix, else vLLM's.
        at_s: When the source says the line was written, in Unix seconds.
    """
    text, level, process = raw, "", ""
    dated = at_s is not None
    if at_s is not None:
        clock.tick("source", at_s)
    if found := _ISO.match(text):
        text = text[found.end() :]
        if not dated:
            clock.tick("iso", _iso_seconds(found))
            dated = True
    if found := _PROCESS.match(text):
        text, process = text[found.end() :], found.group(1)
    if found := _LEVEL.match(text):
        level, text = found.group(1), text[found.end() :]
        if not dated:
            clock.tick("vllm", _yearless_seconds(found.groups()[1:]))
    elif found := _GLOG.match(text):
        level, text = _GLOG_LEVEL[found.group(1)], text[found.end() :]
        if not dated:
            clock.tick("vllm", _yearless_seconds(found.groups()[1:6]))
    elif found := _UVICORN.match(text):
        level, text = found.group(1), text[found.end() :]
    return LogLine(raw, text, level, process)


class Clock:
    """Seconds since the first dated line, from whichever clock a line carries.

    Lines may be dated by their source, by an RFC 3339 prefix, or by vLLM itself (no year, no
    zone); each clock is anchored where it first speaks, and time never runs backwards.
    """

    def __init__(self) -> None:
        self.offset_s: float | None = None
        self._anchors: dict[str, float] = {}

    def tick(self, clock: str, value_s: float) -> None:
        """Let `clock` (its name) say `value_s`, seconds on a scale of its own."""
        now_s = self.offset_s or 0.0
        anchor = self._anchors.setdefault(clock, value_s - now_s)
        if value_s - anchor < -YEAR_S / 2:  # a clock without a year passed 31 December
            anchor = self._anchors[clock] = anchor - YEAR_S
        self.offset_s = round(max(now_s, value_s - anchor), 3)


def _iso_seconds(found: re.Match[str]) -> float:
    day, clock, fraction, zone = found.groups()
    moment = datetime.fromisoformat(f"{day}T{clock}{(zone or '+00:00').replace('Z', '+00:00')}")
    return moment.timestamp() + float(f"0.{fraction or 0}")


def _yearless_seconds(parts: tuple[str, ...]) -> float:
    # 2000 is a leap year, so every month and day is a date; the year itself is not used.
    month, day, hour, minute, second = (int(part) for part in parts)
    return datetime(2000, month, day, hour, minute, second, tzinfo=UTC).timestamp()


def tail_lines(path: Path, n: int, max_chars: int = 20_000) -> list[str]:
    """The last lines of a file, reading only its end however large it is.

    Args:
        path: The file; UTF-8, bytes that are not are replaced.
        n: How many lines, 1 or more.
        max_chars: Characters in all, line ends included; whole lines are left out from the front,
            and a single longer last line is cut from its front.

    Raises:
        NotFoundError: There is no such file.
        EngineError: It cannot be read.
    """
    budget = max_chars * 4 + 4  # UTF-8 needs at most four bytes for a character
    block = 65_536
    data = b""
    try:
        with path.open("rb") as file:
            position = file.seek(0, 2)
            while position > 0 and len(data) < budget and data.count(b"\n") <= n:
                step = min(block, position, budget - len(data))
                position -= step
                file.seek(position)
                data = file.read(step) + data
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}.") from error
    except OSError as error:
        raise EngineError(f"The file {path} cannot be read.", words=str(error)) from error
    text = strip_colours(data.decode("utf-8", "replace"))
    lines = [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    if lines and lines[-1] == "":
        lines.pop()
    kept: deque[str] = deque()
    room = max_chars
    for line in reversed(lines[-n:]):
        if len(line) + 1 > room:
            if not kept and room > 0:
                kept.appendleft(line[-room:])
            break
        kept.appendleft(line)
        room -= len(line) + 1
    return list(kept)

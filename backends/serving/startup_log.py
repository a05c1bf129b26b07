"""What a vLLM log says about its start: the phase, the facts, the last statistics, the failure.

`StartupLog` is fed the log as it grows, in any pieces, from a file of ours, from `docker logs`, or
line by line from Cloud Logging or CloudWatch, and answers with a `StartupProgress` at any moment.
It holds a bounded amount of memory however long the log is.

Markers come from recorded logs of vLLM 0.32.0 (CPU build, 2026-11-30), from the log calls in
vLLM 0.32.0's source, and from published CUDA and TPU logs of 0.8 to 0.30.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from backends.core.errors import EngineError, NotFoundError
from backends.knowledge.engine_failures import (
    DEATH,
    DEATH_ACTION,
    DEATH_CAUSE,
    KILLED_ACTION,
    KILLED_CAUSE,
    UNKNOWN_ACTION,
    UNKNOWN_CAUSE,
    FailureKind,
    match_failure,
)
from backends.serving.log_lines import Clock, LogLine, strip_colours, tail_lines, take_apart
from backends.serving.startup_markers import (
    ACCESS,
    EXCEPTION,
    FACT_MARKERS,
    NOTICE,
    PHASE_MARKERS,
    PROGRESS_BARS,
    SHUTDOWN,
    START,
    STATS,
    Phase,
)

__all__ = [
    "EngineStats",
    "FailureKind",
    "Phase",
    "PhaseStart",
    "StartupFacts",
    "StartupFailure",
    "StartupLog",
    "StartupProgress",
    "read_startup_log",
    "tail_lines",
]

MAX_LINE_CHARS = 16_384
MAX_EVIDENCE_CHARS = 1_000
MAX_EVIDENCE_LINES = 4
MAX_PHASES = 40
LAST_LINES = 8


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class PhaseStart(_Frozen):
    """A phase and when it began, in seconds after the log's first dated line."""

    phase: Phase
    offset_s: float | None = Field(None, description="None where no dated line came before.")


class StartupFacts(_Frozen):
    """What the log tells about the engine. None: not said (yet). Memory is per accelerator."""

    vllm_version: str | None = None
    model: str | None = None
    architecture: str | None = None
    url: str | None = None
    max_model_len: int | None = None
    weights_gib: float | None = None
    weights_s: float | None = None
    download_s: float | None = None
    available_kv_gib: float | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = Field(
        None, description="Requests of max_model_len tokens that fit the KV cache at once."
    )
    compile_s: float | None = None
    graph_capture_s: float | None = None
    engine_init_s: float | None = Field(
        None, description="Profiling, KV cache and warm-up together, as vLLM counts them."
    )


class EngineStats(_Frozen):
    """One `Engine 000: Avg prompt throughput …` line; vLLM prints one each 10 s under load."""

    engine: int = 0
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    running: int
    waiting: int
    kv_cache_usage_percent: float
    prefix_cache_hit_percent: float | None = None
    offset_s: float | None = None


class StartupFailure(_Frozen):
    """Why it failed. `lines` are the log's own, colours taken off, nothing else changed."""

    kind: FailureKind
    lines: tuple[str, ...]
    cause: str
    next_action: str
    offset_s: float | None = None
    exit_code: int | None = None


class StartupProgress(_Frozen):
    """Everything read so far.

    `starts` counts how often the server was started in this log: a restarted container begins
    anew, and all fields are of its last start; `failure_before` is how the one before ended.
    """

    phase: Phase = Phase.STARTING
    detail: str = Field("", description="Progress inside the phase, e.g. 'weights file 3 of 9'.")
    notice: str = Field("", description="The last line that explains a slow start, verbatim.")
    starts: int = 0
    elapsed_s: float | None = Field(
        None,
        description="From the log's first dated line of this start to its last. The process "
        "itself began earlier: about 10 s of imports on a CPU before anything is printed.",
    )
    ready_after_s: float | None = None
    phases: tuple[PhaseStart, ...] = ()
    facts: StartupFacts = StartupFacts()
    stats: EngineStats | None = None
    failure: StartupFailure | None = None
    failure_before: StartupFailure | None = None
    lines: int = Field(0, description="Lines read, of all starts.")
    last_lines: tuple[str, ...] = ()

    @property
    def settled(self) -> bool:
        """True when waiting longer changes nothing: it is ready, stopped or has failed."""
        return self.phase in (Phase.READY, Phase.STOPPED, Phase.FAILED)


class StartupLog:
    """Reads one server's log as it grows.

    Feed bytes or text in pieces of any size with `feed`, or whole lines with `feed_line` where the
    source dates each line itself. `progress` may be read at any moment.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._skipping = False
        self._lines = 0
        self._starts = 0
        self._previous: StartupFailure | None = None
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._begin()

    def _begin(self) -> None:
        self._clock = Clock()
        self._phase = Phase.STARTING
        self._phases: list[PhaseStart] = []
        self._detail = ""
        self._notice = ""
        self._facts: dict[str, str | float | int] = {}
        self._stats: EngineStats | None = None
        self._failure: StartupFailure | None = None
        self._suspect: StartupFailure | None = None
        self._ready_after_s: float | None = None
        self._tracebacks: set[str] = set()
        self._thread_died = False

    @property
    def progress(self) -> StartupProgress:
        """All that has been read so far. Cheap; an unfinished last line is not counted."""
        return StartupProgress(
            phase=self._phase,
            detail=self._detail,
            notice=self._notice,
            starts=self._starts,
            elapsed_s=self._clock.offset_s,
            ready_after_s=self._ready_after_s,
            phases=tuple(self._phases),
            facts=StartupFacts.model_validate(self._facts),
            stats=self._stats,
            failure=self._failure,
            failure_before=self._previous,
            lines=self._lines,
            last_lines=tuple(self._last),
        )

    def feed(self, data: bytes | str) -> None:
        """Take the next piece of the log. It may end anywhere, even inside a character.

        A line longer than `MAX_LINE_CHARS` is read up to there; the rest of it is dropped.
        Progress bars, which redraw with a carriage return, count as lines.
        """
        text = self._decoder.decode(data) if isinstance(data, bytes) else data
        *whole, rest = re.split(r"[\r\n]", text)
        for piece in whole:
            if not self._skipping:
                self.feed_line(self._partial + piece)
            self._partial, self._skipping = "", False
        if not self._skipping:
            self._partial += rest
            if len(self._partial) > MAX_LINE_CHARS:
                self.feed_line(self._partial)
                self._partial, self._skipping = "", True

    def feed_line(self, line: str, *, at_s: float | None = None) -> None:
        """Take one whole line.

        Args:
            line: The line, with or without its line end, colours, or a leading RFC 3339 time.
            at_s: When the source says it was written, in Unix seconds; goes before any clock
                that stands in the line.
        """
        raw = strip_colours(line[:MAX_LINE_CHARS]).rstrip()
        if not raw.strip():
            return
        self._lines += 1
        parsed = take_apart(raw, self._clock, at_s)
        if self._phase in (Phase.READY, Phase.STOPPED) and ACCESS.search(parsed.text):
            return  # a busy server's log is mostly these
        self._last.append(raw[:MAX_EVIDENCE_CHARS])
        if not self._restarted(parsed):
            self._read(parsed)

    def process_ended(self, exit_code: int | None) -> None:
        """Tell that the process is gone, which its log cannot say when it was killed.

        Args:
            exit_code: As `subprocess` gives it: negative for a signal; 128 + signal, as shells and
                containers give it, is understood too. None: unknown.

        A server that was told to stop (it said so, or exit code 0, SIGTERM, SIGINT) becomes
        `stopped`, any other `failed`; a failure that the log tells already stands.
        """
        if self._partial:
            self.feed("\n")
        signal = 0
        if exit_code is not None:
            signal = -exit_code if exit_code < 0 else max(0, exit_code - 128)
        if self._failure is not None:
            self._failure = self._failure.model_copy(update={"exit_code": exit_code})
        elif self._phase is Phase.STOPPED or exit_code == 0 or signal in (2, 15):
            self._enter(Phase.STOPPED)
        elif self._suspect is not None:
            self._failure = self._suspect.model_copy(update={"exit_code": exit_code})
            self._enter(Phase.FAILED)
        else:
            kind, cause, action = FailureKind.UNKNOWN, UNKNOWN_CAUSE, UNKNOWN_ACTION
            if signal == 9:
                kind, cause, action = FailureKind.KILLED, KILLED_CAUSE, KILLED_ACTION
            elif self._phase is Phase.READY:
                kind, cause, action = FailureKind.ENGINE_DIED, DEATH_CAUSE, DEATH_ACTION
            self._fail(kind, tuple(self._last)[-MAX_EVIDENCE_LINES:], cause, action, exit_code)

    def _restarted(self, line: LogLine) -> bool:
        """Notice the banner; begin anew when it is not the first of this start."""
        found = START.search(line.text)
        if not found or line.level != "INFO":
            return False
        if self._phase in (Phase.STARTING, Phase.LOADING_CONFIG) and not self._facts:
            self._starts = max(1, self._starts)
        else:
            self._previous = self._failure
            self._begin()
            self._starts += 1
        self._facts["vllm_version"] = found.group(1) or found.group(2)
        self._enter(Phase.LOADING_CONFIG)
        return True

    def _read(self, line: LogLine) -> None:
        if self._phase is Phase.READY:
            self._read_serving(line)
            return
        if self._phase is Phase.STOPPED:
            return
        self._read_traceback(line)
        if self._read_failure(line):
            return
        if line.level == "INFO" and line.text == "Application startup complete.":
            self._become_ready()
            return
        if self._failure is None or self._failure.kind is FailureKind.UNKNOWN:
            self._read_start(line)

    def _read_start(self, line: LogLine) -> None:
        if NOTICE.search(line.text):
            self._notice = line.raw[:MAX_EVIDENCE_CHARS]
            return
        if SHUTDOWN.search(line.text):
            self._enter(Phase.STOPPED)
            return
        for fact in FACT_MARKERS:
            found = fact.pattern.search(line.text)
            if found and (fact.replaces or fact.name not in self._facts):
                self._facts[fact.name] = fact.convert(found.group(1))
        for marker in PHASE_MARKERS:
            if marker.pattern.search(line.text):
                self._failure = self._suspect = None  # it went on: what was logged was no end
                self._enter(marker.phase)
                break
        for what, pattern in PROGRESS_BARS:
            if found := pattern.search(line.text):
                self._detail = f"{what} {found.group(1)} of {found.group(2)}"

    def _read_traceback(self, line: LogLine) -> None:
        """Remember the first exception that ended a traceback: the root cause, if none is known."""
        if line.quiet:
            return
        if line.text.startswith("Exception in thread"):
            self._thread_died = True
        elif line.text == "Traceback (most recent call last):":
            if len(self._tracebacks) < 64:
                self._tracebacks.add(line.process)
        elif line.process in self._tracebacks and EXCEPTION.match(line.text):
            self._tracebacks.discard(line.process)
            if not self._thread_died and self._suspect is None:
                self._suspect = StartupFailure(
                    kind=FailureKind.UNKNOWN,
                    lines=(line.raw[:MAX_EVIDENCE_CHARS],),
                    cause=UNKNOWN_CAUSE,
                    next_action=UNKNOWN_ACTION,
                    offset_s=self._clock.offset_s,
                )
            self._thread_died = False

    def _read_failure(self, line: LogLine) -> bool:
        """Take a telling line into `failure`. True when the line belongs to a failure."""
        if line.quiet:
            # vLLM reports the shortage itself as INFO, one line before it raises.
            if "Available KV cache memory: -" not in line.text:
                return False
            self._facts["available_kv_gib"] = float(line.text.rsplit(":", 1)[1].split()[0])
        if NOTICE.search(line.text):
            return False
        matched = match_failure(line.text)
        known = self._failure is not None and self._failure.kind is not FailureKind.UNKNOWN
        if matched is not None:
            rule, cause, next_action = matched
            if not known:
                self._fail(rule.kind, (line.raw,), cause, next_action)
            elif self._failure is not None and self._failure.kind is rule.kind:
                self._add_evidence(line.raw)
            return True
        if "Engine core initialization failed" in line.text and self._failure is None:
            suspect = self._suspect
            self._fail(
                FailureKind.UNKNOWN,
                (*(suspect.lines if suspect else ()), line.raw),
                UNKNOWN_CAUSE,
                UNKNOWN_ACTION,
            )
        return known

    def _read_serving(self, line: LogLine) -> None:
        """After `ready` a line may carry a user's words, so only the engine's own turns count."""
        if line.level and (found := STATS.match(line.text)):
            engine, prompt, generation, running, waiting, usage, hits = found.groups()
            self._stats = EngineStats(
                engine=int(engine or 0),
                prompt_tokens_per_s=float(prompt),
                generation_tokens_per_s=float(generation),
                running=int(running),
                waiting=int(waiting),
                kv_cache_usage_percent=float(usage),
                prefix_cache_hit_percent=float(hits) if hits else None,
                offset_s=self._clock.offset_s,
            )
            return
        if line.level == "INFO":
            if SHUTDOWN.search(line.text):
                self._enter(Phase.STOPPED)
            return
        if line.level == "ERROR" and re.match(r"\[Errno \d+\].* bind on address", line.text):
            # uvicorn alone binds only after start-up; vLLM binds before it loads anything.
            self._read_failure(line)
        elif self._is_exception(line) and (matched := match_failure(line.text)):
            rule, cause, next_action = matched
            self._suspect = StartupFailure(
                kind=rule.kind,
                lines=(line.raw[:MAX_EVIDENCE_CHARS],),
                cause=cause,
                next_action=next_action,
                offset_s=self._clock.offset_s,
            )
        elif line.level in ("ERROR", "WARNING", "") and re.search(DEATH, line.text):
            self._die(line)

    @staticmethod
    def _is_exception(line: LogLine) -> bool:
        return line.level in ("ERROR", "CRITICAL") and bool(EXCEPTION.match(line.text))

    def _die(self, line: LogLine) -> None:
        suspect = self._suspect
        if suspect is None:
            self._fail(FailureKind.ENGINE_DIED, (line.raw,), DEATH_CAUSE, DEATH_ACTION)
        else:
            lines = (*suspect.lines, line.raw)
            self._fail(suspect.kind, lines, suspect.cause, suspect.next_action)

    def _become_ready(self) -> None:
        self._failure = self._suspect = None
        self._tracebacks.clear()
        self._ready_after_s = self._clock.offset_s
        self._enter(Phase.READY)

    def _fail(
        self,
        kind: FailureKind,
        lines: tuple[str, ...],
        cause: str,
        next_action: str,
        exit_code: int | None = None,
    ) -> None:
        self._failure = StartupFailure(
            kind=kind,
            lines=tuple(line[:MAX_EVIDENCE_CHARS] for line in lines),
            cause=cause,
            next_action=next_action,
            offset_s=self._clock.offset_s,
            exit_code=exit_code,
        )
        self._enter(Phase.FAILED)

    def _add_evidence(self, raw: str) -> None:
        failure = self._failure
        if failure is None or len(failure.lines) >= MAX_EVIDENCE_LINES:
            return
        said = raw[:MAX_EVIDENCE_CHARS]
        # vLLM prints one exception three times: logged, from the process, from the API server.
        ending = said[-80:]
        if not any(line.endswith(ending) for line in failure.lines):
            self._failure = failure.model_copy(update={"lines": (*failure.lines, said)})

    def _enter(self, phase: Phase) -> None:
        if phase is self._phase and self._phases:
            return
        self._phase = phase
        self._detail = ""
        self._starts = max(1, self._starts)
        if len(self._phases) == MAX_PHASES:
            del self._phases[1]
        self._phases.append(PhaseStart(phase=phase, offset_s=self._clock.offset_s))


def read_startup_log(path: Path, *, max_bytes: int = 8 * 1024 * 1024) -> StartupProgress:
    """Read a whole log file, or of a huge one its beginning and its end.

    Args:
        path: The log file.
        max_bytes: Read at most this much, half from each end where the file is larger.

    Raises:
        NotFoundError: There is no such file.
        EngineError: It cannot be read.
    """
    log = StartupLog()
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= max_bytes:
                log.feed(file.read(max_bytes))
            else:
                log.feed(file.read(max_bytes // 2))
                file.seek(-(max_bytes // 2), 2)
                log.feed(b"\n" + file.read(max_bytes // 2).partition(b"\n")[2])
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no log file {path}.") from error
    except OSError as error:
        raise EngineError(f"The log file {path} cannot be read.", words=str(error)) from error
    log.feed("\n")
    return log.progress

"""One response of a load: reads with their times go in, the times of its content events come out.

What the bytes mean is decided by `backends.serving.wire` alone. In front of it stands a shortcut:
nearly every event of a stream is the same bytes around another text, so once an event has been
read in full, its prefix and suffix are kept, and a read that is exactly one HTTP chunk with exactly
that prefix, some text and that suffix is a content event without parsing. Whatever differs in one
byte goes the full way, and what the full way says about the pattern decides whether it is kept at
all, so both ways give the same times (a test cuts answers at every byte to hold that).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.serving.engine.eventstream import EVENT_STREAM, FrameDecoder
from backends.serving.refusals import retry_after_s
from backends.serving.wire import (
    Failure,
    HttpResponseReader,
    SseDecoder,
    StreamTally,
    WireError,
    body_words,
)

if TYPE_CHECKING:
    from backends.serving.loadgen import RequestRecord

REFUSAL_BYTES = 8192
END_OF_CHUNKS = b"0\r\n\r\n"
END_OF_STREAM = b"data: [DONE]\n\n\r\n" + END_OF_CHUNKS
"""How a stream of vLLM ends on the wire. Text cannot look so: JSON has no line breaks inside."""

_MAX_LESSONS = 6
"""Where every event differs from the one before, learning is given up after so many."""

_MAX_SHORTCUT_BYTES = 8192
_QUOTE = ord('"')
_TEXT = re.compile(rb'"(?:content|text|reasoning|reasoning_content)"\s*:\s*"((?:[^"\\]|\\.)+)"')


def _chunk_heads() -> list[bytes | None]:
    """Return, by length of a read, the size line it has when it is exactly one HTTP chunk."""
    heads: list[bytes | None] = [None] * _MAX_SHORTCUT_BYTES
    for size in range(1, _MAX_SHORTCUT_BYTES):
        head = b"%x\r\n" % size
        whole = len(head) + size + 2
        if whole < _MAX_SHORTCUT_BYTES:
            heads[whole] = head
    return heads


_HEAD_OF = _chunk_heads()


@dataclass(frozen=True, slots=True)
class Pattern:
    """The bytes around the text of a content event, as the event stands in its `data` line."""

    prefix: bytes
    suffix: bytes

    def fits(self, event: bytes) -> bool:
        """Whether an event is this pattern around a text that is not empty."""
        at = len(self.prefix)
        return (
            event.startswith(self.prefix)
            and event.endswith(self.suffix)
            and len(event) > at + len(self.suffix)
            and event[at] != _QUOTE
        )


def learn(event: bytes) -> Pattern | None:
    """Return the pattern of a content event, or None when it has none that can be relied on.

    The pattern is taken to the full reader with a text and without one: it must be a content event
    with it, nothing without it, and carry nothing else (finish_reason, usage, an error).
    """
    match = _TEXT.search(event)
    if match is None:
        return None
    pattern = Pattern(event[: match.start(1)], event[match.end(1) :])
    with_text, without = StreamTally(), StreamTally()
    with_text.take(pattern.prefix + b"x" + pattern.suffix, 1)
    without.take(pattern.prefix + pattern.suffix, 1)
    is_plain = all(
        tally.error is None and tally.finish_reason is None and tally.completion_tokens is None
        for tally in (with_text, without)
    )
    if not is_plain or len(with_text.content_ns) != 1 or len(without.content_ns) != 0:
        return None
    return pattern


class AnswerReader:
    """Reads one response into its record.

    Args:
        record: What is filled in.
        framed: Whether the events come in the frames of an AWS event stream.
        keep_text: Whether the answer's text is wanted; then every event is read in full.

    Attributes:
        is_broken: Whether the bytes have stopped making sense; the connection is of no more use.
        full_events: Events that were read in full.
        waiting: Parts of this answer that its worker still has to hand in.
    """

    __slots__ = (
        "_broken",
        "_decoder",
        "_framed",
        "_frames",
        "_http",
        "_lessons",
        "_patterns",
        "_refusal",
        "_shortcut",
        "_tally",
        "full_events",
        "record",
        "waiting",
    )

    def __init__(
        self, record: RequestRecord, *, framed: bool = False, keep_text: bool = False
    ) -> None:
        self.record = record
        self.full_events = 0
        self.waiting = 0
        self._framed = framed
        self._http = HttpResponseReader()
        self._frames: FrameDecoder | None = None
        self._decoder: SseDecoder | None = None
        self._tally = StreamTally(keep_text=keep_text, content_ns=record.content_ns)
        self._refusal = b""
        self._broken: Failure | None = None
        self._patterns: list[Pattern] = []
        self._shortcut: Pattern | None = None
        self._lessons = _MAX_LESSONS if keep_text else 0

    @property
    def text(self) -> str:
        """The answer, without its reasoning, where it was to be kept."""
        return "".join(self._tally.text)

    @property
    def is_complete(self) -> bool:
        """Whether the response has ended, as HTTP sees it."""
        return self._http.complete

    @property
    def is_broken(self) -> bool:
        """Whether what came was not a response."""
        return self._broken is not None

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection may carry another request."""
        return self._http.complete and self._http.keep_alive and self._broken is None

    def feed(self, reads: Sequence[bytes], times_ns: Sequence[int]) -> None:
        """Take reads in their order, each with its time."""
        record, content = self.record, self.record.content_ns
        if record.first_byte_ns == 0 and times_ns:
            record.first_byte_ns = times_ns[0]
        pattern, prefix, suffix = self._ready_shortcut()
        skip = len(prefix)
        head_of, keep = _HEAD_OF, content.append
        for data, at_ns in zip(reads, times_ns, strict=True):
            size = len(data)
            if (
                pattern is not None
                and size < _MAX_SHORTCUT_BYTES
                and (head := head_of[size]) is not None
                and data.startswith(head)
                and data.startswith(prefix, at := len(head))
                and data.endswith(suffix)
                and size > at + skip + len(suffix)
                and data[at + skip] != _QUOTE
            ):
                keep(at_ns)
                continue
            self._take(data, at_ns)
            pattern, prefix, suffix = self._ready_shortcut()
            skip = len(prefix)

    def end_of_connection(self) -> None:
        """Say that the connection has closed."""
        if self._broken is None:
            try:
                self._http.eof()
            except WireError as error:
                events = len(self.record.content_ns)
                self._broken = Failure("connection_lost", f"{error}, after {events} content events")

    def finish(self, failure: Failure | None = None) -> None:
        """Fill in what the record lacks, with a failure that others have seen or our own."""
        record, tally = self.record, self._tally
        if not self._http.complete:
            self.end_of_connection()
        record.first_answer_ns = tally.first_answer_ns
        record.prompt_tokens = tally.prompt_tokens
        record.completion_tokens = tally.completion_tokens
        record.finish_reason = tally.finish_reason
        record.failure = failure or self._failure()

    def _ready_shortcut(self) -> tuple[Pattern | None, bytes, bytes]:
        """Return the pattern to look for, or None while something is half read."""
        pattern, decoder = self._shortcut, self._decoder
        if (
            pattern is None
            or decoder is None
            or self._frames is not None
            or self._broken is not None
            or self._tally.error is not None
            or not self._http.at_chunk
            or not decoder.at_event
        ):
            return None, b"", b""
        return pattern, b"data: " + pattern.prefix, pattern.suffix + b"\n\n\r\n"

    def _take(self, data: bytes, at_ns: int) -> None:
        if self._broken is not None:
            return
        try:
            body = self._http.feed(data)
            if body:
                self._take_body(body, at_ns)
        except WireError as error:
            self._broken = Failure("malformed_answer", str(error))

    def _take_body(self, body: bytes, at_ns: int) -> None:
        if self._decoder is None:
            kind = self._http.headers.get("content-type", "")
            wanted = EVENT_STREAM if self._framed else "text/event-stream"
            if self._http.status != 200 or wanted not in kind:
                self._refusal = (self._refusal + body)[:REFUSAL_BYTES]
                return
            self._decoder = SseDecoder()
            if self._framed:
                self._frames = FrameDecoder()
        if self._frames is not None:
            body, failure = self._frames.feed(body)
            if failure is not None and self._tally.error is None:
                self._tally.error = failure
        before = len(self.record.content_ns)
        for event in self._decoder.feed(body):
            self._take_event(event, at_ns)
        came = len(self.record.content_ns) - before
        if came > 1:
            self.record.coalesced += came - 1

    def _take_event(self, event: bytes, at_ns: int) -> None:
        tally = self._tally
        if tally.error is None:
            for pattern in self._patterns:
                if pattern.fits(event):
                    self._shortcut = pattern
                    tally.content_ns.append(at_ns)
                    return
        self.full_events += 1
        before = len(tally.content_ns)
        tally.take(event, at_ns)
        if len(tally.content_ns) > before and self._lessons < _MAX_LESSONS:
            self._lessons += 1
            pattern_seen = learn(event)
            if pattern_seen is not None:
                self._patterns.append(pattern_seen)
                self._shortcut = pattern_seen

    def _failure(self) -> Failure | None:
        if self._broken is not None:
            return self._broken
        status, headers = self._http.status, self._http.headers
        if status != 200:
            return Failure(
                f"http_{status}",
                body_words(self._refusal, 500),
                status,
                retry_after_s(headers),
            )
        if self._decoder is None:
            kind = headers.get("content-type", "no content type")
            return Failure(
                "not_streamed",
                f"answered whole ({kind}) although a stream was asked for",
                status,
            )
        return self._tally.failure()

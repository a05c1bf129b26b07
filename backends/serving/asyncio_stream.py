"""One stream of the asyncio load engine: a request at a time on a connection that is kept.

A read is stamped with `time.perf_counter_ns` before anything else happens to it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, cast

from backends.serving.loadgen import RequestRecord
from backends.serving.refusals import retry_after_s
from backends.serving.wire import (
    Failure,
    HttpResponseReader,
    SseDecoder,
    StreamTally,
    WireError,
    body_words,
)

REFUSAL_BYTES = 8192
"""As much of a refusal's body as is kept for its words."""


class StreamOwner(Protocol):
    """Whoever hands requests to streams."""

    @property
    def timeout_s(self) -> float:
        """Bound of one request."""

    def finished(self, stream: Stream, record: RequestRecord) -> None:
        """Take a request that has ended, well or not."""


class Wire(asyncio.Protocol):
    """One connection of a stream; what a replaced one still has to say is nobody's any more."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio once connected."""
        self._stream.attach(self, cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with every read; the clock is asked first."""
        now_ns = time.perf_counter_ns()
        if self._stream.wire is self:
            self._stream.received(data, now_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio once closed."""
        if self._stream.wire is self:
            self._stream.lost(exc)


class Stream:
    """Carries one request at a time, on one connection after the other where it must."""

    def __init__(self, owner: StreamOwner) -> None:
        self._owner = owner
        self.wire: Wire | None = None
        self._transport: asyncio.Transport | None = None
        self._record: RequestRecord | None = None
        self._reader = HttpResponseReader()
        self._decoder: SseDecoder | None = None
        self._tally = StreamTally()
        self._refusal = b""
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent at once."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, record: RequestRecord, request: bytes, free_since_ns: int | None) -> None:
        """Send a request; its end comes to `StreamOwner.finished`."""
        assert self._transport is not None  # noqa: S101 - the caller asked is_open
        self._record = record
        self._reader = HttpResponseReader()
        self._decoder = None
        self._tally = StreamTally(content_ns=record.content_ns)
        self._refusal = b""
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._owner.timeout_s, self._expire)
        record.sent_ns = time.perf_counter_ns()
        if free_since_ns is not None:
            record.send_lag_ns = record.sent_ns - free_since_ns
        self._transport.write(request)

    def abandon(self) -> None:
        """Close without a word; the request in flight is nobody's any more."""
        self._forget()
        self._drop()

    def attach(self, wire: Wire, transport: asyncio.Transport) -> None:
        """Take a connection that has just been made."""
        self.wire, self._transport = wire, transport

    def received(self, data: bytes, now_ns: int) -> None:
        """Take the bytes of one read."""
        record = self._record
        if record is None:
            self.abandon()
            return
        if record.first_byte_ns == 0:
            record.first_byte_ns = now_ns
        try:
            body = self._reader.feed(data)
            if body:
                self._take(body, record, now_ns)
        except WireError as error:
            self._fail(Failure("malformed_answer", str(error)), now_ns)
            return
        if self._reader.complete:
            self._end(now_ns)

    def lost(self, exc: Exception | None) -> None:
        """Take note that the connection has closed, for better or worse."""
        self.wire = self._transport = None
        if self._record is None:
            return
        now_ns = time.perf_counter_ns()
        events = len(self._record.content_ns)
        try:
            self._reader.eof()
        except WireError as error:
            words = f"{exc or error}, after {events} content events"
            self._fail(Failure("connection_lost", words), now_ns)
        else:
            self._end(now_ns)

    def _take(self, body: bytes, record: RequestRecord, now_ns: int) -> None:
        if self._decoder is None:
            kind = self._reader.headers.get("content-type", "")
            if self._reader.status != 200 or "text/event-stream" not in kind:
                self._refusal = (self._refusal + body)[:REFUSAL_BYTES]
                return
            self._decoder = SseDecoder()
        before = len(record.content_ns)
        for event in self._decoder.feed(body):
            self._tally.take(event, now_ns)
        came = len(record.content_ns) - before
        if came > 1:
            record.coalesced += came - 1

    def _end(self, now_ns: int) -> None:
        status, headers = self._reader.status, self._reader.headers
        if status != 200:
            self._fail(
                Failure(
                    f"http_{status}",
                    body_words(self._refusal, 500),
                    status,
                    retry_after_s(headers),
                ),
                now_ns,
            )
        elif self._decoder is None:
            kind = headers.get("content-type", "no content type")
            self._fail(
                Failure(
                    "not_streamed",
                    f"answered whole ({kind}) although a stream was asked for",
                    status,
                ),
                now_ns,
            )
        else:
            self._finish(self._tally.failure(), now_ns)

    def _expire(self) -> None:
        record = self._record
        events = len(record.content_ns) if record else 0
        limit_s = self._owner.timeout_s
        self._fail(
            Failure("timeout", f"no end within {limit_s:g} s; {events} content events had come"),
            time.perf_counter_ns(),
        )

    def _fail(self, failure: Failure, now_ns: int) -> None:
        if not self._reader.complete:
            self._drop()
        self._finish(failure, now_ns)

    def _finish(self, failure: Failure | None, now_ns: int) -> None:
        record = self._record
        assert record is not None  # noqa: S101 - every path here has one
        self._forget()
        tally = self._tally
        record.end_ns = now_ns
        record.first_answer_ns = tally.first_answer_ns
        record.prompt_tokens = tally.prompt_tokens
        record.completion_tokens = tally.completion_tokens
        record.finish_reason = tally.finish_reason
        record.failure = failure
        if not self._reader.keep_alive:
            self._drop()
        self._owner.finished(self, record)

    def _drop(self) -> None:
        """Close the connection at once and hear no more of it."""
        transport, self.wire, self._transport = self._transport, None, None
        if transport is not None:
            transport.abort()

    def _forget(self) -> None:
        self._record = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

"""The streams of a worker: lanes with their connections, what they receive, and how they fail.

Which request a lane carries next is not decided here; `Streams` is given requests and tells its
owner when a lane is free again and when an answer has been read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from backends.serving.engine.answer import END_OF_CHUNKS, END_OF_STREAM, AnswerReader
from backends.serving.engine.backlog import Backlog
from backends.serving.engine.clock import CONTROL_BYTES, now_ns, own_stamp, stamp_ns
from backends.serving.engine.lane import Lane, is_endless_stream
from backends.serving.engine.link import READ, READ_BYTES, WRITE, Link, LinkError
from backends.serving.engine.messages import PartEnd
from backends.serving.wire import Failure

if TYPE_CHECKING:
    from backends.serving.engine.messages import Open
    from backends.serving.engine.poller import Poller
    from backends.serving.loadgen import RequestRecord

SECOND_NS = 1_000_000_000
CONNECT_TIMEOUT_NS = 10 * SECOND_NS
CONNECTS_AT_ONCE = 64
MOST_IDLE_NS = 4 * SECOND_NS
"""uvicorn closes a connection that has been idle for 5 s; before that it is replaced."""

STALE_NS = SECOND_NS
"""A connection that breaks so soon after the send, with no answer, was closed before it."""

MANY_READS = 64
"""An answer under way is read in parts of so many reads, so that what waits takes little memory."""

SHORT_ANSWER_READS = 6
"""An answer this short may be a failure, which is to be known before the lane's next request."""


class Streams:
    """The lanes of a worker.

    Args:
        setup: How many, to whom.
        poller: Where their connections are waited for.
        stamped: Whether the kernel stamps what they receive.
        offset_ns: What turns its stamps into the monotonic clock.
        on_read: Told of every answer that has been read to its end.
        on_read_so_far: Told of an answer that has been read so far.
        on_free: Told of every lane that is free again: since when, and whether its request failed.
        on_opened: Told once, when every connection stands or has failed: how the failures went.

    Attributes:
        lanes: All of them.
        backlog: What was received and waits to be read.
        account: Where troubles are counted.
        received: Sockets that were ready so far.
        keeps_text: Whether the text of answers is kept.
    """

    def __init__(
        self,
        setup: Open,
        poller: Poller,
        *,
        stamped: bool,
        offset_ns: int,
        on_read: Callable[[AnswerReader], None],
        on_read_so_far: Callable[[AnswerReader], None],
        on_free: Callable[[Lane, int, bool], None],
        on_opened: Callable[[list[str]], None],
    ) -> None:
        self.lanes = [Lane(number) for number in range(setup.lanes)]
        self.account = PartEnd()
        self.received = 0
        self.keeps_text = False
        self.backlog = Backlog(offset_ns, self._was_read, on_read_so_far)
        self._target = setup.target
        self._tls = None if setup.target.tls is None else setup.target.tls.context()
        self._timeout_s = setup.timeout_s
        self._poller = poller
        self._stamped = stamped
        self._offset_ns = offset_ns
        self._on_read = on_read
        self._on_free = on_free
        self._on_opened = on_opened
        self._by_fd: dict[int, Lane] = {}
        self._to_open = self.lanes[::-1]
        self._opening = 0
        self._is_opened = False
        self._open_failures: list[str] = []

    # ---- what a worker asks for -----------------------------------------------------------------

    @property
    def are_settled(self) -> bool:
        """Whether no connection is being made."""
        return all(lane.link is None or lane.link.is_up for lane in self.lanes)

    def open_more(self) -> None:
        """Go on with opening every lane's first connection, some at a time."""
        while self._to_open and self._opening < CONNECTS_AT_ONCE:
            self._opening += 1
            self._connect(self._to_open.pop())

    def reopen(self) -> None:
        """Connect every free lane that has no connection."""
        for lane in self.lanes:
            if lane.link is None and lane.is_free:
                self._connect(lane)

    def begin(self, lane: Lane, record: RequestRecord, request: bytes) -> None:
        """Send a request on a free lane, over a new connection where there is none."""
        framed = self._target.wire is not None
        lane.take(AnswerReader(record, framed=framed, keep_text=self.keeps_text), request)
        if lane.is_up:
            self._transmit(lane, lane.link)
            return
        self.account.reconnects += 1
        record.sent_ns = now_ns()
        if lane.link is None:
            self._connect(lane)

    def receive(self, ready: list[tuple[int, int]]) -> tuple[int, int] | None:
        """Take what sockets have received; returns what is ready and none of theirs."""
        foreign = None
        by_fd = self._by_fd
        self.received += len(ready)
        for fd, what in ready:
            lane = by_fd.get(fd)
            if lane is None:
                foreign = fd, what
                continue
            if not lane.hot:
                self._serve(lane, what)
                continue
            try:
                data, control, _, _ = lane.receive(READ_BYTES, CONTROL_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                self._lost(lane, error.strerror or str(error))
                continue
            if not data:
                self._lost(lane, "")
                continue
            lane.reads.append(data)
            lane.stamps.append(control[0][2] if control else self._own_stamp())
            if data[-5:] == END_OF_CHUNKS or len(data) < 5:
                self._maybe_ended(lane, data)
        return foreign

    def waited_ns(self, fd: int, woken_ns: int, at_ns: int) -> int | None:
        """Return how long what a socket received has waited to be read; None if it is gone.

        Without stamps that is not known: it has waited at least since the reader woke up.
        """
        if not self._stamped:
            return at_ns - woken_ns
        lane = self._by_fd.get(fd)
        if lane is None or not lane.stamps:
            return None
        return at_ns - stamp_ns(lane.stamps[-1], self._offset_ns)

    def abandon(self) -> None:
        """Close what is in flight; it is nobody's any more."""
        at_ns = now_ns()
        for lane in self.lanes:
            if not lane.is_free:
                self._drop(lane)
                lane.release(at_ns)

    def look_after(self, at_ns: int) -> None:
        """Give up what has taken too long, hand in what has piled up, replace what is stale."""
        for lane in self.lanes:
            link = lane.link
            if link is not None and not link.is_up:
                if at_ns - lane.opened_ns > CONNECT_TIMEOUT_NS:
                    self._drop(lane)
                    limit_s = CONNECT_TIMEOUT_NS / SECOND_NS
                    self._not_opened(lane, f"no connection within {limit_s:g} s", at_ns)
            elif lane.reader is not None:
                self._look_after_answer(lane, lane.reader, at_ns)
            elif link is not None and self._is_opened and at_ns - lane.idle_since_ns > MOST_IDLE_NS:
                self._connect(lane)

    # ---- receiving ------------------------------------------------------------------------------

    def _serve(self, lane: Lane, what: int) -> None:
        """Do for a lane whatever its connection is ready for."""
        link = lane.link
        if link is None:
            return
        try:
            if not link.is_up:
                if link.advance(bool(what & ~WRITE)):
                    self._is_up(lane, link)
                self._watch(link)
                return
            if what & WRITE:
                link.flush()
                self._watch(link)
                lane.hot = lane.streaming and link.is_plain and link.wants == READ
            if what & ~WRITE:
                data, stamp = link.receive()
                if data:
                    self._take(lane, data, stamp or self._own_stamp())
        except BlockingIOError:
            return
        except EOFError:
            self._lost(lane, "")
        except LinkError as error:
            self._lost(lane, error.words, is_local=error.is_local)

    def _take(self, lane: Lane, data: bytes, stamp: bytes) -> None:
        """Take plain bytes of an answer that is not simply a stream under way, or not yet."""
        reader, link = lane.reader, lane.link
        if reader is None or link is None:  # bytes nobody asked for: what they belong to is unknown
            self._drop(lane)
            return
        if not lane.streaming and reader.record.first_byte_ns == 0 and is_endless_stream(data):
            reader.record.first_byte_ns = stamp_ns(stamp, self._offset_ns)
            lane.streaming = True
            lane.hot = link.is_plain and link.wants == READ
        if lane.streaming:
            lane.reads.append(data)
            lane.stamps.append(stamp)
            if data[-5:] == END_OF_CHUNKS or len(data) < 5:
                self._maybe_ended(lane, data)
            return
        self.backlog.read_now(reader, [data], [stamp])
        if reader.is_complete or reader.is_broken:
            self._ended(lane, reader, stamp_ns(stamp, self._offset_ns))

    def _maybe_ended(self, lane: Lane, data: bytes) -> None:
        """Look whether a stream has ended; the last bytes say so, or else reading all of it."""
        reader, reads, stamps = lane.reader, lane.reads, lane.stamps
        if reader is None:
            return
        tail = data if len(data) >= len(END_OF_STREAM) else b"".join(reads[-6:])
        is_long = len(reads) > SHORT_ANSWER_READS or reader.waiting or reader.full_events
        if is_long and tail.endswith(END_OF_STREAM):
            self.backlog.put(reader, reads, stamps, is_end=True)
            at_ns = stamp_ns(stamps[-1], self._offset_ns)
            lane.release(at_ns)
            self._on_free(lane, at_ns, False)
        elif tail.endswith(END_OF_CHUNKS):
            self._read_in_full(lane, reader)

    def _read_in_full(self, lane: Lane, reader: AnswerReader) -> None:
        """Read at once what has come of an answer, and see whether that was all."""
        reads, stamps = lane.hand_in()
        self.backlog.read_now(reader, reads, stamps)
        if reader.is_complete or reader.is_broken:
            self._ended(lane, reader, stamp_ns(stamps[-1], self._offset_ns))

    def _look_after_answer(self, lane: Lane, reader: AnswerReader, at_ns: int) -> None:
        came = len(lane.reads)
        if at_ns >= lane.deadline_ns:
            self._give_up(lane, reader, at_ns)
        elif came and came == lane.seen:
            self._read_in_full(lane, reader)  # silence: maybe it has ended in a way of its own
        elif came >= MANY_READS:
            self.backlog.put(reader, *lane.hand_in(), is_end=False)
        else:
            lane.seen = came

    def _own_stamp(self) -> bytes:
        if self._stamped:
            self.account.unstamped_reads += 1
        return own_stamp(self._offset_ns)

    # ---- ending and failing ---------------------------------------------------------------------

    def _ended(self, lane: Lane, reader: AnswerReader, at_ns: int) -> None:
        """Be done with a request whose answer has been read, or will not come."""
        reader.record.end_ns = at_ns
        if not reader.keeps_alive:
            self._drop(lane)
        lane.release(at_ns)
        reader.finish(reader.record.failure)
        self._on_free(lane, at_ns, reader.record.failure is not None)
        self._on_read(reader)

    def _was_read(self, reader: AnswerReader) -> None:
        reader.finish(reader.record.failure)
        self._on_read(reader)

    def _lost(self, lane: Lane, words: str, *, is_local: bool = False) -> None:
        """Take note that a connection has broken or closed."""
        reader, was_up, at_ns = lane.reader, lane.is_up, now_ns()
        self._drop(lane)
        if is_local:
            self.account.out_of_files += 1
        if not was_up:
            self._not_opened(lane, words or "closed by the other side while it was set up", at_ns)
        elif reader is None:
            if self._is_opened:
                self._connect(lane)
        elif self._was_stale(lane, reader.record, at_ns):
            lane.is_resend = True
            self.account.resent += 1
            self._connect(lane)
        else:
            self._broke_off(lane, reader, words, at_ns)

    def _was_stale(self, lane: Lane, record: RequestRecord, at_ns: int) -> bool:
        """Whether a kept connection had been closed before the request reached the server."""
        nothing_came = record.first_byte_ns == 0 and not lane.reads
        is_reused = lane.used > 0 and not lane.is_resend
        return nothing_came and is_reused and at_ns - record.sent_ns < STALE_NS

    def _broke_off(self, lane: Lane, reader: AnswerReader, words: str, at_ns: int) -> None:
        record = reader.record
        reads, stamps = lane.hand_in()
        if stamps:
            at_ns = stamp_ns(stamps[-1], self._offset_ns)
        self.backlog.read_now(reader, reads, stamps)
        reader.end_of_connection()
        if reader.is_broken and words:
            events = len(record.content_ns)
            record.failure = Failure("connection_lost", f"{words}, after {events} content events")
        self._ended(lane, reader, max(at_ns, record.sent_ns))

    def _give_up(self, lane: Lane, reader: AnswerReader, at_ns: int) -> None:
        self.backlog.read_now(reader, *lane.hand_in())
        events = len(reader.record.content_ns)
        reader.record.failure = Failure(
            "timeout", f"no end within {self._timeout_s:g} s; {events} content events had come"
        )
        self._drop(lane)
        self._ended(lane, reader, at_ns)

    # ---- sending and connecting -----------------------------------------------------------------

    def _transmit(self, lane: Lane, link: Link | None) -> None:
        """Hand a request to the socket of a connection that stands."""
        if lane.reader is None or link is None:
            return
        record, at_ns = lane.reader.record, now_ns()
        if not lane.is_resend:
            record.sent_ns = at_ns
            if record.intended_ns is not None:
                record.send_lag_ns = at_ns - record.intended_ns
        lane.deadline_ns = at_ns + int(self._timeout_s * SECOND_NS)
        try:
            link.send(lane.request)
        except LinkError as error:
            self._lost(lane, error.words, is_local=error.is_local)
            return
        if link.wants != READ:
            self._watch(link)

    def _connect(self, lane: Lane) -> None:
        self._drop(lane)
        lane.opened_ns, lane.used = now_ns(), 0
        try:
            link = Link(self._target, self._tls, stamped=self._stamped)
        except LinkError as error:
            self.account.out_of_files += error.is_local
            self._not_opened(lane, error.words, lane.opened_ns)
            return
        lane.link, lane.receive = link, link.recvmsg
        self._by_fd[link.fd] = lane
        self._poller.register(link.fd, link.wants)

    def _is_up(self, lane: Lane, link: Link) -> None:
        self._opened_one("")
        if lane.reader is None:
            lane.idle_since_ns = now_ns()
        else:
            self._transmit(lane, link)

    def _not_opened(self, lane: Lane, words: str, at_ns: int) -> None:
        self._opened_one(words)
        if lane.reader is not None:
            lane.reader.record.failure = Failure("connect", words)
            self._ended(lane, lane.reader, at_ns)

    def _opened_one(self, failure: str) -> None:
        """Count towards the opening that the coordinator waits for."""
        if self._is_opened:
            return
        self._opening -= 1
        if failure:
            self._open_failures.append(failure)
        if not self._opening and not self._to_open:
            self._is_opened = True
            self._on_opened(self._open_failures)

    def _watch(self, link: Link) -> None:
        with suppress(OSError, KeyError, ValueError):  # it may have been dropped a moment ago
            self._poller.modify(link.fd, link.wants)

    def _drop(self, lane: Lane) -> None:
        """Close a lane's connection, if it has one, and hear no more of it."""
        link, lane.link = lane.link, None
        lane.hot = False
        if link is not None:
            self._by_fd.pop(link.fd, None)
            with suppress(OSError, KeyError):
                self._poller.unregister(link.fd)
            link.close()

"""A worker of the load engine: one process, one thread, one poller, nothing in between.

The loop does what cannot wait (receive, notice an end, send the next request) and puts off the
rest (see `backlog`), with naps between (see `pace`). It is started by `crew` with one end of a
socket pair as its standard input, and ends when that closes.
"""

from __future__ import annotations

import gc
import heapq
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from backends.serving.engine.answer import END_OF_CHUNKS, END_OF_STREAM, AnswerReader
from backends.serving.engine.backlog import MOST_READS, Backlog
from backends.serving.engine.clock import (
    CONTROL_BYTES,
    StampKeeper,
    kernel_minus_monotonic_ns,
    now_ns,
    own_stamp,
    stamp_ns,
)
from backends.serving.engine.lane import Lane, is_endless_stream
from backends.serving.engine.link import READ, READ_BYTES, WRITE, Link, LinkError
from backends.serving.engine.messages import (
    Authorise,
    Drive,
    Go,
    Message,
    Open,
    Opened,
    Ready,
    Report,
    Stop,
    Unpacker,
    packed,
    receive_first,
)
from backends.serving.engine.pace import Pace
from backends.serving.engine.part import Part
from backends.serving.engine.poller import Poller
from backends.serving.engine.signing import SIGNATURE_FRESH_S, Signer
from backends.serving.loadgen import RequestRecord
from backends.serving.wire import Failure

if TYPE_CHECKING:
    from backends.serving.engine.signing import AwsCredentials

CONNECT_TIMEOUT_NS = 10_000_000_000
CONNECTS_AT_ONCE = 64
TICK_NS = 50_000_000
REPORT_NS = 250_000_000
PAUSE_AFTER_FAILURE_NS = 100_000_000
"""So that an endpoint that refuses everything is not hammered."""

MOST_IDLE_NS = 4_000_000_000
"""uvicorn closes a connection that has been idle for 5 s; before that it is replaced."""

STALE_NS = 1_000_000_000
"""A connection that breaks so soon after the send, with no answer, was closed before it."""

CROWD = 64
"""With so many sockets ready, more naps would gather nothing."""

QUIET = 8
"""With fewer sockets ready than this, there is time to parse."""

MANY_READS = 256
"""An answer under way is read in parts of so many reads, so that long ones do not pile up."""

SHORT_ANSWER_READS = 6
"""An answer this short may be a failure, which is to be known before the lane's next request."""

SPARE_FILES = 64
SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000


class Worker:
    """Keeps lanes busy, as the coordinator says.

    Args:
        channel: To the coordinator.
        setup: What it said first.
    """

    def __init__(self, channel: socket.socket, setup: Open) -> None:
        self._channel = channel
        self._channel.setblocking(False)
        self._channel_fd = channel.fileno()
        self._unpacker = Unpacker()
        self._outbox = b""
        self._poller = Poller()
        self._poller.register(self._channel_fd, READ)
        self._keeper = StampKeeper()
        self._stamped = self._keeper.works
        self._offset_ns = kernel_minus_monotonic_ns()
        self._pace = Pace(stamped=self._stamped)
        self._backlog = Backlog(self._offset_ns, self._was_read, self._was_read_so_far)
        self._setup = setup
        self._target = setup.target
        self._tls = None if setup.target.tls is None else setup.target.tls.context()
        self._signer = None if setup.target.wire is None else Signer(setup.target)
        self._lanes = [Lane(number) for number in range(setup.lanes)]
        self._by_fd: dict[int, Lane] = {}
        self._free: list[Lane] = []
        self._to_open = self._lanes[::-1]
        self._opening = 0
        self._paused: list[tuple[int, int]] = []
        self._part: Part | None = None
        self._is_opened = False
        self._open_failures: list[str] = []
        self._auth = b""
        self._credentials: AwsCredentials | None = None
        self._signed: dict[int, tuple[bytes, int]] = {}
        self._next_tick_ns = 0
        self._next_report_ns = 0
        self._reads_before = 0
        self._reads = 0
        self._tick_at_ns = now_ns()
        self._is_closed = False

    def run(self) -> None:
        """Work until the coordinator is gone."""
        while not self._is_closed:
            ready = self._wait()
            woken_ns = now_ns()
            self._receive(ready)
            if (part := self._part) is not None:
                if ready:
                    self._sample_lag(part, ready[0][0], woken_ns)
                self._go_on_with(part)
            if self._to_open:
                self._open_more()
            at_ns = now_ns()
            if at_ns >= self._next_tick_ns:
                self._tick(at_ns)
        self._keeper.close()

    # ---- waiting --------------------------------------------------------------------------------

    def _wait(self) -> list[tuple[int, int]]:
        """Return what is ready, after a nap, some parsing, or a wait for it."""
        wait, nap_ns = self._poller.wait, self._pace.nap_ns
        if self._backlog.reads > MOST_READS:
            self._make_room()
        until_ns = self._next_thing_ns()
        if not nap_ns:
            if not self._backlog:
                return self._block(until_ns)
            ready = wait(0)
            if len(ready) < QUIET:
                self._backlog.read_one()
            return ready
        at_ns = now_ns()
        self._nap(min(at_ns + nap_ns, until_ns))
        ready = wait(0)
        if ready or self._backlog or until_ns <= now_ns():
            return ready
        ready = self._block(until_ns)
        if 0 < len(ready) < CROWD:
            self._nap(min(now_ns() + nap_ns, until_ns))
            ready = wait(0)
        return ready

    def _next_thing_ns(self) -> int:
        until_ns = self._next_tick_ns
        if self._paused:
            until_ns = min(until_ns, self._paused[0][0])
        if self._part is not None and (next_ns := self._part.next_ns()) is not None:
            until_ns = min(until_ns, next_ns)
        return until_ns

    def _nap(self, until_ns: int) -> None:
        """Parse, then sleep, until a moment."""
        backlog = self._backlog
        while (left_ns := until_ns - now_ns()) > 0:
            if backlog:
                backlog.read_one()
            else:
                time.sleep(left_ns / SECOND_NS)
                return

    def _block(self, until_ns: int) -> list[tuple[int, int]]:
        return self._poller.wait(max(0, until_ns - now_ns()) / SECOND_NS)

    def _make_room(self) -> None:
        if self._part is not None:
            self._part.account.crowded_parses += 1
        while self._backlog.reads > MOST_READS // 2:
            self._backlog.read_one()

    # ---- receiving ------------------------------------------------------------------------------

    def _receive(self, ready: list[tuple[int, int]]) -> None:
        by_fd = self._by_fd
        self._reads += len(ready)
        for fd, what in ready:
            lane = by_fd.get(fd)
            if lane is None:
                if fd == self._channel_fd:
                    self._listen(what)
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
            lane.reads.append(data)
            lane.stamps.append(control[0][2] if control else self._own_stamp())
            if data[-5:] == END_OF_CHUNKS or len(data) < 5:
                if data:
                    self._maybe_ended(lane, data)
                else:
                    lane.reads.pop()
                    lane.stamps.pop()
                    self._lost(lane, "")

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
        reader = lane.reader
        if reader is None:  # bytes that nobody asked for: what they belong to is not known
            self._drop(lane)
            return
        if lane.streaming:
            lane.reads.append(data)
            lane.stamps.append(stamp)
            if data[-5:] == END_OF_CHUNKS or len(data) < 5:
                self._maybe_ended(lane, data)
            return
        is_first = reader.record.first_byte_ns == 0
        if is_first and is_endless_stream(data):
            reader.record.first_byte_ns = stamp_ns(stamp, self._offset_ns)
            link = lane.link
            lane.streaming = True
            lane.hot = link is not None and link.is_plain and link.wants == READ
            lane.reads.append(data)
            lane.stamps.append(stamp)
            if data[-5:] == END_OF_CHUNKS:
                self._maybe_ended(lane, data)
            return
        self._backlog.read_now(reader, [data], [stamp])
        if reader.is_complete or reader.is_broken:
            self._ended_in_full(lane, stamp_ns(stamp, self._offset_ns))

    def _maybe_ended(self, lane: Lane, data: bytes) -> None:
        """Look whether a stream has ended; the last bytes say so, or else reading all of it."""
        tail = data if len(data) >= len(END_OF_STREAM) else b"".join(lane.reads[-6:])
        reader, reads, stamps = lane.reader, lane.reads, lane.stamps
        assert reader is not None  # noqa: S101 - only lanes with a request stream
        is_long = len(reads) > SHORT_ANSWER_READS or reader.waiting or reader.full_events
        if is_long and tail.endswith(END_OF_STREAM):
            self._backlog.put(reader, reads, stamps, is_end=True)
            at_ns = stamp_ns(stamps[-1], self._offset_ns)
            self._let_go(lane, at_ns)
            self._go_on(lane, at_ns)
        elif tail.endswith(END_OF_CHUNKS):
            self._read_in_full(lane)

    def _read_in_full(self, lane: Lane) -> None:
        """Read at once what has come of an answer, and see whether that was all."""
        reader = lane.reader
        if reader is None or not lane.reads:
            return
        reads, stamps = lane.reads, lane.stamps
        lane.reads, lane.stamps = [], []
        lane.seen = 0
        self._backlog.read_now(reader, reads, stamps)
        if reader.is_complete or reader.is_broken:
            self._ended_in_full(lane, stamp_ns(stamps[-1], self._offset_ns))

    def _ended_in_full(self, lane: Lane, at_ns: int) -> None:
        """Take an answer that has ended and been read."""
        reader = lane.reader
        assert reader is not None  # noqa: S101
        reader.record.end_ns = at_ns
        if not reader.keeps_alive:
            self._drop(lane)
        self._conclude(lane, reader, at_ns)

    def _conclude(self, lane: Lane, reader: AnswerReader, at_ns: int) -> None:
        """Be done with a request whose answer has been read, and go on with its lane."""
        self._let_go(lane, at_ns)
        self._was_read(reader)
        if reader.record.failure is None:
            self._go_on(lane, at_ns)
        else:
            self._rest(lane)

    def _was_read(self, reader: AnswerReader) -> None:
        """Take the record of an answer that has been read to its end."""
        record = reader.record
        if not reader.is_complete:
            reader.end_of_connection()
        reader.finish(record.failure)
        if record.failure is None:
            self._pace.saw(record.content_ns, record.sent_ns)
        if self._part is not None:
            self._part.add(record)
            if self._part.is_over and self._part.in_flight:
                self._abandon()

    def _was_read_so_far(self, reader: AnswerReader) -> None:
        self._pace.saw(reader.record.content_ns, reader.record.sent_ns)

    def _own_stamp(self) -> bytes:
        if self._part is not None and self._stamped:
            self._part.account.unstamped_reads += 1
        return own_stamp(self._offset_ns)

    def _sample_lag(self, part: Part, fd: int, woken_ns: int) -> None:
        """Take a sample: the socket that was ready first has waited longest."""
        at_ns, since_ns = now_ns(), woken_ns
        if self._stamped:
            lane = self._by_fd.get(fd)
            if lane is None or not lane.stamps:
                return
            since_ns = stamp_ns(lane.stamps[-1], self._offset_ns)
        part.was_late(at_ns - since_ns, at_ns)

    # ---- sending --------------------------------------------------------------------------------

    def _next(self, lane: Lane, free_since_ns: int | None) -> None:
        """Give a lane of a closed loop its next request."""
        part = self._part
        upcoming = part.take() if part is not None else None
        if part is None or upcoming is None:
            self._free.append(lane)
            return
        index, body, _ = upcoming
        self._begin(part, lane, index, body, None)
        record = lane.record if lane.reader is not None else None
        if record is not None and free_since_ns is not None and record.sent_ns:
            record.send_lag_ns = max(0, record.sent_ns - free_since_ns)

    def _send_what_is_due(self, part: Part) -> None:
        """Send the requests of an open loop whose time has come, and count those turned away."""
        while (due_ns := part.due_ns()) is not None and due_ns <= now_ns():
            upcoming = part.take()
            if upcoming is None:
                return
            index, body, _ = upcoming
            lane = self._free_lane()
            if lane is None:
                part.account.turned_away += 1
                continue
            self._begin(part, lane, index, body, due_ns)

    def _free_lane(self) -> Lane | None:
        """Take the lane that was used last: its connection is the least likely to be stale."""
        for at in range(len(self._free) - 1, -1, -1):
            if self._free[at].is_up:
                return self._free.pop(at)
        return self._free.pop() if self._free else None

    def _begin(
        self, part: Part, lane: Lane, index: int, body: bytes, intended_ns: int | None
    ) -> None:
        kind = "m" if part.is_measured else "w"
        record = RequestRecord(
            index=index,
            request_id=f"{self._setup.run_id}-{kind}{index}",
            sent_ns=0,
            intended_ns=intended_ns,
        )
        part.in_flight += 1
        wire = self._target.wire
        lane.take(AnswerReader(record, framed=wire is not None), self._request(record, body))
        if lane.is_up:
            self._transmit(lane)
            return
        part.account.reconnects += 1
        record.sent_ns = now_ns()
        if lane.link is None:
            self._connect(lane)

    def _request(self, record: RequestRecord, body: bytes) -> bytes:
        auth = self._auth if self._signer is None else self._signature(record.index, body)
        return b"%sx-request-id: %s\r\ncontent-length: %d\r\n%s\r\n%s" % (
            self._target.head,
            record.request_id.encode(),
            len(body),
            auth,
            body,
        )

    def _transmit(self, lane: Lane) -> None:
        """Hand a request to the socket of a connection that stands."""
        link, record = lane.link, lane.record
        assert link is not None  # noqa: S101
        at_ns = now_ns()
        if not lane.is_resend:
            record.sent_ns = at_ns
            if record.intended_ns is not None:
                record.send_lag_ns = at_ns - record.intended_ns
        lane.deadline_ns = at_ns + int(self._setup.timeout_s * SECOND_NS)
        try:
            link.send(lane.request)
        except LinkError as error:
            self._lost(lane, error.words, is_local=error.is_local)
            return
        if link.wants != READ:
            self._watch(link)

    def _go_on(self, lane: Lane, free_since_ns: int) -> None:
        """Give a free lane what is next for it."""
        part = self._part
        if part is None or part.is_open_loop or part.is_over:
            self._free.append(lane)
        else:
            self._next(lane, free_since_ns)

    def _rest(self, lane: Lane) -> None:
        """Let a lane rest whose request has failed."""
        part = self._part
        if part is None or part.is_open_loop or part.is_over:
            self._free.append(lane)
            return
        part.paused += 1
        heapq.heappush(self._paused, (now_ns() + PAUSE_AFTER_FAILURE_NS, lane.number))

    def _resume(self, number: int) -> None:
        if self._part is not None:
            self._part.paused -= 1
        self._next(self._lanes[number], None)

    def _let_go(self, lane: Lane, at_ns: int) -> None:
        lane.used += 1
        lane.release(at_ns)
        if self._part is not None:
            self._part.in_flight -= 1

    # ---- failing --------------------------------------------------------------------------------

    def _lost(self, lane: Lane, words: str, *, is_local: bool = False) -> None:
        """Take note that a connection has broken or closed."""
        reader, was_up = lane.reader, lane.is_up
        at_ns = now_ns()
        self._drop(lane)
        if is_local and self._part is not None:
            self._part.account.out_of_files += 1
        if not was_up:
            self._open_failed(lane, words or "closed by the other side while it was set up", at_ns)
            return
        if reader is None:
            if self._part is None or not self._part.is_over:
                self._reopen(lane)
            return
        record = reader.record
        nothing_came = record.first_byte_ns == 0 and not lane.reads
        if nothing_came and lane.used and not lane.is_resend and at_ns - record.sent_ns < STALE_NS:
            lane.is_resend = True
            if self._part is not None:
                self._part.account.resent += 1
            self._connect(lane)
            return
        if lane.reads:
            at_ns = stamp_ns(lane.stamps[-1], self._offset_ns)
        self._backlog.read_now(reader, lane.reads, lane.stamps)
        lane.reads, lane.stamps = [], []
        reader.end_of_connection()
        if reader.is_broken and words:
            events = len(record.content_ns)
            record.failure = Failure("connection_lost", f"{words}, after {events} content events")
        self._ended_in_full(lane, max(at_ns, record.sent_ns))

    def _give_up(self, lane: Lane, failure: Failure, at_ns: int) -> None:
        """End a request that will not end itself."""
        reader = lane.reader
        assert reader is not None  # noqa: S101
        self._backlog.read_now(reader, lane.reads, lane.stamps)
        lane.reads, lane.stamps = [], []
        if failure.kind == "timeout":
            failure.message += f"; {len(reader.record.content_ns)} content events had come"
        reader.record.failure = failure
        reader.record.end_ns = at_ns
        self._drop(lane)
        self._conclude(lane, reader, at_ns)

    def _abandon(self) -> None:
        """Close what is in flight when a part is over; it counts as unfinished."""
        for lane in self._lanes:
            if lane.reader is not None:
                self._drop(lane)
                lane.release(now_ns())
                self._free.append(lane)
        self._paused.clear()
        if self._part is not None:
            self._part.in_flight = self._part.paused = 0

    # ---- connections ----------------------------------------------------------------------------

    def _connect(self, lane: Lane) -> None:
        self._drop(lane)
        lane.opened_ns, lane.used = now_ns(), 0
        try:
            link = Link(self._target, self._tls, stamped=self._stamped)
        except LinkError as error:
            if error.is_local and self._part is not None:
                self._part.account.out_of_files += 1
            self._open_failed(lane, error.words, lane.opened_ns)
            return
        lane.link, lane.receive = link, link.recvmsg
        self._by_fd[link.fd] = lane
        self._poller.register(link.fd, link.wants)

    def _watch(self, link: Link) -> None:
        with suppress(OSError, KeyError):  # it may have been dropped a moment ago
            self._poller.modify(link.fd, link.wants)

    def _is_up(self, lane: Lane, link: Link) -> None:
        self._opened_one(lane, "")
        if lane.reader is not None:
            self._transmit(lane)
        else:
            lane.idle_since_ns = now_ns()
        self._watch(link)

    def _open_failed(self, lane: Lane, words: str, at_ns: int) -> None:
        self._opened_one(lane, words)
        reader = lane.reader
        if reader is None:
            return
        reader.record.failure = Failure("connect", words)
        reader.record.end_ns = at_ns
        self._conclude(lane, reader, at_ns)

    def _opened_one(self, lane: Lane, failure: str) -> None:
        """Count towards the opening that the coordinator waits for."""
        del lane
        if self._is_opened:
            return
        self._opening -= 1
        if failure:
            self._open_failures.append(failure)
        if not self._opening and not self._to_open:
            self._is_opened = True
            self._say(Opened(self._stamped, self._open_failures))

    def _open_more(self) -> None:
        while self._to_open and self._opening < CONNECTS_AT_ONCE:
            self._opening += 1
            self._connect(self._to_open.pop())

    def _reopen(self, lane: Lane) -> None:
        """Replace the connection of a free lane, outside of anything that is timed."""
        if self._is_opened:
            self._connect(lane)

    def _drop(self, lane: Lane) -> None:
        link, lane.link = lane.link, None
        lane.hot = False
        if link is not None:
            self._by_fd.pop(link.fd, None)
            with suppress(OSError, KeyError):
                self._poller.unregister(link.fd)
            link.close()

    # ---- now and then ---------------------------------------------------------------------------

    def _tick(self, at_ns: int) -> None:
        self._next_tick_ns = at_ns + TICK_NS
        elapsed_s = (at_ns - self._tick_at_ns) / SECOND_NS
        self._pace.settle((self._reads - self._reads_before) / elapsed_s)
        self._tick_at_ns, self._reads_before = at_ns, self._reads
        for lane in self._lanes:
            if lane.reader is not None:
                self._look_after(lane, at_ns)
            elif lane.link is not None:
                self._look_after_free(lane, at_ns)
        part = self._part
        if part is not None and part.is_started and at_ns >= self._next_report_ns:
            self._next_report_ns = at_ns + REPORT_NS
            part.look_at_clock()
            self._report(part)
        if self._signer is not None:
            self._sign_ahead(8)

    def _look_after(self, lane: Lane, at_ns: int) -> None:
        came = len(lane.reads)
        if lane.link is not None and not lane.link.is_up:
            if at_ns - lane.opened_ns > CONNECT_TIMEOUT_NS:
                self._drop(lane)
                self._open_failed(lane, _no_connection(), at_ns)
        elif lane.deadline_ns and at_ns >= lane.deadline_ns:
            limit_s = self._setup.timeout_s
            self._give_up(lane, Failure("timeout", f"no end within {limit_s:g} s"), at_ns)
        elif came and came == lane.seen:
            self._read_in_full(lane)  # silence: maybe it has ended in a way of its own
        elif came >= MANY_READS and lane.reader is not None:
            self._backlog.put(lane.reader, lane.reads, lane.stamps, is_end=False)
            lane.reads, lane.stamps, lane.seen = [], [], 0
        else:
            lane.seen = came

    def _look_after_free(self, lane: Lane, at_ns: int) -> None:
        link = lane.link
        assert link is not None  # noqa: S101
        if not link.is_up:
            if at_ns - lane.opened_ns > CONNECT_TIMEOUT_NS:
                self._drop(lane)
                self._open_failed(lane, _no_connection(), at_ns)
        elif at_ns - lane.idle_since_ns > MOST_IDLE_NS and self._is_opened:
            self._reopen(lane)

    def _signature(self, index: int, body: bytes) -> bytes:
        kept, until_ns = self._signed.pop(index, (b"", 0))
        if until_ns > now_ns():
            return kept
        return self._sign(body)

    def _sign(self, body: bytes) -> bytes:
        assert self._signer is not None  # noqa: S101
        assert self._credentials is not None  # noqa: S101 - sent before anything is driven
        return self._signer.headers(body, self._credentials)

    def _sign_ahead(self, most: int) -> None:
        """Sign the requests that are next, while there is time."""
        if self._part is None:
            return
        until_ns = now_ns() + int(SIGNATURE_FRESH_S * SECOND_NS)
        for at in range(min(len(self._part.waiting), len(self._lanes))):
            index, body = self._part.waiting[at]
            if index not in self._signed and most > 0:
                most -= 1
                self._signed[index] = (self._sign(body), until_ns)

    # ---- talking to the coordinator -------------------------------------------------------------

    def _listen(self, what: int) -> None:
        if what & WRITE:
            self._flush()
        if not what & ~WRITE:
            return
        try:
            data = self._channel.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._is_closed = True
            return
        for message in self._unpacker.feed(data):
            self._obey(message)

    def _obey(self, message: Message) -> None:
        if isinstance(message, Authorise):
            self._auth, self._credentials = message.headers, message.credentials
            self._signed.clear()
        elif isinstance(message, Drive):
            self._make_ready(message)
        elif isinstance(message, Go) and self._part is not None:
            self._part.start_ns = message.start_ns
        elif isinstance(message, Stop) and self._part is not None:
            self._part.cut_short("stopped")
            self._abandon()

    def _make_ready(self, drive: Drive) -> None:
        """Prepare a part: whatever takes time and is not to be measured."""
        for lane in self._lanes:
            if lane.link is None:
                self._connect(lane)
        self._free.clear()
        self._signed.clear()
        self._part = Part(drive)
        if self._signer is not None:
            self._sign_ahead(len(self._lanes))
        gc.collect()
        gc.freeze()

    def _go_on_with(self, part: Part) -> None:
        """Do what a part needs at this moment."""
        if not part.is_started and not part.is_over:
            if part.start_ns is None:
                self._say_when_ready(part)
            elif part.start_ns <= now_ns():
                self._start(part)
            return
        if part.due_ns() is not None:
            self._send_what_is_due(part)
        while self._paused and self._paused[0][0] <= now_ns():
            self._resume(heapq.heappop(self._paused)[1])
        if part.is_drained:
            self._end_part(part)

    def _say_when_ready(self, part: Part) -> None:
        if part.is_ready or any(lane.link and not lane.link.is_up for lane in self._lanes):
            return
        part.is_ready = True
        self._say(Ready())

    def _start(self, part: Part) -> None:
        part.start()
        self._next_report_ns = now_ns() + REPORT_NS
        if part.is_open_loop:
            self._free.extend(reversed(self._lanes))
            return
        for lane in self._lanes:
            self._next(lane, None)

    def _end_part(self, part: Part) -> None:
        part.stop_clocks()
        patience_ns = 150 * MILLISECOND_NS if part.is_over else 600 * SECOND_NS
        self._backlog.read_all(now_ns() + patience_ns, now_ns)
        part.account.reads = self._reads
        report = Report(part.drive.part, part.records, part.done, is_last=True, end=part.account)
        self._part = None
        self._say(report)

    def _report(self, part: Part) -> None:
        records, part.records = part.records, []
        self._say(Report(part.drive.part, records, part.done))

    def _say(self, message: Message) -> None:
        self._outbox += packed(message)
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._channel.send(self._outbox)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._is_closed = True
            return
        self._outbox = self._outbox[sent:]
        self._poller.modify(self._channel_fd, READ | WRITE if self._outbox else READ)


def _no_connection() -> str:
    return f"no connection within {CONNECT_TIMEOUT_NS / SECOND_NS:g} s"


def _allow_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def main() -> int:
    """Run a worker on the socket that is its standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to deal with
    gc.disable()  # a collection stops the loop for milliseconds; what is made here makes no cycles
    with suppress(OSError):
        # the kernel adds 50 us to every sleep of an ordinary thread unless told otherwise
        Path("/proc/self/timerslack_ns").write_text("1000", encoding="ascii")
    channel = socket.socket(fileno=0)
    setup = receive_first(channel)
    if not isinstance(setup, Open):
        return 0 if setup is None else 2
    _allow_files(setup.lanes + SPARE_FILES)
    Worker(channel, setup).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

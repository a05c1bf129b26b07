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
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from backends.serving.engine.backlog import MOST_READS
from backends.serving.engine.clock import StampKeeper, kernel_minus_monotonic_ns, now_ns
from backends.serving.engine.link import READ, WRITE
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
from backends.serving.engine.requests import RequestMaker
from backends.serving.engine.streams import SECOND_NS, Streams
from backends.serving.loadgen import RequestRecord
from backends.serving.wire import Failure

if TYPE_CHECKING:
    from backends.serving.engine.answer import AnswerReader
    from backends.serving.engine.lane import Lane
    from backends.serving.engine.turns import Conversations, Request

TICK_NS = 50_000_000
REPORT_NS = 250_000_000
PAUSE_AFTER_FAILURE_NS = 100_000_000
"""So that an endpoint that refuses everything is not hammered."""

LAST_PARSE_NS = 150_000_000
"""How long what was received before a level was cut short may still be read."""

CROWD = 64
"""With so many sockets ready, one more nap would gather nothing."""

QUIET = 8
"""With fewer sockets ready than this, there is time to parse."""

SENDS_A_TURN = 16
"""Receiving goes first: a request that leaves a little later has its time counted from there, a
token that is read a whole ITL late has lost it."""

SPARE_FILES = 64


class Worker:
    """Keeps lanes busy, as the coordinator says.

    Args:
        channel: To the coordinator.
        setup: What it said first.
    """

    def __init__(self, channel: socket.socket, setup: Open) -> None:
        self._channel = channel
        self._channel.setblocking(False)
        self._unpacker = Unpacker()
        self._outbox = b""
        self._is_closed = False
        self._poller = Poller()
        self._poller.register(channel.fileno(), READ)
        self._keeper = StampKeeper()
        stamped = self._stamped = self._keeper.works
        self._pace = Pace(stamped=stamped)
        self._maker = RequestMaker(setup.target, setup.run_id)
        self._streams = Streams(
            setup,
            self._poller,
            stamped=stamped,
            offset_ns=kernel_minus_monotonic_ns(),
            on_read=self._take,
            on_read_so_far=self._learn,
            on_free=self._is_free,
            on_opened=self._opened,
        )
        self._part: Part | None = None
        self._free: list[Lane] = []
        self._to_send: deque[tuple[Lane, int | None]] = deque()
        self._paused: list[tuple[int, int]] = []
        self._naps_first = True  # see _wait
        self._carried: dict[int, int] = {}
        self._between: dict[int, tuple[Lane, int]] = {}
        self._next_turn: dict[int, Request] = {}
        self._next_tick_ns = self._next_report_ns = 0
        self._tick_at_ns = now_ns()
        self._received_at_tick = 0

    def run(self) -> None:
        """Work until the coordinator is gone."""
        streams = self._streams
        while not self._is_closed:
            ready = self._wait()
            woken_ns = now_ns()
            words = streams.receive(ready)
            if words is not None:
                self._listen(words[1])
            part = self._part
            if part is not None:
                if ready:
                    at_ns = now_ns()
                    waited_ns = streams.waited_ns(ready[0][0], woken_ns, at_ns)
                    if waited_ns is not None:
                        part.was_late(waited_ns, at_ns)
                self._go_on_with(part)
            streams.open_more()
            if now_ns() >= self._next_tick_ns:
                self._tick(now_ns())
        self._keeper.close()
        self._poller.close()

    # ---- waiting --------------------------------------------------------------------------------

    def _wait(self) -> list[tuple[int, int]]:
        """Return what is ready, after a nap, some parsing, or a wait for it.

        A nap before the wait gathers reads of streams that go each at its own pace. Where all step
        together it wakes up for nothing, at the cost of several reads, and is left out.
        """
        wait, nap_ns, backlog = self._poller.wait, self._pace.nap_ns, self._streams.backlog
        if backlog.reads > MOST_READS:
            self._streams.account.crowded_parses += 1
            while backlog.reads > MOST_READS // 2:
                backlog.read_one()
        if self._to_send:
            return wait(0)
        until_ns = self._next_thing_ns()
        if not nap_ns:
            if not backlog:
                return self._block(until_ns)
            ready = wait(0)
            if len(ready) < QUIET:
                backlog.read_one()
            return ready
        if self._naps_first or backlog:
            self._nap(min(now_ns() + nap_ns, until_ns))
            ready = wait(0)
            self._naps_first = bool(ready)
            if ready or backlog or until_ns <= now_ns():
                return ready
        began_ns = now_ns()
        ready = self._block(until_ns)
        self._naps_first = now_ns() - began_ns < nap_ns
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
        backlog = self._streams.backlog
        while (left_ns := until_ns - now_ns()) > 0:
            if backlog:
                backlog.read_one()
            else:
                time.sleep(left_ns / SECOND_NS)
                return

    def _block(self, until_ns: int) -> list[tuple[int, int]]:
        return self._poller.wait(max(0, until_ns - now_ns()) / SECOND_NS)

    # ---- a part ---------------------------------------------------------------------------------

    def _make_ready(self, drive: Drive) -> None:
        """Prepare a part: whatever takes time and is not to be measured."""
        part = self._part = Part(drive)
        part.received_before = self._streams.received
        self._streams.account = part.account
        self._streams.reopen()
        self._free.clear()
        self._streams.keeps_text = part.talks is not None
        self._maker.begin(part.waiting, len(self._streams.lanes))
        gc.collect()
        gc.freeze()

    def _go_on_with(self, part: Part) -> None:
        """Do what a part needs at this moment."""
        if not part.is_started and not part.is_over:
            if part.start_ns is not None:
                if part.start_ns <= now_ns():
                    self._start(part)
            elif not part.is_ready and self._streams.are_settled:
                part.is_ready = True
                self._say(Ready())
            return
        if part.due_ns() is not None:
            self._send_what_is_due(part)
        while self._paused and self._paused[0][0] <= now_ns():
            lane = self._streams.lanes[heapq.heappop(self._paused)[1]]
            self._to_send.append((lane, None))
        for _ in range(min(SENDS_A_TURN, len(self._to_send))):
            self._send_next(part, *self._to_send.popleft())
        if part.is_drained:
            self._end_part(part)

    def _start(self, part: Part) -> None:
        part.start()
        self._next_report_ns = now_ns() + REPORT_NS
        lanes = self._streams.lanes
        if part.is_open_loop:
            self._free.extend(reversed(lanes))
            return
        part.resting = len(lanes)
        self._to_send.extend((lane, None) for lane in lanes)

    def _send_next(self, part: Part, lane: Lane, free_since_ns: int | None) -> None:
        """Give a lane of a closed loop its next request."""
        part.resting -= 1
        turn = self._next_turn.pop(lane.number, None)
        upcoming = part.take() if turn is None else turn
        if upcoming is None:
            self._free.append(lane)
            return
        index, body = upcoming[0], upcoming[1]
        record = self._send(part, lane, index, body, None)
        if free_since_ns is not None and lane.is_up:
            record.send_lag_ns = max(0, record.sent_ns - free_since_ns)

    def _send_what_is_due(self, part: Part) -> None:
        """Send the requests of an open loop whose time has come, and count those turned away."""
        while (due_ns := part.due_ns()) is not None and due_ns <= now_ns():
            upcoming = part.take()
            if upcoming is None:
                return
            lane = self._free_lane()
            if lane is None:
                part.account.turned_away += 1
            else:
                self._send(part, lane, upcoming[0], upcoming[1], due_ns)

    def _free_lane(self) -> Lane | None:
        """Take the lane that was used last: its connection is the least likely to be stale."""
        for at in range(len(self._free) - 1, -1, -1):
            if self._free[at].is_up:
                return self._free.pop(at)
        return self._free.pop() if self._free else None

    def _send(
        self, part: Part, lane: Lane, index: int, body: bytes, intended_ns: int | None
    ) -> RequestRecord:
        request_id, request = self._maker.make(index, body, is_measured=part.is_measured)
        record = RequestRecord(index, request_id, sent_ns=0, intended_ns=intended_ns)
        part.in_flight += 1
        self._carried[lane.number] = index
        self._streams.begin(lane, record, request)
        return record

    def _end_part(self, part: Part) -> None:
        part.stop_clocks()
        patience_ns = LAST_PARSE_NS if part.is_over else 600 * SECOND_NS
        self._streams.backlog.read_all(now_ns() + patience_ns, now_ns)
        part.account.reads = self._streams.received - part.received_before
        self._part = None
        self._say(Report(part.drive.part, part.records, part.done, is_last=True, end=part.close()))

    # ---- what the streams tell ------------------------------------------------------------------

    def _opened(self, failures: list[str]) -> None:
        self._say(Opened(self._stamped, failures))

    def _is_free(self, lane: Lane, since_ns: int, failed: bool) -> None:
        """Take a lane back: it has its next request at once, after a rest, or in its time."""
        part = self._part
        if part is None or part.is_over:
            self._free.append(lane)
            return
        part.in_flight -= 1
        if part.is_open_loop:
            self._free.append(lane)
            return
        part.resting += 1
        if part.talks is not None:  # what comes next is known when the answer has been read
            self._between[self._carried[lane.number]] = lane, since_ns
            return
        self._goes_on(lane, since_ns, failed)

    def _goes_on(self, lane: Lane, since_ns: int, failed: bool) -> None:
        if failed:
            heapq.heappush(self._paused, (now_ns() + PAUSE_AFTER_FAILURE_NS, lane.number))
        else:
            self._to_send.append((lane, since_ns))

    def _take(self, reader: AnswerReader) -> None:
        """Take the record of an answer that has been read to its end."""
        record, part = reader.record, self._part
        if record.failure is None:
            self._learn(reader)
        if part is None:
            return
        was_over = part.is_over
        part.add(record)
        if part.talks is not None and not part.is_over:
            self._talk_on(part, part.talks, reader)
        if part.is_over and not was_over:
            self._leave_off(part)

    def _talk_on(self, part: Part, talks: Conversations, reader: AnswerReader) -> None:
        """Give a stream the next turn of its conversation, or end that with a turn that failed."""
        record = reader.record
        lane, since_ns = self._between.pop(record.index)
        failed = record.failure is not None
        if failed:
            at_ns = now_ns()
            for index in talks.broken_off(record.index):
                failure = Failure("turn_not_sent", "a turn before it in its conversation failed")
                unsent = RequestRecord(index, "", at_ns, end_ns=at_ns, failure=failure)
                part.add(unsent)
        else:
            turn = talks.after(record.index, reader.text)
            if turn is not None:
                self._next_turn[lane.number] = turn
        self._goes_on(lane, since_ns, failed)

    def _learn(self, reader: AnswerReader) -> None:
        self._pace.saw(reader.record.content_ns, reader.record.sent_ns)

    def _leave_off(self, part: Part) -> None:
        """End a part at once; what is in flight counts as unfinished."""
        self._streams.abandon()
        self._paused.clear()
        self._to_send.clear()
        self._between.clear()
        self._next_turn.clear()
        part.in_flight = part.resting = 0

    # ---- now and then ---------------------------------------------------------------------------

    def _tick(self, at_ns: int) -> None:
        self._next_tick_ns = at_ns + TICK_NS
        received = self._streams.received - self._received_at_tick
        self._pace.settle(received / max(1, at_ns - self._tick_at_ns) * SECOND_NS)
        self._tick_at_ns, self._received_at_tick = at_ns, self._streams.received
        self._streams.look_after(at_ns)
        part = self._part
        if part is None or not part.is_started:
            return
        self._maker.prepare(part.waiting)
        if at_ns >= self._next_report_ns:
            self._next_report_ns = at_ns + REPORT_NS
            part.look_at_clock()
            records, part.records = part.records, []
            self._say(Report(part.drive.part, records, part.done))

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
        part = self._part
        if isinstance(message, Authorise):
            self._maker.authorise(message)
        elif isinstance(message, Drive):
            self._make_ready(message)
        elif isinstance(message, Go) and part is not None:
            part.start_ns = message.start_ns
        elif isinstance(message, Stop) and part is not None and not part.is_over:
            part.cut_short("stopped")
            self._leave_off(part)

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
        self._poller.modify(self._channel.fileno(), READ | WRITE if self._outbox else READ)


def _allow_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def main() -> int:
    """Run a worker on the socket that is its standard input."""
    # Ctrl-C and an end of the whole group are the coordinator's to deal with
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
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

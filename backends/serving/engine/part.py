"""One part of a level in a worker: which request goes next and when, and how it is going."""

from __future__ import annotations

import resource
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from backends.serving.engine.clock import kernel_minus_monotonic_ns
from backends.serving.engine.messages import PartEnd
from backends.serving.engine.turns import Conversations

if TYPE_CHECKING:
    from backends.serving.engine.messages import Drive
    from backends.serving.loadgen import RequestRecord

LAG_SLOT_NS = 5_000_000
"""One sample of the lag is taken in so much time; a longer one counts for all it covers, so that
percentiles of the samples are shares of the time."""

MOST_LAGS = 200_000
"""A thousand seconds. Beyond it every second sample is dropped, and so on."""


class Part:
    """A part under way.

    Attributes:
        drive: What was asked for.
        waiting: Requests not sent yet, as (index, body).
        account: What is told at the end.
        in_flight: Requests sent and not ended.
        ended: Requests that have ended, read or not.
        done: Requests that have ended and been read.
        errors: How many of those have failed.
        records: Of requests that were read since the last report.
        resting: Lanes that will have their next request in a moment.
        is_over: Whether nothing is sent any more.
        received_before: Reads before it began.
        start_ns: When it starts or has started; None until that is known.
        is_ready: Whether the coordinator has been told that it can start.
        is_started: Whether requests are being sent.
    """

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.talks = Conversations(drive.requests, drive.turns) if drive.turns > 1 else None
        self.waiting = deque(drive.requests) if self.talks is None else self.talks.first
        self.account = PartEnd()
        self.in_flight = 0
        self.done = 0
        self.errors = 0
        self.resting = 0
        self.records: list[RequestRecord] = []
        self.is_over = False
        self.received_before = 0
        self.start_ns: int | None = None
        self.is_ready = self.is_started = False
        self.is_measured = drive.part == "measuring"
        self._due = deque(drive.send_at_ns) if drive.send_at_ns is not None else None
        self._next_lag_ns = 0
        self._lag_slot_ns = LAG_SLOT_NS
        self._cpu_s = 0.0
        self._run_delay_s: float | None = None
        self._offset_ns = kernel_minus_monotonic_ns()

    @property
    def is_open_loop(self) -> bool:
        """Whether requests are sent at their time and not when a lane is free."""
        return self._due is not None

    @property
    def is_drained(self) -> bool:
        """Whether nothing is in flight and nothing will be."""
        if self.is_over:
            return self.in_flight == 0
        return self.is_started and not (self.in_flight or self.waiting or self.resting)

    def start(self) -> None:
        """Take note of the clocks at the start."""
        self.is_started = True
        self._cpu_s, self._run_delay_s = time.process_time(), run_delay_s()

    def stop_clocks(self) -> None:
        """Take note of the clocks at the end of the last request."""
        account = self.account
        account.cpu_s = time.process_time() - self._cpu_s
        delay_s = run_delay_s()
        if delay_s is not None and self._run_delay_s is not None:
            account.run_delay_s = delay_s - self._run_delay_s
        self.look_at_clock()

    def close(self) -> PartEnd:
        """Return the account, after the last answer was read."""
        account = self.account
        account.cpu_with_parsing_s = time.process_time() - self._cpu_s
        account.peak_memory_mib = peak_memory_mib()
        return account

    def look_at_clock(self) -> None:
        """Notice when somebody has set the clock the kernel stamps with."""
        step_ns = abs(kernel_minus_monotonic_ns() - self._offset_ns)
        self.account.clock_step_ns = max(self.account.clock_step_ns, step_ns)

    def due_ns(self) -> int | None:
        """Return when the next request is to be sent; None when that is not a matter of time."""
        if not self._due or self.is_over or self.start_ns is None:
            return None
        return self.start_ns + self._due[0]

    def next_ns(self) -> int | None:
        """Return when something is to be done at a time of its own: the start, or a send."""
        return self.due_ns() if self.is_started else self.start_ns

    def take(self) -> tuple[int, bytes, int | None] | None:
        """Take the next request: its index, its body, and when it is to be sent."""
        if self.is_over or not self.waiting:
            return None
        index, body = self.waiting.popleft()
        due_ns = self.due_ns()
        if self._due:
            self._due.popleft()
        return index, body, due_ns

    def was_late(self, lag_ns: int, at_ns: int) -> None:
        """Take a sample of how late the reader came to something."""
        if at_ns < self._next_lag_ns and lag_ns < self._lag_slot_ns:
            return
        self._next_lag_ns = at_ns + self._lag_slot_ns
        lags = self.account.lag_ns
        lags.extend([lag_ns] * max(1, lag_ns // self._lag_slot_ns))
        if len(lags) >= MOST_LAGS:
            del lags[::2]
            self._lag_slot_ns *= 2

    def add(self, record: RequestRecord) -> None:
        """Take a request that was read to its end, and end the part when too many have failed."""
        self.done += 1
        self.records.append(record)
        if record.failure is None:
            return
        self.errors += 1
        drive = self.drive
        if (
            self.is_measured
            and not self.is_over
            and self.done >= drive.error_floor
            and self.errors > drive.max_error_rate * self.done
        ):
            self.cut_short(
                f"{self.errors} of {self.done} requests had failed, more than the share of "
                f"{drive.max_error_rate:g} that ends a sweep"
            )

    def cut_short(self, why: str) -> None:
        """Send nothing more; what is in flight counts as unfinished."""
        self.is_over = True
        self.account.cut_short = why
        self.account.unfinished = self.in_flight


def run_delay_s() -> float | None:
    """Return how long this thread has waited for a core so far; None where that is not known."""
    try:
        words = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return None
    return int(words[1]) / 1e9 if len(words) > 1 else None


def peak_memory_mib() -> float:
    """Return the most memory this process has held.

    Not what getrusage says on Linux: that counts the parent's memory before exec as well.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS: in bytes
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) / 1024

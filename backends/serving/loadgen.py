"""The contract of a load engine: what it is told, what it gives back, raw.

An engine keeps a number of streams busy and stamps what comes back; it computes no statistics and
knows no files. Times are nanoseconds of one monotonic clock of the engine's choice.
`backends.serving.levels` turns the raw level into figures, so every engine means the same by them.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from backends.serving.endpoint import Endpoint
    from backends.serving.engine.histogram import Histogram
    from backends.serving.wire import Failure


Phase = Literal["starting", "warm-up", "measuring"]


@dataclass(frozen=True)
class LevelSpec:
    """One level of a closed or an open loop.

    In a closed loop `concurrency` streams send the bodies one after the other; in an open loop
    each body is sent at its time, whatever the answers do.

    Args:
        concurrency: Requests in flight, 1 or more; in an open loop at most so many, and a request
            whose time comes when all are busy is turned away and counted.
        path: The request path below the endpoint's base URL; an endpoint with a wire of its own
            has a path of its own.
        bodies: The JSON body of every measured request.
        warmup_bodies: Bodies of requests that are sent first and not measured.
        timeout_s: Bound of one request, from its send to its end.
        max_error_rate: When a larger share of at least `max(8, concurrency)` finished requests
            has failed, the level is cut short.
        before_window: Awaited after the warm-up, before the first measured request.
        after_window: Awaited after the last measured request.
        send_at_ns: Makes an open loop: when each body is sent, in nanoseconds from the start of
            the window, ascending (see `backends.serving.engine.schedule`). None: a closed loop.
        turns: So many bodies in a row make a conversation, of a closed loop: each is sent on the
            stream of the one before, with the model's answers in it in the place of the marks of
            `backends.serving.engine.turns`.
    """

    concurrency: int
    path: str
    bodies: Sequence[bytes]
    warmup_bodies: Sequence[bytes] = ()
    timeout_s: float = 120.0
    max_error_rate: float = 1.0
    before_window: Callable[[], Awaitable[None]] | None = None
    after_window: Callable[[], Awaitable[None]] | None = None
    send_at_ns: Sequence[int] | None = None
    turns: int = 1


@dataclass(slots=True)
class RequestRecord:
    """One finished request.

    Attributes:
        index: Its place among the level's bodies.
        request_id: The `x-request-id` it was sent with.
        sent_ns: When it was handed to the socket.
        intended_ns: When an open loop meant to send it; None in a closed loop.
        send_lag_ns: How long its stream had been free before that, or how late it left.
        first_byte_ns: When the first byte of the answer came; 0 when none did.
        end_ns: When the answer ended, or the request was given up.
        content_ns: The time of every content event; of a very long level, of the first and last.
        folded: Content events whose times are in the level's histogram instead.
        first_answer_ns: The time of the first content event that is not reasoning.
        coalesced: Content events that came in one read with the one before.
        prompt_tokens: As the server counted them; None when it did not say.
        completion_tokens: As the server counted them; None when it did not say.
        finish_reason: As the server said.
        failure: Why it counts as failed; None when it succeeded.
    """

    index: int
    request_id: str
    sent_ns: int
    intended_ns: int | None = None
    send_lag_ns: int | None = None
    first_byte_ns: int = 0
    end_ns: int = 0
    content_ns: array[int] = field(default_factory=lambda: array("q"))
    folded: int = 0
    first_answer_ns: int | None = None
    coalesced: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None

    @property
    def from_ns(self) -> int:
        """When its latencies begin: the intended send of an open loop, else the send."""
        return self.sent_ns if self.intended_ns is None else self.intended_ns

    @property
    def events(self) -> int:
        """How many content events came."""
        return len(self.content_ns) + self.folded


@dataclass(slots=True)
class WorkerShare:
    """What one worker had of a level, and how it fared.

    Attributes:
        place: Where it runs; empty for this machine.
        requests: That it finished.
        events: Content events it received.
        stamped: Whether the kernel stamps there.
        lag_ns: Samples of how late it came to read.
        cpu_s: CPU time it took inside the window.
        run_delay_s: Time it was runnable and had no core; None where unknown.
        clock_error_ns: How far off its times may be, beside those of other workers.
    """

    place: str = ""
    requests: int = 0
    events: int = 0
    stamped: bool = True
    lag_ns: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    run_delay_s: float | None = None
    clock_error_ns: int = 0


@dataclass(slots=True)
class LevelRaw:
    """What an engine saw in one level.

    Attributes:
        records: Every finished request of the window, in the order they ended.
        started_ns: The first send of the window.
        ended_ns: The end of the last finished request.
        unfinished: Requests that were in flight when the level was cut short.
        cut_short: Why it ended early, in words; empty when it did not.
        warmup_failures: Failures of the warm-up, whose figures are thrown away.
        timestamp_source: How the times were taken.
        loop_lag_ns: Samples of how late the engine came to read.
        cpu_s: CPU time the engine's busiest worker took inside the window; None where unknown.
        cpu_total_s: CPU time of all workers, with what they parsed after the window.
        peak_memory_mib: The most memory the workers held, added up.
        run_delay_s: Time the worker that waited most was runnable and had no core; None where
            unknown.
        reconnects: Connections set up inside the window.
        resent: Requests sent again because their kept connection turned out to be closed.
        turned_away: Requests of an open loop whose time came with `concurrency` in flight.
        workers: Processes that shared the streams.
        reads: Reads of sockets, and `unstamped_reads` those the kernel did not stamp although it
            stamps here.
        clock_step_ns: How much the clock that stamps was set in the meantime.
        crowded_parses: How often parsing had to go before reading, for want of memory.
        out_of_files: Connections not made because files or ports had run out on this machine.
        gaps: Gaps between content events that are not in the records, of very long levels.
        shares: What each worker had, by its number.
    """

    records: list[RequestRecord] = field(default_factory=list)
    started_ns: int = 0
    ended_ns: int = 0
    unfinished: int = 0
    cut_short: str = ""
    warmup_failures: list[Failure] = field(default_factory=list)
    timestamp_source: str = ""
    loop_lag_ns: list[int] = field(default_factory=list)
    cpu_s: float | None = None
    cpu_total_s: float = 0.0
    peak_memory_mib: float = 0.0
    run_delay_s: float | None = None
    reconnects: int = 0
    resent: int = 0
    turned_away: int = 0
    workers: int = 1
    reads: int = 0
    unstamped_reads: int = 0
    clock_step_ns: int = 0
    crowded_parses: int = 0
    out_of_files: int = 0
    gaps: Histogram | None = None
    shares: dict[int, WorkerShare] = field(default_factory=dict)


@dataclass(frozen=True)
class LevelProgress:
    """Where a level stands. `raw` is the level so far, to be read and not kept."""

    phase: Phase
    done: int
    total: int
    errors: int
    elapsed_s: float
    raw: LevelRaw


class LoadEngine(Protocol):
    """Makes load. One instance may run several levels, one after the other."""

    @property
    def name(self) -> str:
        """A short name for the record."""

    @property
    def timestamp_source(self) -> str:
        """How it takes times, in words."""

    def add_worker(self) -> bool:
        """Share the levels to come among one more process; False when no core is left for it."""

    async def run_level(
        self,
        spec: LevelSpec,
        endpoint: Endpoint,
        on_progress: Callable[[LevelProgress], None],
        cancel: Callable[[], bool],
    ) -> LevelRaw:
        """Run one level.

        Args:
            spec: What to send.
            endpoint: Whom to.
            on_progress: Called at least twice a second; it must return within milliseconds.
            cancel: Asked several times a second; once it says True the level is cut short, its
                connections are closed and what it has is returned.

        Raises:
            EndpointUnreachableError: Not one connection could be made.
            NotSupportedError: A proxy stands between, or too few files may be open.
        """

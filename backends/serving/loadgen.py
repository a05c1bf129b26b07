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
    from backends.serving.wire import Failure


Phase = Literal["starting", "warm-up", "measuring"]


@dataclass(frozen=True)
class LevelSpec:
    """One level of a closed loop: `concurrency` streams send the bodies one after the other.

    Args:
        concurrency: Requests in flight, 1 or more.
        path: The request path below the endpoint's base URL.
        bodies: The JSON body of every measured request.
        warmup_bodies: Bodies of requests that are sent first and not measured.
        timeout_s: Bound of one request, from its send to its end.
        max_error_rate: When a larger share of at least `max(8, concurrency)` finished requests
            has failed, the level is cut short.
        before_window: Awaited after the warm-up, before the first measured request.
        after_window: Awaited after the last measured request.
    """

    concurrency: int
    path: str
    bodies: Sequence[bytes]
    warmup_bodies: Sequence[bytes] = ()
    timeout_s: float = 120.0
    max_error_rate: float = 1.0
    before_window: Callable[[], Awaitable[None]] | None = None
    after_window: Callable[[], Awaitable[None]] | None = None


@dataclass(slots=True)
class RequestRecord:
    """One finished request.

    Attributes:
        index: Its place among the level's bodies.
        request_id: The `x-request-id` it was sent with.
        sent_ns: When it was handed to the socket.
        send_lag_ns: How long its stream had been free before that.
        first_byte_ns: When the first byte of the answer came; 0 when none did.
        end_ns: When the answer ended, or the request was given up.
        content_ns: The time of every content event.
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
    send_lag_ns: int | None = None
    first_byte_ns: int = 0
    end_ns: int = 0
    content_ns: array[int] = field(default_factory=lambda: array("q"))
    first_answer_ns: int | None = None
    coalesced: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None


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
        cpu_s: CPU time the engine took inside the window; None where unknown.
        run_delay_s: Time it was runnable and had no core; None where unknown.
        reconnects: Connections set up inside the window.
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
    run_delay_s: float | None = None
    reconnects: int = 0


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

"""The steady part of a level: from where nearly all streams are busy to where they begin to end.

Ramp-up and drain are part of every finite level. At two requests a stream they are a large part,
and the throughput of the whole level is then too low; the steady part says what the endpoint
sustains.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from backends.serving.loadgen import LevelRaw, RequestRecord
from backends.serving.runs import SteadyPart
from backends.serving.stats import distribution

FULL_SHARE = 0.95
"""Of the streams, from which the load counts as fully there."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a level, in the nanoseconds of its records.

    Args:
        from_ns: Its begin.
        to_ns: Its end, after `from_ns`.
    """

    from_ns: int
    to_ns: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.to_ns - self.from_ns) / 1e9

    def tokens(self, record: RequestRecord) -> float:
        """Return how many output tokens of a request fell into it.

        Several tokens may come in one event; each counts as the mean of its request.
        """
        if not record.content_ns:
            return 0.0
        counted = record.completion_tokens
        tokens = record.events if counted is None else counted
        if record.folded:
            return tokens * self._share(record.content_ns[0], record.content_ns[-1])
        times = record.content_ns  # ascending
        inside = bisect_right(times, self.to_ns) - bisect_right(times, self.from_ns)
        return tokens * inside / len(times)

    def _share(self, begin_ns: int, end_ns: int) -> float:
        """Of a long answer only begin and end are known; its tokens are taken as evenly spread."""
        inside = min(end_ns, self.to_ns) - max(begin_ns, self.from_ns)
        return max(0, inside) / max(1, end_ns - begin_ns)


def steady_window(records: Sequence[RequestRecord], concurrency: int) -> Window | None:
    """Return the stretch between the first and the last moment with 95 % of the streams in flight.

    Short dips in between, while a stream goes from one request to the next, belong to it. None
    when that many were never in flight, or for a moment only.

    Args:
        records: Every finished request of a closed loop, failed ones included.
        concurrency: Its streams.
    """
    wanted = FULL_SHARE * concurrency
    changes = [(record.sent_ns, 1) for record in records]
    changes += [(record.end_ns, -1) for record in records]
    in_flight = 0
    first_ns = last_ns = None
    for at_ns, change in sorted(changes):
        if in_flight >= wanted:
            last_ns = at_ns
        in_flight += change
        if in_flight >= wanted and first_ns is None:
            first_ns = at_ns
    if first_ns is None or last_ns is None or last_ns <= first_ns:
        return None
    return Window(first_ns, last_ns)


def steady_part(
    raw: LevelRaw, concurrency: int, *, usd_per_hour: float | None = None
) -> SteadyPart | None:
    """Return the figures of a closed loop's steady part; None where there is none.

    Args:
        raw: What the engine saw.
        concurrency: The streams.
        usd_per_hour: For the cost of what it sustains.
    """
    if any(record.intended_ns is not None for record in raw.records):
        return None
    window = steady_window(raw.records, concurrency)
    if window is None:
        return None
    good = [record for record in raw.records if record.failure is None]
    ended = [r for r in good if window.from_ns < r.end_ns <= window.to_ns]
    sent = [r for r in good if window.from_ns <= r.sent_ns < window.to_ns]
    rate = sum(window.tokens(record) for record in good) / window.seconds
    if rate <= 0:
        return None
    whole_ns = max(1, raw.ended_ns - raw.started_ns)
    return SteadyPart(
        begins_at_s=max(0.0, (window.from_ns - raw.started_ns) / 1e9),
        duration_s=window.seconds,
        share=min(1.0, (window.to_ns - window.from_ns) / whole_ns),
        requests=len(ended),
        requests_per_s=len(ended) / window.seconds,
        output_tokens_per_s=rate,
        ttft_ms=distribution([(r.content_ns[0] - r.from_ns) / 1e6 for r in sent]),
        e2e_ms=distribution([(r.content_ns[-1] - r.from_ns) / 1e6 for r in ended]),
        usd_per_million_output_tokens=None
        if usd_per_hour is None
        else usd_per_hour / (rate * 3600) * 1e6,
    )

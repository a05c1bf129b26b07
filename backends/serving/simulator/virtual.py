"""Run the engine without waiting: a closed loop of clients on a virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from backends.core.errors import InvalidInputError
from backends.serving.simulator.engine import Engine, SequenceState


@dataclass(frozen=True, slots=True)
class Finished:
    """One request of a run. Times in seconds on the virtual clock.

    Args:
        sent_s: When the client sent it.
        first_token_s: When its first token came.
        done_s: When its last token came.
        output_tokens: Tokens it got.
    """

    sent_s: float
    first_token_s: float
    done_s: float
    output_tokens: int

    @property
    def latency_s(self) -> float:
        """From sending to the last token, waiting for admission included."""
        return self.done_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Run:
    """A finished closed-loop run.

    Args:
        requests: In the order they ended.
        duration_s: From the first request sent to the last token.
    """

    requests: list[Finished]
    duration_s: float

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of all requests over the whole run."""
        return sum(r.output_tokens for r in self.requests) / self.duration_s

    @property
    def requests_per_s(self) -> float:
        """Requests over the whole run."""
        return len(self.requests) / self.duration_s

    @property
    def mean_latency_s(self) -> float:
        """Mean latency."""
        return sum(r.latency_s for r in self.requests) / len(self.requests)

    @property
    def mean_ttft_s(self) -> float:
        """Mean time to the first token."""
        return sum(r.first_token_s - r.sent_s for r in self.requests) / len(self.requests)

    @property
    def mean_tpot_s(self) -> float:
        """Mean over the requests of the time between their tokens, the first one apart."""
        tpots = [(r.done_s - r.first_token_s) / max(r.output_tokens - 1, 1) for r in self.requests]
        return sum(tpots) / len(tpots)

    def latency_percentile_s(self, percent: float) -> float:
        """Latency that `percent` of the requests do not exceed (nearest rank, as the reference)."""
        ordered = sorted(r.latency_s for r in self.requests)
        return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


def run_closed_loop(
    engine: Engine,
    make_sequence: Callable[[int], SequenceState],
    *,
    concurrency: int,
    requests: int,
    admission_cap: int = 0,
    start_s: float = 0.0,
    handling_s: float = 0.0,
) -> Run:
    """Keep `concurrency` requests in flight until `requests` are done.

    Args:
        engine: The engine; may be warm.
        make_sequence: Builds the nth request.
        concurrency: Requests in flight, at least 1.
        requests: Requests in all, at least 1.
        admission_cap: Requests let through to the engine at once; 0 for no cap.
        start_s: Virtual time of the start; later runs on one engine need a later one.
        handling_s: Time the API server takes with a request before the engine sees it; it takes
            them one by one, so requests sent together do not arrive together.

    Raises:
        InvalidInputError: A count is below 1, or a request can never be scheduled.
    """
    if concurrency < 1 or requests < 1:
        raise InvalidInputError("concurrency and requests", "must be at least 1")
    now_s = start_s
    sent = 0
    cap = admission_cap or concurrency
    front_free_s = start_s
    coming: deque[tuple[float, float]] = deque()
    inside: dict[int, tuple[SequenceState, float]] = {}
    done: list[Finished] = []

    def send(at_s: float) -> None:
        nonlocal sent, front_free_s
        front_free_s = max(front_free_s, at_s) + handling_s
        coming.append((front_free_s, at_s))
        sent += 1

    def admit() -> None:
        while coming and len(inside) < cap and coming[0][0] <= now_s:
            _, sent_s = coming.popleft()
            sequence = make_sequence(len(done) + len(inside))
            inside[id(sequence)] = (sequence, sent_s)
            engine.add(sequence, now_s)

    for _ in range(min(concurrency, requests)):
        send(now_s)
    while len(done) < requests:
        admit()
        if not inside and coming:
            now_s = coming[0][0]
            admit()
        step = engine.begin_step(now_s)
        if step is None:
            raise InvalidInputError("make_sequence", "made a request the KV cache cannot hold")
        now_s += step.duration_s
        engine.finish_step(step, now_s)
        for key, (sequence, sent_s) in list(inside.items()):
            if sequence.finished:
                del inside[key]
                first_s = sequence.first_token_s
                if first_s is None:
                    raise InvalidInputError("make_sequence", "made a request without output")
                done.append(Finished(sent_s, first_s, now_s, sequence.generated))
                if sent < requests:
                    send(now_s)
    return Run(done, now_s - start_s)

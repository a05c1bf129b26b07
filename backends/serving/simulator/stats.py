"""What the engine counts, with vLLM's bucket bounds; `exposition` shows it as Prometheus text."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""All bounds as recorded from vLLM 0.32.0 (2026-11-30)."""

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def length_bounds(max_model_len: int) -> tuple[float, ...]:
    """Bounds 1, 2, 5, 10, ... up to the context limit, as vLLM builds them."""
    bounds: list[float] = []
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > max_model_len:
                return tuple(bounds)
            bounds.append(digit * scale)
        scale *= 10


class Histogram:
    """Counts observations into buckets; many equal ones at once cost the same as one."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Buckets as Prometheus wants them: upper bound and observations up to it."""
        buckets = []
        running = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            running += count
            buckets.append((str(float(bound)), float(running)))
        buckets.append(("+Inf", float(running + self.counts[-1])))
        return buckets


@dataclass(slots=True)
class Interval:
    """What happened since the last log line."""

    prompt_tokens: int = 0
    generation_tokens: int = 0


@dataclass
class EngineStats:
    """Counters and histograms of one engine since it started.

    Args:
        max_model_len: Context limit, which bounds the length histograms.
    """

    max_model_len: int
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    read_bytes: float = 0.0
    flops: float = 0.0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    interval: Interval = field(default_factory=Interval)
    recent_prefix: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=1000))

    def __post_init__(self) -> None:
        lengths = length_bounds(self.max_model_len)
        self.request_prompt_tokens = Histogram(lengths)
        self.request_generation_tokens = Histogram(lengths)
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        self.request_max_generation_tokens = Histogram(lengths)
        self.request_n = Histogram((1, 2, 5, 10, 20))
        self.request_max_tokens = Histogram(lengths)
        self.ttft_s = Histogram(TTFT_SECONDS)
        self.itl_s = Histogram(TOKEN_SECONDS)
        self.tpot_s = Histogram(TOKEN_SECONDS)
        self.e2e_s = Histogram(REQUEST_SECONDS)
        self.queue_s = Histogram(REQUEST_SECONDS)
        self.inference_s = Histogram(REQUEST_SECONDS)
        self.prefill_s = Histogram(REQUEST_SECONDS)
        self.decode_s = Histogram(REQUEST_SECONDS)
        self.request_preemptions = Histogram((1, 2, 3, 4, 5, 10, 20))
        self.request_computed_tokens = Histogram(lengths)

    def prefix_lookup(self, queried: int, hit: int) -> None:
        """Count one look into the prefix cache, in tokens."""
        self.prefix_queries += queried
        self.prefix_hits += hit
        self.recent_prefix.append((queried, hit))

    def recent_hit_rate(self) -> float:
        """Share of prompt tokens of the last 1,000 requests found in the cache, 0 to 1."""
        queried = sum(q for q, _ in self.recent_prefix)
        return sum(h for _, h in self.recent_prefix) / queried if queried else 0.0

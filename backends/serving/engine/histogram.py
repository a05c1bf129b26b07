"""Counts of durations with three significant digits, for levels too long to keep every sample.

The buckets are those of HdrHistogram (http://hdrhistogram.org, 2026-11-30): a duration is kept to
the 11 leading bits, which is a relative error below 0.1 % whatever its size. The package
`hdrhistogram` 0.10.8 was tried on the same million samples and took 0.95 s, one call a sample,
where this takes 0.16 s (2026-11-30); nothing else of it is needed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from backends.serving.stats import PERCENTILES, Distribution

_LEADING_BITS = 11


class Histogram:
    """Counts of durations in nanoseconds; adding two is adding their counts."""

    __slots__ = ("_counts", "_total_ns")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total_ns = 0

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, durations_ns: Iterable[int]) -> None:
        """Count durations; none may be negative."""
        kept = list(durations_ns)
        self._total_ns += sum(kept)
        self._counts.update(
            [
                value >> shift << shift
                if (shift := value.bit_length() - _LEADING_BITS) > 0
                else value
                for value in kept
            ]
        )

    def merge(self, other: Histogram) -> None:
        """Count what another histogram has counted."""
        self._counts.update(other._counts)
        self._total_ns += other._total_ns

    def percentile_ns(self, percent: float) -> float:
        """Return the value below which `percent` of the samples lie; there must be one sample."""
        return self._percentiles([percent])[0]

    def distribution_ms(self) -> Distribution:
        """Return mean (exact) and percentiles (to 0.1 %) in milliseconds."""
        if not self._counts:
            return Distribution()
        values = self._percentiles(PERCENTILES)
        return Distribution(
            mean=self._total_ns / len(self) / 1e6,
            **{f"p{p}": value / 1e6 for p, value in zip(PERCENTILES, values, strict=True)},
        )

    def _percentiles(self, percents: Iterable[float]) -> list[float]:
        total, out = len(self), []
        ordered = sorted(self._counts.items())
        for percent in percents:
            rank, seen = percent / 100 * (total - 1), 0
            for value, count in ordered:
                seen += count
                if seen > rank:
                    width = 1 << max(0, value.bit_length() - _LEADING_BITS)
                    out.append(value + (width - 1) / 2)
                    break
        return out

"""The one way to summarise a set of samples: mean and four percentiles, or nothing at all."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

PERCENTILES = (50, 90, 95, 99)


class Distribution(BaseModel):
    """Mean and percentiles, in the unit its field names; all None when nothing was measured."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


def distribution(samples: Sequence[float]) -> Distribution:
    """Summarise samples with percentiles interpolated between the two nearest ranks.

    That is numpy's default ("linear", type 7) and what `vllm bench serve` reports, so figures
    compare. Plain Python: a chat answer has some hundred samples, a level some ten thousand, and
    importing numpy for them would cost more than it saves.
    """
    if len(samples) == 0:
        return Distribution()
    ordered = sorted(samples)
    return Distribution(
        mean=sum(ordered) / len(ordered),
        **{f"p{p}": percentile(ordered, p) for p in PERCENTILES},
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the percentile of samples that are sorted already and at least one."""
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (position - low))

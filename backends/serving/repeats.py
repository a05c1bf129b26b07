"""Levels that belong together: the repetitions of one load, and the loads of one context."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from backends.serving.runs import LevelResult, RepeatedLevel, Spread

Key = tuple[bool, float, int]
"""Whether an open loop, the load, the context (0 for none): what makes levels comparable."""


def key_of(level: LevelResult) -> Key:
    """Return what a level shares with its repetitions, and with its like in other runs."""
    return level.request_rate is not None, level.load, level.context_tokens or 0


def grouped(levels: Iterable[LevelResult]) -> dict[Key, list[LevelResult]]:
    """Return the levels by load and context, in ascending order."""
    groups: dict[Key, list[LevelResult]] = {}
    for level in levels:
        groups.setdefault(key_of(level), []).append(level)
    return dict(sorted(groups.items()))


def representatives(levels: Iterable[LevelResult]) -> list[LevelResult]:
    """Return one level for each load and context, in ascending order.

    Of repetitions it is the valid one of median throughput, so that every figure shown together
    was measured together.
    """
    return [_median(group) for group in grouped(levels).values()]


def contexts(levels: Iterable[LevelResult]) -> list[int | None]:
    """Return the contexts of a grid in ascending order; `[None]` for levels without."""
    found = {level.context_tokens for level in levels}
    return sorted(found, key=lambda context: context or 0)


def repeated(levels: Iterable[LevelResult]) -> list[RepeatedLevel]:
    """Return the spread of each load that was measured more than once."""
    return [_spreads(group) for group in grouped(levels).values() if len(group) > 1]


def spread(values: Sequence[float]) -> Spread | None:
    """Return mean, extremes and standard deviation of the sample; None of nothing."""
    if not values:
        return None
    return Spread(
        mean=statistics.fmean(values),
        min=min(values),
        max=max(values),
        stdev=statistics.stdev(values) if len(values) > 1 else None,
    )


def _spreads(group: Sequence[LevelResult]) -> RepeatedLevel:
    valid = [level for level in group if level.valid]

    def over(figure: Callable[[LevelResult], float | None]) -> Spread | None:
        return spread([value for level in valid if (value := figure(level)) is not None])

    first = group[0]
    return RepeatedLevel(
        concurrency=first.concurrency,
        request_rate=first.request_rate,
        context_tokens=first.context_tokens,
        repetitions=len(group),
        valid=len(valid),
        output_tokens_per_s=over(lambda level: level.output_tokens_per_s),
        requests_per_s=over(lambda level: level.requests_per_s),
        ttft_ms_p50=over(lambda level: level.ttft_ms.p50),
        itl_ms_p50=over(lambda level: level.itl_ms.p50),
        tpot_ms_p50=over(lambda level: level.tpot_ms.p50),
        e2e_ms_p50=over(lambda level: level.e2e_ms.p50),
    )


def _median(group: Sequence[LevelResult]) -> LevelResult:
    valid = [level for level in group if level.valid] or list(group)
    ordered = sorted(valid, key=lambda level: level.output_tokens_per_s or 0.0)
    return ordered[(len(ordered) - 1) // 2]

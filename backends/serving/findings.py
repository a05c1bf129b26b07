"""Says in words what a sweep shows, each sentence with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from backends.serving.runs import BenchmarkRun, LevelResult

RISE = 1.10
"""A level that gains less than this over the one before it has stopped rising."""

EQUAL = 0.02
GROWTH_WORTH_SAYING = 2.0
MISSING_SHARE = 0.25
"""Share of the requests in flight that the engine does not see, from which it is said."""

QUEUED_SHARE = 0.10
OUTSIDE_SHARE = 0.20
OUTSIDE_MS = 10.0


def findings(run: BenchmarkRun) -> list[str]:
    """Return what the run's levels show, most important first.

    Only complete levels with successful requests speak. What a level's invalidity forbids to
    conclude is not concluded: an invalid level is named as such and left out of the rest.
    """
    measured = [level for level in run.levels if level.output_tokens_per_s and not level.partial]
    usable = sorted((level for level in measured if level.valid), key=lambda lv: lv.concurrency)
    out: list[str] = []
    if usable:
        out.append(_best(usable))
        out += _saturation(usable)
        out += _growth(usable)
        out += _outside_the_engine(usable)
    for level in run.levels:
        if not level.valid:
            out.append(
                f"Concurrency {level.concurrency} is not valid: {'; '.join(level.invalid_reasons)}."
            )
    if not usable:
        out.insert(0, "No level gave figures that can be relied on.")
    if run.simulated:
        out.append("Every figure is simulated, not measured on an accelerator.")
    return out


def _rate(level: LevelResult) -> float:
    return level.output_tokens_per_s or 0.0


def _best(levels: Sequence[LevelResult]) -> str:
    best = _best_of(levels)
    text = f"Best throughput: {_rate(best):.1f} output tokens/s at concurrency {best.concurrency}"
    if best.ttft_ms.p50 is not None:
        text += f", with TTFT p50 {best.ttft_ms.p50:.0f} ms"
    if best.usd_per_million_output_tokens is not None:
        text += f" and {best.usd_per_million_output_tokens:.2f} USD per million output tokens"
    return text + "."


def plateau(levels: Sequence[LevelResult]) -> LevelResult | None:
    """Return the level at which throughput stopped rising, or None while it still rises.

    It is the lowest one that no higher level beats by more than 10 %, provided that there is a
    higher one with at least one and a half times the concurrency.
    """
    ordered = sorted(levels, key=lambda level: level.concurrency)
    for at, level in enumerate(ordered):
        higher = ordered[at + 1 :]
        tried = any(other.concurrency >= 1.5 * level.concurrency for other in higher)
        if tried and all(_rate(other) < RISE * _rate(level) for other in higher):
            return level
    return None


def best_level(run: BenchmarkRun) -> LevelResult | None:
    """Return the valid level with the best throughput, or None when no level is valid.

    Of levels within 2 % of the highest it is the one with the lowest concurrency: the same
    throughput for a shorter wait.
    """
    valid = [level for level in run.levels if level.valid and level.output_tokens_per_s]
    return _best_of(valid) if valid else None


def _best_of(levels: Sequence[LevelResult]) -> LevelResult:
    enough = (1 - EQUAL) * max(_rate(level) for level in levels)
    return min(
        (level for level in levels if _rate(level) >= enough), key=lambda level: level.concurrency
    )


def _saturation(levels: Sequence[LevelResult]) -> list[str]:
    if len(levels) < 2:
        return []
    knee = plateau(levels)
    last = levels[-1]
    if knee is None:
        first = levels[0]
        gain, ideal = _rate(last) / _rate(first), last.concurrency / first.concurrency
        return [
            f"Throughput still rises at concurrency {last.concurrency}: {gain:.1f} times that of "
            f"{first.concurrency} ({gain / ideal:.0%} of linear). Higher levels may give more."
        ]
    text = f"Throughput stopped rising at concurrency {knee.concurrency}"
    return [f"{text}{_why(last)}."]


def _why(level: LevelResult) -> str:
    """Say where the requests of a saturated level were, from the engine's own times."""
    server = level.server
    if server is None or server.mean_running is None or server.mean_waiting is None:
        return ""
    running, waiting, asked = server.mean_running, server.mean_waiting, level.concurrency
    seen = f" while the engine ran {running:.1f} of {asked} requests in flight on average"
    if running + waiting < (1 - MISSING_SHARE) * asked:
        return (
            f"{seen} and queued {waiting:.1f}: the others waited in front of it, so the platform's "
            "admission limit is what holds throughput down"
        )
    if waiting > QUEUED_SHARE * asked:
        return (
            f"{seen} and queued {waiting:.1f} itself: max_num_seqs or the KV cache is what holds "
            "throughput down"
        )
    return f"{seen}: the accelerator itself is full"


def _growth(levels: Sequence[LevelResult]) -> list[str]:
    first, last = levels[0], levels[-1]
    out: list[str] = []
    if first is last:
        return out
    for name, before, after in (
        ("TTFT", first.ttft_ms.p50, last.ttft_ms.p50),
        ("ITL", first.itl_ms.p50, last.itl_ms.p50),
    ):
        if before and after and after > GROWTH_WORTH_SAYING * before:
            out.append(
                f"{name} p50 grew from {before:.1f} ms at concurrency {first.concurrency} to "
                f"{after:.1f} ms at {last.concurrency}."
            )
    return out


def _outside_the_engine(levels: Sequence[LevelResult]) -> list[str]:
    """Name the level where most of TTFT passes outside the engine, if there is one."""
    worst: tuple[float, LevelResult, float] | None = None
    for level in levels:
        ours = level.ttft_ms.mean
        theirs = level.server.ttft_ms.mean if level.server and level.server.ttft_ms else None
        if ours is None or theirs is None:
            continue
        outside_ms = ours - theirs
        telling = outside_ms > OUTSIDE_MS and outside_ms > OUTSIDE_SHARE * ours
        if telling and (worst is None or outside_ms > worst[0]):
            worst = (outside_ms, level, ours)
    if worst is None:
        return []
    outside_ms, level, ours = worst
    return [
        f"At concurrency {level.concurrency}, {outside_ms:.0f} of {ours:.0f} ms of mean TTFT "
        "passed outside the engine: network, proxy or the platform's admission queue."
    ]

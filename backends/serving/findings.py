"""Says in words what a sweep shows, each sentence with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from backends.serving.beside_server import beside, engine_mean, in_flight_mean
from backends.serving.repeats import representatives
from backends.serving.runs import BenchmarkRun, BesideServer, LevelResult

RISE = 1.10
"""A level that gains less than this over the one before it has stopped rising."""

EQUAL = 0.02
GROWTH_WORTH_SAYING = 2.0
MISSING_SHARE = 0.25
"""Share of the requests in flight that the engine does not see, from which it is said."""

QUEUED_SHARE = 0.10
OUTSIDE_SHARE = 0.20
OUTSIDE_MS = 10.0
SPREAD_WORTH_SAYING = 0.05
IMPOSSIBLE_SHARE = 1.05
MOST_INVALID = 6


def findings(run: BenchmarkRun) -> list[str]:
    """Return what the run's levels show, most important first.

    Only complete levels with successful requests speak. What a level's invalidity forbids to
    conclude is not concluded: an invalid level is named as such and left out of the rest.
    """
    measured = [level for level in run.levels if level.output_tokens_per_s and not level.partial]
    usable = representatives(level for level in measured if level.valid)
    out: list[str] = _knee(run) + _grid(run)
    if usable:
        out.append(_best(usable))
        out += _saturation(usable) if run.spec.mode == "levels" else []
        out += _steady(usable)
        out += _efficiency(usable)
        out += _growth(usable)
        out += _outside_the_engine(usable)
        out += _spread(run)
    out += _invalid(run)
    if not usable:
        out.insert(0, "No level gave figures that can be relied on.")
    if run.simulated:
        out.append("Every figure is simulated, not measured on an accelerator.")
    return out


def _invalid(run: BenchmarkRun) -> list[str]:
    """Name the levels that are not valid, the first of them with why."""
    bad = [level for level in run.levels if not level.valid]
    out = [
        f"{capital(level.load_words)} is not valid: {'; '.join(level.invalid_reasons)}."
        for level in bad[:MOST_INVALID]
    ]
    if len(bad) > MOST_INVALID:
        more = ", ".join(level.load_words for level in bad[MOST_INVALID:])
        out.append(f"Not valid either: {more}; each says why in invalid_reasons.")
    return out


def capital(text: str) -> str:
    """Return a text that begins a sentence."""
    return text[:1].upper() + text[1:]


def _rate(level: LevelResult) -> float:
    return level.output_tokens_per_s or 0.0


def _knee(run: BenchmarkRun) -> list[str]:
    """Say the highest load within the objective, with the loads around it as evidence."""
    knee = run.knee
    if knee is None or not knee.steps:
        return []
    slo, rate = " and ".join(knee.slo), knee.kind == "requests_per_s"

    def words(load: float) -> str:
        return f"{load:.3g} requests/s" if rate else f"concurrency {load:g}"

    missed = next((step for step in knee.steps if step.load == knee.first_miss), None)
    because = f" ({'; '.join(missed.misses)})" if missed and missed.misses else ""
    if knee.load is None:
        return [f"No load met {slo}: {words(knee.steps[0].load)} missed it already{because}."]
    text = f"Knee: {words(knee.load)} is the highest load that met {slo}"
    if knee.first_miss is None:
        text += f"; the search went no higher than {words(knee.searched_to)}"
    else:
        text += f"; {words(knee.first_miss)} missed it{because}"
    if not knee.settled:
        text += "; the search ended before the gap between the two was closed"
    out = [f"{text}."]
    if missed is not None and not missed.valid:
        out.append(
            f"{capital(words(missed.load))} missed the objective in a level that is not valid: the "
            "client may be what was slow, and the knee may be higher."
        )
    return out


def _best(levels: Sequence[LevelResult]) -> str:
    best = _best_of(levels)
    text = f"Best throughput: {_rate(best):.1f} output tokens/s at {best.load_words}"
    if best.ttft_ms.p50 is not None:
        text += f", with TTFT p50 {best.ttft_ms.p50:.0f} ms"
    if best.usd_per_million_output_tokens is not None:
        text += f" and {best.usd_per_million_output_tokens:.2f} USD per million output tokens"
    return text + "."


def plateau(levels: Sequence[LevelResult]) -> LevelResult | None:
    """Return the level at which throughput stopped rising, or None while it still rises.

    It is the lowest one that no higher level beats by more than 10 %, provided that there is a
    higher one with at least one and a half times the load. Levels of a grid are of several
    contexts and have no such point together: None.
    """
    ordered = sorted(levels, key=lambda level: level.load)
    if len({(lv.context_tokens, lv.request_rate is None) for lv in ordered}) > 1:
        return None
    for at, level in enumerate(ordered):
        higher = ordered[at + 1 :]
        tried = any(other.load >= 1.5 * level.load for other in higher)
        if tried and all(_rate(other) < RISE * _rate(level) for other in higher):
            return level
    return None


def best_level(run: BenchmarkRun) -> LevelResult | None:
    """Return the valid level with the best throughput, or None when no level is valid.

    Of levels within 2 % of the highest it is the one with the lowest load: the same throughput for
    a shorter wait. Of repetitions it is the median.
    """
    valid = [level for level in run.levels if level.valid and level.output_tokens_per_s]
    return _best_of(representatives(valid)) if valid else None


def _best_of(levels: Sequence[LevelResult]) -> LevelResult:
    enough = (1 - EQUAL) * max(_rate(level) for level in levels)
    return min((level for level in levels if _rate(level) >= enough), key=lambda level: level.load)


def _saturation(levels: Sequence[LevelResult]) -> list[str]:
    if len(levels) < 2:
        return []
    knee = plateau(levels)
    last = levels[-1]
    if knee is None and last.request_rate is not None:
        return [f"Throughput still follows the load at {last.load_words}: more may be answered."]
    if knee is None:
        first = levels[0]
        gain, ideal = _rate(last) / _rate(first), last.load / first.load
        return [
            f"Throughput still rises at {last.load_words}: {gain:.1f} times that of "
            f"{_load(first)} ({gain / ideal:.0%} of linear). Higher levels may give more."
        ]
    text = f"Throughput stopped rising at {knee.load_words}"
    return [f"{text}{_why(last)}."]


def _load(level: LevelResult) -> str:
    return f"{level.load:g}"


def _why(level: LevelResult) -> str:
    """Say where the requests of a saturated level were, from the engine's own times."""
    running, waiting = engine_mean(level, "mean_running"), engine_mean(level, "mean_waiting")
    if running is None or waiting is None:
        return ""
    asked: float = level.concurrency
    if level.request_rate is not None:
        asked = in_flight_mean(level) or running + waiting
    seen = f" while the engine ran {running:.1f} of {asked:.3g} requests in flight on average"
    if running + waiting < (1 - MISSING_SHARE) * asked:
        return (
            f"{seen} and queued {waiting:.1f}: the others waited in front of it, so the platform's "
            f"admission limit, about {max(1, round(running + waiting))}, is what holds throughput "
            "down"
        )
    if waiting > QUEUED_SHARE * asked:
        return (
            f"{seen} and queued {waiting:.1f} itself: max_num_seqs or the KV cache is what holds "
            "throughput down"
        )
    return f"{seen}: the accelerator itself is full"


def _grid(run: BenchmarkRun) -> list[str]:
    """Say of each context its best cell, and how many cells could not be run."""
    out: list[str] = []
    for context in sorted({cell.context_tokens for cell in run.grid}):
        row = [cell for cell in run.grid if cell.context_tokens == context]
        good = [cell for cell in row if cell.status == "ok" and cell.valid]
        best = max(good, key=lambda cell: cell.output_tokens_per_s or 0.0, default=None)
        without = [cell for cell in row if cell.status == "infeasible"]
        text = f"At {context} prompt tokens"
        if best is None:
            text += " no cell gave figures that can be relied on"
        else:
            load = (
                f"concurrency {best.concurrency}"
                if best.request_rate is None
                else f"{best.request_rate:g} requests/s"
            )
            text += f" the best is {best.output_tokens_per_s:.1f} tokens/s at {load}"
        if without:
            text += f"; infeasible from {without[0].reason}"
        out.append(f"{text}.")
    return out


def _steady(levels: Sequence[LevelResult]) -> list[str]:
    """Say where ramp-up and drain hide much of the throughput."""
    best = _best_of(levels)
    steady = best.steady
    if steady is None or steady.output_tokens_per_s < RISE * _rate(best):
        return []
    return [
        f"Without ramp-up and drain {best.load_words} gave {steady.output_tokens_per_s:.1f} output "
        f"tokens/s over {steady.share:.0%} of its time, the whole level {_rate(best):.1f}: more "
        "requests a level would bring the two together."
    ]


def _efficiency(levels: Sequence[LevelResult]) -> list[str]:
    """Say how near the best level comes to the accelerator's memory bandwidth."""
    best = _best_of(levels)
    found = best.efficiency
    if found is None:
        return []
    chips = f"{found.chips} x " if found.chips > 1 else ""
    if found.share_of_bound > IMPOSSIBLE_SHARE:
        return [
            f"{capital(best.load_words)} gave {found.share_of_bound:.1f} times what the memory "
            f"bandwidth of {chips}{found.accelerator} allows {found.checkpoint}: accelerator, "
            "chips or checkpoint is not what was named, or several tokens are made a step."
        ]
    return [
        f"{capital(best.load_words)} reached {found.share_of_bound:.0%} of what the memory "
        f"bandwidth of {chips}{found.accelerator} allows {found.checkpoint} "
        f"({found.bound_output_tokens_per_s:.0f} output tokens/s with {found.batch:.1f} sequences "
        f"in the batch), and {found.measured_over_predicted:.0%} of the "
        f"{found.predicted_output_tokens_per_s:.0f} predicted."
    ]


def _spread(run: BenchmarkRun) -> list[str]:
    """Name the load whose repetitions differ most, where that is worth a word."""
    worst: tuple[float, str] | None = None
    for group in run.repeated:
        rate = group.output_tokens_per_s
        if rate is None or group.valid < 2 or rate.mean <= 0:
            continue
        share = (rate.max - rate.min) / rate.mean
        if share > SPREAD_WORTH_SAYING and (worst is None or share > worst[0]):
            load = (
                f"concurrency {group.concurrency}"
                if group.request_rate is None
                else f"{group.request_rate:g} requests/s"
            )
            worst = (
                share,
                f"Repetitions of {load} differ by {share:.0%} of their mean throughput "
                f"({rate.min:.1f} to {rate.max:.1f} output tokens/s): smaller differences than "
                "that between runs mean nothing.",
            )
    return [worst[1]] if worst else []


def _growth(levels: Sequence[LevelResult]) -> list[str]:
    first, last = levels[0], levels[-1]
    out: list[str] = []
    if first is last or first.context_tokens != last.context_tokens:
        return out
    for name, before, after in (
        ("TTFT", first.ttft_ms.p50, last.ttft_ms.p50),
        ("ITL", first.itl_ms.p50, last.itl_ms.p50),
    ):
        if before and after and after > GROWTH_WORTH_SAYING * before:
            out.append(
                f"{name} p50 grew from {before:.1f} ms at {first.load_words} to "
                f"{after:.1f} ms at {_load(last)}."
            )
    return out


def _outside_the_engine(levels: Sequence[LevelResult]) -> list[str]:
    """Name the level where most of TTFT passes outside the engine, if there is one, and why."""
    worst: tuple[LevelResult, BesideServer] | None = None
    for level in levels:
        for row in level.beside_server or beside(level):
            if row.figure != "ttft" or row.difference <= OUTSIDE_MS:
                continue
            telling = row.difference > OUTSIDE_SHARE * row.client
            if telling and (worst is None or row.difference > worst[1].difference):
                worst = (level, row)
    if worst is None:
        return []
    level, row = worst
    return [
        f"At {level.load_words}, {row.difference:.0f} of {row.client:.0f} ms of mean TTFT "
        f"passed outside the engine: {row.explanation}."
    ]

"""Sets several runs side by side and says who wins at what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from backends.serving.findings import best_level, plateau
from backends.serving.repeats import Key, key_of, representatives
from backends.serving.runs import BenchmarkRun, LevelResult
from backends.serving.tables import kind_of, load_cell, number, table

BESIDE = "host"
"""The runner that makes the load on the engine's own machine."""

TIE = 0.05
"""Two figures closer than this are called equal: runs differ by as much from one to the next."""


class ComparedRun(BaseModel):
    """One run in a comparison, at its best level."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    id: str
    label: str
    model: str
    target: str | None
    simulated: bool
    measured_by: str
    runner: str = Field(description="where the load was made: local, ray or host")
    best_concurrency: int | None
    best_request_rate: float | None
    requests_per_s: float | None
    output_tokens_per_s: float | None
    ttft_p50_ms: float | None
    itl_p50_ms: float | None
    usd_per_million_output_tokens: float | None
    plateau_concurrency: int | None
    knee: float | None = Field(description="highest load within its objective, where searched")
    knee_slo: str | None = None
    share_of_bandwidth_bound: float | None = None


class Comparison(BaseModel):
    """Several runs side by side."""

    model_config = ConfigDict(extra="forbid")

    runs: list[ComparedRun]
    common_levels: list[int] = Field(description="concurrencies every run has a valid level at")
    common_loads: list[str] = Field(description="the same with rates and contexts, in words")
    verdicts: list[str] = Field(description="who wins at what, in words")
    cautions: list[str] = Field(description="why they may not compare")


def run_names(runs: Sequence[BenchmarkRun]) -> dict[str, str]:
    """Return a name for each run by id: its label, with its id where another has the same."""
    labels = [run.label for run in runs]
    return {
        run.id: run.label if labels.count(run.label) == 1 else f"{run.label} {run.id}"
        for run in runs
    }


def compare(runs: Sequence[BenchmarkRun]) -> Comparison:
    """Set runs side by side and say who wins at what.

    Only valid levels speak. Each verdict compares the same thing for all: highest throughput at
    any level, lowest cost at any level, and TTFT and per-stream speed at the lowest concurrency
    they have in common.
    """
    names = run_names(runs)
    common = common_keys(runs)
    verdicts = [
        _verdict(
            "Highest throughput",
            runs,
            lambda run: _best(run, lambda level: level.output_tokens_per_s, highest=True),
            "output tokens/s",
            highest=True,
        ),
        _verdict(
            "Lowest cost",
            runs,
            lambda run: _best(
                run, lambda level: level.usd_per_million_output_tokens, highest=False
            ),
            "USD per million output tokens",
            highest=False,
        ),
    ]
    if common:
        at = common[0]
        words = at_words(at)
        verdicts += [
            _verdict(
                f"Lowest TTFT (p50) at {words}",
                runs,
                lambda run: _at(run, at).ttft_ms.p50,
                "ms",
                highest=False,
            ),
            _verdict(
                f"Fastest single stream (TPOT p50) at {words}",
                runs,
                lambda run: _at(run, at).tpot_ms.p50,
                "ms",
                highest=False,
            ),
        ]
    if len({run.knee.kind for run in runs if run.knee}) == 1:
        verdicts.append(
            _verdict(
                "Highest load within its objective",
                runs,
                lambda run: run.knee.load if run.knee else None,
                "requests/s" if _knees_are_rates(runs) else "requests in flight",
                highest=True,
            )
        )
    verdicts += _distances(runs, common)
    return Comparison(
        runs=[_compared(run, names[run.id]) for run in runs],
        common_levels=[round(load) for rate, load, context in common if not rate and not context],
        common_loads=[at_words(at) for at in common],
        verdicts=[verdict for verdict in verdicts if verdict],
        cautions=_cautions(runs, common),
    )


def comparison_markdown(runs: Sequence[BenchmarkRun]) -> str:
    """Return several runs as one table, throughput at common loads, verdicts and cautions."""
    compared = compare(runs)
    head = [
        "run",
        "model",
        "best tok/s",
        "at",
        "TTFT p50 ms",
        "ITL p50 ms",
        "USD / M tokens",
        "stops rising at",
        "knee",
    ]
    rows = [
        [
            f"{row.label} ({kind_of(run)})",
            row.model,
            number(row.output_tokens_per_s, 1),
            number(row.best_concurrency, 0)
            if row.best_request_rate is None
            else f"{row.best_request_rate:g}/s",
            number(row.ttft_p50_ms, 1),
            number(row.itl_p50_ms, 1),
            number(row.usd_per_million_output_tokens, 2),
            number(row.plateau_concurrency, 0),
            "-" if row.knee is None else f"{row.knee:.3g}",
        ]
        for row, run in zip(compared.runs, runs, strict=True)
    ]
    lines = ["## Comparison", "", table(head, rows)]
    common = common_keys(runs)
    if common:
        names = [run_names(runs)[run.id] for run in runs]
        plain = all(not rate and not context for rate, _, context in common)
        by_level = [
            [
                f"{at[1]:g}" if plain else at_words(at),
                *(number(_at(run, at).output_tokens_per_s, 1) for run in runs),
            ]
            for at in common
        ]
        lines += ["", "Output tokens/s at the same load:", ""]
        lines += [table(["concurrency" if plain else "load", *names], by_level)]
    lines += [
        f"\nKnee of {row.label}: within {row.knee_slo}." for row in compared.runs if row.knee_slo
    ]
    if compared.verdicts:
        lines += ["", *(f"- {verdict}" for verdict in compared.verdicts)]
    if compared.cautions:
        lines += ["", "Mind:", *(f"- {caution}" for caution in compared.cautions)]
    return "\n".join(lines) + "\n"


def common_keys(runs: Sequence[BenchmarkRun]) -> list[Key]:
    """Return the loads (and contexts) at which every run has a valid level."""
    keys = [{key_of(level) for level in run.levels if level.valid} for run in runs]
    return sorted(set.intersection(*keys)) if keys else []


def at_words(key: Key) -> str:
    """Return a load and context in words."""
    rate, load, context = key
    words = f"{load:g} requests/s" if rate else f"concurrency {load:g}"
    return words if not context else f"{words} x {context} tokens"


def _knees_are_rates(runs: Sequence[BenchmarkRun]) -> bool:
    return any(run.knee is not None and run.knee.kind == "requests_per_s" for run in runs)


def _compared(run: BenchmarkRun, name: str) -> ComparedRun:
    best = best_level(run)
    valid = representatives(level for level in run.levels if level.valid)
    flat = plateau(valid)
    knee = run.knee
    return ComparedRun(
        id=run.id,
        label=name,
        model=run.endpoint.model,
        target=run.spec.target,
        simulated=run.simulated,
        measured_by=run.environment.engine,
        runner=run.spec.runner,
        best_concurrency=best.concurrency if best else None,
        best_request_rate=best.request_rate if best else None,
        requests_per_s=best.requests_per_s if best else None,
        output_tokens_per_s=best.output_tokens_per_s if best else None,
        ttft_p50_ms=best.ttft_ms.p50 if best else None,
        itl_p50_ms=best.itl_ms.p50 if best else None,
        usd_per_million_output_tokens=best.usd_per_million_output_tokens if best else None,
        plateau_concurrency=flat.concurrency if flat and flat.request_rate is None else None,
        knee=knee.load if knee else None,
        knee_slo=" and ".join(knee.slo) if knee else None,
        share_of_bandwidth_bound=best.efficiency.share_of_bound
        if best and best.efficiency
        else None,
    )


def _best(
    run: BenchmarkRun, figure: Callable[[LevelResult], float | None], *, highest: bool
) -> float | None:
    valid = representatives(level for level in run.levels if level.valid)
    figures = [value for level in valid if (value := figure(level))]
    if not figures:
        return None
    return max(figures) if highest else min(figures)


def _at(run: BenchmarkRun, key: Key) -> LevelResult:
    valid = representatives(level for level in run.levels if level.valid)
    return next(level for level in valid if key_of(level) == key)


def _verdict(
    what: str,
    runs: Sequence[BenchmarkRun],
    figure: Callable[[BenchmarkRun], float | None],
    unit: str,
    *,
    highest: bool,
) -> str:
    names = run_names(runs)
    found = [(value, names[run.id]) for run in runs if (value := figure(run)) is not None]
    if len(found) < 2:
        return ""
    found.sort(key=lambda entry: entry[0], reverse=highest)
    (first, winner), (second, runner_up) = found[0], found[1]
    ratio = (first / second if highest else second / first) if min(first, second) > 0 else 1.0
    if ratio - 1 <= TIE:
        return f"{what}: {winner} and {runner_up} are equal within 5 % ({number(first, 2)} {unit})."
    return (
        f"{what}: {winner} with {number(first, 2)} {unit}, {ratio:.1f} times as good as "
        f"{runner_up} ({number(second, 2)})."
    )


def _distances(runs: Sequence[BenchmarkRun], common: Sequence[Key]) -> list[str]:
    """Say how far the client was, where one deployment was measured beside its engine too.

    Compared where least queues, at the lowest load they have in common.
    """
    if not common:
        return []
    at, names, out = common[0], run_names(runs), []
    ours = [run for run in runs if run.spec.deployment and not run.imported_from]
    for near in (run for run in ours if run.spec.runner == BESIDE):
        for far in (run for run in ours if run.spec.runner != BESIDE):
            if (near.spec.target, near.spec.deployment) != (far.spec.target, far.spec.deployment):
                continue
            said = [
                f"{number(theirs - own, 2)} ms more {figure} ({number(theirs, 2)} against "
                f"{number(own, 2)} beside the engine)"
                for figure, theirs, own in (
                    ("TTFT p50", _at(far, at).ttft_ms.p50, _at(near, at).ttft_ms.p50),
                    ("ITL p99", _at(far, at).itl_ms.p99, _at(near, at).itl_ms.p99),
                )
                if theirs is not None and own is not None and theirs > own * (1 + TIE)
            ]
            out.append(
                f"Client distance at {at_words(at)}: {names[far.id]} has "
                f"{' and '.join(said)}, which is the way between client and engine."
                if said
                else f"Client distance at {at_words(at)}: {names[far.id]} is within 5 % of "
                f"{names[near.id]}, made beside the engine; the way between does not show."
            )
    return out


def _cautions(runs: Sequence[BenchmarkRun], common: Sequence[Key]) -> list[str]:
    out: list[str] = []
    names = run_names(runs)
    kinds = {run.simulated for run in runs}
    if len(kinds) > 1:
        out.append("some runs are simulated and some measured: they do not compare")
    elif kinds == {True}:
        out.append("every run is simulated")
    for name, values in (
        ("models", {run.endpoint.model for run in runs}),
        ("max_tokens", {run.spec.max_tokens for run in runs}),
        ("endpoint_kind", {run.spec.endpoint_kind for run in runs}),
    ):
        if len(values) > 1:
            out.append(f"{name} differ: {', '.join(sorted(map(str, values)))}")
    lengths = [
        level.prompt_tokens_mean for run in runs for level in run.levels if level.prompt_tokens_mean
    ]
    if lengths and max(lengths) > 1.2 * min(lengths):
        out.append(f"prompts differ in length: {min(lengths):.0f} to {max(lengths):.0f} tokens")
    if not common and len(runs) > 1:
        out.append("they have no valid level of concurrency in common")
    measured_by = {run.environment.engine for run in runs}
    if len(measured_by) > 1 and any(run.imported_from for run in runs):
        out.append(
            f"measured by different programs ({', '.join(sorted(measured_by))}): the other's "
            "client may have added to its latencies"
        )
    runners = {run.spec.runner for run in runs if not run.imported_from}
    if BESIDE in runners and len(runners) > 1:
        out.append("made from different places: only some are free of the way to the engine")
    objectives = {" and ".join(run.knee.slo) for run in runs if run.knee}
    if len(objectives) > 1:
        out.append(f"knees are of different objectives: {'; '.join(sorted(objectives))}")
    for run in runs:
        bad = [load_cell(level) for level in representatives(run.levels) if not level.valid]
        if bad:
            out.append(
                f"{names[run.id]}: concurrency {', '.join(bad)} is not valid and is left out"
            )
        if run.state != "completed":
            out.append(f"{names[run.id]} is {run.state}")
    return out

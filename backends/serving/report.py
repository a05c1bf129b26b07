"""Renders runs as Markdown: one run in full, or several side by side with who wins at what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from backends.serving.findings import best_level, plateau
from backends.serving.runs import BenchmarkRun, LevelResult
from backends.serving.stats import Distribution

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
    best_concurrency: int | None
    output_tokens_per_s: float | None
    ttft_p50_ms: float | None
    itl_p50_ms: float | None
    usd_per_million_output_tokens: float | None
    plateau_concurrency: int | None


class Comparison(BaseModel):
    """Several runs side by side."""

    model_config = ConfigDict(extra="forbid")

    runs: list[ComparedRun]
    common_levels: list[int] = Field(description="concurrencies every run has a valid level at")
    verdicts: list[str] = Field(description="who wins at what, in words")
    cautions: list[str] = Field(description="why they may not compare")


def run_names(runs: Sequence[BenchmarkRun]) -> dict[str, str]:
    """Return a name for each run by id: its label, with its id where another has the same."""
    labels = [run.label for run in runs]
    return {
        run.id: run.label if labels.count(run.label) == 1 else f"{run.label} {run.id}"
        for run in runs
    }


def run_markdown(run: BenchmarkRun) -> str:
    """Return one run: what was measured, the table of levels, findings, warnings."""
    where = run.endpoint.source or run.endpoint.base_url
    kind = "simulated" if run.simulated else "measured"
    spec = run.spec
    lines = [
        f"## Benchmark {run.label} ({kind})",
        "",
        f"{run.endpoint.model} at {where}, {run.created_at}, state {run.state}"
        + (f" ({run.state_reason})" if run.state_reason else "")
        + f". Id {run.id}.",
        f"{spec.max_tokens} output tokens a request; prompts: {run.prompts or 'not made'}.",
        "",
        levels_table(run.levels),
    ]
    if run.current is not None:
        now = run.current
        lines += [
            "",
            f"Under way: concurrency {now.concurrency}, {now.phase}, {now.requests_done} of "
            f"{now.requests_total} requests, {now.errors} failed.",
        ]
    if run.findings:
        lines += ["", "Findings:", *(f"- {finding}" for finding in run.findings)]
    warnings = run.warnings + [
        f"Concurrency {level.concurrency}: {warning}."
        for level in run.levels
        for warning in level.warnings
    ]
    if warnings:
        lines += ["", "Warnings:", *(f"- {warning}" for warning in warnings)]
    if run.error is not None:
        lines += ["", f"Failed: {run.error.message} {run.error.words} {run.error.cause}".rstrip()]
        lines += [f"Next: {run.error.next_action}"] if run.error.next_action else []
    few = [level for level in run.levels if level.requests < 20]
    if few:
        lines += [
            "",
            "p95 and p99 of TTFT, TPOT and E2E rest on few requests: "
            + ", ".join(f"{level.requests} at {level.concurrency}" for level in few)
            + ".",
        ]
    return "\n".join(lines) + "\n"


def levels_table(levels: Sequence[LevelResult]) -> str:
    """Return the levels as a Markdown table, latencies as p50 / p95 in milliseconds."""
    if not levels:
        return "No level has been measured."
    priced = any(level.usd_per_million_output_tokens is not None for level in levels)
    head = [
        "concurrency",
        "requests",
        "errors",
        "req/s",
        "output tok/s",
        "TTFT ms p50 / p95",
        "ITL ms p50 / p95",
        "TPOT ms p50 / p95",
        "E2E ms p50 / p95",
    ]
    head += ["USD / M tokens"] if priced else []
    head += ["valid"]
    rows = []
    for level in levels:
        row = [
            str(level.concurrency),
            str(level.requests),
            str(level.errors),
            _number(level.requests_per_s, 2),
            _number(level.output_tokens_per_s, 1),
            _pair(level.ttft_ms),
            _pair(level.itl_ms),
            _pair(level.tpot_ms),
            _pair(level.e2e_ms),
        ]
        row += [_number(level.usd_per_million_output_tokens, 2)] if priced else []
        row += ["yes" if level.valid else "no"]
        rows.append(row)
    return _table(head, rows)


def compare(runs: Sequence[BenchmarkRun]) -> Comparison:
    """Set runs side by side and say who wins at what.

    Only valid levels speak. Each verdict compares the same thing for all: highest throughput at
    any level, lowest cost at any level, and TTFT and per-stream speed at the lowest concurrency
    they have in common.
    """
    names = run_names(runs)
    valid = {run.id: [level for level in run.levels if level.valid] for run in runs}
    levels = [{level.concurrency for level in valid[run.id]} for run in runs]
    common = sorted(set.intersection(*levels)) if levels else []
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
        verdicts += [
            _verdict(
                f"Lowest TTFT (p50) at concurrency {at}",
                runs,
                lambda run: _at(run, at).ttft_ms.p50,
                "ms",
                highest=False,
            ),
            _verdict(
                f"Fastest single stream (TPOT p50) at concurrency {at}",
                runs,
                lambda run: _at(run, at).tpot_ms.p50,
                "ms",
                highest=False,
            ),
        ]
    return Comparison(
        runs=[_compared(run, names[run.id]) for run in runs],
        common_levels=common,
        verdicts=[verdict for verdict in verdicts if verdict],
        cautions=_cautions(runs, common),
    )


def comparison_markdown(runs: Sequence[BenchmarkRun]) -> str:
    """Return several runs as one table, throughput at common levels, verdicts and cautions."""
    compared = compare(runs)
    head = [
        "run",
        "model",
        "best tok/s",
        "at concurrency",
        "TTFT p50 ms",
        "ITL p50 ms",
        "USD / M tokens",
        "stops rising at",
    ]
    rows = [
        [
            f"{run.label} ({'simulated' if run.simulated else 'measured'})",
            run.model,
            _number(run.output_tokens_per_s, 1),
            _number(run.best_concurrency, 0),
            _number(run.ttft_p50_ms, 1),
            _number(run.itl_p50_ms, 1),
            _number(run.usd_per_million_output_tokens, 2),
            _number(run.plateau_concurrency, 0),
        ]
        for run in compared.runs
    ]
    lines = ["## Comparison", "", _table(head, rows)]
    if compared.common_levels:
        names = [run_names(runs)[run.id] for run in runs]
        by_level = [
            [str(at), *(_number(_at(run, at).output_tokens_per_s, 1) for run in runs)]
            for at in compared.common_levels
        ]
        lines += ["", "Output tokens/s at the same concurrency:", ""]
        lines += [_table(["concurrency", *names], by_level)]
    if compared.verdicts:
        lines += ["", *(f"- {verdict}" for verdict in compared.verdicts)]
    if compared.cautions:
        lines += ["", "Mind:", *(f"- {caution}" for caution in compared.cautions)]
    return "\n".join(lines) + "\n"


def _compared(run: BenchmarkRun, name: str) -> ComparedRun:
    best = best_level(run)
    knee = plateau([level for level in run.levels if level.valid])
    return ComparedRun(
        id=run.id,
        label=name,
        model=run.endpoint.model,
        target=run.spec.target,
        simulated=run.simulated,
        best_concurrency=best.concurrency if best else None,
        output_tokens_per_s=best.output_tokens_per_s if best else None,
        ttft_p50_ms=best.ttft_ms.p50 if best else None,
        itl_p50_ms=best.itl_ms.p50 if best else None,
        usd_per_million_output_tokens=best.usd_per_million_output_tokens if best else None,
        plateau_concurrency=knee.concurrency if knee else None,
    )


def _best(
    run: BenchmarkRun, figure: Callable[[LevelResult], float | None], *, highest: bool
) -> float | None:
    figures = [value for level in run.levels if level.valid and (value := figure(level))]
    if not figures:
        return None
    return max(figures) if highest else min(figures)


def _at(run: BenchmarkRun, concurrency: int) -> LevelResult:
    return next(level for level in run.levels if level.concurrency == concurrency and level.valid)


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
        return (
            f"{what}: {winner} and {runner_up} are equal within 5 % ({_number(first, 2)} {unit})."
        )
    return (
        f"{what}: {winner} with {_number(first, 2)} {unit}, {ratio:.1f} times as good as "
        f"{runner_up} ({_number(second, 2)})."
    )


def _cautions(runs: Sequence[BenchmarkRun], common: Sequence[int]) -> list[str]:
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
    for run in runs:
        bad = [str(level.concurrency) for level in run.levels if not level.valid]
        if bad:
            out.append(
                f"{names[run.id]}: concurrency {', '.join(bad)} is not valid and is left out"
            )
        if run.state != "completed":
            out.append(f"{names[run.id]} is {run.state}")
    return out


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _pair(figures: Distribution) -> str:
    return f"{_number(figures.p50, 1)} / {_number(figures.p95, 1)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])

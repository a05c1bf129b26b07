"""Renders one run as Markdown: what was measured, in tables, with findings and warnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backends.serving.findings import capital
from backends.serving.repeats import representatives
from backends.serving.runs import BenchmarkRun, BesideServer, GridCell, LevelResult, Spread
from backends.serving.stats import Distribution
from backends.serving.tables import kind_of, load_cell, number, table

FEW_REQUESTS = 20
MOST_WARNINGS = 12


def run_markdown(run: BenchmarkRun) -> str:
    """Return one run: what was measured, the tables, findings, warnings."""
    where = run.endpoint.source or run.endpoint.base_url
    spec = run.spec
    lines = [
        f"## Benchmark {run.label} ({kind_of(run)})",
        "",
        f"{run.endpoint.model} at {where}, {run.created_at}, state {run.state}"
        + (f" ({run.state_reason})" if run.state_reason else "")
        + f". Id {run.id}.",
        f"{spec.max_tokens} output tokens a request; prompts: {run.prompts or 'not made'}.",
        "",
        levels_table(run.levels),
    ]
    if run.grid:
        lines += ["", "Output tokens/s by context and load:", "", grid_table(run)]
    if run.repeated:
        lines += ["", "Repetitions, mean (lowest to highest):", "", repeated_table(run)]
    if any(level.beside_server for level in run.levels):
        lines += ["", "Beside the engine's own figures:", "", beside_table(run.levels)]
    if any(level.nodes for level in run.levels):
        lines += ["", "Client nodes:", "", nodes_table(run.levels)]
    if run.current is not None:
        now = run.current
        load = f"concurrency {now.concurrency}"
        if now.request_rate is not None:
            load = f"{now.request_rate:g} requests/s"
        lines += [
            "",
            f"Under way: {load}, {now.phase}, {now.requests_done} of {now.requests_total} "
            f"requests, {now.errors} failed.",
        ]
    if run.findings:
        lines += ["", "Findings:", *(f"- {finding}" for finding in run.findings)]
    warnings = all_warnings(run)
    if warnings:
        lines += ["", "Warnings:", *(f"- {warning}" for warning in warnings[:MOST_WARNINGS])]
        more = len(warnings) - MOST_WARNINGS
        lines += [f"- ... and {more} more, in the levels' own warnings."] if more > 0 else []
    if run.error is not None:
        lines += ["", f"Failed: {run.error.message} {run.error.words} {run.error.cause}".rstrip()]
        lines += [f"Next: {run.error.next_action}"] if run.error.next_action else []
    few = [level for level in representatives(run.levels) if level.requests < FEW_REQUESTS]
    if few:
        lines += [
            "",
            "p95 and p99 of TTFT, TPOT and E2E rest on few requests: "
            + ", ".join(f"{level.requests} at {load_cell(level)}" for level in few)
            + ".",
        ]
    return "\n".join(lines) + "\n"


def nodes_table(levels: Sequence[LevelResult]) -> str:
    """Return what each node of the client had of each level, and what it says of itself."""
    head = ("load", "node", "requests", "events", "lag p99 ms", "CPU", "waited", "clock ± ms")
    rows = [
        (
            load_cell(level),
            node.node,
            str(node.requests),
            str(node.events),
            number(node.loop_lag_p99_ms, 2),
            _share(node.cpu_share),
            _share(node.run_delay_share),
            number(node.clock_error_ms, 2),
        )
        for level in levels
        for node in level.nodes
    ]
    return table(head, rows)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def all_warnings(run: BenchmarkRun) -> list[str]:
    """Return the run's own warnings and those of its levels, each with its level."""
    found = [
        f"{capital(level.load_words)}: {warning}."
        for level in run.levels
        for warning in level.warnings
    ]
    return list(dict.fromkeys(run.warnings + found))


def levels_table(levels: Sequence[LevelResult]) -> str:
    """Return the levels as a Markdown table, latencies as p50 / p95 in milliseconds.

    Columns that no level fills are left out.
    """
    if not levels:
        return "No level has been measured."
    rates = all(level.request_rate is not None for level in levels)
    columns: list[tuple[str, Callable[[LevelResult], str]]] = [
        ("rate" if rates else "concurrency", load_cell)
    ]
    if any(level.repetition > 1 for level in levels):
        columns.append(("repetition", lambda lv: str(lv.repetition)))
    columns += [
        ("requests", lambda lv: str(lv.requests)),
        ("errors", lambda lv: str(lv.errors)),
        ("req/s", lambda lv: number(lv.requests_per_s, 2)),
        ("output tok/s", lambda lv: number(lv.output_tokens_per_s, 1)),
    ]
    if any(level.steady for level in levels):
        columns.append(
            (
                "steady tok/s",
                lambda lv: number(lv.steady.output_tokens_per_s if lv.steady else None, 1),
            )
        )
    columns += [
        ("TTFT ms p50 / p95", lambda lv: _pair(lv.ttft_ms)),
        ("ITL ms p50 / p95", lambda lv: _pair(lv.itl_ms)),
        ("TPOT ms p50 / p95", lambda lv: _pair(lv.tpot_ms)),
        ("E2E ms p50 / p95", lambda lv: _pair(lv.e2e_ms)),
    ]
    if any(level.meets_slo is not None for level in levels):
        columns.append(("goodput req/s", lambda lv: number(lv.goodput_requests_per_s, 2)))
        columns.append(("meets SLO", lambda lv: _yes(lv.meets_slo)))
    if any(level.efficiency for level in levels):
        columns.append(
            (
                "of bandwidth bound",
                lambda lv: f"{lv.efficiency.share_of_bound:.0%}" if lv.efficiency else "-",
            )
        )
    if any(level.usd_per_million_output_tokens is not None for level in levels):
        columns.append(("USD / M tokens", lambda lv: number(lv.usd_per_million_output_tokens, 2)))
    columns.append(("valid", lambda lv: _yes(lv.valid)))
    rows = [[cell(level) for _, cell in columns] for level in levels]
    return table([title for title, _ in columns], rows)


def grid_table(run: BenchmarkRun) -> str:
    """Return a grid as contexts by loads: throughput, or why there is none."""
    found = {(cell.context_tokens, _grid_load(cell)): cell for cell in run.grid}
    loads = list(dict.fromkeys(_grid_load(cell) for cell in run.grid))
    contexts = list(dict.fromkeys(cell.context_tokens for cell in run.grid))
    rows = [
        [str(context), *(_grid_words(found[context, load]) for load in loads)]
        for context in contexts
    ]
    return table(["prompt tokens", *loads], rows)


def _grid_load(cell: GridCell) -> str:
    return f"c{cell.concurrency}" if cell.request_rate is None else f"{cell.request_rate:g}/s"


def _grid_words(cell: GridCell) -> str:
    if cell.status != "ok":
        return cell.status
    return number(cell.output_tokens_per_s, 1) + ("" if cell.valid else " (not valid)")


def repeated_table(run: BenchmarkRun) -> str:
    """Return the spread of every load that was measured more than once."""
    head = ["load", "valid", "output tok/s", "TTFT p50 ms", "ITL p50 ms", "E2E p50 ms"]
    rows = []
    for group in run.repeated:
        load = f"concurrency {group.concurrency}"
        if group.request_rate is not None:
            load = f"{group.request_rate:g} requests/s"
        if group.context_tokens is not None:
            load += f" x {group.context_tokens}"
        figures = (group.output_tokens_per_s, group.ttft_ms_p50, group.itl_ms_p50)
        rows.append(
            [
                load,
                f"{group.valid} of {group.repetitions}",
                *(_spread(figure) for figure in (*figures, group.e2e_ms_p50)),
            ]
        )
    return table(head, rows)


def _spread(figure: Spread | None) -> str:
    if figure is None:
        return "-"
    return f"{figure.mean:.1f} ({figure.min:.1f} to {figure.max:.1f})"


def beside_table(levels: Sequence[LevelResult]) -> str:
    """Return the client's figures beside the engine's, means, with what lies between."""
    figures = ("ttft", "itl", "e2e", "output tokens/s")
    rows = []
    for level in representatives(levels):
        found = {str(row.figure): row for row in level.beside_server}
        if not found:
            continue
        between = dict.fromkeys(place for row in level.beside_server for place in row.where)
        rows.append(
            [
                load_cell(level),
                *(_both(found.get(figure)) for figure in figures),
                ", ".join(between) or "agree",
            ]
        )
    head = [f"{figure.upper()} ms" for figure in figures[:3]]
    return table(["client / engine at", *head, "output tok/s", "what lies between"], rows)


def _both(row: BesideServer | None) -> str:
    return "-" if row is None else f"{row.client:.1f} / {row.server:.1f}"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _pair(figures: Distribution) -> str:
    return f"{number(figures.p50, 1)} / {number(figures.p95, 1)}"

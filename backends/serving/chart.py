"""Draws runs: throughput and latency over load, a grid's heat map, several runs side by side.

Levels that are not valid are drawn hollow and left out of the lines; a simulated run says so in
its title and across the picture. Pictures are PNG, or SVG for reports.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from backends.serving.comparison import run_names
from backends.serving.repeats import contexts, grouped, representatives
from backends.serving.runs import BenchmarkRun, GridCell, LevelResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Figure = Callable[[LevelResult], "float | None"]
Format = Literal["png", "svg"]

DPI = 110
# Okabe and Ito's palette: told apart by colour-blind readers too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SLO_COLOUR = "#B00020"
MOST_TICKS = 12
LABEL_WIDTH = 0.12
"""Of the axis, that a written value takes."""


def run_chart(run: BenchmarkRun, form: Format = "png") -> bytes:
    """Return a picture of one run.

    Throughput, TTFT and ITL (p50 and p95) over the load, with the objective's lines and the knee;
    repetitions as bars from the lowest to the highest. Of a grid: heat maps of throughput and TTFT.
    A run without figures gives empty panels that say so.
    """
    if run.grid:
        return _picture(_grid_figure(run), form)
    figure, axes = _canvas(
        _short(run.label, 70),
        _subtitle(run),
        simulated=run.simulated,
        load=_load_words([run]),
    )
    throughput, ttft, itl = axes
    _draw(throughput, run, lambda lv: lv.output_tokens_per_s, "output tokens/s", 0, annotate=True)
    _draw(ttft, run, lambda lv: lv.ttft_ms.p50, "p50", 0)
    _draw(ttft, run, lambda lv: lv.ttft_ms.p95, "p95", 1, dashed=True)
    _draw(itl, run, lambda lv: lv.itl_ms.p50, "p50", 0)
    _draw(itl, run, lambda lv: lv.itl_ms.p95, "p95", 1, dashed=True)
    _finish(axes, [run])
    if any(lv.output_tokens_per_s for lv in run.levels):
        _draw_objective(run, ttft, "ttft")
        _draw_objective(run, itl, "itl")
        _draw_knee(run, axes)
        for ax in (ttft, itl):
            ax.legend(loc="best", frameon=True, fontsize=9)
        if len(throughput.get_legend_handles_labels()[0]) > 1:
            throughput.legend(loc="lower right", frameon=True, fontsize=9)
    return _picture(figure, form)


def comparison_chart(runs: Sequence[BenchmarkRun], form: Format = "png") -> bytes:
    """Return a picture of several runs: throughput, TTFT p50 and ITL p50 over the load.

    Runs without figures are left out; of a grid each context is a line.
    """
    simulated = all(run.simulated for run in runs)
    figure, axes = _canvas(
        "Comparison of benchmarks",
        "TTFT and ITL are p50",
        simulated=simulated,
        load=_load_words(runs),
    )
    names = run_names(runs)
    style = 0
    for run in runs:
        name = _short(names[run.id], 60) + (" (simulated)" if run.simulated else "")
        for context in contexts(run.levels):
            part = [level for level in run.levels if level.context_tokens == context]
            label = name if context is None else f"{name}, {context} tokens"
            throughput, ttft, itl = axes
            _draw(throughput, run, lambda lv: lv.output_tokens_per_s, label, style, levels=part)
            _draw(ttft, run, lambda lv: lv.ttft_ms.p50, label, style, levels=part)
            _draw(itl, run, lambda lv: lv.itl_ms.p50, label, style, levels=part)
            style += 1
    _finish(axes, runs)
    if not axes[0].lines:
        return _picture(figure, form)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, style), fontsize=9)
    return _picture(figure, form)


def _subtitle(run: BenchmarkRun) -> str:
    said = (
        f"{run.endpoint.model}, {run.spec.max_tokens} output tokens a request, "
        f"{run.created_at[:16].replace('T', ' ')} UTC"
    )
    bounds = " and ".join(map(str, run.spec.bounds))
    return _short(f"{said}, SLO {bounds}" if bounds else said, 150)


def _load_words(runs: Sequence[BenchmarkRun]) -> str:
    rates = {level.request_rate is not None for run in runs for level in run.levels}
    if rates == {True}:
        return "load (requests/s sent)"
    return (
        "load (requests in flight, or requests/s)"
        if len(rates) > 1
        else ("concurrency (requests in flight)")
    )


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _title(figure: Figure, title: str, subtitle: str, *, simulated: bool) -> None:
    suffix = " (simulated)" if simulated and "simulated" not in title.lower() else ""
    figure.suptitle(f"{title}{suffix}\n{subtitle}", fontsize=11)


def _canvas(title: str, subtitle: str, *, simulated: bool, load: str) -> tuple[Figure, list[Axes]]:
    figure = _new_figure(13, 4.8)
    _title(figure, title, subtitle, simulated=simulated)
    axes = list(figure.subplots(1, 3))
    for ax, name, unit in zip(
        axes,
        ("Throughput", "Time to first token (TTFT)", "Inter-token latency (ITL)"),
        ("output tokens/s", "ms", "ms"),
        strict=True,
    ):
        ax.set_title(name, fontsize=11)
        ax.set_xlabel(load)
        ax.set_ylabel(unit)
        ax.grid(visible=True, alpha=0.3)
        if simulated:
            _watermark(ax)
    return figure, axes


def _watermark(ax: Axes, *, above: bool = False) -> None:
    ax.text(
        0.5,
        0.5,
        "SIMULATED",
        transform=ax.transAxes,
        ha="center",
        va="center",
        fontsize=30,
        color="grey",
        alpha=0.15,
        rotation=25,
        zorder=5 if above else 0,
    )


def _draw(
    ax: Axes,
    run: BenchmarkRun,
    figure: _Figure,
    name: str,
    style: int,
    *,
    levels: Sequence[LevelResult] | None = None,
    dashed: bool = False,
    annotate: bool = False,
) -> None:
    colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
    shown = run.levels if levels is None else levels
    points = [(lv.load, value, lv.valid) for lv in representatives(shown) if (value := figure(lv))]
    valid = [(x, y) for x, y, ok in points if ok]
    ax.plot(
        [x for x, _ in valid],
        [y for _, y in valid],
        color=colour,
        marker=marker,
        linestyle="--" if dashed else "-",
        markersize=5 if dashed else 7,
        zorder=2 if dashed else 3,
        label=name,
    )
    _draw_spread(ax, shown, figure, colour)
    doubtful = [(x, y) for x, y, ok in points if not ok]
    if doubtful:
        ax.plot(
            [x for x, _ in doubtful],
            [y for _, y in doubtful],
            color=colour,
            marker=marker,
            linestyle="none",
            markerfacecolor="white",
            label=f"{name}, not valid",
        )
    if annotate:
        _annotate(ax, [(x, y) for x, y, _ in points])


def _draw_spread(ax: Axes, levels: Sequence[LevelResult], figure: _Figure, colour: str) -> None:
    """Draw repetitions as bars from the lowest to the highest."""
    for group in grouped(level for level in levels if level.valid).values():
        values = [value for level in group if (value := figure(level))]
        if len(values) > 1:
            load, low, high = group[0].load, min(values), max(values)
            middle = [(low + high) / 2]
            half = [(high - low) / 2]
            ax.errorbar([load], middle, yerr=half, color=colour, capsize=4, fmt="none", zorder=4)


def _annotate(ax: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Write the values, the highest first, leaving out those that would touch one written."""
    if not points:
        return
    span = math.log2(max(2.0, points[-1][0] / points[0][0]))
    written: list[float] = []
    for x, y in sorted(points, key=lambda point: -point[1]):
        place = math.log2(x / points[0][0]) / span
        if any(abs(place - other) < LABEL_WIDTH for other in written):
            continue
        written.append(place)
        ax.annotate(
            f"{y:,.0f}" if y >= 100 else f"{y:.1f}",
            (x, y),
            textcoords="offset points",
            xytext=(-3, 8),
            ha="center",
            fontsize=9,
            bbox={"boxstyle": "square,pad=0.1", "color": "white", "alpha": 0.7},
        )


def _draw_objective(run: BenchmarkRun, ax: Axes, figure: str) -> None:
    """Draw the limits of the objective across their panel, which they must fit into."""
    for bound in run.spec.bounds:
        if bound.figure != figure:
            continue
        ax.axhline(
            bound.limit_ms,
            color=SLO_COLOUR,
            linestyle=":",
            linewidth=1.8,
            label=f"SLO {bound.statistic} {bound.limit_ms:g} ms",
        )
        ax.set_ylim(0, max(ax.get_ylim()[1], bound.limit_ms * 1.12))


def _draw_knee(run: BenchmarkRun, axes: Sequence[Axes]) -> None:
    if run.knee is None or run.knee.load is None:
        return
    for index, ax in enumerate(axes):
        ax.axvline(
            run.knee.load,
            color=SLO_COLOUR,
            alpha=0.5,
            linewidth=1.2,
            label=f"knee {run.knee.load:.3g}" if index == 0 else None,
        )


def _finish(axes: Sequence[Axes], runs: Sequence[BenchmarkRun]) -> None:
    """Give every panel the same loads as ticks and an axis that begins at 0."""
    loads = sorted(
        {level.load for run in runs for level in run.levels if level.output_tokens_per_s}
    )
    if not loads:
        for ax in axes:
            ax.text(0.5, 0.5, "no figures", transform=ax.transAxes, ha="center", color="grey")
        return
    wide = len(loads) > 1 and loads[-1] >= 3 * loads[0]
    ticks = _ticks(loads, wide=wide)
    for ax in axes:
        if wide:
            ax.set_xscale("log", base=2)
            ax.set_xlim(loads[0] / 1.3, loads[-1] * 1.3)
        ax.set_xticks(ticks, [f"{load:.3g}" for load in ticks])
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.margins(y=0.15)
        ax.set_ylim(0, ax.get_ylim()[1] * 1.08)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)


def _ticks(loads: Sequence[float], *, wide: bool) -> list[float]:
    """Return the loads that can be written on the axis without touching each other."""
    whole = loads[-1] / loads[0] if wide else max(loads[-1] - loads[0], 1e-9)
    kept: list[float] = []
    for load in loads:
        if kept and wide and load / kept[-1] < max(1.15, whole ** (1 / MOST_TICKS)):
            continue
        if kept and not wide and load - kept[-1] < whole / MOST_TICKS:
            continue
        kept.append(load)
    return kept


def _grid_figure(run: BenchmarkRun) -> Figure:
    """Heat maps of a grid: what could not be run is hatched, what failed is crossed."""
    rows = sorted({cell.context_tokens for cell in run.grid})
    columns = sorted({_cell_load(cell) for cell in run.grid})
    figure = _new_figure(max(9.0, 3.5 + 1.7 * len(columns)), max(4.0, 2.2 + 0.62 * len(rows)))
    _title(
        figure,
        _short(run.label, 70),
        _subtitle(run),
        simulated=run.simulated,
    )
    left, right = figure.subplots(1, 2)
    where = {(cell.context_tokens, _cell_load(cell)): cell for cell in run.grid}
    _heat(
        left,
        rows,
        columns,
        where,
        lambda cell: cell.output_tokens_per_s,
        "Throughput, output tokens/s",
        "viridis",
    )
    _heat(right, rows, columns, where, lambda cell: cell.ttft_ms_p50, "TTFT p50, ms", "YlOrRd")
    rates = any(cell.request_rate is not None for cell in run.grid)
    for ax in (left, right):
        ax.set_xlabel("load (requests/s sent)" if rates else "concurrency (requests in flight)")
        if run.simulated:
            _watermark(ax, above=True)
    left.set_ylabel("prompt tokens")
    return figure


def _cell_load(cell: GridCell) -> float:
    return float(cell.concurrency) if cell.request_rate is None else cell.request_rate


def _heat(
    ax: Axes,
    rows: Sequence[int],
    columns: Sequence[float],
    cells: dict[tuple[int, float], GridCell],
    figure: Callable[[GridCell], float | None],
    title: str,
    colours: str,
) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    values = [value for cell in cells.values() if (value := figure(cell)) is not None]
    scale = Normalize(0, max(values, default=1.0))
    palette = colormaps[colours]
    for y, context in enumerate(rows):
        for x, load in enumerate(columns):
            cell = cells.get((context, load))
            if cell is None:
                continue
            value = figure(cell) if cell.status == "ok" else None
            looks: dict[str, Any] = {"facecolor": "#eeeeee", "edgecolor": "white", "linewidth": 1.5}
            text, ink = _grid_text(cell), "#444444"
            if value is not None:
                red, green, blue, _ = palette(scale(value))
                looks["facecolor"] = (red, green, blue)
                dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
                ink = "white" if dark else "black"
                text = f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
                text += "" if cell.valid else "\n(not valid)"
            elif cell.status == "infeasible":
                looks |= {"hatch": "////", "edgecolor": "#bbbbbb"}
            ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **looks))
            ax.text(x, y, text, ha="center", va="center", fontsize=9, color=ink)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(-0.5, len(rows) - 0.5)
    ax.set_xticks(range(len(columns)), [f"{load:g}" for load in columns])
    ax.set_yticks(range(len(rows)), [f"{context:,}" for context in rows])
    ax.set_title(title, fontsize=11)
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)


def _grid_text(cell: GridCell) -> str:
    return {"infeasible": "does not fit", "failed": "failed", "not run": "not run"}.get(
        cell.status, "-"
    )


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _picture(figure: Figure, form: Format) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format=form)
    return out.getvalue()

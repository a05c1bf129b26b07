"""Draws runs as PNG: throughput and latency over concurrency, for one run or several.

Levels that are not valid are drawn hollow and left out of the lines; a simulated run says so in
its title and across the picture.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from backends.serving.comparison import run_names
from backends.serving.runs import BenchmarkRun, LevelResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Figure = Callable[[LevelResult], "float | None"]

DPI = 110
# Okabe and Ito's palette: told apart by colour-blind readers too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def run_chart(run: BenchmarkRun) -> bytes:
    """Return a PNG of one run: throughput, TTFT and ITL (p50 and p95) over concurrency.

    A run without figures gives empty panels that say so.
    """
    figure, axes = _canvas(
        _short(run.label, 70),
        f"{run.endpoint.model}, {run.spec.max_tokens} output tokens a request, "
        f"{run.created_at[:16].replace('T', ' ')} UTC",
        simulated=run.simulated,
    )
    throughput, ttft, itl = axes
    _draw(throughput, run, lambda lv: lv.output_tokens_per_s, "output tokens/s", 0, annotate=True)
    _draw(ttft, run, lambda lv: lv.ttft_ms.p50, "p50", 0)
    _draw(ttft, run, lambda lv: lv.ttft_ms.p95, "p95", 1, dashed=True)
    _draw(itl, run, lambda lv: lv.itl_ms.p50, "p50", 0)
    _draw(itl, run, lambda lv: lv.itl_ms.p95, "p95", 1, dashed=True)
    _finish(axes, [run])
    for ax in (ttft, itl) if any(lv.output_tokens_per_s for lv in run.levels) else ():
        ax.legend(loc="best", frameon=True, fontsize=9)
    return _png(figure)


def comparison_chart(runs: Sequence[BenchmarkRun]) -> bytes:
    """Return a PNG of several runs: throughput, TTFT p50 and ITL p50 over concurrency.

    Runs without figures are left out.
    """
    simulated = all(run.simulated for run in runs)
    figure, axes = _canvas("Comparison of benchmarks", "TTFT and ITL are p50", simulated=simulated)
    names = run_names(runs)
    for index, run in enumerate(runs):
        name = _short(names[run.id], 60) + (" (simulated)" if run.simulated else "")
        throughput, ttft, itl = axes
        _draw(throughput, run, lambda lv: lv.output_tokens_per_s, name, index)
        _draw(ttft, run, lambda lv: lv.ttft_ms.p50, name, index)
        _draw(itl, run, lambda lv: lv.itl_ms.p50, name, index)
    _finish(axes, runs)
    if not axes[0].lines:
        return _png(figure)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(runs)), fontsize=9)
    return _png(figure)


def _canvas(title: str, subtitle: str, *, simulated: bool) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.8), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    suffix = " (simulated)" if simulated and "simulated" not in title.lower() else ""
    figure.suptitle(f"{title}{suffix}\n{subtitle}", fontsize=11)
    axes = list(figure.subplots(1, 3))
    for ax, name, unit in zip(
        axes,
        ("Throughput", "Time to first token (TTFT)", "Inter-token latency (ITL)"),
        ("output tokens/s", "ms", "ms"),
        strict=True,
    ):
        ax.set_title(name, fontsize=11)
        ax.set_xlabel("concurrency (requests in flight)")
        ax.set_ylabel(unit)
        ax.grid(visible=True, alpha=0.3)
        if simulated:
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
                zorder=0,
            )
    return figure, axes


def _draw(
    ax: Axes,
    run: BenchmarkRun,
    figure: _Figure,
    name: str,
    style: int,
    *,
    dashed: bool = False,
    annotate: bool = False,
) -> None:
    colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
    ordered = sorted(run.levels, key=lambda level: level.concurrency)
    points = [(lv.concurrency, value, lv.valid) for lv in ordered if (value := figure(lv))]
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
        for x, y, _ in points:
            ax.annotate(
                f"{y:,.0f}" if y >= 100 else f"{y:.1f}",
                (x, y),
                textcoords="offset points",
                xytext=(-3, 8),
                ha="center",
                fontsize=9,
                bbox={"boxstyle": "square,pad=0.1", "color": "white", "alpha": 0.7},
            )


def _finish(axes: Sequence[Axes], runs: Sequence[BenchmarkRun]) -> None:
    """Give every panel the same levels as ticks and an axis that begins at 0."""
    levels = sorted(
        {level.concurrency for run in runs for level in run.levels if level.output_tokens_per_s}
    )
    if not levels:
        for ax in axes:
            ax.text(0.5, 0.5, "no figures", transform=ax.transAxes, ha="center", color="grey")
        return
    for ax in axes:
        if len(levels) > 1:
            ax.set_xscale("log", base=2)
            ax.set_xlim(levels[0] / 1.3, levels[-1] * 1.3)
        ax.set_xticks(levels, [str(level) for level in levels])
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.margins(y=0.15)
        ax.set_ylim(0, ax.get_ylim()[1] * 1.08)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()

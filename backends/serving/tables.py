"""Small words and tables that every report shares."""

from __future__ import annotations

from collections.abc import Sequence

from backends.serving.runs import BenchmarkRun, LevelResult


def kind_of(run: BenchmarkRun) -> str:
    """Return measured or simulated, and who measured if it was not us."""
    kind = "simulated" if run.simulated else "measured"
    return f"{kind} by {run.environment.engine}" if run.imported_from else kind


def load_cell(level: LevelResult) -> str:
    """Return a level's load as a table shows it."""
    load = str(level.concurrency) if level.request_rate is None else f"{level.request_rate:g}/s"
    return load if level.context_tokens is None else f"{load} x {level.context_tokens}"


def number(value: float | None, digits: int) -> str:
    """Return a figure with so many digits after the point, or a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])

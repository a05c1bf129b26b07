"""Writes runs in the form a file's name asks for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from backends.core.errors import DevopsError, InvalidInputError
from backends.core.state import read_json, write_text
from backends.serving.comparison import comparison_markdown
from backends.serving.report import run_markdown
from backends.serving.run_record import levels_csv
from backends.serving.runs import BenchmarkRun
from backends.serving.store import parsed_run

FORMS = (".html", ".md", ".png", ".svg", ".csv")


def write_report(runs: Sequence[BenchmarkRun], path: Path) -> None:
    """Write one run, or the comparison of several, as HTML, Markdown, picture or table.

    Args:
        runs: One or more.
        path: Where; its ending says the form.

    Raises:
        InvalidInputError: The ending is none of `FORMS`, or the form cannot hold several runs.
    """
    kind, first = path.suffix.lower(), runs[0]
    check_form(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".csv":
        if len(runs) > 1:
            raise InvalidInputError("report", "of several runs cannot be CSV.")
        write_text(path, levels_csv(first))
    elif kind == ".md":
        write_text(path, run_markdown(first) if len(runs) == 1 else comparison_markdown(runs))
    elif kind == ".html":
        from backends.serving.html_report import comparison_html, run_html

        write_text(path, run_html(first) if len(runs) == 1 else comparison_html(runs))
    else:
        from backends.serving.chart import Format, comparison_chart, run_chart

        form: Format = "png" if kind == ".png" else "svg"
        drawn = run_chart(first, form) if len(runs) == 1 else comparison_chart(runs, form)
        path.write_bytes(drawn)


def check_form(path: Path) -> None:
    """Refuse a file name whose ending says no form, before anything is measured for it.

    Raises:
        InvalidInputError: The ending is none of `FORMS`.
    """
    if path.suffix.lower() not in FORMS:
        raise InvalidInputError("report", "ends in no known form.", allowed=", ".join(FORMS))


def write_vllm_bench(run: BenchmarkRun, folder: Path) -> list[Path]:
    """Write every level as `vllm bench serve --save-result` would have; returns the files."""
    from backends.serving.cells import Cell
    from backends.serving.vllm_bench_json import export_vllm_bench

    folder.mkdir(parents=True, exist_ok=True)
    out: list[Path] = []
    for level in run.levels:
        cell = Cell(level.concurrency, level.request_rate, level.context_tokens, level.repetition)
        path = folder / f"{run.id}-{cell.name}.json"
        write_text(path, json.dumps(export_vllm_bench(run, level), indent=1))
        out.append(path)
    return out


def read_run(path: Path) -> BenchmarkRun:
    """Read a run that we wrote.

    Raises:
        InvalidInputError: There is no such file.
        DevopsError: It is no run, or a newer one.
    """
    try:
        found = read_json(path)
    except UnicodeDecodeError:
        raise DevopsError(f"{path} is not a benchmark of ours.") from None
    if found is None:
        raise InvalidInputError("compare", f"names no file: {path}.")
    return parsed_run(found, path)

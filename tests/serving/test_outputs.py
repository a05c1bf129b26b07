"""Runs in the forms people read: tables, pictures and a page that needs nothing else."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from backends.core.errors import ConflictError, DevopsError, InvalidInputError
from backends.serving import format_doc
from backends.serving.chart import comparison_chart, run_chart
from backends.serving.comparison import compare, comparison_markdown
from backends.serving.findings import findings
from backends.serving.html_report import comparison_html, run_html
from backends.serving.outputs import read_run, write_report
from backends.serving.repeats import repeated
from backends.serving.report import run_markdown
from backends.serving.runs import BenchmarkRun, BenchmarkSpec, GridCell, KneeResult, KneeStep
from backends.serving.store import BenchmarkStore
from tests.serving.made_runs import rated, run_of
from tests.serving.mock_servers import RECORDED

ROOT = Path(__file__).resolve().parents[2]


def searched() -> BenchmarkRun:
    spec = BenchmarkSpec(mode="knee", slo=["ttft_p95<=200"], max_tokens=100)
    levels = [rated(1, 50.0), rated(4, 190.0), rated(8, 195.0, ttft_ms=900.0)]
    run = run_of(levels, label="searched <b>", spec=spec)
    run.knee = KneeResult(
        kind="concurrency",
        slo=["TTFT p95 <= 200 ms"],
        load=4,
        first_miss=8,
        searched_from=1,
        searched_to=64,
        settled=True,
        steps=[
            KneeStep(load=8, meets=False, misses=["TTFT p95 <= 200 ms: was 900 ms"], valid=True)
        ],
    )
    run.findings = findings(run)
    return run


def gridded() -> BenchmarkRun:
    spec = BenchmarkSpec(mode="grid", contexts=[64, 4096], levels=[1, 8], max_tokens=100)
    levels = [rated(1, 50.0), rated(8, 300.0)]
    for level in levels:
        level.context_tokens = 64
    run = run_of(levels, spec=spec, label="gridded", run_id="bench-g")
    kinds = {(64, 1): "ok", (64, 8): "ok", (4096, 1): "failed", (4096, 8): "infeasible"}
    run.grid = [
        GridCell.model_validate(
            {
                "context_tokens": context,
                "concurrency": load,
                "status": status,
                "valid": status == "ok",
                "reason": "" if status == "ok" else "8 x 4196 = 33568 tokens of KV cache",
                "output_tokens_per_s": {1: 50.0, 8: 300.0}[load] if status == "ok" else None,
                "ttft_ms_p50": 100.0 if status == "ok" else None,
            }
        )
        for (context, load), status in kinds.items()
    ]
    run.findings = findings(run)
    return run


def repeated_run() -> BenchmarkRun:
    levels = [rated(c, c * 50.0 + n) for c in (1, 2, 4) for n in (0, 4, 8)]
    for index, level in enumerate(levels):
        level.repetition = index % 3 + 1
    run = run_of(levels, label="repeated", run_id="bench-r")
    run.repeated = repeated(run.levels)
    run.findings = findings(run)
    return run


class Page(HTMLParser):
    """What a page loads and holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("run", [searched(), gridded(), repeated_run()], ids=lambda run: run.label)
def test_a_page_holds_everything_and_loads_nothing(run: BenchmarkRun) -> None:
    text = run_html(run)
    page = Page(text)
    assert page.sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert not re.search(r"https?://(?!127\.0\.0\.1)", re.sub(r"base64,[^\"]*", "", text))
    assert "<b>" not in text
    assert not {"script", "link", "iframe"} & set(page.tags)
    for finding in run.findings:
        assert finding in page.text
    assert page.tags.count("table") >= 1
    assert "content event" in page.text


def test_a_page_of_several_runs_holds_each_of_them() -> None:
    page = Page(comparison_html([searched(), gridded(), repeated_run()]))
    assert len(page.sources) == 4
    for name in ("searched <b>", "gridded", "repeated", "Comparison"):
        assert name in page.text


def test_a_grid_is_a_table_with_what_could_not_be_run() -> None:
    text = run_markdown(gridded())
    assert "| prompt tokens | c1 | c8 |" in text
    assert "| 64 | 50.0 | 300.0 |" in text
    assert "| 4096 | failed | infeasible |" in text
    assert (
        "At 4096 prompt tokens no cell gave figures that can be relied on; infeasible from" in text
    )


def test_repetitions_are_a_table_with_their_spread() -> None:
    text = run_markdown(repeated_run())
    assert "| concurrency 4 | 3 of 3 | 204.0 (200.0 to 208.0) |" in text
    assert "Repetitions of concurrency 1 differ by 15%" in text


def test_rates_are_named_as_rates() -> None:
    levels = [rated(1024, 50.0), rated(1024, 100.0)]
    levels[0].request_rate, levels[1].request_rate = 2.5, 5.0
    run = run_of(levels)
    text = run_markdown(run)
    assert "| rate | requests |" in text
    assert "| 2.5/s | 20 |" in text
    assert "Throughput still follows the load at 5 requests/s" in " ".join(findings(run))
    other = run_of([rated(1, 50.0)], run_id="bench-2", label="other")
    assert compare([run, other]).common_levels == []


def test_a_comparison_shows_the_knees_and_who_carries_more() -> None:
    one, two = searched(), searched().model_copy(deep=True)
    two.id, two.label = "bench-2", "other"
    assert two.knee is not None
    two.knee.load = 16
    compared = compare([one, two])
    assert [row.knee for row in compared.runs] == [4, 16]
    assert any(
        verdict.startswith("Highest load within its objective: other with 16.00")
        for verdict in compared.verdicts
    )
    two.knee.slo = ["TTFT p95 <= 900 ms"]
    assert any("different objectives" in caution for caution in compare([one, two]).cautions)
    assert "Knee of other: within TTFT p95 <= 900 ms." in comparison_markdown([one, two])


def test_pictures_differ_by_what_they_show_and_come_as_svg_too() -> None:
    runs = [searched(), gridded(), repeated_run()]
    drawn = [run_chart(run) for run in runs]
    assert len(set(drawn)) == 3
    without_knee = runs[0].model_copy(update={"knee": None})
    assert run_chart(without_knee) != drawn[0]
    without_slo = without_knee.model_copy(update={"spec": BenchmarkSpec(max_tokens=100)})
    assert run_chart(without_slo) != run_chart(without_knee)
    assert b"</svg>" in run_chart(runs[1], "svg")
    assert b"</svg>" in comparison_chart(runs, "svg")


@pytest.mark.parametrize("name", ["a.html", "a.md", "a.png", "a.svg", "a.csv"])
def test_a_report_has_the_form_its_name_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / name
    write_report([searched()], path)
    begins = {
        ".html": b"<!DOCTYPE html>",
        ".md": b"## Benchmark",
        ".png": b"\x89PNG",
        ".svg": b"<?xml",
        ".csv": b"concurrency,",
    }
    assert path.read_bytes().startswith(begins[path.suffix])
    if path.suffix == ".csv":
        with pytest.raises(InvalidInputError, match="cannot be CSV"):
            write_report([searched(), gridded()], path)
        row = next(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        assert row["steady_ttft_ms_p50"] == "100.0"
    else:
        write_report([searched(), gridded()], path)


def test_a_name_without_a_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"\.html"):
        write_report([searched()], tmp_path / "a.pdf")


def test_a_run_is_kept_beside_the_others_once(tmp_path: Path) -> None:
    store = BenchmarkStore(tmp_path)
    run = gridded()
    folder = store.save(run)
    assert read_run(folder / "run.json") == run == store.load(run.id)
    listed = store.list_runs().runs[0]
    assert (listed.mode, listed.loads) == ("grid", ["1 x 64", "8 x 64"])
    with pytest.raises(ConflictError):
        store.save(run)
    with pytest.raises(InvalidInputError, match="names no file"):
        read_run(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DevopsError, match="not a benchmark of ours"):
        read_run(tmp_path / "x.json")


# ---- the documented format -----------------------------------------------------------------------


def test_the_format_page_and_schema_are_those_of_the_code() -> None:
    assert format_doc.main(["--check"]) == 0, "run python -m backends.serving.format_doc"


# ---- the command line without measuring ----------------------------------------------------------


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backends.serving.benchmark", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "VLLM_DEVOPS_STATE_DIR": str(folder / "state")},
    )


def test_the_command_line_imports_compares_reports_and_keeps(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text(searched().model_dump_json(), encoding="utf-8")
    done = command(
        tmp_path,
        *("--import-vllm-bench", str(RECORDED / "bench" / "sweep"), "--label", "CPU"),
        *("--usd-per-hour", "0.5", "--output", str(tmp_path / "theirs.json"), "--keep"),
        *("--compare", str(mine), "--report", str(tmp_path / "r.html"), str(tmp_path / "r.png")),
    )
    assert done.returncode == 0, done.stderr
    assert "## Benchmark CPU (measured by vllm bench serve)" in done.stdout
    assert "Highest throughput: CPU with" in done.stdout
    assert (tmp_path / "r.html").exists()
    assert (tmp_path / "theirs.levels.csv").exists()
    kept = BenchmarkStore(tmp_path / "state" / "benchmarks").list_runs().runs
    assert [run.label for run in kept] == ["CPU"]
    assert kept[0].imported


def test_the_command_line_fails_an_import_without_a_success(tmp_path: Path) -> None:
    file = RECORDED / "bench" / "serve-allfail.json"
    arguments = ("--import-vllm-bench", str(file), "--output", str(tmp_path / "x.json"))
    done = command(tmp_path, *arguments)
    assert done.returncode == 1
    assert "not one request succeeded" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of --base-url, --sagemaker-endpoint, --import-vllm-bench, --compare is needed"),
        (["--base-url", "http://127.0.0.1:1", "--mode", "knee"], "mode=knee needs slo"),
        (["--base-url", "http://127.0.0.1:1", "--report", "a.pdf"], ".html"),
        (["--base-url", "http://127.0.0.1:1", "--contexts", "8,x"], "whole numbers"),
        (["--base-url", "http://127.0.0.1:1", "--slo", "fast"], "figure_statistic<=limit"),
        (["--compare", "none.json"], "names no file"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = command(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr

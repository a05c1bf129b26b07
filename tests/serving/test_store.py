"""Runs on disk: listed and loaded, whatever else lies beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.core.errors import DevopsError, InvalidInputError, NotFoundError
from backends.core.state import stamp
from backends.serving.runs import BenchmarkRun
from backends.serving.store import BenchmarkStore
from tests.serving.made_runs import rated, run_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of all runs."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    return folder


def put(root: Path, run: BenchmarkRun, **changes: object) -> None:
    folder = root / run.id
    folder.mkdir(parents=True)
    written = {**run.model_dump(mode="json"), **changes}
    (folder / "run.json").write_text(json.dumps(written), encoding="utf-8")


def test_what_was_written_is_loaded_again(root: Path) -> None:
    run = run_of([rated(1, 50.0)], run_id="bench-a")
    put(root, run)
    assert BenchmarkStore(root).load("bench-a") == run


def test_runs_are_listed_newest_first_with_their_best_level(root: Path) -> None:
    old = run_of([rated(1, 50.0)], run_id="bench-a", created_at="2026-11-01T00:00:00Z")
    levels = [
        rated(1, 50.0, usd_per_hour=1.0),
        rated(4, 180.0, usd_per_hour=1.0),
        rated(8, 182.0, usd_per_hour=1.0),
    ]
    new = run_of(levels, run_id="bench-b", created_at="2026-11-02T00:00:00Z", simulated=True)
    put(root, old)
    put(root, new)
    listing = BenchmarkStore(root).list_runs()
    assert [run.id for run in listing.runs] == ["bench-b", "bench-a"]
    assert listing.problems == []
    first = listing.runs[0]
    assert first.best_concurrency == 4, "182 for twice the wait is no better than 180"
    assert first.best_output_tokens_per_s == pytest.approx(180)
    assert first.best_usd_per_million_output_tokens == pytest.approx(1e6 / (180 * 3600))
    assert first.plateau_concurrency == 4
    assert first.simulated
    assert not first.silent


def test_a_run_that_stopped_writing_is_called_silent(root: Path) -> None:
    run = run_of([rated(1, 50.0)])
    put(root, run.model_copy(update={"id": "dead"}), state="running")
    put(root, run.model_copy(update={"id": "alive"}), state="running", updated_at=stamp())
    silent = {run.id: run.silent for run in BenchmarkStore(root).list_runs().runs}
    assert silent == {"dead": True, "alive": False}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"kind": "vllm-devops-bench', "not readable as JSON"),
        (b"[]", "does not hold a JSON object"),
        (b"\xff\xfe\x00", "decode"),
        (b'{"kind": "something else"}', "not a benchmark of ours"),
        (b'{"kind": "vllm-devops-benchmark", "schema_version": 99}', "newer than this program"),
        (b'{"kind": "vllm-devops-benchmark", "schema_version": 1}', "cannot be read"),
        (None, "has no run.json"),
    ],
)
def test_a_damaged_or_foreign_folder_is_reported_and_hides_no_run(
    root: Path, content: bytes | None, problem: str
) -> None:
    put(root, run_of([rated(1, 50.0)], run_id="good"))
    (root / "bad").mkdir()
    if content is not None:
        (root / "bad" / "run.json").write_bytes(content)
    (root / "a-file").write_text("no run", encoding="utf-8")
    (root / ".hidden").mkdir()
    listing = BenchmarkStore(root).list_runs()
    assert [run.id for run in listing.runs] == ["good"]
    assert [entry.id for entry in listing.problems] == ["bad"]
    assert problem in listing.problems[0].problem


def test_fields_of_a_newer_program_are_passed_over(root: Path) -> None:
    run = run_of([rated(1, 50.0)], run_id="newer")
    written = run.model_dump(mode="json")
    written["a_new_field"] = 1
    written["spec"]["a_new_wish"] = 2
    written["levels"][0]["a_new_figure"] = 3
    written["levels"][0]["ttft_ms"]["p999"] = 4.0
    put(root, run, **written)
    assert BenchmarkStore(root).load("newer") == run


def test_an_unknown_run_is_not_found_and_the_newest_are_named(root: Path) -> None:
    with pytest.raises(NotFoundError, match="no benchmark nope"):
        BenchmarkStore(root / "not-there").load("nope")
    put(root, run_of([rated(1, 50.0)], run_id="bench-a"))
    with pytest.raises(NotFoundError) as caught:
        BenchmarkStore(root).load("nope")
    assert "bench-a" in caught.value.cause


@pytest.mark.parametrize("run_id", ["../secrets", "a/b", "", ".hidden", "x" * 200, "a\0b"])
def test_an_id_that_would_leave_the_directory_is_refused(root: Path, run_id: str) -> None:
    with pytest.raises(InvalidInputError):
        BenchmarkStore(root).load(run_id)


def test_a_damaged_run_is_an_error_when_asked_for_by_name(root: Path) -> None:
    (root / "bad").mkdir()
    (root / "bad" / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(DevopsError, match="not readable as JSON"):
        BenchmarkStore(root).load("bad")

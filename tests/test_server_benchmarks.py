"""run_benchmark's options and get_benchmarks' answers, through the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.serving.vllm_bench_json import import_vllm_bench
from tests.serving.made_runs import rated, run_of
from tests.support.clients import FAST, connected, make_app
from tests.support.probe import ACCEPT, Probe
from tests.support.processes import end_all_under

RECORDED = Path(__file__).parent / "recorded" / "vllm" / "bench"
WHERE = {"target": "local", "name": "demo"}
QUICK = FAST | {"profile": "cloudrun-rtx6000"}


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    """A server with a fast simulated deployment."""
    root = tmp_path_factory.mktemp("benchmarks")
    env = {"VLLM_DEVOPS_STATE_DIR": str(root / "state"), "HOME": str(root)}
    with Probe(era="modern", env=env, answering=lambda _: ACCEPT) as probe:
        planned = probe.tool("plan_deployment", **WHERE, model="gemma-4-E2B-it", options=QUICK)
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        assert probe.tool("wait_until_ready", target="local").ok["state"] == "ready"
        yield probe
    end_all_under(root)


def finished(probe: Probe, **arguments: object) -> dict[str, Any]:
    """Run a benchmark to its end and return what get_benchmarks shows of it."""
    started = probe.tool("run_benchmark", **WHERE, **arguments).ok
    answer = probe.tool("get_operation", operation_id=started["operation_id"], wait_s=40).ok
    assert answer["state"] == "succeeded", answer
    return probe.tool("get_benchmarks", benchmark_ids=[started["benchmark_id"]], detail=True).ok


def test_a_search_runs_as_an_operation_and_shows_its_knee(probe: Probe) -> None:
    shown = finished(
        probe,
        concurrency=[1, 2],
        max_tokens=8,
        options={"mode": "knee", "slo": ["e2e_p95<=20s"]},
    )
    assert shown["knee"]["load"] == 2
    assert [step["load"] for step in shown["knee"]["steps"]] == [1, 2]
    assert all(level["meets_slo"] for level in shown["levels"])
    assert any(finding.startswith("Knee: concurrency 2") for finding in shown["findings"])
    # the accelerator is that of the imitated target, without being asked for
    assert shown["levels"][0]["efficiency"]["accelerator"] == "rtx-pro-6000"
    page = Path(shown["files"]["report_html"]).read_text(encoding="utf-8")
    assert "is simulated, not measured" in page
    listed = probe.tool("get_benchmarks").ok["items"][0]
    assert (listed["mode"], listed["knee"]) == ("knee", 2)


def test_a_grid_of_rates_and_contexts_shows_its_cells(probe: Probe) -> None:
    shown = finished(
        probe,
        max_tokens=4,
        requests=4,
        options={"contexts": [64, 100_000], "request_rates": [20], "warmup_requests": 0},
    )
    assert [cell["status"] for cell in shown["grid"]] == ["ok", "infeasible"]
    level = shown["levels"][0]
    assert (level["request_rate"], level["context_tokens"]) == (20, 64)
    assert "concurrency" not in level
    assert level["most_in_flight"] == 256


def test_a_dataset_of_ones_own_is_measured(probe: Probe, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "Say hello.", "max_tokens": 3}\n', encoding="utf-8")
    shown = finished(probe, concurrency=[1], options={"dataset_path": str(path)})
    assert shown["levels"][0]["requests"] == 4
    run = json.loads(Path(shown["files"]["run_json"]).read_text(encoding="utf-8"))
    assert run["levels"][0]["output_tokens_total"] == 4 * 3
    assert "mine.jsonl" in run["prompts"]


SECRET = "sk-very-secret-0123"


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"options": {"modus": SECRET}}, "options.modus", "is unknown"),
        ({"options": {"prompt_tokens": 5}}, "options.prompt_tokens", "argument of its own"),
        ({"options": {"levels": [1]}}, "options.levels", "is unknown"),
        ({"options": {"mode": SECRET}}, "options.mode", "'levels', 'knee' or 'grid'"),
        ({"options": {"mode": "knee"}}, "arguments", "mode=knee needs slo"),
        ({"options": {"slo": ["ttft<=1"]}}, "options.slo", "figure_statistic<=limit"),
        ({"options": {"dataset_path": "a.csv"}}, "options.dataset_path", "absolute path"),
        ({"options": {"dataset_path": "/nowhere/a.csv"}}, "dataset_path", "no file that can be"),
        ({"options": {"accelerator": SECRET}}, "options.accelerator", "known: l4"),
        ({"options": {"max_usd": -1}}, "options.max_usd", "greater than 0"),
        ({"concurrency": [2, 2]}, "concurrency", "only once"),
        ({"prompt": "x", "options": {"turns": 2}}, "arguments", "prompt_source=fixed"),
    ],
)
def test_an_option_that_is_wrong_is_refused_by_name_before_anything_starts(
    probe: Probe, arguments: dict[str, Any], field: str, words: str
) -> None:
    error = probe.tool("run_benchmark", **WHERE, **arguments).error
    assert error["code"] == "invalid_input"
    assert error["field"] == field
    assert words in json.dumps(error, ensure_ascii=False)
    assert SECRET not in json.dumps(error)


async def test_help_documents_every_option(tmp_path: Path) -> None:
    async with connected(make_app(tmp_path / "state")) as caller:
        answer = (await caller.tool("get_help", topic="benchmark")).ok
    rows = {row["option"]: row for row in answer["options"]}
    assert {"mode", "slo", "request_rates", "contexts", "dataset_path", "max_usd"} <= set(rows)
    assert "prompt_tokens" not in rows
    assert rows["mode"]["type"] == "levels | knee | grid"
    assert all(row["meaning"] or row["default"] for row in rows.values())
    assert "ttft_p95<=200" in rows["slo"]["meaning"]
    assert "'slo': ['ttft_p95<=200']" in answer["next_steps"][0]


async def test_runs_of_others_are_compared_with_ours_and_somebody_wins(tmp_path: Path) -> None:
    app = make_app(tmp_path / "state")
    ours = run_of(
        [rated(1, 90.0, usd_per_hour=1.0), rated(8, 500.0, usd_per_hour=1.0)], run_id="bench-ours"
    )
    names = [RECORDED / f"serve-uni-c{c}.json" for c in (1, 8)]
    theirs = import_vllm_bench(names, run_id="bench-theirs", label="CPU", usd_per_hour=0.1)
    for run in (ours, theirs):
        folder = app.state.benchmarks / run.id
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(run.model_dump_json(), encoding="utf-8")
    async with connected(app) as caller:
        listed = (await caller.tool("get_benchmarks")).ok
        shown = (
            await caller.tool("get_benchmarks", benchmark_ids=["bench-ours", "bench-theirs"])
        ).ok
    assert [item["benchmark_id"] for item in listed["items"]] == ["bench-theirs", "bench-ours"]
    rows = {row["id"]: row for row in shown["comparison"]}
    assert rows["bench-theirs"]["measured_by"] == "vllm bench serve"
    assert rows["bench-ours"]["usd_per_million_output_tokens"] == pytest.approx(0.556, abs=0.01)
    verdicts = " ".join(shown["findings"])
    assert "Highest throughput: CPU" in verdicts
    assert "Lowest cost: CPU" in verdicts
    assert any("measured by different programs" in warning for warning in shown["warnings"])
    page = Path(shown["files"]["report_html"]).read_text(encoding="utf-8")
    assert "Comparison of benchmarks" in page

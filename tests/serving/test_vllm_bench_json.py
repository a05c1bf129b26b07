"""Results of `vllm bench serve`: read as they were recorded, and written so that they read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.core.errors import InvalidInputError
from backends.serving.comparison import compare
from backends.serving.outputs import write_vllm_bench
from backends.serving.report import run_markdown
from backends.serving.runs import BenchmarkRun
from backends.serving.vllm_bench_json import import_vllm_bench
from tests.serving.made_runs import rated, run_of
from tests.serving.mock_servers import RECORDED

BENCH = RECORDED / "bench"


def imported(*names: str, usd_per_hour: float | None = None) -> BenchmarkRun:
    paths = [BENCH / name for name in names]
    return import_vllm_bench(paths, run_id="bench-i", usd_per_hour=usd_per_hour)


def test_a_sweep_of_files_becomes_one_run_with_their_figures() -> None:
    names = [f"serve-uni-c{c}.json" for c in (8, 1, 4, 2)]
    run = imported(*names, usd_per_hour=1.0)
    assert [level.concurrency for level in run.levels] == [1, 2, 4, 8]
    assert all(level.valid for level in run.levels)
    raw = json.loads((BENCH / "serve-uni-c8.json").read_text(encoding="utf-8"))
    level = run.levels[-1]
    assert level.output_tokens_per_s == pytest.approx(raw["output_throughput"])
    assert level.requests_per_s == pytest.approx(raw["request_throughput"])
    assert level.ttft_ms.p50 == raw["median_ttft_ms"]
    assert level.itl_ms.p99 == raw["p99_itl_ms"]
    assert level.e2e_ms.mean == raw["mean_e2el_ms"]
    assert level.prompt_tokens_mean == pytest.approx(raw["total_input_tokens"] / 64)
    usd = 1e6 / (raw["output_throughput"] * 3600)
    assert level.usd_per_million_output_tokens == pytest.approx(usd)
    assert run.spec.max_tokens == 64
    assert "measured by vllm bench serve" in run_markdown(run)
    assert BenchmarkRun.model_validate_json(run.model_dump_json()) == run


@pytest.mark.parametrize("name", ["serve-allfail.json", "serve-noserver.json"])
def test_a_result_without_a_success_is_a_failed_run_and_its_zeros_are_no_figures(name: str) -> None:
    run = imported(name)
    assert run.state == "failed"
    assert run.error is not None
    assert "not one request succeeded" in run.error.message
    level = run.levels[0]
    assert not level.valid
    assert (level.output_tokens_per_s, level.ttft_ms.mean, level.e2e_ms.p50) == (None, None, None)
    if name == "serve-allfail.json":
        assert run.error.words == "Not Found"


def test_a_failed_file_beside_good_ones_spoils_its_level_only(tmp_path: Path) -> None:
    good = BENCH / "serve-c8.json"
    broken = tmp_path / "c16.json"
    raw = json.loads(good.read_text(encoding="utf-8"))
    broken.write_text(json.dumps(raw | {"completed": 60, "failed": 4, "max_concurrency": 16}))
    run = import_vllm_bench([good, broken], run_id="x")
    assert [level.valid for level in run.levels] == [True, False]
    assert run.levels[1].invalid_reasons == ["4 of 64 requests failed (c16.json)"]
    assert run.state == "completed"


def test_a_rate_is_an_open_loop_and_latencies_give_e2e_where_it_was_not_summarised() -> None:
    level = imported("serve-rate10.json").levels[0]
    assert level.request_rate == 10.0
    raw = json.loads((BENCH / "serve-rate10.json").read_text(encoding="utf-8"))
    mean_ms = sum(raw["latencies"]) / len(raw["latencies"]) * 1e3
    assert level.e2e_ms.mean == pytest.approx(mean_ms)


def test_a_chat_result_is_warned_about_its_role_chunk() -> None:
    level = imported("serve-chat-detailed-goodput.json").levels[0]
    assert level.goodput_requests_per_s == pytest.approx(15.448, abs=0.01)
    assert any("role chunk" in warning for warning in level.warnings)
    assert not any(
        "role chunk" in warning for warning in imported("serve-c1.json").levels[0].warnings
    )


def test_a_folder_of_a_sweep_is_taken_without_its_summaries_and_repeats_are_repetitions() -> None:
    run = imported("sweep")
    assert [(level.concurrency, level.repetition) for level in run.levels] == [
        (1, 1),
        (1, 2),
        (8, 1),
        (8, 2),
    ]
    assert [group.repetitions for group in run.repeated] == [2, 2]


def test_what_we_export_reads_back_with_the_same_figures(tmp_path: Path) -> None:
    ours = run_of([rated(1, 50.0, ttft_ms=80), rated(4, 190.0, itl_ms=12)])
    files = write_vllm_bench(ours, tmp_path)
    assert [file.name for file in files] == ["bench-1-1.json", "bench-1-4.json"]
    back = import_vllm_bench(files, run_id="again", label="back")
    for one, other in zip(ours.levels, back.levels, strict=True):
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            assert getattr(one, name) == getattr(other, name)
        assert one.output_tokens_per_s == pytest.approx(other.output_tokens_per_s)
        assert (one.requests, one.errors) == (other.requests, other.errors)
    compared = compare([ours, back])
    assert compared.common_levels == [1, 4]
    assert any("equal within 5 %" in verdict for verdict in compared.verdicts)
    assert any("measured by different programs" in caution for caution in compared.cautions)


def test_our_export_has_the_fields_that_its_own_files_have(tmp_path: Path) -> None:
    file = write_vllm_bench(run_of([rated(1, 50.0)]), tmp_path)[0]
    ours = json.loads(file.read_text(encoding="utf-8"))
    theirs = json.loads((BENCH / "serve-c8.json").read_text(encoding="utf-8"))
    kept_out = {"note", "latencies", "queue_times", "max_output_tokens_per_s", "rtfx"}
    kept_out |= {"max_concurrent_requests"} | {name for name in theirs if name.startswith("std_")}
    assert set(theirs) - set(ours) == kept_out
    assert set(ours) <= set(theirs)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "is no object"),
        ("{}", "is no result of vllm bench serve: it has no date, model_id"),
    ],
)
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        import_vllm_bench([path], run_id="x")
    assert words in str(caught.value)
    assert "x.json" in str(caught.value)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="several models"):
        imported("serve-c8.json", "serve-uni-c8.json")
    with pytest.raises(InvalidInputError, match="no file or folder"):
        imported("nothing.json")
    with pytest.raises(InvalidInputError, match=r"hold no \.json file"):
        import_vllm_bench([tmp_path], run_id="x")

"""Runs made beside the engine and from afar: what the way between them takes."""

from __future__ import annotations

from backends.serving.comparison import compare
from backends.serving.runs import BenchmarkRun, BenchmarkSpec
from tests.serving.made_runs import rated, run_of


def made(runner: str, ttft_ms: float, itl_ms: float = 10.0, deployment: str = "t4") -> BenchmarkRun:
    """A run of one deployment, made somewhere."""
    spec = BenchmarkSpec.model_validate(
        {"target": "gce-t4", "deployment": deployment, "runner": runner}
    )
    levels = [rated(1, 90, ttft_ms=ttft_ms, itl_ms=itl_ms), rated(4, 300, ttft_ms=ttft_ms * 9)]
    return run_of(levels, label=f"gce-t4/{deployment}", run_id=f"bench-{runner}", spec=spec)


def test_what_the_way_to_the_engine_adds_is_said_at_the_lowest_common_load() -> None:
    compared = compare([made("local", 62.0, 12.0), made("host", 50.0)])
    [said] = [verdict for verdict in compared.verdicts if "Client distance" in verdict]
    assert said == (
        "Client distance at concurrency 1: gce-t4/t4 bench-local has 12.00 ms more TTFT p50 (62.00 "
        "against 50.00 beside the engine) and 2.00 ms more ITL p99 (12.00 against 10.00 beside the "
        "engine), which is the way between client and engine."
    )
    assert [run.runner for run in compared.runs] == ["local", "host"]
    assert "made from different places" in " ".join(compared.cautions)


def test_a_way_that_does_not_show_is_said_too() -> None:
    compared = compare([made("host", 50.0), made("local", 51.0)])
    [said] = [verdict for verdict in compared.verdicts if "Client distance" in verdict]
    assert "within 5 % of gce-t4/t4 bench-host" in said


def test_other_deployments_and_runs_from_one_place_have_no_distance() -> None:
    for other in (made("local", 62.0, deployment="another"), made("host", 62.0)):
        assert "Client distance" not in " ".join(compare([made("host", 50.0), other]).verdicts)

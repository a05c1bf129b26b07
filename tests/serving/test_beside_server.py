"""What lies between the client's figures and the engine's own, told apart by its traces."""

from __future__ import annotations

import pytest

from backends.knowledge.accelerators import L4
from backends.knowledge.checkpoints import find_checkpoint
from backends.knowledge.roofline import StepModel
from backends.serving.beside_server import beside, set_beside
from backends.serving.efficiency import level_efficiency, step_model
from backends.serving.findings import findings
from backends.serving.metrics import LatencyStats, MetricsDelta
from backends.serving.runs import BenchmarkSpec, BesideServer, LevelResult
from tests.serving.made_runs import rated, run_of


def engine(
    *,
    running: float = 1.0,
    waiting: float = 0.0,
    ttft_ms: float = 100.0,
    itl_ms: float = 10.0,
    e2e_ms: float | None = None,
    tokens: int = 2000,
) -> MetricsDelta:
    whole = ttft_ms + 99 * itl_ms if e2e_ms is None else e2e_ms
    return MetricsDelta(
        seconds=1.0,  # taken over from the level
        mean_running=running,
        mean_waiting=waiting,
        generation_tokens=tokens,
        ttft_ms=LatencyStats(count=20, mean=ttft_ms),
        itl_ms=LatencyStats(count=1980, mean=itl_ms),
        e2e_ms=LatencyStats(count=20, mean=whole),
    )


def row(level: LevelResult, figure: str) -> BesideServer:
    return next(one for one in level.beside_server or beside(level) if one.figure == figure)


def test_equal_figures_agree_and_say_nothing() -> None:
    level = rated(1, 91.7, server=engine())
    for figure in ("ttft", "itl", "e2e", "output tokens/s"):
        assert row(level, figure).agrees, figure
        assert row(level, figure).explanation == ""


def test_what_is_there_at_the_lowest_load_too_is_the_network() -> None:
    low = rated(1, 91.7, ttft_ms=140, server=engine(ttft_ms=100))
    high = rated(4, 350.0, ttft_ms=142, server=engine(ttft_ms=100, running=4.0))
    set_beside([low, high])
    assert [row(level, "ttft").where for level in (low, high)] == [["network"], ["network"]]
    assert "40 ms are there at the lowest load too" in row(low, "ttft").explanation


def test_what_came_with_the_load_while_the_engine_missed_requests_is_an_admission_queue() -> None:
    low = rated(1, 91.7, ttft_ms=140, server=engine(ttft_ms=100))
    # eight in flight, 3.6 of them in the engine
    high = rated(8, 360.0, ttft_ms=1200, server=engine(ttft_ms=105, running=3.6, itl_ms=10))
    set_beside([low, high])
    found = row(high, "ttft")
    assert found.where == ["network", "admission queue"]
    assert "1055 ms came with the load, while 4.3 of 7.9 requests" in found.explanation
    text = " ".join(findings(run_of([low, high])))
    assert "1095 of 1200 ms of mean TTFT passed outside the engine" in text


def test_a_queue_inside_the_engine_is_no_admission_queue() -> None:
    level = rated(8, 360.0, ttft_ms=1200, server=engine(ttft_ms=1195, running=3.6, waiting=4.3))
    set_beside([level])
    assert row(level, "ttft").agrees


def test_the_client_is_named_where_its_own_check_says_so() -> None:
    low = rated(1, 91.7, server=engine())
    high = rated(4, 350.0, ttft_ms=160, server=engine(running=4.0))
    high.self_check.limited_the_level = True
    set_beside([low, high])
    assert row(high, "ttft").where == ["client"]
    high.self_check.limited_the_level = False
    set_beside([low, high])
    assert row(high, "ttft").where == ["unknown"]
    assert "not explained by what is published" in row(high, "ttft").explanation


@pytest.mark.parametrize(
    ("theirs", "where"), [(engine(tokens=4000), "other traffic"), (engine(tokens=900), "unknown")]
)
def test_tokens_that_do_not_add_up_are_said(theirs: MetricsDelta, where: str) -> None:
    assert row(rated(1, 91.7, server=theirs), "output tokens/s").where == [where]


def test_gaps_longer_than_the_engines_are_held_back_on_the_way() -> None:
    level = rated(1, 91.7, itl_ms=14, server=engine(itl_ms=10))
    assert row(level, "itl").where == ["network"]
    assert "a proxy or the HTTP server holds them" in row(level, "itl").explanation


def test_an_engine_with_longer_latency_than_the_client_counts_others_too() -> None:
    level = rated(1, 91.7, server=engine(ttft_ms=300))
    assert row(level, "ttft").where == ["other traffic"]


def test_a_level_without_engine_figures_has_nothing_beside_it() -> None:
    assert beside(rated(1, 50.0)) == []


# ---- the bandwidth bound -------------------------------------------------------------------------


def test_the_bound_is_bandwidth_over_bytes_and_the_prediction_has_the_fitted_share() -> None:
    spec = BenchmarkSpec(accelerator="l4")
    model = step_model(spec, "google/gemma-4-E2B-it")
    assert model is not None
    level = rated(1, 49.63, server=engine())
    level.prompt_tokens_mean, level.output_tokens_mean = 60, 128
    found = level_efficiency(level, model)
    assert found is not None
    bytes_a_step = find_checkpoint("gemma-4-E2B-it").read_gb(1) * 1e9
    weights_only = L4.bandwidth_gb_per_s.value * 1e9 / bytes_a_step
    assert found.bound_output_tokens_per_s == pytest.approx(weights_only * found.batch, rel=0.01)
    assert found.share_of_bound == pytest.approx(
        (level.steady.output_tokens_per_s if level.steady else 0) / found.bound_output_tokens_per_s
    )
    step_s = StepModel(L4, model.checkpoint).decode_step_s(1, 124)
    assert found.predicted_output_tokens_per_s == pytest.approx(found.batch / step_s, rel=0.01)


def test_more_than_the_bandwidth_allows_is_said_to_be_impossible() -> None:
    model = step_model(BenchmarkSpec(accelerator="t4"), "gemma-4-12B-it")
    level = rated(1, 400.0, server=engine())
    level.efficiency = level_efficiency(level, model)
    text = " ".join(findings(run_of([level])))
    assert "times what the memory bandwidth of t4 allows" in text
    assert "is not what was named" in text


def test_without_accelerator_or_checkpoint_there_is_no_bound() -> None:
    assert step_model(BenchmarkSpec(), "gemma-4-E2B-it") is None
    assert step_model(BenchmarkSpec(accelerator="l4"), "tiny-model") is None
    assert step_model(BenchmarkSpec(accelerator="l4", checkpoint="gemma-4-E2B-it"), "m") is not None
    assert level_efficiency(rated(1, 50.0), None) is None

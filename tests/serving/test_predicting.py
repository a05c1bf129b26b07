"""Predictions: the published figures within the aim, and the simulator's own engine behind them."""

from __future__ import annotations

import statistics

import pytest

from backends.knowledge.checkpoints import find_checkpoint
from backends.knowledge.targets import PROFILES, find_profile
from backends.serving.predicting import Setup, predict, predictions
from benchmarks.simulator_accuracy import cloud_run, ec2, figures, sagemaker, simulate


def test_the_median_of_what_is_predicted_on_l4_is_within_the_aim() -> None:
    errors = [
        abs(figures(cell, run)[name] / wanted - 1)
        for table in (cloud_run, ec2, sagemaker)
        for cell in table()
        for run in [simulate(cell)]
        for name, wanted in cell.published.items()
        if cell.counts(name)
    ]
    assert len(errors) > 20
    assert statistics.median(errors) <= 0.15
    assert max(errors) <= 0.20


@pytest.mark.parametrize("name", PROFILES)
def test_more_clients_wait_longer_and_never_get_more_than_the_bound(name: str) -> None:
    setup = Setup.of(find_profile(name))
    rows = predictions(setup, (1, 4, 16), prompt_tokens=256, output_tokens=64)
    assert [row.concurrency for row in rows] == [1, 4, 16]
    for row in rows:
        assert 0 < row.output_tokens_per_s <= row.bound_tokens_per_s
    assert rows[-1].e2e_s > rows[0].e2e_s
    assert rows[1].output_tokens_per_s > rows[0].output_tokens_per_s


def test_an_admission_cap_keeps_throughput_down() -> None:
    setup = Setup.of(find_profile("cloudrun-l4"))
    four = predict(setup, 4, prompt_tokens=40, output_tokens=64)
    eight = predict(setup, 8, prompt_tokens=40, output_tokens=64)
    assert eight.output_tokens_per_s == pytest.approx(four.output_tokens_per_s, rel=0.02)
    assert eight.ttft_ms > 2 * four.ttft_ms


def test_a_request_longer_than_the_context_has_no_prediction() -> None:
    setup = Setup.of(find_profile("cloudrun-l4"), find_checkpoint("gemma-4-E2B-it"))
    assert predictions(setup, (1,), prompt_tokens=20_000, output_tokens=10) == []

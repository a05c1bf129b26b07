"""Targets ranked for a load: what fits, keeps the latency and costs least, with reasons."""

from __future__ import annotations

import pytest

from backends.knowledge.checkpoints import find_checkpoint
from backends.knowledge.cost import offers
from backends.serving.choosing import Load, Option, break_evens, options

E2B = find_checkpoint("gemma-4-E2B-it")


def ranked(load: Load, name: str = "gemma-4-E2B-it") -> list[Option]:
    return options(find_checkpoint(name), load, offers())


def by_title(found: list[Option]) -> dict[str, Option]:
    return {item.offer.title: item for item in found}


def test_the_cheapest_that_can_serve_comes_first_and_all_have_reasons() -> None:
    found = ranked(Load())
    able = [item for item in found if item.able]
    costs = [item.cost.usd for item in able if item.cost]
    assert costs == sorted(costs)
    assert found[: len(able)] == able
    assert all(item.reasons for item in found)


def test_an_hour_a_day_favours_what_scales_to_zero_or_can_be_stopped() -> None:
    first = ranked(Load(hours_a_day=1))[0].offer
    assert first.scales_to_zero or first.stoppable
    found = by_title(ranked(Load(hours_a_day=1)))
    assert found["cloudrun-l4"].cost.usd < found["sagemaker-l4"].cost.usd  # type: ignore[union-attr]
    day = by_title(ranked(Load(hours_a_day=24)))
    assert day["sagemaker-l4"].cost.usd < day["cloudrun-l4"].cost.usd  # type: ignore[union-attr]


def test_a_latency_that_a_target_cannot_keep_rules_it_out_by_name() -> None:
    slow = by_title(ranked(Load(prompt_tokens=2048, ttft_ms=200)))["gce-t4"]
    assert not slow.able
    assert "first token after" in slow.reasons[0]


def test_a_model_that_does_not_fit_is_last_with_what_would() -> None:
    found = by_title(ranked(Load(), "gemma-4-31B-it-qat-w4a16-ct"))
    assert not found["sagemaker-l4"].able
    assert "No memory for the KV cache" in " ".join(found["sagemaker-l4"].reasons)
    assert "Would fit" in " ".join(found["sagemaker-l4"].reasons)
    assert found["cloudrun-rtx6000"].able


def test_more_requests_than_one_instance_serves_take_several() -> None:
    few, many = (
        by_title(ranked(Load(requests_per_hour=rate)))["cloudrun-l4"] for rate in (60, 36_000)
    )
    assert few.instances == 1
    assert many.instances > 1
    assert many.cost.usd > few.cost.usd * 1.9  # type: ignore[union-attr]


def test_a_prompt_longer_than_the_model_takes_is_refused_everywhere() -> None:
    found = ranked(Load(prompt_tokens=200_000))
    assert not any(item.able for item in found)
    assert "131072 tokens at most" in found[0].reasons[0]


def test_break_even_is_said_in_hours_a_day() -> None:
    said = break_evens(ranked(Load()))
    assert any("scale to zero wins below" in line for line in said)
    own = "sagemaker-l4 scale to zero against sagemaker-l4 run day and night"
    assert any(line.startswith(own) for line in said)


def test_what_refuses_while_it_wakes_up_does_not_say_that_requests_wait() -> None:
    found = by_title(ranked(Load(hours_a_day=1)))
    assert "requests are refused for about" in " ".join(found["sagemaker-l4 scale to zero"].reasons)
    assert "the first request waits" in " ".join(found["cloudrun-l4"].reasons)


@pytest.mark.parametrize("hours", [0.5, 24.0])
def test_cost_per_million_is_the_month_over_its_tokens(hours: float) -> None:
    load = Load(hours_a_day=hours)
    item = ranked(load)[0]
    tokens = load.requests_per_hour * load.output_tokens * hours * 365 / 12
    assert item.usd_per_million == pytest.approx(item.cost.usd / tokens * 1e6)  # type: ignore[union-attr]

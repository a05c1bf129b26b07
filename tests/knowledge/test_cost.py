"""Cost: by parts with source and age, months at a duty cycle, break-even; no rate, no number."""

from __future__ import annotations

from datetime import date

import pytest

from backends.knowledge.cloudrun import L4, RTX6000
from backends.knowledge.cost import (
    DAYS_A_MONTH,
    Duty,
    Offer,
    Part,
    age_days,
    break_even_hours,
    cloud_run_parts,
    month,
    offers,
    offers_of,
)
from backends.knowledge.facts import published
from backends.knowledge.targets import CLOUDRUN_L4, SAGEMAKER_L4

NO_START = 0.0


def offer(usd: float, *, zero: bool = False, idle_s: float = 0.0, **more: object) -> Offer:
    profile = CLOUDRUN_L4 if zero else SAGEMAKER_L4
    part = Part("all", usd, published(usd, "made for this test"))
    return Offer("x", "", profile, "here", 1, (part,), scales_to_zero=zero, idle_s=idle_s, **more)  # type: ignore[arg-type]


def test_an_instance_costs_what_its_parts_cost_and_says_where_from() -> None:
    parts = cloud_run_parts(L4, 8, 32)
    assert [part.name for part in parts] == ["NVIDIA L4, 24 GB", "8 vCPU", "32 GiB"]
    assert sum(part.usd_per_hour for part in parts) == pytest.approx(1.4209, abs=1e-4)
    words = parts[0].words(date(2027, 3, 15))
    assert "Cloud Run pricing page" in words
    assert "105 days old" in words
    assert "old: check it" in words


def test_a_rate_from_the_price_list_replaces_the_dated_one() -> None:
    live = {"gpu": published(0.0002, "Cloud Billing Catalog", "2026-11-30")}
    part = cloud_run_parts(L4, 8, 32, live=live)[0]
    assert part.live
    assert part.usd_per_hour == pytest.approx(0.72)
    assert "read now" in part.words()


def test_no_rate_is_no_number() -> None:
    assert cloud_run_parts(RTX6000, 20, 80, zonal=True) == ()


def test_what_runs_always_costs_every_hour_of_the_month() -> None:
    assert month(offer(1.0), Duty(1, 1)).usd == pytest.approx(24 * DAYS_A_MONTH)


def test_what_scales_to_zero_costs_the_hours_of_use_the_idle_wait_and_the_start() -> None:
    zero = offer(1.0, zero=True, idle_s=900)
    busy = month(zero, Duty(8, 60))
    start_h = zero.profile.startup_s / 3600
    assert busy.hours / DAYS_A_MONTH == pytest.approx(8 + 0.25 + start_h)
    rare = month(zero, Duty(8, 1))
    assert rare.hours / DAYS_A_MONTH == pytest.approx(8 * (0.25 + start_h))
    assert month(zero, Duty(0, 0)).usd == 0


def test_scale_to_zero_wins_below_the_hours_at_which_both_cost_the_same() -> None:
    zero, always = offer(1.4209, zero=True, idle_s=900), offer(0.3)
    hours = break_even_hours(zero, always)
    assert hours is not None
    assert hours == pytest.approx(24 * 0.3 / 1.4209 - 0.25 - zero.profile.startup_s / 3600)
    at = month(zero, Duty(hours, 60)).usd
    assert at == pytest.approx(month(always, Duty(hours, 60)).usd, rel=1e-6)
    assert month(zero, Duty(hours - 1, 60)).usd < month(always, Duty(hours - 1, 60)).usd


def test_something_dearer_by_far_never_breaks_even_and_something_cheap_always() -> None:
    assert break_even_hours(offer(100.0, zero=True, idle_s=900), offer(0.3)) is None
    assert break_even_hours(offer(0.1, zero=True), offer(5.0)) == 24


def test_every_target_has_an_offer_with_price_source_and_what_goes_on_billing() -> None:
    targets = {item.target for item in offers()}
    assert targets == {"cloudrun-l4", "cloudrun-rtx6000", "sagemaker-l4", "gce-t4", "tpu-v6e"}
    for item in offers():
        assert item.usd_per_hour > 0
        assert all(part.fact.source and part.fact.date for part in item.parts), item.title
    stopped = offers_of("gce-t4")[0]
    assert stopped.stoppable
    assert stopped.stopped_usd_per_month > 20, "disks go on billing while the machine is off"


def test_the_age_of_a_price_is_counted_in_days() -> None:
    assert age_days("2026-09-25", date(2026, 11, 30)) == 66

"""Compute Engine's rates: the live list where it is one rate, else the dated table, else none."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from backends.clouds import google_compute_prices
from backends.clouds.google_compute_prices import ComputePrices
from backends.clouds.google_prices import PriceList
from backends.clouds.google_rest import GoogleRest
from backends.core.errors import ApiDisabledError
from backends.core.owned import Owned
from backends.knowledge import gce

WEST = "us-west2"
CHIP = "TpuV6e running in Columbus"
SPOT_T4 = "Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Los Angeles"


def sku(
    description: str, usd: float, *, unit: str = "h", region: str = WEST, usage: str = "OnDemand"
) -> dict[str, Any]:
    price = {"currencyCode": "USD", "units": str(int(usd)), "nanos": round(usd % 1 * 1e9)}
    rates = [{"startUsageAmount": 0, "unitPrice": price}]
    return {
        "description": description,
        "category": {"usageType": usage},
        "serviceRegions": [region],
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": rates}}],
    }


LISTED = [
    sku("N1 Predefined Instance Core running in Los Angeles", 0.04),
    sku("N1 Predefined Instance Ram running in Los Angeles", 0.004, unit="GiBy.h"),
    sku("Nvidia Tesla T4 GPU running in Los Angeles", 0.5),
    sku("Commitment v1: Nvidia Tesla T4 GPU running in Los Angeles", 0.1, usage="Commit1Yr"),
    sku("Spot Preemptible N1 Predefined Instance Core running in X", 0.01, usage="Preemptible"),
    sku("Preemptible N1 Predefined Instance Ram running in X", 0.001, usage="Preemptible",
        unit="GiBy.h"),
    sku(SPOT_T4, 0.2, usage="Preemptible"),
    sku("SSD backed PD Capacity in Los Angeles", 0.204, unit="GiBy.mo"),
    sku("Regional SSD backed PD Capacity in Los Angeles", 0.408, unit="GiBy.mo"),
    sku(CHIP, 3.5, region="us-east5"),
    sku("DWS Defined Duration V6e running in Columbus", 1.75, region="us-east5"),
    sku("TpuV6e attached to Spot Preemptible VMs running in Columbus", 1.5, region="us-east5",
        usage="Preemptible"),
    sku("Reserved TpuV6e in Columbus", 9, region="us-east5"),
]  # fmt: skip


class Rest:
    """Answers with these entries once it may; refuses with this if it is set."""

    def __init__(self, skus: list[dict[str, Any]]) -> None:
        self.skus = skus
        self.may = asyncio.Event()
        self.may.set()
        self.asked = 0
        self.refusal: Exception | None = None

    async def pages(self, *args: object) -> list[dict[str, Any]]:
        del args
        self.asked += 1
        await self.may.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.skus


def made(rest: Rest) -> ComputePrices:
    return ComputePrices(PriceList(cast("GoogleRest", rest), Owned()))


async def test_a_machine_a_disk_and_a_chip_are_priced_by_the_live_list() -> None:
    prices = made(Rest(LISTED))
    await prices.learn()
    rate = prices.machine_rate("us-west2-b", "n1-standard-2", False)
    assert rate is not None
    assert rate.live
    assert rate.machine == pytest.approx(2 * 0.04 + 7.5 * 0.004 + 0.5)
    assert prices.freshness(rate.fact, live=rate.live) == "live price list"
    spot = prices.machine_rate("us-west2-b", "n1-standard-2", True)
    assert spot is not None
    assert spot.machine == pytest.approx(2 * 0.01 + 7.5 * 0.001 + 0.2)
    assert prices.disk_usd_per_month(WEST, "pd-ssd", 100) == pytest.approx(20.4)
    assert prices.disk_usd_per_month(WEST, "pd-balanced", 100) == pytest.approx(10)
    assert prices.disk_usd_per_month(WEST, "pd-unheard-of", 100) is None
    chips = {
        how: prices.chip_hour(how, "us-east5-b") for how in ("on-demand", "flex-start", "spot")
    }
    assert {how: fact.value for how, (fact, _) in chips.items() if fact} == {
        "on-demand": 3.5, "flex-start": 1.75, "spot": 1.5,
    }  # fmt: skip
    assert all(live for _, live in chips.values())


async def test_what_the_list_lacks_is_dated_and_what_nobody_has_is_no_number() -> None:
    prices = made(Rest([*LISTED, sku(CHIP, 4, region="us-east5")]))
    await prices.learn()
    twice, live = prices.chip_hour("on-demand", "us-east5-b")
    assert twice is not None
    assert (twice.value, live) == (2.70, False), "two prices of one thing are no rate"
    elsewhere = prices.machine_rate("us-central1-a", "n1-standard-2", False)
    assert elsewhere == gce.machine_rate("us-central1-a", "n1-standard-2", False)
    assert elsewhere is not None
    assert " old, not read now" in prices.freshness(elsewhere.fact, live=elsewhere.live)
    assert prices.chip_hour("reservation", "us-east5-b") == (None, False)
    assert prices.chip_hour("spot", "southamerica-west1-a") == (None, False)
    assert prices.machine_rate("mars-west1-a", "n1-standard-2", False) is None


async def test_a_slow_list_is_read_on_for_the_next_plan_and_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(google_compute_prices, "_WAIT_S", 0.02)
    rest = Rest(LISTED)
    rest.may.clear()
    prices = made(rest)
    await prices.learn()
    fact, live = prices.chip_hour("on-demand", "us-east5-b")
    assert fact is not None
    assert (fact.value, live) == (2.70, False)
    assert "not answered within" in prices.freshness(fact, live=live)
    await prices.learn()
    rest.may.set()
    monkeypatch.setattr(google_compute_prices, "_WAIT_S", 10.0)
    await prices.learn()
    assert prices.chip_hour("on-demand", "us-east5-b")[1]
    assert prices.problem == ""
    assert rest.asked == 1


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (ApiDisabledError("Cloud Billing API is off."), "Cloud Billing API is off"),
        (ValueError("Expecting value"), "no price list"),
    ],
)
async def test_a_list_that_fails_fails_nothing_and_is_left_alone_for_a_while(
    refusal: Exception, words: str
) -> None:
    rest = Rest(LISTED)
    rest.refusal = refusal
    prices = made(rest)
    await prices.learn()
    await prices.learn()
    rate = prices.machine_rate("us-west2-b", "n1-standard-2", False)
    assert rate is not None
    assert words in prices.freshness(rate.fact, live=rate.live)
    assert rest.asked == 1

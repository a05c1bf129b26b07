"""Google's price list: entries become rates per second; an ambiguous or odd one is no rate."""

from __future__ import annotations

from typing import Any, cast

import pytest

from backends.clouds.google_prices import CLOUD_RUN, PriceList, rate
from backends.clouds.google_rest import GoogleRest
from backends.core.errors import ApiDisabledError
from backends.core.owned import Owned


def sku(description: str, nanos: int, unit: str = "s", region: str = "us-east4") -> dict[str, Any]:
    price = {"currencyCode": "USD", "units": "0", "nanos": nanos}
    free = {"startUsageAmount": 0, "unitPrice": {"units": "0", "nanos": 0}}
    paid = {"startUsageAmount": 100, "unitPrice": price}
    return {
        "description": description,
        "category": {"usageType": "OnDemand"},
        "serviceRegions": [region],
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [free, paid]}}],
    }


class Rest:
    """Answers with these entries, or refuses; counts how often it is asked."""

    def __init__(self, *skus: dict[str, Any]) -> None:
        self.skus = list(skus)
        self.asked = 0
        self.refuses = False

    async def pages(self, *args: object) -> list[dict[str, Any]]:
        del args
        self.asked += 1
        if self.refuses:
            raise ApiDisabledError("Cloud Billing API is off.")
        return self.skus


def price_list(rest: Rest) -> PriceList:
    return PriceList(cast("GoogleRest", rest), Owned())


async def test_an_entry_is_a_rate_per_second_of_its_first_paid_tier() -> None:
    rest = Rest(sku("Services CPU (Instance-based billing)", 18_000), sku("L4 GPU", 720_000, "h"))
    skus = await price_list(rest).skus(CLOUD_RUN, 1)
    found = rate(skus, "us-east4", "cpu.*instance-based")
    assert found is not None
    assert found.value == pytest.approx(0.000018)
    assert "Cloud Billing Catalog" in found.source
    hourly = rate(skus, "us-east4", "L4")
    assert hourly is not None
    assert hourly.value == pytest.approx(0.00072 / 3600)


async def test_another_region_two_prices_or_an_odd_unit_are_no_rate() -> None:
    rest = Rest(sku("CPU a", 1), sku("CPU b", 2), sku("Requests", 3, "count"), {"odd": True})
    skus = await price_list(rest).skus(CLOUD_RUN, 1)
    assert rate(skus, "us-east4", "cpu") is None
    assert rate(skus, "us-east4", "cpu a", without="b") is not None
    assert rate(skus, "europe-west1", "cpu a") is None
    assert rate(skus, "us-east4", "requests") is None


async def test_the_list_is_kept_and_one_that_is_not_reached_says_why() -> None:
    rest = Rest(sku("CPU", 1))
    prices = price_list(rest)
    assert await prices.skus(CLOUD_RUN, 1) == await prices.skus(CLOUD_RUN, 1)
    assert rest.asked == 1
    other = Rest()
    other.refuses = True
    silent = price_list(other)
    assert await silent.skus(CLOUD_RUN, 1) == ()
    assert "Cloud Billing API is off" in silent.problem
    await silent.skus(CLOUD_RUN, 1)
    assert other.asked == 1, "what does not answer is not asked at every call"

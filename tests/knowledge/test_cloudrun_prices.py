"""Prices of Cloud Run are known by tier; what is not known is not guessed."""

from __future__ import annotations

import pytest

from backends.knowledge.cloudrun import L4, PROFILES, RTX6000, rates_of, usd_per_instance_hour


@pytest.mark.parametrize(
    ("region", "zonal", "usd"),
    [
        ("us-east4", False, 1.4209),
        ("us-east4", True, 1.7960),
        # 77.14 + 59.50 + 26.44 INR, at the 95.65 INR a USD that the vCPU's price there implies.
        ("asia-southeast1", False, 1.7051),
        ("asia-south1", False, 1.7051),
    ],
)
def test_an_instance_with_an_l4_costs_what_its_regions_tier_charges(
    region: str, zonal: bool, usd: float
) -> None:
    assert usd_per_instance_hour(L4, region, 8, 32, zonal=zonal) == pytest.approx(usd, abs=2e-4)


def test_no_rate_is_no_number() -> None:
    assert usd_per_instance_hour(RTX6000, "asia-southeast1", 20, 80) is None
    assert usd_per_instance_hour(RTX6000, "us-central1", 20, 80, zonal=True) is None
    assert usd_per_instance_hour(L4, "mars-north1", 8, 32) is None


def test_every_rate_has_its_source_and_every_region_with_an_l4_a_price() -> None:
    for sold in L4.regions:
        assert rates_of(L4, sold.name) is not None, sold.name
    for profile in PROFILES.values():
        for sold in profile.regions:
            rates = rates_of(profile, sold.name)
            for fact in (rates.gpu, rates.cpu, rates.memory) if rates else ():
                assert fact.source
                assert fact.date

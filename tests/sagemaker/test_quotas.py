"""What quota a pool needs, what others hold, and which types are chosen."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from backends.clouds.aws import Aws
from backends.core.errors import InvalidInputError, QuotaError
from backends.knowledge.sagemaker import DEFAULT_POOL
from backends.sagemaker.checks import chosen_types
from backends.sagemaker.endpoints import Deployed, Variant
from backends.sagemaker.quotas import Quotas, shortages, used
from backends.sagemaker.spec import SageMakerSpec
from tests.sagemaker.made import NAME, REGION, config, deployed, endpoint, limits, place, planned


def spec(**options: object) -> SageMakerSpec:
    return SageMakerSpec.model_validate({"name": NAME, "model": "google/gemma-4-E2B-it"} | options)


def test_an_endpoint_holds_quota_for_every_type_of_its_pool() -> None:
    assert used([deployed()]) == {"ml.g6.xlarge": 1, "ml.g6.2xlarge": 1}


def test_instances_that_are_wanted_count_before_they_are_there() -> None:
    growing = endpoint(variants=(Variant("v-1a2b3c4d", 1.0, 1, 3),))
    assert used([Deployed(NAME, REGION, config(), growing)])["ml.g6.xlarge"] == 3


def test_a_creating_endpoint_counts_what_its_configuration_asks_for() -> None:
    creating = endpoint("Creating", variants=(Variant("v-1a2b3c4d"),))
    two = config(planned(count=2))
    assert used([Deployed(NAME, REGION, two, creating)])["ml.g6.2xlarge"] == 2


def test_what_is_stopped_holds_nothing() -> None:
    assert used([Deployed(NAME, REGION, config())]) == {}


def test_a_shortage_has_the_quotas_exact_name_its_code_and_what_to_request() -> None:
    short = shortages(limits(g6_xlarge=1), ["ml.g6.xlarge"], 1, {"ml.g6.xlarge": 1})
    assert short == [
        "ml.g6.xlarge for endpoint usage (L-g6_xlarge): 1 needed besides the 1 in use, 1 allowed; "
        "request 2"
    ]


def test_a_type_that_has_no_quota_at_all_is_not_offered() -> None:
    assert "not offered" in shortages({}, ["ml.g6.xlarge"], 1, {})[0]


def test_types_without_quota_are_left_out_of_the_default_pool_and_named() -> None:
    types, left_out = chosen_types(spec(), DEFAULT_POOL, place(), 1)
    assert types == ["ml.g6.xlarge", "ml.g6.2xlarge"]
    assert left_out == ["ml.g6.4xlarge is left out: ml.g6.4xlarge is not offered for endpoints "
                        "there."]  # fmt: skip


def test_a_named_type_without_quota_is_refused() -> None:
    with pytest.raises(QuotaError) as refused:
        chosen_types(spec(instance_types=["ml.g6.4xlarge"]), ["ml.g6.4xlarge"], place(), 1)
    assert refused.value.details["quota"]


def test_a_quota_of_zero_refuses_the_whole_region() -> None:
    nothing = place(limits=limits(g6_xlarge=0, g6_2xlarge=0, g6_4xlarge=0))
    with pytest.raises(QuotaError, match="0 allowed; request 1"):
        chosen_types(spec(), DEFAULT_POOL, nothing, 1)
    types, _ = chosen_types(spec(ignore_quota=True), DEFAULT_POOL, nothing, 1)
    assert types == list(DEFAULT_POOL)


def test_quotas_that_are_not_known_refuse_nothing() -> None:
    types, _ = chosen_types(spec(), DEFAULT_POOL, place(limits=None), 1)
    assert types == list(DEFAULT_POOL)


def test_a_host_too_small_for_the_weights_is_left_out_or_refused() -> None:
    big = replace(place(), limits=limits(g6_xlarge=1, g6_2xlarge=1, g6_4xlarge=1))
    qat = "google/gemma-4-31B-it-qat-w4a16-ct"
    types, left_out = chosen_types(spec(model=qat), DEFAULT_POOL, big, 1)
    assert types == ["ml.g6.2xlarge", "ml.g6.4xlarge"]
    assert "unable to mmap" in left_out[0]
    with pytest.raises(InvalidInputError, match="16 GiB"):
        chosen_types(spec(model=qat, instance_types=["ml.g6.xlarge"]), ["ml.g6.xlarge"], big, 1)


class FakeQuotas:
    """Service Quotas, which knows when it is asked twice at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.at_once = 0
        self.most_at_once = 0

    async def items(
        self, service: str, operation: str, key: str, region: str, **params: Any
    ) -> list[dict[str, Any]]:
        assert (service, operation, key) == ("service-quotas", "list_service_quotas", "Quotas")
        assert params["ServiceCode"] == "sagemaker"
        self.asked.append(region)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return [
            {"QuotaName": f"ml.g6.xlarge {use}", "Value": value, "QuotaCode": "L-1"}
            for use, value in (("for training job usage", 9.0), ("for endpoint usage", 2.0))
        ]


async def test_regions_are_asked_one_after_the_other_once_and_kept() -> None:
    fake = FakeQuotas()
    quotas = Quotas(cast("Aws", fake))
    regions = ["us-east-2", "us-west-2", "us-east-1"]
    found = await asyncio.gather(*(quotas.limits(region) for region in regions))
    assert [limits["ml.g6.xlarge"].value for limits in found] == [2.0, 2.0, 2.0]
    await quotas.limits("us-east-2")
    assert fake.asked == regions
    assert fake.most_at_once == 1
    await quotas.limits("us-east-2", fresh=True)
    assert len(fake.asked) == 4

"""What is said of an account without changing it: prices, checkpoints, the doctor, no account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from backends.clouds.aws import Aws
from backends.core.errors import NotFoundError, UnavailableError
from backends.sagemaker.backend import SageMakerBackend
from backends.sagemaker.catalogue import Catalogue
from backends.sagemaker.models import inspect
from tests.sagemaker.acting import TARGET
from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import Cloud


def product(use: str, usd: str) -> str:
    """An entry of the price list."""
    return json.dumps(
        {
            "product": {"attributes": {"usagetype": use, "instanceName": "ml.g6.xlarge"}},
            "terms": {
                "OnDemand": {
                    "X.1": {
                        "priceDimensions": {
                            "X.1.1": {"unit": "Hrs", "pricePerUnit": {"USD": usd}},
                        }
                    }
                }
            },
        }
    )


class FakeAws:
    """Price list and registry."""

    def __init__(self, *products: str, tags: tuple[str, ...] = ()) -> None:
        self.products = products
        self.tags = tags
        self.asked = 0
        self.down = False

    async def call(self, service: str, operation: str, region: str, **params: Any) -> Any:
        assert (service, operation, region) == ("pricing", "get_products", "us-east-1")
        self.asked += 1
        if self.down:
            raise UnavailableError("no answer")
        assert {item["Value"] for item in params["Filters"]} == {"eu-west-9", "ml.g6.xlarge"} or (
            params["Filters"][0]["Value"] == "us-east-2"
        )
        return {"PriceList": list(self.products)}

    async def items(self, service: str, operation: str, key: str, region: str, **p: Any) -> Any:
        del operation, key, region
        assert service == "ecr"
        assert p["registryId"] == "763104351884"
        return [{"imageTags": list(self.tags)}, {}]


def catalogue(fake: FakeAws) -> Catalogue:
    return Catalogue(cast("Aws", fake))


async def test_the_price_is_that_of_hosting_and_not_of_training_or_batches() -> None:
    fake = FakeAws(
        product("EUW9-Train:ml.g6.xlarge", "0.9"),
        product("EUW9-Batch:ml.g6.xlarge", "0.8"),
        product("EUW9-Host:ml.g6.xlarge", "1.3"),
    )
    prices = catalogue(fake)
    rate = await prices.rate("eu-west-9", "ml.g6.xlarge")
    assert rate is not None
    assert rate.value == 1.3
    assert "eu-west-9" in rate.source
    await prices.rate("eu-west-9", "ml.g6.xlarge")
    assert fake.asked == 1


async def test_no_rate_is_no_number() -> None:
    assert await catalogue(FakeAws()).rate("eu-west-9", "ml.g6.xlarge") is None
    free = FakeAws(product("EUW9-Host:ml.g6.xlarge", "0.0"))
    assert await catalogue(free).rate("eu-west-9", "ml.g6.xlarge") is None


async def test_a_price_list_that_is_down_leaves_the_table_with_its_date() -> None:
    fake = FakeAws()
    fake.down = True
    rate = await catalogue(fake).rate("us-east-2", "ml.g6.xlarge")
    assert rate is not None
    assert (rate.value, rate.date) == (1.1267, "2026-09-25")
    assert await catalogue(fake).rate("eu-west-9", "ml.g6.xlarge") is None


async def test_a_registry_without_a_pinned_image_says_so() -> None:
    with pytest.raises(NotFoundError, match="no pinned vLLM image"):
        await catalogue(FakeAws(tags=("0.30-gpu-py312", "latest"))).image("us-east-2")


async def test_without_any_sign_of_aws_it_is_not_set_up_and_nothing_is_asked(
    tmp_path: Path,
) -> None:
    app = make_app(tmp_path, targets=(TARGET, "local"))
    async with connected(app) as caller:
        listed = (await caller.tool("list_deployments")).ok
        assert listed["complete"]
        assert [item["target"] for item in listed["not_set_up"]] == [TARGET]
        refused = (await caller.tool("plan_deployment", target=TARGET)).error
        assert refused["code"] == "not_set_up"
        assert "aws login" in refused["next_action"]


async def test_the_doctor_says_which_login_which_cli_and_which_regions(
    cloud: Cloud, caller: Caller
) -> None:
    del cloud
    checks = (await caller.tool("get_help", topic="doctor", target=TARGET)).ok["doctor"]
    found = {check["name"]: check for check in checks}
    assert "123456789012" in found["sagemaker-l4: account"]["detail"]
    assert found["sagemaker-l4: aws CLI"]["ok"]
    assert "us-east-2, us-west-2" in found["sagemaker-l4: regions"]["detail"]


async def test_checkpoints_are_listed_with_what_is_served(cloud: Cloud, caller: Caller) -> None:
    del cloud
    listed = (await caller.tool("list_models", target=TARGET)).ok
    assert any("gemma-4-E2B-it" in item["id"] for item in listed["items"])
    foreign = await caller.tool("list_models", target=TARGET, inspect="google/gemma-4-E2B-it")
    assert foreign.error["code"] == "invalid_input"
    assert "s3://BUCKET/FOLDER" in foreign.text


class FakeBucket:
    """A bucket with one folder."""

    def __init__(self, **files: bytes) -> None:
        self.files = files

    async def items(self, service: str, operation: str, key: str, region: str, **p: Any) -> Any:
        del operation, key
        assert (service, region, p["Bucket"]) == ("s3", "us-east-2", "weights")
        return [
            {"Key": f"{p['Prefix']}{name.replace('__', '.')}", "Size": len(body)}
            for name, body in self.files.items()
        ]

    async def call(self, service: str, operation: str, region: str, **p: Any) -> Any:
        del region
        assert (service, operation, p["Key"]) == ("s3", "get_object", "gemma/config.json")
        return {"Body": self.files["config__json"]}


class FakeTarget:
    """What `inspect` needs of the target."""

    def __init__(self, bucket: FakeBucket) -> None:
        self.aws = bucket

    def home(self) -> str:
        return "us-east-2"


async def inspected(**files: bytes) -> dict[str, Any]:
    target = cast("SageMakerBackend", FakeTarget(FakeBucket(**files)))
    return await inspect(target, "s3://weights/gemma/")


async def test_a_bucket_folder_is_what_its_config_says_and_not_what_it_is_called() -> None:
    config = b'{"model_type": "gemma", "text_config": {"num_hidden_layers": 18}}'
    facts = await inspected(config__json=config, model__safetensors=b"0" * 2048)
    assert facts["source"] == "s3://weights/gemma/config.json"
    assert (facts["model_type"], facts["is_gemma4"], facts["whole"]) == ("gemma", False, True)
    assert facts["num_hidden_layers"] == 18
    broken = await inspected(config__json=b"{", model__safetensors=b"0")
    assert (broken["model_type"], broken["whole"]) == ("not said", False)
    with pytest.raises(NotFoundError, match="empty or not there"):
        await inspected()


@pytest.mark.parametrize(
    ("tool", "words"),
    [("probe_cold_start", "scale_to_zero"), ("save_hf_token", "needs no token"),
     ("stage_model", "s3://BUCKET/FOLDER")],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_by_name_with_what_to_do_instead(
    tool: str, words: str
) -> None:
    assert tool not in SageMakerBackend.abilities()
    assert words in SageMakerBackend.INSTEAD[tool]

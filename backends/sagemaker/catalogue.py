"""What AWS offers: pinned vLLM images of a region, and the price list. Asked, then kept."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from backends.core.errors import DevopsError, NotFoundError
from backends.core.owned import together
from backends.knowledge.facts import Fact, published
from backends.knowledge.sagemaker import (
    IMAGE_ACCOUNT,
    IMAGE_REPOSITORY,
    PRICE_REGION,
    USD_PER_HOUR,
    ImageTag,
    newest_image,
)

if TYPE_CHECKING:
    from backends.clouds.aws import Aws

_KEPT_S = 1800.0
_HOSTING = re.compile(r"(?:^|-)Host:ml\.")


class Catalogue:
    """Images and prices.

    Args:
        aws: The account.
    """

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._images: dict[str, tuple[float, ImageTag]] = {}
        self._rates: dict[tuple[str, str], tuple[float, Fact | None]] = {}

    async def image(self, region: str) -> ImageTag:
        """The newest pinned vLLM image for SageMaker in a region, by version.

        Raises:
            NotFoundError: The region's registry has none.
            DevopsError: It could not be asked.
        """
        until, kept = self._images.get(region, (0.0, None))
        if kept is not None and time.monotonic() < until:
            return kept
        details = await self._aws.items(
            "ecr",
            "describe_images",
            "imageDetails",
            region,
            registryId=IMAGE_ACCOUNT,
            repositoryName=IMAGE_REPOSITORY,
            filter={"tagStatus": "TAGGED"},
        )
        found = newest_image(tag for item in details for tag in item.get("imageTags") or ())
        if found is None:
            raise NotFoundError(
                f"AWS's registry in {region} has no pinned vLLM image for SageMaker.",
                next_action="Name one with options.image, or take another region.",
            )
        self._images[region] = (time.monotonic() + _KEPT_S, found)
        return found

    async def rate(self, region: str, kind: str) -> Fact | None:
        """What an instance costs per hour for hosting; None where no rate is known.

        The price list is asked; where it cannot be, our table answers.
        """
        until, kept = self._rates.get((region, kind), (0.0, None))
        if time.monotonic() < until:
            return kept
        try:
            found = await self._listed(region, kind)
        except DevopsError:
            # A price is never guessed; the table's says where it is from.
            return USD_PER_HOUR.get((region, kind))
        self._rates[region, kind] = (time.monotonic() + _KEPT_S, found)
        return found

    async def rates(self, region: str, types: Sequence[str]) -> dict[str, Fact]:
        """Rates of some types, those that are known."""
        found = await together(*(self.rate(region, kind) for kind in types))
        return {kind: rate for kind, rate in zip(types, found, strict=True) if rate is not None}

    async def _listed(self, region: str, kind: str) -> Fact | None:
        answer = await self._aws.call(
            "pricing",
            "get_products",
            PRICE_REGION,
            ServiceCode="AmazonSageMaker",
            Filters=[
                {"Type": "TERM_MATCH", "Field": field, "Value": value}
                for field, value in (
                    ("regionCode", region),
                    ("instanceName", kind),
                )
            ],
            MaxResults=100,
        )
        for text in answer.get("PriceList", ()):
            product = json.loads(text)
            use = str(((product.get("product") or {}).get("attributes") or {}).get("usagetype"))
            # The same instance has other prices for training, batches and notebooks.
            if not _HOSTING.search(use):
                continue
            value = _hourly(product)
            if value is not None:
                today = datetime.now(UTC).strftime("%Y-%m-%d")
                return published(value, f"AWS Price List, {kind} hosting in {region}", today)
        return USD_PER_HOUR.get((region, kind))


def _hourly(product: Mapping[str, Any]) -> float | None:
    """The on-demand price per hour of a product of the price list."""
    for term in (product.get("terms") or {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            value = float((dimension.get("pricePerUnit") or {}).get("USD") or 0)
            if str(dimension.get("unit", "")).lower().startswith(("hr", "hour")) and value > 0:
                return value
    return None

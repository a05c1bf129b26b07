"""Google's live price list: the Cloud Billing Catalog over REST, one service at a time.

A rate is taken only where exactly one entry of a region matches: two that match and differ are no
rate. Field shapes: Cloud Billing Catalog API v1, `services.skus.list` (read 2026-11-30).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from backends.core.errors import DevopsError
from backends.knowledge.facts import Fact

if TYPE_CHECKING:
    from backends.clouds.google_rest import GoogleRest

CLOUD_RUN = "152E-C115-5142"
COMPUTE = "6F81-5844-456A"
"""Ids of services in the price list (DevOps servers of the reference repositories, 2026-11-30)."""

_URL = "https://cloudbilling.googleapis.com/v1/services/{service}/skus"
_KEPT_S = 6 * 3600.0
_FAILED_S = 300.0
_SECONDS = {"s": 1.0, "GiBy.s": 1.0, "min": 60.0, "h": 3600.0, "GiBy.h": 3600.0}
"""Seconds of a usage unit."""


@dataclass(frozen=True, slots=True)
class Sku:
    """One entry of the price list.

    Args:
        description: In Google's words.
        regions: Where it holds.
        usage: `OnDemand`, `Preemptible`, `Commit1Yr`, ...
        usd_per_s: Per second of the unit (a vCPU, a GiB, a GPU); the first paid tier.
    """

    description: str
    regions: frozenset[str]
    usage: str
    usd_per_s: float


class PriceList:
    """Reads and keeps services' prices.

    Args:
        rest: Asks Google.
    """

    def __init__(self, rest: GoogleRest) -> None:
        self._rest = rest
        self._kept: dict[str, tuple[float, tuple[Sku, ...]]] = {}
        self._lock = asyncio.Lock()
        self.problem = ""
        """Why the list could not be read last; empty if it could."""

    async def skus(self, service: str, timeout_s: float) -> tuple[Sku, ...]:
        """All entries of a service, read at most every few hours; empty where it is not reached.

        Args:
            service: Its id.
            timeout_s: Most seconds to wait for the list.
        """
        async with self._lock:
            until, kept = self._kept.get(service, (0.0, ()))
            if time.monotonic() < until:
                return kept
            try:
                async with asyncio.timeout(timeout_s):
                    raw = await self._rest.pages(
                        _URL.format(service=service),
                        "Google's price list",
                        "skus",
                        {"pageSize": "5000", "currencyCode": "USD"},
                    )
            except TimeoutError:
                self.problem = f"not answered within {timeout_s:.0f} s"
            except DevopsError as error:
                self.problem = f"{error.code}: {error.message}"
            else:
                self.problem = ""
                read = tuple(sku for sku in map(_sku, raw) if sku is not None)
                self._kept[service] = (time.monotonic() + _KEPT_S, read)
                return read
            self._kept[service] = (time.monotonic() + _FAILED_S, ())
            return ()


def rate(
    skus: Sequence[Sku], region: str, pattern: str, *, without: str = "", usage: str = "OnDemand"
) -> Fact | None:
    """The rate per second of the entry a pattern matches in a region; None unless it is one rate.

    Args:
        skus: The price list.
        region: Where.
        pattern: Searched in descriptions, whatever the case.
        without: What a description must not match.
        usage: Its kind.
    """
    found = {
        sku.usd_per_s: sku
        for sku in skus
        if sku.usage == usage
        and region in sku.regions
        and re.search(pattern, sku.description, re.IGNORECASE)
        and not (without and re.search(without, sku.description, re.IGNORECASE))
    }
    if len(found) != 1:
        return None
    ((usd, sku),) = found.items()
    today = datetime.now(UTC).date().isoformat()
    return Fact(usd, f"Cloud Billing Catalog: {sku.description}", today, "published")


def _sku(raw: Mapping[str, Any]) -> Sku | None:
    """An entry, or None where its price is not a plain one per time."""
    try:
        expression = raw["pricingInfo"][0]["pricingExpression"]
        tiers = [tier["unitPrice"] for tier in expression["tieredRates"]]
        prices = [int(tier.get("units") or 0) + int(tier.get("nanos") or 0) / 1e9 for tier in tiers]
        unit = str(expression["usageUnit"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    paid = next((price for price in prices if price > 0), None)
    if paid is None or unit not in _SECONDS:
        return None
    return Sku(
        str(raw.get("description", "")),
        frozenset(map(str, raw.get("serviceRegions") or ())),
        str((raw.get("category") or {}).get("usageType", "")),
        paid / _SECONDS[unit],
    )

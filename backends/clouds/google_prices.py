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
from backends.core.words import plural
from backends.knowledge.cost import age_days
from backends.knowledge.facts import Fact

if TYPE_CHECKING:
    from backends.clouds.google_rest import GoogleRest
    from backends.core.owned import Owned

CLOUD_RUN = "152E-C115-5142"
COMPUTE = "6F81-5844-456A"
"""Ids of services in the price list (DevOps servers of the reference repositories, 2026-11-30)."""

_URL = "https://cloudbilling.googleapis.com/v1/services/{service}/skus"
_FIELDS = (
    "nextPageToken,skus(description,category/usageType,serviceRegions,"
    "pricingInfo/pricingExpression(usageUnit,tieredRates))"
)
_KEPT_S = 6 * 3600.0
_FAILED_S = 300.0
# Compute Engine's list has tens of thousands of entries on many pages: nobody waits for all of it,
# and what no target asks for is not kept.
_READ_S = 90.0
_WANTED: Mapping[str, re.Pattern[str]] = {
    COMPUTE: re.compile(r"N1 Predefined|Tesla T4|V6e\b|PD Capacity", re.IGNORECASE)
}
_SECONDS = {"s": 1.0, "GiBy.s": 1.0, "min": 60.0, "h": 3600.0, "GiBy.h": 3600.0}
_SECONDS["GiBy.mo"] = 730 * 3600.0
"""Seconds of a usage unit; a month is 730 hours, as in our tables."""


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
        owned: Has the reading that goes on behind a call.
    """

    def __init__(self, rest: GoogleRest, owned: Owned) -> None:
        self._rest = rest
        self._owned = owned
        self._kept: dict[str, tuple[float, tuple[Sku, ...]]] = {}
        self._reading: dict[str, tuple[float, asyncio.Task[None]]] = {}
        self.problem = ""
        """Why the list could not be read last; empty if it could."""

    def kept(self, service: str) -> tuple[Sku, ...]:
        """What is known of a service without asking; empty where nothing is.

        Args:
            service: Its id.
        """
        until, kept = self._kept.get(service, (0.0, ()))
        return kept if time.monotonic() < until else ()

    async def skus(self, service: str, timeout_s: float) -> tuple[Sku, ...]:
        """All entries of a service, read at most every few hours; empty where it is not reached.

        A list that takes longer than one call may wait is read on behind it, for the next call.

        Args:
            service: Its id.
            timeout_s: Most seconds to wait for the list, counted from when its reading began.
        """
        until, kept = self._kept.get(service, (0.0, ()))
        if time.monotonic() < until:
            return kept
        began, task = self._reading.get(service, (0.0, None))
        if task is None or task.done():
            began, task = time.monotonic(), self._owned.task(self._read(service))
            self._reading[service] = (began, task)
        left_s = max(0.0, began + timeout_s - time.monotonic())
        done, _ = await asyncio.wait({task}, timeout=left_s)
        if not done:
            self.problem = f"not answered within {timeout_s:.0f} s"
        return self.kept(service)

    async def _read(self, service: str) -> None:
        """Read the list and keep it; what goes wrong is said in `problem`, never raised."""
        read: tuple[Sku, ...] = ()
        try:
            async with asyncio.timeout(_READ_S):
                raw = await self._rest.pages(
                    _URL.format(service=service),
                    "Google's price list",
                    "skus",
                    {"pageSize": "5000", "currencyCode": "USD", "fields": _FIELDS},
                )
            wanted = _WANTED.get(service)
            read = tuple(
                sku
                for sku in map(_sku, raw)
                if sku is not None and (wanted is None or wanted.search(sku.description))
            )
        except TimeoutError:
            self.problem = f"not answered within {_READ_S:.0f} s"
        except DevopsError as error:
            self.problem = f"{error.code}: {error.message}"
        except (AttributeError, TypeError, ValueError) as error:
            self.problem = f"answered what is no price list ({type(error).__name__})"
        else:
            self.problem = ""
        self._kept[service] = (time.monotonic() + (_KEPT_S if read else _FAILED_S), read)


def freshness(fact: Fact, *, live: bool, problem: str = "") -> str:
    """How old a rate is, in words.

    Args:
        fact: The rate.
        live: Whether the price list said it.
        problem: Why the price list could not be read; empty if that is not known.
    """
    if live:
        return "live price list"
    why = f" ({problem})" if problem else ""
    return f"list price {plural(age_days(fact.date), 'day')} old, not read now{why}"


def rate(
    skus: Sequence[Sku], region: str, pattern: str, *, without: str = "", usage: str = "OnDemand"
) -> Fact | None:
    """The rate per second of the entry a pattern matches in a region; None unless it is one rate.

    Args:
        skus: The price list.
        region: Where.
        pattern: Searched in descriptions, whatever the case.
        without: What a description must not match.
        usage: Its kind; empty for any.
    """
    found = {
        sku.usd_per_s: sku
        for sku in skus
        if usage in {"", sku.usage}
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

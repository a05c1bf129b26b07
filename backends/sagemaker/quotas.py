"""How many instances of a type an account may have for endpoints, region by region, and has.

An endpoint holds quota for every type that its pools list, for as many instances as it has, on
whichever of them it was placed (SageMaker L4 article, 2026-09). Limits come from Service Quotas,
which refuses several calls at once: one call a region, one region at a time, kept for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.core.errors import QuotaError
from backends.knowledge.sagemaker import TARGET, TYPES
from backends.sagemaker.endpoints import Deployed

if TYPE_CHECKING:
    from backends.clouds.aws import Aws

_SUFFIX = " for endpoint usage"
_KEPT_S = 300.0
_WITHIN_S = 40.0


@dataclass(frozen=True)
class Limit:
    """A quota: its value, its code, and whether more can be asked for."""

    value: float
    code: str
    adjustable: bool = True


Limits = Mapping[str, Limit]
"""Quotas of a region by instance type; a type that is missing is not offered there."""


class Quotas:
    """The endpoint quotas of an account.

    Args:
        aws: The account.
    """

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._kept: dict[str, tuple[float, Limits]] = {}
        self._turn = asyncio.Lock()

    async def limits(self, region: str, *, fresh: bool = False) -> Limits:
        """The quotas of a region's L4 types.

        Args:
            region: Which.
            fresh: Ask, whatever was answered in the last five minutes.

        Raises:
            DevopsError: They could not be asked; never answered with "no quota".
        """
        async with self._turn:
            until, kept = self._kept.get(region, (0.0, {}))
            if not fresh and time.monotonic() < until:
                return kept
            found = await self._aws.items(
                "service-quotas",
                "list_service_quotas",
                "Quotas",
                region,
                within_s=_WITHIN_S,
                ServiceCode="sagemaker",
                PaginationConfig={"PageSize": 100},
            )
            limits = {
                kind: Limit(
                    float(item["Value"]),
                    str(item.get("QuotaCode") or ""),
                    bool(item.get("Adjustable", True)),
                )
                for item in found
                if (kind := str(item["QuotaName"]).removesuffix(_SUFFIX)) in TYPES
                and str(item["QuotaName"]).endswith(_SUFFIX)
            }
            self._kept[region] = (time.monotonic() + _KEPT_S, limits)
            return limits


def used(deployed: Iterable[Deployed]) -> dict[str, int]:
    """Instances by type that endpoints of one region hold quota for."""
    total: dict[str, int] = {}
    for item in deployed:
        if item.endpoint is None or item.config is None:
            continue
        running = {variant.name: variant for variant in item.endpoint.variants}
        for planned in item.config.variants:
            variant = running.get(planned.name)
            counts = (variant.desired, variant.count) if variant else ()
            count = max((n for n in counts if n is not None), default=planned.count)
            for kind in planned.types:
                total[kind] = total.get(kind, 0) + count
    return total


def shortages(
    limits: Limits, types: Sequence[str], need: int, taken: Mapping[str, int]
) -> list[str]:
    """What is short, each by the quota's exact name, with what to request; empty if nothing is.

    Args:
        limits: The region's.
        types: Every type that the endpoint would list.
        need: Instances.
        taken: Instances by type that others hold.
    """
    found: list[str] = []
    for kind in types:
        limit = limits.get(kind)
        name = f"{kind}{_SUFFIX}"
        if limit is None:
            found.append(f"{kind} is not offered for endpoints there")
        elif need + taken.get(kind, 0) > limit.value:
            also = f" besides the {taken[kind]} in use" if taken.get(kind) else ""
            code = f" ({limit.code})" if limit.code else ""
            found.append(
                f"{name}{code}: {need} needed{also}, {limit.value:g} allowed; request "
                f"{need + taken.get(kind, 0)}"
            )
    return found


def refuse_if_short(region: str, short: Sequence[str], *, what: str) -> None:
    """Refuse before anything is sent.

    Raises:
        QuotaError: Names every quota that is too small and what to request.
    """
    if not short:
        return
    raise QuotaError(
        f"{what} does not fit the account's quota in {region}: {'; '.join(short)}.",
        cause="A pool holds quota for every type it lists, whichever is placed; an update needs "
        "the old and the new instances at once.",
        next_action=f"find_capacity(target={TARGET!r}) shows where it fits; or deploy with only "
        "types that fit (options.instance_types of plan_deployment, whose options.ignore_quota="
        "true plans all the same); or ask the person to request the quota at "
        f"https://{region}.console.aws.amazon.com/servicequotas/home/services/sagemaker/quotas.",
        details={"quota": ", ".join(item.partition(":")[0] for item in short)},
    )

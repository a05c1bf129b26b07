"""Cloud Billing API: whether billing is on, and price lists of Cloud Run and Compute Engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.catalogue import (
    CPU_USD_PER_S,
    GPUS,
    MEMORY_USD_PER_GIB_S,
    REGIONS,
)
from backends.rehearsal.cloud.compute.price_list import compute_entries
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

# Ids of Google's price list.
CLOUD_RUN = "152E-C115-5142"
COMPUTE = "6F81-5844-456A"

_SERVICES = {CLOUD_RUN: "Cloud Run", COMPUTE: "Compute Engine"}
_UNITS = {
    "s": "second",
    "h": "hour",
    "GiBy.s": "gibibyte second",
    "GiBy.h": "gibibyte hour",
    "GiBy.mo": "gibibyte month",
}


def _sku(
    number: int,
    description: str,
    regions: list[str],
    unit: str,
    usd: float,
    *,
    service: str = CLOUD_RUN,
    usage: str = "OnDemand",
) -> Json:
    nanos = round(usd * 1e9)
    sku = f"{number:04X}-REHE-ARSE"
    return {
        "name": f"services/{service}/skus/{sku}",
        "skuId": sku,
        "description": description,
        "category": {
            "serviceDisplayName": _SERVICES[service],
            "resourceFamily": "ApplicationServices" if service == CLOUD_RUN else "Compute",
            "resourceGroup": "Compute",
            "usageType": usage,
        },
        "serviceRegions": regions,
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-30T00:00:00Z",
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "usageUnitDescription": _UNITS[unit],
                    "baseUnit": "By.s" if unit.startswith("GiBy") else "s",
                    "displayQuantity": 1,
                    "tieredRates": [
                        {
                            "startUsageAmount": 0,
                            "unitPrice": {
                                "currencyCode": "USD",
                                "units": str(nanos // 10**9),
                                "nanos": nanos % 10**9,
                            },
                        }
                    ],
                },
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "REGIONAL", "regions": regions},
    }


def _skus() -> list[Json]:
    everywhere = sorted(REGIONS)
    skus = [
        _sku(1, "Services CPU (Instance-based billing)", everywhere, "s", CPU_USD_PER_S),
        _sku(
            2,
            "Services Memory (Instance-based billing)",
            everywhere,
            "GiBy.s",
            MEMORY_USD_PER_GIB_S,
        ),
    ]
    for gpu in GPUS.values():
        plain, zonal = gpu.usd_per_s
        regions = list(gpu.regions)
        number = len(skus) + 1
        skus.append(_sku(number, f"{gpu.title} - No Zonal Redundancy", regions, "s", plain))
        skus.append(_sku(number + 1, f"{gpu.title} - Zonal Redundancy", regions, "s", zonal))
    return skus


def _compute_skus() -> list[Json]:
    return [
        _sku(
            number,
            entry.description,
            [entry.region],
            entry.unit,
            entry.usd,
            service=COMPUTE,
            usage=entry.usage,
        )
        for number, entry in enumerate(compute_entries(), start=0x1000)
    ]


def api(cloud: Cloud) -> Api:
    """The API."""
    world = cloud.world

    def info(request: Request, project: str) -> Json:
        del request
        world.check_project(project)
        return {
            "name": f"projects/{world.project}/billingInfo",
            "projectId": world.project,
            "billingAccountName": "billingAccounts/REHEAR-SALONL-YNOBIL",
            "billingEnabled": True,
        }

    def services(request: Request) -> Json:
        known = [
            {"name": f"services/{key}", "serviceId": key, "displayName": title}
            for key, title in _SERVICES.items()
        ]
        return page(request, known, "services", default=5000)

    def skus(request: Request, service: str) -> Json:
        if service not in _SERVICES:
            raise ApiError(404, f"Service services/{service} not found.")
        listed = _skus() if service == CLOUD_RUN else _compute_skus()
        return page(request, listed, "skus", default=5000)

    made = Api("cloudbilling.googleapis.com", "Cloud Billing API", always_on=True)
    made.add(
        "GET",
        r"/v1/projects/([^/]+)/billingInfo",
        info,
        "resourcemanager.projects.get",
    )
    made.add("GET", "/v1/services", services)
    made.add("GET", r"/v1/services/([^/]+)/skus", skus)
    return made

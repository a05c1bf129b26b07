"""The Price List API: what SageMaker's machines cost, in every region and for every use."""

from __future__ import annotations

import binascii
import json

from backends.rehearsal.cloud.aws.catalogue import (
    INSTANCE_TYPES,
    PRICING_REGIONS,
    REGIONS,
    offered,
    price,
)
from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service, page
from backends.rehearsal.cloud.web import Json

_PAGE = 100
# Use -> usage type's word and how much more it costs than hosting.
_USES = {"Hosting": ("Host", 1.0), "Training": ("Train", 1.0), "Notebook": ("Notebk", 1.0)}


def service() -> Service:
    """The service's handlers."""
    return Service("pricing", "json", "pricing").on(GetProducts=_products)


def _products(call: Call) -> Json:
    if call.region not in PRICING_REGIONS:
        raise AwsError("UnknownOperationException", "The Price List API is not in this region.")
    if call.text("ServiceCode") != "AmazonSageMaker":
        raise AwsError("NotFoundException", "Invalid Service Code")
    filters = {item["Field"]: item["Value"] for item in call.params.get("Filters") or []}
    found = []
    for region in REGIONS.values():
        for name, kind in INSTANCE_TYPES.items():
            if not offered(region.name, name):
                continue
            for use, (word, factor) in _USES.items():
                attributes = {
                    "servicecode": "AmazonSageMaker",
                    "servicename": "Amazon SageMaker",
                    "location": region.title,
                    "locationType": "AWS Region",
                    "regionCode": region.name,
                    "instanceName": name,
                    "instanceType": name,
                    "platoinstancename": name,
                    "platoinstancetype": use,
                    "component": use,
                    "computeType": "Accelerated Computing" if kind.gpus else "Standard",
                    "vCpu": str(kind.vcpus),
                    "memory": f"{kind.memory_gib} GiB",
                    "gpu": str(kind.gpus) if kind.gpus else "N/A",
                    "operation": "RunInstance",
                    "usagetype": f"{region.price_code}-{word}:{name}",
                }
                product = {"productFamily": "ML Instance", **attributes}
                if all(product.get(field) == value for field, value in filters.items()):
                    found.append(_entry(attributes, price(region.name, name) * factor))
    answer = page(call, found, "PriceList", _PAGE)
    return {"FormatVersion": "aws_v1", **answer}


def _entry(attributes: Json, usd_per_hour: float) -> str:
    sku = f"SKU{binascii.crc32(attributes['usagetype'].encode()):010d}"
    offer = f"{sku}.JRTCKXETXF"
    dimension = {
        "unit": "Hrs",
        "description": f"${usd_per_hour} per {attributes['usagetype']} hour in "
        f"{attributes['location']}",
        "pricePerUnit": {"USD": f"{usd_per_hour:.10f}"},
        "beginRange": "0",
        "endRange": "Inf",
    }
    return json.dumps(
        {
            "product": {"productFamily": "ML Instance", "attributes": attributes, "sku": sku},
            "serviceCode": "AmazonSageMaker",
            "terms": {
                "OnDemand": {
                    offer: {
                        "priceDimensions": {f"{offer}.6YS6EN2CT7": dimension},
                        "sku": sku,
                        "offerTermCode": "JRTCKXETXF",
                        "termAttributes": {},
                    }
                }
            },
            "publicationDate": "2026-11-25T00:00:00Z",
        }
    )

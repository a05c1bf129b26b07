"""EC2, as far as it tells where a machine type is offered."""

from __future__ import annotations

import fnmatch

from backends.rehearsal.cloud.aws.catalogue import INSTANCE_TYPES, REGIONS, offered
from backends.rehearsal.cloud.aws.wire import Call, Service
from backends.rehearsal.cloud.web import Json

# Types of G4dn and M5 are in every zone; only L4 machines differ by region here.
_ALL_ZONES = "abc"


def service() -> Service:
    """The service's handlers."""
    return Service("ec2", "ec2", "ec2", "http://ec2.amazonaws.com/doc/2016-11-15/").on(
        DescribeInstanceTypeOfferings=_offerings, DescribeRegions=_regions
    )


def _offerings(call: Call) -> Json:
    filters = {
        str(item.get("Name")): _values(item.get("Value"))
        for item in call.params.get("Filter") or []
    }
    by_zone = call.text("LocationType") == "availability-zone"
    found = []
    for name in INSTANCE_TYPES:
        kind = name.removeprefix("ml.")
        wanted = filters.get("instance-type")
        if not offered(call.region, name) or (
            wanted and not any(fnmatch.fnmatchcase(kind, pattern) for pattern in wanted)
        ):
            continue
        zones = (REGIONS[call.region].zones if kind.startswith("g6") else "") or _ALL_ZONES
        places = [call.region + zone for zone in zones] if by_zone else [call.region]
        found += [
            {
                "instanceType": kind,
                "locationType": call.text("LocationType") or "region",
                "location": place,
            }
            for place in places
            if place in (filters.get("location") or [place])
        ]
    return {"instanceTypeOfferingSet": found}


def _regions(call: Call) -> Json:
    del call
    return {
        "regionInfo": [
            {
                "regionName": name,
                "regionEndpoint": f"ec2.{name}.amazonaws.com",
                "optInStatus": "opt-in-not-required",
            }
            for name in REGIONS
        ]
    }


def _values(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]

"""Compute Engine API (v1, beta, alpha): its parts, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.compute.common import VERSION, Compute
from backends.rehearsal.cloud.compute.disks import Disks
from backends.rehearsal.cloud.compute.kinds import Kinds
from backends.rehearsal.cloud.compute.life import Life
from backends.rehearsal.cloud.compute.machines import Machines
from backends.rehearsal.cloud.compute.networks import Networks
from backends.rehearsal.cloud.compute.places import Places
from backends.rehearsal.cloud.web import Api

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud


def api(cloud: Cloud) -> Api:
    """The API."""
    compute = Compute(cloud)
    places = Places(compute)
    disks = Disks(compute, places)
    life = cloud.life = Life(compute, disks)
    made = Api(
        "compute.googleapis.com",
        "Compute Engine API",
        hosts=r"(?:compute|www)\.googleapis\.com",
        errors="legacy",
    )
    machines = Machines(compute, places, disks, life)
    for part in (places, Kinds(compute), Networks(compute), disks, machines):
        part.add_to(made)
    one = VERSION + r"/(?:zones/[^/]+|regions/[^/]+|global)/operations/([^/]+)"
    made.add("GET", one, compute.operation)
    made.add("POST", one + "/wait", compute.wait)
    made.add("GET", VERSION + r"/zones/([^/]+)/operations", compute.operations)
    made.add("GET", VERSION + "/global/operations", compute.operations)
    return made

"""Compute Engine API: networks and subnets, zones and GPUs, and simple virtual machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.apis.compute_machines import (
    VERSION,
    MachineRoutes,
    add_machines,
)
from backends.rehearsal.cloud.catalogue import REGIONS
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.world import World

_URL = "https://www.googleapis.com/compute/v1/"
_ZONE_LETTERS = "abc"

# GPUs of virtual machines and the zones that sell them here.
_ACCELERATORS = {
    "nvidia-tesla-t4": ("NVIDIA T4", ("us-central1-a", "us-east4-b", "us-west2-b", "us-west2-c")),
    "nvidia-l4": ("NVIDIA L4", ("us-central1-a", "us-east4-a", "us-west1-a")),
}
_MACHINES = {
    "n1-standard-2": (2, 7_680),
    "n1-standard-4": (4, 15_360),
    "g2-standard-4": (4, 16_384),
    "g2-standard-8": (8, 32_768),
}


def api(cloud: Cloud) -> Api:
    """The API."""
    routes = Compute(cloud.world)
    made = Api(
        "compute.googleapis.com",
        "Compute Engine API",
        hosts=r"(?:compute|www)\.googleapis\.com",
        errors="legacy",
    )
    add = made.add
    add("GET", VERSION, routes.project, "compute.projects.get")
    add(
        "POST",
        VERSION + "/setCommonInstanceMetadata",
        routes.set_project_metadata,
        "compute.projects.setCommonInstanceMetadata",
    )
    add("GET", VERSION + "/regions", routes.regions, "compute.regions.list")
    add("GET", VERSION + r"/regions/([^/]+)", routes.region, "compute.regions.get")
    add("GET", VERSION + "/zones", routes.zones, "compute.zones.list")
    add("GET", VERSION + r"/zones/([^/]+)", routes.zone, "compute.zones.get")
    add("GET", VERSION + "/global/networks", routes.networks, "compute.networks.list")
    add("GET", VERSION + r"/global/networks/([^/]+)", routes.network, "compute.networks.get")
    subnets = VERSION + r"/regions/([^/]+)/subnetworks"
    add("GET", subnets, routes.subnets, "compute.subnetworks.list")
    add("GET", VERSION + "/aggregated/subnetworks", routes.all_subnets)
    add("GET", subnets + r"/([^/]+)", routes.subnet, "compute.subnetworks.get")
    add("PATCH", subnets + r"/([^/]+)", routes.patch_subnet, "compute.subnetworks.update")
    add(
        "POST",
        subnets + r"/([^/]+)/setPrivateIpGoogleAccess",
        routes.private_access,
        "compute.subnetworks.setPrivateIpGoogleAccess",
    )
    add("GET", VERSION + r"/regions/([^/]+)/routers", routes.no_routers, "compute.routers.list")
    for kind in ("firewalls", "addresses"):
        add("GET", VERSION + f"/global/{kind}", routes.nothing, f"compute.{kind}.list")
    add_kinds(made, routes)
    add_machines(made, MachineRoutes(routes))
    operation = r"/(?:zones/[^/]+|regions/[^/]+|global)/operations/([^/]+)"
    add("GET", VERSION + operation, routes.operation)
    add("POST", VERSION + operation + "/wait", routes.operation)
    return made


def add_kinds(made: Api, routes: Compute) -> None:
    """Routes of GPUs, machine types and images."""
    add = made.add
    zone = VERSION + r"/zones/([^/]+)"
    types = "acceleratorTypes"
    add("GET", VERSION + f"/aggregated/{types}", routes.all_accelerators, f"compute.{types}.list")
    add("GET", zone + f"/{types}", routes.accelerators, f"compute.{types}.list")
    add("GET", zone + rf"/{types}/([^/]+)", routes.accelerator, f"compute.{types}.get")
    add("GET", zone + "/machineTypes", routes.machine_types, "compute.machineTypes.list")
    add("GET", zone + r"/machineTypes/([^/]+)", routes.machine_type, "compute.machineTypes.get")
    add("GET", VERSION + "/aggregated/machineTypes", routes.nothing_by_zone)
    add("GET", VERSION + r"/global/images/family/([^/]+)", routes.image_family)
    add("GET", VERSION + r"/global/images/([^/]+)", routes.image)


class Compute:
    """Everything but machines.

    Args:
        world: The project.
    """

    def __init__(self, world: World) -> None:
        self.world = world

    # ------------------------------------------------------------------------- project, places

    def project(self, request: Request, project: str) -> Json:
        """The project, as Compute Engine sees it."""
        del request
        self.check(project)
        return {
            "kind": "compute#project",
            "id": self.world.number,
            "name": self.world.project,
            "selfLink": self.url(""),
            "commonInstanceMetadata": {
                "kind": "compute#metadata",
                "fingerprint": "Zm9v",
                "items": [],
                **self.world.project_metadata,
            },
            "defaultServiceAccount": self.world.default_account,
            "quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 1.0, "usage": self._gpus_used("")}],
        }

    def set_project_metadata(self, request: Request, project: str) -> Json:
        """Metadata of all machines: where gcloud puts ssh keys."""
        self.check(project)
        self.world.project_metadata = request.json()
        return self.make_operation("setCommonInstanceMetadata", "")

    def regions(self, request: Request, project: str) -> Json:
        """All regions."""
        self.check(project)
        return {
            "kind": "compute#regionList",
            "items": [self.region(request, project, region) for region in REGIONS],
        }

    def region(self, request: Request, project: str, region: str) -> Json:
        """One region with its quotas (which are not those of Cloud Run)."""
        del request
        self.check(project)
        if region not in REGIONS:
            raise self.not_found(f"regions/{region}")
        quotas = self.world.options.get("compute_quotas", {}).get(region, {})
        limits = {"NVIDIA_T4_GPUS": 1, "NVIDIA_L4_GPUS": 1, "SSD_TOTAL_GB": 500, "CPUS": 24}
        return {
            "kind": "compute#region",
            "id": str(1000 + list(REGIONS).index(region)),
            "name": region,
            "status": "UP",
            "selfLink": self.url(f"regions/{region}"),
            "zones": [self.url(f"zones/{region}-{letter}") for letter in _ZONE_LETTERS],
            "quotas": [
                {
                    "metric": metric,
                    "limit": float(quotas.get(metric, limit)),
                    "usage": self._gpus_used(region) if "GPUS" in metric else 0.0,
                }
                for metric, limit in limits.items()
            ],
        }

    def zones(self, request: Request, project: str) -> Json:
        """All zones."""
        self.check(project)
        names = [f"{region}-{letter}" for region in REGIONS for letter in _ZONE_LETTERS]
        return {
            "kind": "compute#zoneList",
            "items": [self.zone(request, project, name) for name in names],
        }

    def zone(self, request: Request, project: str, zone: str) -> Json:
        """One zone."""
        del request
        self.check(project)
        region = zone[:-2]
        if region not in REGIONS:
            raise self.not_found(f"zones/{zone}")
        return {
            "kind": "compute#zone",
            "id": str(2000 + list(REGIONS).index(region) * 10 + ord(zone[-1])),
            "name": zone,
            "status": "UP",
            "region": self.url(f"regions/{region}"),
            "selfLink": self.url(f"zones/{zone}"),
        }

    # ------------------------------------------------------------------------- networks

    def networks(self, request: Request, project: str) -> Json:
        """The default network."""
        return {
            "kind": "compute#networkList",
            "items": [self.network(request, project, "default")],
        }

    def network(self, request: Request, project: str, name: str) -> Json:
        """One network."""
        del request
        self.check(project)
        if name != "default":
            raise self.not_found(f"global/networks/{name}")
        return {
            "kind": "compute#network",
            "id": "4242",
            "name": name,
            "selfLink": self.url("global/networks/default"),
            "autoCreateSubnetworks": True,
            "subnetworks": [self.url(f"regions/{r}/subnetworks/default") for r in REGIONS],
        }

    def subnets(self, request: Request, project: str, region: str) -> Json:
        """Subnets of a region."""
        return {
            "kind": "compute#subnetworkList",
            "items": [self.subnet(request, project, region, "default")],
        }

    def all_subnets(self, request: Request, project: str) -> Json:
        """Subnets of all regions."""
        return {
            "kind": "compute#subnetworkAggregatedList",
            "items": {
                f"regions/{region}": {
                    "subnetworks": [self.subnet(request, project, region, "default")]
                }
                for region in REGIONS
            },
        }

    def subnet(self, request: Request, project: str, region: str, name: str) -> Json:
        """One subnet; every region has `default`, without Private Google Access at first."""
        del request
        self.check(project)
        if region not in REGIONS or name != "default":
            raise self.not_found(f"regions/{region}/subnetworks/{name}")
        return self.world.subnets.setdefault(
            f"{region}/{name}",
            {
                "kind": "compute#subnetwork",
                "id": str(5000 + list(REGIONS).index(region)),
                "name": name,
                "fingerprint": "Zm9v",
                "ipCidrRange": f"10.{128 + 2 * list(REGIONS).index(region)}.0.0/20",
                "privateIpGoogleAccess": False,
                "region": self.url(f"regions/{region}"),
                "network": self.url("global/networks/default"),
                "selfLink": self.url(f"regions/{region}/subnetworks/{name}"),
            },
        )

    def private_access(self, request: Request, project: str, region: str, name: str) -> Json:
        """Switch Private Google Access of a subnet."""
        found = self.subnet(request, project, region, name)
        found["privateIpGoogleAccess"] = bool(request.json().get("privateIpGoogleAccess"))
        target = f"regions/{region}/subnetworks/{name}"
        return self.make_operation("setPrivateIpGoogleAccess", target)

    def patch_subnet(self, request: Request, project: str, region: str, name: str) -> Json:
        """Change a subnet."""
        found = self.subnet(request, project, region, name)
        found |= {key: value for key, value in request.json().items() if key != "fingerprint"}
        return self.make_operation("patch", f"regions/{region}/subnetworks/{name}")

    def no_routers(self, request: Request, project: str, region: str) -> Json:
        """Routers (and Cloud NAT): none."""
        del request, region
        self.check(project)
        return {"kind": "compute#routerList", "items": []}

    def nothing(self, request: Request, project: str) -> Json:
        """An empty list."""
        del request
        self.check(project)
        return {"items": []}

    def nothing_by_zone(self, request: Request, project: str) -> Json:
        """An empty list over zones."""
        del request
        self.check(project)
        return {"items": {}}

    # ------------------------------------------------------------------------- kinds of machines

    def all_accelerators(self, request: Request, project: str) -> Json:
        """GPUs by zone."""
        self.check(project)
        zones = sorted({zone for _, sold in _ACCELERATORS.values() for zone in sold})
        return {
            "kind": "compute#acceleratorTypeAggregatedList",
            "items": {
                f"zones/{zone}": {
                    "acceleratorTypes": self.accelerators(request, project, zone)["items"]
                }
                for zone in zones
            },
        }

    def accelerators(self, request: Request, project: str, zone: str) -> Json:
        """GPUs of a zone."""
        del request
        self.check(project)
        return {
            "kind": "compute#acceleratorTypeList",
            "items": [
                self._accelerator(name, zone)
                for name, (_, sold) in _ACCELERATORS.items()
                if zone in sold
            ],
        }

    def accelerator(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One GPU of a zone."""
        del request
        self.check(project)
        if zone not in _ACCELERATORS.get(name, ("", ()))[1]:
            raise self.not_found(f"zones/{zone}/acceleratorTypes/{name}")
        return self._accelerator(name, zone)

    def _accelerator(self, name: str, zone: str) -> Json:
        return {
            "kind": "compute#acceleratorType",
            "id": "10",
            "name": name,
            "description": _ACCELERATORS[name][0],
            "maximumCardsPerInstance": 4,
            "zone": self.url(f"zones/{zone}"),
            "selfLink": self.url(f"zones/{zone}/acceleratorTypes/{name}"),
        }

    def machine_types(self, request: Request, project: str, zone: str) -> Json:
        """Machine types of a zone."""
        return {"items": [self.machine_type(request, project, zone, name) for name in _MACHINES]}

    def machine_type(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One machine type."""
        del request
        self.check(project)
        if name not in _MACHINES:
            raise self.not_found(f"zones/{zone}/machineTypes/{name}")
        cpus, memory_mb = _MACHINES[name]
        return {
            "kind": "compute#machineType",
            "id": str(3000 + list(_MACHINES).index(name)),
            "name": name,
            "guestCpus": cpus,
            "memoryMb": memory_mb,
            "zone": zone,
            "selfLink": self.url(f"zones/{zone}/machineTypes/{name}"),
        }

    def image_family(self, request: Request, project: str, family: str) -> Json:
        """The newest image of a family, of any project."""
        return self.image(request, project, f"{family}-v20261110") | {"family": family}

    def image(self, request: Request, project: str, name: str) -> Json:
        """An image of any project."""
        del request
        return {
            "kind": "compute#image",
            "id": "77",
            "name": name,
            "diskSizeGb": "10",
            "status": "READY",
            "selfLink": f"{_URL}projects/{project}/global/images/{name}",
        }

    def operation(self, request: Request, project: str, name: str) -> Json:
        """An operation, which is done."""
        del request
        self.check(project)
        found = self.world.operations.get(name)
        if found is None:
            raise self.not_found(f"operations/{name}")
        return found

    # ------------------------------------------------------------------------- inside

    def check(self, project: str) -> None:
        """Refuse another project."""
        if not self.world.is_ours(project):
            raise self.not_found("")

    def url(self, path: str) -> str:
        """The full name of a resource of the project."""
        return f"{_URL}projects/{self.world.project}/{path}".rstrip("/")

    def not_found(self, path: str) -> ApiError:
        """The error for a resource that does not exist."""
        where = f"projects/{self.world.project}/{path}".rstrip("/")
        return ApiError(404, f"The resource '{where}' was not found", reason="notFound")

    def _gpus_used(self, region: str) -> float:
        return float(
            sum(
                int(item.get("acceleratorCount") or 0)
                for key, instance in self.world.instances.items()
                if key.startswith(region) and instance["status"] == "RUNNING"
                for item in instance.get("guestAccelerators") or []
            )
        )

    def make_operation(self, kind: str, target: str, error: Json | None = None) -> Json:
        """An operation on a resource, done, and kept to be asked for."""
        name = f"operation-{self.world.next()}"
        place = re.match(r"(zones|regions)/([^/]+)", target)
        scope = place.group(0) if place else "global"
        operation: Json = {
            "kind": "compute#operation",
            "id": str(self.world.counter),
            "name": name,
            "operationType": kind,
            "status": "DONE",
            "progress": 100,
            "targetLink": self.url(target),
            "insertTime": now(),
            "startTime": now(),
            "endTime": now(),
            "user": self.world.account,
            "selfLink": self.url(f"{scope}/operations/{name}"),
        }
        if place:
            operation[place.group(1)[:-1]] = self.url(scope)
        if error:
            operation |= error
        self.world.operations[name] = operation
        return operation

"""Compute Engine API: networks and subnets, zones and GPUs, and simple virtual machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.catalogue import REGIONS
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.world import World

_VERSION = r"/compute/(?:v1|beta|alpha)/projects/([^/]+)"
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
    routes = _Compute(cloud.world)
    made = Api(
        "compute.googleapis.com",
        "Compute Engine API",
        hosts=r"(?:compute|www)\.googleapis\.com",
        errors="legacy",
    )
    add = made.add
    add("GET", _VERSION, routes.project, "compute.projects.get")
    add(
        "POST",
        _VERSION + "/setCommonInstanceMetadata",
        routes.set_project_metadata,
        "compute.projects.setCommonInstanceMetadata",
    )
    add("GET", _VERSION + "/regions", routes.regions, "compute.regions.list")
    add("GET", _VERSION + r"/regions/([^/]+)", routes.region, "compute.regions.get")
    add("GET", _VERSION + "/zones", routes.zones, "compute.zones.list")
    add("GET", _VERSION + r"/zones/([^/]+)", routes.zone, "compute.zones.get")
    add("GET", _VERSION + "/global/networks", routes.networks, "compute.networks.list")
    add("GET", _VERSION + r"/global/networks/([^/]+)", routes.network, "compute.networks.get")
    subnets = _VERSION + r"/regions/([^/]+)/subnetworks"
    add("GET", subnets, routes.subnets, "compute.subnetworks.list")
    add("GET", _VERSION + "/aggregated/subnetworks", routes.all_subnets)
    add("GET", subnets + r"/([^/]+)", routes.subnet, "compute.subnetworks.get")
    add("PATCH", subnets + r"/([^/]+)", routes.patch_subnet, "compute.subnetworks.update")
    add(
        "POST",
        subnets + r"/([^/]+)/setPrivateIpGoogleAccess",
        routes.private_access,
        "compute.subnetworks.setPrivateIpGoogleAccess",
    )
    add("GET", _VERSION + r"/regions/([^/]+)/routers", routes.no_routers, "compute.routers.list")
    for kind in ("firewalls", "addresses"):
        add("GET", _VERSION + f"/global/{kind}", routes.nothing, f"compute.{kind}.list")
    _machine_routes(made, routes)
    return made


def _machine_routes(made: Api, routes: _Compute) -> None:
    add = made.add
    zone = _VERSION + r"/zones/([^/]+)"
    types = "acceleratorTypes"
    add("GET", _VERSION + f"/aggregated/{types}", routes.all_accelerators, f"compute.{types}.list")
    add("GET", zone + f"/{types}", routes.accelerators, f"compute.{types}.list")
    add("GET", zone + rf"/{types}/([^/]+)", routes.accelerator, f"compute.{types}.get")
    add("GET", zone + "/machineTypes", routes.machine_types, "compute.machineTypes.list")
    add("GET", zone + r"/machineTypes/([^/]+)", routes.machine_type, "compute.machineTypes.get")
    add("GET", _VERSION + "/aggregated/machineTypes", routes.nothing_by_zone)
    add("GET", _VERSION + r"/global/images/family/([^/]+)", routes.image_family)
    add("GET", _VERSION + r"/global/images/([^/]+)", routes.image)
    instances = zone + "/instances"
    add("POST", instances, routes.insert, "compute.instances.create")
    add("GET", instances, routes.instances, "compute.instances.list")
    add("GET", _VERSION + "/aggregated/instances", routes.all_instances, "compute.instances.list")
    add("GET", instances + r"/([^/]+)", routes.instance, "compute.instances.get")
    add("DELETE", instances + r"/([^/]+)", routes.delete, "compute.instances.delete")
    add(
        "GET",
        instances + r"/([^/]+)/serialPort",
        routes.serial,
        "compute.instances.getSerialPortOutput",
    )
    for verb in ("start", "stop", "reset", "setMetadata", "setLabels"):
        add(
            "POST",
            instances + rf"/([^/]+)/({verb})",
            routes.change,
            f"compute.instances.{verb}",
        )
    add("GET", zone + "/disks", routes.disks, "compute.disks.list")
    add("GET", _VERSION + "/aggregated/disks", routes.all_disks, "compute.disks.list")
    add("GET", zone + r"/disks/([^/]+)", routes.disk, "compute.disks.get")
    add("DELETE", zone + r"/disks/([^/]+)", routes.delete_disk, "compute.disks.delete")
    operation = r"/(?:zones/[^/]+|regions/[^/]+|global)/operations/([^/]+)"
    add("GET", _VERSION + operation, routes.operation)
    add("POST", _VERSION + operation + "/wait", routes.operation)


class _Compute:
    def __init__(self, world: World) -> None:
        self._world = world

    # ------------------------------------------------------------------------- project, places

    def project(self, request: Request, project: str) -> Json:
        """The project, as Compute Engine sees it."""
        del request
        self._check(project)
        return {
            "kind": "compute#project",
            "id": self._world.number,
            "name": self._world.project,
            "selfLink": self._url(""),
            "commonInstanceMetadata": {
                "kind": "compute#metadata",
                "fingerprint": "Zm9v",
                "items": [],
                **self._world.project_metadata,
            },
            "defaultServiceAccount": self._world.default_account,
            "quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 1.0, "usage": self._gpus_used("")}],
        }

    def set_project_metadata(self, request: Request, project: str) -> Json:
        """Metadata of all machines: where gcloud puts ssh keys."""
        self._check(project)
        self._world.project_metadata = request.json()
        return self._operation("setCommonInstanceMetadata", "")

    def regions(self, request: Request, project: str) -> Json:
        """All regions."""
        self._check(project)
        return {
            "kind": "compute#regionList",
            "items": [self.region(request, project, region) for region in REGIONS],
        }

    def region(self, request: Request, project: str, region: str) -> Json:
        """One region with its quotas (which are not those of Cloud Run)."""
        del request
        self._check(project)
        if region not in REGIONS:
            raise self._not_found(f"regions/{region}")
        quotas = self._world.options.get("compute_quotas", {}).get(region, {})
        limits = {"NVIDIA_T4_GPUS": 1, "NVIDIA_L4_GPUS": 1, "SSD_TOTAL_GB": 500, "CPUS": 24}
        return {
            "kind": "compute#region",
            "id": str(1000 + list(REGIONS).index(region)),
            "name": region,
            "status": "UP",
            "selfLink": self._url(f"regions/{region}"),
            "zones": [self._url(f"zones/{region}-{letter}") for letter in _ZONE_LETTERS],
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
        self._check(project)
        names = [f"{region}-{letter}" for region in REGIONS for letter in _ZONE_LETTERS]
        return {
            "kind": "compute#zoneList",
            "items": [self.zone(request, project, name) for name in names],
        }

    def zone(self, request: Request, project: str, zone: str) -> Json:
        """One zone."""
        del request
        self._check(project)
        region = zone[:-2]
        if region not in REGIONS:
            raise self._not_found(f"zones/{zone}")
        return {
            "kind": "compute#zone",
            "id": str(2000 + list(REGIONS).index(region) * 10 + ord(zone[-1])),
            "name": zone,
            "status": "UP",
            "region": self._url(f"regions/{region}"),
            "selfLink": self._url(f"zones/{zone}"),
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
        self._check(project)
        if name != "default":
            raise self._not_found(f"global/networks/{name}")
        return {
            "kind": "compute#network",
            "id": "4242",
            "name": name,
            "selfLink": self._url("global/networks/default"),
            "autoCreateSubnetworks": True,
            "subnetworks": [self._url(f"regions/{r}/subnetworks/default") for r in REGIONS],
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
        self._check(project)
        if region not in REGIONS or name != "default":
            raise self._not_found(f"regions/{region}/subnetworks/{name}")
        return self._world.subnets.setdefault(
            f"{region}/{name}",
            {
                "kind": "compute#subnetwork",
                "id": str(5000 + list(REGIONS).index(region)),
                "name": name,
                "fingerprint": "Zm9v",
                "ipCidrRange": f"10.{128 + 2 * list(REGIONS).index(region)}.0.0/20",
                "privateIpGoogleAccess": False,
                "region": self._url(f"regions/{region}"),
                "network": self._url("global/networks/default"),
                "selfLink": self._url(f"regions/{region}/subnetworks/{name}"),
            },
        )

    def private_access(self, request: Request, project: str, region: str, name: str) -> Json:
        """Switch Private Google Access of a subnet."""
        found = self.subnet(request, project, region, name)
        found["privateIpGoogleAccess"] = bool(request.json().get("privateIpGoogleAccess"))
        target = f"regions/{region}/subnetworks/{name}"
        return self._operation("setPrivateIpGoogleAccess", target)

    def patch_subnet(self, request: Request, project: str, region: str, name: str) -> Json:
        """Change a subnet."""
        found = self.subnet(request, project, region, name)
        found |= {key: value for key, value in request.json().items() if key != "fingerprint"}
        return self._operation("patch", f"regions/{region}/subnetworks/{name}")

    def no_routers(self, request: Request, project: str, region: str) -> Json:
        """Routers (and Cloud NAT): none."""
        del request, region
        self._check(project)
        return {"kind": "compute#routerList", "items": []}

    def nothing(self, request: Request, project: str) -> Json:
        """An empty list."""
        del request
        self._check(project)
        return {"items": []}

    def nothing_by_zone(self, request: Request, project: str) -> Json:
        """An empty list over zones."""
        del request
        self._check(project)
        return {"items": {}}

    # ------------------------------------------------------------------------- kinds of machines

    def all_accelerators(self, request: Request, project: str) -> Json:
        """GPUs by zone."""
        self._check(project)
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
        self._check(project)
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
        self._check(project)
        if zone not in _ACCELERATORS.get(name, ("", ()))[1]:
            raise self._not_found(f"zones/{zone}/acceleratorTypes/{name}")
        return self._accelerator(name, zone)

    def _accelerator(self, name: str, zone: str) -> Json:
        return {
            "kind": "compute#acceleratorType",
            "id": "10",
            "name": name,
            "description": _ACCELERATORS[name][0],
            "maximumCardsPerInstance": 4,
            "zone": self._url(f"zones/{zone}"),
            "selfLink": self._url(f"zones/{zone}/acceleratorTypes/{name}"),
        }

    def machine_types(self, request: Request, project: str, zone: str) -> Json:
        """Machine types of a zone."""
        return {"items": [self.machine_type(request, project, zone, name) for name in _MACHINES]}

    def machine_type(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One machine type."""
        del request
        self._check(project)
        if name not in _MACHINES:
            raise self._not_found(f"zones/{zone}/machineTypes/{name}")
        cpus, memory_mb = _MACHINES[name]
        return {
            "kind": "compute#machineType",
            "id": str(3000 + list(_MACHINES).index(name)),
            "name": name,
            "guestCpus": cpus,
            "memoryMb": memory_mb,
            "zone": zone,
            "selfLink": self._url(f"zones/{zone}/machineTypes/{name}"),
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

    # ------------------------------------------------------------------------- machines

    def insert(self, request: Request, project: str, zone: str) -> Json:
        """Make a virtual machine."""
        self.zone(request, project, zone)
        body = request.json()
        key = f"{zone}/{body['name']}"
        where = f"zones/{zone}/instances/{body['name']}"
        if key in self._world.instances:
            raise ApiError(
                409,
                f"The resource 'projects/{self._world.project}/{where}' already exists",
                reason="alreadyExists",
            )
        refusal = self._world.options.get("insert_error")
        if refusal:
            return self._operation("insert", where, error=refusal)
        self._world.instances[key] = self._instance(zone, body)
        for disk in body.get("disks") or []:
            parameters = disk.get("initializeParams") or {}
            name = parameters.get("diskName") or body["name"]
            self._world.disks[f"{zone}/{name}"] = self._disk(zone, name, parameters)
        return self._operation("insert", where)

    def instances(self, request: Request, project: str, zone: str) -> Json:
        """Virtual machines of a zone."""
        self._check(project)
        found = [
            value for key, value in self._world.instances.items() if key.startswith(f"{zone}/")
        ]
        return {"kind": "compute#instanceList"} | page(request, found, "items", default=500)

    def all_instances(self, request: Request, project: str) -> Json:
        """Virtual machines of all zones."""
        del request
        self._check(project)
        return {
            "kind": "compute#instanceAggregatedList",
            "items": self._by_zone(self._world.instances, "instances"),
        }

    def instance(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One virtual machine."""
        del request
        self._check(project)
        found = self._world.instances.get(f"{zone}/{name}")
        if found is None:
            raise self._not_found(f"zones/{zone}/instances/{name}")
        return found

    def delete(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a virtual machine, and the disks that go with it."""
        found = self.instance(request, project, zone, name)
        del self._world.instances[f"{zone}/{name}"]
        for disk in found.get("disks") or []:
            if disk.get("autoDelete"):
                parameters = disk.get("initializeParams") or {}
                self._world.disks.pop(f"{zone}/{parameters.get('diskName') or name}", None)
        return self._operation("delete", f"zones/{zone}/instances/{name}")

    def change(self, request: Request, project: str, zone: str, name: str, verb: str) -> Json:
        """Start, stop, reset, or set metadata or labels."""
        found = self.instance(request, project, zone, name)
        if verb in {"start", "stop"}:
            found["status"] = {"start": "RUNNING", "stop": "TERMINATED"}[verb]
        elif verb == "setMetadata":
            found["metadata"] = request.json()
        elif verb == "setLabels":
            found["labels"] = request.json().get("labels") or {}
        return self._operation(verb, f"zones/{zone}/instances/{name}")

    def serial(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Output of the serial console."""
        self.instance(request, project, zone, name)
        text = str(self._world.options.get("serial", "Booting\n"))
        start = int(request.value("start") or 0)
        return {
            "kind": "compute#serialPortOutput",
            "contents": text[start:],
            "start": str(start),
            "next": str(len(text)),
            "selfLink": self._url(f"zones/{zone}/instances/{name}/serialPort"),
        }

    def disks(self, request: Request, project: str, zone: str) -> Json:
        """Disks of a zone."""
        self._check(project)
        found = [value for key, value in self._world.disks.items() if key.startswith(f"{zone}/")]
        return {"kind": "compute#diskList"} | page(request, found, "items", default=500)

    def all_disks(self, request: Request, project: str) -> Json:
        """Disks of all zones."""
        del request
        self._check(project)
        return {
            "kind": "compute#diskAggregatedList",
            "items": self._by_zone(self._world.disks, "disks"),
        }

    def disk(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One disk."""
        del request
        self._check(project)
        found = self._world.disks.get(f"{zone}/{name}")
        if found is None:
            raise self._not_found(f"zones/{zone}/disks/{name}")
        return found

    def delete_disk(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a disk."""
        self.disk(request, project, zone, name)
        del self._world.disks[f"{zone}/{name}"]
        return self._operation("delete", f"zones/{zone}/disks/{name}")

    def operation(self, request: Request, project: str, name: str) -> Json:
        """An operation, which is done."""
        del request
        self._check(project)
        found = self._world.operations.get(name)
        if found is None:
            raise self._not_found(f"operations/{name}")
        return found

    # ------------------------------------------------------------------------- inside

    def _check(self, project: str) -> None:
        if not self._world.is_ours(project):
            raise self._not_found("")

    def _url(self, path: str) -> str:
        return f"{_URL}projects/{self._world.project}/{path}".rstrip("/")

    def _not_found(self, path: str) -> ApiError:
        where = f"projects/{self._world.project}/{path}".rstrip("/")
        return ApiError(404, f"The resource '{where}' was not found", reason="notFound")

    def _gpus_used(self, region: str) -> float:
        return float(
            sum(
                int(item.get("acceleratorCount") or 0)
                for key, instance in self._world.instances.items()
                if key.startswith(region) and instance["status"] == "RUNNING"
                for item in instance.get("guestAccelerators") or []
            )
        )

    @staticmethod
    def _by_zone(resources: dict[str, Json], name: str) -> Json:
        zones: Json = {}
        for key, value in resources.items():
            zone = "zones/" + key.partition("/")[0]
            zones.setdefault(zone, {name: []})[name].append(value)
        return zones

    def _instance(self, zone: str, body: Json) -> Json:
        machine = str(body.get("machineType", "n1-standard-2")).rpartition("/")[2]
        name = body["name"]
        return body | {
            "kind": "compute#instance",
            "id": str(10**18 + self._world.next()),
            "status": "RUNNING",
            "creationTimestamp": now(),
            "zone": self._url(f"zones/{zone}"),
            "machineType": self._url(f"zones/{zone}/machineTypes/{machine}"),
            "selfLink": self._url(f"zones/{zone}/instances/{name}"),
            "fingerprint": "Zm9v",
            "labelFingerprint": "Zm9v",
            "metadata": {"fingerprint": "Zm9v"} | (body.get("metadata") or {}),
            "networkInterfaces": [
                {
                    "name": "nic0",
                    "networkIP": "10.168.0.2",
                    "network": self._url("global/networks/default"),
                    **(
                        {
                            "accessConfigs": [
                                {
                                    "name": "external-nat",
                                    "type": "ONE_TO_ONE_NAT",
                                    "natIP": "127.0.0.1",
                                }
                            ]
                        }
                        if any(
                            item.get("accessConfigs")
                            for item in body.get("networkInterfaces") or []
                        )
                        else {}
                    ),
                }
            ],
        }

    def _disk(self, zone: str, name: str, parameters: Json) -> Json:
        kind = str(parameters.get("diskType", "pd-standard")).rpartition("/")[2]
        return {
            "kind": "compute#disk",
            "id": str(10**18 + self._world.next()),
            "name": name,
            "sizeGb": str(parameters.get("diskSizeGb", "10")),
            "type": self._url(f"zones/{zone}/diskTypes/{kind}"),
            "status": "READY",
            "zone": self._url(f"zones/{zone}"),
            "creationTimestamp": now(),
            "labelFingerprint": "Zm9v",
            "selfLink": self._url(f"zones/{zone}/disks/{name}"),
        }

    def _operation(self, kind: str, target: str, error: Json | None = None) -> Json:
        name = f"operation-{self._world.next()}"
        place = re.match(r"(zones|regions)/([^/]+)", target)
        scope = place.group(0) if place else "global"
        operation: Json = {
            "kind": "compute#operation",
            "id": str(self._world.counter),
            "name": name,
            "operationType": kind,
            "status": "DONE",
            "progress": 100,
            "targetLink": self._url(target),
            "insertTime": now(),
            "startTime": now(),
            "endTime": now(),
            "user": self._world.account,
            "selfLink": self._url(f"{scope}/operations/{name}"),
        }
        if place:
            operation[place.group(1)[:-1]] = self._url(scope)
        if error:
            operation |= error
        self._world.operations[name] = operation
        return operation

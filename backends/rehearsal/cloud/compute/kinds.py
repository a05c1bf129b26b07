"""GPUs, machine types, disk types and images."""

from __future__ import annotations

from backends.rehearsal.cloud.compute.catalogue import (
    DISK_TYPES,
    GPUS,
    IMAGE_GIB,
    MACHINES,
    all_zones,
    is_zone,
)
from backends.rehearsal.cloud.compute.common import URL, VERSION, Compute
from backends.rehearsal.cloud.web import Api, Json, Request, page


class Kinds:
    """Routes of what machines are made of.

    Args:
        compute: What all parts stand on.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute

    def add_to(self, api: Api) -> None:
        """Register the routes."""
        add = api.add
        zone = VERSION + r"/zones/([^/]+)"
        for kind, listed, one in (
            ("acceleratorTypes", self.accelerators, self.accelerator),
            ("machineTypes", self.machine_types, self.machine_type),
            ("diskTypes", self.disk_types, self.disk_type),
        ):
            add("GET", zone + f"/{kind}", listed, f"compute.{kind}.list")
            add("GET", zone + rf"/{kind}/([^/]+)", one, f"compute.{kind}.get")
        everywhere = VERSION + "/aggregated/"
        add(
            "GET",
            everywhere + "acceleratorTypes",
            self.all_accelerators,
            "compute.acceleratorTypes.list",
        )
        add("GET", everywhere + "machineTypes", self.all_machines, "compute.machineTypes.list")
        add("GET", VERSION + r"/global/images/family/([^/]+)", self.image_family)
        add("GET", VERSION + r"/global/images/([^/]+)", self.image)
        add("GET", zone + r"/imageFamilyViews/([^/]+)", self.family_view)

    def all_accelerators(self, request: Request, project: str) -> Json:
        """GPUs by zone; zones without one say so, as Google has it."""
        self._compute.check(project)
        items: Json = {}
        for zone in all_zones():
            sold = self.accelerators(request, project, zone)["items"]
            items[f"zones/{zone}"] = {"acceleratorTypes": sold} if sold else _nothing(zone)
        return {"kind": "compute#acceleratorTypeAggregatedList", "items": items}

    def accelerators(self, request: Request, project: str, zone: str) -> Json:
        """GPUs of a zone."""
        del request
        self._compute.check(project)
        return {
            "kind": "compute#acceleratorTypeList",
            "items": [self._accelerator(name, zone) for name in GPUS if GPUS[name].sold_in(zone)],
        }

    def accelerator(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One GPU of a zone."""
        del request
        self._compute.check(project)
        if name not in GPUS or not GPUS[name].sold_in(zone):
            raise self._compute.not_found(f"zones/{zone}/acceleratorTypes/{name}")
        return self._accelerator(name, zone)

    def _accelerator(self, name: str, zone: str) -> Json:
        return {
            "kind": "compute#acceleratorType",
            "id": str(10 + list(GPUS).index(name)),
            "name": name,
            "description": GPUS[name].title,
            "maximumCardsPerInstance": 4,
            "zone": self._compute.url(f"zones/{zone}"),
            "selfLink": self._compute.url(f"zones/{zone}/acceleratorTypes/{name}"),
        }

    def machine_types(self, request: Request, project: str, zone: str) -> Json:
        """Machine types of a zone."""
        names = [name for name, machine in MACHINES.items() if machine.sold_in(zone)]
        items = [self.machine_type(request, project, zone, name) for name in names]
        return {"kind": "compute#machineTypeList"} | page(request, items, "items", default=500)

    def all_machines(self, request: Request, project: str) -> Json:
        """Machine types of all zones."""
        return {
            "kind": "compute#machineTypeAggregatedList",
            "items": {
                f"zones/{zone}": {
                    "machineTypes": self.machine_types(request, project, zone).get("items", [])
                }
                for zone in all_zones()
            },
        }

    def machine_type(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One machine type."""
        del request
        self._compute.check(project)
        machine = MACHINES.get(name)
        if machine is None or not is_zone(zone) or not machine.sold_in(zone):
            raise self._compute.not_found(f"zones/{zone}/machineTypes/{name}")
        return {
            "kind": "compute#machineType",
            "id": str(3000 + list(MACHINES).index(name)),
            "name": name,
            "guestCpus": machine.cpus,
            "memoryMb": machine.memory_mb,
            "zone": zone,
            "selfLink": self._compute.url(f"zones/{zone}/machineTypes/{name}"),
        }

    def disk_types(self, request: Request, project: str, zone: str) -> Json:
        """Disk types of a zone."""
        items = [self.disk_type(request, project, zone, name) for name in DISK_TYPES]
        return {"kind": "compute#diskTypeList", "items": items}

    def disk_type(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One disk type."""
        del request
        self._compute.check(project)
        if name not in DISK_TYPES:
            raise self._compute.not_found(f"zones/{zone}/diskTypes/{name}")
        return {
            "kind": "compute#diskType",
            "name": name,
            "zone": self._compute.url(f"zones/{zone}"),
            "selfLink": self._compute.url(f"zones/{zone}/diskTypes/{name}"),
        }

    def image_family(self, request: Request, project: str, family: str) -> Json:
        """The newest image of a family, of any project."""
        return self.image(request, project, f"{family}-v20261110") | {"family": family}

    def family_view(self, request: Request, project: str, zone: str, family: str) -> Json:
        """The newest image of a family, as `instances create` names it."""
        del zone
        return {"image": self.image_family(request, project, family)}

    def image(self, request: Request, project: str, name: str) -> Json:
        """An image of any project."""
        del request
        family = name.rpartition("-v2")[0] or name
        return {
            "kind": "compute#image",
            "id": "77",
            "name": name,
            "diskSizeGb": str(IMAGE_GIB.get(family, 10)),
            "status": "READY",
            "selfLink": f"{URL}projects/{project}/global/images/{name}",
        }


def _nothing(zone: str) -> Json:
    return {
        "warning": {
            "code": "NO_RESULTS_ON_PAGE",
            "message": f"There are no results for scope 'zones/{zone}' on this page.",
            "data": [{"key": "scope", "value": f"zones/{zone}"}],
        }
    }

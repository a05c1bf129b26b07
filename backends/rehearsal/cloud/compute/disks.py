"""Disks: those made with a machine and those made alone; which machine uses which."""

from __future__ import annotations

from backends.rehearsal.cloud.compute.catalogue import (
    DISK_TYPES,
    IMAGE_GIB,
    is_zone,
    region_of,
)
from backends.rehearsal.cloud.compute.common import VERSION, Compute
from backends.rehearsal.cloud.compute.places import Places
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now


class Disks:
    """Routes of disks.

    Args:
        compute: What all parts stand on.
        places: Limits.
    """

    def __init__(self, compute: Compute, places: Places) -> None:
        self._compute = compute
        self._places = places
        self._world = compute.world

    def add_to(self, api: Api) -> None:
        """Register the routes."""
        add = api.add
        disks = VERSION + r"/zones/([^/]+)/disks"
        add("GET", disks, self.listed, "compute.disks.list")
        add("POST", disks, self.insert, "compute.disks.create")
        add("GET", VERSION + "/aggregated/disks", self.everywhere, "compute.disks.list")
        add("GET", disks + r"/([^/]+)", self.disk, "compute.disks.get")
        add("DELETE", disks + r"/([^/]+)", self.delete, "compute.disks.delete")
        add("POST", disks + r"/([^/]+)/setLabels", self.set_labels, "compute.disks.setLabels")
        add("POST", disks + r"/([^/]+)/resize", self.resize, "compute.disks.resize")

    def listed(self, request: Request, project: str, zone: str) -> Json:
        """Disks of a zone."""
        self._compute.check(project)
        found = [value for key, value in self._world.disks.items() if key.startswith(f"{zone}/")]
        return {"kind": "compute#diskList"} | page(request, found, "items", default=500)

    def everywhere(self, request: Request, project: str) -> Json:
        """Disks of all zones."""
        del request
        self._compute.check(project)
        return {
            "kind": "compute#diskAggregatedList",
            "items": by_zone(self._world.disks, "disks"),
        }

    def disk(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One disk."""
        del request
        self._compute.check(project)
        return self.find(zone, name)

    def find(self, zone: str, name: str) -> Json:
        """One disk.

        Raises:
            ApiError: 404.
        """
        found = self._world.disks.get(f"{zone}/{name}")
        if found is None:
            raise self._compute.not_found(f"zones/{zone}/disks/{name}")
        return found

    def insert(self, request: Request, project: str, zone: str) -> Json:
        """Make a disk alone."""
        self._compute.check(project)
        if not is_zone(zone):
            raise self._compute.not_found(f"zones/{zone}")
        body = request.json()
        kind = str(body.get("type") or "pd-standard").rpartition("/")[2]
        self.make(
            zone, str(body["name"]), int(body.get("sizeGb") or 10), kind, body.get("labels") or {}
        )
        return self._compute.at_once("insert", f"zones/{zone}/disks/{body['name']}")

    def make(self, zone: str, name: str, size_gb: int, kind: str, labels: Json) -> Json:
        """Make a disk.

        Raises:
            ApiError: It exists, its kind is unknown, or a limit would be passed.
        """
        if f"{zone}/{name}" in self._world.disks:
            raise self._compute.exists(f"zones/{zone}/disks/{name}")
        if kind not in DISK_TYPES:
            raise self._compute.not_found(f"zones/{zone}/diskTypes/{kind}")
        metric = "DISKS_TOTAL_GB" if kind == "pd-standard" else "SSD_TOTAL_GB"
        region = region_of(zone)
        limit = self._places.limit(region, metric)
        if self._places.usage(region, metric) + size_gb > limit:
            raise ApiError(
                403,
                f"Quota '{metric}' exceeded.  Limit: {limit:.1f} in region {region}.",
                reason="quotaExceeded",
            )
        made: Json = {
            "kind": "compute#disk",
            "id": str(10**18 + self._world.next()),
            "name": name,
            "sizeGb": str(size_gb),
            "type": self._compute.url(f"zones/{zone}/diskTypes/{kind}"),
            "status": "READY",
            "zone": self._compute.url(f"zones/{zone}"),
            "creationTimestamp": now(),
            "labels": dict(labels),
            "labelFingerprint": "Zm9v",
            "users": [],
            "selfLink": self._compute.url(f"zones/{zone}/disks/{name}"),
        }
        self._world.disks[f"{zone}/{name}"] = made
        return made

    def attach(self, zone: str, item: Json, index: int, machine: str) -> tuple[Json, bool]:
        """A disk as a machine has it, made or found.

        Args:
            zone: Where.
            item: What the request says of it.
            index: Its place.
            machine: The machine's name.

        Returns:
            The entry of the machine, and whether the disk was made for it.

        Raises:
            ApiError: It cannot be made, is not there, or is used by another.
        """
        parameters = item.get("initializeParams") or {}
        source = str(item.get("source") or "")
        made = not source
        if made:
            name = str(parameters.get("diskName") or machine)
            image = str(parameters.get("sourceImage") or "")
            family = image.rpartition("/")[2].rpartition("-v2")[0] or image.rpartition("/")[2]
            size = int(parameters.get("diskSizeGb") or IMAGE_GIB.get(family, 10))
            kind = str(parameters.get("diskType") or "pd-standard").rpartition("/")[2]
            disk = self.make(zone, name, size, kind, parameters.get("labels") or {})
        else:
            name = source.rpartition("/")[2]
            disk = self.find(zone, name)
            if disk["users"]:
                user = str(disk["users"][0])
                raise ApiError(
                    400,
                    f"The disk resource '{self._compute.name(f'zones/{zone}/disks/{name}')}' is "
                    f"already being used by '{user.partition('/v1/')[2]}'",
                    reason="resourceInUseByAnotherResource",
                )
        disk["users"] = [self._compute.url(f"zones/{zone}/instances/{machine}")]
        entry: Json = {
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT",
            "mode": item.get("mode", "READ_WRITE"),
            "source": disk["selfLink"],
            "deviceName": item.get("deviceName") or f"persistent-disk-{index}",
            "index": index,
            "boot": bool(item.get("boot")),
            "autoDelete": bool(item.get("autoDelete")),
            "interface": "SCSI",
            "diskSizeGb": disk["sizeGb"],
        }
        return entry, made

    def let_go(self, zone: str, entry: Json, *, delete: bool) -> None:
        """Free a disk of its machine, or delete it."""
        key = f"{zone}/{str(entry['source']).rpartition('/')[2]}"
        if delete:
            self._forget(key)
        elif key in self._world.disks:
            self._world.disks[key]["users"] = []

    def _forget(self, key: str) -> None:
        self._world.disks.pop(key, None)
        zone, _, name = key.partition("/")
        self._compute.cloud.hosts.remove_disk(zone, name)

    def delete(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a disk that nobody uses."""
        found = self.disk(request, project, zone, name)
        if found.get("users"):
            user = str(found["users"][0]).partition("/v1/")[2]
            raise ApiError(
                400,
                f"The disk resource '{self._compute.name(f'zones/{zone}/disks/{name}')}' is "
                f"already being used by '{user}'",
                reason="resourceInUseByAnotherResource",
            )
        self._forget(f"{zone}/{name}")
        return self._compute.at_once("delete", f"zones/{zone}/disks/{name}")

    def set_labels(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Replace a disk's labels."""
        self.disk(request, project, zone, name)["labels"] = request.json().get("labels") or {}
        return self._compute.at_once("setLabels", f"zones/{zone}/disks/{name}")

    def resize(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Make a disk larger."""
        found = self.disk(request, project, zone, name)
        size = int(request.json().get("sizeGb") or 0)
        if size <= int(found["sizeGb"]):
            raise ApiError(400, f"Invalid value for field 'sizeGb': '{size}'. New disk size must "
                           "be larger than the current size.")  # fmt: skip
        found["sizeGb"] = str(size)
        return self._compute.at_once("resizeDisk", f"zones/{zone}/disks/{name}")


def by_zone(resources: dict[str, Json], name: str) -> Json:
    """An aggregated list: resources by the zone in their keys."""
    zones: Json = {}
    for key, value in resources.items():
        zone = "zones/" + key.partition("/")[0]
        zones.setdefault(zone, {name: []})[name].append(value)
    return zones

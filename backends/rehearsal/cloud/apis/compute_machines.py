"""Compute Engine's virtual machines and disks, at rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.apis.compute import Compute

VERSION = r"/compute/(?:v1|beta|alpha)/projects/([^/]+)"


def add_machines(made: Api, routes: MachineRoutes) -> None:
    """Routes of virtual machines and disks."""
    add = made.add
    zone = VERSION + r"/zones/([^/]+)"
    instances = zone + "/instances"
    add("POST", instances, routes.insert, "compute.instances.create")
    add("GET", instances, routes.instances, "compute.instances.list")
    add("GET", VERSION + "/aggregated/instances", routes.all_instances, "compute.instances.list")
    add("GET", instances + r"/([^/]+)", routes.instance, "compute.instances.get")
    add("DELETE", instances + r"/([^/]+)", routes.delete, "compute.instances.delete")
    serial = instances + r"/([^/]+)/serialPort"
    add("GET", serial, routes.serial, "compute.instances.getSerialPortOutput")
    for verb in ("start", "stop", "reset", "setMetadata", "setLabels"):
        change = instances + rf"/([^/]+)/({verb})"
        add("POST", change, routes.change, f"compute.instances.{verb}")
    add("GET", zone + "/disks", routes.disks, "compute.disks.list")
    add("GET", VERSION + "/aggregated/disks", routes.all_disks, "compute.disks.list")
    add("GET", zone + r"/disks/([^/]+)", routes.disk, "compute.disks.get")
    add("DELETE", zone + r"/disks/([^/]+)", routes.delete_disk, "compute.disks.delete")


class MachineRoutes:
    """Virtual machines and disks.

    Args:
        compute: The rest of the API.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._world = compute.world

    def insert(self, request: Request, project: str, zone: str) -> Json:
        """Make a virtual machine."""
        self._compute.zone(request, project, zone)
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
            return self._compute.make_operation("insert", where, error=refusal)
        self._world.instances[key] = self._instance(zone, body)
        for disk in body.get("disks") or []:
            parameters = disk.get("initializeParams") or {}
            name = parameters.get("diskName") or body["name"]
            self._world.disks[f"{zone}/{name}"] = self._disk(zone, name, parameters)
        return self._compute.make_operation("insert", where)

    def instances(self, request: Request, project: str, zone: str) -> Json:
        """Virtual machines of a zone."""
        self._compute.check(project)
        found = [
            value for key, value in self._world.instances.items() if key.startswith(f"{zone}/")
        ]
        return {"kind": "compute#instanceList"} | page(request, found, "items", default=500)

    def all_instances(self, request: Request, project: str) -> Json:
        """Virtual machines of all zones."""
        del request
        self._compute.check(project)
        return {
            "kind": "compute#instanceAggregatedList",
            "items": self._by_zone(self._world.instances, "instances"),
        }

    def instance(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One virtual machine."""
        del request
        self._compute.check(project)
        found = self._world.instances.get(f"{zone}/{name}")
        if found is None:
            raise self._compute.not_found(f"zones/{zone}/instances/{name}")
        return found

    def delete(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a virtual machine, and the disks that go with it."""
        found = self.instance(request, project, zone, name)
        del self._world.instances[f"{zone}/{name}"]
        for disk in found.get("disks") or []:
            if disk.get("autoDelete"):
                parameters = disk.get("initializeParams") or {}
                self._world.disks.pop(f"{zone}/{parameters.get('diskName') or name}", None)
        return self._compute.make_operation("delete", f"zones/{zone}/instances/{name}")

    def change(self, request: Request, project: str, zone: str, name: str, verb: str) -> Json:
        """Start, stop, reset, or set metadata or labels."""
        found = self.instance(request, project, zone, name)
        if verb in {"start", "stop"}:
            found["status"] = {"start": "RUNNING", "stop": "TERMINATED"}[verb]
        elif verb == "setMetadata":
            found["metadata"] = request.json()
        elif verb == "setLabels":
            found["labels"] = request.json().get("labels") or {}
        return self._compute.make_operation(verb, f"zones/{zone}/instances/{name}")

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
            "selfLink": self._compute.url(f"zones/{zone}/instances/{name}/serialPort"),
        }

    def disks(self, request: Request, project: str, zone: str) -> Json:
        """Disks of a zone."""
        self._compute.check(project)
        found = [value for key, value in self._world.disks.items() if key.startswith(f"{zone}/")]
        return {"kind": "compute#diskList"} | page(request, found, "items", default=500)

    def all_disks(self, request: Request, project: str) -> Json:
        """Disks of all zones."""
        del request
        self._compute.check(project)
        return {
            "kind": "compute#diskAggregatedList",
            "items": self._by_zone(self._world.disks, "disks"),
        }

    def disk(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One disk."""
        del request
        self._compute.check(project)
        found = self._world.disks.get(f"{zone}/{name}")
        if found is None:
            raise self._compute.not_found(f"zones/{zone}/disks/{name}")
        return found

    def delete_disk(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a disk."""
        self.disk(request, project, zone, name)
        del self._world.disks[f"{zone}/{name}"]
        return self._compute.make_operation("delete", f"zones/{zone}/disks/{name}")

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
            "zone": self._compute.url(f"zones/{zone}"),
            "machineType": self._compute.url(f"zones/{zone}/machineTypes/{machine}"),
            "selfLink": self._compute.url(f"zones/{zone}/instances/{name}"),
            "fingerprint": "Zm9v",
            "labelFingerprint": "Zm9v",
            "metadata": {"fingerprint": "Zm9v"} | (body.get("metadata") or {}),
            "networkInterfaces": [
                {
                    "name": "nic0",
                    "networkIP": "10.168.0.2",
                    "network": self._compute.url("global/networks/default"),
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
            "type": self._compute.url(f"zones/{zone}/diskTypes/{kind}"),
            "status": "READY",
            "zone": self._compute.url(f"zones/{zone}"),
            "creationTimestamp": now(),
            "labelFingerprint": "Zm9v",
            "selfLink": self._compute.url(f"zones/{zone}/disks/{name}"),
        }

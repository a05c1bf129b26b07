"""Cloud TPU API (v1, v2, v2alpha1): queued resources and nodes, at rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.world import World

_V2 = r"/v2(?:alpha1)?/projects/([^/]+)/locations/([^/]+)"
_ANY = r"/v[12](?:alpha1)?/projects/([^/]+)/locations"
_TYPE = "type.googleapis.com/google.cloud.tpu.v2."
_RUNTIME = "v2-alpha-tpuv6e"

# Zones that have v6e hardware here.
_ZONES = ("us-east5-a", "us-east5-b", "us-east1-d", "europe-west4-a", "asia-northeast1-b")
_TYPES = {"v6e-1": "1x1", "v6e-4": "2x2", "v6e-8": "2x4"}


def api(cloud: Cloud) -> Api:
    """The API."""
    routes = _Tpu(cloud.world)
    made = Api("tpu.googleapis.com", "Cloud TPU API")
    add = made.add
    add("GET", _ANY, routes.locations, "tpu.locations.list")
    add("GET", _ANY + r"/([^/]+)/acceleratorTypes", routes.types, "tpu.acceleratortypes.list")
    add("GET", _V2 + "/runtimeVersions", routes.runtimes, "tpu.runtimeversions.list")
    queued = _V2 + "/queuedResources"
    add("POST", queued, routes.create, "tpu.queuedResources.create")
    add("GET", queued, routes.listed, "tpu.queuedResources.list")
    add("GET", queued + r"/([^/:]+)", routes.get, "tpu.queuedResources.get")
    add("DELETE", queued + r"/([^/:]+)", routes.delete, "tpu.queuedResources.delete")
    nodes = _V2 + "/nodes"
    add("GET", nodes, routes.nodes, "tpu.nodes.list")
    add("GET", nodes + r"/([^/:]+)", routes.node, "tpu.nodes.get")
    add("PATCH", nodes + r"/([^/:]+)", routes.patch_node, "tpu.nodes.update")
    add("DELETE", nodes + r"/([^/:]+)", routes.delete_node, "tpu.nodes.delete")
    add("POST", nodes + r"/([^/:]+):(start|stop)", routes.power, "tpu.nodes.update")
    add("POST", nodes + r"/([^/:]+):getGuestAttributes", routes.guest, "tpu.nodes.get")
    add(
        "GET",
        r"/v[12](?:alpha1)?/(projects/[^/]+/locations/[^/]+/operations/[^/]+)",
        routes.operation,
    )
    return made


class _Tpu:
    def __init__(self, world: World) -> None:
        self._world = world

    def locations(self, request: Request, project: str) -> Json:
        """Zones with TPUs."""
        del request
        self._world.check_project(project)
        return {
            "locations": [
                {"name": f"projects/{project}/locations/{zone}", "locationId": zone}
                for zone in _ZONES
            ]
        }

    def types(self, request: Request, project: str, zone: str) -> Json:
        """Slices a zone has."""
        self._zone(project, zone)
        shown: list[Json] = [
            {
                "name": f"projects/{project}/locations/{zone}/acceleratorTypes/{name}",
                "type": name,
                "acceleratorConfigs": [{"type": "V6E", "topology": topology}],
            }
            for name, topology in _TYPES.items()
        ]
        return page(request, shown, "acceleratorTypes")

    def runtimes(self, request: Request, project: str, zone: str) -> Json:
        """Runtime versions."""
        del request
        self._zone(project, zone)
        name = f"projects/{project}/locations/{zone}/runtimeVersions/{_RUNTIME}"
        return {"runtimeVersions": [{"name": name, "version": _RUNTIME}]}

    def create(self, request: Request, project: str, zone: str) -> Json:
        """Ask for a slice; it is there at once."""
        self._zone(project, zone)
        name = request.value("queuedResourceId") or request.value("queued_resource_id")
        full = f"projects/{self._world.project}/locations/{zone}/queuedResources/{name}"
        if full in self._world.queued_resources:
            raise ApiError(409, f"Resource '{full}' already exists")
        body = request.json()
        for spec in (body.get("tpu") or {}).get("nodeSpec", []):
            wanted = (spec.get("node") or {}).get("acceleratorType", "")
            if wanted and wanted not in _TYPES:
                raise ApiError(
                    400,
                    f'The requested accelerator configuration for accelerator type, "{wanted}", '
                    f'could not be found in the zonal accelerator configurations for "{zone}".; '
                    f"the accelerator {wanted} was not found in zone {zone}",
                )
        state = str(self._world.options.get("queued_state", "ACTIVE"))
        made = body | {
            "name": full,
            "createTime": now(),
            "state": {"state": state, "stateInitiator": "SERVICE"},
        }
        self._world.queued_resources[full] = made
        if state == "ACTIVE":
            for spec in (made.get("tpu") or {}).get("nodeSpec", []):
                self._make_node(zone, str(spec.get("nodeId") or f"{name}-0"), spec["node"])
        return self._operation(full, made, "QueuedResource")

    def listed(self, request: Request, project: str, zone: str) -> Json:
        """Queued resources of a zone; `-` for all."""
        self._zone(project, zone)
        return page(request, self._in(self._world.queued_resources, zone), "queuedResources")

    def get(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One queued resource."""
        del request
        return self._find(self._world.queued_resources, project, zone, "queuedResources", name)

    def delete(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a queued resource; one that is active only by force, with its nodes."""
        found = self._find(self._world.queued_resources, project, zone, "queuedResources", name)
        state = found["state"]["state"]
        if state == "ACTIVE" and not request.flag("force"):
            raise ApiError(
                400,
                "DeleteQueuedResource is not supported when state is ACTIVE (must be one of "
                "[ACCEPTED WAITING_FOR_RESOURCES SUSPENDED FAILED])",
                status="FAILED_PRECONDITION",
            )
        del self._world.queued_resources[found["name"]]
        for spec in (found.get("tpu") or {}).get("nodeSpec", []):
            node = f"projects/{self._world.project}/locations/{zone}/nodes/{spec.get('nodeId')}"
            self._world.nodes.pop(node, None)
        return self._operation(found["name"], {}, "")

    def nodes(self, request: Request, project: str, zone: str) -> Json:
        """Nodes of a zone; `-` for all."""
        self._zone(project, zone)
        return page(request, self._in(self._world.nodes, zone), "nodes")

    def node(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One node."""
        del request
        return self._find(self._world.nodes, project, zone, "nodes", name)

    def patch_node(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Change a node's metadata: where gcloud puts ssh keys."""
        found = self._find(self._world.nodes, project, zone, "nodes", name)
        metadata = request.json().get("metadata") or {}
        found["metadata"] = (found.get("metadata") or {}) | metadata
        return self._operation(found["name"], found, "Node")

    def delete_node(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a node."""
        del request
        found = self._find(self._world.nodes, project, zone, "nodes", name)
        del self._world.nodes[found["name"]]
        return self._operation(found["name"], {}, "")

    def power(self, request: Request, project: str, zone: str, name: str, verb: str) -> Json:
        """Start or stop a node."""
        del request
        found = self._find(self._world.nodes, project, zone, "nodes", name)
        found["state"] = {"start": "READY", "stop": "STOPPED"}[verb]
        return self._operation(found["name"], found, "Node")

    def guest(self, request: Request, project: str, zone: str, name: str) -> Json:
        """What the machine says of itself: host keys, for ssh."""
        del request
        self._find(self._world.nodes, project, zone, "nodes", name)
        key = "AAAAC3NzaC1lZDI1NTE5AAAAIFakeFakeFakeFakeFakeFakeFakeFakeFakeFakeFak"
        items = [
            {"namespace": "hostkeys", "key": "ssh-ed25519", "value": key},
            {"namespace": "guest", "key": "hostname", "value": f"t1v-n-{name}-w-0"},
        ]
        return {"guestAttributes": [{"queryPath": "", "queryValue": {"items": items}}]}

    def operation(self, request: Request, name: str) -> Json:
        """An operation, which is done."""
        del request
        found = self._world.operations.get(name)
        if found is None:
            raise ApiError(404, f"Operation {name} not found.")
        return found

    # ------------------------------------------------------------------------- inside

    def _zone(self, project: str, zone: str) -> None:
        self._world.check_project(project)
        if zone != "-" and zone not in _ZONES:
            raise ApiError(404, f"Zone {zone} not found.")

    @staticmethod
    def _in(resources: dict[str, Json], zone: str) -> list[Json]:
        return [value for key, value in resources.items() if zone in {"-", key.split("/")[3]}]

    def _find(
        self, resources: dict[str, Json], project: str, zone: str, kind: str, name: str
    ) -> Json:
        self._zone(project, zone)
        full = f"projects/{self._world.project}/locations/{zone}/{kind}/{name}"
        found = resources.get(full)
        if found is None:
            raise ApiError(404, f"Resource '{full}' was not found")
        return found

    def _make_node(self, zone: str, node_id: str, node: Json) -> None:
        name = f"projects/{self._world.project}/locations/{zone}/nodes/{node_id}"
        self._world.nodes[name] = node | {
            "name": name,
            "id": str(10**17 + self._world.next()),
            "state": "READY",
            "health": "HEALTHY",
            "createTime": now(),
            "networkEndpoints": [
                {
                    "ipAddress": "10.164.0.2",
                    "port": 8470,
                    "accessConfig": {"externalIp": "127.0.0.1"},
                }
            ],
        }

    def _operation(self, target: str, response: Json, kind: str) -> Json:
        zone = target.split("/")[3]
        name = (
            f"projects/{self._world.project}/locations/{zone}/operations/"
            f"operation-{self._world.next()}"
        )
        operation: Json = {
            "name": name,
            "done": True,
            "metadata": {
                "@type": "type.googleapis.com/google.cloud.common.OperationMetadata",
                "createTime": now(),
                "endTime": now(),
                "target": target,
                "apiVersion": "v2",
            },
            "response": {"@type": _TYPE + kind, **response} if kind else {},
        }
        self._world.operations[name] = operation
        return operation

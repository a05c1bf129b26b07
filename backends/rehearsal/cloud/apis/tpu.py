"""Cloud TPU API (v1, v2, v2alpha1): locations, slices, queued resources, nodes, operations."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.tpu.slices import (
    chips_of,
    model_of,
    quota_of,
    seconds_of,
    shown,
    slice_of,
    specs_of,
    state_of,
)
from backends.rehearsal.cloud.tpu_catalogue import (
    ALL_ZONES,
    HARDWARE_ZONES,
    MAX_RUN_S,
    REFUSED,
    RESERVATIONS,
    RUNTIMES,
    SLICES,
)
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

_V2 = r"/v2(?:alpha1)?/projects/([^/]+)/locations/([^/]+)"
_ANY = r"/v[12](?:alpha1)?/projects/([^/]+)/locations"
_TYPE = "type.googleapis.com/google.cloud.tpu.v2."
_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_DELETABLE = ("ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED")


def api(cloud: Cloud) -> Api:
    """The API."""
    routes = _Tpu(cloud)
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
    add("POST", queued + r"/([^/:]+):reset", routes.reset, "tpu.queuedResources.update")
    nodes = _V2 + "/nodes"
    add("POST", nodes, routes.create_node, "tpu.nodes.create")
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
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._world = cloud.world
        self._slices = cloud.slices

    def locations(self, request: Request, project: str) -> Json:
        """Zones of the API, with v6e or without."""
        self._world.check_project(project)
        items: list[Json] = [
            {"name": f"projects/{project}/locations/{zone}", "locationId": zone}
            for zone in ALL_ZONES
        ]
        return page(request, items, "locations")

    def types(self, request: Request, project: str, zone: str) -> Json:
        """Slices a zone has."""
        self._zone(project, zone)
        items: list[Json] = [
            {
                "name": f"projects/{project}/locations/{zone}/acceleratorTypes/{name}",
                "type": name,
                "acceleratorConfigs": [{"type": "V6E", "topology": topology}],
            }
            for name, (topology, _) in SLICES.items()
            if self._has(zone, name)
        ]
        if zone not in HARDWARE_ZONES or not items:
            items.append(
                {
                    "name": f"projects/{project}/locations/{zone}/acceleratorTypes/v3-8",
                    "type": "v3-8",
                    "acceleratorConfigs": [{"type": "V3", "topology": "2x2"}],
                }
            )
        return page(request, items, "acceleratorTypes")

    def runtimes(self, request: Request, project: str, zone: str) -> Json:
        """Runtime versions."""
        self._zone(project, zone)
        items: list[Json] = [
            {
                "name": f"projects/{project}/locations/{zone}/runtimeVersions/{name}",
                "version": name,
            }
            for name in RUNTIMES
        ]
        return page(request, items, "runtimeVersions")

    # ------------------------------------------------------------------------- requests

    def create(self, request: Request, project: str, zone: str) -> Json:
        """Ask for slices; the request lives from then on, whatever the client hears."""
        self._zone(project, zone)
        name = request.value("queuedResourceId") or request.value("queued_resource_id")
        if not _ID.fullmatch(name):
            raise ApiError(400, f"Invalid queued resource ID {name!r}.")
        full = f"projects/{self._world.project}/locations/{zone}/queuedResources/{name}"
        if full in self._world.queued_resources:
            raise ApiError(409, f"Resource '{full}' already exists")
        body = request.json()
        self._check_request(body, zone)
        made = body | {"name": full, "createTime": now()}
        self._slices.request(made)
        return self._operation(full, shown(made), "QueuedResource")

    def _check_request(self, body: Json, zone: str) -> None:
        model = model_of(body)
        if "spot" in body and body.get("provisioningModel") not in (None, "SPOT"):
            raise ApiError(
                400, f"{body['provisioningModel']} provisioning model is incompatible with spot "
                "requests"
            )  # fmt: skip
        specs = specs_of(body)
        if not specs:
            raise ApiError(400, "The queued resource must specify at least one node spec.")
        chips = 0
        for spec in specs:
            node = spec.get("node") or {}
            chips += chips_of(node)
            self._check_node(node, zone)
            node_name = f"projects/{self._world.project}/locations/{zone}/nodes/{spec['nodeId']}"
            if node_name in self._world.nodes:
                raise ApiError(409, f"Resource '{node_name}' already exists")
            refused = self._slices.refused.get(zone, REFUSED.get(zone, ()))
            if model in refused:
                raise ApiError(
                    400,
                    f"{model} provisioning model is not supported for accelerator type "
                    f'"{slice_of(node)}" in location "{zone}"',
                )
        run = seconds_of((body.get("runDuration") or {}).get("maxRunDuration"))
        if model == "FLEX_START" and (run is None or not 600 <= run <= MAX_RUN_S):
            raise ApiError(400, "max run duration must be between 10 minutes and 7 days.")
        reservation = str(body.get("reservationName") or "").rpartition("/")[2]
        if model == "RESERVATION_BOUND" and RESERVATIONS.get(reservation) != zone:
            raise ApiError(404, f"Reservation '{reservation}' was not found in zone {zone}.")
        self._check_quota(quota_of(model), zone, chips)

    def _check_node(self, node: Json, zone: str) -> None:
        kind = slice_of(node)
        if not self._has(zone, kind):
            raise ApiError(
                400,
                f'The requested accelerator configuration for accelerator type, "{kind}", could '
                f'not be found in the zonal accelerator configurations for "{zone}".; the '
                f"accelerator {kind} was not found in zone {zone} [EID: 0x4d1c7a2f9b3e6058]",
            )
        if node.get("runtimeVersion") not in RUNTIMES:
            raise ApiError(
                400, f'The runtime version "{node.get("runtimeVersion")}" is not supported.'
            )
        account = (node.get("serviceAccount") or {}).get("email", "")
        if account and account not in self._world.service_accounts:
            raise ApiError(400, f"The service account {account} does not exist.")

    def _check_quota(self, quota: str, zone: str, chips: int) -> None:
        if not quota:
            return
        limit = self._world.quotas.get(quota, {}).get(zone, 0)
        if self._slices.used(zone, quota) + chips > limit:
            raise ApiError(
                429, f"Quota limit '{quota}' has been exceeded. Limit: {limit} in zone {zone}."
            )

    def listed(self, request: Request, project: str, zone: str) -> Json:
        """Queued resources of a zone; `-` for all."""
        self._zone(project, zone)
        return page(request, self._in(self._world.queued_resources, zone), "queuedResources")

    def get(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One queued resource."""
        del request
        return shown(
            self._find(self._world.queued_resources, project, zone, "queuedResources", name)
        )

    def delete(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a queued resource; one that has nodes only by force, with its nodes."""
        found = self._find(self._world.queued_resources, project, zone, "queuedResources", name)
        state = state_of(found)
        if state not in _DELETABLE and not request.flag("force"):
            raise ApiError(
                400,
                f"DeleteQueuedResource is not supported when state is {state} (must be one of "
                f"[{' '.join(_DELETABLE)}])",
                status="FAILED_PRECONDITION",
            )
        self._slices.delete(found)
        return self._operation(found["name"], {}, "")

    def reset(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Put a suspended request into the queue again."""
        del request
        found = self._find(self._world.queued_resources, project, zone, "queuedResources", name)
        if state_of(found) != "SUSPENDED":
            raise ApiError(
                400,
                f"ResetQueuedResource is not supported when state is {state_of(found)} (must be "
                "one of [SUSPENDED])",
                status="FAILED_PRECONDITION",
            )
        self._slices.request(found)
        return self._operation(found["name"], shown(found), "QueuedResource")

    # ------------------------------------------------------------------------- nodes

    def create_node(self, request: Request, project: str, zone: str) -> Json:
        """Make a node without the queue: there is capacity now, or it is refused."""
        self._zone(project, zone)
        node_id = request.value("nodeId")
        node = request.json()
        self._check_node(node, zone)
        spot = bool((node.get("schedulingConfig") or {}).get("spot"))
        self._check_quota(quota_of("SPOT" if spot else "STANDARD"), zone, chips_of(node))
        for pattern, wait in self._slices.waits.items():
            if wait is None and fnmatch.fnmatchcase(zone, pattern):
                raise ApiError(
                    429,
                    f'There is no more capacity in the zone "{zone}"; you can try in another zone '
                    "where Cloud TPU Nodes are offered (see "
                    "https://cloud.google.com/tpu/docs/regions) [EID: 0xba393c906974e61]",
                )
        made = self._slices.make_node(zone, node_id, node)
        self._slices.ready_node(made)
        return self._operation(made["name"], shown(made), "Node")

    def nodes(self, request: Request, project: str, zone: str) -> Json:
        """Nodes of a zone; `-` for all."""
        self._zone(project, zone)
        return page(request, self._in(self._world.nodes, zone), "nodes")

    def node(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One node."""
        del request
        return shown(self._find(self._world.nodes, project, zone, "nodes", name))

    def patch_node(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Change what `updateMask` names: metadata (where gcloud puts ssh keys), labels, tags."""
        found = self._find(self._world.nodes, project, zone, "nodes", name)
        body = request.json()
        wanted = [key for key in request.value("updateMask").split(",") if key] or list(body)
        unknown = [key for key in wanted if key not in {"metadata", "labels", "tags"}]
        if unknown:
            raise ApiError(400, f"Field {unknown[0]} cannot be updated.")
        for key in wanted:
            found[key] = body.get(key) or ({} if key != "tags" else [])
        if "metadata" in wanted:
            self._cloud.hosts.set_metadata("tpu", zone, name, found["metadata"])
        return self._operation(found["name"], shown(found), "Node")

    def delete_node(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a node."""
        del request
        found = self._find(self._world.nodes, project, zone, "nodes", name)
        self._slices.delete_node(found)
        return self._operation(found["name"], {}, "")

    def power(self, request: Request, project: str, zone: str, name: str, verb: str) -> Json:
        """Start or stop a node of one host."""
        del request
        found = self._find(self._world.nodes, project, zone, "nodes", name)
        if len(found["networkEndpoints"]) > 1:
            raise ApiError(
                400,
                f"Node {name} has more than one host; {verb} is not supported for TPU Pod slices.",
                status="FAILED_PRECONDITION",
            )
        wanted = {"start": "STOPPED", "stop": "READY"}[verb]
        if found["state"] != wanted:
            raise ApiError(
                400,
                f"Node {name} is in state {found['state']}; {verb} needs {wanted}.",
                status="FAILED_PRECONDITION",
            )
        self._slices.power(found, verb)
        return self._operation(found["name"], shown(found), "Node")

    def guest(self, request: Request, project: str, zone: str, name: str) -> Json:
        """What the machines say of themselves: host keys, for ssh; one entry a worker."""
        found = self._find(self._world.nodes, project, zone, "nodes", name)
        if found["state"] != "READY":
            raise ApiError(
                400, f"Node {name} is in state {found['state']}.", status="FAILED_PRECONDITION"
            )
        if not self._cloud.hosts.machine("tpu", zone, name).reachable():
            raise ApiError(404, f"Guest attributes of node {name} were not found.")
        key = "AAAAC3NzaC1lZDI1NTE5AAAAIFakeFakeFakeFakeFakeFakeFakeFakeFakeFakeFak"
        workers = request.json().get("workerIds") or [
            str(number) for number in range(len(found["networkEndpoints"]))
        ]
        return {
            "guestAttributes": [
                {
                    "queryPath": "",
                    "queryValue": {
                        "items": [
                            {"namespace": "hostkeys", "key": "ssh-ed25519", "value": key},
                            {
                                "namespace": "guest",
                                "key": "hostname",
                                "value": f"t1v-n-{name}-w-{worker}",
                            },
                        ]
                    },
                }
                for worker in workers
            ]
        }

    def operation(self, request: Request, name: str) -> Json:
        """An operation, which is done."""
        del request
        found = self._world.operations.get(name)
        if found is None:
            raise ApiError(404, f"Operation {name} not found.")
        return found

    # ------------------------------------------------------------------------- inside

    def _has(self, zone: str, kind: str) -> bool:
        """Whether a zone has slices of that kind."""
        if kind not in SLICES or any(
            fnmatch.fnmatchcase(zone, pattern) for pattern in self._slices.without_hardware
        ):
            return False
        return int(kind.rpartition("-")[2]) <= HARDWARE_ZONES.get(zone, 0)

    def _zone(self, project: str, zone: str) -> None:
        self._world.check_project(project)
        self._slices.advance()
        if zone != "-" and zone not in ALL_ZONES:
            raise ApiError(400, f'The requested zone "{zone}" is not supported.')

    @staticmethod
    def _in(resources: dict[str, Json], zone: str) -> list[Json]:
        return [
            shown(value) for key, value in resources.items() if zone in {"-", key.split("/")[3]}
        ]

    def _find(
        self, resources: dict[str, Json], project: str, zone: str, kind: str, name: str
    ) -> Json:
        self._zone(project, zone)
        full = f"projects/{self._world.project}/locations/{zone}/{kind}/{name}"
        found = resources.get(full)
        if found is None:
            raise ApiError(404, f"Resource '{full}' was not found")
        return found

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

"""Reads of both control planes: requests, nodes, hardware, quotas. Nothing is changed here.

A list that could not be asked whole is an error: taking it for empty would make duplicates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backends.core.errors import CloudError, InvalidInputError, NotFoundError
from backends.core.owned import together
from backends.knowledge.tpu import QUOTA_SERVICE
from backends.tpu.records import TpuNode, TpuRequest, read_instance, read_node, read_request

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

# The version that tells of provisioning models and run durations (gcloud alpha's, 528).
_TPU = "https://tpu.googleapis.com/v2alpha1/projects"
_COMPUTE = "https://compute.googleapis.com/compute/v1/projects"
_QUOTAS = "https://cloudquotas.googleapis.com/v1/projects"
_AT_ONCE = 8
_MACHINES = "ct6e-"


class TpuApi:
    """Reads TPU requests and nodes.

    Args:
        cloud: The project.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud

    async def requests(self, zone: str = "-") -> tuple[list[TpuRequest], list[TpuNode]]:
        """Every queued resource with its node, and the nodes no queued resource owns.

        Args:
            zone: One zone; `-` for all.

        Raises:
            DevopsError: One of the lists could not be asked, or not everywhere.
        """
        raw_requests, raw_nodes = await together(
            self._listed("queuedResources", zone), self._listed("nodes", zone)
        )
        nodes = {(node.zone, node.name): node for node in map(read_node, raw_nodes)}
        requests = [read_request(raw, nodes) for raw in raw_requests]
        owned = {(item.zone, item.node_id) for item in requests}
        return requests, [node for key, node in nodes.items() if key not in owned]

    async def request(self, zone: str, name: str) -> TpuRequest:
        """One queued resource with its node.

        Raises:
            NotFoundError: It is not there.
        """
        base = f"{_TPU}/{await self._cloud.project()}/locations/{zone}"
        what = f"The queued resource {name} in {zone}"
        raw = await self._cloud.rest.get(f"{base}/queuedResources/{name}", what)
        found = read_request(raw, {})
        if not found.node_id or found.stage == "queued":
            return found
        try:
            node = read_node(
                await self._cloud.rest.get(f"{base}/nodes/{found.node_id}", f"The node of {name}")
            )
        except NotFoundError:
            return found
        return read_request(raw, {(zone, found.node_id): node})

    async def node(self, zone: str, name: str) -> TpuNode:
        """One node.

        Raises:
            NotFoundError: It is not there.
        """
        project = await self._cloud.project()
        return read_node(
            await self._cloud.rest.get(
                f"{_TPU}/{project}/locations/{zone}/nodes/{name}", f"The node {name} in {zone}"
            )
        )

    async def has_booted(self, zone: str, node: str) -> bool:
        """Whether a node's machines have told Google their host keys, which they do once up.

        gcloud asks the same before it connects, and then tries ten times for half a minute.
        """
        project = await self._cloud.project()
        try:
            answer = await self._cloud.rest.post(
                f"{_TPU}/{project}/locations/{zone}/nodes/{node}:getGuestAttributes",
                f"What the machines of {node} say",
                {},
            )
        except (NotFoundError, InvalidInputError):
            return False
        return any(
            (item.get("queryValue") or {}).get("items")
            for item in answer.get("guestAttributes") or []
        )

    async def instances(self) -> list[TpuRequest]:
        """Every `ct6e-*` instance of Compute Engine.

        Raises:
            DevopsError: They could not be asked, or not everywhere.
        """
        project = await self._cloud.project()
        url, query = f"{_COMPUTE}/{project}/aggregated/instances", {"returnPartialSuccess": "false"}
        what = "The list of Compute Engine instances"
        found: list[TpuRequest] = []
        while True:
            answer = await self._cloud.rest.get(url, what, query)
            _whole(answer, what)
            for place in (answer.get("items") or {}).values():
                found += [
                    read_instance(raw)
                    for raw in place.get("instances") or []
                    if str(raw.get("machineType", "")).rpartition("/")[2].startswith(_MACHINES)
                ]
            token = answer.get("nextPageToken")
            if not token:
                return found
            query = query | {"pageToken": str(token)}

    async def instance(self, zone: str, name: str) -> TpuRequest:
        """One instance.

        Raises:
            NotFoundError: It is not there.
        """
        project = await self._cloud.project()
        return read_instance(
            await self._cloud.rest.get(
                f"{_COMPUTE}/{project}/zones/{zone}/instances/{name}",
                f"The instance {name} in {zone}",
            )
        )

    async def zones(self) -> list[str]:
        """Zones of the TPU API."""
        project = await self._cloud.project()
        items = await self._cloud.rest.pages(
            f"{_TPU}/{project}/locations", "The zones of the TPU API", "locations"
        )
        return sorted(str(item.get("locationId", "")) for item in items)

    async def sizes(self, zones: Sequence[str]) -> dict[str, list[str] | str]:
        """The v6e sizes each zone has; for one that could not be asked, why."""
        project = await self._cloud.project()
        gate = asyncio.Semaphore(_AT_ONCE)

        async def asked(zone: str) -> list[str]:
            async with gate:
                items = await self._cloud.rest.pages(
                    f"{_TPU}/{project}/locations/{zone}/acceleratorTypes",
                    f"The accelerator types of {zone}",
                    "acceleratorTypes",
                    {"pageSize": "500"},
                )
            return [
                str(item["type"]) for item in items if str(item.get("type", "")).startswith("v6e-")
            ]

        from backends.clouds.google_facts import or_problem, words_of

        answers = await together(*(or_problem(asked(zone)) for zone in zones))
        return {
            zone: answer if isinstance(answer, list) else words_of(answer)
            for zone, answer in zip(zones, answers, strict=True)
        }

    async def quota(
        self, quota: str, *, service: str = QUOTA_SERVICE, family: str = ""
    ) -> dict[str, float]:
        """Limits of a quota by zone or region; a place that is not in it has none.

        Args:
            quota: Its id.
            service: Whose it is.
            family: Only entries of this TPU family, where they are told apart.

        Raises:
            DevopsError: Cloud Quotas could not be asked; never answered with "no quota".
        """
        project = await self._cloud.project()
        answer = await self._cloud.rest.get(
            f"{_QUOTAS}/{project}/locations/global/services/{service}/quotaInfos/{quota}",
            f"The quota {quota}",
        )
        limits: dict[str, float] = {}
        for entry in answer.get("dimensionsInfos") or []:
            value = (entry.get("details") or {}).get("value")
            if value is None:
                continue
            limit = float("inf") if float(value) < 0 else float(value)
            dimensions = entry.get("dimensions") or {}
            of = dimensions.get("tpu_family") or dimensions.get("vm_family") or family
            if family and of != family:
                continue
            own = dimensions.get("zone") or dimensions.get("region")
            places = [own] if own else entry.get("applicableLocations") or []
            for place in places:
                if own or place not in limits:
                    limits[str(place)] = limit
        return limits

    async def _listed(self, kind: str, zone: str) -> list[dict[str, Any]]:
        project = await self._cloud.project()
        what = f"The list of {kind}"
        url, query = f"{_TPU}/{project}/locations/{zone}/{kind}", {"pageSize": "500"}
        found: list[dict[str, Any]] = []
        while True:
            answer = await self._cloud.rest.get(url, what, query)
            _whole(answer, what)
            found += answer.get(kind) or []
            token = answer.get("nextPageToken")
            if not token:
                return found
            query = query | {"pageToken": str(token)}


def _whole(answer: dict[str, Any], what: str) -> None:
    """Refuse a list that leaves places out.

    Raises:
        CloudError: Names them.
    """
    silent = answer.get("unreachable") or answer.get("unreachables") or []
    if silent:
        raise CloudError(
            f"{what} is not whole: Google could not reach {', '.join(map(str, silent))}.",
            cause="What is there is not known, so nothing may be concluded from the rest.",
            next_action="Try again in a minute.",
        )

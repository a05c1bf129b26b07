"""Machines, disks, quotas and networks of Compute Engine, read over REST.

`gcloud compute instances list` exits 0 with `[]` when it may not look (528, 2026-11-30), so
nothing here is read with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backends.core.errors import CloudError, NotFoundError
from backends.core.names import MANAGED_BY, MANAGED_BY_US, is_ours
from backends.knowledge import gce

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

TARGET_LABEL = "vllm-devops-target"
NAME_LABEL = "vllm-devops-deployment"
SPEC_KEY = "vllm-devops-spec"
_MAX_PAGES = 50


@dataclass(frozen=True)
class Disk:
    """A disk.

    Attributes:
        name: Its name.
        zone: Where it is.
        gib: Its size.
        kind: Its type.
        labels: Its labels.
        users: Names of the machines that use it.
        created_at: As Google writes it.
    """

    name: str
    zone: str
    gib: int
    kind: str
    labels: Mapping[str, str]
    users: tuple[str, ...]
    created_at: str

    @property
    def managed(self) -> bool:
        """Whether it carries our label."""
        return is_ours(self.labels)

    @property
    def created_s(self) -> float:
        """When it was made, Unix seconds."""
        return seconds_of(self.created_at)

    @property
    def usd_per_month(self) -> float | None:
        """What it costs a month, used or not."""
        return gce.disk_usd_per_month(self.kind, self.gib)


@dataclass(frozen=True)
class Attached:
    """A disk as a machine has it.

    Attributes:
        name: The disk's name.
        gib: Its size.
        boot: Whether the machine boots from it.
        auto_delete: Whether it goes with the machine.
    """

    name: str
    gib: int
    boot: bool
    auto_delete: bool


@dataclass(frozen=True)
class Machine:
    """A virtual machine.

    Attributes:
        name: Its name.
        zone: Where it is.
        status: Google's word: PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED, ...
        number: Its number, which a new machine of that name would not have.
        labels: Its labels.
        metadata: Its metadata.
        kind: Its machine type.
        spot: Whether Google may take it.
        gpu: Its GPU's type, empty for none.
        disks: Its disks.
        external: Its public address, empty for none.
        account: The account it runs as.
        network: Its network.
        created_at: Unix seconds.
        started_at: When it was last started, Unix seconds; 0: not yet.
        stopped_at: When it was last stopped, Unix seconds; 0: never.
    """

    name: str
    zone: str
    status: str
    number: str
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    spot: bool = False
    gpu: str = ""
    disks: tuple[Attached, ...] = ()
    external: str = ""
    account: str = ""
    network: str = "default"
    created_at: float = 0.0
    started_at: float = 0.0
    stopped_at: float = 0.0

    @property
    def managed(self) -> bool:
        """Whether it carries our label."""
        return is_ours(self.labels)

    @property
    def region(self) -> str:
        """Its region."""
        return gce.region_of(self.zone)

    @property
    def runs(self) -> bool:
        """Whether it is on, and paid for."""
        return self.status in {"PROVISIONING", "STAGING", "RUNNING", "STOPPING", "SUSPENDING"}

    @property
    def spec(self) -> dict[str, Any]:
        """What it was deployed to serve, from its metadata; empty where nothing says so."""
        try:
            value = json.loads(self.metadata.get(SPEC_KEY, "{}"))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Quota:
    """A limit and what is used of it."""

    limit: float
    used: float

    @property
    def left(self) -> float:
        """What may still be taken."""
        return self.limit - self.used


@dataclass(frozen=True)
class Outcome:
    """How an operation stands.

    Attributes:
        done: Whether it is over.
        code: The error's code, empty for none.
        message: The error's words.
    """

    done: bool
    code: str = ""
    message: str = ""


class ComputeApi:
    """Reads of one project's Compute Engine.

    Args:
        cloud: The project.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud

    async def _url(self, path: str) -> str:
        project = await self._cloud.project()
        return f"https://compute.googleapis.com/compute/v1/projects/{project}/{path}".rstrip("/")

    async def _everywhere(
        self, kind: str, what: str, params: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """An aggregated list: the items of all places.

        Raises:
            DevopsError: Refused; or a place did not answer, so that the list would not be whole.
        """
        url, query = await self._url(f"aggregated/{kind}"), dict(params or {})
        found: list[dict[str, Any]] = []
        for _ in range(_MAX_PAGES):
            answer = await self._cloud.rest.get(url, what, query)
            for scope, place in (answer.get("items") or {}).items():
                warning = place.get("warning") or {}
                if warning.get("code") == "UNREACHABLE":
                    raise CloudError(
                        f"{what}: {scope} did not answer, so the list is not whole.",
                        words=str(warning.get("message", "")),
                        next_action="Try again in a minute.",
                    )
                found += place.get(kind) or []
            token = answer.get("nextPageToken")
            if not token:
                return found
            query["pageToken"] = str(token)
        raise CloudError(f"{what}: more than {_MAX_PAGES} pages.")

    # --------------------------------------------------------------------------------- machines

    async def machines(self) -> list[Machine]:
        """Every machine of the project, in every zone."""
        found = await self._everywhere("instances", "The machines of the project")
        return [machine_of(item) for item in found]

    async def machine(self, zone: str, name: str) -> Machine:
        """One machine.

        Raises:
            NotFoundError: There is none.
        """
        url = await self._url(f"zones/{zone}/instances/{name}")
        return machine_of(await self._cloud.rest.get(url, f"The machine {name} in {zone}"))

    async def machine_or_none(self, zone: str, name: str) -> Machine | None:
        """One machine, or None where the zone has none of that name."""
        try:
            return await self.machine(zone, name)
        except NotFoundError:
            return None

    async def serial(self, zone: str, name: str) -> str:
        """What a machine has written to its serial console (the last MiB)."""
        url = await self._url(f"zones/{zone}/instances/{name}/serialPort")
        answer = await self._cloud.rest.get(url, f"The serial console of {name}")
        return str(answer.get("contents", ""))

    async def operation(self, zone: str, name: str) -> Outcome:
        """How an operation of a zone stands."""
        url = await self._url(f"zones/{zone}/operations/{name}")
        return outcome_of(await self._cloud.rest.get(url, f"The operation {name}"))

    async def preempted(self, machine: Machine) -> bool:
        """Whether Google took the machine back after it was last started."""
        url = await self._url(f"zones/{machine.zone}/operations")
        found = await self._cloud.rest.pages(
            url,
            f"What happened to {machine.name}",
            "items",
            {"filter": 'operationType="compute.instances.preempted"'},
        )
        return any(
            str(item.get("targetLink", "")).endswith(
                f"/zones/{machine.zone}/instances/{machine.name}"
            )
            and seconds_of(item.get("insertTime")) >= machine.started_at
            for item in found
        )

    # --------------------------------------------------------------------------------- disks

    async def disks(self) -> list[Disk]:
        """Every disk that carries our label."""
        found = await self._everywhere(
            "disks",
            "The disks of the project",
            {"filter": f'labels.{MANAGED_BY}="{MANAGED_BY_US}"'},
        )
        return [disk for disk in map(disk_of, found) if disk.managed]

    async def disk_or_none(self, zone: str, name: str) -> Disk | None:
        """One disk, or None where the zone has none of that name."""
        url = await self._url(f"zones/{zone}/disks/{name}")
        try:
            return disk_of(await self._cloud.rest.get(url, f"The disk {name} in {zone}"))
        except NotFoundError:
            return None

    # --------------------------------------------------------------------------------- places

    async def zones_with(self, gpu: str) -> list[str]:
        """Zones that sell a GPU, as Google says now."""
        found = await self._everywhere(
            "acceleratorTypes", f"Zones that sell {gpu}", {"filter": f'name="{gpu}"'}
        )
        return sorted(
            {str(item["zone"]).rpartition("/")[2] for item in found if item.get("name") == gpu}
        )

    async def region_quotas(self) -> dict[str, dict[str, Quota]]:
        """Quotas of all regions, by region and metric."""
        url = await self._url("regions")
        found = await self._cloud.rest.pages(url, "The quotas of the regions", "items")
        return {str(item["name"]): quotas_of(item.get("quotas")) for item in found}

    async def project_quotas(self) -> dict[str, Quota]:
        """Quotas of the project as a whole, by metric."""
        answer = await self._cloud.rest.get(await self._url(""), "The quotas of the project")
        return quotas_of(answer.get("quotas"))

    async def firewall_rules(self) -> list[dict[str, Any]]:
        """All firewall rules."""
        url = await self._url("global/firewalls")
        return await self._cloud.rest.pages(url, "The firewall rules", "items")

    async def routers(self) -> list[dict[str, Any]]:
        """Routers of all regions, with their NATs."""
        return await self._everywhere("routers", "The routers of the project")


def machine_of(item: Mapping[str, Any]) -> Machine:
    """A machine from Google's JSON."""
    interfaces = item.get("networkInterfaces") or [{}]
    access = interfaces[0].get("accessConfigs") or [{}]
    accelerators = item.get("guestAccelerators") or [{}]
    scheduling = item.get("scheduling") or {}
    return Machine(
        name=str(item["name"]),
        zone=_last(item.get("zone")),
        status=str(item.get("status", "")),
        number=str(item.get("id", "")),
        labels=item.get("labels") or {},
        metadata={
            str(entry.get("key")): str(entry.get("value", ""))
            for entry in (item.get("metadata") or {}).get("items") or []
        },
        kind=_last(item.get("machineType")),
        spot=scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible")),
        gpu=_last(accelerators[0].get("acceleratorType")),
        disks=tuple(
            Attached(
                _last(disk.get("source")),
                int(disk.get("diskSizeGb") or 0),
                bool(disk.get("boot")),
                bool(disk.get("autoDelete")),
            )
            for disk in item.get("disks") or []
        ),
        external=str(access[0].get("natIP") or ""),
        account=str((item.get("serviceAccounts") or [{}])[0].get("email") or ""),
        network=_last(interfaces[0].get("network")) or "default",
        created_at=seconds_of(item.get("creationTimestamp")),
        started_at=seconds_of(item.get("lastStartTimestamp")),
        stopped_at=seconds_of(item.get("lastStopTimestamp")),
    )


def disk_of(item: Mapping[str, Any]) -> Disk:
    """A disk from Google's JSON."""
    return Disk(
        name=str(item["name"]),
        zone=_last(item.get("zone")),
        gib=int(item.get("sizeGb") or 0),
        kind=_last(item.get("type")),
        labels=item.get("labels") or {},
        users=tuple(_last(user) for user in item.get("users") or []),
        created_at=str(item.get("creationTimestamp", "")),
    )


def outcome_of(item: Mapping[str, Any]) -> Outcome:
    """How an operation stands, from Google's JSON."""
    errors = (item.get("error") or {}).get("errors") or []
    return Outcome(
        done=item.get("status") == "DONE",
        code=str(errors[0].get("code", "")) if errors else "",
        message="; ".join(str(error.get("message", "")) for error in errors),
    )


def quotas_of(items: Sequence[Mapping[str, Any]] | None) -> dict[str, Quota]:
    """Quotas by metric, from Google's JSON."""
    return {
        str(item["metric"]): Quota(float(item.get("limit", 0)), float(item.get("usage", 0)))
        for item in items or []
    }


def _last(path: object) -> str:
    return str(path or "").rpartition("/")[2]


def seconds_of(text: object) -> float:
    """A time as Google writes it, in Unix seconds; 0 for none."""
    if not text:
        return 0.0
    return datetime.fromisoformat(str(text)).timestamp()

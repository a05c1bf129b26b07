"""What Google says of requests, nodes and machines, as values with one meaning.

Two control planes are read into one shape: a queued resource with its node, and a `ct6e-*` instance
of Compute Engine, which is request and node in one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from backends.core.names import is_ours
from backends.knowledge.tpu import SLICES, region_of
from backends.tpu.start import SETTINGS_KEY

TARGET = "tpu-v6e"
TARGET_LABEL = "vllm-devops-target"
SPEC_LABEL = "vllm-devops-spec"
SEARCH_LABEL = "vllm-devops-search"
NAME_LABEL = "vllm-devops-name"

Stage = Literal[
    "queued", "provisioning", "active", "stopping", "stopped", "failed", "suspended", "deleting"
]

# States of queued resources (API v2alpha1, QueuedResourceState), and what they mean to us.
# WAITING_FOR_RESOURCES is the normal state of a request that has its place in the queue.
_STAGES: Mapping[str, Stage] = {
    "CREATING": "queued",
    "ACCEPTED": "queued",
    "WAITING_FOR_RESOURCES": "queued",
    "PROVISIONING": "provisioning",
    "ACTIVE": "active",
    "FAILED": "failed",
    "SUSPENDING": "suspended",
    "SUSPENDED": "suspended",
    "DELETING": "deleting",
}
# States of Compute Engine's instances. PENDING is flex-start's queue.
_INSTANCE_STAGES: Mapping[str, Stage] = {
    "PENDING": "queued",
    "PROVISIONING": "provisioning",
    "STAGING": "provisioning",
    "RUNNING": "active",
    "STOPPING": "stopping",
    "SUSPENDING": "stopping",
    "TERMINATED": "stopped",
    "STOPPED": "stopped",
    "SUSPENDED": "stopped",
    "REPAIRING": "provisioning",
    "DEPROVISIONING": "deleting",
}
_MODELS = {
    "STANDARD": "on-demand",
    "SPOT": "spot",
    "FLEX_START": "flex-start",
    "RESERVATION_BOUND": "reservation",
}

# Without `force` Google deletes a request only in these; the words are those of its refusal.
DELETABLE = ("ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED")
# A request in one of these may still become, or is, a machine that bills.
LIVE: frozenset[Stage] = frozenset({"queued", "provisioning", "active", "stopping", "stopped"})


@dataclass(frozen=True)
class Worker:
    """One machine of a node.

    Attributes:
        number: From 0.
        internal: Its address in the network.
        external: Its address outside; empty where it has none.
    """

    number: int
    internal: str
    external: str


@dataclass(frozen=True)
class TpuNode:
    """A node: a slice that exists and bills.

    Attributes:
        name: Its id.
        zone: Where.
        state: Google's word: CREATING, READY, STOPPED, PREEMPTED, ...
        size: Accelerator type.
        labels: Its labels.
        settings: What it serves, if it is one of ours.
        workers: Its machines.
        owner: The queued resource it came from; empty: none.
        spot: Whether it may be taken back.
        created_at: Unix seconds.
    """

    name: str
    zone: str
    state: str
    size: str
    labels: Mapping[str, str]
    settings: Mapping[str, Any]
    workers: tuple[Worker, ...]
    owner: str
    spot: bool
    created_at: float

    @property
    def managed(self) -> bool:
        """Whether it carries our label."""
        return is_ours(self.labels)


@dataclass(frozen=True)
class TpuRequest:
    """One request for a slice, with the node it became.

    Attributes:
        name: The deployment.
        zone: Where.
        plane: `tpu` or `compute`.
        state: Google's word.
        stage: Ours.
        said: Google's words about a failure; empty without one.
        size: Accelerator type.
        provisioning: Ours.
        labels: Of its node.
        settings: What it serves, if it is one of ours.
        created_at: Unix seconds.
        max_run_s: When Google ends it, in seconds from when it became active; None: never.
        node_id: The node it is to become.
        node: The node, once it exists.
        account: The service account it runs as.
        initiator: Who brought about the state: USER or SERVICE.
    """

    name: str
    zone: str
    plane: Literal["tpu", "compute"]
    state: str
    stage: Stage
    said: str
    size: str
    provisioning: str
    labels: Mapping[str, str]
    settings: Mapping[str, Any]
    created_at: float
    max_run_s: float | None
    node_id: str
    node: TpuNode | None = None
    account: str = ""
    initiator: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def managed(self) -> bool:
        """Whether it carries our label."""
        return is_ours(self.labels)

    @property
    def region(self) -> str:
        """Its region."""
        return region_of(self.zone)

    @property
    def key(self) -> str:
        """Name and zone in one: how it is meant when the name alone is not enough."""
        return f"{self.name}@{self.zone}"

    @property
    def live(self) -> bool:
        """Whether it may still become, or is, a machine that bills."""
        return self.stage in LIVE

    @property
    def needs_force(self) -> bool:
        """Whether Google deletes it only by force."""
        return self.plane == "tpu" and self.state not in DELETABLE

    @property
    def public(self) -> bool:
        """Whether it answers on its external address."""
        return bool(self.settings.get("public"))

    @property
    def port(self) -> int:
        """The port it serves on."""
        return int(self.settings.get("port") or 8000)

    @property
    def model(self) -> str | None:
        """The checkpoint it serves."""
        return str(self.settings["model"]) if self.settings.get("model") else None

    @property
    def hosts(self) -> int:
        """Machines it is made of."""
        return SLICES[self.size].hosts if self.size in SLICES else 1

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return SLICES[self.size].chips if self.size in SLICES else 0

    @property
    def external(self) -> str:
        """The external address of the first machine; empty where it has none."""
        workers = self.node.workers if self.node else ()
        return workers[0].external if workers else ""


def read_node(raw: Mapping[str, Any]) -> TpuNode:
    """A node as the TPU API shows it."""
    path = str(raw.get("name", "")).split("/")
    endpoints = raw.get("networkEndpoints") or []
    return TpuNode(
        name=path[-1],
        zone=path[3] if len(path) > 3 else "",
        state=str(raw.get("state", "STATE_UNSPECIFIED")),
        size=str(raw.get("acceleratorType", "")),
        labels=dict(raw.get("labels") or {}),
        settings=_settings(raw.get("metadata")),
        workers=tuple(
            Worker(
                number,
                str(item.get("ipAddress", "")),
                str((item.get("accessConfig") or {}).get("externalIp", "")),
            )
            for number, item in enumerate(endpoints)
        ),
        owner=str(raw.get("queuedResource", "")).rpartition("/")[2],
        spot=bool((raw.get("schedulingConfig") or {}).get("spot")),
        created_at=seconds_of_time(raw.get("createTime")),
    )


def read_request(raw: Mapping[str, Any], nodes: Mapping[tuple[str, str], TpuNode]) -> TpuRequest:
    """A queued resource as the TPU API shows it.

    Args:
        raw: The resource.
        nodes: Nodes by zone and id.
    """
    path = str(raw.get("name", "")).split("/")
    zone = path[3] if len(path) > 3 else ""
    specs = (raw.get("tpu") or {}).get("nodeSpec") or [{}]
    wanted = specs[0].get("node") or {}
    node_id = str(specs[0].get("nodeId", ""))
    state = raw.get("state") or {}
    word = str(state.get("state", "STATE_UNSPECIFIED"))
    node = nodes.get((zone, node_id))
    error = (state.get("failedData") or {}).get("error") or {}
    stage = _STAGES.get(word, "queued")
    if stage == "active" and node is not None:
        stage = {"STOPPED": "stopped", "STOPPING": "stopping"}.get(node.state, stage)  # type: ignore[assignment]
    return TpuRequest(
        name=path[-1],
        zone=zone,
        plane="tpu",
        state=word,
        stage=stage,
        said=str(error.get("message", "")),
        size=str(wanted.get("acceleratorType") or (node.size if node else "")),
        provisioning=_provisioning(raw),
        labels=dict(wanted.get("labels") or (node.labels if node else {})),
        settings=_settings(wanted.get("metadata")) or (node.settings if node else {}),
        created_at=seconds_of_time(raw.get("createTime")),
        max_run_s=seconds_of_duration((raw.get("runDuration") or {}).get("maxRunDuration")),
        node_id=node_id,
        node=node,
        account=str((wanted.get("serviceAccount") or {}).get("email", "")),
        initiator=str(state.get("stateInitiator", "")),
    )


def read_instance(raw: Mapping[str, Any]) -> TpuRequest:
    """A `ct6e-*` instance as Compute Engine shows it."""
    machine = str(raw.get("machineType", "")).rpartition("/")[2]
    size = next((item for item in SLICES.values() if item.machine_type == machine), None)
    zone = str(raw.get("zone", "")).rpartition("/")[2]
    word = str(raw.get("status", ""))
    interface = (raw.get("networkInterfaces") or [{}])[0]
    external = (interface.get("accessConfigs") or [{}])[0].get("natIP", "")
    scheduling = raw.get("scheduling") or {}
    model = str(scheduling.get("provisioningModel", "STANDARD"))
    items = {
        str(item.get("key")): item.get("value")
        for item in (raw.get("metadata") or {}).get("items") or []
    }
    settings = _settings(items)
    labels = dict(raw.get("labels") or {})
    name = str(raw.get("name", ""))
    created_at = seconds_of_time(raw.get("creationTimestamp"))
    size_name = size.name if size else machine
    stage = _INSTANCE_STAGES.get(word, "queued")
    run = (scheduling.get("maxRunDuration") or {}).get("seconds")
    node = TpuNode(
        name=name,
        zone=zone,
        state=word,
        size=size_name,
        labels=labels,
        settings=settings,
        workers=(Worker(0, str(interface.get("networkIP", "")), str(external or "")),),
        owner="",
        spot=model == "SPOT",
        created_at=created_at,
    )
    return TpuRequest(
        name=name,
        zone=zone,
        plane="compute",
        state=word,
        stage=stage,
        said=str(raw.get("statusMessage", "")) if stage != "active" else "",
        size=size_name,
        provisioning=_MODELS.get(model, model.lower()),
        labels=labels,
        settings=settings,
        created_at=created_at,
        max_run_s=float(run) if run is not None else None,
        node_id=name,
        node=node if stage in {"active", "stopping", "stopped"} else None,
        account=str(((raw.get("serviceAccounts") or [{}])[0]).get("email", "")),
    )


def seconds_of_time(text: object) -> float:
    """Unix seconds of an RFC 3339 time; 0 where there is none."""
    try:
        return datetime.fromisoformat(str(text or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def seconds_of_duration(text: object) -> float | None:
    """Seconds of a duration such as `14400s`."""
    value = str(text or "").removesuffix("s")
    return float(value) if value.replace(".", "", 1).isdecimal() else None


def _provisioning(raw: Mapping[str, Any]) -> str:
    said = str(raw.get("provisioningModel") or "")
    if raw.get("guaranteed", {}).get("reserved") or raw.get("reservationName"):
        return "reservation"
    if "spot" in raw:
        return "spot"
    return _MODELS.get(said, "on-demand")


def _settings(metadata: object) -> dict[str, Any]:
    text = metadata.get(SETTINGS_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

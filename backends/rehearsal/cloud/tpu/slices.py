"""The life of queued resources and of the nodes they become, in Google's time.

A request is ACCEPTED, waits for resources for as long as its zone lets it, is provisioned, and is
ACTIVE with its nodes until it is deleted, preempted, or has run for as long as it asked for. What
is due is carried out by a timer, and by every look as well, so that nothing is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import random
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backends.rehearsal.cloud.tpu_catalogue import (
    ACCEPTED_S,
    DELETING_S,
    ON_DEMAND_QUOTA,
    PREEMPTIBLE_QUOTA,
    PROVISIONING_S,
    SLICES,
    START_STOP_S,
    SUSPENDING_S,
    WAITING_S,
)
from backends.rehearsal.cloud.web import Json
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.rehearsal.cloud.cloud import Cloud

# What only the rehearsal knows of a resource; never shown.
_PLAY = "_play"
_OFF = "_off"
_FOREVER = float("inf")


def shown(resource: Json) -> Json:
    """A resource as the API shows it."""
    return {key: value for key, value in resource.items() if key not in {_PLAY, _OFF}}


def state_of(resource: Json) -> str:
    """The state of a queued resource."""
    return str(resource["state"]["state"])


def model_of(resource: Json) -> str:
    """The provisioning model of a request: STANDARD unless it says otherwise."""
    said = str(resource.get("provisioningModel") or "")
    if said:
        return said
    if "spot" in resource:
        return "SPOT"
    return "STANDARD"


def specs_of(resource: Json) -> list[Json]:
    """The nodes a request asks for."""
    return list((resource.get("tpu") or {}).get("nodeSpec") or [])


def seconds_of(duration: object) -> float | None:
    """Seconds of a duration such as `14400s`; None where there is none."""
    text = str(duration or "")
    return float(text.removesuffix("s")) if text.endswith("s") else None


def slice_of(node: Json) -> str:
    """The accelerator type a node is: said, or by its topology."""
    said = str(node.get("acceleratorType") or "")
    if said:
        return said
    wanted = str((node.get("acceleratorConfig") or {}).get("topology") or "")
    return next((name for name, (topology, _) in SLICES.items() if topology == wanted), wanted)


def chips_of(node: Json) -> int:
    """Chips of a node."""
    return int(slice_of(node).rpartition("-")[2] or 0)


class Slices:
    """Moves requests and nodes on.

    Args:
        cloud: The parts of the cloud.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._timer: asyncio.TimerHandle | None = None
        # By zone pattern: seconds a request waits (None: for ever), and what failing ones say.
        self.waits: dict[str, float | None] = {}
        self.failures: dict[str, Json] = {}
        self.refused: dict[str, tuple[str, ...]] = {}
        self.without_hardware: list[str] = []

    # ------------------------------------------------------------------------- what is asked for

    def request(self, resource: Json) -> None:
        """Take a request that was found to be in order."""
        self._to(resource, "ACCEPTED", ACCEPTED_S)
        self._cloud.world.queued_resources[str(resource["name"])] = resource
        self._rearm()

    def delete(self, resource: Json) -> None:
        """End a request and its nodes."""
        for node in self.nodes_of(resource):
            node["state"] = "DELETING"
            self._end_host(node)
        self._to(resource, "DELETING", DELETING_S, initiator="USER")
        self._rearm()

    def delete_node(self, node: Json) -> None:
        """End a node; the request it came from has nothing left then."""
        self._end_host(node)
        self._cloud.world.nodes.pop(str(node["name"]), None)
        owner = self._cloud.world.queued_resources.get(str(node.get("queuedResource", "")))
        if owner is not None and state_of(owner) == "ACTIVE" and not self.nodes_of(owner):
            self._to(owner, "SUSPENDED", _FOREVER, initiator="USER")

    def power(self, node: Json, verb: str) -> None:
        """Start or stop a node; it takes a while."""
        node["state"] = {"start": "STARTING", "stop": "STOPPING"}[verb]
        node[_PLAY] = {"at": time.time() + self._cloud.after(START_STOP_S)}
        if verb == "stop":
            self._stop_host(node)
        self._rearm()

    def make_node(self, zone: str, node_id: str, node: Json, owner: str = "") -> Json:
        """Make a node that is being created."""
        world = self._cloud.world
        name = f"projects/{world.project}/locations/{zone}/nodes/{node_id}"
        number = world.next()
        workers = SLICES.get(slice_of(node), ("", 1))[1]
        made = node | {
            "name": name,
            # Never given twice, not even in a new project: host keys are kept by it.
            "id": str(random.randrange(10**17, 10**18)),
            "acceleratorType": slice_of(node),
            "acceleratorConfig": {
                "type": "V6E",
                "topology": SLICES.get(slice_of(node), ("", 1))[0],
            },
            "state": "CREATING",
            "createTime": now(),
            "schedulingConfig": node.get("schedulingConfig") or {},
            "networkEndpoints": [
                {
                    "ipAddress": f"10.164.{number % 250}.{worker + 2}",
                    "port": 8470,
                    "accessConfig": {"externalIp": "127.0.0.1"},
                }
                for worker in range(workers)
            ],
        }
        if owner:
            made["queuedResource"] = owner
        world.nodes[name] = made
        return made

    def ready_node(self, node: Json) -> None:
        """A node's machines are up."""
        node |= {"state": "READY", "health": "HEALTHY"}
        self._boot_host(node)
        self._say(node, "INFO", "TPU runtime started; the worker is healthy.")

    def nodes_of(self, resource: Json) -> list[Json]:
        """The nodes that came from a request and still exist."""
        name = str(resource["name"])
        return [
            node for node in self._cloud.world.nodes.values() if node.get("queuedResource") == name
        ]

    def used(self, zone: str, quota: str) -> int:
        """Chips that count against a quota: of every request there is, failed ones too."""
        total = 0
        for name, resource in self._cloud.world.queued_resources.items():
            if name.split("/")[3] == zone and quota_of(model_of(resource)) == quota:
                total += sum(chips_of(spec.get("node") or {}) for spec in specs_of(resource))
        for name, node in self._cloud.world.nodes.items():
            if name.split("/")[3] == zone and not node.get("queuedResource"):
                scheduling = node.get("schedulingConfig") or {}
                model = "SPOT" if scheduling.get("spot") else "STANDARD"
                if quota_of(model) == quota:
                    total += chips_of(node)
        return total

    # ------------------------------------------------------------------------- what happens

    def preempt(self, pattern: str) -> int:
        """Take the machines of preemptible requests away; returns of how many."""
        met = 0
        for resource in self._matching(pattern, "ACTIVE"):
            met += 1
            for node in self.nodes_of(resource):
                node["state"] = "PREEMPTED"
                self._end_host(node)
                self._say(node, "WARNING", "The TPU node was preempted.")
            self._to(resource, "SUSPENDING", SUSPENDING_S)
        self._rearm()
        return met

    def orphan(self, pattern: str) -> int:
        """Forget requests but not their nodes; returns how many."""
        met = 0
        for resource in self._matching(pattern, "ACTIVE"):
            met += 1
            for node in self.nodes_of(resource):
                node.pop("queuedResource", None)
            del self._cloud.world.queued_resources[str(resource["name"])]
        return met

    def _matching(self, pattern: str, state: str) -> list[Json]:
        return [
            resource
            for name, resource in list(self._cloud.world.queued_resources.items())
            if fnmatch.fnmatchcase(name.rpartition("/")[2], pattern) and state_of(resource) == state
        ]

    def renewed(self) -> None:
        """Forget what was set, when the project starts anew."""
        self.waits.clear()
        self.failures.clear()
        self.refused.clear()
        self.without_hardware.clear()

    # ------------------------------------------------------------------------- time

    def advance(self) -> None:
        """Carry out everything that is due."""
        world = self._cloud.world
        moment = time.time()
        for resource in list(world.queued_resources.values()):
            while float((resource.get(_PLAY) or {}).get("at", _FOREVER)) <= moment:
                world.dirty = True
                if not self._move(resource):
                    break
        for node in list(world.nodes.values()):
            if float((node.get(_PLAY) or {}).get("at", _FOREVER)) <= moment:
                world.dirty = True
                node.pop(_PLAY)
                if node["state"] == "STARTING":
                    self.ready_node(node)
                elif node["state"] == "STOPPING":
                    node["state"] = "STOPPED"
                elif node["state"] == "CREATING":
                    self.ready_node(node)

    def later(self, node: Json, seconds: float) -> None:
        """Look at a node again after so many of Google's seconds."""
        node[_PLAY] = {"at": time.time() + self._cloud.after(seconds)}
        self._rearm()

    def _move(self, resource: Json) -> bool:
        """Take a request one state further; False when it is gone."""
        match state_of(resource):
            case "ACCEPTED":
                self._wait(resource)
            case "WAITING_FOR_RESOURCES":
                self._leave_queue(resource)
            case "PROVISIONING":
                self._activate(resource)
            case "ACTIVE":  # it has run for as long as it asked for
                for node in self.nodes_of(resource):
                    node["state"] = "DELETING"
                    self._end_host(node)
                self._to(resource, "SUSPENDING", SUSPENDING_S)
            case "SUSPENDING":
                for node in self.nodes_of(resource):
                    self._cloud.world.nodes.pop(str(node["name"]), None)
                self._to(resource, "SUSPENDED", _FOREVER)
            case "DELETING":
                for node in self.nodes_of(resource):
                    self._cloud.world.nodes.pop(str(node["name"]), None)
                self._cloud.world.queued_resources.pop(str(resource["name"]), None)
                return False
            case _:
                resource[_PLAY] = {}
        return True

    def _wait(self, resource: Json) -> None:
        zone = zone_of(resource)
        wait: float | None = WAITING_S
        for pattern, seconds in self.waits.items():
            if fnmatch.fnmatchcase(zone, pattern):
                wait = seconds
        self._to(resource, "WAITING_FOR_RESOURCES", _FOREVER if wait is None else wait)
        play = resource[_PLAY]
        expiry = self._expiry(resource)
        if expiry is not None and expiry < float(play.get("at", _FOREVER)):
            play |= {"at": expiry, "expires": True}

    def _leave_queue(self, resource: Json) -> None:
        zone = zone_of(resource)
        if resource[_PLAY].get("expires"):
            # Google's wording for this is not known to us.
            self._fail(resource, {"code": 4, "message": "The request was not filled in time."})
            return
        for pattern, error in self.failures.items():
            if fnmatch.fnmatchcase(zone, pattern):
                self._fail(resource, error)
                return
        for spec in specs_of(resource):
            node = dict(spec.get("node") or {})
            node["schedulingConfig"] = {"spot": True} if model_of(resource) == "SPOT" else {}
            self.make_node(zone, str(spec["nodeId"]), node, str(resource["name"]))
        self._to(resource, "PROVISIONING", PROVISIONING_S)

    def _activate(self, resource: Json) -> None:
        for node in self.nodes_of(resource):
            self.ready_node(node)
        run = seconds_of((resource.get("runDuration") or {}).get("maxRunDuration"))
        self._to(resource, "ACTIVE", _FOREVER if run is None else run)

    def _fail(self, resource: Json, error: Json) -> None:
        self._to(resource, "FAILED", _FOREVER)
        resource["state"]["failedData"] = {"error": error}

    def _expiry(self, resource: Json) -> float | None:
        policy = resource.get("queueingPolicy") or {}
        seconds = seconds_of(policy.get("validUntilDuration"))
        created = datetime.fromisoformat(str(resource["createTime"])).timestamp()
        return None if seconds is None else created + self._cloud.after(seconds)

    def _to(
        self, resource: Json, state: str, seconds: float, *, initiator: str = "SERVICE"
    ) -> None:
        resource["state"] = {"state": state, "stateInitiator": initiator}
        at = _FOREVER if seconds == _FOREVER else time.time() + self._cloud.after(seconds)
        resource[_PLAY] = {"at": at} if at != _FOREVER else {}
        self._cloud.world.dirty = True

    def _rearm(self) -> None:
        """Wake up when the next thing is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min(self._due(), default=_FOREVER)
        if due == _FOREVER:
            return
        with contextlib.suppress(RuntimeError):  # no loop: looks alone move things on
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - time.time()) + 0.01, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self.advance()
        self._rearm()

    def resume(self) -> None:
        """Go on after a restart."""
        self.advance()
        self._rearm()

    def _due(self) -> Iterable[float]:
        world = self._cloud.world
        for item in (*world.queued_resources.values(), *world.nodes.values()):
            at: Any = (item.get(_PLAY) or {}).get("at")
            if at is not None:
                yield float(at)

    # ------------------------------------------------------------------------- machines

    def _boot_host(self, node: Json) -> None:
        """Power a node's machines on; they run their startup script by themselves."""
        zone, hosts, short = zone_of(node), self._cloud.hosts, _short(node)
        if node.pop(_OFF, False):
            hosts.start("tpu", zone, short)
            return
        addresses = hosts.boot(
            "tpu",
            self._cloud.world.project,
            zone,
            short,
            instance_id=str(node["id"]),
            workers=len(node["networkEndpoints"]),
            metadata=dict(node.get("metadata") or {}),
            account=str((node.get("serviceAccount") or {}).get("email") or "")
            or self._cloud.world.default_account,
        )
        external = bool((node.get("networkConfig") or {}).get("enableExternalIps", True))
        for endpoint, address in zip(node["networkEndpoints"], addresses, strict=True):
            endpoint["ipAddress"] = address
            endpoint["accessConfig"] = {"externalIp": address} if external else {}

    def _stop_host(self, node: Json) -> None:
        node[_OFF] = True
        self._cloud.hosts.stop("tpu", zone_of(node), _short(node))

    def _end_host(self, node: Json) -> None:
        self._cloud.hosts.remove("tpu", zone_of(node), _short(node))

    def _say(self, node: Json, severity: str, text: str) -> None:
        """What Cloud Logging has of a node's workers."""
        for worker in range(len(node["networkEndpoints"])):
            labels = {
                "project_id": self._cloud.world.project,
                "zone": zone_of(node),
                "node_id": _short(node),
                "worker_id": str(worker),
            }
            resource = {"type": "tpu_worker", "labels": labels}
            self._cloud.logs.write(
                "tpu.googleapis.com%2Fruntime_monitor", resource, text, severity=severity
            )


def _short(node: Json) -> str:
    return str(node["name"]).rpartition("/")[2]


def zone_of(resource: Json) -> str:
    """The zone of a resource."""
    return str(resource["name"]).split("/")[3]


def quota_of(model: str) -> str:
    """The quota a provisioning model counts against; empty for reservations."""
    if model == "RESERVATION_BOUND":
        return ""
    return ON_DEMAND_QUOTA if model == "STANDARD" else PREEMPTIBLE_QUOTA


__all__ = [
    "START_STOP_S",
    "Slices",
    "chips_of",
    "model_of",
    "quota_of",
    "seconds_of",
    "shown",
    "slice_of",
    "specs_of",
    "state_of",
    "zone_of",
]

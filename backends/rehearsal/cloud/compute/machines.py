"""Virtual machines: what is asked for, checked as Google checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.compute.catalogue import GPUS, MACHINES, is_zone
from backends.rehearsal.cloud.compute.common import VERSION, Compute, failure
from backends.rehearsal.cloud.compute.disks import Disks, by_zone
from backends.rehearsal.cloud.compute.places import Places
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.compute.life import Life


class Machines:
    """Routes of virtual machines.

    Args:
        compute: What all parts stand on.
        places: Limits.
        disks: Disks.
        life: What goes on in them.
    """

    def __init__(self, compute: Compute, places: Places, disks: Disks, life: Life) -> None:
        self._compute = compute
        self._places = places
        self._disks = disks
        self._life = life
        self._world = compute.world

    def add_to(self, api: Api) -> None:
        """Register the routes."""
        add = api.add
        instances = VERSION + r"/zones/([^/]+)/instances"
        one = instances + r"/([^/]+)"
        add("POST", instances, self.insert, "compute.instances.create")
        add("GET", instances, self.listed, "compute.instances.list")
        add("GET", VERSION + "/aggregated/instances", self.everywhere, "compute.instances.list")
        add("GET", one, self.machine, "compute.instances.get")
        add("DELETE", one, self.delete, "compute.instances.delete")
        add("GET", one + "/serialPort", self.serial, "compute.instances.getSerialPortOutput")
        add("GET", one + "/getGuestAttributes", self.guest, "compute.instances.getGuestAttributes")
        for verb in ("start", "stop", "reset"):
            add("POST", one + f"/({verb})", self.power, f"compute.instances.{verb}")
        for verb in ("setMetadata", "setLabels", "setTags"):
            add("POST", one + f"/({verb})", self.change, f"compute.instances.{verb}")
        add("POST", one + "/setDiskAutoDelete", self.keep, "compute.instances.setDiskAutoDelete")

    # ------------------------------------------------------------------------- looking

    def listed(self, request: Request, project: str, zone: str) -> Json:
        """Virtual machines of a zone."""
        self._compute.check(project)
        if not is_zone(zone):
            raise self._compute.not_found(f"zones/{zone}")
        found = [
            value for key, value in self._world.instances.items() if key.startswith(f"{zone}/")
        ]
        return {"kind": "compute#instanceList"} | page(request, found, "items", default=500)

    def everywhere(self, request: Request, project: str) -> Json:
        """Virtual machines of all zones."""
        del request
        self._compute.check(project)
        return {
            "kind": "compute#instanceAggregatedList",
            "items": by_zone(self._world.instances, "instances"),
        }

    def machine(self, request: Request, project: str, zone: str, name: str) -> Json:
        """One virtual machine, by its name or its number."""
        del request
        self._compute.check(project)
        found = self._world.instances.get(f"{zone}/{name}")
        if found is None and name.isdecimal():
            found = next(
                (item for item in self._world.instances.values() if item["id"] == name), None
            )
        if found is None:
            raise self._compute.not_found(f"zones/{zone}/instances/{name}")
        return found

    def serial(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Output of the serial console."""
        self.machine(request, project, zone, name)
        text = self._life.console(f"{zone}/{name}")
        start = int(request.value("start") or 0)
        return {
            "kind": "compute#serialPortOutput",
            "contents": text[start:],
            "start": str(start),
            "next": str(len(text)),
            "selfLink": self._compute.url(f"zones/{zone}/instances/{name}/serialPort"),
        }

    def guest(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Guest attributes: this machine has none, so its host keys are taken on first use."""
        self.machine(request, project, zone, name)
        raise self._compute.not_found(f"zones/{zone}/instances/{name}")

    # ------------------------------------------------------------------------- making

    def insert(self, request: Request, project: str, zone: str) -> Json:
        """Make a virtual machine; the operation is over when it runs, or could not be had."""
        self._compute.check(project)
        if not is_zone(zone):
            raise self._compute.not_found(f"zones/{zone}")
        body = request.json()
        name = str(body["name"])
        where = f"zones/{zone}/instances/{name}"
        if f"{zone}/{name}" in self._world.instances:
            raise self._compute.exists(where)
        self._check(zone, body)
        refusal = self._world.options.get("insert_error")
        if refusal:
            return self._compute.at_once("insert", where, error=refusal)
        exceeded = self._places.exceeded(body, zone)
        if exceeded is not None and not exceeded[1]:
            raise ApiError(
                403,
                f"Quota '{exceeded[0]}' exceeded.  Limit: {exceeded[2]:.1f} globally.",
                reason="quotaExceeded",
            )
        if exceeded is not None:
            return self._compute.at_once("insert", where, error=_over_quota(*exceeded))
        taken, before = now(), set(self._world.disks)
        self._world.instances[f"{zone}/{name}"] = self._made(zone, body)
        fresh = [key.partition("/")[2] for key in self._world.disks if key not in before]
        operation = self._compute.begin("insert", where)
        operation["insertTime"] = taken
        self._life.bring_up(f"{zone}/{name}", operation, fresh)
        return operation

    def _check(self, zone: str, body: Json) -> None:
        machine = str(body.get("machineType", "")).rpartition("/")[2]
        if machine not in MACHINES or not MACHINES[machine].sold_in(zone):
            raise ApiError(
                400,
                f"Invalid value for field 'resource.machineType': '{body.get('machineType')}'. "
                f"Machine type with name '{machine}' does not exist in zone '{zone}'.",
                reason="invalid",
            )
        fixed = bool(body.get("guestAccelerators")) or bool(MACHINES[machine].tpus)
        for item in body.get("guestAccelerators") or []:
            kind = str(item.get("acceleratorType", "")).rpartition("/")[2]
            gpu = GPUS.get(kind)
            if gpu is None or not gpu.sold_in(zone):
                raise self._compute.not_found(f"zones/{zone}/acceleratorTypes/{kind}")
            if not machine.startswith(gpu.machines):
                raise ApiError(
                    400,
                    f"[{kind}, {item.get('acceleratorCount')}] accelerators are not supported "
                    f"with the machine type {machine}.",
                    reason="invalid",
                )
        scheduling = body.get("scheduling") or {}
        spot = scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible")
        if fixed and scheduling.get("onHostMaintenance", "MIGRATE") != "TERMINATE" and not spot:
            raise ApiError(
                400,
                "Instances with guest accelerators do not support live migration.",
                reason="invalid",
            )
        for account in body.get("serviceAccounts") or []:
            email = str(account.get("email"))
            if email != "default" and email not in self._world.service_accounts:
                raise ApiError(
                    400,
                    f"The user does not have access to service account '{email}'.  User: "
                    f"'{self._world.account}'.  Ask a project owner to grant you the "
                    "iam.serviceAccountUser role on the service account",
                    reason="SERVICE_ACCOUNT_ACCESS_DENIED",
                )

    def _made(self, zone: str, body: Json) -> Json:
        name = str(body["name"])
        machine = str(body["machineType"]).rpartition("/")[2]
        url = self._compute.url
        entries: list[Json] = []
        fresh: list[Json] = []
        try:
            for index, item in enumerate(body.get("disks") or []):
                entry, made = self._disks.attach(zone, item, index, name)
                entries.append(entry)
                fresh += [entry] if made else []
        except ApiError:
            for entry in entries:
                self._disks.let_go(zone, entry, delete=entry in fresh)
            raise
        scheduling = {
            "onHostMaintenance": "MIGRATE",
            "automaticRestart": True,
            "preemptible": False,
            "provisioningModel": "STANDARD",
        } | (body.get("scheduling") or {})
        return body | {
            "kind": "compute#instance",
            "id": str(10**18 + self._world.next()),
            "status": "PROVISIONING",
            "creationTimestamp": now(),
            "zone": url(f"zones/{zone}"),
            "machineType": url(f"zones/{zone}/machineTypes/{machine}"),
            "selfLink": url(f"zones/{zone}/instances/{name}"),
            "fingerprint": "Zm9v",
            "labelFingerprint": "Zm9v",
            "labels": body.get("labels") or {},
            "tags": {"fingerprint": "Zm9v"} | (body.get("tags") or {}),
            "metadata": {"fingerprint": "Zm9v"} | (body.get("metadata") or {}),
            "scheduling": scheduling,
            "disks": entries,
            "serviceAccounts": [
                account | {"email": self._world.default_account}
                if account.get("email") == "default"
                else account
                for account in body.get("serviceAccounts") or []
            ],
            "networkInterfaces": [self._interface(body)],
        }

    def _interface(self, body: Json) -> Json:
        asked = (body.get("networkInterfaces") or [{}])[0]
        interface: Json = {
            "kind": "compute#networkInterface",
            "name": "nic0",
            "networkIP": f"10.168.0.{2 + len(self._world.instances)}",
            "network": self._compute.url("global/networks/default"),
            "fingerprint": "Zm9v",
        }
        if asked.get("accessConfigs"):
            interface["accessConfigs"] = [
                {
                    "kind": "compute#accessConfig",
                    "name": "external-nat",
                    "type": "ONE_TO_ONE_NAT",
                    "natIP": "127.0.0.1",
                }
            ]
        return interface

    # ------------------------------------------------------------------------- changing

    def delete(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Delete a virtual machine, and the disks that go with it."""
        self.machine(request, project, zone, name)
        operation = self._compute.begin("delete", f"zones/{zone}/instances/{name}")
        self._life.take_down(f"{zone}/{name}", operation, delete=True)
        return operation

    def power(self, request: Request, project: str, zone: str, name: str, verb: str) -> Json:
        """Start, stop or reset."""
        found = self.machine(request, project, zone, name)
        where = f"zones/{zone}/instances/{name}"
        if verb == "start" and found["status"] == "TERMINATED":
            exceeded = self._places.exceeded(found, zone)
            if exceeded is not None:
                return self._compute.at_once(verb, where, error=_over_quota(*exceeded))
        operation = self._compute.begin(verb, where)
        if verb == "start":
            self._life.bring_up(f"{zone}/{name}", operation)
        elif verb == "stop":
            self._life.take_down(f"{zone}/{name}", operation)
        else:
            self._life.reset(f"{zone}/{name}", operation)
        return operation

    def change(self, request: Request, project: str, zone: str, name: str, verb: str) -> Json:
        """Set metadata, labels or tags, if nobody did so meanwhile."""
        found = self.machine(request, project, zone, name)
        body = request.json()
        field = {"setMetadata": "metadata", "setLabels": "labels", "setTags": "tags"}[verb]
        print_of = "labelFingerprint" if verb == "setLabels" else "fingerprint"
        current = found[print_of] if verb == "setLabels" else found[field].get("fingerprint")
        if body.get(print_of) not in (None, current):
            raise ApiError(
                412,
                "Supplied fingerprint does not match current metadata fingerprint.",
                reason="conditionNotMet",
            )
        found[field] = (body.get("labels") or {}) if verb == "setLabels" else body
        self._life.metadata_changed(f"{zone}/{name}")
        return self._compute.at_once(verb, f"zones/{zone}/instances/{name}")

    def keep(self, request: Request, project: str, zone: str, name: str) -> Json:
        """Whether a disk goes with its machine."""
        found = self.machine(request, project, zone, name)
        for disk in found["disks"]:
            if disk["deviceName"] == request.value("deviceName"):
                disk["autoDelete"] = request.flag("autoDelete")
        return self._compute.at_once("setDiskAutoDelete", f"zones/{zone}/instances/{name}")


def _over_quota(metric: str, region: str, limit: float) -> Json:
    place = f"in region {region}" if region else "globally"
    error = failure(
        "QUOTA_EXCEEDED",
        f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {place}.",
        403,
        "FORBIDDEN",
    )
    error["error"]["errors"][0]["errorDetails"] = [
        {
            "quotaInfo": {
                "metricName": f"compute.googleapis.com/{metric.lower()}",
                "limitName": f"{metric.replace('_', '-')}-per-project-region",
                "limit": limit,
                "dimensions": {"region": region} if region else {},
            }
        }
    ]
    return error

"""What goes on in virtual machines: they are found hardware, boot, stop, are taken away, and go."""

from __future__ import annotations

import asyncio
import fnmatch
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from backends.rehearsal.cloud.compute.common import Compute, failure
from backends.rehearsal.cloud.compute.disks import Disks
from backends.rehearsal.cloud.faults import FaultError, Undo
from backends.rehearsal.cloud.web import Json
from backends.rehearsal.cloud.world import now

# Seconds at Google, from logs of machines with one GPU; the speed divides them.
PROVISION_S = 6.0
STAGE_S = 8.0
STOP_S = 30.0
DELETE_S = 40.0
PREEMPT_S = 30.0

_MAX_CONSOLE = 1 << 20

STOCKOUT = (
    "The zone 'projects/{project}/zones/{zone}' does not have enough resources available to "
    "fulfill the request.  '(resource type:compute)'."
)


@dataclass
class Stockout:
    """Hardware that a zone does not have now.

    Attributes:
        zone: Pattern of zones.
        model: `STANDARD`, `SPOT`, or empty for both.
        times: Requests it meets; -1 for all.
        leaves: What a refused insert leaves behind: nothing, `disks`, or `machine`.
    """

    zone: str = "*"
    model: str = ""
    times: int = -1
    leaves: str = ""

    def meets(self, zone: str, model: str) -> bool:
        """Whether it meets a request; counts it."""
        if not self.times or self.model not in ("", model):
            return False
        if not fnmatch.fnmatchcase(zone, self.zone):
            return False
        self.times -= self.times > 0
        return True


class Life:
    """Brings machines up and takes them down.

    Args:
        compute: What all parts stand on.
        disks: Disks.
    """

    def __init__(self, compute: Compute, disks: Disks) -> None:
        self._compute = compute
        self._disks = disks
        self._world = compute.world
        self._cloud = compute.cloud
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}
        self._stockouts: list[Stockout] = []
        self._cloud.faults.register("stockout", self._stockout)
        self._cloud.faults.register("preempt", self._preempt)
        self._cloud.faults.register("compute-quota", self._quota)
        self._cloud.renew.append(self._renew)

    # ------------------------------------------------------------------------- what is asked

    def bring_up(self, key: str, operation: Json, made: Sequence[str] = ()) -> None:
        """Find hardware for a machine and boot it.

        Args:
            key: `zone/name`.
            operation: Ended when it runs, or cannot.
            made: Disks that were made for it, and go again when there is no hardware.
        """
        self._go(key, self._bring_up(key, operation, made))

    def take_down(self, key: str, operation: Json, *, delete: bool = False) -> None:
        """Stop a machine, or delete it."""
        self._go(key, self._take_down(key, operation, delete=delete))

    def reset(self, key: str, operation: Json) -> None:
        """Switch a machine off and on at once."""
        self._go(key, self._reset(key, operation))

    def console(self, key: str) -> str:
        """What a machine wrote to its serial console."""
        zone, _, name = key.partition("/")
        own = str(self._world.options.get("serial") or self._world.serials.get(key, ""))
        return own + self._cloud.hosts.serial("gce", zone, name)

    def metadata_changed(self, key: str) -> None:
        """Tell a machine that its metadata are others."""
        zone, _, name = key.partition("/")
        self._cloud.hosts.set_metadata("gce", zone, name, _metadata(self._world.instances[key]))

    def resume(self) -> None:
        """After a restart of the rehearsal: what was on its way has arrived."""
        for operation in self._world.operations.values():
            if operation.get("kind") == "compute#operation" and operation["status"] != "DONE":
                operation |= {"status": "DONE", "progress": 100, "endTime": now()}
        for key, machine in list(self._world.instances.items()):
            if machine["status"] in {"PROVISIONING", "STAGING"}:
                machine["status"] = "RUNNING"
                self._go(key, self._boot(key, machine))
            elif machine["status"] == "STOPPING":
                machine["status"] = "TERMINATED"

    async def close(self) -> None:
        """End everything that is under way."""
        tasks = [task for group in self._tasks.values() for task in group]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------- what happens

    def _go(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._reported(work), name=f"machine {key}")
        group = self._tasks.setdefault(key, set())
        group.add(task)
        task.add_done_callback(group.discard)

    async def _reported(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 (a fault of the rehearsal must show in its log)
            traceback.print_exc(file=sys.stderr)

    async def _after(self, seconds: float) -> None:
        await asyncio.sleep(self._cloud.after(seconds))

    async def _bring_up(self, key: str, operation: Json, made: Sequence[str]) -> None:
        machine = self._world.instances[key]
        zone = key.partition("/")[0]
        if machine["status"] == "RUNNING":
            await self._compute.finish(operation)
            return
        machine["status"] = "PROVISIONING"
        await self._after(PROVISION_S)
        model = str(machine["scheduling"]["provisioningModel"])
        short = next((item for item in self._stockouts if item.meets(zone, model)), None)
        if short is not None:
            if operation["operationType"] == "insert":
                self._withdraw(key, machine, made, short.leaves)
            else:
                machine["status"] = "TERMINATED"
            text = STOCKOUT.format(project=self._world.project, zone=zone)
            await self._compute.finish(
                operation, failure("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", text)
            )
            return
        machine["status"] = "STAGING"
        await self._after(STAGE_S)
        if self._world.instances.get(key) is not machine:
            return
        machine |= {"status": "RUNNING", "lastStartTimestamp": now()}
        await self._boot(key, machine)
        await self._compute.finish(operation)

    def _withdraw(self, key: str, machine: Json, made: Sequence[str], leaves: str) -> None:
        """Take back a machine for which there was no hardware."""
        zone = key.partition("/")[0]
        if leaves == "machine":
            machine["status"] = "TERMINATED"
            return
        self._world.instances.pop(key, None)
        for entry in machine["disks"]:
            fresh = str(entry["source"]).rpartition("/")[2] in made
            self._disks.let_go(zone, entry, delete=fresh and leaves != "disks")

    async def _boot(self, key: str, machine: Json) -> None:
        """Power the machine on: the first time with an empty boot disk, later as it was."""
        zone, _, name = key.partition("/")
        self._write(
            key,
            f"[    1.204310] EXT4-fs (sda1): mounted filesystem\n"
            f"google_guest_agent[512]: GCE Agent Started ({name})\n"
            "systemd[1]: Started ssh.service - OpenBSD Secure Shell server.\n"
            f"\nDebian GNU/Linux 13 {name} ttyS0\n\n{name} login: \n",
        )
        hosts = self._cloud.hosts
        if hosts.machine("gce", zone, name).read():
            await asyncio.to_thread(hosts.start, "gce", zone, name)
            return
        gpus = machine.get("guestAccelerators") or [{}]
        addresses = await asyncio.to_thread(
            hosts.boot,
            "gce",
            self._world.project,
            zone,
            name,
            instance_id=str(machine["id"]),
            metadata=_metadata(machine),
            accelerator=str(gpus[0].get("acceleratorType") or "").rpartition("/")[2]
            or str(machine["machineType"]).rpartition("/")[2],
            account=str((machine.get("serviceAccounts") or [{}])[0].get("email") or ""),
            disks=[
                {
                    "name": entry["deviceName"],
                    "size_gb": int(entry["diskSizeGb"]),
                    "source": str(entry["source"]).rpartition("/")[2],
                }
                for entry in machine["disks"]
                if not entry["boot"]
            ],
        )
        for interface in machine["networkInterfaces"]:
            for access in interface.get("accessConfigs") or []:
                access["natIP"] = addresses[0]

    def _write(self, key: str, text: str) -> None:
        whole = self._world.serials.get(key, "") + text
        self._world.serials[key] = whole[-_MAX_CONSOLE:]
        self._world.dirty = True

    async def _take_down(self, key: str, operation: Json, *, delete: bool) -> None:
        machine = self._world.instances.get(key)
        zone, _, name = key.partition("/")
        for task in self._tasks.get(key, set()) - {asyncio.current_task()}:
            # What is on its way up does not arrive any more.
            task.cancel()
        if machine is not None and machine["status"] != "TERMINATED":
            machine["status"] = "STOPPING"
            await self._after(DELETE_S if delete else STOP_S)
            await asyncio.to_thread(self._cloud.hosts.stop, "gce", zone, name)
            machine |= {"status": "TERMINATED", "lastStopTimestamp": now()}
        if machine is not None and delete:
            self._world.instances.pop(key, None)
            self._world.serials.pop(key, None)
            for entry in machine["disks"]:
                self._disks.let_go(zone, entry, delete=bool(entry.get("autoDelete")))
            await asyncio.to_thread(self._cloud.hosts.remove, "gce", zone, name)
        await self._compute.finish(operation)

    async def _reset(self, key: str, operation: Json) -> None:
        zone, _, name = key.partition("/")
        await asyncio.to_thread(self._cloud.hosts.reset, "gce", zone, name)
        await self._compute.finish(operation)

    # ------------------------------------------------------------------------- what goes wrong

    def _stockout(self, values: Json) -> Undo:
        short = Stockout(**values)
        if short.leaves not in {"", "disks", "machine"}:
            raise FaultError("leaves must be disks or machine")
        self._stockouts.append(short)
        return lambda: self._stockouts.remove(short)

    def _preempt(self, values: Json) -> None:
        """Google takes spot machines back, as it may at any time."""
        pattern = str(values.get("instance", "*"))
        for key, machine in self._world.instances.items():
            spot = machine["scheduling"]["provisioningModel"] == "SPOT"
            if not spot or not fnmatch.fnmatchcase(machine["name"], pattern):
                continue
            zone, _, name = key.partition("/")
            operation = self._compute.begin(
                "compute.instances.preempted", f"zones/{zone}/instances/{name}", user="system"
            )
            gone = machine["scheduling"].get("instanceTerminationAction") == "DELETE"
            self.take_down(key, operation, delete=gone)

    def _quota(self, values: Json) -> Callable[[], None]:
        region, metric = str(values.get("region", "*")), str(values["metric"])
        own = self._world.options.setdefault("compute_quotas", {}).setdefault(region, {})
        before = own.get(metric)
        own[metric] = float(values["value"])

        def undo() -> None:
            if before is None:
                own.pop(metric, None)
            else:
                own[metric] = before

        return undo

    def _renew(self, empty: bool) -> None:
        del empty
        for group in self._tasks.values():
            for task in group:
                task.cancel()
        self._stockouts.clear()


def _metadata(machine: Json) -> dict[str, str]:
    items = (machine.get("metadata") or {}).get("items") or []
    return {str(item["key"]): str(item.get("value", "")) for item in items}

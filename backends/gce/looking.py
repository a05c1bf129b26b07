"""What there is of T4 machines and how it is: reads only; nothing is started or woken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from backends.base import Backend, Services
from backends.core.answers import Check, Deployment, Price, Status
from backends.core.errors import (
    ConflictError,
    DevopsError,
    EndpointError,
    InvalidInputError,
    NotFoundError,
    NotManagedError,
)
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together
from backends.core.state import stamp
from backends.gce.commands import TARGET, data_disk
from backends.gce.machines import NAME_LABEL, ComputeApi, Disk, Machine
from backends.knowledge import gce

if TYPE_CHECKING:
    from backends.clouds.zone_memory import ZoneMemory
    from backends.core.operations import Operation
    from backends.gce.hosting import Hosting
    from backends.gce.sights import HostSight
    from backends.serving.endpoint import Endpoint
    from backends.serving.judgement import Judgement

WORK = ("deploy", "start_serving", "prepare_host")
"""Kinds of operations that bring a deployment up."""

# A list must not wait for a machine that hangs.
_LIST_SIGHT_S = 12.0
_SIGHT_S = 25.0
# After that long a failed attempt of which nothing is there is history.
_FAILED_FOR_S = 6 * 3600.0


class GceLooking(Backend):
    """Reads of T4 machines.

    Attributes:
        cloud: The project.
        api: Its Compute Engine.
        prices: Its rates.
        memory: What zones said lately.
    """

    def __init__(self, services: Services) -> None:
        from backends.clouds.google import GoogleCloud
        from backends.clouds.google_compute_prices import ComputePrices
        from backends.clouds.google_prices import PriceList
        from backends.clouds.zone_memory import ZoneMemory

        super().__init__(services)
        self.cloud = GoogleCloud(services)
        self.api = ComputeApi(self.cloud)
        self.prices = ComputePrices(PriceList(self.cloud.rest, services.owned))
        self.memory: ZoneMemory = ZoneMemory(services.state, TARGET)
        self._hosting: Hosting | None = None
        self._zones: dict[str, str] = {}

    @property
    def hosting(self) -> Hosting:
        """What goes on on the machines themselves."""
        if self._hosting is None:
            from backends.gce.hosting import Hosting

            self._hosting = Hosting(self.cloud)
        return self._hosting

    # --------------------------------------------------------------------------------- finding

    async def t4_machines(self) -> list[Machine]:
        """Every machine with a T4, ours or not, and those of ours whatever they have."""
        return [
            machine
            for machine in await self.api.machines()
            if machine.gpu == gce.GPU_TYPE or machine.labels.get(NAME_LABEL) == machine.name
        ]

    async def find(self, name: str) -> Machine:
        """The machine of that name.

        Raises:
            NotFoundError: Every zone was asked and has none.
            InvalidInputError: Several zones have one.
        """
        known = self._zones.get(name)
        if known is not None:
            machine = await self.api.machine_or_none(known, name)
            if machine is not None:
                return machine
            self._zones.pop(name, None)
        found = [machine for machine in await self.t4_machines() if machine.name == name]
        if len(found) > 1:
            ours = [machine for machine in found if machine.managed]
            if len(ours) != 1:
                places = ", ".join(machine.zone for machine in found)
                raise InvalidInputError("name", f"{name} exists in several zones ({places}).")
            found = ours
        if not found:
            raise await self._not_here(name)
        self._zones[name] = found[0].zone
        return found[0]

    async def ours(self, name: str) -> Machine:
        """The machine of that name, if it may be changed.

        Raises:
            NotFoundError: There is none.
            NotManagedError: It does not carry our label.
        """
        machine = await self.find(name)
        if not machine.managed:
            raise NotManagedError(
                f"{self.at(name)} in {machine.zone} does not carry {MANAGED_BY}={MANAGED_BY_US}, "
                "so it is only read.",
                next_action="To adopt it, ask the person to run: gcloud compute instances "
                f"add-labels {name} --zone={machine.zone} "
                f"--labels={MANAGED_BY}={MANAGED_BY_US},{NAME_LABEL}={name}",
            )
        return machine

    async def kept_disk(self, name: str) -> Disk | None:
        """The data disk of a name, whether a machine has it or not."""
        return next((disk for disk in await self.api.disks() if disk.name == data_disk(name)), None)

    async def _not_here(self, name: str) -> NotFoundError:
        work = await self.work_on(name)
        if work is not None and not work.finished:
            return NotFoundError(
                f"There is no machine of {self.at(name)} yet; {work.id} is making it.",
                next_action=f"get_operation(operation_id={work.id!r}, wait_s=40), or "
                f"cancel_operation(operation_id={work.id!r}).",
            )
        disk = await self.kept_disk(name)
        words = ""
        if disk is not None:
            from backends.gce.costs import monthly

            words = f" Its data disk is kept: {monthly(disk)}."
        return NotFoundError(
            f"There is no machine {name[:64]!r} on {self.target}.{words}",
            cause="Every zone was asked, and answered.",
            next_action=f"plan_deployment(target={TARGET!r}, name={name!r}) uses the disk again; "
            f"destroy(target={TARGET!r}, name={name!r}, options={{'data_disk': true}}) deletes it."
            if disk is not None
            else "Call list_deployments.",
        )

    async def work_on(self, name: str) -> Operation | None:
        """The newest background work on a deployment."""
        operations = await asyncio.to_thread(self.services.operations.all)
        return next(
            (
                item
                for item in operations
                if (item.target, item.name) == (self.target, name) and item.kind in WORK
            ),
            None,
        )

    # --------------------------------------------------------------------------------- answers

    async def deployments(self) -> list[Deployment]:
        """Every machine with a T4, and data disks that were kept."""
        machines, disks = await together(self.t4_machines(), self.api.disks())
        judged = await together(*(self._judge_quickly(machine) for machine in machines))
        found = [
            self._listed(machine, judgement, disks)
            for machine, judgement in zip(machines, judged, strict=True)
        ]
        found += [self._kept(disk) for disk in disks if not disk.users]
        return found + await self._being_made({item.name for item in found})

    async def _being_made(self, listed: set[str]) -> list[Deployment]:
        """What is deployed just now and has no machine yet: only its operation tells of it."""
        operations = await asyncio.to_thread(self.services.operations.all)
        return [
            Deployment(
                target=self.target,
                name=item.name,
                state="creating",
                engine="vllm",
                simulated=self.cloud.rehearsal,
                usd_per_hour=0.0,
                created_at=item.started_at,
                note=f"its machine is still to come: {item.progress or 'just begun'} ({item.id})",
            )
            for item in operations
            if (item.target, item.kind) == (self.target, "deploy")
            and not item.finished
            and item.name not in listed
        ]

    def _listed(self, machine: Machine, judged: Judgement, disks: Sequence[Disk]) -> Deployment:
        from backends.gce.costs import rate_now

        self._zones[machine.name] = machine.zone
        how = "spot" if machine.spot else "on demand"
        note = f"{machine.zone}, {machine.kind} {how}"
        return Deployment(
            target=self.target,
            name=machine.name,
            state=judged.state,
            engine="vllm",
            model=str(machine.spec.get("model") or "") or None,
            managed=machine.managed,
            simulated=self.cloud.rehearsal,
            usd_per_hour=rate_now(machine, disks, self.prices),
            created_at=_when(machine.created_at),
            note=note if judged.state == "ready" else f"{note}; {judged.words}",
        )

    def _kept(self, disk: Disk) -> Deployment:
        from backends.gce.costs import monthly

        price = disk.usd_per_month
        name = disk.labels.get(NAME_LABEL) or disk.name
        return Deployment(
            target=self.target,
            name=name,
            state="stopped",
            simulated=self.cloud.rehearsal,
            usd_per_hour=round(price / gce.HOURS_A_MONTH, 4) if price is not None else None,
            created_at=disk.created_at or None,
            end_options={"data_disk": True},
            note=f"only its data disk is kept: {monthly(disk)}",
        )

    async def _judge_quickly(self, machine: Machine) -> Judgement:
        from backends.gce.state import judge

        sight, operation = None, await self.work_on(machine.name)
        if machine.managed and worth_a_look(machine, operation):
            sight = await self._sight(machine, _LIST_SIGHT_S)
        return judge(machine, sight, operation, time.time())

    async def _sight(self, machine: Machine, timeout_s: float) -> HostSight:
        from backends.gce.sights import HostSight

        try:
            async with asyncio.timeout(timeout_s):
                return await self.hosting.sight(machine)
        except TimeoutError:
            return HostSight(problem=f"It did not answer ssh within {timeout_s:.0f} s.")

    async def status(self, name: str, *, detail: bool = False) -> Status:
        """How one machine is: Google's word, what is seen on it, and its engine's own answer."""
        from backends.gce.state import judge, judge_absent

        operation = await self.work_on(name)
        try:
            machine = await self.find(name)
        except NotFoundError:
            if operation is None or _is_history(operation):
                return await self._only_a_disk(name)
            return self._status(name, None, judge_absent(operation), ())
        sight = None
        if worth_a_look(machine, operation):
            sight = await self._sight(machine, _SIGHT_S)
        preempted = (
            machine.status == "TERMINATED" and machine.spot and await self.api.preempted(machine)
        )
        judged = judge(machine, sight, operation, time.time(), preempted=preempted)
        answer = self._status(name, machine, judged, await self.api.disks())
        if judged.state == "ready":
            await self._ask_engine(machine, answer)
        if sight is not None and not sight.problem:
            answer.facts |= dict(sight.facts)
            if detail:
                answer.host = await self.hosting.facts(machine)
        return answer

    async def _only_a_disk(self, name: str) -> Status:
        """The status of a name of which only the data disk is left.

        Raises:
            NotFoundError: Not even that.
        """
        from backends.gce.costs import monthly

        disk = await self.kept_disk(name)
        if disk is None:
            raise await self._not_here(name)
        price = disk.usd_per_month
        return Status(
            summary=f"{self.at(name)} has no machine; its data disk is kept: {monthly(disk)}.",
            target=self.target,
            name=name,
            state="stopped",
            ready=False,
            simulated=self.cloud.rehearsal,
            usd_per_hour=round(price / gce.HOURS_A_MONTH, 4) if price is not None else None,
            created_at=disk.created_at or None,
            facts={"data_disk": disk.name, "data_disk_gib": disk.gib, "zone": disk.zone},
            next_steps=[
                f"plan_deployment(target={TARGET!r}, name={name!r}) uses it again",
                f"destroy(target={TARGET!r}, name={name!r}, options={{'data_disk': true}})",
            ],
        )

    def _status(
        self, name: str, machine: Machine | None, judged: Judgement, disks: Sequence[Disk]
    ) -> Status:
        from backends.gce.costs import rate_now

        where = f" in {machine.zone}" if machine is not None else ""
        return judged.status(
            summary=f"{self.at(name)}{where}: {judged.words}.",
            target=self.target,
            name=name,
            managed=machine.managed if machine is not None else True,
            simulated=self.cloud.rehearsal,
            usd_per_hour=rate_now(machine, disks, self.prices) if machine is not None else 0.0,
            created_at=_when(machine.created_at) if machine is not None else None,
            facts=_facts(machine) if machine is not None else {},
            next_steps=self._next_steps(name, judged, machine),
        )

    def _next_steps(self, name: str, judged: Judgement, machine: Machine | None) -> list[str]:
        fix = [judged.fix] if judged.fix else []
        if judged.state == "ready":
            return self.next_when_ready(name)
        if judged.state in {"creating", "starting"}:
            return [self.call("wait_until_ready", name), *fix]
        if judged.state == "stopping":
            return self.next_while_ending(name)
        if machine is None:
            return [*fix, f"plan_deployment(target={self.target!r}, name={name!r})"]
        if judged.state == "stopped":
            return [*fix, self.call("destroy", name)]
        return [*fix, self.call("get_logs", name), self.call("destroy", name)]

    async def _ask_engine(self, machine: Machine, answer: Status) -> None:
        """Ask the engine itself, and let what it says count more than its log."""
        from backends.serving.endpoint import EndpointClient

        try:
            async with EndpointClient(await self.endpoint_of(machine), timeout_s=8.0) as client:
                took_ms = await client.health()
                models = await client.models()
                answer.version = await client.version()
        except (EndpointError, DevopsError) as error:
            answer.state, answer.ready, answer.phase = "degraded", False, None
            answer.summary = f"{self.at(machine.name)} runs vLLM, but: {error.message}"
            answer.error, answer.error_cause = error.words or error.message, error.cause
            answer.next_steps = [
                self.call("get_logs", machine.name),
                f"start_serving(target={TARGET!r}, name={machine.name!r}, restart=true)",
            ]
            return
        answer.checks.append(
            Check(name="health", ok=True, detail="/health answers 200", duration_ms=took_ms)
        )
        answer.models = [model.id for model in models]
        answer.max_model_len = models[0].max_model_len if models else None

    # --------------------------------------------------------------------------------- endpoint

    async def endpoint(self, name: str) -> Endpoint:
        """Its server, through the tunnel that is kept for it."""
        machine = await self.find(name)
        if machine.status != "RUNNING":
            raise ConflictError(
                f"{self.at(name)} does not run ({machine.status}).",
                next_action=self.call("start_serving", name)
                if machine.status == "TERMINATED"
                else self.call("wait_until_ready", name),
            )
        return await self.endpoint_of(machine)

    async def endpoint_of(self, machine: Machine) -> Endpoint:
        """How to ask the server on a machine that runs.

        Raises:
            HostUnreachableError: There is no way to the machine.
        """
        from backends.serving.endpoint import Endpoint

        port = await self.hosting.local_port(machine)
        return Endpoint(
            f"http://127.0.0.1:{port}",
            simulated=self.cloud.rehearsal,
            source=f"vLLM on {machine.name} in {machine.zone}, through an ssh tunnel",
        )

    async def price(self, name: str) -> Price | None:
        """What it costs per hour while it is on."""
        from backends.gce.costs import running_price

        try:
            machine = await self.find(name)
        except NotFoundError:
            return None
        disks, _ = await together(self.api.disks(), self.prices.learn())
        return running_price(machine, disks, self.prices)

    async def doctor(self) -> list[Check]:
        """gcloud, ssh, the login, the project and its APIs; each with the fix."""
        from backends.clouds.google_doctor import WITH_SSH, google_checks

        apis = ("compute", "iam", "iap", "secretmanager")
        return await google_checks(self.cloud, self.target, WITH_SSH, apis)


def worth_a_look(machine: Machine, operation: Operation | None) -> bool:
    """Whether ssh can tell more than the work on a machine, which is there already."""
    if machine.status != "RUNNING":
        return False
    return (
        operation is None
        or operation.finished
        # It may serve while it is prepared again, or only looked at.
        or operation.kind == "prepare_host"
        or str(operation.progress or "").startswith(("loading", "ready"))
    )


def _facts(machine: Machine) -> dict[str, str | int | float | bool]:
    facts: dict[str, str | int | float | bool] = {
        "zone": machine.zone,
        "machine_type": machine.kind,
        "gpu": machine.gpu or "none",
        "provisioning": "spot" if machine.spot else "on-demand",
        "machine_status": machine.status,
        "address": machine.external or "none (IAP)",
        "account": machine.account or "none",
    }
    for disk in machine.disks:
        stays = "goes with the machine" if disk.auto_delete else "is kept"
        facts[f"disk {disk.name}"] = f"{disk.gib} GiB, {stays}"
    model = machine.spec.get("model")
    return facts | ({"model_argument": str(model)} if model else {})


def _is_history(operation: Operation) -> bool:
    if not operation.finished or operation.state == "succeeded":
        return operation.finished
    began = datetime.fromisoformat(operation.started_at).timestamp()
    return time.time() - began > _FAILED_FOR_S


def _when(seconds: float) -> str | None:
    return stamp(datetime.fromtimestamp(seconds, UTC)) if seconds else None

"""The `gce-t4` target: a virtual machine with a Tesla T4, vLLM as a process of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, SecretStr

from backends.base import (
    CanDeploy,
    CanDestroy,
    CanStart,
    CanStop,
    DeploySpec,
    EndOptions,
    FindsCapacity,
    HasLogs,
    HasModels,
    LoadsBesideEngine,
    PreparesHost,
    RunsLater,
    SavesTokens,
    WorkerJob,
)
from backends.clouds.hosts.preparing import HostOptions
from backends.core.answers import Capacity, Changed, LogsAnswer, ModelEntry, TokenSaved
from backends.core.errors import ConflictError, DevopsError
from backends.core.option_names import ANY, zones_only
from backends.core.plans import Plan, Step
from backends.core.state import now
from backends.gce.looking import GceLooking
from backends.gce.spec import DestroyOptions, GceSpec, StopOptions
from backends.knowledge import gce

if TYPE_CHECKING:
    from backends.knowledge.signatures import Signature
    from backends.serving.engine.crew import Workforce


class GceT4Backend(
    GceLooking,
    CanDeploy,
    CanDestroy,
    CanStart,
    CanStop,
    HasLogs,
    HasModels,
    FindsCapacity,
    PreparesHost,
    SavesTokens,
    RunsLater,
    LoadsBesideEngine,
):
    """Compute Engine with one Tesla T4."""

    target: ClassVar[str] = "gce-t4"
    ttl: ClassVar[str] = "ttl_hours"
    title: ClassVar[str] = "Compute Engine virtual machine, vLLM on the host"
    hardware: ClassVar[str] = "NVIDIA Tesla T4, 16 GB"
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "stage_model": "The machine downloads weights onto its data disk by itself, and the "
        "disk is kept when the machine is destroyed.",
        "update_scaling": "One machine serves; deploy a second one under another name.",
        "shift_traffic": "Deploy the candidate under another name and compare the two.",
        "probe_cold_start": "stop_serving and start_serving; wait_until_ready shows each "
        "phase with its seconds.",
    }
    Spec: ClassVar[type[DeploySpec]] = GceSpec
    StopOptions: ClassVar[type[EndOptions]] = StopOptions
    DestroyOptions: ClassVar[type[EndOptions]] = DestroyOptions
    HostOptions: ClassVar[type[BaseModel]] = HostOptions
    places_are: ClassVar[str] = "zones"

    @classmethod
    def placed(cls, places: list[str]) -> dict[str, Any]:
        """Zones to try; a region stands for its zones."""
        if places == [ANY]:
            return {}
        return {"zones": zones_only(cls.target, places, gce.all_zones())}

    # --------------------------------------------------------------------------------- deploying

    async def capacity(self, place: str | None) -> Capacity:
        """Zones that sell T4s, with quota, price and what they said lately."""
        from backends.gce.capacity import find_capacity

        return await find_capacity(self, place)

    async def plan_deploy(self, spec: DeploySpec) -> Plan:
        """A machine in the first zone that has one, its way out, its preparation, its server."""
        if not isinstance(spec, GceSpec):
            raise TypeError(f"{self.target} plans a GceSpec, not {type(spec).__name__}")
        from backends.gce.planning import plan_deployment

        return await plan_deployment(self, spec)

    async def plan_stop(self, name: str) -> Plan:
        """Stop the server; the machine goes on."""
        return await self.plan_stop_as(name, StopOptions())

    async def plan_stop_as(self, name: str, options: EndOptions) -> Plan:
        """Stop the server, or with `power_off` the machine."""
        from backends.gce import ending

        return await ending.plan_stop(self, name, StopOptions.model_validate(options.model_dump()))

    async def leftovers(self, names: Collection[str]) -> dict[str, str]:
        """Service accounts of deployments that are no more."""
        from backends.clouds.google_leftovers import accounts_left

        return await accounts_left(self.cloud, self.target, names)

    async def plan_leftovers(self, name: str) -> Plan | None:
        """Delete such an account."""
        from backends.clouds.google_leftovers import plan_account_left

        return await plan_account_left(self.cloud, self.target, name)

    async def plan_destroy(self, name: str) -> Plan:
        """The machine and what was made for it; the data disk stays."""
        return await self.plan_destroy_as(name, DestroyOptions())

    async def plan_destroy_as(self, name: str, options: EndOptions) -> Plan:
        """The machine, and with `data_disk` its data disk too."""
        from backends.gce import ending

        chosen = DestroyOptions.model_validate(options.model_dump())
        return await ending.plan_destroy(self, name, chosen)

    async def run_step(self, plan: Plan, step: Step) -> str:
        """Run one step of a plan made here."""
        from backends.gce.running import run_step

        return await run_step(self, plan, step)

    async def run_later(
        self, kind: str, name: str, params: dict[str, Any], job: WorkerJob
    ) -> dict[str, Any]:
        """What takes minutes, in a worker."""
        from backends.gce import bringing
        from backends.gce.placing import explained

        del kind  # start_serving is the only one; deploy runs a plan's steps
        try:
            return await bringing.start_again(self, name, params, job)
        except DevopsError as error:
            raise explained(error, name) from error

    async def run_long_step(self, plan: Plan, step: Step, job: WorkerJob) -> str:
        """Run a long step of a deployment, in a worker."""
        from backends.gce import bringing

        return await bringing.run_long_step(self, plan, step, job)

    async def start(self, name: str, *, restart: bool) -> Changed:
        """Bring it back to serving from whatever state it is in: off, restarted, half-prepared."""
        from backends.gce.commands import instance_argv
        from backends.gce.placing import explained, operation_in
        from backends.gce.running import start_work

        machine = await self.ours(name)
        done: list[str] = []
        params: dict[str, Any] = {"restart": restart}
        if machine.status in {"STOPPING", "SUSPENDING"}:
            raise ConflictError(
                f"{self.at(name)} is still being stopped.",
                next_action=f"{self.call('wait_until_ready', name)}, then start_serving.",
            )
        if machine.status == "TERMINATED":
            project = await self.cloud.project()
            argv = instance_argv("start", name, project, machine.zone, "--async")
            try:
                params["operation"], _ = operation_in(await self.cloud.gcloud.run(argv))
            except DevopsError as error:
                raise explained(error, name) from error
            params["restart"] = False
            done.append(" ".join(argv))
        elif not restart:
            status = await self.status(name)
            if status.state in {"ready", "creating", "starting"}:
                return Changed(
                    summary=f"{self.at(name)} is {status.state}; nothing to start.",
                    target=self.target,
                    name=name,
                    state=status.state,
                    next_steps=status.next_steps,
                )
        operation = await asyncio.to_thread(start_work, self, "start_serving", name, params)
        price = await self.price(name)
        return Changed(
            summary=f"{self.at(name)} is being brought back to serving ({operation.id}).",
            target=self.target,
            name=name,
            state="starting",
            done=[*done, f"started operation {operation.id}"],
            usd_per_hour=price.usd_per_hour if price is not None else None,
            next_steps=[self.call("wait_until_ready", name)],
        )

    async def prepare_host(
        self, name: str, options: BaseModel, job: WorkerJob, *, check_only: bool
    ) -> dict[str, Any]:
        """Make the machine ready to serve, or only look; run in a worker."""
        from backends.gce import bringing

        return await bringing.prepare(self, name, options, job, check_only=check_only)

    async def load_workers(self, name: str) -> Workforce:
        """The machine's cores, for load that no network is in."""
        from backends.clouds.hosts.workers import HostWorkers

        machine = await self.ours(name)
        return HostWorkers(await self.hosting.host(machine), gce.PORT)

    # --------------------------------------------------------------------------------- reading

    async def last_request_at(self, name: str) -> float | None:
        """When its engine last had work, by its own log; None where the log does not tell."""
        from backends.serving.last_traffic import READ_LINES, last_traffic_at

        answer = await self.logs(name, "engine", READ_LINES)
        return last_traffic_at(answer.text.splitlines(), now())

    async def logs(self, name: str, source: str | None, lines: int) -> LogsAnswer:
        """The newest lines of one of the machine's logs."""
        from backends.gce import logs

        return await logs.read(self, name, source, lines)

    async def models(self) -> list[ModelEntry]:
        """The catalogue with what fits a T4, and what is served."""
        from backends.gce.models import list_models

        return await list_models(self)

    async def inspect_model(self, model: str) -> dict[str, str | int | float | bool]:
        """What our tables say of a checkpoint, and how it fits."""
        from backends.gce.models import inspect

        return inspect(model)

    async def save_token(self, token: SecretStr) -> TokenSaved:
        """Keep the token in Secret Manager; machines get it from us, and may read nothing."""
        from backends.clouds.google_tokens import save_token

        return await save_token(
            self.cloud,
            self.target,
            token,
            [],
            read_by="this server reads it, and hands it to engines that start from now on",
            next_step=f"plan_deployment(target={self.target!r})",
        )

    @classmethod
    def failure_signatures(cls) -> Sequence[Signature]:
        """Compute Engine's and a T4 machine's own ways of failing."""
        from backends.knowledge.gce_failures import SIGNATURES

        return SIGNATURES

"""The target `tpu-v6e`: one room, two control planes behind the same verbs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import SecretStr

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
    SavesTokens,
    SearchesZones,
    WorkerJob,
)
from backends.core.answers import Capacity, Changed, LogsAnswer, ModelEntry, TokenSaved
from backends.core.option_names import ANY, zones_only
from backends.core.plans import Plan, Step
from backends.core.state import now
from backends.knowledge.tpu import ZONES
from backends.tpu.destroying import TpuDestroyOptions, TpuStopOptions
from backends.tpu.looking import TpuLooking
from backends.tpu.spec import TpuSpec

if TYPE_CHECKING:
    from backends.serving.engine.crew import Workforce


class TpuBackend(
    TpuLooking,
    CanDeploy,
    CanDestroy,
    CanStart,
    CanStop,
    HasLogs,
    HasModels,
    FindsCapacity,
    SearchesZones,
    SavesTokens,
    LoadsBesideEngine,
):
    """Cloud TPU v6e, by queued resources or as `ct6e-*` instances."""

    ttl: ClassVar[str] = "max_run_hours"

    INSTEAD: ClassVar[Mapping[str, str]] = {
        "stage_model": "A TPU machine loads the checkpoint from Hugging Face onto its own "
        "disk; save_hf_token keeps the token it needs.",
        "prepare_host": "The start script prepares the machine at every boot; "
        "start_serving(restart=true) runs it again.",
        "update_scaling": "A slice has the size it was asked for; plan another one.",
        "probe_cold_start": "stop_serving and start_serving; wait_until_ready shows each "
        "phase with its seconds.",
        "shift_traffic": "Deploy the candidate under another name and compare the two.",
    }
    Spec: ClassVar[type[DeploySpec]] = TpuSpec
    DestroyOptions: ClassVar[type[EndOptions]] = TpuDestroyOptions
    StopOptions: ClassVar[type[EndOptions]] = TpuStopOptions
    places_are: ClassVar[str] = "zone (one) or zones (several)"

    @classmethod
    def placed(cls, places: list[str]) -> dict[str, Any]:
        """One zone to ask in, or several to search; a region stands for its zones."""
        zones = zones_only(cls.target, places, ZONES)
        return {"zone": zones[0]} if len(zones) == 1 and zones != [ANY] else {"zones": zones}

    async def plan_deploy(self, spec: DeploySpec) -> Plan:
        """An account with one right, and the request; or a search of zones."""
        if not isinstance(spec, TpuSpec):
            raise TypeError(f"{self.target} plans a TpuSpec, not {type(spec).__name__}")
        from backends.tpu.deploying import plan_deployment

        return await plan_deployment(self, spec)

    def document(self, plan: Plan, form: str) -> str | None:
        """The same deployment as a manifest for GKE."""
        if form != "gke":
            return super().document(plan, form)
        from backends.tpu.gke import manifest

        return manifest(TpuSpec.model_validate(plan.spec))

    async def leftovers(self, names: Collection[str]) -> dict[str, str]:
        """Service accounts of deployments that are no more."""
        from backends.clouds.google_leftovers import accounts_left

        return await accounts_left(self.cloud, self.target, names)

    async def plan_leftovers(self, name: str) -> Plan | None:
        """Delete such an account."""
        from backends.clouds.google_leftovers import plan_account_left

        return await plan_account_left(self.cloud, self.target, name)

    async def plan_destroy(self, name: str) -> Plan:
        """The request with all it became, and what was made for it."""
        return await self.plan_destroy_as(name, TpuDestroyOptions())

    async def plan_destroy_as(self, name: str, options: EndOptions) -> Plan:
        """The same, or a list of others that are named one by one."""
        from backends.tpu import destroying

        others = options.others if isinstance(options, TpuDestroyOptions) else []
        return await destroying.plan_destroy(self, name, others)

    async def plan_stop(self, name: str) -> Plan:
        """The containers on every host."""
        return await self.plan_stop_as(name, TpuStopOptions())

    async def plan_stop_as(self, name: str, options: EndOptions) -> Plan:
        """The same, or the machine too."""
        from backends.tpu import destroying

        if not isinstance(options, TpuStopOptions):
            raise TypeError(f"{self.target} stops with TpuStopOptions")
        return await destroying.plan_stop(self, name, options)

    async def run_step(self, plan: Plan, step: Step) -> str:
        """Run one step of a plan made here."""
        from backends.tpu.running import run_step

        return await run_step(self, plan, step)

    async def start(self, name: str, *, restart: bool) -> Changed:
        """The machine if it is stopped, else the containers on every host."""
        from backends.tpu import serving

        return await serving.start(self, name, restart=restart)

    async def capacity(self, place: str | None) -> Capacity:
        """Hardware, quota, what was seen of capacity, and price."""
        from backends.tpu.capacity import find_capacity

        return await find_capacity(self, place)

    async def search(self, name: str, params: dict[str, Any], job: WorkerJob) -> dict[str, Any]:
        """Zone after zone by the plan's rule."""
        from backends.tpu import search

        return await search.search(self, name, params, job)

    async def load_workers(self, name: str) -> Workforce:
        """The cores of the first host, where the API is served, beside the container."""
        from backends.clouds.hosts.workers import HostWorkers

        request = await self.ours(name)
        self.must_run(request, "run_benchmark(runner=host)")
        return HostWorkers(await self.host(request), request.port)

    async def last_request_at(self, name: str) -> float | None:
        """When its engine last had work, by its own log; None where the log does not tell."""
        from backends.serving.last_traffic import READ_LINES, last_traffic_at

        answer = await self.logs(name, "container", READ_LINES)
        return last_traffic_at(answer.text.splitlines(), now())

    async def logs(self, name: str, source: str | None, lines: int) -> LogsAnswer:
        """The newest lines of one source."""
        from backends.tpu.logs import read_logs

        return await read_logs(self, name, source, lines)

    async def models(self) -> list[ModelEntry]:
        """The catalogue, and what is served."""
        from backends.tpu import models

        return await models.list_models(self)

    async def inspect_model(self, model: str) -> dict[str, str | int | float | bool]:
        """What our tables say of a checkpoint, and whether it fits."""
        from backends.tpu import models

        return models.inspect(model)

    async def save_token(self, token: SecretStr) -> TokenSaved:
        """Keep the token in Secret Manager."""
        from backends.clouds.google_tokens import save_token

        return await save_token(
            self.cloud,
            self.target,
            token,
            await self.readers(),
            read_by="machines that boot from now on read it",
            next_step=f"plan_deployment(target={self.target!r})",
        )

    async def readers(self) -> list[str]:
        """Accounts of our deployments, which read the token at boot."""
        from backends.clouds.google_facts import account_email

        project = await self.cloud.project()
        requests, _ = await self.world()
        return [
            item.account
            for item in requests
            if item.managed and item.account == account_email(self.target, item.name, project)
        ]

"""The SageMaker target: one endpoint a deployment, each step an aws command that is shown first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

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
    HasPlatformMetrics,
    RunsLater,
    Scales,
    Scaling,
    ShiftsTraffic,
    WorkerJob,
)
from backends.core.answers import (
    Capacity,
    Changed,
    LogsAnswer,
    MetricsAnswer,
    ModelEntry,
    Price,
    Traffic,
)
from backends.core.errors import ConflictError, NotFoundError
from backends.core.option_names import regions_only
from backends.core.plans import Plan, Step
from backends.sagemaker.destroying import SageMakerEnd
from backends.sagemaker.looking import SageMakerLooking
from backends.sagemaker.spec import SageMakerSpec

if TYPE_CHECKING:
    from backends.knowledge.signatures import Signature


class SageMakerBackend(
    SageMakerLooking,
    CanDeploy,
    CanDestroy,
    CanStart,
    CanStop,
    HasLogs,
    HasModels,
    HasPlatformMetrics,
    FindsCapacity,
    Scales,
    ShiftsTraffic,
    RunsLater,
):
    """Real-time endpoints on `ml.g6` instances."""

    ttl: ClassVar[str] = "shown"
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "prepare_host": "SageMaker needs no host; the image holds everything.",
        "probe_cold_start": "wait_until_ready times the phases of every start: after "
        "update_scaling(instances=0) and (instances=1) where it was deployed with "
        "options.scale_to_zero, else after stop_serving and start_serving.",
        "stage_model": "Weights come from Hugging Face at each start; or give "
        "model='s3://BUCKET/FOLDER' that holds a checkpoint (aws s3 sync).",
        "save_hf_token": "Gemma 4 needs no token: its weights are open to everybody.",
    }
    Spec: ClassVar[type[DeploySpec]] = SageMakerSpec
    DestroyOptions: ClassVar[type[EndOptions]] = SageMakerEnd
    places_are: ClassVar[str] = "region, then fallback_regions"

    @classmethod
    def placed(cls, places: list[str]) -> dict[str, Any]:
        """Its region, and those to fall back on."""
        first, *others = regions_only(cls.target, places) or [""]
        return {"region": first, "fallback_regions": others} if first else {}

    # --------------------------------------------------------------------------------- deploying

    async def plan_deploy(self, spec: DeploySpec) -> Plan:
        """A role with least privilege, model, configuration, endpoint; or a blue/green update."""
        if not isinstance(spec, SageMakerSpec):
            raise TypeError(f"{self.target} plans a SageMakerSpec, not {type(spec).__name__}")
        from backends.sagemaker.deploying import plan_deployment

        return await plan_deployment(self, spec)

    async def plan_destroy(self, name: str) -> Plan:
        """Endpoint, configurations, models and alarm."""
        return await self.plan_destroy_as(name, SageMakerEnd())

    async def plan_destroy_as(self, name: str, options: EndOptions) -> Plan:
        """The same; the role only if asked, and what is in progress only if left to settle."""
        from backends.sagemaker import destroying

        if not isinstance(options, SageMakerEnd):
            raise TypeError(f"{self.target} takes SageMakerEnd, not {type(options).__name__}")
        return await destroying.plan_destroy(self, name, options)

    async def leftovers(self, names: Collection[str]) -> dict[str, str]:
        """Roles and models of deployments that are no more."""
        from backends.sagemaker.leftovers import all_left

        return await all_left(self, names)

    async def plan_leftovers(self, name: str) -> Plan | None:
        """Delete them."""
        from backends.sagemaker.leftovers import plan_left

        return await plan_left(self, name)

    async def plan_stop(self, name: str) -> Plan:
        """The endpoint goes, its settings stay."""
        from backends.sagemaker import destroying

        return await destroying.plan_stop(self, name)

    async def run_step(self, plan: Plan, step: Step) -> str:
        """Run one step of a plan made here."""
        from backends.sagemaker.running import run_step

        return await run_step(self, plan, step)

    async def run_later(
        self, kind: str, name: str, params: dict[str, Any], job: WorkerJob
    ) -> dict[str, Any]:
        """What a worker does for a plan whose end takes longer than a call."""
        from backends.sagemaker import later

        return await later.run_later(self, kind, name, params, job)

    async def start(self, name: str, *, restart: bool) -> Changed:
        """Make the endpoint again; with `restart`, new instances for one that runs."""
        from backends.sagemaker import starting

        return await starting.start(self, name, restart=restart)

    # --------------------------------------------------------------------------------- operating

    async def capacity(self, place: str | None) -> Capacity:
        """Quota, use and price by region and type."""
        from backends.sagemaker.capacity import find_capacity

        return await find_capacity(self, place)

    async def check_zero(self, name: str) -> None:
        """No instances: only what was deployed to scale to zero; `scale` says how."""
        from backends.sagemaker.scaling import refuse_zero

        refuse_zero(self, await self.ours(name))

    async def scaling_price(self, name: str, scaling: Scaling) -> Price | None:
        """What it would cost per hour at most when scaled so."""
        from backends.sagemaker.scaling import price_of

        return await price_of(self, name, scaling)

    async def scale(self, name: str, scaling: Scaling) -> Changed:
        """Change the number of instances, or let load choose it."""
        from backends.sagemaker.scaling import scale

        return await scale(self, name, scaling)

    async def shift_traffic(self, name: str, to: str, percent: int, *, check: bool) -> Traffic:
        """Send a share of traffic to the candidate, or back."""
        from backends.sagemaker import traffic

        return await traffic.shift_traffic(self, name, to, percent, check=check)

    async def platform_metrics(self, name: str, interval_s: float, *, raw: bool) -> MetricsAnswer:
        """CloudWatch's figures."""
        from backends.sagemaker import metrics

        return await metrics.platform_metrics(self, name, interval_s, raw=raw)

    async def after_benchmark(self, name: str, began_s: float, ended_s: float) -> dict[str, Any]:
        """Which part of the latency was the model's, and which SageMaker's own."""
        from backends.sagemaker import metrics

        return await metrics.benchmark_split(self, name, began_s, ended_s)

    # --------------------------------------------------------------------------------- weights

    async def models(self) -> list[ModelEntry]:
        """The catalogue and what is served."""
        from backends.sagemaker import models

        return await models.list_models(self)

    async def inspect_model(self, model: str) -> dict[str, str | int | float | bool]:
        """What a bucket folder's own files say."""
        from backends.sagemaker import models

        return await models.inspect(self, model)

    # --------------------------------------------------------------------------------- logs

    async def logs(self, name: str, source: str | None, lines: int) -> LogsAnswer:
        """The newest lines of its containers."""
        from backends.sagemaker.logs import SOURCES

        deployed = await self.find(name)
        chosen = source or "container"
        begun = deployed.component or deployed.endpoint
        since = begun.created_at if begun else 0.0
        try:
            entries, streams = await self.log_reader.lines(
                deployed.region, deployed.log_group, chosen, lines, since
            )
        except NotFoundError as error:
            status = await self.status(name)
            raise ConflictError(
                f"{self.at(name)} has no log yet: {status.summary}",
                words=error.words,
                cause="SageMaker makes the log group when the first container starts; before that "
                "it waits for capacity, or the image could not be started.",
                next_action=status.next_steps[0] if status.next_steps else "Call get_status.",
            ) from error
        return self.newest_lines(
            name,
            [entry.shown(of_several=streams > 1) for entry in entries],
            source=chosen,
            sources=list(SOURCES),
            of=f", of {deployed.log_group} in {deployed.region}",
        )

    @classmethod
    def failure_signatures(cls) -> Sequence[Signature]:
        """SageMaker's own ways of failing."""
        from backends.knowledge.sagemaker_failures import SIGNATURES

        return SIGNATURES


__all__ = ["SageMakerBackend"]

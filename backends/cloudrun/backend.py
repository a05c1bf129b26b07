"""The two Cloud Run targets: one control plane, two profiles."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import SecretStr

from backends.base import (
    CanDeploy,
    CanDestroy,
    CanStart,
    CanStop,
    DeploySpec,
    FindsCapacity,
    HasLogs,
    HasModels,
    ProbesColdStart,
    SavesTokens,
    Scales,
    Scaling,
    ShiftsTraffic,
    StagesModels,
    WorkerJob,
)
from backends.cloudrun.looking import CloudRunLooking
from backends.cloudrun.spec import CloudRunSpec
from backends.core.answers import (
    Capacity,
    Changed,
    LogsAnswer,
    ModelEntry,
    Price,
    Staged,
    TokenSaved,
    Traffic,
)
from backends.core.errors import DevopsError, InvalidInputError
from backends.core.option_names import PLACES, regions_only
from backends.core.plans import Plan, Step
from backends.core.state import stamp
from backends.core.words import in_words
from backends.knowledge.cloudrun import L4, RTX6000, CloudRunProfile

if TYPE_CHECKING:
    from backends.knowledge.signatures import Signature
    from backends.serving.model_sources import ModelSource


class CloudRunBackend(
    CloudRunLooking,
    CanDeploy,
    CanDestroy,
    CanStart,
    CanStop,
    HasLogs,
    HasModels,
    FindsCapacity,
    Scales,
    ShiftsTraffic,
    ProbesColdStart,
    StagesModels,
    SavesTokens,
):
    """Cloud Run with one GPU a container."""

    ttl: ClassVar[str] = "shown"

    INSTEAD: ClassVar[Mapping[str, str]] = {
        "prepare_host": "Cloud Run needs no host; the image holds everything.",
    }
    Spec: ClassVar[type[DeploySpec]] = CloudRunSpec
    places_are: ClassVar[str] = "region, of which it takes one"

    @classmethod
    def placed(cls, places: list[str]) -> dict[str, Any]:
        """Its region.

        Raises:
            InvalidInputError: Several, or a zone.
        """
        regions = regions_only(cls.target, places)
        if len(regions) > 1:
            raise InvalidInputError(
                f"options.{PLACES}",
                f"has {len(regions)} places, and {cls.target} goes to one region: an image and "
                "weights are in one.",
                allowed="one of them",
            )
        return {"region": regions[0]} if regions else {}

    # --------------------------------------------------------------------------------- deploying

    async def plan_deploy(self, spec: DeploySpec) -> Plan:
        """A service account with one right, the service, and who may call it."""
        if not isinstance(spec, CloudRunSpec):
            raise TypeError(f"{self.target} plans a CloudRunSpec, not {type(spec).__name__}")
        from backends.cloudrun.deploying import plan_deployment

        return await plan_deployment(self, spec)

    async def leftovers(self, names: Collection[str]) -> dict[str, str]:
        """Service accounts of deployments that are no more."""
        from backends.clouds.google_leftovers import accounts_left

        return await accounts_left(self.cloud, self.target, names)

    async def plan_leftovers(self, name: str) -> Plan | None:
        """Delete such an account."""
        from backends.clouds.google_leftovers import plan_account_left

        settings = self.services.settings
        bucket = settings.google_cloud_bucket or f"{await self.cloud.project()}-bucket"
        return await plan_account_left(self.cloud, self.target, name, bucket=bucket)

    async def plan_destroy(self, name: str) -> Plan:
        """The service and what was made for it; bucket, image and secret stay."""
        from backends.cloudrun import destroying

        return await destroying.plan_destroy(self, name)

    async def plan_stop(self, name: str) -> Plan:
        """Manual scaling at zero."""
        from backends.cloudrun import destroying

        return await destroying.plan_stop(self, name)

    async def run_step(self, plan: Plan, step: Step) -> str:
        """Run one step of a plan made here."""
        from backends.cloudrun.running import run_step

        return await run_step(self, plan, step)

    async def run_long_step(self, plan: Plan, step: Step, job: WorkerJob) -> str:
        """Run a step that takes minutes: the build of an image."""
        from backends.cloudrun.running import run_long_step

        del plan
        return await run_long_step(self, step, job)

    async def start(self, name: str, *, restart: bool) -> Changed:
        """Automatic scaling again after a stop; with `restart`, a new revision as it is."""
        from backends.cloudrun.commands import at
        from backends.cloudrun.running import explained

        service = await self.ours(name)
        flags: list[str] = []
        if service.manual == 0:
            flags.append("--scaling=auto")
        if restart:
            # A changed label makes a new revision, whose instances replace the running ones.
            moment = stamp().lower().replace(":", "-").replace(".", "-")
            flags.append(f"--update-labels=vllm-devops-restarted={moment}")
        if not flags:
            status = await self.status(name)
            return Changed(
                summary=f"{self.at(name)} is {status.state}; nothing to start.",
                target=self.target,
                name=name,
                state=status.state,
                url=status.url,
                next_steps=status.next_steps,
            )
        argv = [
            *("gcloud", "beta", "run", "services", "update", name),
            *at(await self.cloud.project(), service.region),
            *flags,
            *("--async", "--quiet", "--format=json"),
        ]
        try:
            await self.cloud.gcloud.run(argv)
        except DevopsError as error:
            raise explained(error, self.target, name) from error
        status = await self.status(name)
        return Changed(
            summary=f"{self.at(name)} can serve again and is {in_words(status.state)}.",
            target=self.target,
            name=name,
            state=status.state,
            url=status.url,
            done=[" ".join(argv)],
            usd_per_hour=status.usd_per_hour,
            next_steps=status.next_steps,
        )

    # --------------------------------------------------------------------------------- operating

    async def capacity(self, place: str | None) -> Capacity:
        """Quota, regions and prices."""
        from backends.cloudrun.capacity import find_capacity

        return await find_capacity(self, place)

    async def scaling_price(self, name: str, scaling: Scaling) -> Price | None:
        """What it would cost per hour at most when scaled so."""
        from backends.cloudrun.scaling import price_of

        return await price_of(self, name, scaling)

    async def scale(self, name: str, scaling: Scaling) -> Changed:
        """Change the number of instances."""
        from backends.cloudrun.scaling import scale

        return await scale(self, name, scaling)

    async def shift_traffic(self, name: str, to: str, percent: int, *, check: bool) -> Traffic:
        """Send a share of traffic to a candidate, the previous or a named revision."""
        from backends.cloudrun import traffic

        return await traffic.shift_traffic(self, name, to, percent, check=check)

    async def cold_start(self, name: str, job: WorkerJob) -> dict[str, Any]:
        """From zero to the first token, phase by phase."""
        from backends.cloudrun import cold_start

        return await cold_start.cold_start(self, name, job)

    # --------------------------------------------------------------------------------- weights

    async def models(self) -> list[ModelEntry]:
        """The catalogue, the bucket, and what is served."""
        from backends.cloudrun import models

        return await models.list_models(self)

    async def inspect_model(self, model: str) -> dict[str, str | int | float | bool]:
        """What a bucket folder's own files say."""
        from backends.cloudrun import models

        return await models.inspect(self, model)

    async def model_source(self, model: str) -> ModelSource | None:
        """config.json and size of a bucket folder."""
        from backends.cloudrun import models

        return await models.source_of(self, model)

    async def plan_staging(self, model: str, destination: str | None) -> Staged:
        """What is there, what is missing, and the commands."""
        from backends.cloudrun import staging

        return await staging.plan_staging(self, model, destination)

    async def stage(self, model: str, destination: str | None, job: WorkerJob) -> dict[str, Any]:
        """Bring what is missing."""
        from backends.cloudrun import staging

        return await staging.stage(self, model, destination, job)

    async def save_token(self, token: SecretStr) -> TokenSaved:
        """Keep the token in Secret Manager."""
        from backends.cloudrun import tokens

        return await tokens.save_token(self, token)

    # --------------------------------------------------------------------------------- logs

    async def logs(self, name: str, source: str | None, lines: int) -> LogsAnswer:
        """The newest lines of one of the service's logs."""
        from backends.cloudrun.logs import SOURCES

        service = await self.find(name)
        chosen = source or "container"
        entries, span = await self.log_reader.lines(service.region, name, chosen, lines)
        return self.newest_lines(
            name,
            [entry.shown() for entry in entries[-lines:]],
            source=chosen,
            sources=list(SOURCES),
            of=f", of the last {span.total_seconds() / 3600:g} hours",
        )

    @classmethod
    def failure_signatures(cls) -> Sequence[Signature]:
        """Cloud Run's own ways of failing."""
        from backends.knowledge.cloudrun_failures import SIGNATURES

        return SIGNATURES


class CloudRunL4Backend(CloudRunBackend):
    """One NVIDIA L4."""

    target: ClassVar[str] = L4.target
    title: ClassVar[str] = L4.title
    hardware: ClassVar[str] = L4.hardware
    profile: ClassVar[CloudRunProfile] = L4


class CloudRunRtx6000Backend(CloudRunBackend):
    """One RTX PRO 6000 Blackwell."""

    target: ClassVar[str] = RTX6000.target
    title: ClassVar[str] = RTX6000.title
    hardware: ClassVar[str] = RTX6000.hardware
    profile: ClassVar[CloudRunProfile] = RTX6000


__all__ = ["CloudRunL4Backend", "CloudRunRtx6000Backend"]

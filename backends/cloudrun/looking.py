"""What there is on Cloud Run and how it is: reads only, and none that wakes a sleeping GPU."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from backends.base import Backend, Services
from backends.core.answers import Check, Deployment, Price, Status
from backends.core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    NotManagedError,
)
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together
from backends.core.state import ends_at, stamp
from backends.core.words import plural
from backends.knowledge.cloudrun import CloudRunProfile

if TYPE_CHECKING:
    from backends.cloudrun.logs import LogReader, Sight
    from backends.cloudrun.services import RunService
    from backends.cloudrun.state import Judgement
    from backends.serving.endpoint import Endpoint

APIS = ("run", "logging", "storage", "iam")
"""What every deployment needs; others are asked for where they are used."""

# An image that reports phases answers /health with 200 from its first second on: for so long after
# a revision was made it is asked, for an instance is up then anyway.
_FRESH_S = 1800.0
# Just after a start the engine is asked what it serves. Not later: asking again and again would
# keep an instance up that would otherwise go to sleep.
_JUST_STARTED_S = 60.0


class CloudRunLooking(Backend):
    """Reads of one profile's services.

    Attributes:
        profile: The GPU and its reference deployment.
        timed: The same with the times of a start as they are to be expected here: in a rehearsal
            they are shorter.
    """

    profile: ClassVar[CloudRunProfile]

    def __init__(self, services: Services) -> None:
        from backends.cloudrun.instances import InstanceCounter
        from backends.cloudrun.prices import RunPrices
        from backends.cloudrun.services import RunApi
        from backends.clouds.google import GoogleCloud

        super().__init__(services)
        self.cloud = GoogleCloud(services)
        self.api = RunApi(self.cloud)
        speed = services.settings.rehearsal_speed if services.settings.rehearsal else 1.0
        self.timed = replace(self.profile, reference=self.profile.reference.faster(speed))
        self.counter = InstanceCounter(self.cloud)
        self._log_reader: LogReader | None = None
        self.prices = RunPrices(self.cloud, self.profile)
        self._regions: dict[str, str] = {}

    @property
    def log_reader(self) -> LogReader:
        """The reader of these services' logs."""
        if self._log_reader is None:
            from backends.cloudrun.logs import LogReader

            self._log_reader = LogReader(self.cloud)
        return self._log_reader

    # --------------------------------------------------------------------------------- finding

    def regions(self) -> tuple[str, ...]:
        """Every region that sells the GPU: a service with one can be nowhere else."""
        wanted = self.services.settings.google_cloud_location
        names = [sold.name for sold in self.profile.regions]
        return tuple(sorted(names, key=lambda name: name != wanted))

    async def all_services(self) -> list[RunService]:
        """Every service with this GPU, ours or not; one region that fails, fails all."""
        found = await self.api.services(self.regions())
        return [service for service in found if service.gpu == self.profile.gpu_type]

    async def find(self, name: str, region: str | None = None) -> RunService:
        """The service of that name.

        Args:
            name: The service.
            region: Where it is; None looks everywhere.

        Raises:
            NotFoundError: Every region was asked and has none.
            InvalidInputError: Several regions have one.
        """
        known = region or self._regions.get(name)
        if known is not None:
            try:
                return self._checked(await self.api.service(known, name))
            except NotFoundError:
                self._regions.pop(name, None)
                if region is not None:
                    raise self._not_here(name) from None
        found = [service for service in await self.all_services() if service.name == name]
        if len(found) > 1:
            wanted = self.services.settings.google_cloud_location
            chosen = [service for service in found if service.region == wanted]
            if len(chosen) != 1:
                places = ", ".join(service.region for service in found)
                raise InvalidInputError(
                    "name",
                    f"{name} exists in several regions ({places}).",
                    allowed="set GOOGLE_CLOUD_LOCATION to the one that is meant",
                )
            found = chosen
        if not found:
            raise self._not_here(name)
        self._regions[name] = found[0].region
        return found[0]

    def remember(self, name: str, region: str) -> None:
        """Keep in mind where a service is, so that it is found with one request."""
        self._regions[name] = region

    async def ours(self, name: str) -> RunService:
        """The service of that name, if it may be changed.

        Raises:
            NotFoundError: There is none.
            NotManagedError: It does not carry our label.
        """
        service = await self.find(name)
        if not service.managed:
            raise NotManagedError(
                f"{self.at(name)} in {service.region} does not carry "
                f"{MANAGED_BY}={MANAGED_BY_US}, so it is only read.",
                next_action="To adopt it, ask the person to run: gcloud run services update "
                f"{name} --region={service.region} "
                f"--update-labels={MANAGED_BY}={MANAGED_BY_US}",
            )
        return service

    def _checked(self, service: RunService) -> RunService:
        if service.gpu != self.profile.gpu_type:
            kind = service.gpu or "no GPU"
            raise ConflictError(
                f"The Cloud Run service {service.name} in {service.region} has {kind}, not "
                f"{self.profile.gpu_type}: it is not one of {self.target}.",
                next_action="Use the other target, or another name.",
            )
        return service

    def _not_here(self, name: str) -> NotFoundError:
        return NotFoundError(
            f"There is no deployment {name[:64]!r} on {self.target}.",
            cause=f"Asked, and answered: {', '.join(self.regions())}.",
            next_action="Call list_deployments.",
        )

    # --------------------------------------------------------------------------------- answers

    async def deployments(self) -> list[Deployment]:
        """Every service with this GPU in every region that sells it."""
        services = await self.all_services()
        found: list[Deployment] = []
        judgements = await together(*map(self._judge, services))
        for service, judged in zip(services, judgements, strict=True):
            self._regions[service.name] = service.region
            note = judged.words if judged.state not in {"ready"} else None
            found.append(
                Deployment(
                    target=self.target,
                    name=service.name,
                    state=judged.state,
                    engine="vllm",
                    model=model_of(service),
                    url=service.url or None,
                    managed=service.managed,
                    simulated=self.cloud.rehearsal,
                    usd_per_hour=self.rate_now(service, judged),
                    created_at=_when(service.created_at),
                    ends_at=_ends(service),
                    note=f"{service.region}; {note}" if note else service.region,
                )
            )
        return found

    async def status(self, name: str, *, detail: bool = False) -> Status:
        """How one service is, from Cloud Run and its logs.

        The service itself is only asked where that wakes nobody: it keeps instances warm, or
        `detail` is asked for and an instance is up.
        """
        from backends.cloudrun.asking import ask_engine

        service = await self.find(name)
        judged = await self._judge(service)
        answer = self._status(service, judged)
        sight = await self.sight(service)
        now = time.time()
        fresh = (now - service.created_at < _FRESH_S and not service.args) or (
            now - sight.ready_at < _JUST_STARTED_S
        )
        if judged.state == "ready" and (service.warm_instances > 0 or detail or fresh):
            await ask_engine(self, service, answer)
        if detail:
            revisions = await self.api.revisions(service.region, service.name)
            answer.facts |= {
                f"revision {revision.name}": _revision_words(revision.ready, revision.image)
                for revision in revisions[:5]
            }
        return answer

    async def endpoint(self, name: str) -> Endpoint:
        """Its own URL, with an identity token for it."""
        service = await self.find(name)
        if not service.url:
            raise ConflictError(
                f"{self.at(name)} has no URL yet.",
                next_action=self.call("wait_until_ready", name),
            )
        if service.manual == 0:
            raise ConflictError(
                f"{self.at(name)} is stopped: manual scaling at 0 instances.",
                cause="Cloud Run answers every request with 503 'Service is disabled'.",
                next_action=self.call("start_serving", name),
            )
        return await self.endpoint_at(service, service.url)

    async def endpoint_at(self, service: RunService, url: str) -> Endpoint:
        """How to ask one of a service's URLs: its own, or that of a tag.

        Args:
            service: The service.
            url: The URL; the token's audience is the service's own in any case.
        """
        from backends.cloudrun.refusals import explain_refusal
        from backends.clouds.google_route import ca_file_of
        from backends.serving.endpoint import Endpoint

        env = await self.cloud.env()
        ca_file = ca_file_of(env)

        async def identity() -> dict[str, str]:
            token = await self.cloud.login.identity_token(service.url)
            return {"Authorization": f"Bearer {token}"}

        return Endpoint(
            url,
            headers=identity,
            ca_file=Path(ca_file) if ca_file else None,
            simulated=self.cloud.rehearsal,
            source=f"Cloud Run service {service.name} in {service.region}",
            explain=functools.partial(explain_refusal, self, service),
        )

    async def last_request_at(self, name: str) -> float | None:
        """From the request log of the last day; health checks and metrics do not count."""
        service = await self.find(name)
        return await self.log_reader.last_request_at(service.region, name)

    async def price(self, name: str) -> Price | None:
        """What one instance costs per hour while it exists."""
        service = await self.find(name)
        await self.prices.learn(service.region, zonal=service.zonal)
        return self.instance_price(service.region, service.cpu, service.memory_gib, service.zonal)

    def instance_price(
        self, region: str, cpu: float, memory_gib: float, zonal: bool, count: int = 1
    ) -> Price:
        """The price of `count` instances of a size, by its parts."""
        from backends.clouds.google_prices import freshness

        rates = self.prices.rates(region, zonal=zonal)
        if rates is None:
            gpu = self.profile.gpu_type
            return Price(basis=f"no list price of {gpu} in {region} is in our tables")
        many = f", times {count}" if count > 1 else ""
        gpu_hour, cpu_hour, gib_hour = (
            item.value * 3600 for item in (rates.gpu, rates.cpu, rates.memory)
        )
        listed = freshness(rates.gpu, live=rates.live, problem=self.prices.problem)
        return Price(
            usd_per_hour=round(rates.usd_per_hour(cpu, memory_gib) * count, 4),
            basis=f"while instances exist: GPU {gpu_hour:.4g} + {cpu:g} vCPU x {cpu_hour:.4g} + "
            f"{memory_gib:g} GiB x {gib_hour:.4g} USD/h{many}; 0 when scaled to zero; {listed}",
            source=rates.gpu.source,
            as_of=rates.gpu.date,
        )

    def rate_now(self, service: RunService, judged: Judgement) -> float | None:
        """What a service costs per hour at this moment, as far as can be told."""
        if judged.state in {"scaled_to_zero", "stopped"}:
            return 0.0
        rates = self.prices.rates(service.region, zonal=service.zonal)
        rate = rates.usd_per_hour(service.cpu, service.memory_gib) if rates else None
        count = max(1, service.warm_instances, judged.instances or 0)
        return None if rate is None else round(rate * count, 4)

    async def doctor(self) -> list[Check]:
        """gcloud, the login, the project and its APIs; each with the fix."""
        from backends.clouds.google_doctor import GCLOUD, google_checks

        apis = (*APIS, "secretmanager", "cloudquotas")
        return await google_checks(self.cloud, self.target, GCLOUD, apis)

    # --------------------------------------------------------------------------------- helpers

    async def sight(self, service: RunService) -> Sight:
        """What the logs tell of the newest instance of the revision that counts."""
        where = (service.region, service.name, service.watched_revision)
        sight = await self.log_reader.sight(*where)
        if service.ready is False and sight.progress.failure is None and not sight.trouble:
            # It may have failed after the last look.
            sight = await self.log_reader.sight(*where, fresh=True)
        return sight

    async def _judge(self, service: RunService) -> Judgement:
        from backends.cloudrun.state import counts, judge

        sight = await self.sight(service)
        now = time.time()
        counted = None
        if counts(service, sight, now):
            counted = await self.counter.count(service.region, service.name)
        return judge(self.timed, service, sight, now, counted)

    def _status(self, service: RunService, judged: Judgement) -> Status:
        serving = service.serving
        mode = (
            "automatic"
            if service.manual is None
            else f"manual, {plural(service.manual, 'instance')}"
        )
        facts: dict[str, str | int | float | bool] = {
            "region": service.region,
            "scaling": mode,
            "min_instances": service.min_instances,
            "max_instances": service.max_instances,
            "concurrency": service.concurrency,
            "cpu": service.cpu,
            "memory_gib": service.memory_gib,
            "image": service.image,
            "account": service.account or "default",
            "newest_revision": service.created_revision,
        }
        if serving is not None:
            facts["serving_revision"] = f"{serving.revision} ({serving.percent} %)"
        for tag, share in service.tagged.items():
            facts[f"tag {tag}"] = f"{share.revision} ({share.percent} %) {share.url}"
        model = model_of(service)
        if model:
            facts["model_argument"] = model
        answer = judged.status(
            summary=f"{self.at(service.name)} in {service.region} {judged.words}.",
            target=self.target,
            name=service.name,
            managed=service.managed,
            simulated=self.cloud.rehearsal,
            usd_per_hour=self.rate_now(service, judged),
            created_at=_when(service.created_at),
            facts=facts,
            next_steps=self._next_steps(service.name, judged),
        )
        answer.url = service.url or None
        answer.ends_at = _ends(service)
        answer.checks = [
            Check(
                name=condition.type,
                ok=condition.ok is not False,
                detail=condition.message or condition.reason or _truth(condition.ok),
            )
            for condition in service.conditions
        ]
        return answer

    def _next_steps(self, name: str, judged: Judgement) -> list[str]:
        fix = [judged.fix] if judged.fix else []
        if judged.state == "ready":
            return self.next_when_ready(name)
        if judged.state == "scaled_to_zero":
            return [f"{self.call('verify_model_health', name)} wakes it"]
        if judged.state == "starting":
            return [self.call("wait_until_ready", name), *fix]
        if judged.state == "stopping":
            return self.next_while_ending(name)
        return [*fix, self.call("get_logs", name), self.call("destroy", name)]


def model_of(service: RunService) -> str | None:
    """The model a service was told to serve; what it is served as, only the service says."""
    for index, item in enumerate(service.args):
        if item.startswith("--model="):
            return item.partition("=")[2]
        if item == "--model" and index + 1 < len(service.args):
            return service.args[index + 1]
        if " --model=" in item:
            return item.partition(" --model=")[2].split()[0]
    return service.env.get("MODEL") or None


def _ends(service: RunService) -> str | None:
    """When it is no longer wanted, by its label."""
    return ends_at(service.created_at, service.labels)


def _when(seconds: float) -> str | None:
    return stamp(datetime.fromtimestamp(seconds, UTC)) if seconds else None


def _truth(value: bool | None) -> str:
    return {True: "true", False: "false", None: "not decided yet"}[value]


def _revision_words(ready: bool | None, image: str) -> str:
    return f"ready: {_truth(ready)}, {image}"

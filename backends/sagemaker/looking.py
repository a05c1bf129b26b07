"""What there is on SageMaker and how it is: reads only, each region at the same time."""

from __future__ import annotations

import asyncio
import functools
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.core.answers import Check, Deployment, Price, Status
from backends.core.errors import (
    ConflictError,
    DevopsError,
    NotFoundError,
    NotSetUpError,
)
from backends.core.owned import together
from backends.core.problems import words_of
from backends.core.state import ends_at, stamp
from backends.knowledge.facts import Fact
from backends.knowledge.sagemaker import TYPES
from backends.sagemaker.finding import SageMakerFinding

if TYPE_CHECKING:
    from backends.core.operations import Operation
    from backends.sagemaker.endpoints import Deployed, Endpoint, Model
    from backends.sagemaker.logs import Sight
    from backends.sagemaker.state import Judgement
    from backends.serving.endpoint import Endpoint as Wire

# An alarm that has not woken anything by then will not.
_WAKES_WITHIN_S = 300.0

_AT_MOST = "at most: it is not told yet which type of the pool was placed"


class SageMakerLooking(SageMakerFinding):
    """Reads of an account's endpoints with an L4."""

    # --------------------------------------------------------------------------------- answers

    async def deployments(self) -> list[Deployment]:
        """Every endpoint with an L4 in every region, and what is stopped; a silent region fails."""
        found, silent = await self.everything()
        if silent:
            error = self.unknown_regions(silent, "what is deployed there")
            if found:
                error.details["found_elsewhere"] = ", ".join(
                    f"{item.name} in {item.region}" for item in found
                )
            raise error
        return list(await together(*map(self._entry, found)))

    async def _entry(self, deployed: Deployed) -> Deployment:
        self.remember(deployed.name, deployed.region)
        sight = await self.sight(deployed)
        judged = await self._judge(deployed, sight)
        rate = await self.rate_now(deployed, sight)
        model = await self.model_of(deployed)
        created = deployed.endpoint.created_at if deployed.endpoint else 0.0
        note = judged.words if judged.state != "ready" else None
        if rate and _at_most(deployed):
            note = f"{note}; USD/h is {_AT_MOST}"
        return Deployment(
            target=self.target,
            name=deployed.name,
            state=judged.state,
            engine="vllm",
            model=model.source if model else None,
            url=self._url(deployed.region, deployed.name) if deployed.endpoint else None,
            managed=deployed.managed,
            simulated=self.aws.rehearsal,
            usd_per_hour=rate,
            created_at=_when(created),
            ends_at=_ends(deployed),
            note=f"{deployed.region}; {note}" if note else deployed.region,
        )

    async def status(self, name: str, *, detail: bool = False) -> Status:
        """How one deployment is, from SageMaker and its logs."""
        deployed = await self.find(name)
        sight, model = await together(self.sight(deployed), self.model_of(deployed))
        judged = await self._judge(deployed, sight)
        rate = await self.rate_now(deployed, sight)
        answer = self._status(deployed, judged, rate, model)
        if detail:
            await self._details(deployed, answer)
        return answer

    async def last_request_at(self, name: str) -> float | None:
        """The last minutes that had invocations, by CloudWatch; questions of ours count too."""
        from backends.sagemaker.metrics import last_invocation_at

        return await last_invocation_at(self, name)

    async def endpoint(self, name: str) -> Wire:
        """How it is invoked: SageMaker's runtime, requests signed as this login."""
        return await self.wire(await self.find(name))

    async def wire(self, deployed: Deployed, variant: str | None = None) -> Wire:
        """How a deployment, or one variant of it, is invoked.

        Raises:
            ConflictError: It is not in service.
        """
        from backends.clouds.route import ca_file_of
        from backends.sagemaker.refusals import explain_refusal
        from backends.serving.endpoint import Endpoint as Wire
        from backends.serving.engine.signing import AwsCredentials, SageMakerWire, sagemaker_url

        endpoint = deployed.endpoint
        empty = deployed.of_components and deployed.component is None
        if endpoint is None or empty or endpoint.status in {"Creating", "Failed", "Deleting"}:
            judged = await self._judge(deployed, await self.sight(deployed))
            raise ConflictError(
                f"{self.at(deployed.name)} {judged.words}.",
                words=judged.error or "",
                cause=judged.cause or "SageMaker takes invocations only in service.",
                next_action=judged.fix or self.call("wait_until_ready", deployed.name),
            )
        model = await self.model_of(deployed, variant)

        async def credentials() -> AwsCredentials:
            keys = await self.aws.keys()
            return AwsCredentials(keys.access_key, keys.secret_key, keys.token)

        env = await self.aws.env()
        ca_file = ca_file_of(env)
        return Wire(
            sagemaker_url(deployed.region),
            model=(model.served_name if model else None) or deployed.name,
            max_model_len=model.max_model_len if model else None,
            ca_file=Path(ca_file) if ca_file else None,
            simulated=self.aws.rehearsal,
            source=f"SageMaker endpoint {deployed.name} in {deployed.region}",
            explain=functools.partial(explain_refusal, self, deployed),
            wire=SageMakerWire(
                deployed.name,
                deployed.region,
                inference_component=deployed.component.name if deployed.component else None,
                target_variant=variant,
            ),
            credentials=credentials,
        )

    async def price(self, name: str) -> Price | None:
        """What it costs per hour while it exists, on the types it runs on now."""
        deployed = await self.find(name)
        placed = _placed(deployed)
        planned = deployed.config.variants if deployed.config else ()
        count = sum(placed.values()) or sum(variant.count for variant in planned)
        return await self.pool_price(deployed.region, list(placed) or deployed.types, max(count, 1))

    async def pool_price(self, region: str, types: Sequence[str], count: int) -> Price:
        """The price of `count` instances on whichever of some types: the dearest, all named."""
        rates = await self.catalogue.rates(region, types)
        missing = [kind for kind in types if kind not in rates]
        if missing or not rates:
            return Price(
                basis=f"no hosting price of {', '.join(missing or types)} in {region} is known: "
                "the price list did not say and our table has none"
            )
        dearest = max(rates, key=lambda kind: rates[kind].value)
        each = ", ".join(f"{kind} {rate.value:g}" for kind, rate in rates.items())
        many = f" times {count} instances" if count > 1 else ""
        which = each if len(rates) == 1 else f"at most ({dearest}); by type: {each}"
        return Price(
            usd_per_hour=round(rates[dearest].value * count, 4),
            basis=f"while the endpoint exists, used or not: {which} USD/h{many}",
            source=rates[dearest].source,
            as_of=rates[dearest].date,
        )

    async def rate_now(self, deployed: Deployed, sight: Sight) -> float | None:
        """What a deployment costs per hour at this moment, as far as can be told.

        Args:
            deployed: The deployment.
            sight: What its logs tell: whoever logs has been placed.
        """
        endpoint = deployed.endpoint
        if endpoint is None or (endpoint.status == "Failed" and not endpoint.placed):
            return 0.0
        placed = _placed(deployed)
        if not placed:
            # Before an instance is placed nothing is charged, nor where it scaled to zero.
            waits = endpoint.status == "Creating" and not endpoint.placed and not sight.stream
            if waits or _counts_none(endpoint):
                return 0.0
            if endpoint.status != "Creating" or deployed.config is None:
                return None
            # What logs is placed and paid for, on whichever type: the dearest, until that is told.
            count = sum(variant.count for variant in deployed.config.variants)
            return (await self.pool_price(deployed.region, deployed.types, count)).usd_per_hour
        rates: dict[str, Fact] = await self.catalogue.rates(deployed.region, list(placed))
        if len(rates) < len(placed):
            return None
        return round(sum(rates[kind].value * count for kind, count in placed.items()), 4)

    async def doctor(self) -> list[Check]:
        """The aws CLI, the login, and what it may do; each with the fix."""

        def said(name: str, ok: bool, detail: str) -> Check:
            return Check(name=f"{self.target}: {name}", ok=ok, detail=detail)

        checks: list[Check] = []
        program = shutil.which("aws")
        try:
            account = await self.account()
            checks.append(said("account", True, f"{account}, {await self.aws.login.source()}"))
            version = ".".join(map(str, await self.aws.cli_version())) if program else ""
            missing = "not on PATH; install it: https://docs.aws.amazon.com/cli/"
            checks.append(
                said("aws CLI", program is not None, f"{program} {version}" if program else missing)
            )
            _, silent = await self.everything()
            regions = ", ".join(self.regions())
            why = "; ".join(f"{region}: {words_of(error)}" for region, error in silent.items())
            checks.append(said("regions", not silent, why or regions))
        except NotSetUpError as error:
            # Nothing is wrong with a cloud that nobody wants to use.
            checks.append(said("not set up", True, f"{error.message} {error.next_action}"))
        except DevopsError as error:
            checks.append(said("access", False, f"{error.message} {error.next_action}"))
        return checks

    # --------------------------------------------------------------------------------- helpers

    def busy(self, name: str, status: str) -> ConflictError:
        """The refusal of a change while SageMaker is at one of its own, and how to wait for it."""
        wait = self.call("wait_until_ready", name)
        if status == "Deleting":
            wait = f"{self.call('get_status', name)} in half a minute, until it is gone; then again"
        return ConflictError(
            f"{self.at(name)} is {status}; SageMaker changes nothing meanwhile.",
            next_action=wait,
        )

    def asked_in_vain(self, name: str) -> None:
        """Remember that a request of ours found no copy: AWS's own count of it comes late."""
        self._asked_in_vain[name] = time.monotonic()

    def asked_in_vain_s(self, deployed: Deployed) -> float | None:
        """How many seconds ago that was; None: not lately, or it has been acted on."""
        component = deployed.component
        if component is None or component.desired or component.copies:
            self._asked_in_vain.pop(deployed.name, None)
            return None
        asked = self._asked_in_vain.get(deployed.name)
        ago = time.monotonic() - asked if asked is not None else None
        return ago if ago is not None and ago < _WAKES_WITHIN_S else None

    async def model_of(self, deployed: Deployed, variant: str | None = None) -> Model | None:
        """The model of the variant that serves, or of a named one; None where it is gone."""
        if deployed.config is None or not deployed.config.variants:
            return None
        serving = deployed.endpoint.serving if deployed.endpoint else None
        wanted = variant or (serving.name if serving else "")
        planned = deployed.config.variant(wanted) or deployed.config.variants[0]
        model = deployed.component.model if deployed.component else planned.model
        if not model:
            return None
        try:
            return await self.api.model(deployed.region, model)
        except NotFoundError:
            return None

    async def sight(self, deployed: Deployed) -> Sight:
        """What the logs tell of the newest container since the last start or update."""
        from backends.sagemaker.logs import Sight

        endpoint = deployed.endpoint
        if endpoint is None:
            return Sight()
        if deployed.of_components and deployed.component is None:
            return Sight()  # what was said before is not of what will be put on it
        component = deployed.component
        since = component.began_at if component else _began(endpoint)
        region, group = deployed.region, deployed.log_group
        sight = await self.log_reader.sight(region, group, since)
        failed = "Failed" in {endpoint.status, component.status if component else ""}
        if failed and sight.progress.failure is None:
            # It may have failed after the last look.
            sight = await self.log_reader.sight(region, group, since, fresh=True)
        return sight

    async def _judge(self, deployed: Deployed, sight: Sight) -> Judgement:
        from backends.sagemaker.component_state import judge_component, while_put_on
        from backends.sagemaker.state import judge, looked_after

        later = await asyncio.to_thread(self._looks_after, deployed.name)
        if deployed.of_components:
            asked_s = self.asked_in_vain_s(deployed)
            judged = judge_component(deployed, sight, time.time(), asked_s)
        else:
            judged = judge(deployed, sight, time.time())
        if later is None:
            return judged
        if later.kind == "deploy_component":
            return while_put_on(judged, deployed, later.id, later.progress or "")
        return looked_after(judged, later.kind, later.id, later.progress or "")

    def _looks_after(self, name: str) -> Operation | None:
        """The operation that goes on with a deployment by itself, if one runs. Blocks shortly."""
        return next(
            (
                item
                for item in self.services.operations.all()
                if (item.target, item.name) == (self.target, name)
                and item.kind in {"deploy_fallback", "destroy_when_settled", "deploy_component"}
                and not item.finished
            ),
            None,
        )

    def _status(
        self, deployed: Deployed, judged: Judgement, rate: float | None, model: Model | None
    ) -> Status:
        endpoint, name = deployed.endpoint, deployed.name
        facts: dict[str, str | int | float | bool] = {
            "region": deployed.region,
            "instance_types": ", ".join(deployed.types) or "unknown",
        }
        if rate and _at_most(deployed):
            facts["usd_per_hour_is"] = _AT_MOST
        if deployed.config is not None:
            facts["endpoint_config"] = deployed.config.name
        if model is not None:
            facts |= {"image": model.image, "role": model.role_arn}
        if deployed.component is not None:
            facts["inference_component"] = deployed.component.name
            facts["copies"] = deployed.component.in_words
        checks: list[Check] = []
        if endpoint is not None:
            checks.append(
                Check(
                    name="endpoint",
                    ok=endpoint.status == "InService",
                    detail=endpoint.reason or endpoint.status,
                )
            )
            if deployed.component is not None:
                hosted = deployed.component
                checks.append(
                    Check(
                        name="inference component",
                        ok=hosted.status == "InService" and not hosted.reason,
                        detail=hosted.reason or hosted.status,
                    )
                )
            for variant, share in shares(endpoint):
                pools = [f"{pool.count or 0} x {pool.type}" for pool in variant.pools]
                count = "?" if variant.count is None else variant.count
                facts[f"variant {variant.name}"] = (
                    f"{share} % of traffic, {', '.join(pools) or f'{count} instances'}"
                    + (f", {'; '.join(variant.doing)}" if variant.doing else "")
                )
        answer = judged.status(
            summary=f"{self.at(name)} in {deployed.region} {judged.words}.",
            target=self.target,
            name=name,
            managed=deployed.managed,
            simulated=self.aws.rehearsal,
            usd_per_hour=rate,
            created_at=_when(endpoint.created_at) if endpoint else None,
            facts=facts,
            next_steps=self._next_steps(name, judged),
        )
        answer.url = self._url(deployed.region, name) if endpoint else None
        answer.models = [model.served_name] if model and model.served_name else []
        answer.max_model_len = model.max_model_len if model else None
        answer.ends_at = _ends(deployed)
        answer.checks = checks
        return answer

    async def _details(self, deployed: Deployed, answer: Status) -> None:
        """What the start's log told of the engine, and its other configurations."""
        if deployed.endpoint is not None:
            progress = (await self.sight(deployed)).progress
            said = progress.facts.model_dump(exclude_none=True)
            answer.version = said.pop("vllm_version", None)
            said.pop("url", None)  # of the container, where nobody reaches it
            answer.facts |= {f"log {key}": value for key, value in said.items()}
        configs = await self.api.configs_of(deployed.region, deployed.name)
        for config in configs[:5]:
            made = _when(config.created_at) or "unknown"
            answer.facts[f"config {config.name}"] = f"made {made}"

    def _next_steps(self, name: str, judged: Judgement) -> list[str]:
        fix = [judged.fix] if judged.fix else []
        if judged.state == "ready":
            return self.next_when_ready(name)
        if judged.state == "scaled_to_zero":
            return [*fix, f"{self.call('query_model', name)[:-1]}, prompt=...) wakes it too"]
        if judged.state in {"starting", "creating"}:
            return [self.call("wait_until_ready", name), *fix]
        if judged.state == "stopping":
            return [*fix, *self.next_while_ending(name)]
        if judged.state == "stopped":
            return [*fix, self.call("destroy", name)]
        # Without a container there is no log to read.
        logs = [] if judged.unlogged else [self.call("get_logs", name)]
        return [*fix, *logs, self.call("destroy", name)]

    def _url(self, region: str, name: str) -> str:
        from backends.serving.engine.signing import SageMakerWire, sagemaker_url

        return f"{sagemaker_url(region)}{SageMakerWire(name, region).path}"


def shares(endpoint: Endpoint) -> list[tuple[Any, int]]:
    """Each variant with its share of traffic, percent."""
    total = sum(variant.weight for variant in endpoint.variants)
    return [
        (variant, round(100 * variant.weight / total) if total else 0)
        for variant in endpoint.variants
    ]


def _placed(deployed: Deployed) -> dict[str, int]:
    """Instances by type that are there now."""
    found: dict[str, int] = {}
    endpoint, config = deployed.endpoint, deployed.config
    if endpoint is None:
        return found
    for variant in endpoint.variants:
        counted = [(pool.type, pool.count) for pool in variant.pools if pool.count]
        planned = config.variant(variant.name) if config else None
        if not counted and variant.count and planned and len(planned.types) == 1:
            counted = [(planned.types[0], variant.count)]
        for kind, count in counted:
            if kind in TYPES and count:
                found[kind] = found.get(kind, 0) + count
    return found


def _at_most(deployed: Deployed) -> bool:
    """Whether an instance that is paid for may be of any of several types."""
    return not _placed(deployed) and len(deployed.types) > 1


def _counts_none(endpoint: Endpoint) -> bool:
    """Whether SageMaker says of every variant that it has no instance."""
    counts = [variant.count for variant in endpoint.variants]
    settled = endpoint.status in {"InService", "Updating", "SystemUpdating"}
    return settled and bool(counts) and not any(n != 0 for n in counts)


def _began(endpoint: Endpoint) -> float:
    """Since when what its containers say is about its present start.

    An endpoint in service is modified by a change of weights too, which starts nothing.
    """
    if endpoint.status in {"Updating", "RollingBack"} and endpoint.next_config:
        return endpoint.modified_at
    return endpoint.created_at


def _when(seconds: float) -> str | None:
    return stamp(datetime.fromtimestamp(seconds, UTC)) if seconds else None


def _ends(deployed: Deployed) -> str | None:
    """When it is no longer wanted, by the tags of what it was made with."""
    tags = deployed.config.tags if deployed.config else {}
    return ends_at(deployed.endpoint.created_at if deployed.endpoint else 0.0, tags)

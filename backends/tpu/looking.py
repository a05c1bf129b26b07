"""What there is of TPUs and how it is: reads only."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from backends.base import Services
from backends.core.answers import Check, Deployment, Price, Status
from backends.core.errors import (
    ConflictError,
    EndpointError,
    HostError,
    NotFoundError,
)
from backends.core.owned import together
from backends.core.state import stamp
from backends.knowledge.tpu import SLICES
from backends.tpu.reaching import TpuReaching
from backends.tpu.records import TARGET, TpuNode, TpuRequest

if TYPE_CHECKING:
    from backends.core.operations import Operation
    from backends.serving.endpoint import Endpoint
    from backends.tpu.sight import Machine
    from backends.tpu.state import Judgement

APIS = ("tpu", "compute", "secretmanager", "logging", "iam")
"""What every deployment needs."""

_ASK_TIMEOUT_S = 8.0


class TpuLooking(TpuReaching):
    """Reads of TPU requests, nodes and machines."""

    target: ClassVar[str] = TARGET
    title: ClassVar[str] = "Cloud TPU v6e"
    hardware: ClassVar[str] = "TPU v6e, 1 to 8 chips (more over Ray)"

    def __init__(self, services: Services) -> None:
        from backends.clouds.google_compute_prices import ComputePrices
        from backends.clouds.google_prices import PriceList

        super().__init__(services)
        self.prices = ComputePrices(PriceList(self.cloud.rest, services.owned))

    # --------------------------------------------------------------------------------- answers

    async def deployments(self) -> list[Deployment]:
        """Every request, node and search there is."""
        (requests, orphans), searches = await together(
            self.world(), asyncio.to_thread(self.searches)
        )
        judged = await together(*(self.judge(item) for item in requests))
        names = [item.name for item in requests]
        found = [
            self._deployment(item, verdict, twice=names.count(item.name) > 1)
            for item, verdict in zip(requests, judged, strict=True)
        ]
        found += [self._orphan(node) for node in orphans]
        found += [
            Deployment(
                target=self.target,
                name=name,
                state="creating",
                engine="vllm",
                model=str(operation.params.get("model") or "") or None,
                simulated=self.cloud.rehearsal,
                usd_per_hour=0.0,
                created_at=operation.started_at,
                note=f"{operation.id} searches zones: {operation.progress or 'starting'}",
            )
            for name, operation in searches.items()
            if name not in names
        ]
        return found

    def _deployment(self, request: TpuRequest, judged: Judgement, *, twice: bool) -> Deployment:
        note = f"{request.size} {request.provisioning} in {request.zone}, {request.state}"
        if judged.left_s is not None:
            from backends.tpu.state import time_words

            note += f", {time_words(judged.left_s)} left"
        if judged.state not in {"ready"}:
            note += f"; {judged.words}"
        return Deployment(
            target=self.target,
            name=request.key if twice else request.name,
            state=judged.state,
            engine="vllm",
            model=request.model,
            url=self.public_url(request),
            managed=request.managed,
            simulated=self.cloud.rehearsal,
            usd_per_hour=self.rate_now(request),
            created_at=_when(request.created_at),
            note=note,
        )

    def _orphan(self, node: TpuNode) -> Deployment:
        price, _ = self.prices.chip_hour("spot" if node.spot else "on-demand", node.zone)
        chips = SLICES[node.size].chips if node.size in SLICES else 0
        running = node.state in {"READY", "CREATING", "STARTING", "RESTARTING", "REPAIRING"}
        rate = round(price.value * chips, 4) if price and chips and running else None
        return Deployment(
            target=self.target,
            name=node.name,
            state="degraded" if node.state == "READY" else "unknown",
            engine="vllm" if node.settings else None,
            model=str(node.settings.get("model") or "") or None,
            managed=node.managed,
            simulated=self.cloud.rehearsal,
            usd_per_hour=rate if running else 0.0,
            created_at=_when(node.created_at),
            note=f"orphan node: {node.size} in {node.zone}, {node.state}, owned by no queued "
            "resource; it bills until it is destroyed",
        )

    async def status(self, name: str, *, detail: bool = False) -> Status:
        """How one deployment is: the request, its node, its machine, its engine's log."""
        try:
            request = await self.find(name)
        except NotFoundError:
            operation = (await asyncio.to_thread(self.searches)).get(name)
            if operation is None:
                raise
            return self._searching(name, operation)
        machine = await self.sight(request, detail=detail)
        judged = self._judged(request, machine)
        answer = self._status(request, judged, machine)
        if judged.state == "ready" and not await self._ask_engine(request, answer):
            # What was seen of the machine a moment ago may be no longer so: it has restarted.
            machine = await self.sight(request, detail=detail, fresh=True)
            judged = self._judged(request, machine)
            if judged.state != "ready":
                answer = self._status(request, judged, machine)
        if detail:
            await self._detail(request, machine, answer)
        operation = (await asyncio.to_thread(self.searches)).get(request.name)
        if operation is not None:
            answer.facts["search"] = f"{operation.id}: {operation.progress or 'starting'}"
            answer.next_steps.insert(0, f"get_operation(operation_id={operation.id!r}, wait_s=40)")
        return answer

    def _searching(self, name: str, operation: Operation) -> Status:
        return Status(
            summary=f"{self.at(name)}: {operation.id} is looking for a zone with hardware: "
            f"{operation.progress or 'starting'}.",
            target=self.target,
            name=name,
            state="creating",
            ready=False,
            engine="vllm",
            simulated=self.cloud.rehearsal,
            phase="queued",
            usd_per_hour=0.0,
            created_at=operation.started_at,
            facts={"search": operation.id},
            next_steps=[
                f"get_operation(operation_id={operation.id!r}, wait_s=40)",
                f"cancel_operation(operation_id={operation.id!r}) leaves a living request alone",
            ],
        )

    async def _detail(self, request: TpuRequest, machine: Machine | None, answer: Status) -> None:
        from backends.knowledge.tpu_failures import ADVICE
        from backends.tpu.advice import context_advice, misleading

        if request.node is not None:
            answer.facts["node"] = f"{request.node.name} {request.node.state}"
            for worker in request.node.workers:
                answer.facts[f"worker {worker.number}"] = (
                    f"{worker.internal} {worker.external}".strip()
                )
        if machine is None or machine.problem:
            return
        answer.host = machine.host
        answer.warnings += misleading(machine.log, machine.tail)
        advice = context_advice(machine.log, machine.progress)
        if advice:
            answer.facts["context_advice"] = " ".join(advice)
        answer.facts["good_to_know"] = " ".join(ADVICE)

    async def endpoint(self, name: str) -> Endpoint:
        """A tunnel to its machine; its external address only where it is public."""
        from backends.tpu.endpoints import endpoint_of

        request = await self.find(name)
        if request.stage != "active" or request.node is None or not request.node.workers:
            judged = self._judged(request, None)
            raise ConflictError(
                f"{self.at(name)} has no endpoint: it {judged.words}.",
                next_action=judged.fix or self.call("wait_until_ready", name),
            )
        return await endpoint_of(self, request)

    async def price(self, name: str) -> Price | None:
        """What the slice costs per hour while it exists."""
        request, _ = await together(self.find(name), self.prices.learn())
        return self.slice_price(request.size, request.provisioning, request.zone)

    def slice_price(self, size: str, provisioning: str, zone: str) -> Price:
        """The price of a slice as it is known now; without a number where none is."""
        rate, live = self.prices.chip_hour(provisioning, zone)
        chips = SLICES[size].chips if size in SLICES else 0
        if rate is None or not chips:
            return Price(basis=f"no rate of {size} {provisioning} in {zone} is known")
        return Price(
            usd_per_hour=round(rate.value * chips, 4),
            basis=f"{chips} x {rate.value:g} USD per chip-hour, {provisioning}, while the node "
            "exists; nothing while it waits in the queue; "
            f"{self.prices.freshness(rate, live=live)}",
            source=rate.source,
            as_of=rate.date,
        )

    def rate_now(self, request: TpuRequest) -> float | None:
        """What a request costs per hour at this moment, as far as it is known."""
        if request.stage != "active":
            return 0.0
        return self.slice_price(request.size, request.provisioning, request.zone).usd_per_hour

    async def doctor(self) -> list[Check]:
        """gcloud, ssh, the login, the project and its APIs; each with the fix."""
        from backends.clouds.google_doctor import WITH_SSH, google_checks

        apis = (*APIS, "cloudquotas")
        return await google_checks(self.cloud, self.target, WITH_SSH, apis)

    # --------------------------------------------------------------------------------- helpers

    def must_run(self, request: TpuRequest, verb: str) -> None:
        """Refuse what needs a running machine.

        Raises:
            ConflictError: It does not run.
        """
        if request.stage != "active":
            judged = self._judged(request, None)
            raise ConflictError(
                f"{verb} needs a running machine; {self.at(request.name)} {judged.words}.",
                next_action=judged.fix or self.call("wait_until_ready", request.name),
            )

    async def judge(self, request: TpuRequest) -> Judgement:
        """How a deployment is."""
        return self._judged(request, await self.sight(request))

    def _judged(self, request: TpuRequest, machine: Machine | None) -> Judgement:
        from backends.tpu.state import judge

        return judge(request, machine, time.time())

    def public_url(self, request: TpuRequest) -> str | None:
        """Its address for callers; None where it is reached by a tunnel only."""
        if not request.public or not request.external or request.stage != "active":
            return None
        return f"http://{request.external}:{request.port}"

    def _status(self, request: TpuRequest, judged: Judgement, machine: Machine | None) -> Status:
        from backends.tpu.advice import facts_of

        facts: dict[str, str | int | float | bool] = {
            "zone": request.zone,
            "size": request.size,
            "provisioning": request.provisioning,
            "control_plane": request.plane,
            "request_state": request.state,
            "hosts": request.hosts,
            "account": request.account or "default",
            "reached_by": "public address with a key" if request.public else "tunnel",
        }
        for key in ("image", "tensor_parallel_size", "max_model_len"):
            if request.settings.get(key) is not None:
                facts[key] = request.settings[key]
        if judged.left_s is not None:
            facts["run_left_s"] = round(judged.left_s)
        if machine is not None and not machine.problem:
            facts |= facts_of(machine.log, machine.progress, request.chips)
        answer = judged.status(
            summary=f"{self.at(request.name)} ({request.size}, {request.zone}) {judged.words}.",
            target=self.target,
            name=request.name,
            managed=request.managed,
            simulated=self.cloud.rehearsal,
            usd_per_hour=self.rate_now(request),
            created_at=_when(request.created_at),
            facts=facts,
            next_steps=self._next_steps(request.name, judged),
        )
        answer.url = self.public_url(request)
        return answer

    def _next_steps(self, name: str, judged: Judgement) -> list[str]:
        fix = [judged.fix] if judged.fix else []
        if judged.state == "ready":
            return self.next_when_ready(name)
        if judged.state in {"starting", "creating"}:
            return [self.call("wait_until_ready", name), *fix]
        if judged.state == "stopping":
            return self.next_while_ending(name)
        return list(dict.fromkeys([*fix, self.call("get_logs", name), self.call("destroy", name)]))

    async def _ask_engine(self, request: TpuRequest, answer: Status) -> bool:
        """Ask the engine itself; the log says that it was ready once, not that it answers.

        Returns:
            Whether it answers.
        """
        from backends.serving.endpoint import EndpointClient
        from backends.tpu.endpoints import endpoint_of

        try:
            async with EndpointClient(
                await endpoint_of(self, request), timeout_s=_ASK_TIMEOUT_S
            ) as client:
                models = await client.models()
                answer.version = await client.version()
        except (EndpointError, HostError) as error:
            answer.state, answer.ready = "degraded", False
            answer.summary = f"{self.at(request.name)} is up, but: {error.message}"
            answer.error, answer.error_cause = error.words or error.message, error.cause
            answer.next_steps = [error.next_action, self.call("get_logs", request.name)]
            return False
        answer.models = [model.id for model in models]
        answer.max_model_len = models[0].max_model_len if models else None
        planned = request.settings.get("max_model_len")
        if answer.max_model_len and planned and answer.max_model_len != planned:
            answer.warnings.append(
                f"It serves contexts of {answer.max_model_len} tokens, not the {planned} it was "
                f"planned with: {self.call('start_serving', request.name, restart=True)} starts "
                "what was planned."
            )
        return True


def _when(seconds: float) -> str | None:
    return stamp(datetime.fromtimestamp(seconds, UTC)) if seconds else None

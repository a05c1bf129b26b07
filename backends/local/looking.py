"""How a deployment on this machine is: from its process, its log and its health check."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import Awaitable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, TypeVar

from backends.base import Backend, Services
from backends.core.answers import Check, Deployment, Price, State, Status
from backends.core.errors import (
    DevopsError,
    EndpointError,
    EndpointNotReadyError,
    EndpointUnreachableError,
    NotFoundError,
)
from backends.core.owned import together
from backends.core.state import now, stamp
from backends.knowledge.targets import find_profile
from backends.local.engines import DEFAULT_PROFILE, HOST
from backends.local.following import LogFollower
from backends.local.records import Record, Records
from backends.serving.answers import ServedModel
from backends.serving.endpoint import Endpoint, EndpointClient
from backends.serving.start_phases import start_phases
from backends.serving.startup_log import StartupProgress

ATTACHED = "attached"
_HEALTH_TIMEOUT_S = 3.0
# Between the line that says it is ready and the first answer; a busy machine needs a while.
_LISTENS_WITHIN_S = 15.0

_T = TypeVar("_T")


class LocalLooking(Backend):
    """The half of the `local` target that changes nothing."""

    target: ClassVar[str] = "local"
    title: ClassVar[str] = "this machine: simulator, vllm serve, or an attached endpoint"
    hardware: ClassVar[str] = "whatever is here; the simulator needs no GPU"

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._follower = LogFollower()
        self._served: dict[tuple[str, int | None, float | None], tuple[list[ServedModel], str]] = {}
        self._attached_simulated: bool | None = None

    def _records(self) -> Records:
        return Records(self.services.state)

    async def deployments(self) -> list[Deployment]:
        """Every deployment recorded here, and the attached endpoint."""
        names = self._records().names()
        if self.services.settings.base_url is not None:
            names.append(ATTACHED)
        found = await together(*(self._entry(name) for name in names))
        return [entry for entry in found if entry is not None]

    async def _entry(self, name: str) -> Deployment | None:
        try:
            status = await self.status(name)
        except NotFoundError:
            # Destroyed between the two looks.
            return None
        except DevopsError as error:
            # One record that cannot be read hides none of the others.
            note = f"{error.message} {error.next_action}".strip()
            return Deployment(target=self.target, name=name, state="unknown", note=note)
        return Deployment(
            target=self.target,
            name=name,
            state=status.state,
            engine=status.engine,
            model=status.models[0] if status.models else None,
            url=status.url,
            managed=status.managed,
            simulated=status.simulated,
            usd_per_hour=status.usd_per_hour,
            created_at=status.created_at,
            ends_at=_ends(self._records().get(name), status.created_at),
            note=status.error,
        )

    async def status(self, name: str, *, detail: bool = False) -> Status:
        """How one deployment is, from its process, its log and its health check."""
        if name == ATTACHED and self.services.settings.base_url is not None:
            return await self._attached_status()
        record = self._get(name)
        progress = await asyncio.to_thread(self._follower.progress, self._records().log(name))
        if not record.alive:
            return self._ended(record, progress)
        if record.stopped_at is not None:
            return self._status(
                record,
                "stopping",
                f"{self._at(name)} is being stopped; it finishes its requests first.",
                next_steps=[self._call("get_status", name)],
            )
        answer = await self._running(record, progress)
        answer.ends_at = _ends(record, answer.created_at)
        if detail:
            answer.host = await asyncio.to_thread(_host_facts, record)
        return answer

    async def _running(self, record: Record, progress: StartupProgress) -> Status:
        """How a deployment is whose process runs: its engine is asked."""
        name = record.name
        url = f"http://{HOST}:{record.port}"
        client = EndpointClient(await self.endpoint(name), timeout_s=_HEALTH_TIMEOUT_S)
        async with client:
            try:
                health_ms = await client.health()
                models, version = await self._serves(record, client)
            except EndpointUnreachableError as error:
                if self._should_answer(record, progress):
                    return self._degraded(
                        record, f"was ready, runs, and does not answer: {error.message}", error
                    )
                return self._starting(record, progress)
            except EndpointNotReadyError as error:
                return self._degraded(
                    record, f"runs but its engine does not answer: {error.message}", error
                )
            except EndpointError as error:
                return self._status(
                    record,
                    "degraded",
                    f"{self._at(name)} answers, but not as it should: {error.message}",
                    error=error.words or error.message,
                    error_cause=error.cause,
                    next_steps=[error.next_action] if error.next_action else [],
                )
        served = models[0] if models else None
        ours = record.model in [model.id for model in models]
        if not ours and progress.ready_after_s is None:
            return self._status(
                record,
                "degraded",
                f"{self._at(name)} runs, but something else answers on its port {record.port}: it "
                f"does not serve {record.model}.",
                models=[],
                error_cause="Another program took the port before the engine could.",
                next_steps=[
                    self._call("get_logs", name),
                    f"{self._call('destroy', name)}, then deploy it again on another port",
                ],
            )
        return self._status(
            record,
            "ready",
            f"{self._at(name)} is ready at {url} and serves {record.model}.",
            url=url,
            ready=True,
            models=[model.id for model in models],
            max_model_len=served.max_model_len if served else None,
            version=version,
            phase="ready",
            phases=start_phases(progress, _expected(record), finished=True),
            checks=[
                Check(name="process", ok=True, detail=f"pid {record.pid} runs"),
                Check(name="health", ok=True, detail="/health answers 200", duration_ms=health_ms),
            ],
            facts=_facts(progress),
            next_steps=[
                self._call("verify_model_health", name),
                f"query_model(target={self.target!r}, name={name!r}, prompt=...)",
                self._call("run_benchmark", name),
            ],
        )

    def _should_answer(self, record: Record, progress: StartupProgress) -> bool:
        """Whether its log said long enough ago that it is ready."""
        ready_s = progress.ready_after_s
        since_s = _seconds_since(record.started_at)
        return ready_s is not None and since_s > ready_s + _LISTENS_WITHIN_S

    def _degraded(self, record: Record, how: str, error: EndpointError) -> Status:
        name = record.name
        return self._status(
            record,
            "degraded",
            f"{self._at(name)} {how}",
            error=error.words or error.message,
            error_cause=error.cause,
            next_steps=[self._call("get_logs", name), self._restart(name)],
        )

    async def _serves(
        self, record: Record, client: EndpointClient
    ) -> tuple[list[ServedModel], str]:
        """What a running engine serves; asked once, for it does not change while it runs."""
        key = (record.name, record.pid, record.pid_created)
        if key in self._served:
            return self._served[key]
        found = (await client.models(), await client.version())
        if record.model in [model.id for model in found[0]]:
            self._served[key] = found
        return found

    async def endpoint(self, name: str) -> Endpoint:
        """The engine's address on the loopback, with the operator's API key where one is set."""
        settings = self.services.settings
        key = settings.api_key.get_secret_value() if settings.api_key is not None else None

        async def bearer() -> dict[str, str]:
            return {"Authorization": f"Bearer {key}"}

        headers = bearer if key else None
        if name == ATTACHED and settings.base_url is not None:
            attached = Endpoint(
                settings.base_url, headers=headers, source="the endpoint in VLLM_BASE_URL"
            )
            return replace(attached, simulated=await self._says_simulated(attached))
        record = self._get(name)
        return Endpoint(
            f"http://{HOST}:{record.port}",
            headers=headers,
            simulated=record.engine == "simulator",
            source=f"{record.engine} {self._at(name)} on this machine",
        )

    async def _says_simulated(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint that we did not start calls itself a simulator in its version."""
        if self._attached_simulated is None:
            async with EndpointClient(endpoint, timeout_s=_HEALTH_TIMEOUT_S) as client:
                try:
                    self._attached_simulated = "simulated" in await client.version()
                except (EndpointUnreachableError, EndpointNotReadyError):
                    # Asked again when it is up.
                    return False
                except EndpointError:
                    # A server without /version is no simulator of ours.
                    self._attached_simulated = False
        return self._attached_simulated

    async def price(self, name: str) -> Price | None:
        """This machine's price for a real engine, the imitated target's list price otherwise."""
        if name == ATTACHED:
            return None
        record = self._get(name)
        if record.engine == "simulator":
            return simulated_price(record.spec.get("profile"))
        return self._machine_price()

    async def reference_profile(self, name: str) -> str | None:
        """The profile a simulator imitates; nothing is known of this machine's own memory."""
        if name == ATTACHED:
            return None
        record = self._get(name)
        if record.engine != "simulator":
            return None
        return str(record.spec.get("profile") or DEFAULT_PROFILE)

    def _get(self, name: str) -> Record:
        record = self._records().get(name)
        if record is None:
            names = self._records().names()
            raise NotFoundError(
                f"There is no deployment {name[:64]!r} on {self.target}.",
                cause=f"Here are: {', '.join(names)}." if names else "Nothing is deployed here.",
                next_action="Call list_deployments.",
            )
        return record

    def _at(self, name: str) -> str:
        return f"{self.target}/{name}"

    def _call(self, tool: str, name: str) -> str:
        return f"{tool}(target={self.target!r}, name={name!r})"

    def _restart(self, name: str) -> str:
        return f"start_serving(target={self.target!r}, name={name!r}, restart=true)"

    def _machine_price(self) -> Price:
        rate = self.services.settings.local_usd_per_hour
        basis = "VLLM_DEVOPS_LOCAL_USD_PER_HOUR" if rate else "your own machine: no cloud bill"
        return Price(usd_per_hour=rate, basis=basis)

    def _status(self, record: Record, state: State, summary: str, **more: object) -> Status:
        rate = 0.0 if record.engine == "simulator" else self.services.settings.local_usd_per_hour
        fields: dict[str, object] = {
            "summary": summary,
            "target": self.target,
            "name": record.name,
            "state": state,
            "ready": False,
            "engine": record.engine,
            "simulated": record.engine == "simulator",
            "usd_per_hour": rate if record.alive else 0.0,
            "created_at": record.created_at,
            "models": [record.model],
        }
        return Status.model_validate(fields | more)

    def _starting(self, record: Record, progress: StartupProgress) -> Status:
        elapsed = _seconds_since(record.started_at)
        expected = sum(_expected(record).values()) or None
        usual = f" of about {expected:.0f} s" if expected else ""
        detail = f", {progress.detail}" if progress.detail else ""
        return self._status(
            record,
            "starting",
            f"{self._at(record.name)} is starting: {progress.phase.value}{detail}, "
            f"{elapsed:.0f} s{usual}.",
            url=f"http://{HOST}:{record.port}",
            phase=progress.phase.value,
            phases=start_phases(progress, _expected(record), finished=False),
            elapsed_s=elapsed,
            expected_s=expected,
            facts=_facts(progress),
            next_steps=[self._call("wait_until_ready", record.name)],
        )

    def _ended(self, record: Record, progress: StartupProgress) -> Status:
        if record.stopped_at is not None:
            return self._status(
                record,
                "stopped",
                f"{self._at(record.name)} was stopped at {record.stopped_at}.",
                next_steps=[
                    self._call("start_serving", record.name),
                    self._call("destroy", record.name),
                ],
            )
        failure = progress.failure
        code = f" with exit code {record.exit_code}" if record.exit_code is not None else ""
        words = "\n".join(failure.lines if failure else progress.last_lines)
        when = "after it was ready" if progress.ready_after_s is not None else "while starting"
        return self._status(
            record,
            "failed",
            f"{self._at(record.name)} ended{code} {when}"
            + (f": {failure.kind.value}." if failure else "."),
            phase=progress.phase.value,
            phases=start_phases(progress, _expected(record), finished=False),
            error=words or "It left no log lines.",
            error_cause=failure.cause if failure else None,
            facts=_facts(progress),
            next_steps=[
                *([failure.next_action] if failure else []),
                self._call("get_logs", record.name),
                self._call("start_serving", record.name),
                self._call("destroy", record.name),
            ],
        )

    async def _attached_status(self) -> Status:
        url = self.services.settings.base_url or ""
        common: dict[str, object] = {
            "target": self.target,
            "name": ATTACHED,
            "engine": "attached",
            "managed": False,
            "url": url,
        }
        async with EndpointClient(await self.endpoint(ATTACHED), timeout_s=5.0) as client:
            try:
                models = await client.models()
                version = await _or_none(client.version())
                health_ms = await _or_none(client.health())
            except EndpointError as error:
                return Status.model_validate(
                    common
                    | {
                        "summary": f"{self._at(ATTACHED)} does not answer well: {error.message}",
                        "state": "unknown",
                        "ready": False,
                        "error": error.words or error.message,
                        "error_cause": error.cause,
                        "next_steps": [error.next_action] if error.next_action else [],
                    }
                )
        checks = [Check(name="models", ok=True, detail=f"/v1/models lists {len(models)}")]
        if health_ms is not None:
            checks.append(
                Check(name="health", ok=True, detail="/health answers 200", duration_ms=health_ms)
            )
        return Status.model_validate(
            common
            | {
                "summary": f"{self._at(ATTACHED)} is ready at {url}; only read, never changed.",
                "state": "ready",
                "ready": True,
                "simulated": version is not None and "simulated" in version,
                "models": [model.id for model in models],
                "max_model_len": models[0].max_model_len if models else None,
                "version": version,
                "checks": checks,
                "next_steps": [
                    self._call("verify_model_health", ATTACHED),
                    self._call("run_benchmark", ATTACHED),
                ],
            }
        )


def simulated_price(profile: str | None) -> Price:
    """The list price of the target a simulator imitates, for simulated cost figures."""
    found = find_profile(profile or DEFAULT_PROFILE)
    return Price(
        usd_per_hour=found.usd_per_hour.value,
        basis=f"list price of {found.name}",
        source=found.usd_per_hour.source,
        as_of=found.usd_per_hour.date,
    )


def _ends(record: Record | None, created_at: str | None) -> str | None:
    """When it is no longer wanted, by its `ttl_hours`."""
    hours = record.spec.get("ttl_hours") if record is not None else None
    if not hours or not created_at:
        return None
    began = datetime.fromisoformat(created_at.replace("Z", "+00:00"))
    return stamp(began + timedelta(hours=float(hours)))


def _expected(record: Record) -> dict[str, float]:
    expected = record.spec.get("expected_s", {})
    return dict(expected) if isinstance(expected, dict) else {}


def _facts(progress: StartupProgress) -> dict[str, str | int | float | bool]:
    return dict(progress.facts.model_dump(exclude_none=True, exclude={"url"}))


def _seconds_since(moment: str | None) -> float:
    if not moment:
        return 0.0
    return max(0.0, (now() - datetime.fromisoformat(moment.replace("Z", "+00:00"))).total_seconds())


async def _or_none(call: Awaitable[_T]) -> _T | None:
    """An optional endpoint: other OpenAI-compatible servers have no /version or /health."""
    try:
        return await call
    except EndpointError:
        return None


def _host_facts(record: Record) -> dict[str, str | int | float | bool]:
    """This machine and the engine's processes, as the kernel counts them."""
    import psutil

    memory = psutil.virtual_memory()
    disk = psutil.disk_usage(str(Path.home()))
    facts: dict[str, str | int | float | bool] = {
        "system": platform.platform(),
        "cpus": os.cpu_count() or 0,
        "load_1_min": os.getloadavg()[0],
        "memory_gib": memory.total / 2**30,
        "memory_available_gib": memory.available / 2**30,
        "disk_free_gib": disk.free / 2**30,
    }
    if record.pid is not None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(record.pid)
            family = [process, *process.children(recursive=True)]
            facts["engine_processes"] = len(family)
            facts["engine_memory_gib"] = sum(p.memory_info().rss for p in family) / 2**30
            facts["engine_cpu_s"] = sum(sum(p.cpu_times()[:2]) for p in family)
    return facts

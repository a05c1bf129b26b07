"""The control plane of this machine: processes that we start, watch, stop and remove."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from backends.base import CanDeploy, CanDestroy, CanStart, CanStop, DeploySpec, HasLogs, HasModels
from backends.core.answers import Changed, Check, LogsAnswer, ModelEntry, Price, Setting
from backends.core.errors import (
    ConflictError,
    DevopsError,
    EngineError,
    InvalidInputError,
    NotManagedError,
    NotSupportedError,
)
from backends.core.names import MANAGED_BY, MANAGED_BY_US, check_name
from backends.core.plans import Plan, Step, describe
from backends.core.state import stamp
from backends.local.engines import (
    HOST,
    Command,
    LocalSpec,
    free_port,
    port_is_free,
    simulator_command,
    vllm_command,
)
from backends.local.looking import ATTACHED, LocalLooking, simulated_price
from backends.local.records import Record
from backends.serving.startup_log import tail_lines

# How long an engine may take to finish its requests when it is asked to stop.
_STOP_PATIENCE_S = 12.0
# Asking for status and metrics leaves access-log lines that would crowd out everything else.
_PROBE = re.compile(r'"GET /(health|version|v1/models|metrics|ping|load) HTTP/1\.[01]" 200')
_LOG_LINES_READ = 20_000
_LOG_CHARS_READ = 2_000_000


class LocalBackend(LocalLooking, CanDeploy, CanDestroy, CanStart, CanStop, HasLogs, HasModels):
    """This machine: the simulator, a real `vllm serve`, or an attached endpoint."""

    Spec: ClassVar[type[DeploySpec]] = LocalSpec
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "find_capacity": "get_status(detail=true) and get_help(topic='doctor') say what this "
        "machine has.",
        "stage_model": "Give model= a folder on this machine, or a Hugging Face id: vLLM downloads "
        "it.",
        "save_hf_token": "vLLM reads the token of `hf auth login`, or HF_TOKEN of the server's "
        "environment.",
        "prepare_host": "get_help(topic='doctor', target='local') says what is missing here.",
        "update_scaling": "One engine serves; deploy a second one under another name.",
        "shift_traffic": "Deploy the candidate under another name and compare the two.",
        "probe_cold_start": "start_serving(restart=true); wait_until_ready shows each phase with "
        "its seconds.",
    }
    ttl: ClassVar[str] = "shown"

    async def doctor(self) -> list[Check]:
        """Whether engines can be started here."""
        from backends.serving.vllm_program import find_program

        checks = [Check(name="simulator", ok=True, detail="bundled; nothing to install")]
        try:
            program = find_program(self.services.settings.vllm_bin)
            words = f"{program.path}, version {program.version or 'unknown'}"
            checks.append(
                Check(name="vllm", ok=not program.problem, detail=program.problem or words)
            )
        except DevopsError as error:
            # Only wrong where the operator said that there is one.
            asked_for = self.services.settings.vllm_bin is not None
            detail = f"{error.message} {error.next_action}"
            checks.append(Check(name="vllm", ok=not asked_for, detail=detail))
        if self.services.settings.base_url is not None:
            status = await self._attached_status()
            checks.append(Check(name="attached endpoint", ok=status.ready, detail=status.summary))
        return checks

    # --------------------------------------------------------------------------------- deploying

    async def plan_deploy(self, spec: DeploySpec) -> Plan:
        """One process to start; the name and the port must be free."""
        if not isinstance(spec, LocalSpec):
            raise TypeError(f"{self.target} plans a LocalSpec, not {type(spec).__name__}")
        name = check_name(spec.name)
        if name == ATTACHED:
            raise InvalidInputError("name", f"{ATTACHED!r} stands for VLLM_BASE_URL.")
        if self._records().get(name) is not None:
            raise self._exists(name)
        settings = self.services.settings
        engine = spec.engine or settings.local_engine.value
        others = self._records().ports()
        port = spec.port or free_port(others)
        # One that starts, or is stopped, does not listen; the port is its own all the same.
        if port in others or not port_is_free(port):
            owner = " by another deployment" if port in others else ""
            raise ConflictError(
                f"Port {port} on {HOST} is taken{owner}.",
                next_action="Leave options.port out to get a free one.",
            )
        spec = spec.model_copy(update={"engine": engine, "port": port})
        if engine == "simulator":
            command = simulator_command(spec, port)
        else:
            command = await vllm_command(spec, port, settings.vllm_bin)
        record = Record(
            name=name,
            engine="simulator" if engine == "simulator" else "vllm",
            argv=list(command.argv),
            env=command.env,
            port=port,
            model=command.served_name,
            spec=spec.model_dump(exclude_none=True) | {"expected_s": command.expected_s},
            created_at="",
        )
        step = Step(
            title=f"Start the {engine} on port {port}, detached, with its log on disk",
            kind="start",
            argv=command.argv,
            env=command.env,
            data=record.model_dump(mode="json", by_alias=True),
            creates=(f"process of {self._at(name)}", str(self._records().folder(name))),
            undo=f"destroy(target={self.target!r}, name={name!r})",
        )
        return Plan(
            verb="deploy",
            target=self.target,
            name=name,
            summary=f"start a {engine} of {command.served_name} as {self._at(name)}.",
            spec=spec.model_dump(exclude_none=True),
            steps=[step],
            live={f"name {self._at(name)}": "free", f"port {port}": "free"},
            price=self._plan_price(engine, spec),
            settings=_settings(spec, command),
            warnings=list(command.warnings),
            notes=list(command.notes),
        )

    async def plan_destroy(self, name: str) -> Plan:
        """Stop the process and remove its folder."""
        record = self._ours(name)
        folder = self._records().folder(name)
        return Plan(
            verb="destroy",
            target=self.target,
            name=name,
            summary=f"stop {self._at(name)} and remove its record and logs.",
            steps=[
                Step(
                    title=f"Stop the {record.engine} process and all it started",
                    kind="stop",
                    data={"name": name},
                ),
                Step(
                    title="Remove its record and logs",
                    kind="remove",
                    argv=("rm", "-r", str(folder)),
                    data={"name": name},
                ),
            ],
            live={"created at": record.created_at, "process": _process_words(record)},
            price=Price(usd_per_hour=0, basis="nothing of it is left running"),
            warnings=["Its logs go with it; benchmark results stay."],
        )

    async def plan_stop(self, name: str) -> Plan:
        """Stop the process; the record stays, so that it can be started again."""
        record = self._ours(name)
        if not record.alive:
            raise ConflictError(
                f"{self._at(name)} is not running.",
                next_action=f"{self._call('start_serving', name)} starts it again.",
            )
        return Plan(
            verb="stop_serving",
            target=self.target,
            name=name,
            summary=f"stop {self._at(name)}; {self._call('start_serving', name)} starts it again.",
            steps=[
                Step(
                    title=f"Stop the {record.engine} process and all it started",
                    kind="stop",
                    data={"name": name},
                    undo=self._call("start_serving", name),
                )
            ],
            live={"created at": record.created_at, "process": _process_words(record)},
            price=Price(usd_per_hour=0, basis="the machine itself goes on as before"),
        )

    async def run_step(self, plan: Plan, step: Step) -> str:
        """Run one step of a plan made here."""
        if step.kind == "start":
            record = Record.model_validate(step.data).model_copy(update={"created_at": stamp()})
            return await asyncio.to_thread(self._start_first, record)
        name = str(step.data["name"])
        if step.kind == "stop":
            return await asyncio.to_thread(self._stop, name)
        if step.kind == "remove":
            return await asyncio.to_thread(self._remove, name)
        raise DevopsError(f"{self.target} has no step of kind {step.kind!r}.")

    async def start(self, name: str, *, restart: bool) -> Changed:
        """Start the engine with the command it was deployed with."""
        self._ours(name)
        done = await asyncio.to_thread(self._start_again, name, restart=restart)
        if not done:
            status = await self.status(name)
            return Changed(
                summary=f"{self._at(name)} runs already and is {status.state}; nothing done.",
                target=self.target,
                name=name,
                state=status.state,
                url=status.url,
                next_steps=status.next_steps,
            )
        return Changed(
            summary=f"{self._at(name)} is starting.",
            target=self.target,
            name=name,
            state="starting",
            url=f"http://{HOST}:{self._get(name).port}",
            done=done,
            next_steps=[self._call("wait_until_ready", name)],
        )

    # Whoever changes something looks again when it is his turn: another call, or another server on
    # the same state directory, may have been there since the plan was checked.

    def _start_first(self, record: Record) -> str:
        records = self._records()
        with records.changing(record.name):
            if records.get(record.name) is not None:
                raise self._exists(record.name)
            try:
                record = records.start(record, self._secrets())
            except EngineError:
                # Nothing runs, so nothing is left: the name is free for another try.
                records.remove(record.name)
                raise
        return f"started {record.engine} of {record.model}, pid {record.pid}, port {record.port}"

    def _start_again(self, name: str, *, restart: bool) -> list[str]:
        """What was done; nothing where it runs and is not to be restarted."""
        records = self._records()
        done: list[str] = []
        with records.changing(name):
            record = self._ours(name)
            if record.alive:
                if not restart:
                    return []
                records.stop(record, _STOP_PATIENCE_S)
                done.append(f"stopped pid {record.pid}")
            if not port_is_free(record.port):
                raise ConflictError(
                    f"Port {record.port} of {self._at(name)} is taken by something else.",
                    next_action="Free it, or destroy this deployment and deploy it again.",
                )
            record = records.start(record, self._secrets())
        return [*done, f"started pid {record.pid} on port {record.port}"]

    def _stop(self, name: str) -> str:
        records = self._records()
        with records.changing(name):
            record = self._get(name)
            ran = records.stop(record, _STOP_PATIENCE_S)
        return f"stopped pid {record.pid}" if ran else "it was not running"

    def _remove(self, name: str) -> str:
        records = self._records()
        with records.changing(name):
            record = self._get(name)
            if record.alive:
                # Started again after the step before this one.
                records.stop(record, _STOP_PATIENCE_S)
            records.remove(name)
        return f"removed {records.folder(name)}"

    # --------------------------------------------------------------------------------- reading

    def log_files(self, name: str) -> Mapping[str, Path]:
        """The engine's log of this start."""
        if name == ATTACHED and self.services.settings.base_url is not None:
            return {}
        path = self._records().log(name)
        return {"engine": path} if path.exists() else {}

    async def logs(self, name: str, source: str | None, lines: int) -> LogsAnswer:
        """The engine's log of this start, or of the one before."""
        if name == ATTACHED and self.services.settings.base_url is not None:
            raise NotSupportedError(
                "The logs of an attached endpoint are not reachable from here.",
                next_action="Read them where it runs; get_metrics and get_status work.",
            )
        self._get(name)
        paths = {
            "engine": self._records().log(name),
            "previous": self._records().previous_log(name),
        }
        chosen = source or "engine"
        if chosen not in paths:
            raise InvalidInputError("source", "is unknown.", allowed=", ".join(paths))
        path = paths[chosen]
        read = await asyncio.to_thread(_newest, path) if path.exists() else []
        kept = [line for line in read if not _PROBE.search(line)]
        answer = self.newest_lines(
            name,
            kept[-lines:],
            source=chosen,
            sources=[key for key, file in paths.items() if file.exists()],
            of=f" ({path})",
        )
        answer.probe_lines_left_out = len(read) - len(kept)
        if answer.cut_chars:
            answer.next_steps = [f"{answer.next_steps[0].rstrip('.')}, or read {path}."]
        return answer

    async def models(self) -> list[ModelEntry]:
        """What the simulator knows, what the local Hugging Face cache holds, what is served."""
        from backends.knowledge.model_files import cached_models, catalogue

        entries = catalogue()
        entries += await asyncio.to_thread(cached_models)
        entries += [
            ModelEntry(
                id=model,
                where=f"served by {self._at(item.name)}",
                kind=item.engine,
                note="simulated" if item.simulated else None,
            )
            for item in await self.deployments()
            if (model := item.model) is not None and item.state == "ready"
        ]
        return entries

    async def inspect_model(self, model: str) -> dict[str, str | int | float | bool]:
        """What a folder on this machine, or the catalogue, says."""
        from backends.knowledge.model_files import inspect

        return await asyncio.to_thread(inspect, model)

    # --------------------------------------------------------------------------------- helpers

    def _ours(self, name: str) -> Record:
        if name == ATTACHED and self.services.settings.base_url is not None:
            raise NotManagedError(
                f"{self._at(ATTACHED)} was not deployed by this server; it can only be read.",
                next_action="Unset VLLM_BASE_URL to detach it; stop it where it was started.",
            )
        record = self._get(name)
        if record.managed_by != MANAGED_BY_US:
            raise NotManagedError(f"{self._at(name)} does not carry {MANAGED_BY}={MANAGED_BY_US}.")
        return record

    def _exists(self, name: str) -> ConflictError:
        return ConflictError(
            f"{self._at(name)} exists already.",
            next_action=f"Choose another name, or see {self._call('get_status', name)}.",
        )

    def _secrets(self) -> dict[str, str]:
        key = self.services.settings.api_key
        return {"VLLM_API_KEY": key.get_secret_value()} if key is not None else {}

    def _plan_price(self, engine: str, spec: LocalSpec) -> Price:
        if engine != "simulator":
            return self._machine_price()
        imitated = simulated_price(spec.profile)
        return Price(
            usd_per_hour=0,
            basis=f"a simulation costs nothing; figures use {imitated.usd_per_hour} USD/h, "
            f"the {imitated.basis}",
            source=imitated.source,
            as_of=imitated.as_of,
        )


def _newest(path: Path) -> list[str]:
    return tail_lines(path, _LOG_LINES_READ, _LOG_CHARS_READ)


def _settings(spec: LocalSpec, command: Command) -> list[Setting]:
    meanings = {key: info.description or "" for key, info in LocalSpec.model_fields.items()}
    chosen = command.resolved | spec.model_dump(exclude_none=True, exclude={"name"})
    chosen["served_model_name"] = command.served_name
    return describe(chosen, meanings)


def _process_words(record: Record) -> str:
    return f"pid {record.pid} runs" if record.alive else "not running"

"""The interface every target implements, and the abilities it may opt into.

A target's module subclasses `Backend` and the `Can…` classes it really implements; the target
matrix in `get_help`, the tool list and the README are derived from that, so they cannot lie.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from backends.core.answers import (
    Capacity,
    Changed,
    Check,
    Deployment,
    LogsAnswer,
    MetricsAnswer,
    ModelEntry,
    Price,
    Staged,
    Status,
    TokenSaved,
    Traffic,
)
from backends.core.errors import ConflictError, InvalidInputError, NotFoundError, NotSupportedError
from backends.core.option_names import PLACES, in_own_words, unknown_option
from backends.core.owned import Owned
from backends.core.plans import Plan, Step
from backends.core.render import clip

if TYPE_CHECKING:
    from backends.core.operations import Operations
    from backends.core.settings import Settings
    from backends.core.state import StateDir
    from backends.knowledge.signatures import Signature
    from backends.serving.endpoint import Endpoint
    from backends.serving.engine.crew import Workforce
    from backends.serving.model_sources import ModelSource

# progress(done, total, message)
Progress = Callable[[float, float | None, str], Awaitable[None]]

# How often a watch looks again, in seconds.
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Services:
    """What a backend is given.

    Attributes:
        settings: The resolved settings.
        state: The state directory.
        operations: Long operations.
        cloud_env: Variables that CLIs and cloud clients are run with: none in earnest, those of
            the rehearsal cloud (which the first call starts) in a rehearsal. Blocks.
        owned: What is open between calls; closed with the application.
    """

    settings: Settings
    state: StateDir
    operations: Operations
    cloud_env: Callable[[], Mapping[str, str]] = dict
    owned: Owned = field(default_factory=Owned)


class WorkerJob(Protocol):
    """What a backend sees of the worker that runs it: progress out, the wish to stop in."""

    def progress(self, done: float, total: float | None, message: str) -> None:
        """Say how far it is."""

    def should_stop(self) -> bool:
        """Whether somebody asked for an end."""


@dataclass(frozen=True)
class Scaling:
    """How many instances should serve; None is "as it is".

    Attributes:
        min_instances: Kept warm.
        max_instances: At most.
        instances: An exact number (manual scaling).
        automatic: True goes back from manual to automatic scaling.
    """

    min_instances: int | None = None
    max_instances: int | None = None
    instances: int | None = None
    automatic: bool | None = None


class DeploySpec(BaseModel):
    """What every target's deployment is described by. Targets add their own options."""

    model_config = ConfigDict(extra="forbid")

    name: str
    model: str | None = Field(None, description="Checkpoint: a Hugging Face id, folder or path.")
    max_model_len: int | None = Field(
        None, ge=256, le=1_048_576, description="Longest context, in tokens."
    )
    max_num_seqs: int | None = Field(
        None, ge=1, le=4096, description="Most sequences the engine batches."
    )
    ttl_hours: float | None = Field(
        None,
        gt=0,
        le=8760,
        description="Hours it is wanted for. Enforced where the cloud can; else shown when over.",
    )


class Backend(abc.ABC):
    """A target: one control plane on which deployments live.

    Args:
        services: Settings, state and operations.
    """

    target: ClassVar[str]
    title: ClassVar[str]
    hardware: ClassVar[str]
    INSTEAD: ClassVar[Mapping[str, str]] = {}
    """What to use instead of a tool this target lacks, by the tool."""

    def __init__(self, services: Services) -> None:
        self.services = services

    @abc.abstractmethod
    async def deployments(self) -> list[Deployment]:
        """Everything that exists here. A failed look is an error, never an empty list."""

    @abc.abstractmethod
    async def status(self, name: str, *, detail: bool = False) -> Status:
        """How one deployment is. Never wakes or changes it.

        Raises:
            NotFoundError: There is no deployment of that name.
        """

    @abc.abstractmethod
    async def endpoint(self, name: str) -> Endpoint:
        """How to reach its OpenAI-compatible API.

        Raises:
            NotFoundError: There is no deployment of that name.
            ConflictError: It has no endpoint in its present state.
        """

    async def last_request_at(self, name: str) -> float | None:
        """When it last answered a request: Unix seconds, 0 for not within a day, None: unknown.

        Health checks and other questions of ours do not count.
        """
        del name
        return None

    def newest_lines(
        self, name: str, lines: Sequence[str], *, source: str, sources: Sequence[str], of: str = ""
    ) -> LogsAnswer:
        """What `get_logs` answers with.

        Args:
            name: The deployment.
            lines: The lines, newest last; the oldest are cut off where they are too long.
            source: Which log they are of.
            sources: Which logs there are.
            of: What more there is to say of the log, as it follows its name in a sentence.
        """
        text, cut = clip("\n".join(lines))
        what = f"The last {len(lines)} lines" if lines else "No lines yet"
        return LogsAnswer(
            summary=f"{what} of {self.at(name)}, source {source}{of}.",
            target=self.target,
            name=name,
            source=source,
            sources=list(sources),
            lines=len(lines),
            text=text,
            cut_chars=cut,
            next_steps=[f"Cut {cut} older characters: ask for fewer lines."] if cut else [],
        )

    async def price(self, name: str) -> Price | None:
        """What it costs per hour while it serves, for cost figures. None where unknown."""
        del name
        return None

    async def reference_profile(self, name: str) -> str | None:
        """The profile of `knowledge.targets` whose hardware it runs on. None where unknown."""
        from backends.knowledge.targets import PROFILES

        del name
        return self.target if self.target in PROFILES else None

    async def leftovers(self, names: Collection[str]) -> dict[str, str]:
        """What is left of deployments that are no more, by name, in words; it costs nothing.

        Args:
            names: Those that are deployed.

        Raises:
            DevopsError: It could not be asked.
        """
        del names
        return {}

    async def plan_leftovers(self, name: str) -> Plan | None:
        """What deleting what is left of a name would do; None: nothing is left of it.

        Raises:
            DevopsError: It could not be asked.
        """
        del name
        return None

    async def doctor(self) -> list[Check]:
        """What this target needs on this machine, each with the fix where it is missing."""
        return []

    async def resolve(self, name: str | None) -> str:
        """`name`, or the only deployment there is when none was given.

        Raises:
            InvalidInputError: None was given and there are several.
            NotFoundError: None was given and there is none.
        """
        if name is not None:
            return name
        names = [item.name for item in await self.deployments()]
        if len(names) == 1:
            return names[0]
        if not names:
            raise NotFoundError(
                f"Nothing is deployed on {self.target}.",
                next_action=f"Call plan_deployment(target={self.target!r}).",
            )
        raise InvalidInputError("name", "is needed: there are several.", allowed=", ".join(names))

    @property
    def look_every_s(self) -> float:
        """How often a watch looks again, in seconds; more where a cloud throttles looks."""
        return _LOOK_EVERY_S

    async def watch(self, name: str, timeout_s: float, progress: Progress) -> tuple[Status, float]:
        """Look until it is ready, failed or stopped, or `timeout_s` is over.

        Returns:
            The last status, and the seconds waited.
        """
        began = time.monotonic()
        told = 0.0
        while True:
            status = await self.status(name)
            waited = time.monotonic() - began
            # A start's seconds may be counted anew (by the log, by the platform), and MCP wants
            # progress that never goes back.
            told = max(told, status.elapsed_s if status.elapsed_s is not None else waited)
            await progress(told, status.expected_s, status.summary)
            if status.state not in {"creating", "starting", "stopping", "unknown"}:
                return status, waited
            if waited + self.look_every_s > timeout_s:
                return status, waited
            await asyncio.sleep(self.look_every_s)

    def log_files(self, name: str) -> Mapping[str, Path]:
        """Logs that are whole files on this machine, by source; empty where they are not."""
        del name
        return {}

    async def after_benchmark(self, name: str, began_s: float, ended_s: float) -> dict[str, Any]:
        """What the platform itself says of a benchmark's time; nothing where it says nothing.

        Args:
            name: The deployment.
            began_s: Unix seconds.
            ended_s: Unix seconds.
        """
        del name, began_s, ended_s
        return {}

    def at(self, name: str) -> str:
        """A deployment in words."""
        return f"{self.target}/{name}"

    def call(self, tool: str, name: str, **more: object) -> str:
        """A tool call about a deployment, as an answer names it.

        Args:
            tool: The tool.
            name: The deployment.
            more: Further arguments.
        """
        extra = "".join(f", {key}={value!r}" for key, value in more.items())
        return f"{tool}(target={self.target!r}, name={name!r}{extra})"

    @classmethod
    def failure_signatures(cls) -> Sequence[Signature]:
        """How deployments fail here besides vLLM's own ways; `diagnose` looks for them."""
        return ()

    def next_while_ending(self, name: str) -> list[str]:
        """What to do with a deployment that is on its way out, as calls: look again.

        `wait_until_ready` would wait for what nobody wants any more.
        """
        return [self.call("get_status", name)]

    def next_when_ready(self, name: str) -> list[str]:
        """What to do with a deployment that serves, as calls."""
        which = f"(target={self.target!r}, name={name!r}"
        return [
            f"verify_model_health{which})",
            f"query_model{which}, prompt=...)",
            f"run_benchmark{which})",
        ]

    @classmethod
    def abilities(cls) -> set[str]:
        """The names of the tools this target can do."""
        return {tool for tool, ability in ABILITIES.items() if issubclass(cls, ability)}

    @classmethod
    def require(cls, tool: str) -> None:
        """Refuse by name what the target cannot do.

        Raises:
            NotSupportedError: With what to use instead.
        """
        if tool not in cls.abilities():
            raise NotSupportedError(
                f"{cls.target} cannot do {tool}.",
                next_action=cls.INSTEAD.get(tool)
                or f"Call get_help for what {cls.target} can do: "
                f"{', '.join(sorted(cls.abilities()))}.",
            )


class RunsPlans(Backend):
    """Runs the steps of the plans it made. Not an ability by itself."""

    @abc.abstractmethod
    async def run_step(self, plan: Plan, step: Step) -> str:
        """Run one step of a plan made here; returns what it did, in words."""

    async def run_long_step(self, plan: Plan, step: Step, job: WorkerJob) -> str:
        """Run a step that is marked `background`: in a worker, saying how far it is.

        Raises:
            OperationError: Somebody asked for an end.
        """
        raise NotImplementedError(f"{self.target} marks a step that it cannot run: {step.kind}")


class CanDeploy(RunsPlans):
    """Can plan and run a deployment."""

    Spec: ClassVar[type[DeploySpec]]
    ttl: ClassVar[str] = ""
    """What becomes of `ttl_hours`: the option by which the cloud enforces it, `shown` where
    `list_deployments` says when it is over, or nothing."""

    places_are: ClassVar[str] = ""
    """The target's own options that `places` stands for; empty where there is one place only."""

    @classmethod
    def placed(cls, places: list[str]) -> dict[str, Any]:
        """The option `places` in the target's own options.

        Args:
            places: Regions or zones, in the order to try.

        Raises:
            InvalidInputError: The target has no such places, or takes fewer.
        """
        del places
        raise InvalidInputError(
            f"options.{PLACES}", f"{cls.target} has one place only.", allowed="leave it out"
        )

    @abc.abstractmethod
    async def plan_deploy(self, spec: DeploySpec) -> Plan:
        """What deploying `spec` would do. Changes nothing.

        Raises:
            ConflictError: The name is taken.
            InvalidInputError: A setting is wrong.
        """

    def document(self, plan: Plan, form: str) -> str | None:
        """A plan as a document: `shell`, or a form of the target's own; None where it has none.

        Raises:
            InvalidInputError: The target has no such form.
        """
        if form == "plan":
            return None
        if form == "shell":
            from backends.core.script import shell_script

            return shell_script(plan)
        raise InvalidInputError("format", f"{self.target} has no {form}.", allowed="plan, shell")

    @classmethod
    def parse_spec(cls, common: dict[str, Any], options: dict[str, Any]) -> DeploySpec:
        """The request as this target understands it.

        Raises:
            InvalidInputError: An option is unknown or wrong; names it and what is allowed.
        """
        known = cls.Spec.model_fields
        options = in_own_words(options, known, cls.placed)
        if cls.ttl in known and options.get("ttl_hours"):
            options = {cls.ttl: options["ttl_hours"]} | options
        clash = set(options) & set(common)
        if clash:
            raise InvalidInputError(
                "options", f"{', '.join(sorted(clash))} are arguments of their own, not options."
            )
        try:
            return cls.Spec.model_validate({**common, **options})
        except ValidationError as error:
            item = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, item["loc"]))
            field = where if where in common else f"options.{where}"
            if item["type"] == "extra_forbidden":
                arguments = set(DeploySpec.model_fields) - {"ttl_hours"}
                allowed = set(known) - arguments | ({PLACES} if cls.places_are else set())
                raise unknown_option(cls.target, where, allowed) from None
            raise InvalidInputError(field, item["msg"].removeprefix("Value error, ")) from None


class EndOptions(BaseModel):
    """Options of stop_serving or destroy. Targets that have some add their own fields."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


EndOptionsT = TypeVar("EndOptionsT", bound=EndOptions)


def parse_end(target: str, kind: type[EndOptionsT], options: Mapping[str, Any]) -> EndOptionsT:
    """Options of a stop or a deletion as the target understands them.

    Raises:
        InvalidInputError: One is unknown or wrong; names it and what is allowed.
    """
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        item = error.errors(include_url=False, include_input=False)[0]
        field = f"options.{'.'.join(map(str, item['loc']))}"
        if item["type"] == "extra_forbidden":
            allowed = ", ".join(kind.model_fields) or "none"
            raise InvalidInputError(
                field, f"{target} has no such option here.", allowed=allowed
            ) from None
        raise InvalidInputError(field, item["msg"].removeprefix("Value error, ")) from None


class CanDestroy(RunsPlans):
    """Can delete what it deployed."""

    DestroyOptions: ClassVar[type[EndOptions]] = EndOptions

    async def plan_destroy_as(self, name: str, options: EndOptions) -> Plan:
        """What destroying `name` with options would do; for targets that have some."""
        del options
        return await self.plan_destroy(name)

    @abc.abstractmethod
    async def plan_destroy(self, name: str) -> Plan:
        """What destroying `name` would do, and what would keep billing.

        Raises:
            NotFoundError: There is no such deployment.
            NotManagedError: It is not ours.
        """


class CanStart(Backend):
    """Can start or restart the server of an existing deployment."""

    @abc.abstractmethod
    async def start(self, name: str, *, restart: bool) -> Changed:
        """Start serving again; with `restart`, stop first if it runs."""


class CanStop(RunsPlans):
    """Can stop serving without deleting."""

    StopOptions: ClassVar[type[EndOptions]] = EndOptions

    async def plan_stop_as(self, name: str, options: EndOptions) -> Plan:
        """What stopping `name` with options would do; for targets that have some."""
        del options
        return await self.plan_stop(name)

    @abc.abstractmethod
    async def plan_stop(self, name: str) -> Plan:
        """What stopping `name` would do, and what would keep billing."""


class HasLogs(Backend):
    """Can show logs."""

    @abc.abstractmethod
    async def logs(self, name: str, source: str | None, lines: int) -> LogsAnswer:
        """The newest `lines` lines of one source."""


class HasModels(Backend):
    """Knows which checkpoints it can serve."""

    @abc.abstractmethod
    async def models(self) -> list[ModelEntry]:
        """Checkpoints that can be deployed here, or are being served."""

    @abc.abstractmethod
    async def inspect_model(self, model: str) -> dict[str, str | int | float | bool]:
        """What the checkpoint's own files say it is."""

    async def model_source(self, model: str) -> ModelSource | None:
        """config.json and size of a model that only this target can read, e.g. of its bucket."""
        del model
        return None


class FindsCapacity(Backend):
    """Knows where it can run: quota, hardware for sale, price."""

    @abc.abstractmethod
    async def capacity(self, place: str | None) -> Capacity:
        """Where the reference deployment could run now.

        Args:
            place: Only this region or zone.

        Raises:
            CloudError: Quotas could not be asked; never answered with "no quota".
        """


class Scales(Backend):
    """Can change how many instances serve."""

    async def check_zero(self, name: str) -> None:
        """Refuse to set no instance at all, where nothing would start one again.

        Raises:
            InvalidInputError: Always, unless the target knows a way back from zero.
        """
        raise InvalidInputError(
            "instances",
            f"of 0 would stop all traffic of {name}.",
            allowed="1 and more; stop_serving stops it",
        )

    @abc.abstractmethod
    async def scaling_price(self, name: str, scaling: Scaling) -> Price | None:
        """What the deployment would cost per hour at most when scaled so."""

    @abc.abstractmethod
    async def scale(self, name: str, scaling: Scaling) -> Changed:
        """Change the number of instances; what was not said stays as it is, the mode included."""


class ShiftsTraffic(Backend):
    """Can send a share of traffic to another revision."""

    @abc.abstractmethod
    async def shift_traffic(self, name: str, to: str, percent: int, *, check: bool) -> Traffic:
        """Send `percent` of traffic to `to`, the rest to what serves now.

        Args:
            name: The deployment.
            to: `candidate`, `previous`, or a revision's name.
            percent: 0 to 100.
            check: Compare the candidate with what serves on the same prompts first, and refuse
                to shift when it breaks the contract.
        """


class ProbesColdStart(Backend):
    """Can scale to zero and time the way back."""

    @abc.abstractmethod
    async def cold_start(self, name: str, job: WorkerJob) -> dict[str, Any]:
        """Run in a worker: scale from zero and time each phase; returns seconds by phase."""


class StagesModels(Backend):
    """Can put weights where the target reads them."""

    @abc.abstractmethod
    async def plan_staging(self, model: str, destination: str | None) -> Staged:
        """What is there, what is missing, and the commands that bring it. Changes nothing."""

    @abc.abstractmethod
    async def stage(self, model: str, destination: str | None, job: WorkerJob) -> dict[str, Any]:
        """Run in a worker: bring what is missing, resuming where it stopped."""


class SearchesZones(Backend):
    """Can go through zones until one has hardware. Not an ability by itself: deploy starts it."""

    @abc.abstractmethod
    async def search(self, name: str, params: dict[str, Any], job: WorkerJob) -> dict[str, Any]:
        """Run in a worker: ask zone after zone by the plan's rule; returns what it found.

        Args:
            name: The deployment.
            params: What was said when it was started.
            job: Progress out, the wish to stop in. Stopping leaves a living request alone.
        """


class PreparesHost(Backend):
    """Can make its machine ready to serve: disks, swap, driver, vLLM."""

    HostOptions: ClassVar[type[BaseModel]]
    """What a caller may choose; every field has a default."""

    @abc.abstractmethod
    async def prepare_host(
        self, name: str, options: BaseModel, job: WorkerJob, *, check_only: bool
    ) -> dict[str, Any]:
        """Run in a worker: take each step that is still to be taken, or only look.

        Args:
            name: The deployment.
            options: `HostOptions`.
            job: Progress out, the wish to stop in.
            check_only: Change nothing.

        Raises:
            StepFailedError: A step failed; names what the others changed.
            HostUnreachableError: The machine does not answer.
        """


class RunsLater(RunsPlans):
    """Leaves to a worker what takes longer than a call, which then says its id. No ability."""

    @abc.abstractmethod
    async def run_later(
        self, kind: str, name: str, params: dict[str, Any], job: WorkerJob
    ) -> dict[str, Any]:
        """Run in a worker what a call or a step has left for later.

        Args:
            kind: The operation's kind, one of the target's own.
            name: The deployment.
            params: What was said when it was started.
            job: Progress out, the wish to stop in.
        """


class HasPlatformMetrics(Backend):
    """Where the engine's own /metrics cannot be reached: the platform's figures in their place."""

    @abc.abstractmethod
    async def platform_metrics(self, name: str, interval_s: float, *, raw: bool) -> MetricsAnswer:
        """What the platform counts of a deployment, saying what that leaves out."""


class LoadsBesideEngine(Backend):
    """Can make load on the machine the engine runs on. Not an ability by itself."""

    @abc.abstractmethod
    async def load_workers(self, name: str) -> Workforce:
        """The machine's cores, for `run_benchmark(runner=host)`.

        Raises:
            NotFoundError: There is no such deployment.
        """


class SavesTokens(Backend):
    """Can keep a Hugging Face token where the target reads it."""

    @abc.abstractmethod
    async def save_token(self, token: SecretStr) -> TokenSaved:
        """Keep the token as a new secret version; it never reaches argv, logs or answers."""


# Tool -> the class a target must implement to offer it. Every deployment that has an endpoint can
# be queried, measured and benchmarked, whatever the target.
ABILITIES: dict[str, type] = {
    "list_deployments": Backend,
    "plan_deployment": CanDeploy,
    "list_models": HasModels,
    "deploy": CanDeploy,
    "wait_until_ready": Backend,
    "get_status": Backend,
    "verify_model_health": Backend,
    "query_model": Backend,
    "get_metrics": Backend,
    "get_logs": HasLogs,
    "diagnose": Backend,
    "run_benchmark": Backend,
    "prepare_host": PreparesHost,
    "start_serving": CanStart,
    "stop_serving": CanStop,
    "destroy": CanDestroy,
    "find_capacity": FindsCapacity,
    "update_scaling": Scales,
    "shift_traffic": ShiftsTraffic,
    "probe_cold_start": ProbesColdStart,
    "stage_model": StagesModels,
    "save_hf_token": SavesTokens,
}


def must_be(status: Status, *allowed: str) -> None:
    """Refuse when a deployment's state forbids the request.

    Raises:
        ConflictError: Its state is not one of `allowed`.
    """
    if status.state not in allowed:
        raise ConflictError(
            f"{status.target}/{status.name} is {status.state}: {status.summary}",
            next_action=status.next_steps[0] if status.next_steps else "Call get_status.",
        )

"""The application behind the server: settings, state, plans, operations, audit and backends."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path

from backends.base import Backend, Services
from backends.core.audit import AuditLog
from backends.core.operations import Operations
from backends.core.plans import PlanBook
from backends.core.settings import LoadedSettings, Mode, SettingProblem, Settings, load_settings
from backends.core.state import StateDir
from backends.core.usage import UsageWatch
from backends.registry import Backends, abilities_of


@dataclass(frozen=True)
class App:
    """Everything a tool works with. Made without touching the network or the disk.

    Attributes:
        settings: The resolved settings.
        problems: Settings that were wrong, and what is used instead.
        state: The state directory.
        plans: Plan ids.
        operations: Long operations.
        audit: The audit log.
        services: What each backend is given.
        backends: The targets.
        usage: What the last look showed nobody to use.
    """

    settings: Settings
    problems: tuple[SettingProblem, ...]
    state: StateDir
    plans: PlanBook
    operations: Operations
    audit: AuditLog
    services: Services
    backends: Backends
    usage: UsageWatch = field(default_factory=UsageWatch)

    @classmethod
    def from_settings(cls, loaded: LoadedSettings) -> App:
        """An application with these settings."""
        settings = loaded.settings
        # What was rehearsed never mixes with what was real.
        root = settings.state_dir / "rehearsal" if settings.rehearsal else settings.state_dir
        state = StateDir(root)
        services = Services(
            settings,
            state,
            Operations(state),
            functools.partial(_rehearsal_env, state, settings.rehearsal_speed)
            if settings.rehearsal
            else dict,
        )
        return cls(
            settings=settings,
            problems=loaded.problems,
            state=state,
            plans=PlanBook(state, settings.plan_ttl_minutes),
            operations=services.operations,
            audit=AuditLog(state),
            services=services,
            backends=Backends(services),
        )

    @classmethod
    def from_environment(cls) -> App:
        """An application set up by the environment and `.env`."""
        return cls.from_settings(load_settings())

    @property
    def mode(self) -> Mode:
        """Which kinds of tool are listed."""
        return self.settings.mode

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets on offer."""
        return self.settings.targets

    @property
    def abilities(self) -> set[str]:
        """The tools at least one offered target can do."""
        return abilities_of(self.targets)

    @property
    def server_log(self) -> Path:
        """Where tracebacks of unexpected errors go."""
        return self.state.server_log

    def backend(self, target: str, tool: str) -> Backend:
        """The backend of a target, if it can do what the tool needs.

        Raises:
            NotSupportedError: It cannot; says what to use instead.
        """
        backend = self.backends.get(target)
        backend.require(tool)
        return backend

    async def close(self) -> None:
        """Let go of all that is open between calls; a later call opens it again."""
        await self.services.owned.close()

    def ambient_warnings(self) -> list[str]:
        """What every answer must say."""
        warnings: list[str] = []
        if self.settings.rehearsal:
            warnings.append("Rehearsal: the clouds are played on this machine; nothing is real.")
        if self.problems:
            names = ", ".join(problem.variable for problem in self.problems)
            warnings.append(
                f"Wrong settings, safest values used instead: {names}. See get_help('settings')."
            )
        return warnings + self.usage.warnings()


def _rehearsal_env(state: StateDir, speed: float) -> dict[str, str]:
    """The variables of the rehearsal cloud, which is started if it does not run."""
    from backends.rehearsal.cloud.launcher import clean, environment, start

    running = start(state.root / "cloud", speed=speed)
    # A login of the real world in our own environment would lead our children past the rehearsal.
    for name in os.environ.keys() - clean(running).keys():
        os.environ.pop(name)
    return environment(running)

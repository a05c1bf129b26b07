"""What is seen on a machine, as values: how its preparation and its engine are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from backends.serving.startup_log import StartupProgress

PrepareState = Literal["absent", "running", "done", "failed"]
EngineState = Literal["absent", "running", "stopped", "died"]


@dataclass(frozen=True)
class Preparing:
    """How the preparation of a machine is.

    Attributes:
        state: `absent` (never begun), `running`, `done` or `failed`.
        step: Number of the step it is at, from 1; 0 where none has begun.
        steps: How many there are.
        title: What that step does.
        words: What a failed one said.
        cause: Why.
        fix: What mends it.
    """

    state: PrepareState = "absent"
    step: int = 0
    steps: int = 0
    title: str = ""
    words: str = ""
    cause: str = ""
    fix: str = ""


@dataclass(frozen=True)
class EngineSight:
    """How the engine on a machine is.

    Attributes:
        state: `absent` (never started since the boot), `running`, `stopped` (by us) or `died`.
        progress: What its log tells of its start.
        started_at: Unix seconds by the machine's clock; 0 where not known.
        pid: On the machine; 0 where none runs.
        vram_mib: GPU memory in use; 0 where not known.
        words: The last lines of one that died, or the kernel's words about it.
        cause: Why.
        fix: What mends it.
        restarted: Whether it ended because the machine restarted.
        unit: What systemd then says of the unit that serves after a boot (`queued`: its start is
            still to come); empty where none is.
    """

    state: EngineState = "absent"
    progress: StartupProgress = field(default_factory=StartupProgress)
    started_at: float = 0.0
    pid: int = 0
    vram_mib: float = 0.0
    words: str = ""
    cause: str = ""
    fix: str = ""
    restarted: bool = False
    unit: str = ""


@dataclass(frozen=True)
class HostSight:
    """What is seen on a machine that runs.

    Attributes:
        problem: Why it could not be looked at; empty if it could.
        preparing: Its preparation.
        engine: Its engine.
        facts: Further facts, for `detail`.
    """

    problem: str = ""
    preparing: Preparing = field(default_factory=Preparing)
    engine: EngineSight = field(default_factory=EngineSight)
    facts: Mapping[str, str | int | float | bool] = field(default_factory=dict)

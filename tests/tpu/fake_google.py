"""A Google whose zones behave as a test says, and a target that asks it; nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from backends.core.errors import DevopsError, NotFoundError, OutcomeUnknownError
from backends.core.state import StateDir
from backends.tpu.records import TpuNode, TpuRequest
from tests.tpu.made import request

Outcome = DevopsError | Sequence[str] | str


@dataclass
class Google:
    """Zones that behave as a test says: each is asked, and then looked at, step by step.

    Attributes:
        zones: For each zone what a create meets, or the states its request goes through; the last
            one stays.
        lost: Zones whose create is taken without an answer.
        refuses_delete: What a deletion meets, by zone.
        on_look: Called at each look.
    """

    zones: dict[str, Outcome]
    lost: set[str] = field(default_factory=set)
    refuses_delete: dict[str, tuple[DevopsError, str]] = field(default_factory=dict)
    on_look: Callable[[Google], None] | None = None
    alive: dict[str, TpuRequest] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    most_alive: int = 0

    def put(self, zone: str, state: str, *, digest: str = "abc") -> None:
        """A request that is there."""
        made = request(state, None)
        labels = dict(made.labels) | {"vllm-devops-spec": digest}
        self.alive[zone] = replace(made, zone=zone, name="g", labels=labels)
        self.most_alive = max(self.most_alive, len(self.alive))

    async def run(self, argv: Sequence[str], **more: object) -> str:
        """gcloud."""
        del more
        zone = next(word.removeprefix("--zone=") for word in argv if word.startswith("--zone="))
        verb = "create" if "create" in argv else "delete"
        self.commands.append(f"{verb} {zone}")
        assert "--force" not in argv
        if verb == "delete":
            if zone in self.refuses_delete:
                error, state = self.refuses_delete.pop(zone)
                self.put(zone, state)
                raise error
            self.alive.pop(zone, None)
            return ""
        outcome = self.zones[zone]
        if isinstance(outcome, DevopsError):
            raise outcome
        self.put(zone, outcome[0] if not isinstance(outcome, str) else outcome)
        if zone in self.lost:
            raise OutcomeUnknownError("gcloud did not finish within 25 s and was ended.")
        return ""

    async def request(self, zone: str, name: str) -> TpuRequest:
        """One look."""
        if self.on_look is not None:
            self.on_look(self)
        if zone not in self.alive:
            raise NotFoundError(f"no {name} in {zone}")
        outcome = self.zones.get(zone, "WAITING_FOR_RESOURCES")
        states = [outcome] if isinstance(outcome, str) else outcome
        if not isinstance(states, DevopsError):
            step = min(self.looks.get(zone, 0), len(states) - 1)
            self.looks[zone] = step + 1
            labels = self.alive[zone].labels
            self.alive[zone] = replace(
                request(states[step], None), zone=zone, name="g", labels=labels
            )
        return self.alive[zone]


class Job:
    """A worker's job that may be asked to stop."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stopping = False

    def progress(self, done: float, total: float | None, message: str) -> None:
        del done, total
        self.said.append(message)

    def should_stop(self) -> bool:
        return self.stopping


class Target:
    """What a search needs of the target."""

    target = "tpu-v6e"

    def __init__(self, google: Google, state: StateDir) -> None:
        self.google = self.api = google
        self.cloud = self
        self.gcloud = google
        self.rehearsal = True
        self.services = self
        self.state = state

    async def project(self) -> str:
        return "fake-proj"

    async def world(self) -> tuple[list[TpuRequest], list[TpuNode]]:
        return list(self.google.alive.values()), []

    def call(self, tool: str, name: str) -> str:
        return f"{tool}({name!r})"

    def at(self, name: str) -> str:
        return f"{self.target}/{name}"

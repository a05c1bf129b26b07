"""What can be made to go wrong: faults by request, by start of a revision, and by circumstance.

A fault is a JSON object. `{"name": "api-503", "path": "/services"}` switches on an entry of
`SCENARIOS`, with the fields given here in place of the entry's own. Without a name it is a request
fault of its own: `{"kind": "request", "method": "POST", "path": "services$", "status": 503}`.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.rehearsal.cloud.catalogue import (
    CPU_QUOTA,
    GPUS,
    MEMORY_QUOTA,
    NEW_PROJECT_CPU,
    NEW_PROJECT_MEMORY,
    REGIONS,
)
from backends.rehearsal.cloud.scenarios import SCENARIOS
from backends.rehearsal.cloud.web import Json, Request

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World

Undo = Callable[[], None]
Action = Callable[[Json], Undo | None]

ACTIONS = ("answer", "cut", "lose-answer", "delay")


class FaultError(Exception):
    """A fault that cannot be switched on; the text says why."""


@dataclass
class RequestFault:
    """What happens to requests that match.

    Args:
        id: Its id.
        name: The scenario it came from, if any.
        action: `answer` (with status and body, without doing anything), `cut` (break the
            connection before anything is done), `lose-answer` (do it, then break the connection),
            `delay` (wait, then go on as usual).
        method: HTTP method; empty for any.
        host: Pattern found in the host.
        path: Pattern found in the decoded path.
        skip: Matching requests let through first.
        times: Requests it meets; -1 for all.
        operation: Pattern found in the operation of a request to AWS.
        status: Status of the answer.
        code: The answer is AWS's error of this code, `body` its sentence.
        body: Body of the answer, JSON or text.
        headers: Headers of the answer.
        delay_s: Seconds to wait first, in real time.
        met: Requests it has met.
    """

    id: str
    name: str = ""
    action: str = "answer"
    method: str = ""
    host: str = ""
    path: str = ""
    skip: int = 0
    times: int = 1
    operation: str = ""
    status: int = 503
    code: str = ""
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    met: int = 0

    def takes(self, request: Request) -> bool:
        """Whether this fault meets the request; counts it."""
        if self.times == 0 or (self.method and self.method != request.method):
            return False
        if not re.search(self.host, request.host) or not re.search(self.path, request.path):
            return False
        if not re.search(self.operation, request.operation):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times > 0:
            self.times -= 1
        self.met += 1
        return True


@dataclass
class StartTrouble:
    """How starts of containers go wrong.

    Args:
        id: Its id.
        name: The scenario it came from.
        service: Services it meets, a file-name pattern.
        times: Starts it meets; -1 for all.
        after: Pattern of the log line after which it happens; empty: before the first.
        lines: What the container then logs.
        exit_code: What it then exits with; None: it goes on (or hangs, see `hang`).
        killed_by: Signal number it dies of instead.
        hang: It stops there and never becomes ready.
        fail: What the simulator plays by itself (`oom`, `kv`, `bad-model`, `stall-startup`).
        slow: Its start takes this many times longer.
        system: What the platform logs about it.
    """

    id: str
    name: str = ""
    service: str = "*"
    times: int = 1
    after: str = ""
    lines: list[str] = field(default_factory=list)
    exit_code: int | None = None
    killed_by: int | None = None
    hang: bool = False
    fail: str = ""
    slow: float = 1.0
    system: str = ""


@dataclass
class _Active:
    id: str
    spec: Json
    request: RequestFault | None = None
    start: StartTrouble | None = None
    undo: Undo | None = None

    def shown(self) -> Json:
        shown: Json = {"id": self.id, **self.spec}
        if self.request is not None:
            shown |= {"met": self.request.met, "left": self.request.times}
        if self.start is not None:
            shown |= {"left": self.start.times}
        return shown


class FaultBook:
    """The faults that are switched on.

    Args:
        world: The project, whose circumstances some faults change.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._active: dict[str, _Active] = {}
        self._number = 0
        self._actions: dict[str, Action] = {
            "quota": self._quota,
            "quota-shown": self._quota_shown,
            "new-project": self._new_project,
            "deny": self._deny,
            "disable-api": self._disable_api,
            "login": self._login,
            "expire-tokens": self._expire_tokens,
            "token-lifetime": self._token_lifetime,
            "no-capacity": self._no_capacity,
            "no-invoker": self._no_invoker,
        }

    def register(self, kind: str, action: Action) -> None:
        """Add a kind of fault that another part of the cloud carries out."""
        self._actions[kind] = action

    def add(self, spec: Json) -> list[Json]:
        """Switch a fault on.

        Args:
            spec: A scenario by `name`, or a fault by `kind`; other fields as the kind has them.

        Returns:
            What is active now because of it.

        Raises:
            FaultError: Unknown name, kind or field.
        """
        name = str(spec.get("name", ""))
        own = {key: value for key, value in spec.items() if key != "name"}
        if not name:
            return [self._add_one("", own)]
        scenario = SCENARIOS.get(name)
        if scenario is None:
            raise FaultError(f"no scenario {name!r}; known: {', '.join(SCENARIOS)}")
        if not scenario.effects:
            raise FaultError(f"{name!r} is not switched on: {scenario.natural}")
        return [self._add_one(name, effect | own) for effect in scenario.effects]

    def remove(self, fault_id: str) -> bool:
        """Switch one off; False where there is none of that id."""
        active = self._active.pop(fault_id, None)
        if active is None:
            return False
        if active.undo is not None:
            active.undo()
        return True

    def clear(self) -> None:
        """Switch all off, last first."""
        for fault_id in reversed(list(self._active)):
            self.remove(fault_id)

    def shown(self) -> list[Json]:
        """All that are on."""
        return [active.shown() for active in self._active.values()]

    def meet(self, request: Request) -> RequestFault | None:
        """The fault that meets this request, if one does."""
        for active in self._active.values():
            if active.request is not None and active.request.takes(request):
                return active.request
        return None

    def trouble_for(self, service: str) -> list[StartTrouble]:
        """The troubles a start of this service's container runs into; counts them."""
        met: list[StartTrouble] = []
        for active in self._active.values():
            trouble = active.start
            if (
                trouble is not None
                and trouble.times
                and fnmatch.fnmatchcase(service, trouble.service)
            ):
                trouble.times -= trouble.times > 0
                met.append(trouble)
        return met

    # ------------------------------------------------------------------------- inside

    def _add_one(self, name: str, spec: Json) -> Json:
        kind = str(spec.get("kind", "request"))
        values = {key: value for key, value in spec.items() if key not in {"kind", "id"}}
        self._number += 1
        fault_id = str(spec.get("id") or f"{name or kind}-{self._number}")
        active = _Active(fault_id, ({"name": name} if name else {}) | spec)
        try:
            if kind == "request":
                active.request = RequestFault(fault_id, name, **values)
                if active.request.action not in ACTIONS:
                    raise FaultError(f"action must be one of {', '.join(ACTIONS)}")
            elif kind == "start":
                active.start = StartTrouble(fault_id, name, **values)
            elif kind in self._actions:
                active.undo = self._actions[kind](values)
            else:
                raise FaultError(f"no kind {kind!r}; known: request, start, {self.kinds()}")
        except TypeError as error:
            raise FaultError(str(error)) from error
        except KeyError as error:
            raise FaultError(f"{kind} needs {error}") from error
        self._active[fault_id] = active
        return active.shown()

    def kinds(self) -> str:
        """Kinds besides `request` and `start`."""
        return ", ".join(sorted(self._actions))

    def _quota(self, values: Json) -> Undo:
        before: list[tuple[str, str, int | None]] = []
        wanted = values["quota"]
        names = [
            name
            for name in [*self._world.quotas]
            if name in ([wanted] if isinstance(wanted, str) else wanted)
        ]
        if not names:
            raise FaultError(f"no quota {wanted!r}; known: {', '.join(self._world.quotas)}")
        for name in names:
            limits = self._world.quotas[name]
            for region in self._places(values, limits):
                before.append((name, region, limits.get(region)))
                limits[region] = int(values["value"])

        def undo() -> None:
            for name, region, value in before:
                if value is None:
                    self._world.quotas[name].pop(region, None)
                else:
                    self._world.quotas[name][region] = value

        return undo

    @staticmethod
    def _places(values: Json, limits: Mapping[str, int]) -> list[str]:
        """Where a limit changes: the place named, or every zone or region that has it."""
        if values.get("region", "*") != "*":
            return [str(values["region"])]
        zonal = any(place.count("-") > 1 for place in limits)
        return [*limits] if zonal else [*REGIONS]

    def _quota_shown(self, values: Json) -> Undo:
        quota = str(values["quota"])
        self._world.knobs.quotas_shown[quota] = int(values["value"])

        def undo() -> None:
            self._world.knobs.quotas_shown.pop(quota, None)

        return undo

    def _new_project(self, values: Json) -> Undo:
        del values
        undos = [
            self._quota({"quota": CPU_QUOTA, "value": NEW_PROJECT_CPU}),
            self._quota({"quota": MEMORY_QUOTA, "value": NEW_PROJECT_MEMORY}),
            self._quota({"quota": [gpu.quota for gpu in GPUS.values()], "value": 0}),
        ]

        def undo() -> None:
            for step in reversed(undos):
                step()

        return undo

    def _deny(self, values: Json) -> Undo:
        permission = str(values["permission"])
        self._world.knobs.denied.append(permission)
        return lambda: self._world.knobs.denied.remove(permission)

    def _disable_api(self, values: Json) -> Undo | None:
        service = str(values["service"])
        if service not in self._world.enabled:
            return None
        self._world.enabled.remove(service)

        def undo() -> None:
            if service not in self._world.enabled:
                self._world.enabled.append(service)
                self._world.enabled.sort()

        return undo

    def _login(self, values: Json) -> Undo:
        state = str(values["value"])
        if state not in {"expired", "reauth"}:
            raise FaultError("value must be expired or reauth")
        knobs = self._world.knobs
        before = (knobs.login, knobs.tokens_valid_from)
        knobs.login, knobs.tokens_valid_from = state, time.time()

        def undo() -> None:
            knobs.login, knobs.tokens_valid_from = before

        return undo

    def _expire_tokens(self, values: Json) -> None:
        del values
        self._world.knobs.tokens_valid_from = time.time()

    def _token_lifetime(self, values: Json) -> Undo:
        before = self._world.knobs.token_lifetime_s
        self._world.knobs.token_lifetime_s = float(values["seconds"])

        def undo() -> None:
            self._world.knobs.token_lifetime_s = before

        return undo

    def _no_capacity(self, values: Json) -> Undo:
        region = str(values.get("region", "*"))
        self._world.knobs.no_capacity.append(region)
        return lambda: self._world.knobs.no_capacity.remove(region)

    def _no_invoker(self, values: Json) -> Undo:
        del values
        policy = self._world.policies[f"projects/{self._world.project}"]
        member = f"user:{self._world.account}"
        before = [dict(binding, members=list(binding["members"])) for binding in policy["bindings"]]
        for binding in policy["bindings"]:
            binding["members"] = [item for item in binding["members"] if item != member]
        policy["bindings"].append({"role": "roles/run.developer", "members": [member]})

        def undo() -> None:
            policy["bindings"] = before

        return undo

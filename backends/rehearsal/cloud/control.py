"""The control API, on loopback only: faults, the request log, and what the cloud looks like inside.

| request | what it does |
|---|---|
| `GET /rehearsal` | who this is: pid, project, port, speed |
| `GET /rehearsal/scenarios` | the faults that have a name |
| `GET /rehearsal/faults` | the faults that are on |
| `POST /rehearsal/faults` | switch one on (a scenario by `name`, or by `kind`) |
| `DELETE /rehearsal/faults[/ID]` | switch one or all off |
| `GET /rehearsal/requests?since=N&tag=T` | what was asked |
| `DELETE /rehearsal/requests` | forget it |
| `POST /rehearsal/tag` | `{"tag": T}`: name the requests that follow |
| `GET /rehearsal/world` | the whole state |
| `GET /rehearsal/instances` | instances of Cloud Run and SageMaker: revision, phase, process |
| `POST /rehearsal/logs` | write log entries |
| `POST /rehearsal/settings` | `{"speed": F, "idle_s": F, "quotas": {...}, "options": {...}}` |
| `POST /rehearsal/reset` | a new project: nothing deployed, no faults |
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.faults import FaultError
from backends.rehearsal.cloud.scenarios import SCENARIOS
from backends.rehearsal.cloud.web import ApiError, Json, Request, Response
from backends.rehearsal.cloud.world import World

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.assembly import AwsSide
    from backends.rehearsal.cloud.cloud import Cloud

_PREFIX = "/rehearsal"


class Control:
    """Answers the control API.

    Args:
        cloud: The parts of the cloud.
        aws: AWS's side of it.
    """

    def __init__(self, cloud: Cloud, aws: AwsSide) -> None:
        self._cloud = cloud
        self._aws = aws
        self._methods: dict[tuple[str, str], Callable[[Request], Json]] = {
            ("GET", ""): lambda _: self._about(),
            ("GET", "scenarios"): lambda _: {
                name: asdict(scenario) for name, scenario in SCENARIOS.items()
            },
            ("GET", "faults"): lambda _: {"faults": cloud.faults.shown()},
            ("POST", "faults"): lambda request: {"faults": cloud.faults.add(request.json())},
            ("DELETE", "faults"): self._remove_faults,
            ("GET", "requests"): self._requests,
            ("DELETE", "requests"): self._forget_requests,
            ("POST", "tag"): self._tag,
            ("GET", "world"): lambda _: self._world(),
            ("GET", "instances"): lambda _: {"instances": [*cloud.fleet.shown(), *aws.shown()]},
            ("POST", "logs"): self._write_logs,
            ("POST", "settings"): self._set,
        }

    async def answer(self, request: Request) -> Response:
        """Answer one request; wrong ones get 400 or 404 and say why."""
        path = request.path.rstrip("/")
        first = path.removeprefix(_PREFIX).strip("/").partition("/")[0]
        try:
            if (request.method, first) == ("POST", "reset"):
                await self._reset(request.json())
                return Response(body=self._about())
            method = self._methods.get((request.method, first))
            if method is None or not path.startswith(_PREFIX):
                raise ApiError(
                    404, f"{request.method} {request.path} is not part of the control API."
                )
            return Response(body=method(request))
        except (FaultError, KeyError, TypeError, ValueError) as error:
            return ApiError(400, f"{type(error).__name__}: {error}").response()
        except ApiError as error:
            return error.response()

    def _remove_faults(self, request: Request) -> Json:
        fault_id = request.path.rstrip("/").removeprefix(f"{_PREFIX}/faults").strip("/")
        if not fault_id:
            self._cloud.faults.clear()
        elif not self._cloud.faults.remove(fault_id):
            raise ApiError(404, f"No fault {fault_id!r} is on.")
        return {}

    def _requests(self, request: Request) -> Json:
        since = int(request.value("since", "0"))
        return {"requests": self._cloud.requests.entries(since=since, tag=request.value("tag"))}

    def _forget_requests(self, request: Request) -> Json:
        del request
        self._cloud.requests.clear()
        return {}

    def _tag(self, request: Request) -> Json:
        self._cloud.requests.tag = str(request.json()["tag"])
        return {}

    def _world(self) -> Json:
        world = self._cloud.world
        shown = {item.name: getattr(world, item.name) for item in fields(world)}
        return shown | {"knobs": vars(world.knobs)}

    def _write_logs(self, request: Request) -> Json:
        for entry in request.json()["entries"]:
            self._cloud.logs.add(entry)
        return {}

    def _about(self) -> Json:
        cloud = self._cloud
        return {
            "rehearsal": True,
            "pid": os.getpid(),
            "project": cloud.world.project,
            "project_number": cloud.world.number,
            "account": cloud.world.account,
            "speed": cloud.speed,
            "idle_s": cloud.idle_s,
            "folder": str(cloud.folder),
        }

    def _set(self, request: Request) -> Json:
        values = request.json()
        cloud = self._cloud
        unknown = set(values) - {"speed", "idle_s", "quotas", "options"}
        if unknown:
            raise ValueError(f"unknown setting {', '.join(sorted(unknown))}")
        if "speed" in values:
            if float(values["speed"]) <= 0:
                raise ValueError("speed must be above 0")
            cloud.speed = cloud.hosts.speed = float(values["speed"])
        if "idle_s" in values:
            cloud.idle_s = float(values["idle_s"])
        for quota, limits in values.get("quotas", {}).items():
            cloud.world.quotas.setdefault(quota, {}).update(
                {str(region): int(value) for region, value in limits.items()}
            )
        cloud.world.options |= values.get("options", {})
        cloud.world.dirty = True
        return self._about()

    async def _reset(self, values: Json) -> None:
        cloud = self._cloud
        cloud.faults.clear()
        await cloud.fleet.stop_all()
        await self._aws.clear()
        fresh = World.fresh(empty=bool(values.get("empty")))
        for item in fields(World):
            setattr(cloud.world, item.name, getattr(fresh, item.name))
        cloud.logs.clear()
        cloud.requests.clear()
        for renew in cloud.renew:
            renew(bool(values.get("empty")))
        cloud.world.dirty = True

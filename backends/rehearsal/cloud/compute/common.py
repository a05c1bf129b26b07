"""What every part of the played Compute Engine stands on: names, refusals, operations."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.web import ApiError, Json, Request
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

URL = "https://www.googleapis.com/compute/v1/"
VERSION = r"/compute/(?:v1|beta|alpha)/projects/([^/]+)"

# Google answers `wait` after two minutes at the latest, done or not.
_WAIT_S = 120.0


class Compute:
    """Names, refusals and operations of one project.

    Args:
        cloud: The parts of the cloud.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.world = cloud.world
        self._changed = asyncio.Condition()

    def check(self, project: str) -> None:
        """Refuse another project."""
        if not self.world.is_ours(project):
            raise self.not_found("")

    def url(self, path: str) -> str:
        """The full name of a resource of the project."""
        return f"{URL}projects/{self.world.project}/{path}".rstrip("/")

    def name(self, path: str) -> str:
        """A resource as errors name it."""
        return f"projects/{self.world.project}/{path}".rstrip("/")

    def not_found(self, path: str) -> ApiError:
        """The error for a resource that does not exist."""
        return ApiError(404, f"The resource '{self.name(path)}' was not found", reason="notFound")

    def exists(self, path: str) -> ApiError:
        """The error for a resource that exists already."""
        return ApiError(
            409, f"The resource '{self.name(path)}' already exists", reason="alreadyExists"
        )

    # ------------------------------------------------------------------------- operations

    def begin(self, kind: str, target: str, *, user: str = "") -> Json:
        """An operation on a resource that is going on; `finish` ends it."""
        name = f"operation-{self.world.next()}"
        place = re.match(r"(zones|regions)/([^/]+)", target)
        scope = place.group(0) if place else "global"
        operation: Json = {
            "kind": "compute#operation",
            "id": str(10**18 + self.world.counter),
            "name": name,
            "operationType": kind,
            "status": "RUNNING",
            "progress": 0,
            "targetLink": self.url(target),
            "insertTime": now(),
            "startTime": now(),
            "user": user or self.world.account,
            "selfLink": self.url(f"{scope}/operations/{name}"),
        }
        if place:
            operation[place.group(1)[:-1]] = self.url(scope)
        self.world.operations[name] = operation
        self.world.dirty = True
        return operation

    async def finish(self, operation: Json, error: Json | None = None) -> None:
        """End an operation, well or with an error; who waits for it is told."""
        operation |= {"status": "DONE", "progress": 100, "endTime": now()} | (error or {})
        self.world.dirty = True
        async with self._changed:
            self._changed.notify_all()

    def at_once(self, kind: str, target: str, error: Json | None = None) -> Json:
        """An operation that is done when it is answered."""
        operation = self.begin(kind, target)
        operation |= {"status": "DONE", "progress": 100, "endTime": now()} | (error or {})
        return operation

    def operation(self, request: Request, project: str, name: str) -> Json:
        """An operation as it is now."""
        del request
        self.check(project)
        found = self.world.operations.get(name)
        if found is None:
            raise self.not_found(f"global/operations/{name}")
        return found

    async def wait(self, request: Request, project: str, name: str) -> Json:
        """An operation once it is done, or after two minutes of Google's time."""
        found = self.operation(request, project, name)
        try:
            async with asyncio.timeout(max(1.0, self.cloud.after(_WAIT_S))), self._changed:
                await self._changed.wait_for(lambda: found["status"] == "DONE")
        except TimeoutError:
            pass
        return found

    def operations(self, request: Request, project: str, zone: str = "") -> Json:
        """Operations, newest first; of a filter only `operationType` and `targetLink` count."""
        self.check(project)
        wanted = request.value("filter")
        kind = re.search(r"operationType\s*(?:=|eq|:)\s*\"?([\w.]+)", wanted)
        target = re.search(r"targetLink\s*(?:=|eq|:)\s*\"?([\w./:-]+)", wanted)
        found = [
            item
            for item in reversed(self.world.operations.values())
            if str(item.get("kind")) == "compute#operation"
            and (not zone or str(item.get("zone", "")).endswith(f"/{zone}"))
            and (kind is None or item["operationType"] == kind.group(1))
            and (target is None or str(item["targetLink"]).endswith(target.group(1)))
        ]
        limit = int(request.value("maxResults") or 500)
        return {"kind": "compute#operationList", "items": found[:limit]}


def failure(code: str, message: str, status: int = 503, words: str = "SERVICE UNAVAILABLE") -> Json:
    """The error part of an operation that failed."""
    return {
        "error": {"errors": [{"code": code, "message": message}]},
        "httpErrorStatusCode": status,
        "httpErrorMessage": words,
    }

"""Service Usage API: which APIs the project has enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.catalogue import DEFAULT_APIS, NEEDED_APIS
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.world import World

_KNOWN = {*DEFAULT_APIS, *NEEDED_APIS, "aiplatform.googleapis.com"}
_PACKAGE = "type.googleapis.com/google.api.serviceusage.v1."


def api(cloud: Cloud) -> Api:
    """The API."""
    routes = _ServiceUsage(cloud.world)
    made = Api("serviceusage.googleapis.com", "Service Usage API", always_on=True)
    path = r"/v1(?:beta1)?/projects/([^/]+)/services"
    add = made.add
    add("GET", path, routes.listed, "serviceusage.services.list")
    add("GET", path + ":batchGet", routes.batch_get, "serviceusage.services.list")
    add("POST", path + ":batchEnable", routes.batch_enable, "serviceusage.services.enable")
    add("GET", path + r"/([^/:]+)", routes.get, "serviceusage.services.get")
    add("POST", path + r"/([^/:]+):enable", routes.enable, "serviceusage.services.enable")
    add("POST", path + r"/([^/:]+):disable", routes.disable, "serviceusage.services.disable")
    add("GET", r"/v1(?:beta1)?/(operations/[^/]+)", routes.operation)
    return made


class _ServiceUsage:
    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, request: Request, project: str, service: str) -> Json:
        """One API and whether it is on."""
        del request
        self._world.check_project(project)
        return self._resource(service)

    def listed(self, request: Request, project: str) -> Json:
        """APIs, by state if asked."""
        self._world.check_project(project)
        wanted = request.value("filter")
        enabled = {*self._world.enabled}
        if "ENABLED" in wanted:
            names = enabled
        elif "DISABLED" in wanted:
            names = _KNOWN - enabled
        else:
            names = _KNOWN | enabled
        shown = [self._resource(name) for name in sorted(names)]
        return page(request, shown, "services", default=50)

    def batch_get(self, request: Request, project: str) -> Json:
        """Some APIs by name."""
        self._world.check_project(project)
        names = [name.rpartition("/")[2] for name in request.query.get("names", [])]
        return {"services": [self._resource(name) for name in names]}

    def enable(self, request: Request, project: str, service: str) -> Json:
        """Enable one API."""
        del request
        self._world.check_project(project)
        self._enable([service])
        return self._done("EnableServiceResponse", {"service": self._resource(service)})

    def batch_enable(self, request: Request, project: str) -> Json:
        """Enable some APIs."""
        self._world.check_project(project)
        names = [str(name) for name in request.json().get("serviceIds", [])]
        self._enable(names)
        services = [self._resource(name) for name in names]
        return self._done("BatchEnableServicesResponse", {"services": services})

    def disable(self, request: Request, project: str, service: str) -> Json:
        """Disable one API."""
        del request
        self._world.check_project(project)
        if service in self._world.enabled:
            self._world.enabled.remove(service)
        return self._done("DisableServiceResponse", {"service": self._resource(service)})

    def operation(self, request: Request, name: str) -> Json:
        """An operation, which is done."""
        del request
        found = self._world.operations.get(name)
        if found is None:
            raise ApiError(404, f"Operation {name} not found.")
        return found

    def _resource(self, service: str) -> Json:
        number = self._world.number
        return {
            "name": f"projects/{number}/services/{service}",
            "config": {"name": service, "title": service},
            "state": "ENABLED" if service in self._world.enabled else "DISABLED",
            "parent": f"projects/{number}",
        }

    def _enable(self, names: list[str]) -> None:
        for name in names:
            if not name.endswith(".googleapis.com"):
                raise ApiError(400, f"Not found or permission denied for service(s): {name}.")
            if name not in self._world.enabled:
                self._world.enabled.append(name)
        self._world.enabled.sort()

    def _done(self, kind: str, response: Json) -> Json:
        name = f"operations/acf.p2-{self._world.number}-{self._world.uid()}"
        operation = {
            "name": name,
            "done": True,
            "response": {"@type": _PACKAGE + kind, **response},
        }
        self._world.operations[name] = operation
        return operation

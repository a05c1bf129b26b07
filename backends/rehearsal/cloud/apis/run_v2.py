"""Cloud Run Admin API v2: what the Python client library uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.apis.run_v1 import HOSTS, TITLE
from backends.rehearsal.cloud.run.conditions import condition_of
from backends.rehearsal.cloud.run.names import Key
from backends.rehearsal.cloud.run.services import Services
from backends.rehearsal.cloud.run.v2_in import service_from_v2
from backends.rehearsal.cloud.run.v2_out import revision_to_v2, service_to_v2
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

_PARENT = r"/v2/projects/([^/]+)/locations/([^/]+)"
_TYPE = "type.googleapis.com/google.cloud.run.v2."


def api(cloud: Cloud, services: Services) -> Api:
    """The API. Its policy methods are those of v1, which share the path."""
    routes = _V2(cloud, services)
    made = Api("run.googleapis.com", TITLE, hosts=HOSTS)
    add = made.add
    add("GET", _PARENT + "/services", routes.listed, "run.services.list")
    add("POST", _PARENT + "/services", routes.create, "run.services.create")
    one = _PARENT + r"/services/([^/:]+)"
    add("GET", one, routes.get, "run.services.get")
    add("PATCH", one, routes.update, "run.services.update")
    add("DELETE", one, routes.delete, "run.services.delete")
    add("GET", one + "/revisions", routes.list_revisions, "run.revisions.list")
    add("GET", one + r"/revisions/([^/:]+)", routes.get_revision, "run.revisions.get")
    add("DELETE", one + r"/revisions/([^/:]+)", routes.delete_revision, "run.revisions.delete")
    operation = _PARENT + r"/operations/([^/:]+)"
    add("GET", operation, routes.operation, "run.operations.get")
    add("POST", operation + ":wait", routes.operation, "run.operations.get")
    return made


class _V2:
    def __init__(self, cloud: Cloud, services: Services) -> None:
        self._world = cloud.world
        self._services = services

    def listed(self, request: Request, project: str, region: str) -> Json:
        """Services of a region; `-` for all."""
        self._world.check_project(project)
        found = [self._service(service) for service in self._services.listed(region)]
        return page(request, found, "services")

    def get(self, request: Request, project: str, region: str, name: str) -> Json:
        """One service."""
        del request
        self._world.check_project(project)
        return self._service(self._services.find(Key(region, name)))

    def create(self, request: Request, project: str, region: str) -> Json:
        """A new service; answers with an operation."""
        self._world.check_project(project)
        name = request.value("serviceId")
        body = service_from_v2(request.json(), name, None)
        dry_run = request.flag("validateOnly")
        made = self._services.create(region, body, request.account, dry_run=dry_run)
        return self._began(Key(region, name), made, dry_run=dry_run)

    def update(self, request: Request, project: str, region: str, name: str) -> Json:
        """Change a service; of the fields in `updateMask` only, if there is one."""
        self._world.check_project(project)
        key = Key(region, name)
        old = self._services.find(key)
        sent = request.json()
        mask = [field for field in request.value("updateMask").split(",") if field]
        if mask:
            merged = self._service(old)
            for field in mask:
                _take(sent, merged, [_camel(part) for part in field.split(".")])
            sent = merged
        # A template without a name of its own makes a revision if it differs.
        template = sent.get("template") or {}
        if template.get("revision") == old["spec"]["template"]["metadata"].get("name"):
            template.pop("revision", None)
        body = service_from_v2(sent, name, old)
        dry_run = request.flag("validateOnly")
        made = self._services.replace(key, body, request.account, dry_run=dry_run)
        return self._began(key, made, dry_run=dry_run)

    def delete(self, request: Request, project: str, region: str, name: str) -> Json:
        """Delete a service; answers with an operation."""
        self._world.check_project(project)
        key = Key(region, name)
        return self._began(key, self._services.delete(key, request.account), deleted=True)

    def list_revisions(self, request: Request, project: str, region: str, name: str) -> Json:
        """Revisions of a service (`-`: of all), newest first."""
        self._world.check_project(project)
        found = [
            revision_to_v2(item, self._world.project, region)
            for item in self._services.revisions(region, "" if name == "-" else name)
        ]
        return page(request, found, "revisions")

    def get_revision(
        self, request: Request, project: str, region: str, name: str, revision: str
    ) -> Json:
        """One revision."""
        del request, name
        self._world.check_project(project)
        found = self._services.find_revision(Key(region, revision))
        return revision_to_v2(found, self._world.project, region)

    def delete_revision(
        self, request: Request, project: str, region: str, name: str, revision: str
    ) -> Json:
        """Delete a revision; answers with an operation that is done."""
        shown = self.get_revision(request, project, region, name, revision)
        self._services.delete_revision(Key(region, revision))
        return {
            "name": self._operation_name(region),
            "done": True,
            "response": {"@type": _TYPE + "Revision", **shown},
        }

    def operation(self, request: Request, project: str, region: str, operation: str) -> Json:
        """How far an operation is: as far as its service."""
        del request
        self._world.check_project(project)
        name = f"projects/{self._world.project}/locations/{region}/operations/{operation}"
        known = self._world.operations.get(name)
        if known is None:
            raise ApiError(404, f"Resource '{name}' was not found")
        answer: Json = {"name": name, "metadata": known["metadata"]}
        service = self._world.services.get(known["service"])
        if known["deleted"]:
            if service is None or service["metadata"]["uid"] != known["uid"]:
                answer |= {"done": True, "response": known["metadata"]}
            return answer
        if service is None:
            error = {"code": 5, "message": "The service was deleted meanwhile."}
            return answer | {"done": True, "error": error}
        shown = {"@type": _TYPE + "Service", **self._service(service)}
        ready = condition_of(service)
        if service["metadata"]["generation"] > known["generation"]:
            error = {"code": 10, "message": "The service was changed meanwhile."}
            return answer | {"done": True, "error": error}
        if ready.get("status") == "True":
            return answer | {"done": True, "metadata": shown, "response": shown}
        if ready.get("status") == "False":
            error = {"code": 9, "message": ready.get("message", "")}
            return answer | {"done": True, "metadata": shown, "error": error}
        return answer | {"metadata": shown}

    # ------------------------------------------------------------------------- inside

    def _service(self, service: Json) -> Json:
        region = service["metadata"]["labels"]["cloud.googleapis.com/location"]
        ready = condition_of(service)
        return service_to_v2(
            service,
            self._world.project,
            region,
            reconciling=ready.get("status") == "Unknown"
            or "deletionTimestamp" in service["metadata"],
        )

    def _operation_name(self, region: str) -> str:
        return f"projects/{self._world.project}/locations/{region}/operations/{self._world.uid()}"

    def _began(
        self, key: Key, service: Json, *, dry_run: bool = False, deleted: bool = False
    ) -> Json:
        name = self._operation_name(key.region)
        if dry_run:
            return {"name": name, "done": True, "response": {"@type": _TYPE + "Service"}}
        shown = {"@type": _TYPE + "Service", **self._service(service)}
        self._world.operations[name] = {
            "metadata": shown,
            "service": str(key),
            "uid": service["metadata"]["uid"],
            "generation": service["metadata"]["generation"],
            "deleted": deleted,
        }
        return {"name": name, "metadata": shown}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _take(source: Json, target: Json, path: list[str]) -> None:
    """Copy one field of a mask; a field that is not sent is cleared."""
    for part in path[:-1]:
        source = source.get(part) or {}
        target = target.setdefault(part, {})
    if path[-1] in source:
        target[path[-1]] = source[path[-1]]
    else:
        target.pop(path[-1], None)

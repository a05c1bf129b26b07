"""Cloud Run Admin API v1, the Knative one: what gcloud uses."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.catalogue import REGIONS
from backends.rehearsal.cloud.policies import policy_routes
from backends.rehearsal.cloud.run.conditions import condition_of
from backends.rehearsal.cloud.run.names import Key
from backends.rehearsal.cloud.run.services import Services
from backends.rehearsal.cloud.run.templates import API, OPERATION
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

HOSTS = r"(?:[a-z0-9-]+-)?run\.googleapis\.com"
TITLE = "Cloud Run Admin API"
_SERVICE_TYPE = "type.googleapis.com/google.cloud.run.v1.Service"
_LONGEST_WAIT_S = 30.0
_LOOK_EVERY_S = 0.02
_NAMESPACE = r"/apis/serving\.knative\.dev/v1/namespaces/([^/]+)"
_TERM = re.compile(r"\s*([^\s=!,()]+)\s*(?:=|==|in)\s*\(?\s*([^()]*?)\s*\)?\s*$")


def api(cloud: Cloud, services: Services) -> Api:
    """The API."""
    routes = _V1(cloud, services)
    made = Api("run.googleapis.com", TITLE, hosts=HOSTS)
    add = made.add
    add("GET", r"/v1/projects/([^/]+)/locations", routes.locations, "run.locations.list")
    add("GET", _NAMESPACE + "/services", routes.listed, "run.services.list")
    add("POST", _NAMESPACE + "/services", routes.create, "run.services.create")
    add("GET", _NAMESPACE + r"/services/([^/]+)", routes.get, "run.services.get")
    add("PUT", _NAMESPACE + r"/services/([^/]+)", routes.replace, "run.services.update")
    add("DELETE", _NAMESPACE + r"/services/([^/]+)", routes.delete, "run.services.delete")
    add("GET", _NAMESPACE + "/revisions", routes.list_revisions, "run.revisions.list")
    add("GET", _NAMESPACE + r"/revisions/([^/]+)", routes.get_revision, "run.revisions.get")
    add(
        "DELETE",
        _NAMESPACE + r"/revisions/([^/]+)",
        routes.delete_revision,
        "run.revisions.delete",
    )
    add(
        "GET",
        r"/v1/projects/([^/]+)/locations/([^/]+)/services",
        routes.list_location,
        "run.services.list",
    )
    operation = r"/v1/projects/([^/]+)/locations/([^/]+)/operations/([^/:]+)"
    add("GET", operation, routes.operation, "run.operations.get")
    add("POST", operation + ":wait", routes.wait, "run.operations.get")
    service = r"/v[12]/(projects/[^/]+/locations/[^/]+/services/[^/:]+)"
    get, put, test = policy_routes(cloud.world, routes.check)
    add("GET", service + ":getIamPolicy", get, "run.services.getIamPolicy")
    add("POST", service + ":setIamPolicy", put, "run.services.setIamPolicy")
    add("POST", service + ":testIamPermissions", test)
    return made


def region_of(request: Request) -> str:
    """The region a request's host names; empty for the global host."""
    return request.host.removesuffix("run.googleapis.com").rstrip("-")


def selects(selector: str, labels: dict[str, str]) -> bool:
    """Whether labels match a label selector (`a = b`, `a in (b, c)`, joined by commas)."""
    for term in re.split(r",(?![^(]*\))", selector):
        if not term.strip():
            continue
        match = _TERM.match(term)
        if match is None:
            raise ApiError(400, f"Invalid label selector: {term.strip()}")
        wanted = [value.strip() for value in match.group(2).split(",")]
        if labels.get(match.group(1), "") not in wanted:
            return False
    return True


class _V1:
    def __init__(self, cloud: Cloud, services: Services) -> None:
        self._world = cloud.world
        self._services = services

    def check(self, resource: str) -> None:
        """Raise where a service of that resource name does not exist."""
        parts = resource.split("/")
        self._world.check_project(parts[1])
        self._services.find(Key(parts[3], parts[5]))

    def locations(self, request: Request, project: str) -> Json:
        """Regions."""
        del request
        self._world.check_project(project)
        return {
            "locations": [
                {
                    "name": f"projects/{project}/locations/{region}",
                    "locationId": region,
                    "displayName": region,
                    "labels": {"cloud.googleapis.com/region": region},
                }
                for region in REGIONS
            ]
        }

    def listed(self, request: Request, project: str) -> Json:
        """Services of the host's region, or of all."""
        self._world.check_project(project)
        return self._listed(request, "Service", self._services.listed(region_of(request) or "-"))

    def list_location(self, request: Request, project: str, location: str) -> Json:
        """Services of a location; `-` for all."""
        self._world.check_project(project)
        return self._listed(request, "Service", self._services.listed(location))

    def get(self, request: Request, project: str, name: str) -> Json:
        """One service."""
        return self._services.find(self._key(request, project, name))

    def create(self, request: Request, project: str) -> Json:
        """A new service."""
        self._world.check_project(project)
        body = request.json()
        region = region_of(request)
        if region not in REGIONS:
            raise ApiError(404, f"Location {region or 'global'} is not found or access is denied.")
        self._check(body)
        return self._services.create(
            region, body, request.account, dry_run=request.value("dryRun") == "all"
        )

    def replace(self, request: Request, project: str, name: str) -> Json:
        """A changed service."""
        body = request.json()
        self._check(body)
        return self._services.replace(
            self._key(request, project, name),
            body,
            request.account,
            dry_run=request.value("dryRun") == "all",
        )

    def delete(self, request: Request, project: str, name: str) -> Json:
        """Delete a service."""
        self._services.delete(self._key(request, project, name), request.account)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def list_revisions(self, request: Request, project: str) -> Json:
        """Revisions, newest first."""
        self._world.check_project(project)
        return self._listed(
            request, "Revision", self._services.revisions(region_of(request) or "-")
        )

    def get_revision(self, request: Request, project: str, name: str) -> Json:
        """One revision."""
        self._world.check_project(project)
        return self._services.find_revision(self._anywhere(request, name, self._world.revisions))

    def delete_revision(self, request: Request, project: str, name: str) -> Json:
        """Delete a revision."""
        self._world.check_project(project)
        self._services.delete_revision(self._anywhere(request, name, self._world.revisions))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def operation(self, request: Request, project: str, region: str, name: str) -> Json:
        """The operation a service's annotation names: done when the service is ready or failed."""
        del request
        self._world.check_project(project)
        full = f"projects/{project}/locations/{region}/operations/{name}"
        service = next(
            (
                item
                for item in self._services.listed(region)
                if item["metadata"]["annotations"].get(OPERATION) == name
            ),
            None,
        )
        if service is None:
            raise ApiError(404, f"Resource '{full}' was not found")
        ready = condition_of(service)
        answer: Json = {"name": full}
        if ready.get("status") == "True":
            answer |= {"done": True, "response": {"@type": _SERVICE_TYPE, **service}}
        elif ready.get("status") == "False":
            answer |= {"done": True, "error": {"code": 9, "message": ready.get("message", "")}}
        return answer

    async def wait(self, request: Request, project: str, region: str, name: str) -> Json:
        """The operation once it is done, or after the time asked for (30 s at most)."""
        asked = str(request.json().get("timeout") or "30s").rstrip("s")
        deadline = time.monotonic() + min(float(asked), _LONGEST_WAIT_S)
        answer = self.operation(request, project, region, name)
        while not answer.get("done") and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_EVERY_S)
            answer = self.operation(request, project, region, name)
        return answer

    def _key(self, request: Request, project: str, name: str) -> Key:
        self._world.check_project(project)
        return self._anywhere(request, name, self._world.services)

    @staticmethod
    def _anywhere(request: Request, name: str, known: dict[str, Json]) -> Key:
        region = region_of(request)
        if not region:
            found = next((key for key in known if Key.parse(key).name == name), "")
            region = Key.parse(found).region if found else "us-central1"
        return Key(region, name)

    @staticmethod
    def _check(body: Json) -> None:
        if not (body.get("metadata") or {}).get("name") or not (body.get("spec") or {}).get(
            "template"
        ):
            raise ApiError(400, "The request has no metadata.name or no spec.template.")
        template = body["spec"]["template"]
        if not template.get("spec"):
            raise ApiError(400, "spec.template.spec must be set.")

    @staticmethod
    def _listed(request: Request, kind: str, items: list[Json]) -> Json:
        selector = request.value("labelSelector")
        items = [item for item in items if selects(selector, item["metadata"]["labels"])]
        size = int(request.value("limit") or 0) or len(items)
        token = request.value("continue")
        start = int(token) if token.isdecimal() else 0
        metadata: Json = {"resourceVersion": "AAZ0"}
        if start + size < len(items):
            metadata["continue"] = str(start + size)
        return {
            "apiVersion": API,
            "kind": f"{kind}List",
            "metadata": metadata,
            "items": items[start : start + size],
        }

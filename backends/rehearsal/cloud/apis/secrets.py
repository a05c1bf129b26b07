"""Secret Manager API: secrets, their versions, and who may read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.identity import roles_on
from backends.rehearsal.cloud.policies import policy_routes
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

_ID = re.compile(r"[a-zA-Z0-9_-]{1,255}")
# An editor of the project may not read secrets.
_READERS = {
    "roles/secretmanager.secretAccessor",
    "roles/secretmanager.admin",
    "roles/owner",
}


def api(cloud: Cloud) -> Api:
    """The API. Payloads are kept in the state directory only, never in the request log."""
    routes = _Secrets(cloud)
    made = Api("secretmanager.googleapis.com", "Secret Manager API")
    path = r"/v1/projects/([^/]+)/secrets"
    add = made.add
    add("POST", path, routes.create, "secretmanager.secrets.create")
    add("GET", path, routes.listed, "secretmanager.secrets.list")
    add("GET", path + r"/([^/:]+)", routes.get, "secretmanager.secrets.get")
    add("PATCH", path + r"/([^/:]+)", routes.patch, "secretmanager.secrets.update")
    add("DELETE", path + r"/([^/:]+)", routes.delete, "secretmanager.secrets.delete")
    add("POST", path + r"/([^/:]+):addVersion", routes.add, "secretmanager.versions.add")
    version = path + r"/([^/:]+)/versions"
    add("GET", version, routes.list_versions, "secretmanager.versions.list")
    add("GET", version + r"/([^/:]+)", routes.version, "secretmanager.versions.get")
    add("GET", version + r"/([^/:]+):access", routes.access, "secretmanager.versions.access")
    for verb, state in (("disable", "DISABLED"), ("enable", "ENABLED"), ("destroy", "DESTROYED")):
        add(
            "POST",
            version + rf"/([^/:]+):{verb}",
            routes.changer(state),
            f"secretmanager.versions.{verb}",
        )
    get, put, test = policy_routes(cloud.world, routes.check)
    one = r"/v1/(projects/[^/]+/secrets/[^/:]+)"
    add("GET", one + ":getIamPolicy", get, "secretmanager.secrets.getIamPolicy")
    add("POST", one + ":setIamPolicy", put, "secretmanager.secrets.setIamPolicy")
    add("POST", one + ":testIamPermissions", test)
    return made


class _Secrets:
    def __init__(self, cloud: Cloud) -> None:
        self._world = cloud.world

    def check(self, resource: str) -> None:
        """Raise where a secret of that resource name does not exist."""
        parts = resource.split("/")
        self._find(parts[1], parts[3])

    def create(self, request: Request, project: str) -> Json:
        """A secret without a version."""
        self._world.check_project(project)
        secret = request.value("secretId")
        if not _ID.fullmatch(secret):
            raise ApiError(
                400, f"The provided Secret ID [{secret}] does not match the expected format."
            )
        if secret in self._world.secrets:
            raise ApiError(
                409, f"Secret [projects/{self._world.number}/secrets/{secret}] already exists."
            )
        body = request.json()
        self._world.secrets[secret] = {
            "name": f"projects/{self._world.number}/secrets/{secret}",
            "createTime": now(),
            "etag": '"1"',
            "replication": body.get("replication") or {"automatic": {}},
            "labels": body.get("labels") or {},
            "versions": [],
        }
        return self._shown(secret)

    def listed(self, request: Request, project: str) -> Json:
        """All secrets."""
        self._world.check_project(project)
        names = sorted(self._world.secrets)
        answer = page(request, [self._shown(name) for name in names], "secrets", default=25000)
        return answer | {"totalSize": len(names)}

    def get(self, request: Request, project: str, secret: str) -> Json:
        """One secret."""
        del request
        self._find(project, secret)
        return self._shown(secret)

    def patch(self, request: Request, project: str, secret: str) -> Json:
        """Change labels."""
        found = self._find(project, secret)
        if "labels" in request.value("updateMask"):
            found["labels"] = request.json().get("labels") or {}
        return self._shown(secret)

    def delete(self, request: Request, project: str, secret: str) -> Json:
        """Delete a secret with all its versions."""
        del request
        self._find(project, secret)
        del self._world.secrets[secret]
        self._world.policies.pop(f"projects/{self._world.project}/secrets/{secret}", None)
        return {}

    def add(self, request: Request, project: str, secret: str) -> Json:
        """A new version."""
        found = self._find(project, secret)
        payload = request.json().get("payload") or {}
        if not payload.get("data"):
            raise ApiError(400, "Secret Payload cannot be empty.")
        found["versions"].append({"payload": payload, "createTime": now(), "state": "ENABLED"})
        # gcloud calls it corruption where its checksum is not confirmed.
        return self._version(secret, len(found["versions"])) | {
            "clientSpecifiedPayloadChecksum": "dataCrc32c" in payload
        }

    def list_versions(self, request: Request, project: str, secret: str) -> Json:
        """Versions, newest first."""
        found = self._find(project, secret)
        numbers = range(len(found["versions"]), 0, -1)
        shown = [self._version(secret, number) for number in numbers]
        return page(request, shown, "versions") | {"totalSize": len(shown)}

    def version(self, request: Request, project: str, secret: str, version: str) -> Json:
        """One version."""
        del request
        return self._version(secret, self._number(project, secret, version))

    def access(self, request: Request, project: str, secret: str, version: str) -> Json:
        """A version's payload; a service account needs the right on that very secret."""
        account = request.account
        if account.endswith(".gserviceaccount.com"):
            resource = f"projects/{self._world.project}/secrets/{secret}"
            if not roles_on(self._world, account, resource) & _READERS:
                raise ApiError(
                    403,
                    "Permission 'secretmanager.versions.access' denied for resource "
                    f"'{resource}/versions/{version}' (or it may not exist).",
                )
        number = self._number(project, secret, version)
        held = self._world.secrets[secret]["versions"][number - 1]
        name = f"projects/{self._world.number}/secrets/{secret}/versions/{number}"
        if held["state"] != "ENABLED":
            raise ApiError(
                400,
                f"Secret Version [{name}] is in {held['state']} state.",
                status="FAILED_PRECONDITION",
            )
        return {"name": name, "payload": held["payload"]}

    def changer(self, state: str) -> Callable[[Request, str, str, str], Json]:
        """A handler that puts a version into a state."""

        def change(request: Request, project: str, secret: str, version: str) -> Json:
            del request
            number = self._number(project, secret, version)
            held = self._world.secrets[secret]["versions"][number - 1]
            held["state"] = state
            if state == "DESTROYED":
                held["payload"] = {}
            return self._version(secret, number)

        return change

    def _find(self, project: str, secret: str) -> Json:
        self._world.check_project(project)
        found = self._world.secrets.get(secret)
        if found is None:
            raise ApiError(
                404, f"Secret [projects/{self._world.number}/secrets/{secret}] not found."
            )
        return found

    def _number(self, project: str, secret: str, version: str) -> int:
        versions = self._find(project, secret)["versions"]
        number = len(versions) if version == "latest" else int(version)
        if not versions or not 1 <= number <= len(versions):
            raise ApiError(
                404,
                f"Secret Version [projects/{self._world.number}/secrets/{secret}/versions/"
                f"{version}] not found.",
            )
        return number

    def _shown(self, secret: str) -> Json:
        return {
            name: value for name, value in self._world.secrets[secret].items() if name != "versions"
        }

    def _version(self, secret: str, number: int) -> Json:
        held = self._world.secrets[secret]["versions"][number - 1]
        return {
            "name": f"projects/{self._world.number}/secrets/{secret}/versions/{number}",
            "createTime": held["createTime"],
            "state": held["state"],
            "replicationStatus": {"automatic": {}},
            "etag": f'"{number}"',
        }

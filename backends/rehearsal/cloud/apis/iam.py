"""IAM API: service accounts and their policies; IAM Credentials: tokens in their name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.policies import policy_routes
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.world import World

_ID = re.compile(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])")


def api(cloud: Cloud) -> Api:
    """The IAM API."""
    world = cloud.world

    def create(request: Request, project: str) -> Json:
        world.check_project(project)
        body = request.json()
        short = str(body.get("accountId", ""))
        if not _ID.fullmatch(short):
            raise ApiError(
                400,
                f"Invalid service account ID: {short}. It must be 6 to 30 lower-case letters, "
                "digits and hyphens.",
            )
        email = f"{short}@{world.project}.iam.gserviceaccount.com"
        if email in world.service_accounts:
            raise ApiError(
                409,
                f"Service account {short} already exists within project projects/{world.project}.",
            )
        title = str((body.get("serviceAccount") or {}).get("displayName", ""))
        world.service_accounts[email] = world.make_service_account(email, title)
        return world.service_accounts[email]

    def get(request: Request, project: str, email: str) -> Json:
        del request
        world.check_project(project)
        return _find(world, email)

    def listed(request: Request, project: str) -> Json:
        world.check_project(project)
        return page(request, list(world.service_accounts.values()), "accounts", default=20)

    def delete(request: Request, project: str, email: str) -> Json:
        del request
        world.check_project(project)
        _find(world, email)
        del world.service_accounts[email]
        world.policies.pop(f"projects/{world.project}/serviceAccounts/{email}", None)
        return {}

    def exists(resource: str) -> None:
        _find(world, resource.rpartition("/")[2])

    made = Api("iam.googleapis.com", "Identity and Access Management (IAM) API")
    path = r"/v1/projects/([^/]+)/serviceAccounts"
    made.add("POST", path, create, "iam.serviceAccounts.create")
    made.add("GET", path, listed, "iam.serviceAccounts.list")
    made.add("GET", path + r"/([^/:]+)", get, "iam.serviceAccounts.get")
    made.add("DELETE", path + r"/([^/:]+)", delete, "iam.serviceAccounts.delete")
    read, write, test = policy_routes(world, exists)
    one = r"/v1/(projects/[^/]+/serviceAccounts/[^/:]+)"
    made.add("POST", one + ":getIamPolicy", read, "iam.serviceAccounts.getIamPolicy")
    made.add("POST", one + ":setIamPolicy", write, "iam.serviceAccounts.setIamPolicy")
    made.add("POST", one + ":testIamPermissions", test)
    return made


def credentials_api(cloud: Cloud) -> Api:
    """The IAM Service Account Credentials API."""
    world, identity = cloud.world, cloud.identity

    def id_token(request: Request, email: str) -> Json:
        _find(world, email)
        return {"token": identity.identity_token(email, str(request.json().get("audience", "")))}

    def access_token(request: Request, email: str) -> Json:
        del request
        _find(world, email)
        token, lifetime_s = identity.access_token(email)
        from datetime import UTC, datetime, timedelta

        until = datetime.now(UTC) + timedelta(seconds=lifetime_s)
        return {"accessToken": token, "expireTime": until.strftime("%Y-%m-%dT%H:%M:%SZ")}

    made = Api("iamcredentials.googleapis.com", "IAM Service Account Credentials API")
    one = r"/v1/projects/-/serviceAccounts/([^/:]+)"
    made.add("POST", one + ":generateIdToken", id_token, "iam.serviceAccounts.getOpenIdToken")
    made.add(
        "POST", one + ":generateAccessToken", access_token, "iam.serviceAccounts.getAccessToken"
    )
    return made


def _find(world: World, email: str) -> Json:
    found = world.service_accounts.get(email)
    if found is None:
        raise ApiError(404, f"Unknown service account: {email}")
    return found

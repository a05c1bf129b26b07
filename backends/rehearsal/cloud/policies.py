"""IAM policies of resources: get, set and test, the same for every API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.web import ApiError, Json, Request

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World

_URL_SAFE = str.maketrans("+/", "-_")

_KINDS = (
    "user:",
    "serviceAccount:",
    "group:",
    "domain:",
    "principal://",
    "principalSet://",
    "projectOwner:",
    "projectEditor:",
    "projectViewer:",
    "deleted:",
)


def get_policy(world: World, resource: str) -> Json:
    """A resource's policy; without bindings where none was set."""
    return world.policies.get(resource, {"version": 1, "etag": "ACAB"})


def set_policy(world: World, resource: str, wanted: Json) -> Json:
    """Replace a resource's policy.

    Raises:
        ApiError: It has changed since it was read, or names someone who does not exist.
    """
    current = get_policy(world, resource)
    etag = wanted.get("etag")
    # Clients that take it for bytes may send it back in the other base64 alphabet.
    if etag and str(etag).translate(_URL_SAFE) != str(current["etag"]).translate(_URL_SAFE):
        raise ApiError(
            409,
            "There were concurrent policy changes. Please retry the whole read-modify-write with "
            "exponential backoff.",
            status="ABORTED",
        )
    for binding in wanted.get("bindings", []):
        for member in binding.get("members", []):
            _check_member(world, str(member))
    made: Json = {
        "version": int(wanted.get("version") or 1),
        "etag": world.etag(),
        "bindings": [item for item in wanted.get("bindings", []) if item.get("members")],
    }
    world.policies[resource] = made
    return made


def test_permissions(world: World, request: Request) -> Json:
    """Which of the asked permissions the caller holds: all but the denied ones."""
    import fnmatch

    asked = [*request.json().get("permissions", []), *request.query.get("permissions", [])]
    held = [
        permission
        for permission in asked
        if not any(fnmatch.fnmatchcase(permission, pattern) for pattern in world.knobs.denied)
    ]
    return {"permissions": held} if held else {}


def policy_routes(
    world: World, exists: Callable[[str], None]
) -> tuple[
    Callable[[Request, str], Json],
    Callable[[Request, str], Json],
    Callable[[Request, str], Json],
]:
    """Handlers of `:getIamPolicy`, `:setIamPolicy` and `:testIamPermissions`.

    Args:
        world: The project.
        exists: Raises where a resource of that name does not exist.
    """

    def get(request: Request, resource: str) -> Json:
        del request
        exists(resource)
        return get_policy(world, resource)

    def put(request: Request, resource: str) -> Json:
        exists(resource)
        return set_policy(world, resource, request.json().get("policy", {}))

    def test(request: Request, resource: str) -> Json:
        exists(resource)
        return test_permissions(world, request)

    return get, put, test


def _check_member(world: World, member: str) -> None:
    if member in {"allUsers", "allAuthenticatedUsers"}:
        return
    if not member.startswith(_KINDS):
        raise ApiError(400, f"Invalid member: {member}. The member must be of a known type.")
    kind, _, email = member.partition(":")
    ours = email.endswith(f"@{world.project}.iam.gserviceaccount.com")
    if kind == "serviceAccount" and ours and email not in world.service_accounts:
        raise ApiError(400, f"Service account {email} does not exist.")

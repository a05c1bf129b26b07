"""Cloud Resource Manager (v1 and v3): the project and its IAM policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.policies import get_policy, set_policy, test_permissions
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

_CREATED = "2026-01-05T09:00:00.000Z"


def api(cloud: Cloud) -> Api:
    """The API."""
    world = cloud.world

    def check(project: str) -> None:
        if not world.is_ours(project):
            raise ApiError(403, "The caller does not have permission")

    def get_v1(request: Request, project: str) -> Json:
        del request
        check(project)
        return _v1()

    def get_v3(request: Request, project: str) -> Json:
        del request
        check(project)
        return {
            "name": f"projects/{world.number}",
            "projectId": world.project,
            "displayName": "vllm-devops rehearsal",
            "state": "ACTIVE",
            "createTime": _CREATED,
            "etag": 'W/"rehearsal"',
        }

    def _v1() -> Json:
        return {
            "projectNumber": world.number,
            "projectId": world.project,
            "lifecycleState": "ACTIVE",
            "name": "vllm-devops rehearsal",
            "createTime": _CREATED,
        }

    def listed(request: Request) -> Json:
        del request
        return {"projects": [_v1()]}

    def get_iam(request: Request, project: str) -> Json:
        del request
        check(project)
        return get_policy(world, f"projects/{world.project}")

    def set_iam(request: Request, project: str) -> Json:
        check(project)
        return set_policy(world, f"projects/{world.project}", request.json().get("policy", {}))

    def test(request: Request, project: str) -> Json:
        check(project)
        return test_permissions(world, request)

    made = Api("cloudresourcemanager.googleapis.com", "Cloud Resource Manager API", always_on=True)
    get = "resourcemanager.projects.get"
    made.add("GET", "/v1/projects", listed, get)
    made.add("GET", r"/v1/projects/([^/:]+)", get_v1, get)
    made.add("GET", r"/v3/projects/([^/:]+)", get_v3, get)
    policy = r"/v[13]/projects/([^/:]+)"
    made.add("POST", policy + ":getIamPolicy", get_iam, "resourcemanager.projects.getIamPolicy")
    made.add("POST", policy + ":setIamPolicy", set_iam, "resourcemanager.projects.setIamPolicy")
    made.add("POST", policy + ":testIamPermissions", test)
    return made

"""Cloud Logging API: entries are read by filter, and may be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.web import Api, ApiError, Json, Request

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud


def api(cloud: Cloud) -> Api:
    """The API."""
    world = cloud.world

    def listed(request: Request) -> Json:
        body = request.json()
        names = [
            *body.get("resourceNames", []),
            *(f"projects/{p}" for p in body.get("projectIds", [])),
        ]
        if not names:
            raise ApiError(400, "resource_names: must contain at least one resource")
        for name in names:
            world.check_project(str(name).split("/")[1])
        return cloud.logs.listed(body)

    def write(request: Request) -> Json:
        body = request.json()
        shared = {name: body[name] for name in ("logName", "resource", "labels") if body.get(name)}
        for entry in body.get("entries", []):
            cloud.logs.add(shared | entry)
        return {}

    def log_names(request: Request, project: str) -> Json:
        del request
        world.check_project(project)
        return {"logNames": sorted({str(entry["logName"]) for entry in world.log_entries})}

    made = Api("logging.googleapis.com", "Cloud Logging API")
    made.add("POST", "/v2/entries:list", listed, "logging.logEntries.list")
    made.add("POST", "/v2/entries:write", write, "logging.logEntries.create")
    made.add("GET", r"/v2/projects/([^/]+)/logs", log_names, "logging.logs.list")
    return made

"""Cloud Build: following a build to its end, and why one failed, by its own log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.core.errors import CloudError, DevopsError, OperationError
from backends.knowledge.cloudbuild_failures import signature_of

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.clouds.google import GoogleCloud

API = "https://cloudbuild.googleapis.com/v1/projects"
UNDER_WAY = frozenset({"PENDING", "QUEUED", "WORKING"})

_POLL_S = 3.0
_LOG_LINES = 12


async def follow_build(
    cloud: GoogleCloud, region: str, number: str, what: str, job: WorkerJob
) -> None:
    """Watch a build until it has succeeded.

    Args:
        cloud: The project.
        region: Where it runs.
        number: Its id.
        what: What it makes, for messages: "Cloud Build did not bring X to Y".
        job: Told how far it is; asked whether to stop, which cancels the build.

    Raises:
        CloudError: It failed; the words are the end of its log.
        OperationError: It was cancelled as asked.
    """
    project = await cloud.project()
    began = time.time()
    while True:
        build = await cloud.rest.get(
            f"{API}/{project}/locations/{region}/builds/{number}", f"The build {number}"
        )
        state = str(build.get("status", ""))
        if state == "SUCCESS":
            return
        if state not in UNDER_WAY:
            raise await _failed(cloud, build, what)
        if job.should_stop():
            await cloud.gcloud.run(
                [
                    *("gcloud", "builds", "cancel", number, f"--project={project}"),
                    *(f"--region={region}", "--quiet", "--format=json"),
                ]
            )
            raise OperationError(f"The build {number} was cancelled as asked.")
        elapsed = time.time() - began
        job.progress(elapsed, None, f"build {number} is {state.lower()}, {elapsed:.0f} s")
        await asyncio.sleep(_POLL_S)


async def _failed(cloud: GoogleCloud, build: Mapping[str, Any], what: str) -> CloudError:
    number = str(build.get("id", ""))
    failure = build.get("failureInfo") or {}
    short = str(failure.get("detail") or build.get("statusDetail") or build.get("status"))
    try:
        lines = await _log_tail(cloud, number)
    except DevopsError as error:
        lines = [f"(its log cannot be read: {error.code}: {error.message})"]
    words = "\n".join([*lines, short])
    found = signature_of(words)
    cause, fix = found.explained("", "") if found else ("The end of its log says which step.", "")
    return CloudError(
        f"{what}: the build is {str(build.get('status', '')).lower()}.",
        words=words,
        cause=cause,
        next_action=f"{fix} Its log: {build.get('logUrl') or 'gcloud builds log'}".strip(),
    )


async def _log_tail(cloud: GoogleCloud, number: str) -> list[str]:
    """The last lines of a build's log, oldest first."""
    project = await cloud.project()
    answer = await cloud.rest.post(
        "https://logging.googleapis.com/v2/entries:list",
        f"The log of the build {number}",
        {
            "resourceNames": [f"projects/{project}"],
            "filter": f'resource.type="build" AND resource.labels.build_id="{number}"',
            "orderBy": "timestamp desc",
            "pageSize": _LOG_LINES,
        },
    )
    entries = answer.get("entries", [])[:_LOG_LINES]
    return [str(entry.get("textPayload", "")) for entry in reversed(entries)]

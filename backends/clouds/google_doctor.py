"""What a Google Cloud target needs on this machine and in its project, each with the fix."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from backends.clouds.google_facts import disabled_apis
from backends.core.answers import Check
from backends.core.errors import DevopsError, NotSetUpError

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

GCLOUD: Mapping[str, str] = MappingProxyType(
    {"gcloud": "https://cloud.google.com/sdk/docs/install"}
)
WITH_SSH: Mapping[str, str] = MappingProxyType({**GCLOUD, "ssh": "your system's OpenSSH client"})
"""Programs that are needed, and where each is had."""


async def google_checks(
    cloud: GoogleCloud, target: str, programs: Mapping[str, str], apis: Sequence[str]
) -> list[Check]:
    """Project, programs, login and APIs. Never raises: what could not be told is a check, too.

    Args:
        cloud: The project.
        target: The target that asks.
        programs: What must be on PATH, and where it is had.
        apis: Short names of the APIs it needs.
    """

    def said(name: str, ok: bool, detail: str) -> Check:
        return Check(name=f"{target}: {name}", ok=ok, detail=detail)

    checks: list[Check] = []
    try:
        project = await cloud.project()
        checks.append(said("project", True, project))
        for program, where in programs.items():
            found = shutil.which(program)
            missing = f"not on PATH; install it: {where}"
            checks.append(said(program, found is not None, found or missing))
        await cloud.login.access_token()
        checks.append(said("login", True, cloud.login.source))
        off = await disabled_apis(cloud, *apis)
        fix = f"off: gcloud services enable {' '.join(off)} --project={project}"
        checks.append(said("APIs", not off, fix if off else "those needed are enabled"))
    except NotSetUpError as error:
        # Nothing is wrong with a cloud that nobody wants to use.
        detail = f"{error.message} {error.next_action}"
        checks.append(Check(name=target, state="not set up", detail=detail))
    except DevopsError as error:
        checks.append(said("access", False, f"{error.message} {error.next_action}"))
    return checks

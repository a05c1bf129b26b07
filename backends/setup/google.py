"""Google's part: CLI, login, application-default credentials, project, billing, APIs, roles.

Looking goes the way the server goes (REST, with the login of this machine), changing by gcloud,
so that each command can be read and run by hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.base import Services
from backends.clouds.google import GoogleCloud
from backends.clouds.google_facts import disabled_apis, private_access
from backends.core.errors import DevopsError, NotSetUpError, UnauthenticatedError
from backends.knowledge.cloudrun import PROFILES
from backends.knowledge.google_setup import NEEDS, GoogleNeeds
from backends.setup.desk import Desk

_INSTALL = "https://cloud.google.com/sdk/docs/install"
_BILLING = "https://console.cloud.google.com/billing/linkedaccount?project="
# Switching on ten APIs at once takes Google up to two minutes.
_CHANGE_TIMEOUT_S = 300.0
_PROJECTS = "https://cloudresourcemanager.googleapis.com/v1/projects"
# Where set-ups for the same articles kept the project's id.
_PROJECT_FILE = "project_id.txt"


class GoogleSetup:
    """Looks at one project, and offers what the targets miss.

    Args:
        desk: Where it is talked over.
        services: Settings, and the variables of the cloud.
        targets: The targets it is for.
        project: The project that is meant; None: the one that is set.
    """

    def __init__(
        self, desk: Desk, services: Services, targets: Sequence[str], project: str | None
    ) -> None:
        self._desk = desk
        self._services = services
        self._targets = [target for target in targets if target in NEEDS]
        self._wanted = project
        self._cloud = GoogleCloud(services)

    async def run(self) -> None:
        """Everything in order; what the rest stands on ends it when it is missing."""
        desk = self._desk
        desk.heading(f"Google Cloud, for {', '.join(self._targets)}")
        if shutil.which("gcloud") is None:
            desk.missing(f"the Google Cloud CLI: {_INSTALL}")
            desk.left()
            return
        if not await self._logged_in():
            return
        project = await self._project()
        if project is None:
            return
        try:
            number = await self._cloud.project_number()
        except DevopsError as error:
            desk.missing(f"access to the project {project}: {error.message}")
            desk.left(error.next_action)
            return
        desk.ok(f"project {project} (number {number})")
        await self._looked("whether billing is on", self._billing(project))
        await self._looked("which APIs are on", self._apis(project))
        await self._looked("what you may do", self._permissions(project))
        await self._looked("the roles of Google's accounts", self._grants(project, number))
        if any(need.private_access for need in self._needs):
            await self._looked("Private Google Access", self._private_access(project))
        desk.note(
            "Gemma's weights want a Hugging Face token: the tool save_hf_token keeps yours in "
            "Secret Manager."
        )

    @property
    def _needs(self) -> list[GoogleNeeds]:
        return [NEEDS[target] for target in self._targets]

    async def _gcloud(self, argv: Sequence[str]) -> str:
        return await self._cloud.gcloud.run(list(argv), timeout_s=_CHANGE_TIMEOUT_S)

    async def _looked(self, what: str, looking: Any) -> None:  # noqa: ANN401 (an awaitable)
        """Look at one thing; that it could not be looked at is said, and the rest goes on."""
        try:
            await looking
        except DevopsError as error:
            self._desk.missing(f"{what} could not be told ({error.code}): {error.message}")
            self._desk.left(error.next_action)

    # ------------------------------------------------------------------------- who and where

    async def _logged_in(self) -> bool:
        desk = self._desk
        login = ("gcloud", "auth", "login", "--update-adc")
        # `auth list` is empty for logins by a token file, so it is asked for a token (gcloud 528).
        ask = ("gcloud", "auth", "print-access-token")
        try:
            await self._cloud.gcloud.run(list(ask))
        except UnauthenticatedError as error:
            desk.missing(f"a login at Google: {error.message}")
            if not desk.hand_over(login):
                return False
            await self._cloud.gcloud.run(list(ask))
        desk.ok(f"gcloud, logged in as {await self._cloud.login.account() or 'an account'}")
        await self._cloud.login.access_token()
        if "application-default" in self._cloud.login.source:
            desk.ok("application-default credentials")
        else:
            desk.missing("application-default credentials; without them gcloud is asked each time")
            desk.hand_over(("gcloud", "auth", "application-default", "login"))
        return True

    async def _project(self) -> str | None:
        """The project; where none is set, the one that is named now."""
        desk = self._desk
        try:
            found = await self._cloud.project()
        except NotSetUpError:
            found = ""
        wanted = self._wanted or found or _from_file()
        if not wanted:
            desk.missing("a project")
            wanted = desk.answer("Which project (its id)?")
        if not wanted:
            desk.left("name one: --project=PROJECT_ID, or GOOGLE_CLOUD_PROJECT in .env")
            return None
        if wanted == found:
            return wanted
        desk.missing(f"{wanted} as the project that gcloud and this server use")
        if not await desk.change(("gcloud", "config", "set", "project", wanted), self._gcloud):
            return None
        self._cloud = GoogleCloud(self._services)
        said = await self._cloud.project()
        if said != wanted:
            desk.left(f"GOOGLE_CLOUD_PROJECT says {said}, and it goes before gcloud's own setting")
            return None
        return wanted

    # ------------------------------------------------------------------------- the project

    async def _billing(self, project: str) -> None:
        answer = await self._cloud.rest.get(
            f"https://cloudbilling.googleapis.com/v1/projects/{project}/billingInfo",
            f"the billing of {project}",
        )
        if answer.get("billingEnabled"):
            self._desk.ok("billing is on")
            return
        self._desk.missing("a billing account, which only its owner can link")
        self._desk.left(f"{_BILLING}{project}")

    async def _apis(self, project: str) -> None:
        wanted = list(dict.fromkeys(name for need in self._needs for name in need.apis))
        off = await disabled_apis(self._cloud, *wanted)
        if not off:
            self._desk.ok(f"{len(wanted)} APIs are on")
            return
        self._desk.missing(f"APIs ({len(off)} of {len(wanted)}): to switch them on costs nothing")
        argv = ("gcloud", "services", "enable", *off, f"--project={project}", "--quiet")
        await self._desk.change(argv, self._gcloud)

    async def _permissions(self, project: str) -> None:
        roles: dict[str, str] = {}
        for need in self._needs:
            roles |= need.permissions
        answer = await self._cloud.rest.post(
            f"{_PROJECTS}/{project}:testIamPermissions",
            f"your permissions in {project}",
            {"permissions": sorted(roles)},
        )
        held = set(answer.get("permissions", []))
        lacking = {name: role for name, role in roles.items() if name not in held}
        if not lacking:
            self._desk.ok("you may do all that these targets do")
            return
        account = await self._cloud.login.account()
        kind = "serviceAccount" if account.endswith(".gserviceaccount.com") else "user"
        for role in dict.fromkeys(lacking.values()):
            names = ", ".join(name for name, its in lacking.items() if its == role)
            self._desk.missing(f"{role} for you ({names})")
            await self._bind(project, f"{kind}:{account}", role)

    async def _grants(self, project: str, number: str) -> None:
        policy = await self._cloud.rest.post(
            f"{_PROJECTS}/{project}:getIamPolicy",
            f"the policy of {project}",
            {"options": {"requestedPolicyVersion": 3}},
        )
        for grant in dict.fromkeys(grant for need in self._needs for grant in need.grants):
            member = grant.member(number)
            if _holds(policy, member, (grant.role, *grant.included_in)):
                self._desk.ok(f"{grant.role} for {member}")
                continue
            self._desk.missing(f"{grant.role} for {member}: {grant.why}")
            await self._bind(project, member, grant.role)

    async def _bind(self, project: str, member: str, role: str) -> None:
        argv = (
            *("gcloud", "projects", "add-iam-policy-binding", project),
            *(f"--member={member}", f"--role={role}", "--condition=None"),
            *("--quiet", "--format=none"),
        )
        await self._desk.change(argv, self._cloud.gcloud.change_policy)

    async def _private_access(self, project: str) -> None:
        """Cloud Run's direct way from the VPC to a bucket, in the region of the deployment."""
        regions = dict.fromkeys(
            PROFILES[target].region(self._services.settings.google_cloud_location)
            for target in self._targets
            if NEEDS[target].private_access
        )
        for region in regions:
            on = await private_access(self._cloud, region, "default")
            where = f"Private Google Access of the subnet default in {region}"
            if on:
                self._desk.ok(where)
                continue
            if on is None:
                self._desk.missing(f"a subnet default in {region}")
                self._desk.left("name yours in options.network and options.subnet of a deployment")
                continue
            self._desk.missing(f"{where}: without it weights come the slow way")
            argv = (
                *("gcloud", "compute", "networks", "subnets", "update", "default"),
                *(f"--region={region}", "--enable-private-ip-google-access"),
                *(f"--project={project}", "--quiet"),
            )
            await self._desk.change(argv, self._gcloud)


def _holds(policy: Mapping[str, Any], member: str, roles: Sequence[str]) -> bool:
    return any(
        binding.get("role") in roles and member in binding.get("members", [])
        for binding in policy.get("bindings", [])
        if not binding.get("condition")
    )


def _from_file() -> str:
    path = Path.home() / _PROJECT_FILE
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""

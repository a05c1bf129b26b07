"""Google Cloud as a target sees it: the project, the CLI, the login, and the ways to read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.clouds.gcloud import READ_TIMEOUT_S, Gcloud
from backends.clouds.gcloud_config import configured, gcloud_folder
from backends.clouds.google_auth import GoogleLogin
from backends.clouds.google_clients import GoogleClients
from backends.clouds.google_rest import GoogleRest
from backends.clouds.hosts.tunnel import TunnelKeeper
from backends.clouds.route import InSurroundings
from backends.core.errors import CliMissingError, NotSetUpError

if TYPE_CHECKING:
    from backends.base import Services


class GoogleCloud(InSurroundings):
    """One project at Google, reached as the login of this machine.

    Args:
        services: Settings, and the variables of the cloud.

    Attributes:
        gcloud: The CLI, for everything that changes something.
        login: Tokens.
        rest: REST reads.
        clients: Reads by Google's libraries.
        tunnels: Ways to what serves on machines.
        owned: What is open between calls.
    """

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._project: str | None = None
        self._number: str | None = None
        self._lock = asyncio.Lock()
        self.gcloud = Gcloud(self.env)
        self.login = GoogleLogin(self.gcloud, self.env)
        self.rest = GoogleRest(self.login, self.env)
        self.clients = GoogleClients(self.login, self.env)
        self.tunnels = TunnelKeeper()
        self.owned = services.owned
        for close in (self.tunnels.close, self.rest.close):
            self.owned.at_end(close)

    async def project(self) -> str:
        """The project: the rehearsal's, the one set, or the CLI's.

        Raises:
            NotSetUpError: None is set anywhere.
        """
        async with self._lock:
            if self._project is None:
                env = await self.env()
                self._project = (
                    env.get("CLOUDSDK_CORE_PROJECT")
                    or self._services.settings.google_cloud_project
                    or configured("core", "project")
                    or await self._configured()
                )
                self.login.quota_project = self._project
        return self._project

    async def project_number(self) -> str:
        """The project's number, which service agents and default accounts are named by."""
        if self._number is None:
            project = await self.project()
            answer = await self.rest.get(
                f"https://cloudresourcemanager.googleapis.com/v1/projects/{project}",
                f"the project {project}",
            )
            self._number = str(answer.get("projectNumber", ""))
        return self._number

    async def _configured(self) -> str:
        if not gcloud_folder().is_dir():
            # Never used here: not worth a second of gcloud's, which would also look for a metadata
            # server on the network.
            raise _not_set_up("")
        try:
            text = await self.gcloud.run(
                ["gcloud", "config", "get-value", "project"], timeout_s=READ_TIMEOUT_S
            )
        except CliMissingError as error:
            raise _not_set_up(f"{error.message} ") from error
        project = text.strip()
        if not project or project == "(unset)":
            raise _not_set_up("")
        return project


def _not_set_up(why: str) -> NotSetUpError:
    return NotSetUpError(
        f"{why}No Google Cloud project is set.",
        cause="Neither GOOGLE_CLOUD_PROJECT nor gcloud's own configuration names one.",
        next_action="Ask the person to set GOOGLE_CLOUD_PROJECT, or to run: "
        "gcloud config set project PROJECT_ID",
    )

"""How requests find their way: directly in earnest, through the rehearsal's door in a rehearsal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.base import Services


def proxy_of(env: Mapping[str, str]) -> str | None:
    """The proxy that the cloud's variables name for https, if any."""
    return env.get("HTTPS_PROXY") or env.get("https_proxy") or None


def ca_file_of(env: Mapping[str, str]) -> str | None:
    """The file of certificate authorities that the cloud's variables name, if any."""
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"):
        if env.get(name):
            return env[name]
    return None


def stay_inside(variables: Mapping[str, str]) -> None:
    """Send all https of this process and its children into the rehearsal.

    Endpoints keep their real host names there, and whoever asks them (the endpoint client, the
    load engine's workers) takes its proxy from the environment.
    """
    proxy = proxy_of(variables)
    if proxy is not None:
        os.environ["HTTPS_PROXY"] = os.environ["https_proxy"] = proxy
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost,::1"


class InSurroundings:
    """A cloud in earnest or in a rehearsal: which of the two, and the variables that say so.

    Args:
        services: Settings, and the variables of the cloud.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._variables: Mapping[str, str] | None = None

    @property
    def rehearsal(self) -> bool:
        """Whether the clouds are played on this machine."""
        return self._services.settings.rehearsal

    async def env(self) -> Mapping[str, str]:
        """The variables of the cloud: none in earnest. The first call may start a rehearsal."""
        if self._variables is None:
            variables = await asyncio.to_thread(self._services.cloud_env)
            if variables:
                stay_inside(variables)
            self._variables = variables
        return self._variables

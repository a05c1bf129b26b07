"""How requests find their way: directly in earnest, through the rehearsal's door in a rehearsal."""

from __future__ import annotations

import os
from collections.abc import Mapping


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

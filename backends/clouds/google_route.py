"""How requests find their way: directly in earnest, through the rehearsal's door in a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import requests

    SessionT = TypeVar("SessionT", bound=requests.Session)


def proxy_of(env: Mapping[str, str]) -> str | None:
    """The proxy that the cloud's variables name for https, if any."""
    return env.get("HTTPS_PROXY") or env.get("https_proxy") or None


def ca_file_of(env: Mapping[str, str]) -> str | None:
    """The file of certificate authorities that the cloud's variables name, if any."""
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"):
        if env.get(name):
            return env[name]
    return None


def routed(session: SessionT, env: Mapping[str, str]) -> SessionT:
    """A session that goes where the cloud's variables say; in earnest it is left as it is."""
    if env:
        session.trust_env = False
        proxy, ca_file = proxy_of(env), ca_file_of(env)
        if proxy:
            session.proxies = {"https": proxy, "http": proxy}
        if ca_file:
            session.verify = ca_file
    return session

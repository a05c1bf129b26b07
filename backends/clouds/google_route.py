"""How requests of Google's libraries find their way; see `route`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from backends.clouds.route import ca_file_of, proxy_of

if TYPE_CHECKING:
    import requests

    SessionT = TypeVar("SessionT", bound=requests.Session)

__all__ = ["ca_file_of", "proxy_of", "routed"]


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

"""Whom a worker asks: addresses, TLS, proxy, and the bytes every request begins with.

Everything here is found out once, by the coordinator, and sent to the workers, so that no name is
resolved and no certificate store opened for a connection's sake inside a measured window.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from backends.core.errors import EndpointUnreachableError, NotSupportedError

if TYPE_CHECKING:
    from backends.serving.endpoint import Endpoint
    from backends.serving.engine.signing import SageMakerWire

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Tls:
    """How a connection is secured: the server's name (SNI, certificate), and whom to trust."""

    server_name: str
    verify: bool = True
    ca_file: str | None = None

    @classmethod
    def of(cls, endpoint: Endpoint) -> Tls:
        """Return how connections to an https endpoint are secured."""
        name = urlsplit(endpoint.base_url).hostname or ""
        return cls(name, endpoint.verify, str(endpoint.ca_file) if endpoint.ca_file else None)

    def context(self) -> ssl.SSLContext:
        """Return the settings; one context serves any number of connections."""
        import certifi

        context = ssl.create_default_context()
        context.load_verify_locations(certifi.where())
        if self.ca_file is not None:
            context.load_verify_locations(self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True)
class Target:
    """Whom to ask.

    Attributes:
        family: Of the address.
        address: Where connections are made to: the proxy's, where there is one.
        tls: None for plain HTTP.
        tunnel: What to ask a proxy for; empty without one.
        head: The request up to the headers that differ from request to request.
        path: The path asked for, with the prefix of the base URL.
        host: The host header.
        where: The name and port behind `address`, to be resolved elsewhere.
        is_loopback: Whether it is on this machine alone.
        wire: The signing and framing of SageMaker, or None for plain server-sent events.
        via: The proxy in words, without its credentials; empty without one.
    """

    family: int
    address: tuple[str | int, ...]
    tls: Tls | None
    tunnel: bytes
    head: bytes
    path: str
    host: str
    where: tuple[str, int]
    is_loopback: bool
    wire: SageMakerWire | None = None
    via: str = ""

    @property
    def url(self) -> str:
        """What a signature is made for."""
        return f"{'https' if self.tls else 'http'}://{self.host}{self.path}"


async def find_target(endpoint: Endpoint, path: str, loop: asyncio.AbstractEventLoop) -> Target:
    """Find out how to reach an endpoint.

    Args:
        endpoint: Whom; its wire, where it has one, has a path of its own.
        path: Of the requests, below the base URL.
        loop: Connects once to see that something is there.

    Raises:
        NotSupportedError: A proxy stands before a plain HTTP endpoint, or is not an HTTP proxy.
        EndpointUnreachableError: A name does not resolve.
    """
    parts = urlsplit(endpoint.base_url)
    name = parts.hostname or ""
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    wire = endpoint.wire
    full = f"{parts.path}{path if wire is None else wire.path}"
    shown = f"[{name}]" if ":" in name else name
    host = f"{shown}:{parts.port}" if parts.port else shown
    proxy = _proxy_for(endpoint)
    tunnel, via = b"", ""
    where = (name, port)
    if proxy is not None:
        where, via = (proxy.name, proxy.port), f"{proxy.name}:{proxy.port}"
        tunnel = (
            f"CONNECT {shown}:{port} HTTP/1.1\r\nhost: {shown}:{port}\r\n{proxy.authorization}\r\n"
        ).encode()
    family, address = await _reach(where, loop, endpoint.base_url)
    return Target(
        family=family,
        address=address,
        tls=Tls.of(endpoint) if secure else None,
        tunnel=tunnel,
        head=_head(full, host, wire),
        path=full,
        host=host,
        where=where,
        is_loopback=endpoint.is_loopback,
        wire=wire,
        via=via,
    )


def _head(path: str, host: str, wire: SageMakerWire | None) -> bytes:
    first = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: vllm-devops\r\n"
    if wire is None:
        first += (
            "content-type: application/json\r\naccept: text/event-stream\r\n"
            "accept-encoding: identity\r\n"
        )
    return first.encode()


@dataclass(frozen=True)
class _Proxy:
    name: str
    port: int
    authorization: str


def _proxy_for(endpoint: Endpoint) -> _Proxy | None:
    """Return the proxy that the environment puts before an endpoint.

    HTTPS goes through it in a tunnel, one more hop like any other. A proxy of plain HTTP opens
    connections of its own and may keep an answer until it is whole: that is not measured.
    """
    parts = urlsplit(endpoint.base_url)
    name = parts.hostname or ""
    proxies = getproxies()
    url = proxies.get(parts.scheme) or proxies.get("all")
    if not url or endpoint.is_loopback or proxy_bypass(name):
        return None
    setting = f"{parts.scheme.upper()}_PROXY"
    proxy = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme == "http":
        raise NotSupportedError(
            "A proxy is set for http, and a load through it would measure the proxy.",
            cause=f"{setting} is set and NO_PROXY does not name {name}.",
            next_action=f"Add {name} to NO_PROXY, or run the benchmark from a machine that "
            "reaches the endpoint directly.",
        )
    if proxy.scheme != "http" or not proxy.hostname:
        raise NotSupportedError(
            f"The proxy that {setting} names is not a plain HTTP proxy "
            f"({proxy.scheme or 'no scheme'}).",
            cause="Load goes through http:// proxies only, by CONNECT.",
            next_action=f"Add {name} to NO_PROXY, or name an http:// proxy.",
        )
    authorization = ""
    if proxy.username:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        authorization = f"proxy-authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    return _Proxy(proxy.hostname, proxy.port or 80, authorization)


async def _reach(
    where: tuple[str, int], loop: asyncio.AbstractEventLoop, base_url: str
) -> tuple[int, tuple[str | int, ...]]:
    """Connect once, trying every address of the name, and return the one that answered."""
    name, port = where
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            transport, _ = await loop.create_connection(
                asyncio.Protocol, name, port, happy_eyeballs_delay=0.25
            )
    except (OSError, TimeoutError) as error:
        is_name = isinstance(error, socket.gaierror)
        raise EndpointUnreachableError(
            f"{base_url}: no connection.",
            words=str(error) or f"no connection within {CONNECT_TIMEOUT_S:g} s",
            cause=f"The host name {name} does not resolve."
            if is_name
            else "Nothing listens at that address.",
            next_action="Check with get_status whether the deployment runs and at which address.",
        ) from None
    family = transport.get_extra_info("socket").family
    address = transport.get_extra_info("peername")
    transport.abort()
    return family, address

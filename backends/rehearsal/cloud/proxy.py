"""The front door: a forward proxy on loopback that ends TLS itself and serves an ASGI application.

A client asks for `CONNECT run.googleapis.com:443`; the door says yes, shows a certificate for that
name, and hands what is inside to uvicorn's HTTP protocol. A host that is not served is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from backends.rehearsal.cloud.certificates import Certificates

_MAX_CONNECT_BYTES = 16_384
_HANDSHAKE_S = 10.0
_BACKLOG = 512

Refused = Callable[[str], None]


class Door:
    """The listening side.

    Args:
        application: The ASGI application.
        certificates: Where certificates come from.
        serves: Whether a host name is played here.
        refused: Told the `host:port` of each CONNECT that was refused.
    """

    def __init__(
        self,
        application: Any,  # noqa: ANN401 (an ASGI application)
        certificates: Certificates,
        serves: Callable[[str], bool],
        refused: Refused,
    ) -> None:
        self.certificates = certificates
        self.serves = serves
        self.refused = refused
        self.config = uvicorn.Config(
            application,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            # As long as Google keeps a connection: clients that keep one do not find it closed.
            timeout_keep_alive=240,
        )
        self.config.load()
        self.state = ServerState()
        self.transports: dict[tuple[str, int], asyncio.Transport] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, sock: socket.socket) -> None:
        """Listen on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Doorman(self), sock=sock, backlog=_BACKLOG)

    async def close(self) -> None:
        """Stop listening, end what runs."""
        if self._server is not None:
            self._server.close()
        for task in [*self.state.tasks, *self.tasks]:
            task.cancel()
        for transport in list(self.transports.values()):
            transport.abort()
        # Connections notice on the next turns of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def protocol(self) -> H11Protocol:
        """A new HTTP protocol of the application."""
        return H11Protocol(self.config, self.state, {})

    def cut(self, connection: tuple[str, int]) -> None:
        """Break the client's connection, as a network would: no answer, no goodbye."""
        transport = self.transports.get(connection)
        if transport is not None:
            transport.abort()


class _Doorman(asyncio.Protocol):
    """Reads the first request of a connection and decides what the connection is."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._peer: tuple[str, int] = ("", 0)
        self._plain: H11Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 (a TCP server makes these)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # Answers are small: waiting for more of them to send costs 40 ms each.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer = tuple(transport.get_extra_info("peername")[:2])
        self._door.transports[self._peer] = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.transports.pop(self._peer, None)
        if self._plain is not None:
            self._plain.connection_lost(exc)

    def eof_received(self) -> bool | None:
        if self._plain is not None:
            self._plain.eof_received()
        return None

    def pause_writing(self) -> None:
        if self._plain is not None:
            self._plain.pause_writing()

    def resume_writing(self) -> None:
        if self._plain is not None:
            self._plain.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._plain is not None:
            self._plain.data_received(data)
            return
        self._buffer += data
        transport = self._transport
        if transport is None:
            return
        if not b"CONNECT ".startswith(self._buffer[:8]):
            self._plain = self._door.protocol()
            self._plain.connection_made(transport)
            self._plain.data_received(self._buffer)
            return
        if b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > _MAX_CONNECT_BYTES:
                transport.abort()
            return
        target = self._buffer.split(b" ", 2)[1].decode("ascii", "replace")
        host, _, port = target.rpartition(":")
        if port != "443" or not self._door.serves(host):
            self._door.refused(target)
            transport.write(
                b"HTTP/1.1 403 Not part of the rehearsal\r\ncontent-length: 0\r\n"
                b"connection: close\r\n\r\n"
            )
            transport.close()
            return
        # Nothing of the handshake may be read before TLS is in place.
        transport.pause_reading()
        transport.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        task = asyncio.get_running_loop().create_task(self._secure(transport, host))
        self._door.tasks.add(task)
        task.add_done_callback(self._door.tasks.discard)

    async def _secure(self, transport: asyncio.Transport, host: str) -> None:
        inner = _Inner(self._door, self._peer, self._door.protocol())
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                inner,
                self._door.certificates.context(host),
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE_S,
            )
        except (OSError, ssl.SSLError):
            # The client left, or does not trust this authority.
            transport.abort()
            self._door.transports.pop(self._peer, None)
            return
        if secured is None:
            return
        inner.start(secured)


class _Inner(asyncio.Protocol):
    """uvicorn's protocol inside TLS; data may come before `start_tls` has returned."""

    def __init__(self, door: Door, peer: tuple[str, int], http: H11Protocol) -> None:
        self._door = door
        self._peer = peer
        self._http = http
        self._early: list[bytes] = []
        self._started = False

    def start(self, transport: asyncio.Transport) -> None:
        """Begin, with what has come in so far."""
        self._started = True
        self._http.connection_made(transport)
        for data in self._early:
            self._http.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._started:
            self._http.data_received(data)
        else:
            self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.transports.pop(self._peer, None)
        if self._started:
            with contextlib.suppress(AttributeError):
                self._http.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        if self._started:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._started:
            self._http.resume_writing()

"""One connection of a stream: made without blocking, through a proxy and TLS where they are asked.

A link knows bytes, not HTTP. Receiving gives plain bytes with the stamp of the packet that
completed them: the stamp is taken before decryption, by the kernel.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from typing import TYPE_CHECKING

from backends.serving.engine.clock import CONTROL_BYTES, ask_for_stamps

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.serving.engine.target import Target

READ_BYTES = 8192
"""An event is some 250 bytes; a larger buffer costs more to hand out and shrink than it saves."""

TLS_READ_BYTES = 17 * 1024
"""A whole record of the largest size, so that one read decrypts."""

READ, WRITE = select.POLLIN, select.POLLOUT
LOCAL_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS})
"""Errors that say this machine has run out of files or ports; the endpoint has no part in them."""

_MAX_PROXY_HEAD = 16 * 1024


class LinkError(OSError):
    """The connection could not be made, or has broken; the text says how."""

    def __init__(self, words: str, *, is_local: bool = False) -> None:
        super().__init__(words)
        self.words = words
        self.is_local = is_local


class Link:
    """A connection. After `LinkError` it is good for nothing but `close`.

    Attributes:
        fd: Its file descriptor.
        wants: What to wait for: reading, and writing while something is to be sent.
        is_up: Whether requests may be sent.
        recvmsg: Receives from the socket itself, for readers of plain links in a hurry.
    """

    __slots__ = (
        "_connecting",
        "_decrypted",
        "_incoming",
        "_outbox",
        "_outgoing",
        "_proxy_head",
        "_sock",
        "_target",
        "_tls",
        "_tunnel_open",
        "fd",
        "is_up",
        "recvmsg",
        "wants",
    )

    def __init__(self, target: Target, context: ssl.SSLContext | None, *, stamped: bool) -> None:
        family, where = target.family, target.address
        self._target = target
        self._outbox: memoryview | None = None
        self._connecting = True
        self._tunnel_open = not target.tunnel
        self._proxy_head = b""
        self._tls: ssl.SSLObject | None = None
        self.is_up = False
        self.wants = WRITE
        try:
            self._sock = socket.socket(
                family, socket.SOCK_STREAM | getattr(socket, "SOCK_CLOEXEC", 0)
            )
        except OSError as error:
            raise _link_error(error) from None
        self.fd = self._sock.fileno()
        self.recvmsg: Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, object]]
        self.recvmsg = self._sock.recvmsg
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if stamped:
            ask_for_stamps(self._sock)
        if context is not None and target.tls is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(
                self._incoming, self._outgoing, server_hostname=target.tls.server_name
            )
        refused = self._sock.connect_ex(where)
        if refused not in (0, errno.EINPROGRESS):
            self.close()
            raise _link_error(OSError(refused, os.strerror(refused)))

    @property
    def is_plain(self) -> bool:
        """Whether what the socket receives is what the server said."""
        return self._tls is None

    def close(self) -> None:
        """Close without a word."""
        self.is_up = False
        self._sock.close()

    def advance(self, can_read: bool) -> bool:
        """Go on with connecting, as far as it goes without waiting; returns `is_up`.

        Raises:
            LinkError: It is not to be.
        """
        if self._connecting:
            if (refused := self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) != 0:
                raise _link_error(OSError(refused, os.strerror(refused)))
            self._connecting, self.wants = False, READ
            if not self._tunnel_open:
                self._put(self._target.tunnel)
                return False
        elif can_read:
            try:
                data = self._receive_raw()[0]
            except BlockingIOError:
                return False
            except EOFError:
                raise LinkError("closed by the other side while it was set up") from None
            if not self._tunnel_open:
                self._take_proxy_answer(data)
                if not self._tunnel_open:
                    return False
            elif self._tls is not None:
                self._incoming.write(data)
        if not self._tunnel_open:
            self.flush()
            return False
        self.is_up = self._tls is None or self._shake_hands(self._tls)
        return self.is_up

    def send(self, data: bytes) -> None:
        """Send, or keep what the socket does not take now; `wants` says whether some is left.

        Raises:
            LinkError: The connection has broken.
        """
        if self._tls is None:
            self._put(data)
            return
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise _link_error(error) from None
        self._put(self._outgoing.read())

    def flush(self) -> None:
        """Send what was left, as far as the socket takes it.

        Raises:
            LinkError: The connection has broken.
        """
        left, self._outbox = self._outbox, None
        if left is not None:
            self._put(left)

    def receive(self) -> tuple[bytes, bytes]:
        """Receive plain bytes, maybe none yet, and their stamp (empty where there is none).

        Raises:
            LinkError: The connection has broken.
            EOFError: The other side has closed it.
            BlockingIOError: Nothing was there.
        """
        data, stamp = self._receive_raw()
        if self._tls is None:
            return data, stamp
        self._incoming.write(data)
        plain = b""
        try:
            while True:
                part = self._tls.read(TLS_READ_BYTES)
                if not part:
                    raise EOFError
                plain = plain + part if plain else part
                if not self._incoming.pending and not self._tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            if not plain:
                raise EOFError from None
        except ssl.SSLError as error:
            raise _link_error(error) from None
        if self._outgoing.pending:  # a key update to answer
            self._put(self._outgoing.read())
        return plain, stamp

    def _receive_raw(self) -> tuple[bytes, bytes]:
        size = READ_BYTES if self._tls is None else TLS_READ_BYTES
        try:
            data, control, _, _ = self.recvmsg(size, CONTROL_BYTES)
        except BlockingIOError:
            raise
        except OSError as error:
            raise _link_error(error) from None
        if not data:
            raise EOFError
        return data, control[0][2] if control else b""

    def _take_proxy_answer(self, data: bytes) -> None:
        self._proxy_head += data
        end = self._proxy_head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._proxy_head) > _MAX_PROXY_HEAD:
                raise LinkError("the proxy's answer to CONNECT does not end")
            return
        first = self._proxy_head.split(b"\r\n", 1)[0].decode("latin-1")
        words = first.split(" ")
        if len(words) < 2 or not words[1].startswith("2"):
            raise LinkError(f"the proxy {self._target.via} refused the tunnel: {first[:200]}")
        self._tunnel_open = True

    def _shake_hands(self, tls: ssl.SSLObject) -> bool:
        try:
            tls.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        except ssl.SSLCertVerificationError as error:
            raise LinkError(f"the certificate is not trusted: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise _link_error(error) from None
        if self._outgoing.pending:
            self._put(self._outgoing.read())
        return done

    def _put(self, data: bytes | memoryview) -> None:
        if self._outbox is not None:
            data = b"".join((self._outbox, data))
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise _link_error(error) from None
        if sent == len(data):
            self._outbox, self.wants = None, READ
        else:
            self._outbox, self.wants = memoryview(data)[sent:], READ | WRITE


def _link_error(error: OSError) -> LinkError:
    words = error.strerror or str(error) or type(error).__name__
    return LinkError(words, is_local=error.errno in LOCAL_ERRNOS)

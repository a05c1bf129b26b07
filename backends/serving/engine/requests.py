"""The bytes of requests: nearly all known beforehand, signatures made while there is time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from backends.serving.engine.clock import now_ns
from backends.serving.engine.signing import SIGNATURE_FRESH_S, Signer

if TYPE_CHECKING:
    from backends.serving.engine.messages import Authorise
    from backends.serving.engine.signing import AwsCredentials
    from backends.serving.engine.target import Target

SIGNED_A_TICK = 8


class RequestMaker:
    """Makes requests to one target.

    Args:
        target: Whom they go to.
        run_id: What their ids begin with.
    """

    def __init__(self, target: Target, run_id: str) -> None:
        self._head = target.head
        self._run_id = run_id
        self._headers = b""
        self._credentials: AwsCredentials | None = None
        self._signer = None if target.wire is None else Signer(target.wire, target.url)
        self._signed: dict[int, tuple[bytes, int]] = {}
        self._ahead = 0

    def authorise(self, message: Authorise) -> None:
        """Use these headers or credentials from now on."""
        self._headers, self._credentials = message.headers, message.credentials
        self._signed.clear()

    def begin(self, waiting: deque[tuple[int, bytes]], ahead: int) -> None:
        """Prepare for a part: its first requests, one for every lane."""
        self._signed.clear()
        self._ahead = ahead
        self.prepare(waiting, most=ahead)

    def prepare(self, waiting: deque[tuple[int, bytes]], *, most: int = SIGNED_A_TICK) -> None:
        """Sign some of the requests that are next, where signing is wanted."""
        if self._signer is None:
            return
        until_ns = now_ns() + int(SIGNATURE_FRESH_S * 1e9)
        for index, body in _first(waiting, self._ahead):
            if most == 0:
                return
            if index not in self._signed:
                most -= 1
                self._signed[index] = (self._sign(self._signer, body), until_ns)

    def make(self, index: int, body: bytes, *, is_measured: bool) -> tuple[str, bytes]:
        """Return the id and the bytes of a request."""
        request_id = f"{self._run_id}-{'m' if is_measured else 'w'}{index}"
        headers = self._headers
        if self._signer is not None:
            headers, until_ns = self._signed.pop(index, (b"", 0))
            if until_ns < now_ns():
                headers = self._sign(self._signer, body)
        return request_id, b"%sx-request-id: %s\r\ncontent-length: %d\r\n%s\r\n%s" % (
            self._head,
            request_id.encode(),
            len(body),
            headers,
            body,
        )

    def _sign(self, signer: Signer, body: bytes) -> bytes:
        if self._credentials is None:
            raise ValueError("requests to SageMaker need credentials")
        return signer.lines(body, self._credentials)


def _first(waiting: deque[tuple[int, bytes]], count: int) -> Iterable[tuple[int, bytes]]:
    for at in range(min(count, len(waiting))):
        yield waiting[at]

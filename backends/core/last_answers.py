"""What the server says goes out whole: before the end of input ends it, and as text that is JSON.

`printf '…' | server.py` closes stdin right after its last line. The SDK takes the end of input as
"the client is gone" and drops every call in flight (measured on 2.3.0, 2026-11-30: only
`initialize` was answered), so here the end waits a moment for the calls that are still running.

Half of a surrogate pair, as a file name, an argument or a model's reply may hold one, is not
UTF-8: one in an answer ended the whole server (same version and day), so here it is replaced.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse
from pydantic_core import PydanticSerializationError

# A server has a second to be gone after the end of input; this leaves time to end its children.
PATIENCE_S = 0.6


class Outstanding:
    """The requests that came in and have not been answered."""

    def __init__(self) -> None:
        self._ids: set[str | int] = set()
        self._settled = anyio.Event()

    def asked(self, item: SessionMessage | Exception) -> None:
        """See what comes in."""
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest):
            self._ids.add(item.message.id)

    def answered(self, item: SessionMessage) -> None:
        """See what goes out."""
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            if item.message.id is not None:
                self._ids.discard(item.message.id)
            self._settled.set()

    async def settle(self, patience_s: float) -> None:
        """Wait until all is answered, or until patience ends."""
        with anyio.move_on_after(patience_s):
            while self._ids:
                self._settled = anyio.Event()
                await self._settled.wait()


class _Passing:
    """A stream that passes everything on to the one inside."""

    def __init__(self, inner: Any, outstanding: Outstanding) -> None:  # noqa: ANN401 (SDK stream)
        self._inner = inner
        self._outstanding = outstanding

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class Incoming(_Passing):
    """What the client sends; its end comes when all it asked is answered."""

    @property
    def last_context(self) -> Any:  # noqa: ANN401 (the SDK reads it beside each item)
        """The context in which the last item was sent."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next item.

        Raises:
            anyio.EndOfStream: The client has left, and its calls were answered or given up.
        """
        try:
            item: SessionMessage | Exception = await self._inner.receive()
        except anyio.EndOfStream:
            await self._outstanding.settle(PATIENCE_S)
            raise
        self._outstanding.asked(item)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Outgoing(_Passing):
    """What the server sends."""

    async def send(self, item: SessionMessage) -> None:
        """Pass `item` on."""
        await self._inner.send(_writable(item))
        self._outstanding.answered(item)


def _writable(item: SessionMessage) -> SessionMessage:
    message = item.message
    try:
        message.model_dump_json(by_alias=True, exclude_unset=True)
    except PydanticSerializationError:
        whole = _mended(message.model_dump(by_alias=True, exclude_unset=True))
        return SessionMessage(type(message).model_validate(whole), item.metadata)
    return item


def _mended(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    """`value` with the halves of surrogate pairs joined, or replaced where they stand alone."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item) for item in value]
    return value

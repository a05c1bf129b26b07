"""One HTTP request and its answer, over ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SIMULATED_HEADER = (b"x-vllm-devops-simulated", b"1")
_COMMON_HEADERS = ((b"vary", b"Origin"), SIMULATED_HEADER)


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


class Exchange:
    """Reads a request and writes its answer.

    Args:
        scope: ASGI scope.
        receive: ASGI receive.
        send: ASGI send.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.status = 0
        self.response_bytes = 0
        self._receive = receive
        self._send = send
        self._watch: asyncio.Task[None] | None = None

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            ClientGoneError: The client left while sending it.
        """
        chunks = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(chunks)

    def watch_client(self, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` if the client leaves; the body must have been read."""

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            on_gone()

        self._watch = asyncio.create_task(watch())

    def close(self) -> None:
        """Stop watching the client."""
        if self._watch is not None:
            self._watch.cancel()

    async def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = b"application/json",
        extra: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """Send a whole answer."""
        self.status = status
        self.response_bytes = len(body)
        headers = [*extra, (b"content-length", str(len(body)).encode()), *_COMMON_HEADERS]
        if body:
            headers.insert(len(extra) + 1, (b"content-type", content_type))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def respond_json(
        self, status: int, data: object, extra: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """Send an answer as compact JSON, as vLLM's are."""
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        await self.respond(status, text.encode("utf-8", "replace"), extra=extra)

    async def start_stream(self) -> None:
        """Send the head of an event stream."""
        self.status = 200
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *_COMMON_HEADERS]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, chunk: bytes) -> None:
        """Send a piece of an event stream."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end_stream(self) -> None:
        """End an event stream."""
        await self._send({"type": "http.response.body", "body": b""})

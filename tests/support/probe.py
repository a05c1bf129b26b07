"""A raw JSON-RPC client over stdio that hides nothing: for what the SDK's own client smooths over.

It speaks both protocol eras: `legacy` (initialize, 2025-11-25) and `modern` (2026-07-28:
server/discover, an envelope in every request, questions as `input_required` results).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Literal

from tests.support.reply import Reply

ROOT = Path(__file__).resolve().parents[2]
SERVER = (sys.executable, str(ROOT / "server.py"))

Era = Literal["legacy", "modern"]
ERAS: tuple[Era, ...] = ("legacy", "modern")
VERSIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
CLIENT_INFO = {"name": "probe", "version": "1.0"}

# A question's parameters -> {"action": ..., "content": ...}
Answering = Callable[[dict[str, Any]], dict[str, Any]]

ACCEPT: dict[str, Any] = {"action": "accept", "content": {"approve": True}}
REFUSE: dict[str, Any] = {"action": "accept", "content": {"approve": False}}
DECLINE: dict[str, Any] = {"action": "decline"}
CANCEL: dict[str, Any] = {"action": "cancel"}


class ServerGoneError(Exception):
    """The server closed its output while something was still asked."""


class Probe:
    """A server process and a client of it.

    Args:
        era: The protocol era to speak.
        env: Variables added to this process's own.
        answering: Answers the server's questions; without it the client cannot be asked.
        capabilities: What the client says it can do; by default what `answering` makes it.
        argv: The server's command.
        handshake: Whether to introduce ourselves at once.
    """

    def __init__(
        self,
        *,
        era: Era = "modern",
        env: Mapping[str, str] | None = None,
        answering: Answering | None = None,
        capabilities: dict[str, Any] | None = None,
        argv: Sequence[str] = SERVER,
        handshake: bool = True,
    ) -> None:
        self.era = era
        self.answering = answering
        self.capabilities: dict[str, Any] = capabilities or {}
        if capabilities is None and answering is not None:
            self.capabilities = {"elicitation": {"form": {}}}
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )
        self.questions: list[dict[str, Any]] = []
        self.notifications: list[dict[str, Any]] = []
        self.foreign: list[str] = []
        self._err: list[bytes] = []
        self._pending: dict[str | int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._last_id = 0
        self._gone = False
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=self._read_err, args=(self.process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.greeting: dict[str, Any] = {}
        if handshake:
            self.greeting = self.shake_hands()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------- protocol

    def shake_hands(self) -> dict[str, Any]:
        """`initialize` and `initialized`, or `server/discover`; returns the answer's result."""
        if self.era == "modern":
            return self.call("server/discover")
        result = self.call(
            "initialize",
            {
                "protocolVersion": VERSIONS["legacy"],
                "capabilities": self.capabilities,
                "clientInfo": CLIENT_INFO,
            },
        )
        self.notify("notifications/initialized")
        return result

    def call(
        self, method: str, params: dict[str, Any] | None = None, timeout_s: float = 50
    ) -> dict[str, Any]:
        """A request's result. Fails the test on a JSON-RPC error."""
        message = self.request(method, params).result(timeout_s)
        assert "error" not in message, message["error"]
        result = message["result"]
        assert isinstance(result, dict)
        return result

    def request(self, method: str, params: dict[str, Any] | None = None) -> Future[dict[str, Any]]:
        """Send a request; the future holds the whole answering message."""
        return self.request_with_id(method, params)[1]

    def request_with_id(
        self, method: str, params: dict[str, Any] | None = None
    ) -> tuple[int, Future[dict[str, Any]]]:
        """Like `request`, with the id it was sent under."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._last_id += 1
            number = self._last_id
            self._pending[number] = future
            if self._gone:
                future.set_exception(ServerGoneError(self.stderr))
        self.send(self.message(method, params, number))
        return number, future

    def message(
        self, method: str, params: dict[str, Any] | None, number: int | None
    ) -> dict[str, Any]:
        """The JSON-RPC message of a request (or, without a number, of a notification)."""
        params = dict(params or {})
        if self.era == "modern" and number is not None:
            params["_meta"] = params.get("_meta", {}) | {
                "io.modelcontextprotocol/protocolVersion": VERSIONS["modern"],
                "io.modelcontextprotocol/clientInfo": CLIENT_INFO,
                "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            }
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params:
            message["params"] = params
        return message if number is None else message | {"id": number}

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification."""
        self.send(self.message(method, params, None))

    def send(self, message: dict[str, Any]) -> None:
        """Send one message as a line."""
        self.send_raw(json.dumps(message).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        stdin = self.process.stdin
        assert stdin is not None
        with self._writing:
            stdin.write(data)
            stdin.flush()

    # ------------------------------------------------------------------------------- tools

    def tool(self, tool: str, /, **arguments: object) -> Reply:
        """Call a tool and answer its questions."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        result = self.call("tools/call", params)
        while result.get("resultType") == "input_required":
            answers: dict[str, Any] = {}
            for key, question in result["inputRequests"].items():
                answers[key] = self._answer(question["params"])
            again = params | {"inputResponses": answers, "requestState": result["requestState"]}
            result = self.call("tools/call", again)
        return Reply.of(result)

    def start_tool(
        self, tool: str, /, *, token: str | None = None, **arguments: object
    ) -> tuple[int, Future[dict[str, Any]]]:
        """Send a tool call and do not wait; with a token, progress is asked for."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return self.request_with_id("tools/call", params)

    def progress(self, token: str) -> list[dict[str, Any]]:
        """Progress notifications received for a token so far."""
        return [
            note["params"]
            for note in list(self.notifications)
            if note["method"] == "notifications/progress"
            and note["params"]["progressToken"] == token
        ]

    # ------------------------------------------------------------------------------- process

    @property
    def stderr(self) -> str:
        """What the server wrote to its error output so far."""
        return b"".join(self._err).decode("utf-8", "replace")

    def signal(self, number: signal.Signals) -> None:
        """Signal the server process."""
        self.process.send_signal(number)

    def end_input(self) -> None:
        """Close the server's standard input, as a client that leaves does."""
        stdin = self.process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.close()

    def wait(self, timeout_s: float) -> int:
        """The exit code, once the server has ended."""
        code = self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join(timeout_s)
        return code

    def close(self) -> None:
        """Leave as a client does; kill a server that stays."""
        self.end_input()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    # ------------------------------------------------------------------------------- inside

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        self.questions.append(question)
        assert self.answering is not None, f"asked though nobody can answer: {question}"
        return self.answering(question)

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            try:
                message = json.loads(line)
                known = isinstance(message, dict) and message.get("jsonrpc") == "2.0"
            except ValueError:
                known = False
            if known:
                self._take(message)
            else:
                self.foreign.append(line.decode("utf-8", "replace"))
        with self._lock:
            self._gone = True
            for future in self._pending.values():
                future.set_exception(ServerGoneError(self.stderr))
            self._pending.clear()

    def _take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            with self._lock:
                future = self._pending.pop(message["id"], None)
            if future is not None:
                future.set_result(message)
        elif "id" not in message:
            self.notifications.append(message)
        elif message["method"] == "elicitation/create" and self.answering is not None:
            answer = self._answer(message["params"])
            self.send({"jsonrpc": "2.0", "id": message["id"], "result": answer})
        else:
            error = {"code": -32601, "message": "this client has no such method"}
            self.send({"jsonrpc": "2.0", "id": message["id"], "error": error})

    def _read_err(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._err.append(line)

"""What the bytes of an OpenAI-style streaming answer mean, without any input or output.

Three layers, each usable alone: `HttpResponseReader` takes an HTTP/1.1 response apart,
`SseDecoder` finds the server-sent events in its body, `StreamTally` reads the events of a chat or
text completion and keeps what the definitions of a benchmark need. The endpoint client and the
load engines share them, so that a query and a benchmark mean the same by "first token".

Shapes: vLLM 0.32.0, recorded 2026-11-30. The first chunk carries only the role, chunks are not
tokens, the last one before `[DONE]` has `choices: []` and `usage`; a failure in the middle of a
stream arrives as `data: {"error": ...}` under status 200.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

MAX_HEAD_BYTES = 64 * 1024
"""A response head larger than this is not one of ours; uvicorn and proxies stay far below."""

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""An event that never ends would otherwise fill the memory of the client."""


class WireError(ValueError):
    """The bytes are not HTTP/1.1 or not an event stream."""


def parsed_json(data: bytes) -> Any:  # noqa: ANN401 (whatever JSON holds)
    """Return what JSON in UTF-8 says. Python's own reader: a worker on a host has no other.

    Raises:
        ValueError: It is not JSON, is nested too deeply, or holds half of a surrogate pair, which
            is no text that could be passed on.
    """
    try:
        value = json.loads(data.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if b"\\ud" in data or b"\\uD" in data:
        json.dumps(value, ensure_ascii=False).encode()
    return value


class HttpResponseReader:
    """Takes one HTTP/1.1 response apart as its bytes arrive.

    Handles chunked bodies, bodies with a length, bodies that end with the connection, and
    informational (1xx) heads before the real one. Feed every read to `feed`, and call `eof` when
    the connection closes.

    Attributes:
        status: The status code, or None until the head is complete.
        headers: Header values by lower-case name; repeated headers are joined with a comma.
        complete: Whether the response has ended.
        keep_alive: Whether the connection may carry another request.
    """

    __slots__ = ("_buffer", "_left", "_mode", "complete", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.complete = False
        self.keep_alive = True
        self._buffer = b""
        self._mode = "head"
        self._left = 0

    @property
    def at_chunk(self) -> bool:
        """Whether the next byte begins a chunk of a chunked body."""
        return self._mode == "chunked" and not self._buffer and not self.complete

    def feed(self, data: bytes) -> bytes:
        """Take the bytes of one read and return the part of the body they complete.

        Raises:
            WireError: The bytes are not HTTP/1.1, or follow the end of the response.
        """
        if self.complete:
            raise WireError("bytes after the end of the response")
        self._buffer = self._buffer + data if self._buffer else data
        while self._mode == "head":
            if not self._take_head():
                return b""
        if self._mode == "chunked":
            return self._take_chunks()
        body, self._buffer = self._buffer, b""
        if self._mode == "length":
            if len(body) > self._left:
                raise WireError("the body is longer than its content-length")
            self._left -= len(body)
            self.complete = self._left == 0
        return body

    def eof(self) -> None:
        """Say that the connection has closed.

        Raises:
            WireError: The response was not complete.
        """
        if self._mode == "close":
            self.complete = True
        if not self.complete:
            raise WireError("the connection closed before the response was complete")

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise WireError("the response head does not end")
            return False
        head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdigit():
            raise WireError(f"not an HTTP/1.1 answer: {first[:80]!r}")
        if code.startswith("1"):
            return bool(self._buffer)
        self.status = int(code)
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.strip().lower(), value.strip()
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (
            version == "HTTP/1.1" or "keep-alive" in connection
        )
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._mode = "chunked"
        elif "content-length" in self.headers:
            length = self.headers["content-length"]
            if not length.isdigit():
                raise WireError(f"content-length is {length[:40]!r}")
            self._mode, self._left = "length", int(length)
            self.complete = self._left == 0
        elif self.status in (204, 304):
            self._mode, self.complete = "length", True
        else:
            self._mode, self.keep_alive = "close", False
        return True

    def _take_chunks(self) -> bytes:
        out: list[bytes] = []
        buffer, at = self._buffer, 0
        while True:
            line_end = buffer.find(b"\r\n", at)
            if line_end < 0:
                if len(buffer) - at > 1024:
                    raise WireError("a chunk size line does not end")
                break
            size_text = buffer[at:line_end].split(b";", 1)[0].strip()
            try:
                size = int(size_text, 16)
            except ValueError:
                raise WireError(f"a chunk size is {size_text[:40]!r}") from None
            start = line_end + 2
            if size == 0:
                if buffer.startswith(b"\r\n", start):
                    self.complete, at = True, start + 2
                else:
                    trailers_end = buffer.find(b"\r\n\r\n", start)
                    if trailers_end < 0:
                        break
                    self.complete, at = True, trailers_end + 4
                break
            if len(buffer) < start + size + 2:
                break
            if buffer[start + size : start + size + 2] != b"\r\n":
                raise WireError("a chunk does not end where its size says")
            out.append(buffer[start : start + size])
            at = start + size + 2
        self._buffer = buffer[at:]
        if self.complete and self._buffer:
            raise WireError("bytes after the end of the response")
        return out[0] if len(out) == 1 else b"".join(out)


class SseDecoder:
    """Finds the `data` of server-sent events in a body cut anywhere, by bytes.

    Working on bytes keeps a character whole that two reads share. Lines may end in LF or CRLF;
    comments, `id`, `retry` and `event` lines are passed over; several `data` lines of one event
    are joined with a newline, as the HTML standard says (section 9.2, read 2026-11-30).
    """

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    @property
    def at_event(self) -> bool:
        """Whether the next byte begins an event."""
        return not self._rest and not self._data

    def feed(self, body: bytes) -> list[bytes]:
        """Take a part of the body and return the data of every event it completes.

        Raises:
            WireError: One event has grown past `MAX_EVENT_BYTES`.
        """
        lines = (self._rest + body if self._rest else body).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise WireError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        events: list[bytes] = []
        for raw in lines:
            line = raw[:-1] if raw.endswith(b"\r") else raw
            if not line:
                if self._data:
                    events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                value = line[5:]
                self._data.append(value[1:] if value.startswith(b" ") else value)
        return events


@dataclass(slots=True)
class Failure:
    """Why a request counts as failed.

    Attributes:
        kind: A short stable word: `http_503`, `in_stream_error`, `missing_done`, `timeout`, ...
        message: The server's own words, or what was missing.
        status: The HTTP status, or the code the stream's error carried; None where there was none.
        retry_after_s: Seconds the server asked to wait, where it did.
    """

    kind: str
    message: str
    status: int | None = None
    retry_after_s: float | None = None


@dataclass(slots=True)
class StreamTally:
    """What one streamed completion was: the times of its content events, usage, how it ended.

    A content event is a chunk with non-empty text, reasoning or tool-call delta. The chunk that
    carries only the role is none. Times are nanoseconds of whatever clock the caller stamps with.

    Attributes:
        keep_text: Whether to keep the text itself; a load engine does not.
        content_ns: The time of every content event.
        first_answer_ns: The time of the first one that is not reasoning; None until then.
        prompt_tokens: The server's count of prompt tokens; None when it sent no usage.
        completion_tokens: The server's count of output tokens; None when it sent no usage.
        cached_tokens: Prompt tokens served from the prefix cache, where the server says.
        reasoning_tokens: Output tokens that were reasoning, where the server says.
        finish_reason: `stop`, `length`, `tool_calls`, ...; None until it came.
        model: The model name the server put in its chunks.
        request_id: The server's id of the completion.
        done: Whether `[DONE]` came.
        error: The failure the stream itself carried.
    """

    keep_text: bool = False
    content_ns: array[int] = field(default_factory=lambda: array("q"))
    first_answer_ns: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish_reason: str | None = None
    model: str = ""
    request_id: str = ""
    done: bool = False
    error: Failure | None = None
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def take(self, data: bytes, at_ns: int) -> None:
        """Read one event's data, received at `at_ns`. What follows an error is ignored."""
        if data == b"[DONE]":
            self.done = True
            return
        if self.error is not None:
            return
        try:
            chunk = parsed_json(data)
        except ValueError:
            words = data[:200].decode("utf-8", "replace")
            self.error = Failure("malformed_event", f"an event is not JSON: {words}")
            return
        if not isinstance(chunk, dict):
            self.error = Failure("malformed_event", f"an event is not an object: {data[:200]!r}")
            return
        if chunk.get("error"):
            self._take_error(chunk["error"])
            return
        try:
            self._take_chunk(chunk, at_ns)
        except (AttributeError, TypeError, KeyError, IndexError):
            self.error = Failure("malformed_event", f"an event has another shape: {data[:200]!r}")

    def failure(self) -> Failure | None:
        """Say, after the stream has ended, whether it counts as failed and why."""
        if self.error is not None:
            return self.error
        if not self.done:
            return Failure(
                "missing_done",
                f"the stream ended after {len(self.content_ns)} content events without [DONE]",
            )
        if self.finish_reason is None:
            return Failure("missing_finish_reason", "the stream ended without a finish_reason")
        if self.finish_reason in ("abort", "error"):
            return Failure(
                "aborted", f"the engine ended the request with finish_reason={self.finish_reason}"
            )
        if not self.content_ns:
            return Failure("empty", f"no content came (finish_reason={self.finish_reason})")
        return None

    def _take_error(self, error: object) -> None:
        message, code = error_words(error)
        self.error = Failure("in_stream_error", message, code)

    def _take_chunk(self, chunk: dict[str, Any], at_ns: int) -> None:
        usage = chunk.get("usage")
        if usage:
            self._take_usage(usage)
        choices = chunk.get("choices")
        if not choices:
            return
        if not self.model:
            self.model = str(chunk.get("model") or "")
            self.request_id = str(chunk.get("id") or "")
        choice = choices[0]
        if choice.get("finish_reason") is not None:
            self.finish_reason = str(choice["finish_reason"])
        # `delta` in chat chunks, `message` in a whole chat answer, neither in a text completion
        delta = choice.get("delta") or choice.get("message") or choice
        answer = delta.get("content") or choice.get("text")
        # vLLM 0.32 says `reasoning` (recorded 2026-11-30), older versions `reasoning_content`
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        calls = delta.get("tool_calls")
        if not (answer or thought or calls):
            return
        self.content_ns.append(at_ns)
        if (answer or calls) and self.first_answer_ns is None:
            self.first_answer_ns = at_ns
        if self.keep_text:
            if not isinstance(answer or "", str) or not isinstance(thought or "", str):
                raise TypeError("content is no text")
            if answer:
                self.text.append(answer)
            if thought:
                self.reasoning.append(thought)
            for position, call in enumerate(calls or ()):
                self._take_call(call, position)

    def _take_usage(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = _count(usage, "prompt_tokens", self.prompt_tokens)
        self.completion_tokens = _count(usage, "completion_tokens", self.completion_tokens)
        prompt_details = usage.get("prompt_tokens_details") or {}
        self.cached_tokens = _count(prompt_details, "cached_tokens", self.cached_tokens)
        details = usage.get("completion_tokens_details") or {}
        self.reasoning_tokens = _count(details, "reasoning_tokens", self.reasoning_tokens)

    def _take_call(self, call: dict[str, Any], position: int) -> None:
        index = call.get("index", position)
        kept = self.tool_calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = call.get("function") or {}
        kept["id"] = call.get("id") or kept["id"]
        kept["name"] = function.get("name") or kept["name"]
        kept["arguments"] += function.get("arguments") or ""


def _count(values: dict[str, Any], key: str, before: int | None) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) else before


def error_words(error: object) -> tuple[str, int | None]:
    """Return the message and the code of an error object, in whichever shape it came.

    vLLM answers `{"error": {"message", "type", "param", "code"}}`, but `{"error": "Unauthorized"}`
    without an API key and `{"detail": ...}` for an unknown route (recorded 2026-11-30).
    """
    if isinstance(error, dict):
        code = error.get("code")
        number = int(code) if isinstance(code, int | str) and str(code).isdigit() else None
        return str(error.get("message") or json.dumps(error)), number
    return str(error), None


def body_words(body: bytes, limit: int = 2000) -> str:
    """Return what a refusal's body says, in the server's words, cut at `limit` characters."""
    try:
        parsed = parsed_json(body)
    except ValueError:
        return body.decode("utf-8", "replace").strip()[:limit]
    if isinstance(parsed, dict):
        if parsed.get("error"):
            return error_words(parsed["error"])[0][:limit]
        for key in ("detail", "message"):
            if parsed.get(key):
                value = parsed[key]
                return (value if isinstance(value, str) else json.dumps(value))[:limit]
    return body.decode("utf-8", "replace").strip()[:limit]

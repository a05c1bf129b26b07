"""Requests, answers and routes of the rehearsal cloud, and errors in Google's form."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal
from urllib.parse import unquote

Json = dict[str, Any]

JSON_TYPE = "application/json; charset=UTF-8"

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


@dataclass
class Request:
    """One request, whole.

    Args:
        method: GET, POST, ...
        host: The host it was meant for, without the port.
        raw_path: The path as it was sent, still percent-encoded.
        raw_query: The query as it was sent.
        query: Decoded query values by name.
        headers: Header values by lower-case name.
        body: The body, at its start; a file because uploads can be large.
        size: Bytes of the body.
        scheme: https or http.
        account: The e-mail whose access token it carries; empty until that was checked.
        operation: The operation that a request to AWS asks for.
        connection: What tells this client's connection from others.
    """

    method: str
    host: str
    raw_path: str
    raw_query: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: IO[bytes]
    size: int
    scheme: str = "https"
    account: str = ""
    operation: str = ""
    connection: tuple[str, int] = ("", 0)
    _json: Any = field(default=None, repr=False)
    _parsed: bool = field(default=False, repr=False)

    @property
    def path(self) -> str:
        """The path, decoded."""
        return unquote(self.raw_path)

    @property
    def origin(self) -> str:
        """Scheme and host, e.g. `https://storage.googleapis.com`."""
        return f"{self.scheme}://{self.host}"

    def raw(self) -> bytes:
        """The whole body."""
        self.body.seek(0)
        return self.body.read()

    def parsed(self) -> Any:  # noqa: ANN401 (JSON)
        """The body as JSON; None where it is empty or no JSON."""
        if not self._parsed:
            self._parsed = True
            kind = self.headers.get("content-type", "")
            if self.size and ("json" in kind or not kind):
                try:
                    self._json = json.loads(self.raw())
                except ValueError:
                    self._json = None
        return self._json

    def json(self) -> Json:
        """The body as a JSON object, empty where there is none.

        Raises:
            ApiError: It is JSON, but no object.
        """
        value = self.parsed()
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ApiError(400, "Invalid JSON payload received. Root element must be a message.")
        return value

    def value(self, name: str, default: str = "") -> str:
        """The first value of a query parameter."""
        values = self.query.get(name)
        return values[0] if values else default

    def flag(self, name: str) -> bool:
        """Whether a query parameter is true (gcloud writes `True`)."""
        return self.value(name).lower() == "true"


@dataclass
class Response:
    """One answer.

    Args:
        status: HTTP status.
        body: A JSON value, or bytes as they are.
        headers: Headers; a content type is added where none is given.
        stream: The body in pieces, instead of `body`; it may end early with ConnectionResetError.
        close: Called once, when the answer was given or could not be.
    """

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    close: Callable[[], Awaitable[None]] | None = None

    def encoded(self) -> bytes:
        """The body as bytes."""
        if isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body, ensure_ascii=False).encode()


class ApiError(Exception):
    """An error in Google's form.

    Args:
        code: HTTP status.
        message: Google's sentence.
        status: The canonical name, by default the usual one of the code.
        details: `details` of the error, e.g. ErrorInfo, BadRequest, QuotaFailure.
        reason: Also give the older `errors` list, with this reason (Compute, Storage).
        headers: Extra headers.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        status: str = "",
        details: list[Json] | None = None,
        reason: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or _STATUS_NAMES.get(code, "UNKNOWN")
        self.details = details or []
        self.reason = reason
        self.headers = dict(headers or {})

    def body(self) -> Json:
        """The JSON body."""
        error: Json = {"code": self.code, "message": self.message, "status": self.status}
        if self.reason:
            error["errors"] = [{"message": self.message, "domain": "global", "reason": self.reason}]
        if self.details:
            error["details"] = self.details
        return {"error": error}

    def response(self) -> Response:
        """As an answer."""
        return Response(self.code, self.body(), self.headers)


def bad_request(violations: list[tuple[str, str]], *, message: str = "") -> ApiError:
    """400 with field violations, the way Cloud Run names what is wrong."""
    text = message or "; ".join(f"{name}: {problem}" for name, problem in violations)
    return ApiError(
        400,
        text,
        details=[
            {
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [
                    {"field": name, "description": problem} for name, problem in violations
                ],
            }
        ],
    )


def error_info(reason: str, metadata: Json, domain: str = "googleapis.com") -> Json:
    """An `ErrorInfo` detail."""
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": domain,
        "metadata": metadata,
    }


Answer = Response | Json
Handler = Callable[..., Answer] | Callable[..., Awaitable[Answer]]


@dataclass(frozen=True)
class Route:
    """One method of one API.

    Attributes:
        method: HTTP method.
        pattern: Matched against the undecoded path; its groups are the handler's arguments.
        handler: Takes the request and the groups, decoded.
        permission: What the caller must hold; empty where nothing is checked.
    """

    method: str
    pattern: re.Pattern[str]
    handler: Handler
    permission: str


class Api:
    """The routes of one Google API.

    Args:
        service: Its name, e.g. `run.googleapis.com`, which must be enabled in the project.
        title: How Google calls it in errors.
        hosts: Pattern of the host names it answers on; by default its name.
        always_on: Whether it works in a project that never enabled it.
        open_to_all: Whether it needs no access token (the token endpoint).
        errors: `legacy` adds the older `errors` list (Compute, Storage).
    """

    def __init__(
        self,
        service: str,
        title: str,
        *,
        hosts: str = "",
        always_on: bool = False,
        open_to_all: bool = False,
        errors: Literal["plain", "legacy"] = "plain",
    ) -> None:
        self.service = service
        self.title = title
        self.hosts = re.compile(hosts or re.escape(service))
        self.always_on = always_on
        self.open_to_all = open_to_all
        self.errors = errors
        self.routes: list[Route] = []

    def add(self, method: str, pattern: str, handler: Handler, permission: str = "") -> None:
        """Register a route.

        Args:
            method: HTTP method.
            pattern: Regular expression of the whole path.
            handler: Takes the request and the pattern's groups.
            permission: E.g. `run.services.get`.
        """
        self.routes.append(Route(method, re.compile(pattern), handler, permission))

    def find(self, request: Request) -> tuple[Route, tuple[str, ...]] | None:
        """The route of a request and the decoded groups of its path."""
        for route in self.routes:
            if route.method == request.method:
                match = route.pattern.fullmatch(request.raw_path)
                if match:
                    return route, tuple(unquote(group or "") for group in match.groups())
        return None


def page(request: Request, items: list[Json], key: str, *, default: int = 100) -> Json:
    """One page of a list, by `pageSize` and `pageToken`."""
    size = int(request.value("pageSize") or request.value("maxResults") or 0) or default
    token = request.value("pageToken")
    start = int(token) if token.isdecimal() else 0
    answer: Json = {}
    if items[start : start + size]:
        answer[key] = items[start : start + size]
    if start + size < len(items):
        answer["nextPageToken"] = str(start + size)
    return answer

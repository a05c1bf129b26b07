"""What Google's front end answers in place of a container: pages by case."""

from __future__ import annotations

from backends.rehearsal.cloud.web import Response

_PAGE = """
<html><head>
<meta http-equiv="content-type" content="text/html;charset=utf-8">
<title>{title}</title>
</head>
<body text=#000000 bgcolor=#ffffff>
<h1>Error: {heading}</h1>
<h2>{text}</h2>
<h2></h2>
</body></html>
"""

_HTML = {"content-type": "text/html; charset=UTF-8"}
_TEXT = {"content-type": "text/plain; charset=utf-8"}

FORBIDDEN = _PAGE.format(
    title="403 Forbidden",
    heading="Forbidden",
    text="Your client does not have permission to get URL <code>{path}</code> from this server.",
)
UNAUTHORIZED = _PAGE.format(
    title="401 Unauthorized",
    heading="Unauthorized",
    text="Your client does not have permission to the requested URL <code>{path}</code>.",
)
NOT_FOUND = _PAGE.format(
    title="404 Page not found",
    heading="Page not found",
    text="The requested URL was not found on this server.",
)
DISABLED = _PAGE.format(
    title="503 Server Error", heading="Server Error", text="Service is disabled."
)
NOT_AVAILABLE = _PAGE.format(
    title="503 Server Error",
    heading="Server Error",
    text="The service you requested is not available yet.<p>Please try again in 30 seconds.",
)
NO_INSTANCE = "Rate exceeded."
UPSTREAM_RESET = (
    "upstream connect error or disconnect/reset before headers. reset reason: connection "
    "termination"
)
UPSTREAM_TIMEOUT = "upstream request timeout"


def forbidden(path: str) -> Response:
    """No invoker, or no token at all."""
    return Response(403, FORBIDDEN.replace("{path}", path).encode(), _HTML)


def unauthorized(path: str, why: str) -> Response:
    """A token that could not be verified."""
    challenge = (
        f'Bearer error="invalid_token" error_description="The access token {why}"'
        if why
        else "Bearer"
    )
    headers = _HTML | {"www-authenticate": challenge}
    return Response(401, UNAUTHORIZED.replace("{path}", path).encode(), headers)


def not_found() -> Response:
    """No service has that URL."""
    return Response(404, NOT_FOUND.encode(), _HTML)


def disabled() -> Response:
    """Manual scaling at zero instances."""
    return Response(503, DISABLED.encode(), _HTML)


def not_available() -> Response:
    """No revision that could answer, or its container died while starting."""
    return Response(503, NOT_AVAILABLE.encode(), _HTML)


def no_instance() -> Response:
    """Every instance is full and no further one may be started."""
    return Response(429, NO_INSTANCE.encode(), _TEXT)


def upstream_reset() -> Response:
    """The container broke the connection."""
    return Response(503, UPSTREAM_RESET.encode(), _TEXT)


def upstream_timeout() -> Response:
    """The container took longer than the service's timeout."""
    return Response(504, UPSTREAM_TIMEOUT.encode(), _TEXT)

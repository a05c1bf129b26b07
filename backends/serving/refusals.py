"""Turns what an endpoint refused, or how it failed, into an error an agent can act on.

One place decides what a status means (see the recorded error bodies of vLLM 0.32.0, 2026-11-30),
so the query, the health checks and the benchmark's preflight say the same.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime

from backends.core.errors import (
    EndpointAuthError,
    EndpointBusyError,
    EndpointError,
    EndpointNotReadyError,
    EndpointRejectedError,
)
from backends.serving.wire import Failure, body_words

_LIMIT = re.compile(r"(?:maximum context length is|max_model_len=)\s*(\d+)")


def context_limit_named(words: str) -> int | None:
    """Return the context limit in tokens that a refusal names, or None when it names none."""
    match = _LIMIT.search(words)
    return int(match.group(1)) if match else None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header (a number or an HTTP date), never negative."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    if value.replace(".", "", 1).isdigit():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, calendar.timegm(when.utctimetuple()) - time.time())


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with every secret in it replaced by `***`.

    A server may echo the header it refused; its words are shown to a model.
    """
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    return text


def refusal(
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    *,
    what: str,
    served: Sequence[str] = (),
    secrets: Iterable[str] = (),
) -> EndpointError:
    """Return the error for an answer that is not a success.

    Args:
        status: The HTTP status, 300 or above.
        body: The answer's body, in whatever form it came.
        headers: Header values by lower-case name.
        what: What was asked of whom, for the message: "a chat completion of http://...".
        served: Model ids the endpoint serves, named when the model was wrong.
        secrets: Values that must not appear in the message.
    """
    words = mask(body_words(body), secrets)
    return refusal_from_words(
        status, words, what=what, served=served, retry_after=retry_after_s(headers)
    )


def refusal_from_words(
    status: int | None,
    words: str,
    *,
    what: str,
    served: Sequence[str] = (),
    retry_after: float | None = None,
) -> EndpointError:
    """Return the error for a status and the server's words; `status` None means it had none."""
    if status in (401, 403):
        return _unauthorised(status, words, what)
    if status == 429:
        return EndpointBusyError(
            f"{what} was refused: no room for another request (429).",
            status=status,
            words=words,
            cause="The engine's queue limit or the platform's concurrency limit is reached.",
            next_action=_wait(retry_after, "or raise the instances or their concurrency"),
            retry_after_s=retry_after,
        )
    if status in (502, 503, 504):
        return EndpointNotReadyError(
            f"{what} was refused: the endpoint is not ready ({status}).",
            status=status,
            words=words,
            cause="The model is still loading, the engine process has died, or the platform has "
            "no instance to send the request to.",
            next_action=_wait(
                retry_after, "watch it with wait_until_ready; if it stays so, read get_logs"
            ),
            retry_after_s=retry_after,
        )
    if status is not None and 300 <= status < 400:
        return EndpointError(
            f"{what} was sent elsewhere ({status}); that is not followed.",
            status=status,
            words=words,
            cause="The base URL is not the endpoint's own: a login page, a moved service, or http "
            "where https is spoken.",
            next_action="Set the address that it leads to.",
        )
    if status is not None and 400 <= status < 500:
        return _rejected(status, words, what, served)
    return EndpointError(
        f"{what} failed" + ("." if status is None else f" with status {status}."),
        status=status,
        words=words,
        cause="The engine failed while it worked on the request.",
        next_action="Read get_logs for the engine's traceback, then try once more.",
        retry_after_s=retry_after,
    )


def stream_failure(
    failure: Failure, *, what: str, content_events: int, secrets: Iterable[str] = ()
) -> EndpointError:
    """Return the error for a stream that began with 200 and did not end well."""
    words = mask(failure.message, secrets)
    if failure.kind == "in_stream_error" and failure.status is not None:
        error = refusal_from_words(failure.status, words, what=what)
        error.message += (
            f" The error came inside the stream, after {content_events} content events."
        )
        error.args = (error.message,)
        return error
    causes = {
        "in_stream_error": "The engine failed while it was generating.",
        "missing_done": "The server or a proxy between closed the stream early; the engine may "
        "have died.",
        "missing_finish_reason": "The server ended the stream without saying why.",
        "malformed_event": "Something other than vLLM's event stream came back.",
        "aborted": "The engine gave the request up, for instance while it was shutting down.",
        "empty": "The model ended its turn at once, or max_tokens left no room for an answer.",
    }
    return EndpointError(
        f"{what} did not finish after {content_events} content events: {failure.kind}.",
        words=words,
        cause=causes.get(failure.kind, "The stream broke."),
        next_action="Check the endpoint with verify_model_health and read get_logs.",
    )


def _unauthorised(status: int, words: str, what: str) -> EndpointError:
    if status == 401:
        cause = "The API key or token is missing, wrong or expired."
    else:
        cause = "The identity is known but may not call this endpoint (for instance IAM)."
    return EndpointAuthError(
        f"{what} was refused: not authorised ({status}).",
        status=status,
        words=words,
        cause=cause,
        next_action="Check the API key or login this endpoint uses; get_help shows which settings "
        "hold it and whether the login is live.",
    )


def _rejected(status: int, words: str, what: str, served: Sequence[str]) -> EndpointError:
    limit = context_limit_named(words)
    lowered = words.lower()
    if status == 404 and "model" in lowered and "does not exist" in lowered:
        names = ", ".join(served)
        cause = "The endpoint does not serve a model of that name."
        if names:
            cause += f" It serves: {names}."
        next_action = (
            f"Ask for {served[0]}." if served else "Read the served names with get_status."
        )
    elif limit is not None:
        cause = f"Prompt and output together do not fit the context of {limit} tokens."
        next_action = (
            f"Shorten the prompt or lower max_tokens to fit {limit} tokens, or deploy again with a "
            "larger max_model_len."
        )
    elif "tool choice requires" in lowered:
        cause = "The server was started without a tool-call parser."
        next_action = (
            "Start it with --enable-auto-tool-choice and --tool-call-parser, or leave tools out."
        )
    elif status in (404, 405):
        cause = "The server does not have this route: not vLLM, or a wrong base URL."
        next_action = "Check the base URL; it must end before /v1."
    elif status == 413:
        cause = "The request body is larger than the platform allows."
        next_action = "Send a shorter prompt."
    else:
        cause = "The engine does not accept a field of the request."
        next_action = "Correct the field that the words name."
    return EndpointRejectedError(
        f"{what} was rejected ({status}).",
        status=status,
        words=words,
        cause=cause,
        next_action=next_action,
    )


def _wait(seconds: float | None, otherwise: str) -> str:
    first = "Try again later" if seconds is None else f"Try again in {seconds:.0f} s"
    return f"{first}, {otherwise}."

"""An endpoint that is reached through SageMaker: what signs its requests, what it does not pass on.

SageMaker hands a container's `/invocations` through and nothing else: no `/v1/models`, no
`/metrics`, no `/tokenize`. What the container refuses comes as a `ModelError` with status 424
around the container's own status and words; what SageMaker refuses names its type in
`x-amzn-errortype` or `__type` (SageMaker Runtime API, `InvokeEndpointWithResponseStream`, Errors;
read 2026-11-30).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.core.errors import EndpointRejectedError, UnauthenticatedError
from backends.serving.engine.signing import AwsCredentials, CredentialProvider

if TYPE_CHECKING:
    from botocore.session import Session  # type: ignore[import-untyped]

MODEL_ERROR = 424
_STATUS_OF = {
    "ModelNotReadyException": 503,
    "ServiceUnavailable": 503,
    "ServiceUnavailableException": 503,
    "ThrottlingException": 429,
    "Throttling": 429,
    "AccessDeniedException": 403,
    "ExpiredTokenException": 403,
    "InvalidSignatureException": 403,
    "UnrecognizedClientException": 403,
}
"""What an error of SageMaker's means as a status; the others keep the one they came with."""
_NO_COPY = "has no capacity to process this request"


def credentials_of(session: Session) -> CredentialProvider:
    """Return a provider of the credentials that a botocore session finds and keeps fresh.

    Whatever the session's chain finds (environment, profile, SSO, assumed role, instance) is
    looked up on the first call and refreshed by botocore shortly before it expires, so a run may
    be longer than a session token lives.

    Args:
        session: A `botocore.session.Session`; of a `boto3.Session` its `_session`.

    Returns:
        The provider; it raises `UnauthenticatedError` where there are none or they cannot be
        refreshed.
    """

    async def provide() -> AwsCredentials:
        return await asyncio.to_thread(_frozen, session)

    return provide


def _frozen(session: Session) -> AwsCredentials:
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

    try:
        found = session.get_credentials()
        keys = found and found.get_frozen_credentials()
    except BotoCoreError as error:
        raise UnauthenticatedError(
            "The AWS credentials could not be read or refreshed.",
            words=str(error),
            next_action="Log in again, for instance with `aws sso login`.",
        ) from None
    if not keys or not keys.access_key:
        raise UnauthenticatedError(
            "There are no AWS credentials to sign requests with.",
            cause="Neither the environment nor a profile, login or instance role gives any.",
            next_action="Run `aws configure` or `aws sso login`, or set AWS_PROFILE.",
        )
    return AwsCredentials(keys.access_key, keys.secret_key, keys.token)


def not_passed_on(what: str) -> EndpointRejectedError:
    """Return the error for something that SageMaker has no way to ask a container."""
    return EndpointRejectedError(
        f"SageMaker passes on no {what}.",
        cause="Only invocations reach the container; the platform itself asks it for its health.",
        next_action="Ask the model with query_model, or the platform with get_status and get_logs.",
    )


def unwrapped(status: int, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    """Return the status and the words of a refusal as the one who refused meant them.

    Args:
        status: As it came from SageMaker.
        headers: By lower-case name.
        body: As it came.
    """
    parsed = _object(body)
    if status == MODEL_ERROR:
        theirs, words = parsed.get("OriginalStatusCode"), parsed.get("OriginalMessage")
        if isinstance(theirs, int) and isinstance(words, str) and theirs >= 300:
            return theirs, words.encode()
        status = 500
    kind = headers.get("x-amzn-errortype") or str(parsed.get("__type") or "")
    kind = kind.partition(":")[0].rpartition("#")[2]
    words = parsed.get("Message") or parsed.get("message")
    if isinstance(words, str):
        body = f"{kind}: {words}".encode() if kind else words.encode()
        if _NO_COPY in words:
            return 503, body  # a ValidationError, 400, though nothing is wrong with the request
    return _STATUS_OF.get(kind, status), body


def _object(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}

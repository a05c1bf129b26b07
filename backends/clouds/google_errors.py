"""What Google said, as one of our errors: for gcloud's exit code and stderr, and for REST answers.

The texts are those of gcloud 528 (2026-11-30) and of Google's error bodies. gcloud exits 1 for
every API error, 2 for a usage error, and sometimes 0 for a list that was refused, so what counts is
what it wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from backends.clouds.process import Finished
from backends.clouds.rules import MAX_WORDS, Rule, command_of, error_by, rule
from backends.core.errors import (
    ApiDisabledError,
    CapacityError,
    CloudError,
    ConflictError,
    DevopsError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    QuotaError,
    RateLimitedError,
    UnauthenticatedError,
    UnavailableError,
)

LOGIN = "gcloud auth login --update-adc"
"""The one command that mends both the CLI's login and application-default credentials."""

# The first that is found counts: the more telling come first.
RULES: tuple[Rule, ...] = (
    rule(
        UnauthenticatedError,
        r"do not currently have an active account|UNAUTHENTICATED|invalid_grant"
        r"|reauthentication|problem refreshing (?:your )?(?:current )?auth tokens"
        r"|invalid authentication credentials|No identity token can be obtained",
        "There is no login, or it has expired.",
        f"Ask the person to run: {LOGIN}",
    ),
    rule(
        ApiDisabledError,
        r"(?:service: (?P<service>[\w.-]+\.googleapis\.com).*)?"
        r"(?:SERVICE_DISABLED|has not been used in project|API \[(?P<api>[\w.]+)\] not enabled)",
        "The API is not enabled in this project.",
        "Ask the person to run: gcloud services enable {service}",
    ),
    rule(
        RateLimitedError,
        r"RATE_LIMIT_EXCEEDED|requests? per (?:minute|second|day)"
        r"|Quota exceeded for quota metric|rateLimitExceeded|Too Many Requests",
        "Too many requests of this kind were made in the last minute.",
        "Wait a minute, then call again.",
    ),
    rule(
        QuotaError,
        r"Quota violated:\s*(?P<quota>\w+)|Quota '(?P<metric>[\w-]+)' exceeded"
        r"|Quota limit '[\w-]+' has been exceeded"
        r"|do not have quota for using GPUs|Quota exceeded for total allowable"
        r"|quota restrictions|QUOTA_EXCEEDED|quotaExceeded|may not exceed \d+\.\s+Consider running",
        "The project's quota is too small for what was asked, counting all that it allows already.",
        "Call find_capacity for the limits by region and what to request by name.",
    ),
    rule(
        CapacityError,
        r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources|stockout"
        r"|no available (?:capacity|instance)|resource pool exhausted|no more capacity in the zone",
        "Quota is there, but the hardware is not free here now.",
        "Try another region or zone (find_capacity), or again later.",
    ),
    rule(
        RateLimitedError,
        r"RESOURCE_EXHAUSTED|HTTPError 429|'status': 429",
        "Too many requests, or a limit of the API, was reached.",
        "Wait a minute, then call again.",
    ),
    rule(
        PermissionDeniedError,
        r"PERMISSION_DENIED|does not have (?:permission|[\w.]+ access)|HTTPError 403"
        r"|Permission '?[\w.]+'? (?:denied|is required)|'status': 403",
        "The login lives, but may not do this. It does not mean that nothing is there.",
        "Ask the project's owner for a role with {permission}, or log in as someone who has it.",
    ),
    rule(
        NotFoundError,
        r"NOT_FOUND|Cannot find (?:service|revision)|could not be found|was not found"
        r"|not found: 404|HTTPError 404|matched no objects|does not exist"
        r"|Policy binding .*not found",
        "There is nothing of that name in that project and place.",
        "Check the name and the region with list_deployments.",
    ),
    rule(
        ConflictError,
        r"subject of a conflict|ALREADY_EXISTS|already exists|ABORTED|HTTPError 409"
        r"|Conflict for resource|already own|concurrent policy changes",
        "It exists already, or somebody changed it at the same moment.",
        "Look at it with get_status, then plan again.",
    ),
    rule(
        UnavailableError,
        r"UNAVAILABLE|'status': 50[0234]|HTTPError 50[0234]|currently unavailable|INTERNAL:",
        "Google's control plane does not answer well now.",
        "Try again in a minute.",
    ),
    rule(
        UnavailableError,
        r"NameResolutionError|ConnectionError|Network is unreachable|Connection refused"
        r"|Max retries exceeded|SSLError|CERTIFICATE_VERIFY_FAILED|ProxyError",
        "Google could not be reached from this machine.",
        "Check the network, proxy and certificates of this machine.",
    ),
    rule(
        CloudError,
        r"unrecognized arguments|Invalid choice|argument [-\w]+: |must be specified",
        "This gcloud does not know a flag or wants another one: it is older or newer than 528.",
        "Ask the person to run: gcloud components update (or their package manager's update).",
    ),
    rule(
        InvalidInputError,
        r"INVALID_ARGUMENT|FAILED_PRECONDITION|Invalid value|HTTPError 400|\(gcloud[^)]*\) spec\.",
        "Google does not accept a value of the request.",
        "Correct what the words name, and plan again.",
    ),
)

_PREFIX = re.compile(r"^ERROR: \((gcloud\.[\w.-]+)\)\s*", re.MULTILINE)
_NOISE = re.compile(
    r"^(?:Deploying\.*.*|failed|Deployment failed|.*\.{5,}\s*failed?|Creating Revision.*)$",
    re.MULTILINE,
)
_SOME_FAILED = re.compile(r"WARNING: Some requests did not succeed|WARNING: .*(?:unreachable)")
_PERMISSION = re.compile(
    r"[Pp]ermission '?([a-z]\w*(?:\.\w+)+)'?|(?:have|Required) '?([a-z]\w*(?:\.\w+){2,})'?"
)
_RETRY_AFTER = re.compile(r"[Rr]etry[- ][Aa]fter[:'\s=]+(\d+)|'retry-after': '(\d+)'")
_QUOTAS = re.compile(r"(\w+) requested: (\d+)\s+allowed: (\d+)")


def judge(finished: Finished) -> str:
    """The output of a gcloud command that did what it should.

    Returns:
        Its stdout.

    Raises:
        DevopsError: It did not, in whatever way it said so.
    """
    if finished.code < 0:
        raise OutcomeUnknownError(
            f"{command_of(finished.argv)} was ended by signal {-finished.code}.",
            words=finished.stderr[-MAX_WORDS:],
            cause="It was stopped in the middle. What it was asked to do may have happened.",
            next_action="Call list_deployments before trying again.",
        )
    if finished.code == 0 and not _SOME_FAILED.search(finished.stderr):
        return finished.stdout
    raise error_of(finished.stderr, command_of(finished.argv))


def error_of(stderr: str, what: str) -> DevopsError:
    """The error for what gcloud wrote.

    Args:
        stderr: Its error output.
        what: The command, for the message.
    """
    words = _words(stderr)
    return _matched(words, f"{what} was refused") or CloudError(
        f"{what} failed.", words=words, next_action="Read its words; run it by hand to see more."
    )


def http_error(
    status: int, body: bytes | str, what: str, headers: Mapping[str, str] | None = None
) -> DevopsError:
    """The error for a REST answer that is not a success.

    Args:
        status: The HTTP status.
        body: The answer's body.
        what: What was asked, for the message.
        headers: Header values by lower-case name.
    """
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    words, reasons = _google_words(text)
    found = _matched(f"{reasons} {words}", f"{what} was refused ({status})", words)
    by_status: dict[int, type[DevopsError]] = {
        401: UnauthenticatedError,
        403: PermissionDeniedError,
        404: NotFoundError,
        409: ConflictError,
        429: RateLimitedError,
    }
    wanted = by_status.get(status) or (UnavailableError if status >= 500 else None)
    telling = (ApiDisabledError, QuotaError, CapacityError, RateLimitedError)
    if wanted is not None and not isinstance(found, (wanted, *telling)):
        known = next(known for known in RULES if known.error is wanted)
        found = _made(known, {}, f"{what} was refused ({status})", words)
    error = found or CloudError(f"{what} failed with status {status}.", words=words)
    wait = (headers or {}).get("retry-after", "")
    if wait.isdigit():
        error.retry_after_s = float(wait)
    return error


def quotas_named(words: str) -> dict[str, tuple[int, int]]:
    """Quotas a refusal names: id -> (requested, allowed), in the quota's own unit."""
    return {name: (int(asked), int(allowed)) for name, asked, allowed in _QUOTAS.findall(words)}


def _matched(text: str, message: str, words: str | None = None) -> DevopsError | None:
    for known in RULES:
        found = known.pattern.search(text)
        if found:
            groups = {key: value for key, value in found.groupdict().items() if value}
            return _made(known, groups, f"{message}.", text if words is None else words)
    return None


def _made(known: Rule, groups: dict[str, str], message: str, words: str) -> DevopsError:
    service = groups.get("service") or groups.get("api") or _service_in(words)
    permission = _PERMISSION.search(words)
    texts = {
        "service": service,
        "permission": next(filter(None, permission.groups())) if permission else "that permission",
    }
    next_action = known.next_action.format(**texts)
    error = error_by(known, message, words, next_action)
    if isinstance(error, QuotaError):
        named = quotas_named(words)
        name = groups.get("quota") or groups.get("metric") or ", ".join(named)
        if name:
            error.details["quota"] = ", ".join(named) or name
    wait = _RETRY_AFTER.search(words)
    if wait:
        error.retry_after_s = float(wait.group(1) or wait.group(2))
    return error


def _service_in(words: str) -> str:
    found = re.search(r"apis/api/([\w.-]+)/overview|\b([a-z]+\.googleapis\.com)\b", words)
    return (found.group(1) or found.group(2)) if found else "the API named"


def _words(stderr: str) -> str:
    """What gcloud itself said, without progress and what it says before the error."""
    text = _PREFIX.sub("", _NOISE.sub("", stderr))
    found = _PREFIX.search(stderr)
    if found:
        text = _PREFIX.sub("", stderr[found.start() :])
    return text.strip()[-MAX_WORDS:]


def _google_words(text: str) -> tuple[str, str]:
    """The message of a Google error body, and its status and reasons in one line."""
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return text.strip()[:MAX_WORDS], ""
    if isinstance(error, str):  # the token endpoint's shape
        return f"{error}: {text.strip()[:MAX_WORDS]}", error
    reasons = [str(error.get("status", ""))]
    for detail in error.get("details", []):
        if isinstance(detail, dict):
            service = detail.get("metadata", {}).get("service", "")
            reasons.append(f"service: {service} {detail.get('reason', '')}")
            violations = detail.get("fieldViolations", [])
            reasons += [str(violation.get("description", "")) for violation in violations]
    reasons += [str(item.get("reason", "")) for item in error.get("errors", [])]
    return str(error.get("message", ""))[:MAX_WORDS], " ".join(reasons)

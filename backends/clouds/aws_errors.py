"""What AWS said, as one of our errors: for the CLI's exit code and stderr, and for botocore.

The CLI's two generations say the same in different dress (1.45 and 2.38, 2026-11-30):

| | version 1 | version 2 |
|---|---|---|
| a service refused | 255 | 254 |
| a wrong argument | 2 | 252 |
| no credentials, no region | 255 | 253 |
| no connection | 255 | 255 |
| stderr | `An error occurred (Code) when calling the Op operation: ...` | after `aws: [ERROR]: ` |

So the words count, and the exit code only says whether it worked. The texts of SageMaker's refusals
are those of the reference repository and of public reports, read by 2026-11-30.
"""

from __future__ import annotations

import re
from typing import Any

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
    NotSetUpError,
    OutcomeUnknownError,
    PermissionDeniedError,
    QuotaError,
    RateLimitedError,
    UnauthenticatedError,
    UnavailableError,
)

LOGIN = "aws login"
"""What mends a login of nobody knows which kind; `AwsLogin.mend` knows better where it can."""

_USAGE = 300
_LOOK = "Call get_status or list_deployments before trying again."

# The first that is found counts: the more telling come first. They are searched in
# "Code: message", or in all that the CLI wrote where it is no service's refusal.
RULES: tuple[Rule, ...] = (
    rule(
        CloudError,
        r"Invalid choice|Unknown options|arguments are required|Unknown parameter in "
        r"|^usage: aws|UnknownOperation|found invalid choice",
        "This aws does not know a command or option, or wants another one: it is older than what "
        "is used here (1.45 or 2.38).",
        "Ask the person to update the AWS CLI.",
    ),
    rule(
        RateLimitedError,
        r"CreateOAuth2Token.*Rate exceeded|\(429\) when calling the CreateOAuth2Token",
        "The login was renewed too often in a short time.",
        "Wait a minute, then call again.",
    ),
    rule(
        UnauthenticatedError,
        r"ExpiredToken|RequestExpired|(?:session|token|credentials?)(?: \w+){0,3} (?:has|have) "
        r"expired|expired or is otherwise invalid|Please reauthenticate|refresh failed"
        r"|UnauthorizedSSOToken|SSO[ _]?Token|Error loading SSO|aws sso login"
        r"|credentials were refreshed, but the refreshed credentials are still expired",
        "The login has expired.",
        "Ask the person to run: {login}",
    ),
    rule(
        UnauthenticatedError,
        r"Unable to locate credentials|NoCredentials|Partial credentials|MissingAuthenticationToken"
        r"|profile \(.*?\) could not be found|Error when retrieving (?:credentials|token)"
        r"|Unable to load credentials|NoAuthTokenError|source profile .* must have credentials",
        "There is no login on this machine.",
        "Ask the person to run: {login}",
    ),
    rule(
        UnauthenticatedError,
        r"InvalidClientTokenId|UnrecognizedClient|SignatureDoesNotMatch|InvalidSignature"
        r"|IncompleteSignature|AuthFailure|security token included in the request is invalid"
        r"|InvalidAccessKeyId",
        "AWS does not know these credentials: they were deleted, this machine's clock is wrong, or "
        "the region is not enabled for the account.",
        "Ask the person to run: {login}",
    ),
    rule(
        ApiDisabledError,
        r"OptInRequired|SubscriptionRequired|region is (?:not enabled|disabled)",
        "The service or the region is not enabled for this account.",
        "Ask the person to enable it in the console (Account > AWS Regions), or use another one.",
    ),
    rule(
        RateLimitedError,
        r"Throttl|TooManyRequests|RequestLimitExceeded|Rate exceeded|RequestThrottled|SlowDown"
        r"|BandwidthLimitExceeded|PriorRequestNotComplete",
        "Too many requests of this kind were made in a short time.",
        "Wait half a minute, then call again.",
    ),
    rule(
        CapacityError,
        r"Insufficient(?:Instance|Host)?Capacity|Unable to provision requested ML compute capacity",
        "Quota is there, but the hardware is not free in this region now.",
        "Try another region or instance type of the same GPU (find_capacity), or again later.",
    ),
    rule(
        QuotaError,
        r"account-level service limit '(?P<quota>[^']+)'|ResourceLimitExceeded"
        r"|ServiceQuotaExceeded|LimitExceeded",
        "The account's quota is too small. An endpoint holds quota for every instance type that it "
        "lists, also for those it does not run on.",
        "Call find_capacity for the quotas by region and type, and what to request by name.",
    ),
    rule(
        PermissionDeniedError,
        r"AccessDenied|UnauthorizedOperation|not authorized to perform|AuthorizationError"
        r"|explicit deny|Forbidden",
        "The login lives, but may not do this. It does not mean that nothing is there.",
        "Ask the account's administrator to allow {action}, or log in as someone who may.",
    ),
    rule(
        ConflictError,
        r"Cannot update in-progress",
        "It is still being created or changed, and SageMaker refuses every change until it is "
        "InService or Failed.",
        "Call wait_until_ready, then again.",
    ),
    rule(
        ConflictError,
        r"Cannot \w+ inference component .* while it is in state",
        "It is still being made or scaled, and SageMaker refuses every change until that is over.",
        "Call wait_until_ready, then again.",
    ),
    rule(
        ConflictError,
        r"Could not assume role",
        "The role was made moments ago and AWS does not know it everywhere yet, or its trust "
        "policy does not name sagemaker.amazonaws.com.",
        "Try again in half a minute; then look at the role's trust policy.",
    ),
    rule(
        ConflictError,
        r"already exist|EntityAlreadyExists|DeleteConflict|ResourceInUse|ConflictException"
        r"|ConcurrentModification|OperationAborted|is in use by",
        "It exists already, or something else still uses it.",
        "Look at it with get_status, then plan again.",
    ),
    rule(
        NotFoundError,
        r"Could not find|does not exist|NoSuchEntity|ResourceNotFound|NotFoundException"
        r"|NoSuchResource|ObjectNotFound|cannot be found|\bnot found\b",
        "There is nothing of that name in that account and region.",
        "Check the name and the region with list_deployments.",
    ),
    rule(
        CloudError,
        r"ModelError|ModelStreamError",
        "The container answered, but not with success; its own words are in the message.",
        "Read its words; get_logs has more.",
    ),
    rule(
        OutcomeUnknownError,
        # Behind a proxy urllib3 calls every broken connection one that it could not make.
        r"Read timeout on endpoint|Connection was closed before we received a valid response"
        r"|Connection reset by peer|Failed to connect to proxy",
        "The answer was lost on its way. What was asked for may have happened.",
        _LOOK,
    ),
    rule(
        UnavailableError,
        r"Could not connect to the endpoint URL|Connect timeout|SSL validation failed"
        r"|CERTIFICATE_VERIFY_FAILED|Connection refused"
        r"|HTTPClientError|Network is unreachable",
        "AWS could not be reached from this machine, or has no such region.",
        "Check the region's name, and the network, proxy and certificates of this machine.",
    ),
    rule(
        UnavailableError,
        r"ServiceUnavailable|InternalFailure|InternalServer|InternalError|ServiceException"
        r"|ModelNotReady|\(50[0234]\)|ServiceLinkedRoleFailure",
        "AWS does not answer well now.",
        "Try again in a minute; if something was to be changed, look first whether it was.",
    ),
    rule(
        NotSetUpError,
        r"must specify a region|NoRegionError",
        "No AWS region is set.",
        "Ask the person to set AWS_REGION.",
    ),
    rule(
        InvalidInputError,
        r"Validation(?:Exception|Error)|InvalidParameter|Parameter validation failed|Malformed"
        r"|InvalidRequest|InvalidInput|Invalid(?:\w*)Exception|Error parsing parameter",
        "AWS does not accept a value of the request.",
        "Correct what the words name, and plan again.",
    ),
)

_REFUSED = re.compile(
    r"An error occurred \((?P<code>[\w.]+)\) when calling the (?P<operation>\w+) operation"
    r"(?: \(reached max retries: \d+\))?: (?P<message>.*)",
    re.DOTALL,
)
_PREFIX = re.compile(r"^\s*aws: \[ERROR\]:\s*", re.IGNORECASE)
_ACTION = re.compile(r"not authorized to perform:? ([\w*-]+:[\w*]+)")
_LIMIT = re.compile(
    r"service limit '(?P<quota>[^']+)' is (?P<limit>\d+) \w+, with current utilization of "
    r"(?P<used>\d+) \w+ and a request delta of (?P<more>\d+)"
)


def judge(finished: Finished, *, login: str = LOGIN) -> str:
    """The output of an aws command that did what it should.

    Args:
        finished: The command.
        login: The command that mends a login that has expired.

    Returns:
        Its stdout.

    Raises:
        DevopsError: It did not, in whatever way it said so.
    """
    if finished.code == 0:
        return finished.stdout
    what = command_of(finished.argv)
    if finished.code < 0 or "KeyboardInterrupt" in finished.stderr:
        how = f"signal {-finished.code}" if finished.code < 0 else "an interrupt"
        raise OutcomeUnknownError(
            f"{what} was ended by {how}.",
            words=finished.stderr[-MAX_WORDS:],
            cause="It was stopped in the middle. What it was asked to do may have happened.",
            next_action=_LOOK,
        )
    raise error_of(finished.stderr, what, login=login)


def error_of(stderr: str, what: str, *, login: str = LOGIN) -> DevopsError:
    """The error for what the CLI wrote, whichever generation it is of.

    Args:
        stderr: Its error output.
        what: The command, for the message.
        login: The command that mends a login that has expired.
    """
    words = _PREFIX.sub("", stderr).strip()
    found = _REFUSED.search(words)
    if found is not None:
        return refusal(found["code"], found["message"].strip(), f"{what} was refused", login=login)
    # Around a usage error stands how to get help, and after it everything that would be right.
    usage = words.find("aws: error: ")
    words = words[usage:][:_USAGE] if usage >= 0 else words[-MAX_WORDS:]
    return _matched(words, f"{what} failed", words, login) or CloudError(
        f"{what} failed.", words=words, next_action="Read its words; run it by hand to see more."
    )


def refusal(code: str, message: str, what: str, *, login: str = LOGIN) -> DevopsError:
    """The error for a service's refusal.

    Args:
        code: AWS's code, such as `ValidationException`.
        message: AWS's sentence.
        what: What was refused, for the message, without a full stop.
        login: The command that mends a login that has expired.
    """
    words = f"{code}: {message}"[:MAX_WORDS]
    return _matched(words, what, words, login) or CloudError(
        f"{what}.", words=words, next_action="Read its words; AWS's documentation has more."
    )


def botocore_error(error: Exception, what: str, *, login: str = LOGIN) -> DevopsError:
    """The error for what botocore raised.

    Args:
        error: Of botocore: a service's refusal, or one of its own.
        what: What was asked, for the message.
        login: The command that mends a login that has expired.
    """
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict) and isinstance(response.get("Error"), dict):
        refused = response["Error"]
        made = refusal(
            str(refused.get("Code", "")),
            str(refused.get("Message", "")),
            f"{what} was refused",
            login=login,
        )
        headers = (response.get("ResponseMetadata") or {}).get("HTTPHeaders") or {}
        wait = str(headers.get("retry-after", ""))
        if wait.isdigit():
            made.retry_after_s = float(wait)
        return made
    words = f"{type(error).__name__}: {error}"[:MAX_WORDS]
    return _matched(words, f"{what} failed", words, login) or CloudError(
        f"{what} failed.", words=words
    )


def limit_named(words: str) -> tuple[str, int, int] | None:
    """The quota a refusal names: its name, its value and what is used of it."""
    found = _LIMIT.search(words)
    return (found["quota"], int(found["limit"]), int(found["used"])) if found else None


def _matched(text: str, message: str, words: str, login: str) -> DevopsError | None:
    for known in RULES:
        found = known.pattern.search(text)
        if found:
            return _made(known, found, f"{message}.", words, login)
    return None


def _made(known: Rule, found: re.Match[str], message: str, words: str, login: str) -> DevopsError:
    action = _ACTION.search(words)
    next_action = known.next_action.format(
        login=login, action=action[1] if action else "what the words name"
    )
    error = error_by(known, message, words, next_action)
    if isinstance(error, QuotaError):
        named = limit_named(words)
        quota = named[0] if named else found.groupdict().get("quota")
        if quota:
            error.details["quota"] = quota
        if named:
            error.details |= {"limit": str(named[1]), "used": str(named[2])}
    return error

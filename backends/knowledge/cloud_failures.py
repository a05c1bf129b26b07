"""What any cloud says whatever is asked of it: logins, rights, switches, limits, policies.

For pasted words above all; what our own calls meet is told apart in `clouds/*_errors.py`. Shapes
are those of Google's API errors (google.rpc.Status), gcloud 528 and the AWS CLI 2, 2026-11-30.
"""

from __future__ import annotations

from backends.knowledge.signatures import Signature, signature

_GOOGLE = "Google API error reasons and gcloud's words"
_AWS = "AWS CLI and common error codes"

SIGNATURES: tuple[Signature, ...] = (
    signature(
        "api_off",
        r"APIs? (?:is|are) not enabled|SERVICE_DISABLED|API has not been used in project"
        r"|it is disabled\. Enable it by visiting",
        "An API of the project is off, as most are in a new one.",
        "get_help(topic='doctor') names it; ask the person to run: gcloud services enable NAME.",
        source=_GOOGLE,
    ),
    signature(
        "billing_off",
        r"BILLING_DISABLED|billing (?:account )?(?:is |to be )?(?:disabled|not enabled|not open)"
        r"|requires billing to be enabled",
        "The project has no open billing account.",
        "Ask the person to link one: https://console.cloud.google.com/billing.",
        source=_GOOGLE,
    ),
    signature(
        "no_login",
        r"Unable to locate credentials|NoCredentialsError|could not find default credentials"
        r"|You do not currently have an active account selected|default credentials were not found",
        "Nobody is logged in on the machine that asks.",
        "Ask the person to run `gcloud auth login` (or `aws login`); get_help(topic='doctor') "
        "checks it.",
        source=f"{_GOOGLE}; {_AWS}",
    ),
    signature(
        "login_expired",
        r"Reauthentication (?:failed|required|is needed)|invalid_grant|ExpiredTokenException"
        r"|Your (?:default )?credentials? (?:have|has) expired|ACCESS_TOKEN_EXPIRED"
        r"|UnrecognizedClientException",
        "The login has run out or was withdrawn.",
        "Ask the person to log in again: `gcloud auth login`, or `aws login`.",
        source=f"{_GOOGLE}; {_AWS}",
    ),
    signature(
        "org_policy",
        r"constraint(?:s/[\w.]+)? (?:constraints/[\w.]+ )?(?:violated|denied)"
        r"|constraints/[\w.]+ (?:is )?(?:violated|denied)|policy constraints?/\S+",
        "A policy of the organisation forbids it.",
        "Ask the organisation's administrator, or choose a region or setting it allows.",
        source=_GOOGLE,
    ),
    signature(
        "permission",
        r"Permission '[\w.]+' (?:is )?denied"
        r"|PERMISSION_DENIED: (?:Missing permission|The caller does not have permission)"
        r"|is not authorized to perform: [\w:*]+|AccessDenied(?:Exception)?\b",
        "The login lacks the right that is named.",
        "Ask an administrator for a role that has it; docs of the target list the roles.",
        source=f"{_GOOGLE}; {_AWS}",
    ),
    signature(
        "throttled",
        r"RATE_LIMIT_EXCEEDED|ThrottlingException|Rate exceeded|TooManyRequestsException",
        "The cloud limits how often it is asked.",
        "Wait a minute and call again; this server backs off by itself.",
        source=f"{_GOOGLE}; {_AWS}",
    ),
    signature(
        "quota",
        r"Quota '?[\w-]+'? exceeded|QUOTA_EXCEEDED|LimitExceededException"
        r"|Quota exceeded for quota metric",
        "A quota of the project or account is used up.",
        "find_capacity(target='{target}') compares quota with need; ask the person to request "
        "more.",
        source=f"{_GOOGLE}; {_AWS}",
    ),
    signature(
        "name_taken",
        r"\bALREADY_EXISTS\b|The container name \S+ is already in use",
        "Something of that name exists.",
        "list_deployments(), then another name, or destroy the one that is there.",
        source=f"{_GOOGLE}, Docker",
    ),
)

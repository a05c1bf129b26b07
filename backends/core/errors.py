"""The one error tree: what failed, in whose words, why, and what to do next.

DevopsError
├── InvalidInputError        a field of the request is wrong; nothing was done
├── SettingsError            a setting of the server is wrong
│   └── NotSetUpError        a target has no project or account to ask; nothing of ours can be there
├── NotSupportedError        this target cannot do that; says what to use instead
├── NotFoundError            no deployment, plan, operation or benchmark of that name
├── ConflictError            it exists already, or is in a state that forbids this
├── NotManagedError          it does not carry our label; adopt it first
├── PlanError                the plan id cannot be used: unknown, used, expired or out of date
├── ConfirmationError        a person was asked and did not agree, or nobody could be asked
├── BudgetError              would cost more per hour than the operator allowed
├── StepFailedError          a step of a plan failed; names what earlier steps made
├── EngineError              a vLLM process did not start, or died
├── OperationError           a long operation cannot be started, read or stopped
├── CloudError               a control plane or its CLI refused
│   ├── UnauthenticatedError
│   ├── PermissionDeniedError
│   ├── ApiDisabledError
│   ├── QuotaError
│   ├── CapacityError
│   ├── RateLimitedError
│   ├── UnavailableError
│   ├── CliMissingError
│   └── OutcomeUnknownError  timed out or was cut: it may have happened; look before retrying
├── HostError                a command on a host failed; its exit code is in the details
│   ├── HostUnreachableError no connection, or it dropped
│   └── HostKeyError         the host's key is not the one it was
└── EndpointError            the serving endpoint refused or could not be reached
    ├── EndpointUnreachableError
    ├── EndpointNotReadyError
    ├── EndpointAuthError
    ├── EndpointBusyError
    └── EndpointRejectedError

Every error reaches the agent whole: `message` (what failed), `words` (the cloud's or engine's own
text), `cause` (the likely reason), `next_action` (an exact tool call or command) and `code`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class DevopsError(Exception):
    """Root of the tree. Raise a subclass; catch this one at the edge of a tool.

    Args:
        message: What failed, in one sentence that names the thing.
        words: The cloud's, CLI's or engine's own words, verbatim.
        cause: The likely reason, where it is known.
        next_action: What to do now: an exact tool call or command.
        retry_after_s: Seconds to wait before trying again, where the other side said so.
        details: Further facts by name, shown to the agent as they are.
    """

    code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        words: str = "",
        cause: str = "",
        next_action: str = "",
        retry_after_s: float | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.words = words
        self.cause = cause
        self.next_action = next_action
        self.retry_after_s = retry_after_s
        self.details: dict[str, str] = dict(details or {})


class InvalidInputError(DevopsError):
    """A value of the request is not allowed. Nothing was lost or changed.

    Args:
        field: The argument's name.
        problem: What is wrong with it, without echoing a value that may be a secret.
        allowed: What would be right.
    """

    code = "invalid_input"

    def __init__(
        self, field: str, problem: str, *, allowed: str = "", next_action: str = ""
    ) -> None:
        text = f"{field}: {problem}"
        if allowed:
            text += f" Allowed: {allowed}."
        super().__init__(text, next_action=next_action, details={"field": field})
        self.field = field


class SettingsError(DevopsError):
    """A setting (environment or .env) is wrong; `get_help` lists all of them."""

    code = "settings"


class NotSetUpError(SettingsError):
    """A target has no project or account, so there is no place to ask. `next_action` sets one."""

    code = "not_set_up"


class NotSupportedError(DevopsError):
    """The target cannot do this. `next_action` says what to use instead."""

    code = "not_supported"


class NotFoundError(DevopsError):
    """There is nothing of that name, and every place it could be was asked."""

    code = "not_found"


class ConflictError(DevopsError):
    """It exists already, or its state forbids the request."""

    code = "conflict"


class NotManagedError(DevopsError):
    """The thing does not carry `managed-by=vllm-devops`, so it is never changed or deleted."""

    code = "not_managed"


class PlanError(DevopsError):
    """The plan id cannot be used. `reason`: unknown, damaged, used, expired, stale or mismatch."""

    code = "plan"

    def __init__(
        self, reason: str, message: str, *, cause: str = "", next_action: str = ""
    ) -> None:
        super().__init__(message, cause=cause, next_action=next_action, details={"reason": reason})
        self.reason = reason


class ConfirmationError(DevopsError):
    """A person did not agree, or this client cannot ask one."""

    code = "confirmation"


class BudgetError(DevopsError):
    """The plan would take the hourly cost over VLLM_DEVOPS_MAX_USD_PER_HOUR."""

    code = "over_budget"


class StepFailedError(DevopsError):
    """A step of a plan failed. What earlier steps made is named, with the undo of each.

    Args:
        done: What the earlier steps did, in words.
        made: What exists now because of earlier steps.
        undo: The commands or tool calls that remove them, in the order to run them in.
        code: The code of the failure itself.
    """

    code = "step_failed"

    def __init__(
        self,
        message: str,
        *,
        done: Sequence[str] = (),
        made: Sequence[str] = (),
        undo: Sequence[str] = (),
        words: str = "",
        cause: str = "",
        next_action: str = "",
        code: str = "",
    ) -> None:
        details: dict[str, str] = {}
        if code:
            details["failure"] = code
        if done:
            details["done_before_the_failure"] = "; ".join(done)
        if made:
            details["made_before_the_failure"] = "; ".join(made)
        if undo:
            details["undo"] = "; ".join(undo)
        super().__init__(
            message, words=words, cause=cause, next_action=next_action, details=details
        )
        self.made = list(made)
        self.undo = list(undo)


class EngineError(DevopsError):
    """A vLLM process did not start, or died. `words` holds its last log lines."""

    code = "engine_failed"


class OperationError(DevopsError):
    """A long operation cannot be started, read or stopped."""

    code = "operation"


class CloudError(DevopsError):
    """A control plane or its CLI refused; `words` are its own."""

    code = "cloud"


class UnauthenticatedError(CloudError):
    """No live login. `next_action` is the one command that mends it."""

    code = "unauthenticated"


class PermissionDeniedError(CloudError):
    """The login lives but may not do this. Never to be read as "nothing there"."""

    code = "permission_denied"


class ApiDisabledError(CloudError):
    """The API is not enabled in this project."""

    code = "api_disabled"


class QuotaError(CloudError):
    """The account's limit is too low; the limit's exact name is in the details."""

    code = "quota"


class CapacityError(CloudError):
    """Quota is there, hardware is not, here and now."""

    code = "capacity"


class RateLimitedError(CloudError):
    """Too many requests; `retry_after_s` where the other side said."""

    code = "rate_limited"


class UnavailableError(CloudError):
    """The control plane is down or overloaded for now."""

    code = "unavailable"


class CliMissingError(CloudError):
    """The CLI this needs (gcloud, aws) is not installed."""

    code = "cli_missing"


class OutcomeUnknownError(CloudError):
    """The call was cut off: it may have happened. Look before trying again."""

    code = "outcome_unknown"


class HostError(DevopsError):
    """A command on a host failed; `words` are its own.

    Args:
        exit_code: The command's own exit code, where it ended by itself.
    """

    code = "host_command_failed"

    def __init__(
        self,
        message: str,
        *,
        words: str = "",
        cause: str = "",
        next_action: str = "",
        exit_code: int | None = None,
    ) -> None:
        details = {} if exit_code is None else {"exit_code": str(exit_code)}
        super().__init__(
            message, words=words, cause=cause, next_action=next_action, details=details
        )
        self.exit_code = exit_code


class HostUnreachableError(HostError):
    """There is no connection to the host, or it dropped.

    Args:
        begun: Whether the command had begun there, so that it may have done its work.
    """

    code = "host_unreachable"

    def __init__(
        self,
        message: str,
        *,
        words: str = "",
        cause: str = "",
        next_action: str = "",
        begun: bool = False,
    ) -> None:
        super().__init__(message, words=words, cause=cause, next_action=next_action)
        self.begun = begun
        if begun:
            self.details["begun"] = "yes"


class HostKeyError(HostError):
    """The host shows another key than before: another machine, or somebody between."""

    code = "host_key"


class EndpointError(DevopsError):
    """The serving endpoint refused or could not be reached.

    Args:
        status: The HTTP status, where one came back.
    """

    code = "endpoint"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        words: str = "",
        cause: str = "",
        next_action: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        details = {} if status is None else {"http_status": str(status)}
        super().__init__(
            message,
            words=words,
            cause=cause,
            next_action=next_action,
            retry_after_s=retry_after_s,
            details=details,
        )
        self.status = status


class EndpointUnreachableError(EndpointError):
    """No connection, or no answer in time."""

    code = "endpoint_unreachable"


class EndpointNotReadyError(EndpointError):
    """It answers, but the model is still loading or the engine is down (502, 503)."""

    code = "endpoint_not_ready"


class EndpointAuthError(EndpointError):
    """401 or 403 from the endpoint."""

    code = "endpoint_auth"


class EndpointBusyError(EndpointError):
    """429: the platform or the engine has no room for another request."""

    code = "endpoint_busy"


class EndpointRejectedError(EndpointError):
    """The engine refused the request itself (400, 404, 422): `words` are vLLM's."""

    code = "endpoint_rejected"

"""What AWS says, by either generation of its CLI or by botocore, as one of our errors."""

from __future__ import annotations

import pytest
from botocore.exceptions import (  # type: ignore[import-untyped]
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    UnauthorizedSSOTokenError,
)

from backends.clouds.aws_errors import botocore_error, error_of, judge, limit_named
from backends.clouds.process import Finished
from backends.core.errors import (
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

ARN = "arn:aws:sagemaker:us-east-2:123456789012:endpoint/gemma"

# Operation, code and sentence as AWS has them, and what that is.
REFUSALS = [
    (
        "CreateEndpoint",
        "ResourceLimitExceeded",
        "The account-level service limit 'ml.g6.2xlarge for endpoint usage' is 1 Instances, with "
        "current utilization of 1 Instances and a request delta of 1 Instances. Please use AWS "
        "Service Quotas to request an increase for this quota.",
        QuotaError,
    ),
    (
        "DeleteEndpoint",
        "ValidationException",
        f'Cannot update in-progress endpoint "{ARN}".',
        ConflictError,
    ),
    ("DescribeEndpoint", "ValidationException", f'Could not find endpoint "{ARN}".', NotFoundError),
    (
        "CreateModel",
        "ValidationException",
        'Cannot create already existing model "arn:aws:sagemaker:us-east-2:1:model/gemma".',
        ConflictError,
    ),
    (
        "CreateModel",
        "ValidationException",
        "Could not assume role arn:aws:iam::1:role/r. Please ensure that the role exists and "
        "allows principal 'sagemaker.amazonaws.com' to assume the role.",
        ConflictError,
    ),
    ("CreateRole", "EntityAlreadyExists", "Role with name r already exists.", ConflictError),
    ("GetRole", "NoSuchEntity", "The role with name r cannot be found.", NotFoundError),
    (
        "FilterLogEvents",
        "ResourceNotFoundException",
        "The specified log group does not exist.",
        NotFoundError,
    ),
    ("InvokeEndpoint", "ValidationError", "Endpoint e of account 1 not found.", NotFoundError),
    ("ListServiceQuotas", "TooManyRequestsException", "Rate exceeded", RateLimitedError),
    ("ListEndpoints", "ThrottlingException", "Rate exceeded", RateLimitedError),
    ("DescribeInstanceTypes", "RequestLimitExceeded", "Request limit exceeded.", RateLimitedError),
    ("CreateOAuth2Token", "429", "Rate exceeded.", RateLimitedError),
    (
        "CreateEndpoint",
        "AccessDeniedException",
        "User: arn:aws:iam::1:user/u is not authorized to perform: sagemaker:CreateEndpoint on "
        "resource: *",
        PermissionDeniedError,
    ),
    (
        "ListModels",
        "ExpiredTokenException",
        "The security token included in the request is expired",
        UnauthenticatedError,
    ),
    (
        "GetCallerIdentity",
        "InvalidClientTokenId",
        "The security token included in the request is invalid.",
        UnauthenticatedError,
    ),
    (
        "CreateEndpoint",
        "InsufficientInstanceCapacity",
        "We currently do not have sufficient capacity.",
        CapacityError,
    ),
    ("CreateEndpoint", "InternalFailure", "The request processing has failed.", UnavailableError),
    (
        "CreateEndpointConfig",
        "ValidationException",
        "1 validation error detected: Value 'x' at 'y' failed to satisfy constraint: z",
        InvalidInputError,
    ),
]


@pytest.mark.parametrize(("operation", "code", "message", "kind"), REFUSALS)
@pytest.mark.parametrize("dress", ["v1", "v1 retried", "v2", "botocore"])
def test_a_refusal_is_the_same_error_whoever_tells_it(
    operation: str, code: str, message: str, kind: type[DevopsError], dress: str
) -> None:
    retried = " (reached max retries: 4)" if "retried" in dress else ""
    said = f"An error occurred ({code}) when calling the {operation} operation{retried}: {message}"
    if dress == "botocore":
        response = {"Error": {"Code": code, "Message": message}}
        error = botocore_error(ClientError(response, operation), "aws something")
    else:
        prefix = "aws: [ERROR]: " if dress == "v2" else ""
        error = error_of(f"\n{prefix}{said}\n", "aws something")
    assert type(error) is kind
    assert error.words == f"{code}: {message}"
    assert error.cause
    assert error.next_action


# What the CLI itself says, as 1.45.11 and 2.38.5 wrote it (2026-11-30).
@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        (
            "Unable to locate credentials. You can configure credentials by running "
            '"aws configure".\n',
            UnauthenticatedError,
        ),
        (
            "\naws: [ERROR]: An error occurred (NoCredentials): Unable to locate credentials. You "
            'can configure credentials by running "aws login".\n',
            UnauthenticatedError,
        ),
        ("\nThe config profile (nope) could not be found\n", UnauthenticatedError),
        (
            "\nError loading SSO Token: Token for https://x.awsapps.com/start does not exist\n",
            UnauthenticatedError,
        ),
        (
            "\naws: [ERROR]: Error loading login session token: Unable to load a existing login "
            "session for session arn:aws:iam::1:user/x, Please reauthenticate with 'aws login'.\n",
            UnauthenticatedError,
        ),
        (
            "\nYour session has expired. Please reauthenticate using 'aws login'.\n",
            UnauthenticatedError,
        ),
        (
            "\nThe SSO session associated with this profile has expired or is otherwise invalid. "
            "To refresh this SSO session run aws sso login with the corresponding profile.\n",
            UnauthenticatedError,
        ),
        (
            'You must specify a region. You can also configure your region by running "aws '
            'configure".\n',
            NotSetUpError,
        ),
        (
            '\naws: [ERROR]: Could not connect to the endpoint URL: "https://api.sagemaker.x/"\n',
            UnavailableError,
        ),
        (
            '\nConnect timeout on endpoint URL: "https://api.sagemaker.us-east-2.amazonaws.com/"\n',
            UnavailableError,
        ),
        ('\nRead timeout on endpoint URL: "https://api.sagemaker.x/"\n', OutcomeUnknownError),
        (
            "\nConnection was closed before we received a valid response from endpoint URL: "
            '"https://api.sagemaker.us-east-2.amazonaws.com/".\n',
            OutcomeUnknownError,
        ),
        (
            "usage: aws [options] <command> <subcommand> [parameters]\naws: error: argument "
            "operation: Invalid choice, valid choices are:\n\n" + "list-throttles | " * 400,
            CloudError,
        ),
        (
            "\naws: [ERROR]: An error occurred (ParamValidation): argument operation: Found "
            "invalid choice 'list-nothing'\n\n\nusage: aws [options] <command>\n",
            CloudError,
        ),
        (
            "\nParameter validation failed:\nUnknown parameter in ProductionVariants[0]: "
            '"InstancePools", must be one of: VariantName, ModelName\n',
            CloudError,
        ),
        ("something nobody has seen before", CloudError),
    ],
)
def test_what_the_cli_says_of_itself_is_understood(stderr: str, kind: type[DevopsError]) -> None:
    error = error_of(stderr, "aws something")
    assert type(error) is kind
    assert error.words
    assert "list-throttles | list-throttles | " * 20 not in error.words


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (NoCredentialsError(), UnauthenticatedError),
        (UnauthorizedSSOTokenError(), UnauthenticatedError),
        (NoRegionError(), NotSetUpError),
        (EndpointConnectionError(endpoint_url="https://x"), UnavailableError),
        (ConnectTimeoutError(endpoint_url="https://x"), UnavailableError),
        (ConnectionClosedError(endpoint_url="https://x"), OutcomeUnknownError),
    ],
)
def test_what_botocore_raises_by_itself_is_understood(
    raised: Exception, kind: type[DevopsError]
) -> None:
    assert type(botocore_error(raised, "aws something")) is kind


def test_a_quota_is_named_with_its_limit_and_use() -> None:
    error = error_of(
        f"An error occurred (ResourceLimitExceeded) when calling the CreateEndpoint operation: "
        f"{REFUSALS[0][2]}",
        "aws sagemaker create-endpoint",
    )
    assert error.details == {
        "quota": "ml.g6.2xlarge for endpoint usage",
        "limit": "1",
        "used": "1",
    }
    assert limit_named(error.words) == ("ml.g6.2xlarge for endpoint usage", 1, 1)
    assert limit_named("other words") is None


def test_the_action_that_is_denied_and_the_login_to_renew_are_named() -> None:
    denied = error_of(
        "An error occurred (AccessDenied) when calling the GetRole operation: User: u is not "
        "authorized to perform: iam:GetRole on resource: role r",
        "aws iam get-role",
    )
    assert "allow iam:GetRole" in denied.next_action
    expired = error_of(
        "Your session has expired. Please reauthenticate using 'aws login'.",
        "aws sts get-caller-identity",
        login="aws login --profile work",
    )
    assert expired.next_action == "Ask the person to run: aws login --profile work"


def test_a_command_is_judged_by_its_exit_and_its_words() -> None:
    argv = ("aws", "sagemaker", "delete-endpoint", "--endpoint-name", "gemma")
    assert judge(Finished(argv, 0, "", "a warning", cut=False)) == ""
    with pytest.raises(OutcomeUnknownError) as ended:
        judge(Finished(argv, -15, "", "", cut=False))
    assert "aws sagemaker delete-endpoint was ended by signal 15" in ended.value.message
    for code in (254, 255):
        with pytest.raises(NotFoundError) as absent:
            judge(
                Finished(
                    argv,
                    code,
                    "",
                    "An error occurred (ValidationException) when calling the DeleteEndpoint "
                    f'operation: Could not find endpoint "{ARN}".',
                    cut=False,
                )
            )
        assert absent.value.message == "aws sagemaker delete-endpoint was refused."


def test_how_long_to_wait_is_taken_from_the_answer() -> None:
    response = {
        "Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"},
        "ResponseMetadata": {"HTTPHeaders": {"retry-after": "7"}},
    }
    assert botocore_error(ClientError(response, "ListModels"), "x").retry_after_s == 7

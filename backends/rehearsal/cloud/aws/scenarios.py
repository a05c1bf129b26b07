"""Faults of AWS that have a name: every SageMaker failure the product must explain.

`seen_as` is what someone meets, in AWS's words: those of the reference articles and repository, and
of public reports, read by 2026-11-30.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from backends.rehearsal.cloud.scenario import Scenario
from backends.rehearsal.cloud.web import Json


def _request(operation: str = ".", **fields: object) -> Json:
    return {"kind": "request", "operation": operation, **fields}


def _refusal(operation: str, code: str, words: str, *, status: int = 400, times: int = 1) -> Json:
    return _request(operation, code=code, body=words, status=status, times=times)


AWS_SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "aws-login-expired": Scenario(
            "ExpiredTokenException: The security token included in the request is expired",
            "The login has expired.",
            "Set AWS_ACCESS_KEY_ID to the rehearsal's dead key.",
            ({"kind": "aws-login"},),
        ),
        "aws-login-throttled": Scenario(
            "An error occurred (429) when calling the CreateOAuth2Token operation: Rate exceeded.",
            "The login was renewed too often.",
            "",
            (_refusal("GetCallerIdentity", "429", "Rate exceeded"),),
        ),
        "aws-denied": Scenario(
            "AccessDeniedException: User ... is not authorized to perform: sagemaker:...",
            "The login lacks a permission.",
            "",
            ({"kind": "aws-deny", "action": "sagemaker:*"},),
        ),
        "aws-throttled": Scenario(
            "ThrottlingException: Rate exceeded",
            "Too many requests in a short time.",
            "Ask for the quotas of several regions at once.",
            (_refusal("^(Describe|List|Create)", "ThrottlingException", "Rate exceeded", times=2),),
        ),
        "aws-quota-calls-throttled": Scenario(
            "TooManyRequestsException when calling ListServiceQuotas (reached max retries: 2)",
            "Quota calls in parallel.",
            "Ask for the quotas of several regions at once.",
            (_refusal("ListServiceQuotas", "TooManyRequestsException", "Rate exceeded", times=-1),),
        ),
        "aws-unavailable": Scenario(
            "ServiceUnavailable, or InternalFailure",
            "AWS does not answer well.",
            "",
            (_refusal(".", "ServiceUnavailable", "Service is unavailable.", status=503, times=-1),),
        ),
        "aws-internal-failure": Scenario(
            "InternalFailure: The request processing has failed because of an unknown error",
            "AWS failed; what was asked for may have happened.",
            "",
            (
                _refusal(
                    "^(Create|Update|Delete)",
                    "InternalFailure",
                    "The request processing has failed because of an unknown error, exception or "
                    "failure.",
                    status=500,
                ),
            ),
        ),
        "aws-slow": Scenario(
            "Answers take many seconds",
            "AWS is slow, or the network is.",
            "",
            (_request(action="delay", delay_s=5.0, times=-1),),
        ),
        "aws-cut": Scenario(
            "The connection breaks before anything was done",
            "Network.",
            "",
            (_request(action="cut"),),
        ),
        "aws-create-answer-lost": Scenario(
            "Connection was closed before we received a valid response, and the endpoint exists",
            "The create was accepted, its answer was lost.",
            "",
            (_request("^CreateEndpoint$", action="lose-answer"),),
        ),
        "aws-quota-none": Scenario(
            "ResourceLimitExceeded: The account-level service limit 'ml.g6.xlarge for endpoint "
            "usage' is 0 Instances",
            "The account has no quota for the type.",
            "Deploy in eu-west-1.",
            tuple(
                {"kind": "aws-quota", "type": f"ml.g6.{size}", "value": 0}
                for size in ("xlarge", "2xlarge", "4xlarge")
            ),
        ),
        "aws-quota-used": Scenario(
            "ResourceLimitExceeded ... is 1 Instances, with current utilization of 1 Instances and "
            "a request delta of 1 Instances.",
            "Another endpoint holds the quota, if only because it lists the type.",
            "Deploy two endpoints that list the same type.",
        ),
        "aws-no-capacity": Scenario(
            "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity "
            "error, after half an hour without a log group",
            "Quota is there, hardware is not.",
            "",
            ({"kind": "aws-no-capacity"},),
        ),
        "aws-cannot-start": Scenario(
            "CannotStartContainerError ... when invoked with 'docker run <image> serve', and no "
            "log group",
            "The image's CUDA needs a newer driver than the AMI has.",
            "Deploy an image of CUDA 13 on ml.g4dn without InferenceAmiVersion.",
        ),
        "aws-host-memory": Scenario(
            "unable to mmap 23265352448 bytes from file <...>: Cannot allocate memory (12)",
            "The machine's memory is smaller than the weights.",
            "Deploy a checkpoint of more than 16 GiB on ml.g6.xlarge.",
        ),
        "aws-health-window": Scenario(
            "did not pass the ping health check, after exactly the health-check window",
            "The container crashed or was too slow; SageMaker says so when the window ends.",
            "Deploy what crashes, or with a window below the load time.",
        ),
        "aws-role-not-ready": Scenario(
            "Could not assume role ... Please ensure that the role exists and allows principal "
            "'sagemaker.amazonaws.com' to assume the role.",
            "The role was made moments ago.",
            "Create a role and a model right after it.",
        ),
        "aws-in-progress": Scenario(
            'Cannot update in-progress endpoint "arn..."',
            "An endpoint that is being created cannot be deleted.",
            "Delete an endpoint while it is Creating.",
        ),
        "aws-invoke-throttled": Scenario(
            "ThrottlingException when calling InvokeEndpoint",
            "Too many invocations.",
            "",
            (_refusal("^InvokeEndpoint", "ThrottlingException", "Rate exceeded", times=-1),),
        ),
        "aws-invoke-unavailable": Scenario(
            "ServiceUnavailable (503) when calling InvokeEndpoint",
            "No instance answers at the moment.",
            "",
            (
                _refusal(
                    "^InvokeEndpoint",
                    "ServiceUnavailable",
                    "The service is currently unavailable.",
                    status=503,
                    times=-1,
                ),
            ),
        ),
    }
)

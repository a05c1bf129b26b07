"""What Google says becomes the right error, with the way out; texts are those of gcloud 528."""

from __future__ import annotations

import json

import pytest

from backends.clouds.google_errors import http_error, judge
from backends.clouds.process import Finished
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

_AS = (
    " This command is authenticated with an access token from F specified by the "
    "[auth/access_token_file] property."
)


def _finished(stderr: str, code: int = 1, stdout: str = "") -> Finished:
    return Finished(("gcloud", "run", "services", "describe", "x"), code, stdout, stderr, False)


_TEXTS: list[tuple[str, type[DevopsError]]] = [
    (
        "ERROR: (gcloud.run.services.describe) UNAUTHENTICATED: Request had invalid "
        "authentication credentials. Expected OAuth 2 access token." + _AS,
        UnauthenticatedError,
    ),
    (
        "ERROR: (gcloud.run.services.list) You do not currently have an active account selected.",
        UnauthenticatedError,
    ),
    (
        "ERROR: (gcloud.run.deploy) There was a problem refreshing your current auth tokens: "
        "('invalid_grant: Token has been expired or revoked.', {'error': 'invalid_grant'})",
        UnauthenticatedError,
    ),
    (
        "ERROR: (gcloud.run.services.describe) PERMISSION_DENIED: Permission 'run.services.get' "
        "denied on resource 'namespaces/p/services/x' (or resource may not exist)." + _AS,
        PermissionDeniedError,
    ),
    (
        "Deploying container to Cloud Run service [e1] in project [p] region [us-east4]\n"
        "Deploying new service...\nfailed\nDeployment failed\n"
        "ERROR: (gcloud.run.deploy) [None] does not have permission to access namespaces instance "
        "[p] (or it may not exist): Permission 'run.services.create' denied." + _AS,
        PermissionDeniedError,
    ),
    (
        "ERROR: (gcloud.run.services.describe) PERMISSION_DENIED: Cloud Run Admin API has not "
        "been used in project 123 before or it is disabled. Enable it by visiting https://console."
        "developers.google.com/apis/api/run.googleapis.com/overview?project=123 then retry."
        "\n- '@type': type.googleapis.com/google.rpc.ErrorInfo\n  reason: SERVICE_DISABLED",
        ApiDisabledError,
    ),
    ("ERROR: (gcloud.run.services.describe) Cannot find service [x]", NotFoundError),
    ("ERROR: (gcloud.run.services.delete) Service [x] could not be found.", NotFoundError),
    ("ERROR: (gcloud.storage.buckets.describe) gs://nope not found: 404.", NotFoundError),
    (
        "ERROR: (gcloud.run.deploy) Namespaces instance [p] is the subject of a conflict: "
        "Resource 'e5' already exists.",
        ConflictError,
    ),
    (
        "ERROR: (gcloud.run.services.update) ABORTED: Conflict for resource 'e9': version '1' was "
        "specified but current version is '2'.",
        ConflictError,
    ),
    (
        "ERROR: (gcloud.run.services.describe) RESOURCE_EXHAUSTED: Quota exceeded for quota "
        "metric 'Read requests' and limit 'Read requests per minute per region' of service "
        "'run.googleapis.com'.\n  reason: RATE_LIMIT_EXCEEDED",
        RateLimitedError,
    ),
    ("ERROR: (gcloud.run.services.describe) RESOURCE_EXHAUSTED: rate", RateLimitedError),
    (
        "ERROR: (gcloud.run.services.describe) HttpError accessing <https://x>: response: "
        '<{\'status\': 503}>, content <{"error": {"code": 503}}>',
        UnavailableError,
    ),
    (
        "ERROR: gcloud crashed (ConnectionError): HTTPSConnectionPool(host='h', port=443): Max "
        "retries exceeded with url: / (Caused by NameResolutionError)",
        UnavailableError,
    ),
    (
        "Deployment failed\nERROR: (gcloud.run.deploy) spec.template.spec.node_selector: You do "
        "not have quota for using GPUs without zonal redundancy. Learn more: g.co/cloudrun/gpu",
        QuotaError,
    ),
    (
        "ERROR: (gcloud.compute.instances.create) Could not fetch resource:\n - Quota "
        "'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.",
        QuotaError,
    ),
    (
        "ERROR: (gcloud.compute.instances.create) Could not fetch resource:\n---\ncode: "
        "ZONE_RESOURCE_POOL_EXHAUSTED\nmessage: The zone does not have enough resources "
        "available to fulfill the request.",
        CapacityError,
    ),
    (
        "ERROR: (gcloud.run.deploy) INVALID_ARGUMENT: concurrency must be 1 to 1000",
        InvalidInputError,
    ),
]


@pytest.mark.parametrize(("text", "wanted"), _TEXTS)
def test_words_of_gcloud_become_the_right_error(text: str, wanted: type[DevopsError]) -> None:
    with pytest.raises(DevopsError) as caught:
        judge(_finished(text))
    error = caught.value
    assert type(error) is wanted
    assert error.words
    assert "ERROR: (gcloud" not in error.words
    assert error.cause
    assert error.next_action


def test_an_expired_login_names_the_one_command_that_mends_it() -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        judge(_finished(_TEXTS[2][0]))
    assert "gcloud auth login --update-adc" in caught.value.next_action


def test_a_disabled_api_names_the_api_and_the_command() -> None:
    with pytest.raises(ApiDisabledError) as caught:
        judge(_finished(_TEXTS[5][0]))
    assert "gcloud services enable run.googleapis.com" in caught.value.next_action


def test_a_denied_permission_is_named_and_never_read_as_nothing_there() -> None:
    with pytest.raises(PermissionDeniedError) as caught:
        judge(_finished(_TEXTS[3][0]))
    assert "run.services.get" in caught.value.next_action
    assert "does not mean that nothing is there" in caught.value.cause


def test_violated_quotas_are_named_exactly() -> None:
    words = (
        "ERROR: (gcloud.beta.run.deploy) spec.template.metadata.annotations"
        "[autoscaling.knative.dev/maxScale]: Max instances must be set to 0 or fewer to set the "
        "requested total CPU.\n\nQuota violated:\nCpuAllocPerProjectRegion requested: 60000 "
        "allowed: 20000\nMemAllocPerProjectRegion requested: 257698037760 allowed: 42949672960"
    )
    with pytest.raises(QuotaError) as caught:
        judge(_finished(words))
    assert caught.value.details["quota"] == "CpuAllocPerProjectRegion, MemAllocPerProjectRegion"


def test_a_refused_list_that_exits_0_with_an_empty_list_is_an_error() -> None:
    stderr = (
        "WARNING: Some requests did not succeed.\n - Required 'compute.instances.list' permission "
        "for 'projects/p'\n - PERMISSION_DENIED"
    )
    with pytest.raises(PermissionDeniedError):
        judge(_finished(stderr, code=0, stdout="[]"))


def test_a_command_ended_by_a_signal_may_have_happened() -> None:
    with pytest.raises(OutcomeUnknownError):
        judge(_finished("Deploying...", code=-9))


def test_success_with_chatter_on_stderr_is_success() -> None:
    done = _finished("Deploying container to Cloud Run service [x]", code=0, stdout="{}")
    assert judge(done) == "{}"


def test_an_unknown_flag_says_that_gcloud_is_of_another_age() -> None:
    with pytest.raises(CloudError) as caught:
        judge(_finished("ERROR: (gcloud.run.deploy) unrecognized arguments: --scaling=auto", 2))
    assert "another one" in caught.value.cause


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (401, UnauthenticatedError),
        (403, PermissionDeniedError),
        (404, NotFoundError),
        (409, ConflictError),
        (429, RateLimitedError),
        (500, UnavailableError),
        (503, UnavailableError),
    ],
)
def test_a_rest_answer_without_telling_words_is_judged_by_its_status(
    status: int, wanted: type[DevopsError]
) -> None:
    error = http_error(status, b"", "The quota X", {"retry-after": "7"})
    assert type(error) is wanted
    assert error.retry_after_s == 7


def test_a_rest_403_of_a_disabled_api_is_not_a_missing_permission() -> None:
    body = json.dumps(
        {
            "error": {
                "code": 403,
                "status": "PERMISSION_DENIED",
                "message": "Cloud Quotas API has not been used in project 1 before",
                "details": [
                    {
                        "reason": "SERVICE_DISABLED",
                        "metadata": {"service": "cloudquotas.googleapis.com"},
                    }
                ],
            }
        }
    )
    error = http_error(403, body, "The quota X")
    assert isinstance(error, ApiDisabledError)
    assert "gcloud services enable cloudquotas.googleapis.com" in error.next_action

"""Every SageMaker failure that was met is explained by its words."""

from __future__ import annotations

import pytest

from backends.knowledge.sagemaker_failures import SIGNATURES, signature_of

_WORDS: dict[str, str] = {
    "login_throttled": "An error occurred (429) when calling the CreateOAuth2Token operation: Rate "
    "exceeded.",
    "login_expired": "Your session has expired. Please reauthenticate using 'aws login'.",
    "quota_calls_throttled": "An error occurred (TooManyRequestsException) when calling the "
    "ListServiceQuotas operation (reached max retries: 2): Rate exceeded",
    "quota": "An error occurred (ResourceLimitExceeded) when calling the CreateEndpoint operation: "
    "The account-level service limit 'ml.g6.2xlarge for endpoint usage' is 1 Instances, with "
    "current utilization of 1 Instances and a request delta of 1 Instances.",
    "capacity": "Unable to provision requested ML compute capacity due to "
    "InsufficientInstanceCapacity error. Please retry using a different ML instance type.",
    "in_progress": 'Cannot update in-progress endpoint "arn:aws:sagemaker:us-east-2:1:endpoint/g".',
    "cannot_start": "CannotStartContainerError. Please ensure the model container for variant "
    "AllTraffic starts correctly when invoked with 'docker run <image> serve'.",
    "host_memory": "RuntimeError: unable to mmap 23265352448 bytes from file "
    "</root/.cache/model.safetensors>: Cannot allocate memory (12)",
    "kv_too_small": "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine.",
    "gpu_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62 GiB. GPU 0 "
    "has a total capacity of 21.96 GiB of which 1.84 GiB is free.",
    "batched_tokens": "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (2496) is "
    "larger than max_num_batched_tokens (2048).",
    "health_check": "The primary container for production variant v-1 did not pass the ping health "
    "check. Please check CloudWatch logs for this endpoint.",
    "role": "Could not assume role arn:aws:iam::1:role/r. Please ensure that the role exists and "
    "allows principal 'sagemaker.amazonaws.com' to assume the role.",
    "image_missing": "Requested image 763104351884.dkr.ecr.us-east-2.amazonaws.com/vllm:9 not "
    "found.",
    "role_exists": "An error occurred (EntityAlreadyExists) when calling the CreateRole operation: "
    "Role with name vllm-devops-gemma4 already exists.",
    "not_found": 'Could not find endpoint "arn:aws:sagemaker:us-east-2:1:endpoint/gemma4".',
    "no_log": "An error occurred (ResourceNotFoundException) when calling the FilterLogEvents "
    "operation: The specified log group does not exist.",
    "zero_not_offered": "Min instance count needs to be greater than 0 for enabled managed "
    "instance scaling",
    "no_copy": "An error occurred (ValidationError) when calling the InvokeEndpoint operation: "
    "Inference Component has no capacity to process this request. ApplicationAutoScaling may be "
    "in-progress (if configured) or try to increase the capacity by invoking "
    "UpdateInferenceComponentRuntimeConfig API.",
    "no_room": "There is not enough hardware resources on the instances for this endpoint to "
    "create a copy of the inference component.",
    "component_busy": "Cannot delete inference component arn:aws:sagemaker:us-east-2:1:inference-"
    "component/gemma4 while it is in state UPDATE_RC_IN_PROGRESS",
    "component_named": "Inference Component Name header is required for endpoints to which you "
    "plan to deploy inference components.",
    "no_components": "Invalid request provided: Inference Components are not supported in this "
    "Endpoint. Please make sure this endpoint can deploy inference components.",
    "copies_at_first": "Inference components copy count an integer larger than 0",
    "hosts_components": 'Cannot delete endpoint "arn:aws:sagemaker:us-east-2:1:endpoint/gemma4" '
    "while it hosts inference components: gemma4. Delete them first.",
}


@pytest.mark.parametrize("wanted", _WORDS)
def test_the_words_are_recognised(wanted: str) -> None:
    found = signature_of(_WORDS[wanted])
    assert found is not None
    assert found.id == wanted


def test_every_signature_has_words_here() -> None:
    assert {signature.id for signature in SIGNATURES} == set(_WORDS)


def test_cause_and_fix_name_the_deployment() -> None:
    found = signature_of(_WORDS["in_progress"])
    assert found is not None
    cause, fix = found.explained("sagemaker-l4", "gemma4")
    assert "Creating" in cause
    assert "wait_until_ready(target='sagemaker-l4', name='gemma4')" in fix


def test_words_nobody_has_met_are_not_guessed_at() -> None:
    assert signature_of("something new") is None

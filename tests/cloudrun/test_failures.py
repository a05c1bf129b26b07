"""Every Cloud Run failure that was met is explained by its words."""

from __future__ import annotations

import pytest

from backends.cloudrun.running import explained
from backends.core.errors import CloudError
from backends.knowledge.cloudrun_failures import SIGNATURES, signature_of

_WORDS: dict[str, str] = {
    "cuda_803": "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has "
    "unsupported display driver / cuda driver combination",
    "disabled": "<h2>Service is disabled.</h2>",
    "memory_quota": "Quota violated:\nMemAllocPerProjectRegion requested: 85899345920 allowed: "
    "42949672960",
    "cpu_quota": "Quota violated:\nCpuAllocPerProjectRegion requested: 60000 allowed: 20000",
    "gpu_quota_rollout": "Quota violated: NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion "
    "requested: 3 allowed: 1",
    "gpu_quota": "You do not have quota for using GPUs without zonal redundancy. To request quota: "
    "g.co/cloudrun/gpu-quota",
    "probe_killed": "The user-provided container failed to start and listen on the port",
    "host_memory": "Memory limit of 32768 MiB exceeded with 33012 MiB used.",
    "hub_rate_limit": "HTTP Error 429 thrown while requesting HEAD https://huggingface.co/google",
    "hub_unreachable": "LocalEntryNotFoundError: An error happened while trying to locate the file "
    "on the Hub and we cannot find the requested files in the local cache.",
    "bucket_access": "vllm-gemma4@p.iam.gserviceaccount.com does not have storage.objects.list "
    "access to the Google Cloud Storage bucket.",
    "secret_access": "Permission denied on secret: projects/4/secrets/hf-token/versions/latest for "
    "Revision service account vllm-hf@p.iam.gserviceaccount.com.",
    "disk_full": "OSError: [Errno 28] No space left on device",
    "not_gemma4": "Model architectures ['GemmaForCausalLM'] are not supported for now.",
    "truncated_headers": "503 Model server early terminated the request (truncated headers)",
    "model_loading": '{"error": "model is loading"}',
    "engine_overload": "HTTP 502 upstream 500: EngineCore encountered an issue",
    "busy": "503 server busy",
    "kernel_mismatch": "_C::gptq_marlin_repack() Expected a value of type 'Tensor' for argument "
    "'perm' but instead found type 'int'.",
    "image_missing": "Image 'vllm/vllm-openai:v9' not found.",
    "gpu_capacity": "There is no GPU capacity in us-east4 now",
}


@pytest.mark.parametrize("wanted", _WORDS)
def test_the_words_are_recognised(wanted: str) -> None:
    found = signature_of(_WORDS[wanted])
    assert found is not None
    assert found.id == wanted


def test_every_signature_has_words_here() -> None:
    assert {signature.id for signature in SIGNATURES} == set(_WORDS)


def test_cause_and_fix_name_the_deployment() -> None:
    error = explained(CloudError("x", words=_WORDS["disabled"]), "cloudrun-l4", "gemma4")
    assert "manual scaling at 0" in error.cause
    assert "start_serving(target='cloudrun-l4', name='gemma4')" in error.next_action


def test_unknown_words_keep_what_is_known() -> None:
    error = explained(CloudError("x", words="something new", cause="why"), "cloudrun-l4", "gemma4")
    assert error.cause == "why"

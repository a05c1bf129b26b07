"""What a request may say, and what it comes to."""

from __future__ import annotations

from typing import Any

import pytest

from backends.core.errors import InvalidInputError
from backends.sagemaker.backend import SageMakerBackend
from backends.sagemaker.spec import resolved
from tests.sagemaker.made import request


def parsed(**options: Any) -> Any:
    return SageMakerBackend.parse_spec({"name": "gemma4"}, options)


def test_what_is_not_said_is_as_in_the_reference() -> None:
    spec = request()
    assert spec.model == "google/gemma-4-E2B-it"
    assert spec.served_model_name == "gemma-4-E2B-it"
    assert (spec.max_model_len, spec.gpu_memory_utilization) == (8192, 0.9)
    assert (spec.startup_timeout_s, spec.instances, spec.tensor_parallel_size) == (1800, 1, 1)
    assert spec.region == "us-east-2"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"instance_types": ["ml.g5.xlarge"]}, "NVIDIA L4"),
        ({"instance_types": ["ml.g6.xlarge", "ml.g6.12xlarge"]}, "same number of GPUs"),
        ({"instance_types": ["ml.g6.xlarge", "ml.g6.xlarge"]}, "different types"),
        ({"region": "Ohio"}, "us-east-2"),
        ({"fallback_regions": ["us-east-1", "us-east-1"]}, "different regions"),
        ({"role": "my-role"}, "ARN"),
        ({"image": "vllm/vllm-openai:v0.26.0"}, "ECR"),
        ({"image": "123456789012.dkr.ecr.us-east-2.amazonaws.com/vllm:latest"}, "pinned"),
        ({"ami": "al2-ami"}, "gpu-4-1"),
        ({"env": ["HF_TOKEN=hf_abc"]}, "secrets"),
        ({"env": ["SM_VLLM_API_KEY=x"]}, "secrets"),
        ({"env": ["SM_VLLM_MAX_MODEL_LEN=4"]}, "max_model_len"),
        ({"env": ["SM_VLLM_enforce_eager="]}, "capitals"),
        ({"env": ["SM_VLLM_PORT=9000"]}, "8080"),
        ({"env": ['SM_VLLM_LIMIT_MM_PER_PROMPT={"image":1']}, "whole JSON"),
        ({"env": ["A=1\n2"]}, "one line"),
        ({"env": ["NO"]}, "KEY=VALUE"),
        ({"tags": ["managed-by=me"]}, "not yours"),
        ({"startup_timeout_s": 30}, "60"),
        ({"capacity_timeout_s": 60}, "300"),
        ({"rollout": "slow"}, "canary"),
        ({"gpu": 1}, "no such option"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parsed(**options)
    assert refused.value.field == f"options.{next(iter(options))}"
    assert words in refused.value.message
    assert "hf_abc" not in refused.value.message


def test_vllm_settings_of_every_shape_pass() -> None:
    spec = parsed(
        env=[
            "SM_VLLM_ENFORCE_EAGER=",
            "SM_VLLM_MAX_LOGPROBS=5",
            'SM_VLLM_LIMIT_MM_PER_PROMPT={"image":1}',
            "SM_VLLM_TOKENIZER_MODE=auto",
        ]
    )
    assert len(spec.env) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fallback_regions": ["us-east-2"]}, "tried first"),
        ({"max_num_batched_tokens": 2048}, "picture"),
        ({"tensor_parallel_size": 2}, "1 GPUs"),
        ({"model": "gemma-4-E2B-it"}, "organisation/name"),
        ({"model": "gs://bucket/folder"}, "s3://"),
        (
            {
                "image": "123456789012.dkr.ecr.us-east-2.amazonaws.com/vllm:1",
                "fallback_regions": ["us-east-1"],
            },
            "one region's registry",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        request(**options)


def test_without_pictures_a_small_batch_is_allowed() -> None:
    assert request(max_num_batched_tokens=2048, text_only=True).max_num_batched_tokens == 2048


def test_several_gpus_are_used_together() -> None:
    spec = parsed(instance_types=["ml.g6.12xlarge"])
    assert resolved(spec, "us-east-2", ["ml.g6.12xlarge"]).tensor_parallel_size == 4

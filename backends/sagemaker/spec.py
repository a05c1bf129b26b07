"""What a SageMaker deployment is described by, with everything not said taken from the profile."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from backends.base import DeploySpec
from backends.core.errors import InvalidInputError
from backends.core.names import TTL_LABEL, check_name
from backends.knowledge.sagemaker import (
    AMIS,
    DEFAULT_POOL,
    HEALTH_CHECK_S,
    MAX_ENVIRONMENT,
    MAX_POOLS,
    MAX_VALUE_CHARS,
    PROFILE,
    TYPES,
    WITH_IMAGES_MIN_BATCHED_TOKENS,
)

_REGION = re.compile(r"^[a-z]{2}(?:-[a-z]+)+-\d$")
_ENV = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_ENGINE_ENV = re.compile(r"^SM_VLLM_[A-Z0-9]+(?:_[A-Z0-9]+)*$")
# A token, not MAX_TOKENS and not TOKENIZER.
_SECRET_NAME = re.compile(r"(?i)token(?!s|iz)|secret|password|api_?key|credential")
_TAG = re.compile(r"^[\w.:/+@ -]{1,128}=[\w.:/+@= -]{0,256}$")
_IMAGE = re.compile(r"^[a-z0-9][\w./-]*\.dkr\.ecr\.[\w.-]+/[\w./-]+(?::[\w.-]+|@sha256:\w{64})$")
_ROLE = re.compile(r"^arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+$")
_BUCKET_FOLDER = re.compile(r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/\S+$")

# What the options above say in words of their own; said twice, one would silently win.
_OWN_VARIABLES: Mapping[str, str] = {
    "SM_VLLM_MODEL": "model",
    "SM_VLLM_MAX_MODEL_LEN": "max_model_len",
    "SM_VLLM_MAX_NUM_SEQS": "max_num_seqs",
    "SM_VLLM_MAX_NUM_BATCHED_TOKENS": "options.max_num_batched_tokens",
    "SM_VLLM_GPU_MEMORY_UTILIZATION": "options.gpu_memory_utilization",
    "SM_VLLM_KV_CACHE_DTYPE": "options.kv_cache_dtype",
    "SM_VLLM_SERVED_MODEL_NAME": "options.served_model_name",
    "SM_VLLM_TENSOR_PARALLEL_SIZE": "options.tensor_parallel_size",
    "SM_VLLM_HOST": "nothing: SageMaker decides it",
    "SM_VLLM_PORT": "nothing: SageMaker decides it (8080)",
}


class SageMakerSpec(DeploySpec):
    """Options of `sagemaker-l4`."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    region: str | None = Field(
        None, description="Region; default: AWS_REGION, else the login's own."
    )
    fallback_regions: list[str] = Field(
        default_factory=list,
        description="Regions to try next, in order, when one has no capacity; an operation goes on "
        "there by itself. None: it fails where it is.",
    )
    instance_types: list[str] = Field(
        default_factory=list,
        description="1 to 5 types with the same GPUs, first choice first; quota is held for each. "
        "Default: those of one L4 with enough RAM and quota.",
    )
    instances: int | None = Field(
        None, ge=1, le=100, description="Instances; default: 1. With scale_to_zero: the most."
    )
    scale_to_zero: bool = Field(
        False,
        description="Host it as an inference component: after some 15 minutes without a request "
        "it goes to no instance, which costs nothing, and a request wakes it in about 13.",
    )
    role: str | None = Field(
        None, description="ARN of the execution role; default: one of its own, least privilege."
    )
    image: str | None = Field(
        None,
        description="Container image in ECR, pinned; default: AWS's newest vLLM for SageMaker.",
    )
    ami: str | None = Field(
        None, description="InferenceAmiVersion; default: the one whose driver fits the image."
    )
    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=0.98, description="vLLM's --gpu-memory-utilization."
    )
    kv_cache_dtype: Literal["auto", "fp8", "bfloat16"] | None = Field(
        None, description="vLLM's --kv-cache-dtype."
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=256, le=1_048_576, description="vLLM's --max-num-batched-tokens."
    )
    tensor_parallel_size: int | None = Field(
        None, ge=1, le=8, description="vLLM's --tensor-parallel-size; default: the type's GPUs."
    )
    served_model_name: str | None = Field(
        None, pattern=r"^[\w./:-]+$", description="Name the model is served under."
    )
    text_only: bool = Field(False, description="No images, audio or video: their memory is freed.")
    env: list[str] = Field(
        default_factory=list,
        description="Further variables, KEY=VALUE; SM_VLLM_X_Y=v becomes vLLM's --x-y v; never "
        "secrets.",
    )
    startup_timeout_s: int | None = Field(
        None, ge=60, le=3600, description="Until the container must be healthy; default: 1800."
    )
    download_timeout_s: int | None = Field(
        None, ge=60, le=3600, description="For weights from S3; default: 1800."
    )
    capacity_timeout_s: int | None = Field(
        None, ge=300, le=3600, description="How long AWS looks for an instance; default: AWS's."
    )
    tags: list[str] = Field(default_factory=list, description="Further tags, KEY=VALUE.")
    candidate: bool = Field(
        False, description="A second variant with weight 0, for shift_traffic; it costs as much."
    )
    rollout: Literal["all_at_once", "canary", "linear"] | None = Field(
        None, description="How a deployment that exists is replaced; default: all_at_once."
    )
    rollout_wait_s: int | None = Field(
        None, ge=0, le=3600, description="Wait after each shift of a rollout; default: 300."
    )
    rollback_alarms: list[str] = Field(
        default_factory=list,
        description="CloudWatch alarms that undo a rollout; default: one of ours on 5xx errors.",
    )
    ignore_quota: bool = Field(False, description="Plan although quotas look short.")

    @property
    def all_tags(self) -> list[str]:
        """Further tags, and how long it is wanted for: AWS ends nothing by itself."""
        wanted = [f"{TTL_LABEL}={round(self.ttl_hours * 60)}"] if self.ttl_hours else []
        return [*self.tags, *wanted]

    @field_validator("region")
    @classmethod
    def _a_region(cls, value: str | None) -> str | None:
        if value is not None and not _REGION.match(value):
            raise ValueError("is not a region such as us-east-2")
        return value

    @field_validator("fallback_regions")
    @classmethod
    def _regions(cls, value: list[str]) -> list[str]:
        if not all(_REGION.match(item) for item in value) or len(set(value)) < len(value):
            raise ValueError("is not a list of different regions such as us-east-2")
        return value

    @field_validator("instance_types")
    @classmethod
    def _types(cls, value: list[str]) -> list[str]:
        unknown = [item for item in value if item not in TYPES]
        if unknown:
            raise ValueError(f"takes types with an NVIDIA L4: {', '.join(TYPES)}")
        if len(value) > MAX_POOLS or len(set(value)) < len(value):
            raise ValueError(f"takes 1 to {MAX_POOLS} different types")
        if len({TYPES[item].gpus for item in value}) > 1:
            raise ValueError("must all have the same number of GPUs: one model is put on each")
        return value

    @field_validator("role")
    @classmethod
    def _an_arn(cls, value: str | None) -> str | None:
        if value is not None and not _ROLE.match(value):
            raise ValueError("is not a role's ARN, arn:aws:iam::ACCOUNT:role/NAME")
        return value

    @field_validator("image")
    @classmethod
    def _pinned(cls, value: str | None) -> str | None:
        if value is not None and (not _IMAGE.match(value) or value.endswith(":latest")):
            raise ValueError(
                "is not a pinned image in ECR, ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG"
            )
        return value

    @field_validator("ami")
    @classmethod
    def _an_ami(cls, value: str | None) -> str | None:
        if value is not None and value not in {ami.name for ami in AMIS}:
            raise ValueError(f"is none of {', '.join(ami.name for ami in AMIS)}")
        return value

    @field_validator("env")
    @classmethod
    def _variables(cls, value: list[str]) -> list[str]:
        for item in value:
            if not _ENV.match(item):
                raise ValueError("takes KEY=VALUE items")
            key, _, text = item.partition("=")
            if _SECRET_NAME.search(key):
                raise ValueError(
                    "must not carry secrets: everybody who may describe the model would read them. "
                    "Gemma 4 needs no Hugging Face token"
                )
            if key.startswith("SM_VLLM") and not _ENGINE_ENV.match(key):
                raise ValueError("takes vLLM's arguments as SM_VLLM_ and capitals: SM_VLLM_X_Y")
            if key in _OWN_VARIABLES:
                raise ValueError(f"must not carry {key}: say {_OWN_VARIABLES[key]}")
            if "\n" in text or len(text) > MAX_VALUE_CHARS:
                raise ValueError(f"takes values of one line, up to {MAX_VALUE_CHARS} characters")
            _check_json(text)
        return value

    @field_validator("tags")
    @classmethod
    def _labels(cls, value: list[str]) -> list[str]:
        for item in value:
            if not _TAG.match(item) or item.lower().startswith(("aws:", "managed-by=")):
                raise ValueError("takes KEY=VALUE items; aws: and managed-by are not yours to set")
        return value


def _check_json(text: str) -> None:
    """Refuse what looks like JSON and is none: the container would only fail after minutes."""
    if text[:1] in "{[" and text:
        try:
            json.loads(text)
        except ValueError:
            raise ValueError("takes whole JSON where a value begins with { or [") from None


def resolved(spec: SageMakerSpec, region: str, types: Sequence[str]) -> SageMakerSpec:
    """The request with everything that was not said filled in and checked.

    Args:
        spec: The request.
        region: Where, when it was not said.
        types: Instance types, when they were not said.

    Raises:
        InvalidInputError: A value, or a pair of values, is not possible.
    """
    check_name(spec.name)
    chosen = list(spec.instance_types or types)
    gpus = TYPES[chosen[0]].gpus
    model = spec.model or f"google/{PROFILE.checkpoint}"
    full = spec.model_copy(
        update={
            "region": spec.region or region,
            "instance_types": chosen,
            "instances": spec.instances or 1,
            "model": model,
            "served_model_name": spec.served_model_name
            or model.removeprefix("s3://").rstrip("/").rpartition("/")[2],
            "max_model_len": spec.max_model_len or PROFILE.max_model_len,
            "gpu_memory_utilization": spec.gpu_memory_utilization or PROFILE.memory_utilization,
            "kv_cache_dtype": spec.kv_cache_dtype or PROFILE.kv_cache_dtype,
            "tensor_parallel_size": spec.tensor_parallel_size or gpus,
            "startup_timeout_s": spec.startup_timeout_s or int(HEALTH_CHECK_S.value),
            "download_timeout_s": spec.download_timeout_s or int(HEALTH_CHECK_S.value),
        }
    )
    _check(full)
    return full


_NOT_WITH_ZERO: Mapping[str, str] = {
    "candidate": "an endpoint of inference components has one variant; deploy the other under a "
    "name of its own, which costs nothing while nobody asks it",
    "rollout": "a component is replaced, not shifted to",
    "rollout_wait_s": "a component is replaced, not shifted to",
    "rollback_alarms": "a component is replaced, and nothing is rolled back by itself",
    "fallback_regions": "its model is put on only when the endpoint is in service; name one region",
}


def _check_zero(spec: SageMakerSpec) -> None:
    """Refuse by name what goes with endpoints that hold their model themselves only.

    Raises:
        InvalidInputError: Names the option and why.
    """
    for option, why in _NOT_WITH_ZERO.items():
        if getattr(spec, option):
            raise InvalidInputError(f"options.{option}", f"does not go with scale_to_zero: {why}.")


def default_types(spec: SageMakerSpec) -> tuple[str, ...]:
    """The types of a request: those it names, else the reference deployment's pool."""
    return tuple(spec.instance_types) or DEFAULT_POOL


def _check(spec: SageMakerSpec) -> None:
    if str(spec.region) in spec.fallback_regions:
        raise InvalidInputError(
            "options.fallback_regions", f"holds {spec.region}, which is tried first anyway."
        )
    if spec.fallback_regions and spec.image:
        raise InvalidInputError(
            "options.fallback_regions",
            "needs AWS's own image: options.image is in one region's registry only.",
        )
    if spec.scale_to_zero:
        _check_zero(spec)
    gpus = TYPES[spec.instance_types[0]].gpus
    if int(spec.tensor_parallel_size or 1) > gpus:
        raise InvalidInputError(
            "options.tensor_parallel_size",
            f"is {spec.tensor_parallel_size}, and {spec.instance_types[0]} has {gpus} GPUs.",
            allowed=f"1 to {gpus}",
        )
    model = str(spec.model)
    if "://" in model and not _BUCKET_FOLDER.match(model):
        raise InvalidInputError(
            "model", "is neither a Hugging Face id nor a folder of a bucket.",
            allowed="organisation/name, or s3://BUCKET/FOLDER",
        )  # fmt: skip
    if "://" not in model and model.count("/") != 1:
        raise InvalidInputError(
            "model", "is no Hugging Face id.", allowed="organisation/name, or s3://BUCKET/FOLDER"
        )
    batched = spec.max_num_batched_tokens
    if batched is not None and batched < WITH_IMAGES_MIN_BATCHED_TOKENS and not spec.text_only:
        raise InvalidInputError(
            "options.max_num_batched_tokens",
            f"of {batched} is less than a picture takes; vLLM would refuse to start.",
            allowed=f"{WITH_IMAGES_MIN_BATCHED_TOKENS} and more, or text_only=true",
        )
    if len(spec.env) > MAX_ENVIRONMENT - 20:
        raise InvalidInputError("options.env", f"has {len(spec.env)} variables; too many.")

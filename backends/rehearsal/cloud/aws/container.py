"""What the vLLM container of an endpoint would do on SageMaker's machines, and how it is played."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from backends.core.errors import NotFoundError
from backends.knowledge.checkpoints import Checkpoint, find_checkpoint
from backends.knowledge.targets import find_profile
from backends.rehearsal.cloud.aws.catalogue import INSTANCE_TYPES, InstanceType
from backends.rehearsal.cloud.faults import StartTrouble
from backends.rehearsal.cloud.run.container import Plan
from backends.rehearsal.cloud.web import Json

_PREFIX = "SM_VLLM_"
_MODEL_FOLDER = "/opt/ml/model"
_CUDA = re.compile(r"-cu(\d+)-")
# The first AMI whose driver (580) runs images of CUDA 13; T4 machines get an older one by default.
_CUDA_13_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
# What vLLM and the operating system take beside the weights while they are mapped.
_HOST_SPARE_GIB = 4.0
# What one picture takes; vLLM takes no smaller budget of a step while Gemma 4 sees pictures.
_IMAGE_TOKENS = 2496

# vLLM's settings that the simulator takes as they are: SM_VLLM_MAX_MODEL_LEN -> --max-model-len.
_PASSED = (
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "gpu-memory-utilization",
    "tensor-parallel-size",
    "kv-cache-dtype",
)


@dataclass(frozen=True)
class Launch:
    """How one instance of a variant is played.

    Attributes:
        plan: The container; None where it cannot even be started.
        refused: Why it cannot, as SageMaker says it.
    """

    plan: Plan | None
    refused: str = ""


def launch(
    endpoint: str,
    variant: Json,
    container: Json,
    instance_type: str,
    troubles: Sequence[StartTrouble],
) -> Launch:
    """How a start of a variant's container goes.

    Args:
        endpoint: The endpoint's name.
        variant: The variant of its configuration.
        container: The model's primary container.
        instance_type: Where it was placed.
        troubles: Faults that were switched on for this start.
    """
    machine = INSTANCE_TYPES[instance_type]
    env = {key: str(value) for key, value in (container.get("Environment") or {}).items()}
    if _needs_newer_driver(container, variant, machine):
        return Launch(
            None,
            "CannotStartContainerError. Please ensure the model container for variant "
            f"{variant['VariantName']} starts correctly when invoked with 'docker run <image> "
            "serve'",
        )
    trouble = next((item for item in troubles if item.slow == 1.0), None)
    factor = 1.0
    for item in troubles:
        factor *= item.slow
    checkpoint = _checkpoint(env, container)
    if trouble is None:
        trouble = _natural(endpoint, env, checkpoint, machine)
    profile = find_profile(machine.profile)
    argv = _simulator(profile.name, checkpoint, env)
    if trouble is not None and trouble.fail:
        argv.append(f"--fail={trouble.fail}")
    key = env.get(f"{_PREFIX}API_KEY", "")
    return Launch(
        Plan(
            argv=tuple(argv),
            profile=profile,
            startup_factor=factor,
            trouble=trouble,
            env={"VLLM_API_KEY": key},
        )
    )


def _needs_newer_driver(container: Json, variant: Json, machine: InstanceType) -> bool:
    cuda = _CUDA.search(str(container.get("Image", "")))
    wants = cuda is not None and int(cuda[1]) >= 130
    ami = variant.get("InferenceAmiVersion")
    # Unless told, L4 machines come with a driver that is new enough, and T4 ones do not.
    return wants and ami != _CUDA_13_AMI and (ami is not None or machine.gpu == "T4")


def _checkpoint(env: Mapping[str, str], container: Json) -> Checkpoint | None:
    model = env.get(f"{_PREFIX}MODEL", "")
    if model == _MODEL_FOLDER:
        # What SageMaker has put there is known by its folder in the bucket.
        source = (container.get("ModelDataSource") or {}).get("S3DataSource") or {}
        model = str(source.get("S3Uri", "")).rstrip("/").rpartition("/")[2]
    try:
        return find_checkpoint(model)
    except NotFoundError:
        return None


def _natural(
    endpoint: str, env: Mapping[str, str], checkpoint: Checkpoint | None, machine: InstanceType
) -> StartTrouble | None:
    """What goes wrong because of what was asked for."""
    trouble = StartTrouble(f"natural-{endpoint}")
    if not machine.gpus:
        return replace(
            trouble,
            after="version ",
            lines=[
                "RuntimeError: Failed to infer device type, please set the environment variable "
                "`VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue."
            ],
            exit_code=1,
        )
    if not env.get(f"{_PREFIX}MODEL") or checkpoint is None:
        return replace(trouble, fail="bad-model")
    budget = int(env.get(f"{_PREFIX}MAX_NUM_BATCHED_TOKENS") or _IMAGE_TOKENS)
    if budget < _IMAGE_TOKENS and not _text_only(env):
        return replace(
            trouble,
            after="Resolved architecture",
            lines=[
                "Traceback (most recent call last):",
                "ValueError: Chunked MM input disabled but max_tokens_per_mm_item "
                f"({_IMAGE_TOKENS}) is larger than max_num_batched_tokens ({budget}). Please "
                "increase max_num_batched_tokens.",
            ],
            exit_code=1,
        )
    size = checkpoint.disk_gb.value * 1e9
    largest = min(size, 23_265_352_448)
    if size / 2**30 > machine.memory_gib + _HOST_SPARE_GIB:
        return replace(
            trouble,
            after="Starting to load model",
            lines=[
                "Traceback (most recent call last):",
                f"RuntimeError: unable to mmap {largest:.0f} bytes from file "
                "</root/.cache/huggingface/hub/model.safetensors>: Cannot allocate memory (12)",
            ],
            exit_code=1,
        )
    return None


def _on(env: Mapping[str, str], name: str) -> bool:
    # The image's entry point hands on an empty value as the bare flag.
    return env.get(_PREFIX + name, "off").lower() in {"", "true", "1"}


def _text_only(env: Mapping[str, str]) -> bool:
    limits = env.get(f"{_PREFIX}LIMIT_MM_PER_PROMPT", "")
    return _on(env, "LANGUAGE_MODEL_ONLY") or re.sub(r"\s", "", limits).startswith('{"image":0')


def _simulator(profile: str, checkpoint: Checkpoint | None, env: Mapping[str, str]) -> list[str]:
    name = checkpoint.name if checkpoint else find_profile(profile).checkpoint
    model = env.get(f"{_PREFIX}MODEL") or name
    argv = [
        sys.executable,
        "-m",
        "backends.serving.simulator",
        f"--profile={profile}",
        f"--checkpoint={name}",
        "--admission-cap=0",
        f"--model={model}",
        f"--served-model-name={env.get(f'{_PREFIX}SERVED_MODEL_NAME') or model}",
    ]
    for flag in _PASSED:
        value = env.get(_PREFIX + flag.upper().replace("-", "_"))
        if value:
            argv.append(f"--{flag}={value}")
    tools = env.get(f"{_PREFIX}TOOL_CALL_PARSER") if _on(env, "ENABLE_AUTO_TOOL_CHOICE") else ""
    argv.append(f"--tool-call-parser={'gemma4' if tools == 'gemma4' else ''}")
    reasoning = env.get(f"{_PREFIX}REASONING_PARSER")
    argv.append(f"--reasoning-parser={'gemma4' if reasoning == 'gemma4' else ''}")
    if _text_only(env):
        argv.append("--language-model-only")
    if _on(env, "ENABLE_PROMPT_TOKENS_DETAILS"):
        argv.append("--enable-prompt-tokens-details")
    if env.get(f"{_PREFIX}ENABLE_PREFIX_CACHING", "").lower() == "false":
        argv.append("--no-enable-prefix-caching")
    return argv

"""SageMaker endpoints with an NVIDIA L4: instance types, images and their drivers, limits, prices.

Adding an entry needs no code. Everything here has its source; what has no other date was collected
on 2026-11-30.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from backends.knowledge.facts import Fact, assumed, measured, published
from backends.knowledge.targets import SAGEMAKER_L4, TargetProfile

TARGET = "sagemaker-l4"
PROFILE: TargetProfile = SAGEMAKER_L4

_REPOSITORY = "SageMaker L4 repository"
_EC2_PAGE = "Amazon EC2 instance types page, G6"
_PRICE_LIST = "AWS Price List, AmazonSageMaker, hosting, us-east-2, 2026-09-25"


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type that endpoints run on.

    Args:
        name: e.g. `ml.g6.xlarge`.
        gpus: NVIDIA L4 in it.
        vcpus: vCPUs.
        memory_gib: RAM of the host, which maps the weights while they are loaded.
    """

    name: str
    gpus: int
    vcpus: int
    memory_gib: int


# Sizes: Amazon EC2 instance types page, G6. That each is an endpoint type: botocore 1.44.8,
# ProductionVariantInstanceType.
TYPES: Mapping[str, InstanceType] = MappingProxyType(
    {
        item.name: item
        for item in (
            InstanceType("ml.g6.xlarge", 1, 4, 16),
            InstanceType("ml.g6.2xlarge", 1, 8, 32),
            InstanceType("ml.g6.4xlarge", 1, 16, 64),
            InstanceType("ml.g6.8xlarge", 1, 32, 128),
            InstanceType("ml.g6.16xlarge", 1, 64, 256),
            InstanceType("ml.g6.12xlarge", 4, 48, 192),
            InstanceType("ml.g6.24xlarge", 4, 96, 384),
            InstanceType("ml.g6.48xlarge", 8, 192, 768),
        )
    }
)

DEFAULT_POOL: tuple[str, ...] = ("ml.g6.xlarge", "ml.g6.2xlarge", "ml.g6.4xlarge")
"""The reference deployment's pool, dearest last: all have one L4."""
MAX_POOLS = 5
"""Entries of InstancePools (botocore 1.44.8)."""

USD_PER_HOUR: Mapping[tuple[str, str], Fact] = MappingProxyType(
    {
        ("us-east-2", "ml.g6.xlarge"): published(1.1267, _PRICE_LIST, "2026-09-25"),
        ("us-east-2", "ml.g6.2xlarge"): published(1.2220, _PRICE_LIST, "2026-09-25"),
        ("us-east-2", "ml.g6.4xlarge"): published(1.6540, _PRICE_LIST, "2026-09-25"),
    }
)
"""Hosting rates for when the price list cannot be asked. No rate here is no number."""

PRICE_REGION = "us-east-1"
"""The price list is asked there, whichever region's prices it is about."""

REGIONS: tuple[str, ...] = (
    "us-east-1",
    "us-east-2",
    "us-west-2",
    "eu-central-1",
    "ap-northeast-1",
)
"""Looked at unless VLLM_DEVOPS_AWS_REGIONS says otherwise: on in every account, and EC2 sells G6
there (EC2 instance types by region, 2026-11). Whether an account may have one, its quotas say."""

# ------------------------------------------------------------------------------------- images

IMAGE_ACCOUNT = "763104351884"
"""Owner of AWS's Deep Learning Containers in the regions above (AWS Deep Learning Containers
documentation)."""
IMAGE_REPOSITORY = "vllm"
_PINNED = re.compile(
    r"(\d+)\.(\d+)\.(\d+)-gpu-py\d+-cu(\d{2})(\d)-\w+?[\d.]*-sagemaker-v(\d+)\.(\d+)"
)


@dataclass(frozen=True, slots=True, order=True)
class ImageTag:
    """A pinned tag of AWS's vLLM image for SageMaker; ordered by vLLM's version, then by build.

    Args:
        vllm: vLLM's version.
        build: AWS's build of it.
        cuda: CUDA it was built with.
        tag: The whole tag.
    """

    vllm: tuple[int, int, int]
    build: tuple[int, int]
    cuda: tuple[int, int]
    tag: str

    @property
    def version(self) -> str:
        """The version of vLLM, in words."""
        return ".".join(map(str, self.vllm))


def image_tag(tag: str) -> ImageTag | None:
    """What a tag says; None for those that are not pinned, not for SageMaker, or another product.

    Floating tags (`0.30-gpu-py312`, `server-sagemaker-cuda-v1`) may mean another image tomorrow;
    `-soci` ones are indexes of the same images, `omni-` ones another server.
    """
    found = _PINNED.fullmatch(tag)
    if found is None:
        return None
    a, b, c, major, minor, build, patch = map(int, found.groups())
    return ImageTag((a, b, c), (build, patch), (major, minor), tag)


def newest_image(tags: Iterable[str]) -> ImageTag | None:
    """The newest pinned tag by version: older lines get rebuilt, so push dates say nothing."""
    return max(filter(None, map(image_tag, tags)), default=None)


def registry(region: str) -> str:
    """The image's address in a region, without its tag."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{IMAGE_ACCOUNT}.dkr.ecr.{region}.{suffix}/{IMAGE_REPOSITORY}"


@dataclass(frozen=True, slots=True)
class Ami:
    """A machine image that endpoints may be put on.

    Args:
        name: Value of `InferenceAmiVersion`.
        driver: Its NVIDIA driver's branch.
        cuda: CUDA of that driver.
    """

    name: str
    driver: int
    cuda: tuple[int, int]


# SageMaker API reference, ProductionVariant.InferenceAmiVersion (botocore 1.44.8), oldest first.
AMIS: tuple[Ami, ...] = (
    Ami("al2-ami-sagemaker-inference-gpu-2", 535, (12, 2)),
    Ami("al2-ami-sagemaker-inference-gpu-2-1", 535, (12, 2)),
    Ami("al2-ami-sagemaker-inference-gpu-3-1", 550, (12, 4)),
    Ami("al2023-ami-sagemaker-inference-gpu-4-1", 580, (13, 0)),
)


def ami_for(cuda: tuple[int, int]) -> Ami:
    """The machine image for a container's CUDA.

    A driver serves all minor versions of its CUDA's major one (NVIDIA, minor version
    compatibility); AWS's own vLLM page puts CUDA 12.9 images on driver 550.
    """
    return next(
        (ami for ami in reversed(AMIS) if ami.cuda[0] == cuda[0]),
        AMIS[-1],
    )


# -------------------------------------------------------------------- limits of the API (botocore)

TIMEOUT_LIMITS_S = (60, 3600)
"""Of the model's download and of the container's health check."""
PROVISION_LIMITS_S = (300, 3600)
"""Of VariantInstanceProvisionTimeoutInSeconds."""
MAX_ENVIRONMENT = 100
MAX_VALUE_CHARS = 1024
"""Of one variable of a container."""

HEALTH_CHECK_S = published(1800.0, f"{_REPOSITORY}: its endpoint configuration")
"""How long a container may take until it answers; a crashed one keeps `Creating` for all of it."""
CAPACITY_WAIT_S = measured(1800.0, f"{_REPOSITORY}: InsufficientInstanceCapacity after ~30 min")
"""How long SageMaker looks for an instance before it gives up."""
ASSUMABLE_S = assumed(60.0, "IAM documentation: changes take seconds to be seen everywhere")
"""How long a new role is waited for."""
INVOCATION_LIMIT_S = published(60.0, "SageMaker documentation: InvokeEndpoint answers within 60 s")
STREAM_LIMIT_S = published(480.0, "SageMaker documentation: response streams of up to 8 minutes")

WITH_IMAGES_MIN_BATCHED_TOKENS = 2496
"""vLLM refuses fewer --max-num-batched-tokens while Gemma 4 takes images (L4 repository)."""

USD_PER_GIB_LOGS = published(0.50, "Amazon CloudWatch pricing page, us regions, ingestion")

CLI_OVERHEAD_S = measured(0.6, f"{_REPOSITORY}: 0.562 and 0.633 s a call of `aws invoke-endpoint`")
"""What a call of the aws CLI adds to the model's time; our own wire signs in 0.2 ms instead."""

SAGEMAKER_IMAGE_NOTE = (
    "The image is your own; its CUDA is not known, so the machine image is the newest unless "
    "options.ami says otherwise."
)

REQUESTS_PER_INSTANCE = measured(
    16.0, f"{_REPOSITORY}: 16 requests at once give 619 tok/s, 13.6 times one"
)
"""Automatic scaling keeps about so many requests at once on each instance."""

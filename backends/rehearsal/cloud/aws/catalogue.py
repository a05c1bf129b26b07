"""What AWS has for an endpoint of vLLM: instance types, regions, prices, quotas, images.

Sizes are those of EC2's instance pages, prices of us-east-2 those of the SageMaker price list, both
as of 2026-11-30 by the reference repository; prices of other regions and the account's quotas are
this rehearsal's own, chosen so that regions differ. Tags of the image repository follow the pattern
of the real ones: the newest push is a patch of an older vLLM.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

DEFAULT_REGION = "us-east-2"


@dataclass(frozen=True)
class InstanceType:
    """A machine for an endpoint.

    Attributes:
        name: E.g. `ml.g6.xlarge`.
        gpu: Its GPU, as AWS calls it.
        gpus: How many.
        vcpus: vCPUs.
        memory_gib: Main memory.
        usd_per_hour: Price in us-east-2.
        profile: The simulator's profile that comes nearest.
    """

    name: str
    gpu: str
    gpus: int
    vcpus: int
    memory_gib: int
    usd_per_hour: float
    profile: str = "sagemaker-l4"


INSTANCE_TYPES: Mapping[str, InstanceType] = MappingProxyType(
    {
        item.name: item
        for item in (
            InstanceType("ml.g6.xlarge", "L4", 1, 4, 16, 1.1267),
            InstanceType("ml.g6.2xlarge", "L4", 1, 8, 32, 1.2220),
            InstanceType("ml.g6.4xlarge", "L4", 1, 16, 64, 1.6540),
            InstanceType("ml.g6.8xlarge", "L4", 1, 32, 128, 2.5180),
            InstanceType("ml.g6.12xlarge", "L4", 4, 48, 192, 5.7520),
            InstanceType("ml.g6.16xlarge", "L4", 1, 64, 256, 4.2460),
            InstanceType("ml.g6.24xlarge", "L4", 4, 96, 384, 8.3440),
            InstanceType("ml.g6.48xlarge", "L4", 8, 192, 768, 16.6880),
            InstanceType("ml.g6e.xlarge", "L40S", 1, 4, 32, 2.6054),
            InstanceType("ml.g6e.2xlarge", "L40S", 1, 8, 64, 3.1390),
            InstanceType("ml.g5.xlarge", "A10G", 1, 4, 16, 1.4080),
            InstanceType("ml.g5.2xlarge", "A10G", 1, 8, 32, 1.5150),
            InstanceType("ml.g4dn.xlarge", "T4", 1, 4, 16, 0.736, "gce-t4"),
            InstanceType("ml.g4dn.2xlarge", "T4", 1, 8, 32, 0.9400, "gce-t4"),
            InstanceType("ml.m5.xlarge", "", 0, 4, 16, 0.2300),
            InstanceType("ml.c5.xlarge", "", 0, 4, 8, 0.2040),
        )
    }
)


@dataclass(frozen=True)
class Region:
    """A region.

    Attributes:
        name: E.g. `us-east-2`.
        title: As the price list calls it.
        price_code: As usage types begin.
        price_factor: Prices are this many times those of us-east-2.
        zones: Letters of its zones that have L4 machines; empty: it has none.
        quotas: Endpoint quota by type; types not named here have 0.
    """

    name: str
    title: str
    price_code: str
    price_factor: float
    zones: str
    quotas: Mapping[str, int]


REGIONS: Mapping[str, Region] = MappingProxyType(
    {
        item.name: item
        for item in (
            Region(
                "us-east-1", "US East (N. Virginia)", "USE1", 1.0, "abcd",
                {"ml.g6.xlarge": 1, "ml.g6.2xlarge": 1, "ml.g4dn.xlarge": 2, "ml.m5.xlarge": 4},
            ),
            Region(
                "us-east-2", "US East (Ohio)", "USE2", 1.0, "abc",
                {
                    "ml.g6.xlarge": 2, "ml.g6.2xlarge": 1, "ml.g6.4xlarge": 1, "ml.g6e.xlarge": 1,
                    "ml.g4dn.xlarge": 2, "ml.m5.xlarge": 4,
                },
            ),
            Region("us-west-1", "US West (N. California)", "USW1", 1.2, "", {"ml.m5.xlarge": 4}),
            Region(
                "us-west-2", "US West (Oregon)", "USW2", 1.0, "abcd",
                {"ml.g6.xlarge": 1, "ml.g6.2xlarge": 2, "ml.g6.4xlarge": 1, "ml.m5.xlarge": 4},
            ),
            Region(
                "eu-central-1", "EU (Frankfurt)", "EUC1", 1.25, "abc",
                {"ml.g6.xlarge": 1, "ml.m5.xlarge": 4},
            ),
            Region("eu-west-1", "EU (Ireland)", "EUW1", 1.1, "ab", {"ml.m5.xlarge": 4}),
            Region(
                "eu-north-1", "EU (Stockholm)", "EUN1", 1.06, "ab",
                {"ml.g6.xlarge": 1, "ml.m5.xlarge": 4},
            ),
            Region(
                "ap-south-1", "Asia Pacific (Mumbai)", "APS3", 1.2, "b", {"ml.m5.xlarge": 4}
            ),
            Region(
                "ap-northeast-1", "Asia Pacific (Tokyo)", "APN1", 1.4, "ac",
                {"ml.g6.2xlarge": 1, "ml.m5.xlarge": 4},
            ),
        )
    }
)  # fmt: skip

NEVER_ZERO = frozenset({"eu-north-1"})
"""Where endpoints keep an instance at least: at AWS some regions refuse MinInstanceCount 0 (seen of
eu-west-3, 2026-08-27, in a public report); that it is this one is the rehearsal's own choice."""

PRICING_REGIONS = ("us-east-1", "eu-central-1", "ap-south-1")
"""Where the Price List API answers; it speaks of all regions from there."""


def offered(region: str, instance_type: str) -> bool:
    """Whether endpoints can be made of a type in a region, quota or not."""
    known = REGIONS.get(region)
    if known is None or instance_type not in INSTANCE_TYPES:
        return False
    return bool(known.zones) or not instance_type.startswith("ml.g6")


def price(region: str, instance_type: str) -> float:
    """Hosting price in USD per hour."""
    return round(INSTANCE_TYPES[instance_type].usd_per_hour * REGIONS[region].price_factor, 4)


# What quotas are for, besides endpoints; a real list has more than two thousand of them.
_USES = (
    "for endpoint usage",
    "for training job usage",
    "for processing job usage",
    "for transform job usage",
    "for notebook instance usage",
    "for spot training job usage",
    "for training warm pool usage",
    "for cluster usage",
)


def quota_name(instance_type: str) -> str:
    """The name of the quota that an endpoint holds."""
    return f"{instance_type} {_USES[0]}"


def quota_code(name: str) -> str:
    """A quota's code; the real ones are as arbitrary as these."""
    return f"L-{binascii.crc32(name.encode()):08X}"


def default_quotas(region: str) -> dict[str, float]:
    """Every quota of SageMaker that a region's account has, by name."""
    found: dict[str, float] = {"Total number of endpoints": 100.0}
    for use in _USES:
        for name in INSTANCE_TYPES:
            if offered(region, name):
                value = REGIONS[region].quotas.get(name, 0) if use == _USES[0] else 0
                found[f"{name} {use}"] = float(value)
    return found


# ------------------------------------------------------------------------------ images

IMAGE_ACCOUNT = "763104351884"
IMAGE_REPOSITORY = "vllm"

# Tags by push, oldest first: (days ago, tags). Push order is not version order, on purpose.
IMAGE_PUSHES: tuple[tuple[float, tuple[str, ...]], ...] = (
    (210.0, ("0.24.0-gpu-py312-cu129-ubuntu22.04-sagemaker-v1.0",)),
    (160.0, ("0.26.0-gpu-py312-cu129-ubuntu22.04-sagemaker-v1.0",)),
    (120.0, ("0.26.0-gpu-py312-cu129-ubuntu22.04-sagemaker-v1.2",)),
    (90.0, ("omni-0.28.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.0", "omni-0.28-gpu-py312")),
    (61.0, ("0.29.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.0",)),
    (60.0, ("0.29.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.0-soci",)),
    (35.0, ("0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.0",)),
    (
        21.0,
        (
            "0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.1",
            "0.30-gpu-py312-cu130-ubuntu24.04-sagemaker",
            "0.30-gpu-py312",
        ),
    ),
    (21.0, ("0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.1-soci",)),
    (20.0, ("0.30.0-gpu-py312-cu130-ubuntu24.04-v1.1", "0.30.0-gpu-py312-ec2")),
    (12.0, ("omni-0.31.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.0",)),
    (5.0, ("0.29.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.4", "0.29-gpu-py312")),
    (4.0, ("0.26.0-gpu-py312-cu129-ubuntu22.04-sagemaker-v1.9",)),
    (4.0, ("server-sagemaker-cuda-v1", "server-sagemaker-cuda")),
    (3.0, ()),
)


def image_tags() -> set[str]:
    """Every tag of the repository."""
    return {tag for _, tags in IMAGE_PUSHES for tag in tags}

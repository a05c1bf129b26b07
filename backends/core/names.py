"""The words everybody uses: target names, our label, and the one rule for deployment names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from backends.core.errors import InvalidInputError

SERVER_NAME = "vllm-devops"
VERSION = "0.1.0"

# Every target the product has, in the order shown. A target is added here and in the registry.
TARGETS: tuple[str, ...] = (
    "cloudrun-l4",
    "cloudrun-rtx6000",
    "sagemaker-l4",
    "gce-t4",
    "tpu-v6e",
    "local",
)

MANAGED_BY = "managed-by"
MANAGED_BY_US = "vllm-devops"
# Where a cloud ends nothing by itself, how long a deployment is wanted for, in minutes.
TTL_LABEL = "vllm-devops-ttl-minutes"

# The strictest of the control planes: Cloud Run and queued resources allow 63 characters, but
# SageMaker's endpoint configuration and our own suffixes (-config, -node) need room.
NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,46}[a-z0-9])?$"


def check_name(name: str, field: str = "name") -> str:
    """Return `name` if every target accepts it as a deployment's name.

    Raises:
        InvalidInputError: It is not lower-case letters, digits and hyphens, or too long.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidInputError(
            field,
            "is not a deployment name.",
            allowed="1 to 48 of a-z, 0-9 and '-', starting with a letter, not ending in '-'",
        )
    return name


def is_ours(labels: Mapping[str, str]) -> bool:
    """Whether labels say that this product made what carries them."""
    return labels.get(MANAGED_BY) == MANAGED_BY_US


def easiest(targets: Sequence[str]) -> str:
    """The target to suggest first: this machine, where nothing is needed and nothing is spent."""
    return "local" if "local" in targets else targets[0]

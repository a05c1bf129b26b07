"""What SageMaker refuses of an endpoint configuration, in its own words."""

from __future__ import annotations

from typing import Any

from backends.rehearsal.cloud.aws.catalogue import INSTANCE_TYPES
from backends.rehearsal.cloud.aws.wire import AwsError
from backends.rehearsal.cloud.web import Json

MOST_POOLS = 5
MOST_VARIANTS = 10
_SECONDS = {
    "ContainerStartupHealthCheckTimeoutInSeconds": (60, 3600),
    "ModelDataDownloadTimeoutInSeconds": (60, 3600),
    "VariantInstanceProvisionTimeoutInSeconds": (300, 3600),
}
_AMIS = {
    "al2-ami-sagemaker-inference-gpu-2",
    "al2-ami-sagemaker-inference-gpu-2-1",
    "al2-ami-sagemaker-inference-gpu-3-1",
    "al2023-ami-sagemaker-inference-gpu-4-1",
}


def check_variants(variants: list[Json], *, role: str, zero: bool) -> None:
    """Check the production variants of a configuration.

    Args:
        variants: As they were asked for.
        role: The configuration's execution role; empty: none was named.
        zero: Whether the region lets endpoints have no instance.

    Raises:
        AwsError: What is wrong with the first that is.
    """
    if not 1 <= len(variants) <= MOST_VARIANTS:
        raise _constraint(
            "productionVariants", variants, "Member must have length between 1 and 10"
        )
    names = [variant.get("VariantName") for variant in variants]
    if len(set(names)) != len(names):
        raise AwsError("ValidationException", "Variant names must be unique.")
    for number, variant in enumerate(variants, 1):
        _check_variant(f"productionVariants.{number}.member", variant)
        _check_managed(variant, role=role, zero=zero)


def _check_variant(where: str, variant: Json) -> None:
    pools = variant.get("InstancePools")
    ways = [bool(variant.get("InstanceType")), pools is not None, "ServerlessConfig" in variant]
    if sum(ways) != 1:
        raise AwsError(
            "ValidationException",
            "Exactly one of InstanceType and InstancePools must be specified for a production "
            "variant.",
        )
    if variant.get("InstanceType"):
        _check_type(f"{where}.instanceType", variant["InstanceType"])
    if pools is not None:
        if not 1 <= len(pools) <= MOST_POOLS:
            raise _constraint(
                f"{where}.instancePools", pools, "Member must have length less than or equal to 5"
            )
        for index, pool in enumerate(pools, 1):
            _check_type(f"{where}.instancePools.{index}.member.instanceType", pool["InstanceType"])
        types = [pool["InstanceType"] for pool in pools]
        if len(set(types)) != len(types):
            raise AwsError("ValidationException", "Instance types of InstancePools must be unique.")
    for name, (least, most) in _SECONDS.items():
        if name in variant and not least <= int(variant[name]) <= most:
            bound = (
                f"greater than or equal to {least}"
                if int(variant[name]) < least
                else (f"less than or equal to {most}")
            )
            field = name[0].lower() + name[1:]
            raise _constraint(f"{where}.{field}", variant[name], f"Member must have value {bound}")
    ami = variant.get("InferenceAmiVersion")
    if ami and ami not in _AMIS:
        raise _constraint(
            f"{where}.inferenceAmiVersion",
            ami,
            f"Member must satisfy enum value set: [{', '.join(sorted(_AMIS))}]",
        )


def _check_managed(variant: Json, *, role: str, zero: bool) -> None:
    """Check what only variants that host inference components may, or must, have."""
    scaling = variant.get("ManagedInstanceScaling") or {}
    managed = scaling.get("Status") == "ENABLED"
    if not hosts_components(variant):
        if managed:
            raise AwsError(
                "ValidationException",
                "ManagedInstanceScaling is only supported for inference component endpoints.",
            )
        return
    if not role:
        # The words are this rehearsal's: that it is refused was reported, its sentence was not.
        raise AwsError(
            "ValidationException",
            "ExecutionRoleArn is required for an endpoint configuration whose production variants "
            "have no model.",
        )
    if managed and int(scaling.get("MinInstanceCount") or 0) < 1 and not zero:
        raise AwsError(
            "ValidationException",
            "Min instance count needs to be greater than 0 for enabled managed instance scaling",
        )
    most = int(scaling.get("MaxInstanceCount") or 1)
    if managed and most < int(variant.get("InitialInstanceCount") or 1):
        raise AwsError(
            "ValidationException",
            "Max instance count must not be less than the initial instance count.",
        )


def _check_type(where: str, name: str) -> None:
    if name not in INSTANCE_TYPES:
        raise _constraint(
            where, name, f"Member must satisfy enum value set: [{', '.join(INSTANCE_TYPES)}]"
        )


def _constraint(where: str, value: Any, rule: str) -> AwsError:  # noqa: ANN401 (JSON)
    return AwsError(
        "ValidationException",
        f"1 validation error detected: Value '{value}' at '{where}' failed to satisfy "
        f"constraint: {rule}",
    )


def hosts_components(variant: Json) -> bool:
    """Whether a variant has no model of its own: inference components are put on it."""
    return not variant.get("ModelName")


def types_of(variant: Json) -> list[str]:
    """The instance types of a variant, the preferred one first."""
    pools = variant.get("InstancePools")
    if not pools:
        return [variant["InstanceType"]] if variant.get("InstanceType") else []
    return [
        pool["InstanceType"] for pool in sorted(pools, key=lambda pool: pool.get("Priority") or 99)
    ]


def held_of(variants: list[Json]) -> dict[str, int]:
    """Instances for which quota is held: of every type that is listed, not only the placed one."""
    held: dict[str, int] = {}
    for variant in variants:
        for name in types_of(variant):
            held[name] = held.get(name, 0) + int(variant.get("InitialInstanceCount") or 1)
    return held

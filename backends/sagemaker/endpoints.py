"""Endpoints, configurations and models as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.knowledge.sagemaker import TYPES
from backends.sagemaker.components import Component, seconds_of

BUSY = frozenset({"Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"})
"""States in which SageMaker refuses every change."""
BROKEN = frozenset({"Failed", "OutOfService", "UpdateRollbackFailed"})


@dataclass(frozen=True)
class Pool:
    """An instance type of a variant, and how many of it are placed; None: not said."""

    type: str
    count: int | None = None


@dataclass(frozen=True)
class Variant:
    """A production variant as it runs.

    Attributes:
        name: Its name.
        weight: Its share of traffic is its weight among all weights.
        count: Instances it has.
        desired: Instances it is to have.
        pools: Types, for a variant with several.
        image: The image that runs.
        doing: What SageMaker does to it, in its words.
    """

    name: str
    weight: float = 0.0
    count: int | None = None
    desired: int | None = None
    pools: tuple[Pool, ...] = ()
    image: str = ""
    doing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Endpoint:
    """An endpoint as SageMaker describes it.

    Attributes:
        name: Its name.
        region: Where it is.
        arn: Its ARN.
        status: SageMaker's word for its state.
        reason: Why it failed; empty if it did not.
        config: Its endpoint configuration.
        next_config: The one an update brings; empty if there is none.
        created_at: Unix seconds.
        modified_at: Unix seconds.
        variants: Its variants.
        tags: Its tags.
    """

    name: str
    region: str
    arn: str
    status: str
    reason: str
    config: str
    next_config: str
    created_at: float
    modified_at: float
    variants: tuple[Variant, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def managed(self) -> bool:
        """Whether it carries our tag."""
        return self.tags.get(MANAGED_BY) == MANAGED_BY_US

    @property
    def placed(self) -> bool:
        """Whether SageMaker counts an instance."""
        return any(
            (variant.count or 0) > 0 or any((pool.count or 0) > 0 for pool in variant.pools)
            for variant in self.variants
        )

    @property
    def serving(self) -> Variant | None:
        """The variant with most of the traffic."""
        return max(self.variants, key=lambda variant: variant.weight, default=None)


@dataclass(frozen=True)
class PlannedVariant:
    """A variant of an endpoint configuration.

    Attributes:
        name: Its name.
        model: Its model.
        types: Its instance types, first choice first.
        count: Instances it begins with.
        weight: Its weight at first.
        startup_timeout_s: How long its container may take.
        raw: As the API has it, for a configuration made from this one.
    """

    name: str
    model: str
    types: tuple[str, ...]
    count: int
    weight: float
    startup_timeout_s: int
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """An endpoint configuration."""

    name: str
    region: str
    arn: str
    created_at: float
    variants: tuple[PlannedVariant, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    role_arn: str = ""

    @property
    def managed(self) -> bool:
        """Whether it carries our tag."""
        return self.tags.get(MANAGED_BY) == MANAGED_BY_US

    @property
    def of_components(self) -> bool:
        """Whether its instances stand empty until inference components are put on them."""
        return bool(self.variants) and not any(variant.model for variant in self.variants)

    @property
    def is_l4(self) -> bool:
        """Whether all its instances have an L4."""
        types = [kind for variant in self.variants for kind in variant.types]
        return bool(types) and all(kind in TYPES for kind in types)

    def variant(self, name: str) -> PlannedVariant | None:
        """The variant of that name."""
        return next((item for item in self.variants if item.name == name), None)


@dataclass(frozen=True)
class Model:
    """A model: what its container is given."""

    name: str
    image: str
    env: Mapping[str, str]
    role_arn: str
    weights: str = ""

    @property
    def served_name(self) -> str | None:
        """The name vLLM serves it under."""
        return self.env.get("SM_VLLM_SERVED_MODEL_NAME") or self.env.get("SM_VLLM_MODEL")

    @property
    def max_model_len(self) -> int | None:
        """The longest context it was told."""
        said = self.env.get("SM_VLLM_MAX_MODEL_LEN", "")
        return int(said) if said.isdecimal() else None

    @property
    def source(self) -> str | None:
        """Where its weights come from."""
        return self.weights or self.env.get("SM_VLLM_MODEL") or self.env.get("HF_MODEL_ID")


@dataclass(frozen=True)
class Deployed:
    """A deployment: an endpoint with its configuration, or only the configuration, stopped.

    Attributes:
        name: The deployment.
        region: Where.
        config: What it is made from; None where SageMaker has lost it.
        endpoint: None: stopped.
        component: What it hosts, where it scales to zero; None: nothing yet, or it is not of them.
    """

    name: str
    region: str
    config: Config | None
    endpoint: Endpoint | None = None
    component: Component | None = None

    @property
    def of_components(self) -> bool:
        """Whether it is made to scale to zero: its model is an inference component's."""
        return self.config is not None and self.config.of_components

    @property
    def log_group(self) -> str:
        """Where SageMaker writes what its containers print.

        Components have groups of their own (public code of several that read them, 2026-12-01).
        """
        kind = "InferenceComponents" if self.of_components else "Endpoints"
        return f"/aws/sagemaker/{kind}/{self.name}"

    @property
    def managed(self) -> bool:
        """Whether it is ours."""
        holder = self.endpoint or self.config
        return holder is not None and holder.managed

    @property
    def types(self) -> tuple[str, ...]:
        """All instance types it may be on."""
        if self.config is None:
            return ()
        return tuple(
            dict.fromkeys(kind for variant in self.config.variants for kind in variant.types)
        )


def endpoint_of(raw: Mapping[str, Any], region: str, tags: Mapping[str, str]) -> Endpoint:
    """An endpoint from what DescribeEndpoint says."""
    pending = raw.get("PendingDeploymentSummary") or {}
    return Endpoint(
        name=str(raw["EndpointName"]),
        region=region,
        arn=str(raw["EndpointArn"]),
        status=str(raw["EndpointStatus"]),
        reason=str(raw.get("FailureReason") or ""),
        config=str(raw.get("EndpointConfigName") or ""),
        next_config=str(pending.get("EndpointConfigName") or ""),
        created_at=seconds_of(raw.get("CreationTime")),
        modified_at=seconds_of(raw.get("LastModifiedTime")),
        variants=tuple(_variant(item) for item in raw.get("ProductionVariants") or ()),
        tags=tags,
    )


def _variant(raw: Mapping[str, Any]) -> Variant:
    images = raw.get("DeployedImages") or [{}]
    return Variant(
        name=str(raw["VariantName"]),
        weight=float(raw.get("CurrentWeight") or 0.0),
        count=raw.get("CurrentInstanceCount"),
        desired=raw.get("DesiredInstanceCount"),
        pools=tuple(
            Pool(str(item["InstanceType"]), item.get("CurrentInstanceCount"))
            for item in raw.get("InstancePools") or ()
        ),
        image=str(images[0].get("SpecifiedImage") or ""),
        doing=tuple(
            ": ".join(filter(None, (str(item["Status"]), str(item.get("StatusMessage") or ""))))
            for item in raw.get("VariantStatus") or ()
        ),
    )


def config_of(raw: Mapping[str, Any], region: str, tags: Mapping[str, str]) -> Config:
    """A configuration from what DescribeEndpointConfig says."""
    variants: list[PlannedVariant] = []
    for item in raw.get("ProductionVariants") or ():
        pools = sorted(item.get("InstancePools") or (), key=lambda pool: int(pool["Priority"]))
        types = [str(pool["InstanceType"]) for pool in pools]
        if item.get("InstanceType"):
            types = [str(item["InstanceType"])]
        variants.append(
            PlannedVariant(
                name=str(item["VariantName"]),
                model=str(item.get("ModelName") or ""),
                types=tuple(types),
                count=int(item.get("InitialInstanceCount") or 0),
                weight=float(item.get("InitialVariantWeight") or 0.0),
                startup_timeout_s=int(
                    item.get("ContainerStartupHealthCheckTimeoutInSeconds") or 600
                ),
                raw=dict(item),
            )
        )
    return Config(
        name=str(raw["EndpointConfigName"]),
        region=region,
        arn=str(raw["EndpointConfigArn"]),
        created_at=seconds_of(raw.get("CreationTime")),
        variants=tuple(variants),
        tags=tags,
        role_arn=str(raw.get("ExecutionRoleArn") or ""),
    )


def model_of(raw: Mapping[str, Any]) -> Model:
    """A model from what DescribeModel says."""
    several: Sequence[Mapping[str, Any]] = raw.get("Containers") or ()
    container: Mapping[str, Any] = raw.get("PrimaryContainer") or next(iter(several), {})
    data = (container.get("ModelDataSource") or {}).get("S3DataSource") or {}
    return Model(
        name=str(raw["ModelName"]),
        image=str(container.get("Image") or ""),
        env={str(key): str(value) for key, value in (container.get("Environment") or {}).items()},
        role_arn=str(raw.get("ExecutionRoleArn") or ""),
        weights=str(data.get("S3Uri") or container.get("ModelDataUrl") or ""),
    )

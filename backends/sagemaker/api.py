"""Reads of SageMaker: endpoints, configurations, models and their tags."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from backends.core.errors import DevopsError, InvalidInputError, NotFoundError
from backends.core.names import is_ours
from backends.core.owned import together
from backends.core.problems import or_problem, words_of
from backends.sagemaker.commands import NAME_TAG, deployment_of
from backends.sagemaker.component_commands import DIMENSION, resource_id
from backends.sagemaker.components import Bounds, Component, component_of, seconds_of
from backends.sagemaker.endpoints import (
    Config,
    Deployed,
    Endpoint,
    Model,
    config_of,
    endpoint_of,
    model_of,
)

if TYPE_CHECKING:
    from backends.clouds.aws import Aws


class SageMakerApi:
    """Reads of SageMaker.

    Args:
        aws: The account.
    """

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        # What never changes under its name: made anew, ours has another name.
        self._configs: dict[tuple[str, str], Config] = {}
        self._models: dict[tuple[str, str], Model] = {}

    async def endpoint(self, region: str, name: str) -> Endpoint:
        """One endpoint with its tags.

        Raises:
            NotFoundError: There is none of that name in that region.
        """
        raw = await self._aws.call("sagemaker", "describe_endpoint", region, EndpointName=name)
        return endpoint_of(raw, region, await self._tags(region, str(raw["EndpointArn"])))

    async def names(self, region: str) -> list[str]:
        """The endpoints of a region."""
        found = await self._aws.items("sagemaker", "list_endpoints", "Endpoints", region)
        return [str(item["EndpointName"]) for item in found]

    async def deployed(self, region: str, name: str) -> Deployed:
        """One endpoint with its configuration.

        Raises:
            NotFoundError: There is no endpoint of that name in that region.
        """
        endpoint = await self.endpoint(region, name)
        config: Config | None = None
        if endpoint.config:
            try:
                config = await self.config(region, endpoint.config)
            except NotFoundError:
                config = None
        component: Component | None = None
        if config is not None and config.of_components:
            component = await self.component_or_none(region, name)
        return Deployed(name, region, config, endpoint, component)

    async def component_or_none(self, region: str, name: str) -> Component | None:
        """The inference component of a name with what automatic scaling may do to it, or None."""
        raw, bounds = await together(
            or_problem(
                self._aws.call(
                    "sagemaker",
                    "describe_inference_component",
                    region,
                    InferenceComponentName=name,
                )
            ),
            self.bounds(region, name),
        )
        if isinstance(raw, NotFoundError):
            return None
        if isinstance(raw, InvalidInputError) and not await self._has_component(region, name):
            return None  # in words that are not known yet
        if isinstance(raw, DevopsError):
            raise raw
        return component_of(raw, bounds)

    async def _has_component(self, region: str, name: str) -> bool:
        found = await self._aws.items(
            "sagemaker", "list_inference_components", "InferenceComponents", region,
            NameContains=name,
        )  # fmt: skip
        return name in {str(item["InferenceComponentName"]) for item in found}

    async def bounds(self, region: str, name: str) -> Bounds:
        """What automatic scaling may do to a component; where it cannot be asked, why."""
        found = await or_problem(
            self._aws.items(
                "application-autoscaling",
                "describe_scalable_targets",
                "ScalableTargets",
                region,
                ServiceNamespace="sagemaker",
                ResourceIds=[resource_id(name)],
                ScalableDimension=DIMENSION,
            )
        )
        if isinstance(found, DevopsError):
            return Bounds(problem=words_of(found))
        if not found:
            return Bounds()
        return Bounds(int(found[0]["MinCapacity"]), int(found[0]["MaxCapacity"]))

    async def wake_policy_arn(self, region: str, name: str, policy: str) -> str:
        """The ARN of a component's scaling policy.

        Raises:
            NotFoundError: There is none of that name.
        """
        found = await self._aws.items(
            "application-autoscaling",
            "describe_scaling_policies",
            "ScalingPolicies",
            region,
            ServiceNamespace="sagemaker",
            ResourceId=resource_id(name),
            PolicyNames=[policy],
        )
        if not found:
            raise NotFoundError(f"{name} has no scaling policy {policy} in {region}.")
        return str(found[0]["PolicyARN"])

    async def components_on(self, region: str, endpoint: str) -> dict[str, Mapping[str, str]]:
        """Every component of an endpoint, by name, with its tags."""
        found = await self._aws.items(
            "sagemaker", "list_inference_components", "InferenceComponents", region,
            EndpointNameEquals=endpoint,
        )  # fmt: skip
        tags = await together(
            *(self._tags(region, str(item["InferenceComponentArn"])) for item in found)
        )
        names = [str(item["InferenceComponentName"]) for item in found]
        return dict(zip(names, tags, strict=True))

    async def component_tags(self, region: str, component: Component) -> Mapping[str, str]:
        """A component's tags."""
        return await self._tags(region, component.arn)

    async def models_of(self, region: str, name: str) -> list[str]:
        """The models that were made for a deployment; those of ours only."""
        found = await self._aws.items(
            "sagemaker", "list_models", "Models", region, NameContains=f"{name}-vllm-"
        )
        named = [item for item in found if deployment_of(str(item["ModelName"])) == name]
        tags = await together(*(self._tags(region, str(item["ModelArn"])) for item in named))
        return [
            str(item["ModelName"])
            for item, tag in zip(named, tags, strict=True)
            if is_ours(tag) and tag.get(NAME_TAG) == name
        ]

    async def models_of_all(self, region: str) -> dict[str, str]:
        """Every model of ours in a region, and the deployment that it was made for."""
        found = await self._aws.items(
            "sagemaker", "list_models", "Models", region, NameContains="-vllm-"
        )
        named = [item for item in found if deployment_of(str(item["ModelName"])) is not None]
        tags = await together(*(self._tags(region, str(item["ModelArn"])) for item in named))
        return {
            str(item["ModelName"]): str(tag[NAME_TAG])
            for item, tag in zip(named, tags, strict=True)
            if is_ours(tag) and NAME_TAG in tag
        }

    async def all_deployed(self, region: str) -> list[Deployed]:
        """Every endpoint of a region, and every configuration of ours that has none (stopped)."""
        names, configs = await together(
            self.names(region), self._aws.items(
                "sagemaker", "list_endpoint_configs", "EndpointConfigs", region,
                NameContains="-vllm-",
            ),
        )  # fmt: skip
        found = await asyncio.gather(
            *(self.deployed(region, name) for name in names), return_exceptions=True
        )
        present: list[Deployed] = []
        for item in found:
            if isinstance(item, NotFoundError):
                continue  # deleted between the two looks
            if isinstance(item, BaseException):
                raise item
            present.append(item)
        ours = [(str(c["EndpointConfigName"]), seconds_of(c.get("CreationTime"))) for c in configs]
        return [*present, *await self._stopped(region, ours, set(names))]

    async def configs_of(self, region: str, name: str) -> list[Config]:
        """The configurations made for a deployment, newest first."""
        found = await self._aws.items(
            "sagemaker", "list_endpoint_configs", "EndpointConfigs", region,
            NameContains=f"{name}-vllm-",
        )  # fmt: skip
        names = [str(item["EndpointConfigName"]) for item in found]
        configs = await together(
            *(self.config(region, item) for item in names if deployment_of(item) == name)
        )
        ours = [config for config in configs if config.managed]
        return sorted(ours, key=lambda config: config.created_at, reverse=True)

    async def config(self, region: str, name: str) -> Config:
        """One endpoint configuration with its tags.

        Raises:
            NotFoundError: There is none of that name in that region.
        """
        known = self._configs.get((region, name))
        if known is not None:
            return known
        raw = await self._aws.call(
            "sagemaker", "describe_endpoint_config", region, EndpointConfigName=name
        )
        config = config_of(raw, region, await self._tags(region, str(raw["EndpointConfigArn"])))
        if deployment_of(name) is not None and config.managed:
            self._configs[region, name] = config
        return config

    async def model(self, region: str, name: str) -> Model:
        """One model.

        Raises:
            NotFoundError: There is none of that name in that region.
        """
        known = self._models.get((region, name))
        if known is not None:
            return known
        raw = await self._aws.call("sagemaker", "describe_model", region, ModelName=name)
        model = model_of(raw)
        if deployment_of(name) is not None:
            self._models[region, name] = model
        return model

    async def model_tags(self, region: str, name: str) -> Mapping[str, str]:
        """A model's tags.

        Raises:
            NotFoundError: There is no such model.
        """
        raw = await self._aws.call("sagemaker", "describe_model", region, ModelName=name)
        return await self._tags(region, str(raw["ModelArn"]))

    def forget(self, region: str, name: str) -> None:
        """Do not believe what was known of a configuration or model of that name."""
        self._configs.pop((region, name), None)
        self._models.pop((region, name), None)

    async def _stopped(
        self, region: str, configs: Sequence[tuple[str, float]], running: set[str]
    ) -> list[Deployed]:
        newest: dict[str, tuple[float, str]] = {}
        for config, created in configs:
            name = deployment_of(config)
            if name is not None and name not in running:
                newest[name] = max(newest.get(name, (0.0, "")), (created, config))
        found = await together(*(self._config_or_none(region, c) for _, c in newest.values()))
        return [
            Deployed(name, region, config)
            for name, config in zip(newest, found, strict=True)
            if config is not None and config.managed and config.tags.get(NAME_TAG) == name
        ]

    async def _config_or_none(self, region: str, name: str) -> Config | None:
        try:
            return await self.config(region, name)
        except NotFoundError:
            self.forget(region, name)
            return None

    async def _tags(self, region: str, arn: str) -> Mapping[str, str]:
        found = await self._aws.items("sagemaker", "list_tags", "Tags", region, ResourceArn=arn)
        return {str(item["Key"]): str(item["Value"]) for item in found}

"""Application Auto Scaling: targets and policies of variants, kept; of components, acted on too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.component_scaling import DIMENSION, PREFIX
from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service, page
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account
    from backends.rehearsal.cloud.aws.component_scaling import ComponentScaling
    from backends.rehearsal.cloud.aws.endpoints import Endpoints

_VARIANT = re.compile(r"endpoint/([^/]+)/variant/([^/]+)")
_COUNT = "sagemaker:variant:DesiredInstanceCount"
_PAGE = 50


class AutoScaling:
    """Scalable targets and scaling policies.

    Args:
        account: Where they are kept.
        endpoints: What they are for.
        components: Acts on those of inference components.
    """

    def __init__(
        self, account: Account, endpoints: Endpoints, components: ComponentScaling
    ) -> None:
        self._account = account
        self._endpoints = endpoints
        self._components = components

    def service(self) -> Service:
        """The service's handlers."""
        return Service("application-autoscaling", "json", "application-autoscaling").on(
            RegisterScalableTarget=self._register,
            DescribeScalableTargets=self._targets,
            DeregisterScalableTarget=self._deregister,
            PutScalingPolicy=self._put,
            DescribeScalingPolicies=self._policies,
            DeleteScalingPolicy=self._delete,
            DescribeScalingActivities=lambda _: {"ScalingActivities": []},
        )

    def _register(self, call: Call) -> Json:
        resource = self._resource(call)
        hosted = resource.startswith(PREFIX)
        found = _VARIANT.fullmatch(resource)
        if call.text("ScalableDimension") != (DIMENSION if hosted else _COUNT) or not (
            hosted or found
        ):
            raise AwsError(
                "ValidationException",
                f"Unsupported service namespace, resource type or scalable dimension: {resource}",
            )
        if found is not None:
            self._check_variant(call.region, found[1], found[2])
        targets = self._account.region(call.region)["targets"]
        before = targets.get(resource, {})
        least = call.params.get("MinCapacity", before.get("MinCapacity"))
        most = call.params.get("MaxCapacity", before.get("MaxCapacity"))
        if least is None or most is None:
            raise AwsError("ValidationException", "MinCapacity and MaxCapacity must be specified.")
        if hosted:
            self._components.check(call.region, resource, int(least))
        elif int(least) < 1:
            # An endpoint without inference components keeps at least one instance of a variant.
            raise AwsError(
                "ValidationException",
                "Minimum capacity must be greater than or equal to 1 for dimension "
                f"{_COUNT} of this endpoint.",
            )
        if int(most) < int(least):
            raise AwsError(
                "ValidationException", "Maximum capacity cannot be less than minimum capacity."
            )
        targets[resource] = {
            "ServiceNamespace": "sagemaker",
            "ResourceId": resource,
            "ScalableDimension": DIMENSION if hosted else _COUNT,
            "MinCapacity": int(least),
            "MaxCapacity": int(most),
            "RoleARN": "arn:aws:iam::123456789012:role/aws-service-role/sagemaker.application-"
            "autoscaling.amazonaws.com/AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint",
            "CreationTime": before.get("CreationTime", self._account.seconds()),
            "ScalableTargetARN": self._account.arn(
                "application-autoscaling", call.region, "scalable-target/rehearsal"
            ),
        }
        if hosted:
            self._components.registered(call.region, resource)
        self._account.changed()
        return {"ScalableTargetARN": targets[resource]["ScalableTargetARN"]}

    def _check_variant(self, region: str, name: str, variant: str) -> None:
        """Check that there is such a variant.

        Raises:
            AwsError: There is none.
        """
        try:
            endpoint = self._endpoints.find(region, name)
        except AwsError:
            raise AwsError("ValidationException", f"SageMaker endpoint not found: {name}") from None
        if variant not in {item["VariantName"] for item in endpoint["ProductionVariants"]}:
            raise AwsError("ValidationException", f"SageMaker variant not found: {variant}")

    def _targets(self, call: Call) -> Json:
        wanted = call.params.get("ResourceIds")
        targets = self._account.region(call.region)["targets"]
        found = [item for name, item in targets.items() if not wanted or name in wanted]
        return page(call, found, "ScalableTargets", _PAGE)

    def _deregister(self, call: Call) -> Json:
        resource = self._resource(call)
        region = self._account.region(call.region)
        if region["targets"].pop(resource, None) is None:
            raise self._absent(resource)
        for key in [key for key in region["policies"] if key.startswith(f"{resource} ")]:
            del region["policies"][key]
        self._account.changed()
        return {}

    def _put(self, call: Call) -> Json:
        resource, name = self._resource(call), call.text("PolicyName")
        region = self._account.region(call.region)
        if resource not in region["targets"]:
            raise self._absent(resource)
        arn = self._account.arn(
            "autoscaling",
            call.region,
            f"scalingPolicy:rehearsal:resource/sagemaker/{resource}:policyName/{name}",
        )
        region["policies"][f"{resource} {name}"] = {
            **{key: value for key, value in call.params.items() if value is not None},
            "PolicyARN": arn,
            "Alarms": [],
            "CreationTime": self._account.seconds(),
        }
        self._account.changed()
        return {"PolicyARN": arn, "Alarms": []}

    def _policies(self, call: Call) -> Json:
        resource, names = call.text("ResourceId"), call.params.get("PolicyNames")
        found = [
            item
            for item in self._account.region(call.region)["policies"].values()
            if resource in {"", item["ResourceId"]} and (not names or item["PolicyName"] in names)
        ]
        return page(call, found, "ScalingPolicies", _PAGE)

    def _delete(self, call: Call) -> Json:
        key = f"{self._resource(call)} {call.text('PolicyName')}"
        if self._account.region(call.region)["policies"].pop(key, None) is None:
            raise AwsError(
                "ObjectNotFoundException",
                f"No scaling policy found for service namespace: sagemaker, resource ID: "
                f"{self._resource(call)}, scalable dimension: {_COUNT}: "
                f"{call.text('PolicyName')}",
            )
        self._account.changed()
        return {}

    @staticmethod
    def _resource(call: Call) -> str:
        return call.text("ResourceId")

    @staticmethod
    def _absent(resource: str) -> AwsError:
        return AwsError(
            "ObjectNotFoundException",
            f"No scalable target registered for service namespace: sagemaker, resource ID: "
            f"{resource}, scalable dimension: {_COUNT}",
        )

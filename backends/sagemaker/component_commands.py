"""The exact commands about inference components; words that CLI v1 and v2 take alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backends.knowledge.sagemaker_components import REQUESTS_PER_COPY, RESERVED_MEMORY_MB
from backends.sagemaker.commands import (
    POLICY,
    Argv,
    aws_argv,
    deregister_target,
    placement,
    register_target,
    track_load,
)
from backends.sagemaker.spec import SageMakerSpec

DIMENSION = "sagemaker:inference-component:DesiredCopyCount"
_LOAD = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
WAKE_POLICY = f"{POLICY}-wake"
POLICY_ARN = "ARN-OF-THE-STEP-POLICY"
"""Stands for what only the command before it answers, in the alarm's command."""


def wake_alarm_name(name: str) -> str:
    """The alarm by which a request wakes a deployment."""
    return f"vllm-devops-{name}-wake"


def resource_id(name: str) -> str:
    """How Application Auto Scaling calls a component."""
    return f"inference-component/{name}"


def hosting_variant(spec: SageMakerSpec, name: str, ami: str) -> dict[str, Any]:
    """A production variant without a model, whose instances may all go.

    It begins with one instance: SageMaker takes no less, and the first copy needs it.
    """
    value: dict[str, Any] = {
        "VariantName": name,
        "InitialInstanceCount": 1,
        "InitialVariantWeight": 1.0,
        "ManagedInstanceScaling": {
            "Status": "ENABLED",
            "MinInstanceCount": 0,
            "MaxInstanceCount": spec.instances,
        },
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
        "InferenceAmiVersion": ami,
    }
    return value | placement(spec)


def specification(spec: SageMakerSpec, model: str) -> dict[str, Any]:
    """What a copy is: the model, how long it may take to start, and what it needs.

    The accelerators are those vLLM spreads the model over. The memory is a reservation that has to
    be small and that vLLM may exceed.
    """
    return {
        "ModelName": model,
        "StartupParameters": {
            "ModelDataDownloadTimeoutInSeconds": spec.download_timeout_s,
            "ContainerStartupHealthCheckTimeoutInSeconds": spec.startup_timeout_s,
        },
        "ComputeResourceRequirements": {
            "NumberOfAcceleratorDevicesRequired": spec.tensor_parallel_size,
            "MinMemoryRequiredInMb": int(RESERVED_MEMORY_MB.value),
        },
    }


def create_component(
    region: str, name: str, variant: str, spec: Mapping[str, Any], tags: Sequence[object]
) -> Argv:
    """Put the first copy on the endpoint of the same name."""
    return aws_argv(
        "sagemaker",
        "create-inference-component",
        region,
        inference_component_name=name,
        endpoint_name=name,
        variant_name=variant,
        specification=dict(spec),
        runtime_config={"CopyCount": 1},
        tags=list(tags),
    )


def update_copies(region: str, name: str, count: int) -> Argv:
    """Set the number of copies; instances follow."""
    return aws_argv(
        "sagemaker",
        "update-inference-component-runtime-config",
        region,
        inference_component_name=name,
        desired_runtime_config={"CopyCount": count},
    )


def delete_component(region: str, name: str) -> Argv:
    """Delete a component; its endpoint and model stay."""
    return aws_argv(
        "sagemaker", "delete-inference-component", region, inference_component_name=name
    )


def register_copies(region: str, name: str, low: int, high: int) -> Argv:
    """Let Application Auto Scaling choose the number of copies."""
    return register_target(region, resource_id(name), DIMENSION, low, high)


def put_load_policy(region: str, name: str) -> Argv:
    """Scale so that each copy has about so many requests at once; with none, to the least."""
    return track_load(region, resource_id(name), DIMENSION, _LOAD, REQUESTS_PER_COPY.value)


def put_wake_policy(region: str, name: str) -> Argv:
    """One copy more when the alarm goes off: the only way out of zero."""
    return aws_argv(
        "application-autoscaling",
        "put-scaling-policy",
        region,
        policy_name=WAKE_POLICY,
        service_namespace="sagemaker",
        resource_id=resource_id(name),
        scalable_dimension=DIMENSION,
        policy_type="StepScaling",
        step_scaling_policy_configuration={
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Maximum",
            "Cooldown": 60,
            "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}],
        },
    )


def put_wake_alarm(region: str, name: str, policy_arn: str, tags: Sequence[object]) -> Argv:
    """The alarm on requests that found no copy; what it does is the step policy."""
    return aws_argv(
        "cloudwatch",
        "put-metric-alarm",
        region,
        alarm_name=wake_alarm_name(name),
        alarm_description=f"Wakes the SageMaker deployment {name}: it was asked, and had no copy",
        alarm_actions=policy_arn,
        namespace="AWS/SageMaker",
        metric_name="NoCapacityInvocationFailures",
        dimensions=[{"Name": "InferenceComponentName", "Value": name}],
        statistic="Sum",
        period="60",
        evaluation_periods="1",
        datapoints_to_alarm="1",
        threshold="1",
        comparison_operator="GreaterThanOrEqualToThreshold",
        treat_missing_data="notBreaching",
        tags=list(tags),
    )


def delete_wake_alarm(region: str, name: str) -> Argv:
    """Delete that alarm."""
    return aws_argv("cloudwatch", "delete-alarms", region, alarm_names=wake_alarm_name(name))


def deregister_copies(region: str, name: str) -> Argv:
    """Leave the number of copies to calls; the policies and AWS's own alarms go with it."""
    return deregister_target(region, resource_id(name), DIMENSION)

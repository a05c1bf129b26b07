"""Inference components in the rehearsal: placed, scaled to nothing, woken by a request, refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.aws import IMAGE, REGION, ROLE, Amazon, refused
from tests.cloud.rehearsal import Rehearsal, rehearsal
from tests.support.processes import wait_for

CHAT = json.dumps({"messages": [{"role": "user", "content": "Say ok"}], "max_tokens": 4})
RESOURCE = "inference-component/gemma"
DIMENSION = "sagemaker:inference-component:DesiredCopyCount"
TARGET = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": RESOURCE,
    "ScalableDimension": DIMENSION,
}


@pytest.fixture
def amazon(cloud: Rehearsal) -> Iterator[Amazon]:
    made = Amazon(cloud)
    made.role()
    made.model()
    yield made
    made.close()


def _variant(**changes: Any) -> dict[str, Any]:
    one = {
        "VariantName": "main",
        "InitialInstanceCount": 1,
        "InstanceType": "ml.g6.xlarge",
        "ManagedInstanceScaling": {
            "Status": "ENABLED", "MinInstanceCount": 0, "MaxInstanceCount": 2,
        },
    }  # fmt: skip
    return {key: value for key, value in (one | changes).items() if value is not None}


def _empty(amazon: Amazon, **changes: Any) -> None:
    """An endpoint in service that hosts nothing yet."""
    amazon.client("sagemaker").create_endpoint_config(
        EndpointConfigName="gemma", ExecutionRoleArn=ROLE, ProductionVariants=[_variant(**changes)]
    )
    amazon.endpoint()
    assert amazon.settled()["EndpointStatus"] == "InService"


def _component(amazon: Amazon, name: str = "gemma", **needs: Any) -> None:
    amazon.client("sagemaker").create_inference_component(
        InferenceComponentName=name,
        EndpointName="gemma",
        VariantName="main",
        Specification={
            "ModelName": "gemma",
            "ComputeResourceRequirements": {
                "NumberOfAcceleratorDevicesRequired": 1, "MinMemoryRequiredInMb": 1024,
            } | needs,
        },
        RuntimeConfig={"CopyCount": 1},
    )  # fmt: skip


def _until(amazon: Amazon, status: str, copies: int | None = None) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        """the component is as wanted"""
        found = amazon.client("sagemaker").describe_inference_component(
            InferenceComponentName="gemma"
        )
        right = copies in {None, found["RuntimeConfig"]["CurrentCopyCount"]}
        return dict(found) if found["InferenceComponentStatus"] == status and right else None

    return wait_for(look, 25)


def _machines(amazon: Amazon) -> int:
    shown = amazon.client("sagemaker").describe_endpoint(EndpointName="gemma")
    return int(shown["ProductionVariants"][0]["CurrentInstanceCount"])


def _ask(amazon: Amazon, **more: Any) -> Any:
    return amazon.client("sagemaker-runtime").invoke_endpoint(
        EndpointName="gemma", ContentType="application/json", Body=CHAT, **more
    )


def _scaled(amazon: Amazon) -> None:
    """Automatic scaling from zero to one copy, with the alarm that wakes it."""
    scaling = amazon.client("application-autoscaling")
    scaling.register_scalable_target(**TARGET, MinCapacity=0, MaxCapacity=1)
    scaling.put_scaling_policy(
        **TARGET,
        PolicyName="track",
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration={
            "TargetValue": 16.0,
            "PredefinedMetricSpecification": {
                "PredefinedMetricType": "SageMakerInferenceComponentConcurrentRequestsPerCopy"
                "HighResolution"
            },
        },
    )
    step = scaling.put_scaling_policy(
        **TARGET,
        PolicyName="wake",
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration={
            "AdjustmentType": "ChangeInCapacity",
            "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}],
        },
    )
    amazon.client("cloudwatch").put_metric_alarm(
        AlarmName="wake",
        AlarmActions=[step["PolicyARN"]],
        Namespace="AWS/SageMaker",
        MetricName="NoCapacityInvocationFailures",
        Dimensions=[{"Name": "InferenceComponentName", "Value": "gemma"}],
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1,
        ComparisonOperator="GreaterThanOrEqualToThreshold",
    )


def test_a_component_goes_to_zero_by_itself_and_a_request_wakes_it(amazon: Amazon) -> None:
    sagemaker = amazon.client("sagemaker")
    _empty(amazon)
    assert "Name header is required" in refused(_ask, amazon=amazon)[1]
    _component(amazon)
    _until(amazon, "InService", 1)
    assert _machines(amazon) == 1
    _ask(amazon, InferenceComponentName="gemma")
    lines = amazon.client("logs").filter_log_events(
        logGroupName="/aws/sagemaker/InferenceComponents/gemma"
    )["events"]
    assert any("Application startup complete" in line["message"] for line in lines)

    _scaled(amazon)
    _until(amazon, "InService", 0)

    def empty() -> bool:
        """the empty machine is gone"""
        return _machines(amazon) == 0

    wait_for(empty, 25)
    code, words = refused(_ask, amazon=amazon, InferenceComponentName="gemma")
    assert code == "ValidationError"
    assert "has no capacity to process this request" in words
    _until(amazon, "InService", 1)
    streamed = amazon.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
        EndpointName="gemma",
        ContentType="application/json",
        InferenceComponentName="gemma",
        Body=json.dumps(json.loads(CHAT) | {"stream": True}),
    )
    assert b"[DONE]" in b"".join(event["PayloadPart"]["Bytes"] for event in streamed["Body"])

    # What it hosts goes before the endpoint does.
    assert "hosts inference components" in refused(
        sagemaker.delete_endpoint, EndpointName="gemma"
    )[1]  # fmt: skip
    sagemaker.delete_inference_component(InferenceComponentName="gemma")

    def gone() -> bool:
        """the component is gone"""
        return not sagemaker.list_inference_components()["InferenceComponents"]

    wait_for(gone, 25)
    sagemaker.delete_endpoint(EndpointName="gemma")
    assert amazon.cloud.control("GET", "/instances")["instances"] == []


def test_a_copy_that_asks_for_more_than_a_machine_gives_fails_at_once(amazon: Amazon) -> None:
    _empty(amazon)
    _component(amazon, MinMemoryRequiredInMb=4096)
    assert "not enough hardware resources" in _until(amazon, "Failed")["FailureReason"]
    amazon.client("sagemaker").delete_inference_component(InferenceComponentName="gemma")


def test_what_sagemaker_refuses_of_components_is_refused(amazon: Amazon) -> None:
    sagemaker = amazon.client("sagemaker")

    def config(region: str = REGION, role: str = ROLE, **changes: Any) -> str:
        more = {"ExecutionRoleArn": role} if role else {}
        return refused(
            amazon.client("sagemaker", region).create_endpoint_config,
            EndpointConfigName="bad", ProductionVariants=[_variant(**changes)], **more,
        )[1]  # fmt: skip

    assert "only supported for inference component endpoints" in config(ModelName="gemma")
    assert "ExecutionRoleArn" in config(role="")
    assert "Min instance count needs to be greater than 0" in config("eu-north-1")
    _empty(amazon)
    spec = {
        "ModelName": "gemma",
        "ComputeResourceRequirements": {"MinMemoryRequiredInMb": 1024},
    }
    assert "larger than 0" in refused(
        sagemaker.create_inference_component,
        InferenceComponentName="gemma", EndpointName="gemma", VariantName="main",
        Specification=spec, RuntimeConfig={"CopyCount": 0},
    )[1]  # fmt: skip
    _component(amazon)
    while_made = refused(
        sagemaker.delete_inference_component, InferenceComponentName="gemma"
    )[1]  # fmt: skip
    assert "while it is in state CREATE_IN_PROGRESS" in while_made
    assert "no capacity" in refused(_ask, amazon=amazon, InferenceComponentName="gemma")[1]
    assert "not found" in refused(_ask, amazon=amazon, InferenceComponentName="other")[1]


def test_a_wake_up_without_capacity_gives_up_and_says_why(amazon: Amazon) -> None:
    sagemaker = amazon.client("sagemaker")
    _empty(amazon, VariantInstanceProvisionTimeoutInSeconds=300)
    _component(amazon)
    _until(amazon, "InService", 1)
    with amazon.cloud.fault("aws-no-capacity"):
        sagemaker.update_inference_component_runtime_config(
            InferenceComponentName="gemma", DesiredRuntimeConfig={"CopyCount": 2}
        )
        _until(amazon, "Updating")
        after = _until(amazon, "InService", 1)
    assert "InsufficientInstanceCapacity" in after["FailureReason"]
    assert (
        IMAGE.format(region=REGION)
        == (after["Specification"]["Container"]["DeployedImage"]["SpecifiedImage"])
    )


def test_what_was_hosted_is_so_again_after_a_restart_of_the_rehearsal(tmp_path: Path) -> None:
    with rehearsal(tmp_path, speed=1000, idle_s=30) as first:
        amazon = Amazon(first)
        amazon.role()
        amazon.model()
        _empty(amazon)
        _component(amazon)
        _until(amazon, "InService", 1)
        amazon.close()
    with rehearsal(tmp_path, speed=1000, idle_s=30) as second:
        amazon = Amazon(second)

        def answers() -> bool:
            """the component answers"""
            return any(
                item["phase"] == "ready"
                for item in second.control("GET", "/instances")["instances"]
            )

        wait_for(answers, 20)
        _until(amazon, "InService", 1)
        _ask(amazon, InferenceComponentName="gemma")
        assert _machines(amazon) == 1
        amazon.close()

"""SageMaker endpoints in the rehearsal: their life, their failures, what they write and answer."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from backends.rehearsal.cloud import launcher
from tests.cloud.aws import REGION, Amazon, refused
from tests.cloud.rehearsal import Rehearsal
from tests.support.processes import wait_for

ARN = f"arn:aws:sagemaker:{REGION}:123456789012:endpoint/gemma"
POOLS = [
    {"InstanceType": "ml.g6.xlarge", "Priority": 1},
    {"InstanceType": "ml.g6.2xlarge", "Priority": 2},
]
CHAT = {"messages": [{"role": "user", "content": "Say ok"}], "max_tokens": 8}


@pytest.fixture
def amazon(cloud: Rehearsal) -> Iterator[Amazon]:
    made = Amazon(cloud)
    made.role()
    yield made
    made.close()


def test_an_endpoint_is_created_answers_is_measured_and_deleted(amazon: Amazon) -> None:
    sagemaker = amazon.client("sagemaker")
    amazon.model()
    amazon.config(InstancePools=POOLS)
    amazon.endpoint()
    creating = sagemaker.describe_endpoint(EndpointName="gemma")
    assert creating["EndpointStatus"] == "Creating"
    assert refused(sagemaker.delete_endpoint, EndpointName="gemma") == (
        "ValidationException",
        f'Cannot update in-progress endpoint "{ARN}".',
    )
    variant = amazon.settled()["ProductionVariants"][0]
    assert [pool["CurrentInstanceCount"] for pool in variant["InstancePools"]] == [1, 0]
    assert variant["CurrentWeight"] == 1.0

    runtime = amazon.client("sagemaker-runtime")
    answer = runtime.invoke_endpoint(
        EndpointName="gemma", ContentType="application/json", Body=json.dumps(CHAT)
    )
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    reply = json.loads(answer["Body"].read())
    assert reply["choices"][0]["message"]["content"]
    _streams(runtime)

    lines = amazon.lines()
    assert "SIMULATOR" in lines[0]
    assert any("Loading weights took" in line for line in lines)
    assert any("GPU KV cache size" in line for line in lines)
    assert _metric(amazon, "AWS/SageMaker", "Invocations", "Sum") == 2
    latency_us = _metric(amazon, "AWS/SageMaker", "ModelLatency", "p50")
    assert 1_000 < latency_us < 10_000_000
    wait_for(lambda: _metric(amazon, "/aws/sagemaker/Endpoints", "GPUMemoryUtilization", "Average"))

    sagemaker.delete_endpoint(EndpointName="gemma")

    def gone() -> bool:
        """the endpoint is gone"""
        return not sagemaker.list_endpoints()["Endpoints"]

    wait_for(gone)
    code, words = refused(sagemaker.describe_endpoint, EndpointName="gemma")
    assert (code, words) == ("ValidationException", f'Could not find endpoint "{ARN}".')
    assert amazon.cloud.control("GET", "/instances")["instances"] == []


def _streams(runtime: Any) -> None:
    streamed = runtime.invoke_endpoint_with_response_stream(
        EndpointName="gemma",
        ContentType="application/json",
        Body=json.dumps(CHAT | {"stream": True}),
    )
    assert streamed["ContentType"].startswith("text/event-stream")
    text = b"".join(event["PayloadPart"]["Bytes"] for event in streamed["Body"]).decode()
    events = [line for line in text.split("\n\n") if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[0].removeprefix("data: "))["object"] == "chat.completion.chunk"


def _metric(amazon: Amazon, namespace: str, name: str, stat: str) -> float:
    now = time.time()
    found = amazon.client("cloudwatch").get_metric_data(
        StartTime=now - 600,
        EndTime=now + 60,
        MetricDataQueries=[
            {
                "Id": "a",
                "MetricStat": {
                    "Metric": {
                        "Namespace": namespace,
                        "MetricName": name,
                        "Dimensions": [
                            {"Name": "EndpointName", "Value": "gemma"},
                            {"Name": "VariantName", "Value": "AllTraffic"},
                        ],
                    },
                    "Period": 3600,
                    "Stat": stat,
                },
            }
        ],
    )["MetricDataResults"][0]["Values"]
    return float(found[0]) if found else 0.0


def test_without_capacity_it_waits_without_a_log_and_then_fails(amazon: Amazon) -> None:
    amazon.model()
    amazon.config(InstancePools=POOLS, VariantInstanceProvisionTimeoutInSeconds=600)
    with amazon.cloud.fault("aws-no-capacity", where=f"{REGION}/ml.g6.*"):
        amazon.endpoint()
        failed = amazon.settled()
    assert failed["EndpointStatus"] == "Failed"
    assert failed["FailureReason"].startswith(
        "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity"
    )
    group = "/aws/sagemaker/Endpoints/gemma"
    code, _ = refused(amazon.client("logs").filter_log_events, logGroupName=group)
    assert code == "ResourceNotFoundException"


def test_the_second_pool_is_used_where_only_it_has_capacity(amazon: Amazon) -> None:
    amazon.model()
    amazon.config(InstancePools=POOLS)
    with amazon.cloud.fault("aws-no-capacity", where="*/ml.g6.xlarge"):
        amazon.endpoint()
        variant = amazon.settled()["ProductionVariants"][0]
    assert [pool["CurrentInstanceCount"] for pool in variant["InstancePools"]] == [0, 1]


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"SM_VLLM_MODEL": "google/gemma-4-31B-it"}, "unable to mmap 23265352448 bytes"),
        ({"SM_VLLM_MODEL": "google/no-such-model"}, "huggingface_hub.errors"),
        ({"SM_VLLM_MAX_NUM_BATCHED_TOKENS": "2048"}, "max_tokens_per_mm_item (2496) is larger"),
        (
            {"SM_VLLM_MODEL": "google/gemma-4-E4B-it", "SM_VLLM_GPU_MEMORY_UTILIZATION": "0.6"},
            "ValueError: No available memory for the cache blocks.",
        ),
    ],
)
def test_a_container_that_crashes_fails_when_the_health_window_ends(
    amazon: Amazon, env: dict[str, str], line: str
) -> None:
    began = time.monotonic()
    failed = amazon.served(**env)
    assert failed["FailureReason"] == (
        "The primary container for production variant AllTraffic did not pass the ping health "
        "check. Please check CloudWatch logs for this endpoint."
    )
    assert any(line in text for text in amazon.lines())
    # 361 s of machine and image, then the window of 600 s, at the speed of these tests.
    assert time.monotonic() - began > 0.96


def test_an_image_of_a_newer_cuda_than_the_driver_cannot_be_started(amazon: Amazon) -> None:
    amazon.model()
    amazon.config(InstanceType="ml.g4dn.xlarge")
    amazon.endpoint()
    failed = amazon.settled()
    assert "CannotStartContainerError" in failed["FailureReason"]
    assert "docker run <image> serve" in failed["FailureReason"]
    assert amazon.client("logs").describe_log_groups()["logGroups"] == []


def test_a_role_without_logs_leaves_no_log_and_one_without_ecr_no_endpoint(amazon: Amazon) -> None:
    iam = amazon.client("iam")
    for action, status in (("ecr:*", "InService"), ("logs:*", "Failed")):
        document = {"Statement": [{"Effect": "Allow", "Action": action, "Resource": "*"}]}
        iam.put_role_policy(RoleName="vllm", PolicyName="own", PolicyDocument=json.dumps(document))
        name = action[:3]
        assert amazon.served(name)["EndpointStatus"] == status
        assert amazon.client("logs").describe_log_groups()["logGroups"] == []


def test_quota_is_held_for_every_listed_type(amazon: Amazon) -> None:
    amazon.model()
    amazon.config("both", InstancePools=POOLS)
    amazon.config("second", InstanceType="ml.g6.2xlarge")
    amazon.endpoint("first", config="both")
    code, words = refused(
        amazon.client("sagemaker").create_endpoint,
        EndpointName="second",
        EndpointConfigName="second",
    )
    assert code == "ResourceLimitExceeded"
    assert words.startswith(
        "The account-level service limit 'ml.g6.2xlarge for endpoint usage' is 1 Instances, with "
        "current utilization of 1 Instances and a request delta of 1 Instances."
    )


def test_an_update_serves_until_the_new_fleet_is_there_and_an_alarm_takes_it_back(
    amazon: Amazon,
) -> None:
    sagemaker, watch = amazon.client("sagemaker"), amazon.client("cloudwatch")
    amazon.served()
    amazon.config("second")
    watch.put_metric_alarm(
        AlarmName="errors",
        EvaluationPeriods=1,
        ComparisonOperator="GreaterThanThreshold",
        MetricName="Invocation5XXErrors",
        Namespace="AWS/SageMaker",
        Period=60,
        Statistic="Sum",
        Threshold=1.0,
    )
    watch.set_alarm_state(AlarmName="errors", StateValue="ALARM", StateReason="a test")
    guarded: dict[str, Any] = {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 0},
            "TerminationWaitInSeconds": 600,
        },
        "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]},
    }
    sagemaker.update_endpoint(
        EndpointName="gemma", EndpointConfigName="second", DeploymentConfig=guarded
    )
    assert sagemaker.describe_endpoint(EndpointName="gemma")["EndpointStatus"] == "Updating"
    runtime = amazon.client("sagemaker-runtime")
    body = json.dumps(CHAT)
    runtime.invoke_endpoint(EndpointName="gemma", ContentType="application/json", Body=body)
    back = amazon.settled()
    assert back["EndpointConfigName"] == "gemma"
    assert "alarm(s) breached: [errors]" in back["FailureReason"]
    watch.set_alarm_state(AlarmName="errors", StateValue="OK", StateReason="a test")
    guarded["BlueGreenUpdatePolicy"]["TerminationWaitInSeconds"] = 0
    sagemaker.update_endpoint(
        EndpointName="gemma", EndpointConfigName="second", DeploymentConfig=guarded
    )
    done = amazon.settled()
    assert done["EndpointConfigName"] == "second"
    assert "FailureReason" not in done
    assert len(amazon.cloud.control("GET", "/instances")["instances"]) == 1


def test_weights_and_instance_counts_change_within_the_quota(amazon: Amazon) -> None:
    sagemaker = amazon.client("sagemaker")
    amazon.served()
    wanted = {"VariantName": "AllTraffic", "DesiredInstanceCount": 3}
    change = sagemaker.update_endpoint_weights_and_capacities
    code, _ = refused(change, EndpointName="gemma", DesiredWeightsAndCapacities=[wanted])
    assert code == "ResourceLimitExceeded"
    wanted["DesiredInstanceCount"] = 2
    change(EndpointName="gemma", DesiredWeightsAndCapacities=[wanted])
    assert amazon.settled()["ProductionVariants"][0]["CurrentInstanceCount"] == 2
    assert len(amazon.cloud.control("GET", "/instances")["instances"]) == 2


def test_the_container_s_own_refusal_comes_as_a_model_error(amazon: Amazon) -> None:
    amazon.served()
    runtime = amazon.client("sagemaker-runtime")
    code, words = refused(
        runtime.invoke_endpoint, EndpointName="gemma", ContentType="application/json", Body="{"
    )
    assert code == "ModelError"
    assert "Received client error (400) from primary with message" in words
    code, words = refused(runtime.invoke_endpoint, EndpointName="nope", Body="{}")
    assert (code, words) == (
        "ValidationError",
        "Endpoint nope of account 123456789012 not found.",
    )


def test_what_was_in_service_is_so_again_after_a_restart_of_the_rehearsal(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from tests.cloud.rehearsal import rehearsal

    folder = tmp_path_factory.mktemp("again")
    with rehearsal(folder, speed=1000, idle_s=30) as first:
        amazon = Amazon(first)
        amazon.role()
        amazon.served()
        amazon.close()
    with rehearsal(folder, speed=1000, idle_s=30) as second:
        amazon = Amazon(second)
        assert amazon.settled()["EndpointStatus"] == "InService"

        def answers() -> bool:
            """the endpoint answers"""
            status = second.control("GET", "/instances")["instances"]
            return any(item["phase"] == "ready" for item in status)

        wait_for(answers)
        amazon.client("sagemaker-runtime").invoke_endpoint(
            EndpointName="gemma", ContentType="application/json", Body=json.dumps(CHAT)
        )
        amazon.close()
    assert launcher.find(folder) is None


def test_a_container_that_dies_in_service_is_started_anew(amazon: Amazon) -> None:
    amazon.served()
    first = amazon.cloud.control("GET", "/instances")["instances"][0]["pid"]
    os.kill(first, signal.SIGKILL)

    def another() -> bool:
        """another container is ready"""
        shown = amazon.cloud.control("GET", "/instances")["instances"]
        return [(item["phase"], item["pid"] != first) for item in shown] == [("ready", True)]

    wait_for(another)
    assert amazon.settled()["EndpointStatus"] == "InService"
    amazon.client("sagemaker-runtime").invoke_endpoint(
        EndpointName="gemma", ContentType="application/json", Body=json.dumps(CHAT)
    )

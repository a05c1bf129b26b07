"""The exact commands: what the aws CLI is told, from the request and nothing else.

The same words serve CLI v1 (1.45) and v2 (2.38): JSON arguments, no shorthand, no pager flag.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from backends.clouds.aws_cli import AwsCli
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.knowledge.sagemaker import IMAGE_ACCOUNT, IMAGE_REPOSITORY, TARGET
from backends.sagemaker.spec import SageMakerSpec

NAME_TAG = "vllm-devops-name"
TARGET_TAG = "vllm-devops-target"
POLICY = "vllm-devops"
MODEL_FOLDER = "/opt/ml/model"
_MARK = "-vllm-"

# An argument of vLLM that takes no value. Old and new entry points of the image agree only on the
# empty value: old ones would hand on the word "true" (AWS Deep Learning Containers repository).
_FLAG = ""

Argv = tuple[str, ...]


def config_name(name: str, digest: str) -> str:
    """The name of a deployment's model and endpoint configuration; at most 63 characters."""
    return f"{name}{_MARK}{digest}"


def deployment_of(config: str) -> str | None:
    """The deployment that an endpoint configuration of ours was made for, by its name."""
    name, mark, digest = config.rpartition(_MARK)
    return name if mark and len(digest) == 8 else None


def variant_name(digest: str) -> str:
    """The name of the production variant that serves one set of settings."""
    return f"v-{digest}"


def role_name(name: str) -> str:
    """The execution role that is made for a deployment; at most 64 characters."""
    return f"vllm-devops-{name}"


def alarm_name(name: str) -> str:
    """The alarm that undoes a rollout."""
    return f"vllm-devops-{name}-5xx"


def digest_of(value: object) -> str:
    """What settings are recognised by."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def environment(spec: SageMakerSpec) -> dict[str, str]:
    """The container's variables: vLLM's arguments, as AWS's image takes them."""
    values = {
        "SM_VLLM_MODEL": MODEL_FOLDER if str(spec.model).startswith("s3://") else str(spec.model),
        "SM_VLLM_SERVED_MODEL_NAME": str(spec.served_model_name),
        "SM_VLLM_MAX_MODEL_LEN": str(spec.max_model_len),
        "SM_VLLM_GPU_MEMORY_UTILIZATION": f"{spec.gpu_memory_utilization:g}",
        "SM_VLLM_ENABLE_AUTO_TOOL_CHOICE": _FLAG,
        "SM_VLLM_TOOL_CALL_PARSER": "gemma4",
        "SM_VLLM_REASONING_PARSER": "gemma4",
    }
    if spec.kv_cache_dtype != "auto":
        values["SM_VLLM_KV_CACHE_DTYPE"] = str(spec.kv_cache_dtype)
    if (spec.tensor_parallel_size or 1) > 1:
        values["SM_VLLM_TENSOR_PARALLEL_SIZE"] = str(spec.tensor_parallel_size)
    if spec.max_num_seqs is not None:
        values["SM_VLLM_MAX_NUM_SEQS"] = str(spec.max_num_seqs)
    if spec.max_num_batched_tokens is not None:
        values["SM_VLLM_MAX_NUM_BATCHED_TOKENS"] = str(spec.max_num_batched_tokens)
    if spec.text_only:
        values["SM_VLLM_LIMIT_MM_PER_PROMPT"] = '{"image":0,"audio":0,"video":0}'
    return values | dict(item.split("=", 1) for item in spec.env)


def container(spec: SageMakerSpec, image: str) -> dict[str, Any]:
    """The model's primary container."""
    value: dict[str, Any] = {"Image": image, "Environment": environment(spec)}
    if str(spec.model).startswith("s3://"):
        value["ModelDataSource"] = {
            "S3DataSource": {
                "S3Uri": f"{str(spec.model).rstrip('/')}/",
                "S3DataType": "S3Prefix",
                "CompressionType": "None",
            }
        }
    return value


def variant(spec: SageMakerSpec, model: str, name: str, ami: str, weight: float) -> dict[str, Any]:
    """A production variant of an endpoint configuration."""
    value: dict[str, Any] = {
        "VariantName": name,
        "ModelName": model,
        "InitialInstanceCount": spec.instances,
        "InitialVariantWeight": weight,
        "ContainerStartupHealthCheckTimeoutInSeconds": spec.startup_timeout_s,
        "ModelDataDownloadTimeoutInSeconds": spec.download_timeout_s,
        "InferenceAmiVersion": ami,
    }
    return value | placement(spec)


def placement(spec: SageMakerSpec) -> dict[str, Any]:
    """Which instances a variant is put on, and how long they are looked for."""
    value: dict[str, Any] = {}
    # Either one type or a pool; SageMaker refuses both (CLI 1.45 and 2.38, 2026-11-30).
    if len(spec.instance_types) == 1:
        value["InstanceType"] = spec.instance_types[0]
    else:
        value["InstancePools"] = [
            {"InstanceType": kind, "Priority": place}
            for place, kind in enumerate(spec.instance_types, 1)
        ]
    if spec.capacity_timeout_s is not None:
        value["VariantInstanceProvisionTimeoutInSeconds"] = spec.capacity_timeout_s
    return value


def tags_of(name: str, further: Sequence[str] = ()) -> list[dict[str, str]]:
    """The tags of everything that is made for a deployment."""
    values = {MANAGED_BY: MANAGED_BY_US, TARGET_TAG: TARGET, NAME_TAG: name}
    values = dict(item.split("=", 1) for item in further) | values
    return [{"Key": key, "Value": value} for key, value in values.items()]


def trust() -> dict[str, Any]:
    """Who may assume an execution role."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "sagemaker.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }


def policy(spec: SageMakerSpec, partition: str, account: str) -> dict[str, Any]:
    """What an endpoint's role may do: pull its image, write its log and metrics, read its weights.

    AmazonSageMakerFullAccess, which the reference attaches, may also read every bucket and start
    any job.
    """
    images = f"arn:{partition}:ecr:*:{IMAGE_ACCOUNT}:repository/{IMAGE_REPOSITORY}"
    if spec.image is not None:
        owner, _, path = spec.image.partition("/")
        repository = path.partition("@")[0].partition(":")[0]
        images = f"arn:{partition}:ecr:*:{owner.partition('.')[0]}:repository/{repository}"
    kind = "InferenceComponents" if spec.scale_to_zero else "Endpoints"
    logs = f"arn:{partition}:logs:*:{account}:log-group:/aws/sagemaker/{kind}/{spec.name}"
    statements: list[dict[str, Any]] = [
        {
            "Effect": "Allow",
            "Action": [
                "ecr:BatchCheckLayerAvailability",
                "ecr:BatchGetImage",
                "ecr:GetDownloadUrlForLayer",
            ],
            "Resource": images,
        },
        {"Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"},
        {
            "Effect": "Allow",
            "Action": [
                "logs:CreateLogGroup",
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:PutLogEvents",
            ],
            "Resource": [logs, f"{logs}:*"],
        },
        {
            "Effect": "Allow",
            "Action": "cloudwatch:PutMetricData",
            "Resource": "*",
            "Condition": {
                "StringLike": {"cloudwatch:namespace": ["AWS/SageMaker", "/aws/sagemaker/*"]}
            },
        },
    ]
    if str(spec.model).startswith("s3://"):
        bucket, _, folder = str(spec.model).removeprefix("s3://").rstrip("/").partition("/")
        statements += [
            {
                "Effect": "Allow",
                "Action": "s3:GetObject",
                "Resource": f"arn:{partition}:s3:::{bucket}/{folder}/*",
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket", "s3:GetBucketLocation"],
                "Resource": f"arn:{partition}:s3:::{bucket}",
            },
        ]
    return {"Version": "2012-10-17", "Statement": statements}


# ------------------------------------------------------------------------------------- argv


def aws_argv(service: str, operation: str, region: str, **values: object) -> Argv:
    """One aws command: values that are not text as JSON, flags by their parameter's name."""
    args = [service, operation]
    for key, value in values.items():
        args += [f"--{key.replace('_', '-')}", value if isinstance(value, str) else _json(value)]
    return AwsCli.argv(args, region)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def create_role(region: str, name: str, further: Sequence[str]) -> Argv:
    """Make the execution role. IAM has no regions; the flag only says which partition."""
    return aws_argv(
        "iam",
        "create-role",
        region,
        role_name=role_name(name),
        assume_role_policy_document=trust(),
        description=f"Execution role of the SageMaker endpoint {name}",
        tags=tags_of(name, further),
    )


def put_policy(spec: SageMakerSpec, partition: str, account: str) -> Argv:
    """Give it its rights, as a policy of its own."""
    return aws_argv(
        "iam",
        "put-role-policy",
        str(spec.region),
        role_name=role_name(spec.name),
        policy_name=POLICY,
        policy_document=policy(spec, partition, account),
    )


def delete_policy(region: str, role: str) -> Argv:
    """Take its rights."""
    return aws_argv("iam", "delete-role-policy", region, role_name=role, policy_name=POLICY)


def delete_role(region: str, role: str) -> Argv:
    """Delete the role."""
    return aws_argv("iam", "delete-role", region, role_name=role)


def create_model(
    region: str, model: str, role_arn: str, value: Mapping[str, Any], tags: Sequence[object]
) -> Argv:
    """Make the model: image, variables, where weights are."""
    return aws_argv(
        "sagemaker",
        "create-model",
        region,
        model_name=model,
        execution_role_arn=role_arn,
        primary_container=value,
        tags=list(tags),
    )


def create_config(
    region: str,
    config: str,
    variants: Sequence[Mapping[str, Any]],
    tags: Sequence[object],
    role_arn: str = "",
) -> Argv:
    """Make the endpoint configuration: which instances the model is put on.

    Args:
        region: Where.
        config: Its name.
        variants: Its production variants.
        tags: Its tags.
        role_arn: The execution role, which a configuration whose variants have no model needs.
    """
    values: dict[str, object] = {"production_variants": list(variants), "tags": list(tags)}
    if role_arn:
        values["execution_role_arn"] = role_arn
    return aws_argv(
        "sagemaker", "create-endpoint-config", region, endpoint_config_name=config, **values
    )


def create_endpoint(region: str, name: str, config: str, tags: Sequence[object]) -> Argv:
    """Make the endpoint; billing begins once an instance is placed."""
    return aws_argv(
        "sagemaker",
        "create-endpoint",
        region,
        endpoint_name=name,
        endpoint_config_name=config,
        tags=list(tags),
    )


def update_endpoint(
    region: str, name: str, config: str, rollout: Mapping[str, Any] | None, *, retain: bool
) -> Argv:
    """Put an endpoint on another configuration, blue/green.

    Args:
        region: Where.
        name: The endpoint.
        config: The new configuration.
        rollout: Its DeploymentConfig; None for SageMaker's own.
        retain: Whether weights and instance counts stay as they are now.
    """
    values: dict[str, object] = {"endpoint_name": name, "endpoint_config_name": config}
    if rollout is not None:
        values["deployment_config"] = rollout
    argv = aws_argv("sagemaker", "update-endpoint", region, **values)
    return (*argv, "--retain-all-variant-properties") if retain else argv


def update_variants(region: str, name: str, wanted: Sequence[Mapping[str, Any]]) -> Argv:
    """Change weights or instance counts of an endpoint's variants."""
    return aws_argv(
        "sagemaker",
        "update-endpoint-weights-and-capacities",
        region,
        endpoint_name=name,
        desired_weights_and_capacities=list(wanted),
    )


def delete_endpoint(region: str, name: str) -> Argv:
    """Delete the endpoint, which ends the billing."""
    return aws_argv("sagemaker", "delete-endpoint", region, endpoint_name=name)


def delete_config(region: str, config: str) -> Argv:
    """Delete an endpoint configuration."""
    return aws_argv("sagemaker", "delete-endpoint-config", region, endpoint_config_name=config)


def delete_model(region: str, model: str) -> Argv:
    """Delete a model; weights in a bucket stay."""
    return aws_argv("sagemaker", "delete-model", region, model_name=model)


def put_alarm(region: str, name: str, variant_: str, tags: Sequence[object]) -> Argv:
    """An alarm on server errors of a variant, for a rollout to be undone by."""
    return aws_argv(
        "cloudwatch",
        "put-metric-alarm",
        region,
        alarm_name=alarm_name(name),
        alarm_description=f"Undoes a rollout of the SageMaker endpoint {name}",
        namespace="AWS/SageMaker",
        metric_name="Invocation5XXErrors",
        dimensions=[
            {"Name": "EndpointName", "Value": name},
            {"Name": "VariantName", "Value": variant_},
        ],
        statistic="Sum",
        period="60",
        evaluation_periods="1",
        threshold="3",
        comparison_operator="GreaterThanOrEqualToThreshold",
        treat_missing_data="notBreaching",
        tags=list(tags),
    )


def delete_alarm(region: str, name: str) -> Argv:
    """Delete that alarm."""
    return aws_argv("cloudwatch", "delete-alarms", region, alarm_names=alarm_name(name))


def _resource(name: str, variant_: str) -> str:
    return f"endpoint/{name}/variant/{variant_}"


_VARIANT = "sagemaker:variant:DesiredInstanceCount"
_VARIANT_LOAD = "SageMakerVariantConcurrentRequestsPerModelHighResolution"


def register_scaling(region: str, name: str, variant_: str, low: int, high: int) -> Argv:
    """Let Application Auto Scaling choose the number of instances."""
    return register_target(region, _resource(name, variant_), _VARIANT, low, high)


def put_scaling_policy(region: str, name: str, variant_: str, target: float) -> Argv:
    """Scale so that each instance has about so many requests at once."""
    return track_load(region, _resource(name, variant_), _VARIANT, _VARIANT_LOAD, target)


def deregister_scaling(region: str, name: str, variant_: str) -> Argv:
    """Go back to a number of instances set by hand."""
    return deregister_target(region, _resource(name, variant_), _VARIANT)


def register_target(region: str, resource: str, dimension: str, low: int, high: int) -> Argv:
    """Let Application Auto Scaling choose a number between two.

    Args:
        region: The region.
        resource: What is scaled, as that service calls it.
        dimension: Which number of it.
        low: The least.
        high: The most.
    """
    return aws_argv(
        "application-autoscaling",
        "register-scalable-target",
        region,
        service_namespace="sagemaker",
        resource_id=resource,
        scalable_dimension=dimension,
        min_capacity=str(low),
        max_capacity=str(high),
    )


def track_load(region: str, resource: str, dimension: str, metric: str, target: float) -> Argv:
    """Scale a registered target so that a predefined metric stays about a value."""
    return aws_argv(
        "application-autoscaling",
        "put-scaling-policy",
        region,
        policy_name=POLICY,
        service_namespace="sagemaker",
        resource_id=resource,
        scalable_dimension=dimension,
        policy_type="TargetTrackingScaling",
        target_tracking_scaling_policy_configuration={
            "TargetValue": target,
            "PredefinedMetricSpecification": {"PredefinedMetricType": metric},
            "ScaleInCooldown": 300,
            "ScaleOutCooldown": 60,
        },
    )


def deregister_target(region: str, resource: str, dimension: str) -> Argv:
    """Leave the number to calls; the policies and AWS's own alarms go with it."""
    return aws_argv(
        "application-autoscaling",
        "deregister-scalable-target",
        region,
        service_namespace="sagemaker",
        resource_id=resource,
        scalable_dimension=dimension,
    )

"""What surrounds endpoints in the rehearsal's AWS, who may ask, and what can go wrong."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from botocore.exceptions import ConnectionClosedError  # type: ignore[import-untyped]

from backends.core.settings import PROJECT_DIR
from backends.rehearsal.cloud.aws.scenarios import AWS_SCENARIOS
from tests.cloud.aws import IMAGE, POLICY, REGION, ROLE, ROLE_NAME, TRUST, Amazon, refused
from tests.cloud.rehearsal import Rehearsal

VLLM = {"registryId": "763104351884", "repositoryName": "vllm"}


@pytest.fixture
def amazon(cloud: Rehearsal) -> Iterator[Amazon]:
    made = Amazon(cloud)
    yield made
    made.close()


# ------------------------------------------------------------------------------ who asks


def test_keys_are_told_from_dead_and_unknown_ones(amazon: Amazon) -> None:
    who = amazon.client("sts").get_caller_identity()
    assert who["Account"] == "123456789012"
    dead = amazon.client("sts", key="ASIAREHEARSALEXPIRED")
    assert refused(dead.get_caller_identity)[0] == "ExpiredToken"
    unknown = amazon.client("sts", key="AKIASOMEBODYELSE0000")
    assert refused(unknown.get_caller_identity)[0] == "InvalidClientTokenId"
    with amazon.cloud.fault("aws-login-expired"):
        code, words = refused(amazon.client("sagemaker").list_endpoints)
    assert code == "ExpiredTokenException"
    assert words == "The security token included in the request is expired"
    amazon.client("sagemaker").list_endpoints()


def test_a_request_signed_for_another_region_than_its_host_is_refused(amazon: Amazon) -> None:
    signed = amazon.cloud.rest.post(
        "https://api.sagemaker.us-west-2.amazonaws.com/",
        headers={
            "authorization": "AWS4-HMAC-SHA256 Credential=AKIAREHEARSAL0000001/20261130/"
            "us-east-2/sagemaker/aws4_request, SignedHeaders=host, Signature=00",
            "x-amz-target": "SageMaker.ListEndpoints",
            "content-type": "application/x-amz-json-1.1",
        },
        content=b"{}",
    )
    assert signed.status_code == 403
    assert signed.json()["__type"] == "InvalidSignatureException"
    unsigned = amazon.cloud.rest.post("https://api.sagemaker.us-west-2.amazonaws.com/")
    assert unsigned.json()["__type"] == "MissingAuthenticationTokenException"


def test_regions_have_nothing_in_common(amazon: Amazon) -> None:
    amazon.role()
    amazon.model(region="us-west-2")
    assert amazon.client("sagemaker", "us-west-2").list_models()["Models"]
    assert amazon.client("sagemaker", REGION).list_models()["Models"] == []
    enabled = amazon.client("sagemaker", "af-south-1")
    assert refused(enabled.list_models)[0] == "UnrecognizedClientException"


def test_a_permission_that_is_missing_is_named(amazon: Amazon) -> None:
    with amazon.cloud.fault("aws-denied", action="sagemaker:Create*"):
        code, words = refused(
            amazon.client("sagemaker").create_endpoint,
            EndpointName="gemma",
            EndpointConfigName="gemma",
        )
        amazon.client("sagemaker").list_endpoints()
    assert code == "AccessDeniedException"
    assert "is not authorized to perform: sagemaker:CreateEndpoint" in words


# ------------------------------------------------------------------------------ roles and models


def test_a_role_is_not_assumable_at_once_and_not_without_trust(amazon: Amazon) -> None:
    iam, sagemaker = amazon.client("iam"), amazon.client("sagemaker")
    container = {"Image": IMAGE.format(region=REGION)}
    amazon.cloud.control("POST", "/settings", {"speed": 10})
    try:
        amazon.role()
        code, words = refused(
            sagemaker.create_model,
            ModelName="gemma",
            ExecutionRoleArn=ROLE,
            PrimaryContainer=container,
        )
    finally:
        amazon.cloud.control("POST", "/settings", {"speed": 1000})
    assert code == "ValidationException"
    assert words.startswith(f"Could not assume role {ROLE}.")
    amazon.model()
    iam.update_assume_role_policy(
        RoleName=ROLE_NAME,
        PolicyDocument=json.dumps(TRUST).replace("sagemaker.", "ec2."),
    )
    _, words = refused(
        sagemaker.create_model, ModelName="b", ExecutionRoleArn=ROLE, PrimaryContainer=container
    )
    assert "allows principal 'sagemaker.amazonaws.com'" in words


def test_roles_are_made_described_and_deleted_as_iam_does(amazon: Amazon) -> None:
    iam = amazon.client("iam")
    amazon.role()
    assert refused(
        iam.create_role, RoleName=ROLE_NAME, AssumeRolePolicyDocument=json.dumps(TRUST)
    ) == ("EntityAlreadyExists", "Role with name vllm already exists.")
    iam.tag_role(RoleName=ROLE_NAME, Tags=[{"Key": "managed-by", "Value": "vllm-devops"}])
    role = iam.get_role(RoleName=ROLE_NAME)["Role"]
    assert role["AssumeRolePolicyDocument"] == TRUST
    assert role["Tags"] == [{"Key": "managed-by", "Value": "vllm-devops"}]
    kept = iam.get_role_policy(RoleName=ROLE_NAME, PolicyName="own")["PolicyDocument"]
    assert kept == POLICY
    managed = "arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"
    iam.attach_role_policy(RoleName=ROLE_NAME, PolicyArn=managed)
    attached = iam.list_attached_role_policies(RoleName=ROLE_NAME)["AttachedPolicies"]
    assert [item["PolicyArn"] for item in attached] == [managed]
    assert refused(iam.delete_role, RoleName=ROLE_NAME)[0] == "DeleteConflict"
    iam.detach_role_policy(RoleName=ROLE_NAME, PolicyArn=managed)
    iam.delete_role_policy(RoleName=ROLE_NAME, PolicyName="own")
    iam.delete_role(RoleName=ROLE_NAME)
    assert refused(iam.get_role, RoleName=ROLE_NAME)[0] == "NoSuchEntity"


def test_sagemaker_refuses_in_its_own_words(amazon: Amazon) -> None:
    sagemaker = amazon.client("sagemaker")
    amazon.role()
    amazon.model()

    def model(name: str, image: str) -> str:
        return refused(
            sagemaker.create_model,
            ModelName=name,
            ExecutionRoleArn=ROLE,
            PrimaryContainer={"Image": image},
        )[1]

    def config(**variant: object) -> str:
        one = {"VariantName": "A", "ModelName": "gemma", "InitialInstanceCount": 1} | variant
        return refused(
            sagemaker.create_endpoint_config, EndpointConfigName="c", ProductionVariants=[one]
        )[1]

    arn = f"arn:aws:sagemaker:{REGION}:123456789012"
    image = IMAGE.format(region=REGION)
    assert model("gemma", image) == f'Cannot create already existing model "{arn}:model/gemma".'
    assert "without Vpc repository access mode" in model("b", "vllm/vllm-openai:latest")
    assert model("b", image + "x") == f"Requested image {image}x not found."
    assert "at 'modelName' failed to satisfy constraint" in model("a.b", image)
    assert config(ModelName="nope", InstanceType="ml.g6.xlarge") == (
        f'Could not find model "{arn}:model/nope".'
    )
    pool = {"InstanceType": "ml.g6.xlarge", "Priority": 1}
    assert "Exactly one of InstanceType and InstancePools" in config(
        InstanceType="ml.g6.xlarge", InstancePools=[pool]
    )
    assert "must be unique" in config(InstancePools=[pool, pool])
    assert "ml.g6.xlarge" in config(InstanceType="ml.g7.xlarge")
    assert (
        refused(sagemaker.create_endpoint, EndpointName="e", EndpointConfigName="nope")[1]
        == f'Could not find endpoint configuration "{arn}:endpoint-config/nope".'
    )
    assert refused(sagemaker.delete_model, ModelName="nope")[1] == (
        f'Could not find model "{arn}:model/nope".'
    )


def test_lists_come_in_pages_and_tags_can_be_read(amazon: Amazon) -> None:
    sagemaker = amazon.client("sagemaker")
    amazon.role()
    for number in range(12):
        amazon.model(f"m{number}")
    first = sagemaker.list_models()
    assert len(first["Models"]) == 10
    rest = sagemaker.list_models(NextToken=first["NextToken"])
    assert len(rest["Models"]) == 2
    arn = first["Models"][0]["ModelArn"]
    tag = {"Key": "managed-by", "Value": "vllm-devops"}
    sagemaker.add_tags(ResourceArn=arn, Tags=[tag])
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == [tag]


# ------------------------------------------------------------------------------ what surrounds it


def test_quotas_come_in_pages_and_to_one_caller_at_a_time(amazon: Amazon) -> None:
    quotas = amazon.client("service-quotas")
    pages = list(quotas.get_paginator("list_service_quotas").paginate(ServiceCode="sagemaker"))
    found = {item["QuotaName"]: item for page in pages for item in page["Quotas"]}
    assert len(pages) > 1
    assert found["ml.g6.xlarge for endpoint usage"]["Value"] == 2
    assert found["ml.g5.xlarge for endpoint usage"]["Value"] == 0
    code = found["ml.g6.xlarge for endpoint usage"]["QuotaCode"]
    one = quotas.get_service_quota(ServiceCode="sagemaker", QuotaCode=code)["Quota"]
    assert one["QuotaName"] == "ml.g6.xlarge for endpoint usage"
    west = amazon.client("service-quotas", "us-west-1")
    names = [
        item["QuotaName"]
        for page in west.get_paginator("list_service_quotas").paginate(ServiceCode="sagemaker")
        for item in page["Quotas"]
    ]
    assert not any(name.startswith("ml.g6.") for name in names)

    def ask(region: str) -> str:
        client = amazon.client("service-quotas", region)
        try:
            client.list_service_quotas(ServiceCode="sagemaker")
        except client.exceptions.TooManyRequestsException:
            return "throttled"
        return "answered"

    for region in ("us-east-1", "us-west-2"):
        ask(region)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(ask, ["us-east-1", "us-west-2"]))
    assert sorted(outcomes) == ["answered", "throttled"]


def test_the_newest_push_of_the_image_is_not_the_newest_vllm(amazon: Amazon) -> None:
    ecr = amazon.client("ecr")
    pages = list(ecr.get_paginator("describe_images").paginate(**VLLM))
    images = [image for page in pages for image in page["imageDetails"]]
    assert len(pages) > 1
    tagged = [image for image in images if image.get("imageTags")]
    assert len(tagged) < len(images)
    newest = max(tagged, key=lambda image: image["imagePushedAt"])
    assert newest["imageTags"][0].startswith("0.26.0")
    tags = {tag for image in tagged for tag in image["imageTags"]}
    assert {tag.rpartition("-")[2] for tag in tags} >= {"soci", "v1.1", "py312"}
    assert refused(ecr.describe_images, **VLLM | {"repositoryName": "other"})[0] == (
        "RepositoryNotFoundException"
    )
    absent = {"imageIds": [{"imageTag": "9.9"}]}
    assert refused(ecr.describe_images, **VLLM, **absent)[0] == "ImageNotFoundException"


def test_prices_differ_by_region_and_use(amazon: Amazon) -> None:
    def price(region: str, component: str = "Hosting") -> list[float]:
        wanted = {"instanceName": "ml.g6.xlarge", "regionCode": region, "component": component}
        found = amazon.client("pricing", "us-east-1").get_products(
            ServiceCode="AmazonSageMaker",
            Filters=[
                {"Type": "TERM_MATCH", "Field": field, "Value": value}
                for field, value in wanted.items()
            ],
        )["PriceList"]
        terms = [json.loads(item)["terms"]["OnDemand"] for item in found]
        return [
            float(dimension["pricePerUnit"]["USD"])
            for term in terms
            for offer in term.values()
            for dimension in offer["priceDimensions"].values()
        ]

    assert price("us-east-2") == [1.1267]
    assert price("eu-central-1") == [1.4084]
    assert price("us-west-1") == []


def test_logs_are_read_from_both_ends_and_page_by_page(amazon: Amazon) -> None:
    amazon.role()
    amazon.served()
    logs = amazon.client("logs")
    group = "/aws/sagemaker/Endpoints/gemma"
    stream = logs.describe_log_streams(logGroupName=group)["logStreams"][0]["logStreamName"]
    assert stream.startswith("AllTraffic/i-")
    every = amazon.lines()
    paged: list[str] = []
    more: dict[str, str] = {}
    while True:
        page = logs.filter_log_events(logGroupName=group, limit=7, **more)
        paged += [event["message"] for event in page["events"]]
        if "nextToken" not in page:
            break
        more = {"nextToken": page["nextToken"]}
    assert paged == every
    tail = logs.get_log_events(logGroupName=group, logStreamName=stream, limit=3)
    assert [event["message"] for event in tail["events"]] == every[-3:]
    before = logs.get_log_events(
        logGroupName=group, logStreamName=stream, limit=3, nextToken=tail["nextBackwardToken"]
    )
    assert [event["message"] for event in before["events"]] == every[-6:-3]
    end = logs.get_log_events(
        logGroupName=group, logStreamName=stream, nextToken=tail["nextForwardToken"]
    )
    assert end["events"] == []
    assert end["nextForwardToken"] == tail["nextForwardToken"]
    found = logs.filter_log_events(logGroupName=group, filterPattern='"KV cache size"')["events"]
    assert [event["message"] for event in found] == [
        line for line in every if "KV cache size" in line
    ]


def test_a_variant_is_scaled_by_target_and_policy_but_not_to_zero(amazon: Amazon) -> None:
    amazon.role()
    amazon.model()
    amazon.config()
    amazon.endpoint()
    scaling = amazon.client("application-autoscaling")
    variant = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": "endpoint/gemma/variant/AllTraffic",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
    }
    assert refused(scaling.put_scaling_policy, PolicyName="p", **variant)[0] == (
        "ObjectNotFoundException"
    )
    register = scaling.register_scalable_target
    assert refused(register, **variant, MinCapacity=0, MaxCapacity=1)[0] == "ValidationException"
    register(**variant, MinCapacity=1, MaxCapacity=2)
    scaling.put_scaling_policy(
        PolicyName="p",
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration={
            "TargetValue": 5.0,
            "PredefinedMetricSpecification": {
                "PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"
            },
        },
        **variant,
    )
    kept = scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    assert [item["PolicyName"] for item in kept] == ["p"]
    scaling.deregister_scalable_target(**variant)
    assert scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"] == []


def test_machine_types_are_offered_by_zone(amazon: Amazon) -> None:
    def zones(region: str) -> list[str]:
        found = amazon.client("ec2", region).describe_instance_type_offerings(
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": ["g6.xlarge"]}],
        )
        return [item["Location"] for item in found["InstanceTypeOfferings"]]

    assert zones("ap-northeast-1") == ["ap-northeast-1a", "ap-northeast-1c"]
    assert zones("us-west-1") == []


# ------------------------------------------------------------------------------ faults


def test_requests_are_throttled_refused_cut_and_their_answers_lost(amazon: Amazon) -> None:
    amazon.role()
    amazon.model()
    amazon.config()
    sagemaker = amazon.client("sagemaker")
    with amazon.cloud.fault("aws-throttled", times=1):
        assert refused(sagemaker.list_models) == ("ThrottlingException", "Rate exceeded")
        sagemaker.list_models()
    with amazon.cloud.fault("aws-unavailable", operation="DescribeModel"):
        assert refused(sagemaker.describe_model, ModelName="gemma")[0] == "ServiceUnavailable"
        sagemaker.list_models()
    with amazon.cloud.fault("aws-unavailable", operation="GetRole"):
        code, words = refused(amazon.client("iam").get_role, RoleName="vllm")
        assert (code, words) == ("ServiceUnavailable", "Service is unavailable.")
    with (
        amazon.cloud.fault("aws-cut", operation="CreateEndpoint$"),
        pytest.raises(ConnectionClosedError),
    ):
        amazon.endpoint()
    assert sagemaker.list_endpoints()["Endpoints"] == []
    with amazon.cloud.fault("aws-create-answer-lost"), pytest.raises(ConnectionClosedError):
        amazon.endpoint()
    assert [item["EndpointName"] for item in sagemaker.list_endpoints()["Endpoints"]] == ["gemma"]
    asked = amazon.cloud.control("GET", "/requests")["requests"]
    faults = [str(item.get("fault", "")) for item in asked]
    assert any(fault.startswith("aws-create-answer-lost") for fault in faults)


def test_the_documentation_names_every_fault_of_aws() -> None:
    text = (PROJECT_DIR / "docs" / "REHEARSAL.md").read_text(encoding="utf-8")
    assert [name for name in AWS_SCENARIOS if f"`{name}`" not in text] == []


# ------------------------------------------------------------------------------ the real CLI


@pytest.mark.skipif(shutil.which("aws") is None, reason="the aws CLI is not installed")
def test_a_shell_is_brought_into_a_cloud_that_runs(amazon: Amazon) -> None:
    folder = amazon.cloud.running.state_dir
    script = (
        f'eval "$({sys.executable} -m backends.rehearsal.cloud --state-dir "{folder}" --env)"\n'
        'aws sts get-caller-identity --query Account --output text; echo "$AWS_PROFILE"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env=dict(os.environ) | {"AWS_PROFILE": "of-the-real-world"},
        cwd=PROJECT_DIR,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["123456789012"], done.stderr


@pytest.mark.skipif(shutil.which("aws") is None, reason="the aws CLI is not installed")
def test_the_real_cli_works_and_says_what_it_says_of_the_real_aws(amazon: Amazon) -> None:
    who = json.loads(amazon.aws("sts", "get-caller-identity"))
    assert who["Arn"].endswith(":user/rehearsal")
    assert amazon.aws("sagemaker", "delete-model", "--model-name", "x", code=_code(amazon)).strip(
        "\n"
    ).removeprefix("aws: [ERROR]: ") == (
        "An error occurred (ValidationException) when calling the DeleteModel operation: Could "
        f'not find model "arn:aws:sagemaker:{REGION}:123456789012:model/x".'
    )
    amazon.role()
    container = {"Image": IMAGE.format(region=REGION)}
    made = json.loads(
        amazon.aws(
            "sagemaker",
            "create-model",
            "--model-name=gemma",
            f"--execution-role-arn={ROLE}",
            f"--primary-container={json.dumps(container)}",
        )
    )
    assert made == {"ModelArn": f"arn:aws:sagemaker:{REGION}:123456789012:model/gemma"}
    assert amazon.aws("sagemaker", "delete-model", "--model-name=gemma") == ""


def _code(amazon: Amazon) -> int:
    """What this generation of the CLI exits with where a service refuses."""
    return 254 if "aws-cli/2" in amazon.aws("--version") else 255

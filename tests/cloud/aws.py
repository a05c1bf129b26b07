"""AWS's own clients in the rehearsal, and the few things every test of endpoints makes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import botocore.session  # type: ignore[import-untyped]
import pytest
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from tests.cloud.rehearsal import Rehearsal
from tests.support.processes import wait_for

Json = dict[str, Any]

REGION = "us-east-2"
ROLE = "arn:aws:iam::123456789012:role/vllm"
ROLE_NAME = "vllm"
IMAGE = (
    "763104351884.dkr.ecr.{region}.amazonaws.com/"
    "vllm:0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.1"
)
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}
POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["ecr:*", "logs:*"], "Resource": "*"}],
}


class Amazon:
    """A running rehearsal, seen from AWS's side.

    Args:
        cloud: The rehearsal.
    """

    def __init__(self, cloud: Rehearsal) -> None:
        self.cloud = cloud
        self._made: dict[tuple[str, str], Any] = {}

    def client(
        self, service: str, region: str = REGION, *, key: str = "AKIAREHEARSAL0000001"
    ) -> Any:
        """A client as boto3 makes it, which does not try again."""
        if (service, region + key) not in self._made:
            self._made[service, region + key] = botocore.session.Session().create_client(
                service,
                region_name=region,
                aws_access_key_id=key,
                aws_secret_access_key="of-no-account",
                endpoint_url=self.cloud.env["AWS_ENDPOINT_URL"],
                config=Config(retries={"total_max_attempts": 1}, read_timeout=20),
            )
        return self._made[service, region + key]

    def close(self) -> None:
        """Close the clients' connections."""
        for client in self._made.values():
            client.close()

    def role(self, policy: Json | None = None) -> None:
        """A role that can be assumed."""
        iam = self.client("iam")
        iam.create_role(RoleName=ROLE_NAME, AssumeRolePolicyDocument=json.dumps(TRUST))
        iam.put_role_policy(
            RoleName=ROLE_NAME, PolicyName="own", PolicyDocument=json.dumps(policy or POLICY)
        )

    def model(self, name: str = "gemma", region: str = REGION, **env: str) -> str:
        """A model; waits until its role can be assumed."""
        sagemaker = self.client("sagemaker", region)
        environment = {"SM_VLLM_MODEL": "google/gemma-4-E2B-it", "SM_VLLM_MAX_MODEL_LEN": "8192"}
        container = {"Image": IMAGE.format(region=region), "Environment": environment | env}

        def made() -> str:
            """the role can be assumed"""
            try:
                answer = sagemaker.create_model(
                    ModelName=name, ExecutionRoleArn=ROLE, PrimaryContainer=container
                )
            except ClientError as error:
                if "Could not assume role" not in str(error):
                    raise
                return ""
            return str(answer["ModelArn"])

        return wait_for(made)

    def config(
        self, name: str = "gemma", region: str = REGION, model: str = "gemma", **variant: Any
    ) -> None:
        """An endpoint configuration with one variant."""
        one = {"VariantName": "AllTraffic", "ModelName": model, "InitialInstanceCount": 1}
        if not {"InstancePools", "InstanceType"} & variant.keys():
            one["InstanceType"] = "ml.g6.xlarge"
        self.client("sagemaker", region).create_endpoint_config(
            EndpointConfigName=name, ProductionVariants=[one | variant]
        )

    def endpoint(self, name: str = "gemma", region: str = REGION, config: str = "gemma") -> None:
        """Begin to create an endpoint."""
        self.client("sagemaker", region).create_endpoint(
            EndpointName=name, EndpointConfigName=config
        )

    def settled(self, name: str = "gemma", region: str = REGION) -> Json:
        """An endpoint once nothing changes any more."""

        def look() -> Json | None:
            """the endpoint is InService or Failed"""
            found = self.client("sagemaker", region).describe_endpoint(EndpointName=name)
            return dict(found) if found["EndpointStatus"] in {"InService", "Failed"} else None

        return wait_for(look, 20)

    def served(self, name: str = "gemma", region: str = REGION, **env: str) -> Json:
        """A whole deployment of that name, once it has settled."""
        self.model(name, region, **env)
        self.config(name, region, name)
        self.endpoint(name, region, name)
        return self.settled(name, region)

    def lines(self, name: str = "gemma", region: str = REGION) -> list[str]:
        """What its containers wrote."""
        answer = self.client("logs", region).filter_log_events(
            logGroupName=f"/aws/sagemaker/Endpoints/{name}"
        )
        return [event["message"] for event in answer["events"]]

    def aws(self, *args: str, code: int = 0, program: str = "aws") -> str:
        """Run the aws CLI; its standard output, or its error output where it is to fail."""
        done = subprocess.run(
            [program, *args],
            env=self.cloud.env | {"AWS_MAX_ATTEMPTS": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr if code else done.stdout


def refused(call: Any, **params: Any) -> tuple[str, str]:
    """Code and sentence of a refusal."""
    with pytest.raises(ClientError) as caught:
        call(**params)
    error = caught.value.response["Error"]
    return str(error["Code"]), str(error["Message"])

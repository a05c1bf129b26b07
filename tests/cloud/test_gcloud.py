"""The real gcloud in the rehearsal: what no test of the product runs through it by itself.

Deploying in the background, candidates, scaling, deleting, builds, weights, APIs and machines go
through the real gcloud in the tests of the targets and of the set-up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.rehearsal import ARGS, BUCKET, REGION, Rehearsal, needs_gcloud, ready

pytestmark = needs_gcloud

DEPLOY = (
    f"--region={REGION}",
    "--image=vllm/vllm-openai:v0.26.0-cu129",
    "--command=python3,-m,vllm.entrypoints.openai.api_server",
    "--gpu=1",
    "--gpu-type=nvidia-l4",
    "--no-gpu-zonal-redundancy",
    "--no-cpu-throttling",
    "--concurrency=4",
    "--timeout=3600",
    "--port=8000",
    "--memory=32Gi",
    "--cpu=8",
    "--execution-environment=gen2",
    "--startup-probe=timeoutSeconds=60,periodSeconds=60,failureThreshold=10,"
    "initialDelaySeconds=180,httpGet.port=8000,httpGet.path=/health",
    "--max-instances=1",
    "--no-allow-unauthenticated",
    f"--add-volume=name=models,type=cloud-storage,bucket={BUCKET},readonly=true,"
    "mount-options=uid=1001;gid=1001",
    "--add-volume-mount=volume=models,mount-path=/mnt/models",
    f"--args={','.join(ARGS)}",
    "--quiet",
    "--format=json",
)


@pytest.fixture(scope="module")
def deployed(running: Rehearsal) -> Rehearsal:
    """A service deployed by gcloud as the reference does it, for the tests that follow."""
    running.control("POST", "/reset", {})
    running.login()
    made = json.loads(running.gcloud("beta", "run", "deploy", "vllm-l4", *DEPLOY, "--scaling=auto"))
    assert ready(made)["status"] == "True"
    return running


def run(cloud: Rehearsal, *args: str) -> Any:
    """A gcloud run command on the service; its answer."""
    return json.loads(cloud.gcloud(*args, f"--region={REGION}", "--format=json") or "null")


def test_the_deployment_is_sent_whole_and_written_down(deployed: Rehearsal) -> None:
    sent = [
        item
        for item in deployed.control("GET", "/requests")["requests"]
        if item["method"] == "POST" and item["path"].endswith("/services")
    ]
    assert len(sent) == 1
    assert sent[0]["host"] == "us-east4-run.googleapis.com"
    assert sent[0]["status"] == 200
    spec = sent[0]["body"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"run.googleapis.com/accelerator": "nvidia-l4"}
    assert spec["containers"][0]["args"] == list(ARGS)
    assert spec["volumes"][0]["csi"]["volumeAttributes"] == {
        "bucketName": BUCKET,
        "mountOptions": "uid=1001,gid=1001",
    }
    lines = Path(deployed.running.state_dir, "requests.jsonl").read_text(encoding="utf-8")
    assert "Bearer" not in lines
    assert "ya29." not in lines


def test_reading_it_back(deployed: Rehearsal) -> None:
    listed = json.loads(deployed.gcloud("run", "services", "list", "--format=json"))
    assert [item["metadata"]["name"] for item in listed] == ["vllm-l4"]
    url = listed[0]["status"]["url"]
    token = deployed.gcloud("auth", "print-identity-token").strip()
    answer = deployed.call(url, headers={"authorization": f"Bearer {token}"})
    assert answer.json()["data"][0]["id"] == "/mnt/models/gemma-4-E2B-it"
    logs = deployed.gcloud(
        "logging",
        "read",
        'resource.type="cloud_run_revision" AND resource.labels.service_name="vllm-l4" '
        'AND textPayload:"Loading weights took"',
        "--format=value(textPayload)",
    )
    assert "Loading weights took" in logs


def test_invokers_are_bound(deployed: Rehearsal) -> None:
    made = run(
        deployed,
        "run",
        "services",
        "add-iam-policy-binding",
        "vllm-l4",
        "--member=user:colleague@example.com",
        "--role=roles/run.invoker",
    )
    assert made["bindings"] == [
        {"members": ["user:colleague@example.com"], "role": "roles/run.invoker"}
    ]


def test_a_login_that_is_over_is_told(deployed: Rehearsal) -> None:
    with deployed.fault("login-expired"):
        said = deployed.gcloud("run", "services", "list", code=1)
    assert "Token has been expired or revoked" in said
    assert "gcloud auth login" in said
    accounts = json.loads(deployed.gcloud("auth", "list", "--format=json"))
    assert accounts == [{"account": "rehearsal@example.com", "status": "ACTIVE"}]


def test_quotas_are_read_by_their_ids(cloud: Rehearsal) -> None:
    quota = "NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion"
    found = json.loads(
        cloud.gcloud(
            "beta",
            "quotas",
            "info",
            "describe",
            quota,
            "--service=run.googleapis.com",
            f"--project={cloud.running.project}",
            "--format=json",
        )
    )
    limits = {
        item["dimensions"]["region"]: item["details"]["value"] for item in found["dimensionsInfos"]
    }
    assert limits[REGION] == "3"
    assert "us-west2" not in limits


def test_a_token_is_kept_as_a_secret_and_in_no_request_log(cloud: Rehearsal) -> None:
    cloud.gcloud("secrets", "create", "hf-token", "--data-file=-", stdin="hf_abcdefghijkl")
    read = cloud.gcloud("secrets", "versions", "access", "latest", "--secret=hf-token")
    assert read == "hf_abcdefghijkl"
    lines = json.dumps(cloud.control("GET", "/requests"))
    assert "hf_abcdefghijkl" not in lines
    assert "aGZfYWJj" not in lines

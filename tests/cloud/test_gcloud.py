"""The real gcloud in the rehearsal: what the Cloud Run, staging and set-up work needs of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.rehearsal import ARGS, BUCKET, KNATIVE, REGION, Rehearsal, needs_gcloud, ready

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


def status(cloud: Rehearsal) -> Any:
    """The service's status."""
    return cloud.rest.get(f"{KNATIVE}/services/vllm-l4").json()["status"]


def serving(cloud: Rehearsal) -> set[str]:
    """Revisions that get traffic."""
    return {item["revisionName"] for item in status(cloud)["traffic"] if item.get("percent")}


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


def test_a_candidate_is_deployed_promoted_and_rolled_back(deployed: Rehearsal) -> None:
    old = status(deployed)["latestReadyRevisionName"]
    made = run(
        deployed,
        "run",
        "services",
        "update",
        "vllm-l4",
        "--update-env-vars=A=1",
        "--no-traffic",
        "--tag=candidate",
    )["status"]
    new = made["latestReadyRevisionName"]
    assert new != old
    assert [item.get("percent", 0) for item in made["traffic"]] == [100, 0]
    tagged = next(item["url"] for item in made["traffic"] if item.get("tag"))
    assert deployed.call(tagged).status_code == 200
    update = ("run", "services", "update-traffic", "vllm-l4")
    run(deployed, *update, "--to-tags=candidate=100")
    assert serving(deployed) == {new}
    run(deployed, *update, f"--to-revisions={old}=100")
    assert serving(deployed) == {old}
    revisions = run(deployed, "run", "revisions", "list", "--service=vllm-l4")
    assert {item["metadata"]["name"] for item in revisions} >= {old, new}


def test_scaling_is_switched_off_and_on(deployed: Rehearsal) -> None:
    update = ("beta", "run", "services", "update", "vllm-l4")
    stopped = run(deployed, *update, "--scaling=0")
    annotations = stopped["metadata"]["annotations"]
    assert annotations["run.googleapis.com/scalingMode"] == "manual"
    assert annotations["run.googleapis.com/manualInstanceCount"] == "0"
    assert "Service is disabled." in deployed.call(stopped["status"]["url"]).text
    run(deployed, *update, "--scaling=auto")
    assert deployed.call(stopped["status"]["url"]).status_code == 200


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


def test_a_refused_deployment_is_told_in_googles_words(deployed: Rehearsal) -> None:
    with deployed.fault("gpu-quota-none"):
        said = deployed.gcloud("beta", "run", "deploy", "second", *DEPLOY, code=1)
    assert "You do not have quota for using GPUs without zonal redundancy." in said
    assert "g.co/cloudrun/gpu-quota" in said
    with deployed.fault("engine-out-of-memory"):
        said = deployed.gcloud("beta", "run", "deploy", "second", *DEPLOY, code=1)
    assert "failed the configured startup probe checks" in said


def test_a_login_that_is_over_is_told(deployed: Rehearsal) -> None:
    with deployed.fault("login-expired"):
        said = deployed.gcloud("run", "services", "list", code=1)
    assert "Token has been expired or revoked" in said
    assert "gcloud auth login" in said
    accounts = json.loads(deployed.gcloud("auth", "list", "--format=json"))
    assert accounts == [{"account": "rehearsal@example.com", "status": "ACTIVE"}]


def test_a_service_is_deleted(deployed: Rehearsal) -> None:
    deployed.gcloud("run", "services", "delete", "second", f"--region={REGION}", "--quiet")
    said = deployed.gcloud("run", "services", "describe", "second", f"--region={REGION}", code=1)
    assert "Cannot find service [second]" in said


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


def test_a_token_is_kept_as_a_secret_and_read_by_whom_it_is_granted(cloud: Rehearsal) -> None:
    email = f"vllm-runner@{cloud.running.project}.iam.gserviceaccount.com"
    cloud.gcloud("iam", "service-accounts", "create", "vllm-runner")
    cloud.gcloud("secrets", "create", "hf-token", "--data-file=-", stdin="hf_abcdefghijkl")
    cloud.gcloud(
        "secrets",
        "add-iam-policy-binding",
        "hf-token",
        f"--member=serviceAccount:{email}",
        "--role=roles/secretmanager.secretAccessor",
    )
    read = cloud.gcloud("secrets", "versions", "access", "latest", "--secret=hf-token")
    assert read == "hf_abcdefghijkl"
    lines = json.dumps(cloud.control("GET", "/requests"))
    assert "hf_abcdefghijkl" not in lines
    assert "aGZfYWJj" not in lines


def test_weights_are_synchronised_to_a_bucket(cloud: Rehearsal, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text('{"model_type": "gemma4"}', encoding="utf-8")
    (source / "model.safetensors").write_bytes(bytes(range(256)) * 20_000)
    cloud.gcloud("storage", "rsync", str(source), f"gs://{BUCKET}/m", "--recursive")
    back = tmp_path / "back"
    back.mkdir()
    cloud.gcloud("storage", "rsync", f"gs://{BUCKET}/m", str(back), "--recursive")
    for name in ("config.json", "model.safetensors"):
        assert (back / name).read_bytes() == (source / name).read_bytes()
    said = cloud.gcloud("storage", "ls", "gs://not-there", code=1)
    assert "gs://not-there not found: 404." in said


def test_builds_make_images(cloud: Rehearsal, tmp_path: Path) -> None:
    registry = f"{REGION}-docker.pkg.dev/{cloud.running.project}/vllm"
    repositories = (
        "https://artifactregistry.googleapis.com/v1/projects/vllm-rehearsal/locations/"
        f"{REGION}/repositories"
    )
    made = cloud.rest.post(repositories, params={"repositoryId": "vllm"}, json={"format": "DOCKER"})
    assert made.json()["done"] is True
    config = tmp_path / "build.yaml"
    config.write_text(
        json.dumps(
            {
                "steps": [
                    {
                        "name": "gcr.io/cloud-builders/docker",
                        "args": ["build", "-t", f"{registry}/custom:1", "."],
                    }
                ],
                "images": [f"{registry}/custom:1"],
            }
        ),
        encoding="utf-8",
    )
    source = tmp_path / "source"
    source.mkdir()
    (source / "Dockerfile").write_text("FROM vllm/vllm-openai", encoding="utf-8")
    built = json.loads(
        cloud.gcloud("builds", "submit", str(source), f"--config={config}", "--format=json")
    )
    assert built["status"] == "SUCCESS"
    shown = json.loads(
        cloud.gcloud(
            "artifacts", "docker", "images", "list", registry, "--include-tags", "--format=json"
        )
    )
    assert shown[0]["package"] == f"{registry}/custom"
    assert "1" in shown[0]["tags"]


def test_apis_networks_and_machines_are_there_for_later(cloud: Rehearsal) -> None:
    cloud.gcloud("services", "enable", "aiplatform.googleapis.com")
    assert "aiplatform.googleapis.com" in cloud.control("GET", "/world")["enabled"]
    cloud.gcloud(
        "compute",
        "networks",
        "subnets",
        "update",
        "default",
        f"--region={REGION}",
        "--enable-private-ip-google-access",
    )
    subnet = cloud.rest.get(
        "https://compute.googleapis.com/compute/v1/projects/vllm-rehearsal/regions/"
        f"{REGION}/subnetworks/default"
    ).json()
    assert subnet["privateIpGoogleAccess"] is True
    cloud.gcloud(
        "compute",
        "instances",
        "create",
        "gemma4-t4",
        "--zone=us-west2-b",
        "--machine-type=n1-standard-2",
        "--accelerator=type=nvidia-tesla-t4,count=1",
        "--maintenance-policy=TERMINATE",
        "--image-project=debian-cloud",
        "--image-family=debian-13",
    )
    cloud.gcloud(
        "compute",
        "tpus",
        "queued-resources",
        "create",
        "qr-1",
        "--zone=us-east5-a",
        "--node-id=node-1",
        "--accelerator-type=v6e-1",
        "--runtime-version=v2-alpha-tpuv6e",
    )
    world = cloud.control("GET", "/world")
    assert world["instances"]["us-west2-b/gemma4-t4"]["status"] == "RUNNING"
    assert [name.rpartition("/")[2] for name in world["queued_resources"]] == ["qr-1"]

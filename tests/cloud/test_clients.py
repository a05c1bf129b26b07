"""The Python client libraries over REST, as the server uses them, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cloud.rehearsal import BUCKET, Rehearsal

ROOT = Path(__file__).resolve().parents[2]


def run(cloud: Rehearsal, script: str) -> Any:
    """Run Python in the rehearsal's environment; what it prints last is JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env=cloud.env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_google_cloud_run_reads_services_and_revisions(cloud: Rehearsal) -> None:
    cloud.deploy("seen", service_annotations={"run.googleapis.com/ingress": "all"})
    found = run(
        cloud,
        """
import json, time
from google.cloud import run_v2
parent = "projects/vllm-rehearsal/locations/us-east4"
client = run_v2.ServicesClient(transport="rest")
service = list(client.list_services(parent=parent))[0]
times = []
for _ in range(5):
    began = time.perf_counter()
    client.get_service(name=service.name)
    times.append(time.perf_counter() - began)
revisions = run_v2.RevisionsClient(transport="rest").list_revisions(parent=service.name)
policy = client.get_iam_policy({"resource": service.name})
print(json.dumps({
    "name": service.name, "uri": service.uri,
    "state": service.terminal_condition.state.name,
    "accelerator": service.template.node_selector.accelerator,
    "gpu": service.template.containers[0].resources.limits["nvidia.com/gpu"],
    "bucket": service.template.volumes[0].gcs.bucket,
    "most": service.template.scaling.max_instance_count,
    "concurrency": service.template.max_instance_request_concurrency,
    "revisions": [item.name for item in revisions],
    "bindings": len(policy.bindings),
    "fastest_ms": min(times) * 1000,
}))
""",
    )
    assert found["state"] == "CONDITION_SUCCEEDED"
    assert found["accelerator"] == "nvidia-l4"
    assert found["gpu"] == "1"
    assert found["bucket"] == BUCKET
    assert (found["most"], found["concurrency"], found["bindings"]) == (1, 4, 0)
    assert found["revisions"][0].startswith(f"{found['name']}/revisions/seen-00001-")
    # A warm read: the answer itself takes about a millisecond.
    assert found["fastest_ms"] < 50
    served = [
        item["ms"]
        for item in cloud.control("GET", "/requests")["requests"]
        if item["path"].endswith("/services/seen") and item["status"] == 200
    ]
    assert min(served) < 10


def test_google_cloud_run_creates_updates_and_waits(cloud: Rehearsal) -> None:
    found = run(
        cloud,
        """
import json
from google.api_core import exceptions
from google.cloud import run_v2
parent = "projects/vllm-rehearsal/locations/us-east4"
client = run_v2.ServicesClient(transport="rest")
container = run_v2.Container(image="docker.io/library/x:1", ports=[{"container_port": 8000}],
    args=["--model=google/gemma-4-E2B-it", "--port=8000"],
    resources={"limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}})
service = run_v2.Service(template={"containers": [container],
    "node_selector": {"accelerator": "nvidia-l4"}, "gpu_zonal_redundancy_disabled": True,
    "scaling": {"max_instance_count": 1}})
made = client.create_service(parent=parent, service=service, service_id="lib").result(timeout=30)
made.labels["managed-by"] = "vllm-devops"
changed = client.update_service(service=made).result(timeout=30)
try:
    client.create_service(parent=parent, service=service, service_id="lib")
    again = ""
except exceptions.Conflict as error:
    again = str(error)
client.delete_service(name=made.name).result(timeout=30)
try:
    client.get_service(name=made.name)
    left = True
except exceptions.NotFound:
    left = False
print(json.dumps({"label": dict(changed.labels), "again": again, "left": left,
    "same": changed.latest_created_revision == made.latest_created_revision}))
""",
    )
    assert found["label"] == {"managed-by": "vllm-devops"}
    assert found["same"] is True
    assert "already exists" in found["again"]
    assert found["left"] is False


def test_google_cloud_storage_and_logging(cloud: Rehearsal) -> None:
    cloud.control("POST", "/logs", {"entries": [{"textPayload": "hello", "severity": "ERROR"}]})
    found = run(
        cloud,
        """
import json
from google.cloud import logging, storage
client = storage.Client()
bucket = client.create_bucket("made-here", location="us-east4")
blob = bucket.blob("a/b c.txt")
blob.upload_from_string("x" * 300000)
big = bucket.blob("big", chunk_size=256 * 1024)
big.upload_from_string(b"y" * 700000)
policy = bucket.get_iam_policy(requested_policy_version=3)
policy.bindings.append({"role": "roles/storage.objectViewer", "members": {"user:a@example.com"}})
bucket.set_iam_policy(policy)
config = json.loads(client.bucket("vllm-rehearsal-bucket").blob(
    "gemma-4-E2B-it/config.json").download_as_bytes())
weights = client.bucket("vllm-rehearsal-bucket").get_blob("gemma-4-E2B-it/model.safetensors")
entries = logging.Client(_use_grpc=False).list_entries(filter_="severity>=ERROR")
print(json.dumps({
    "names": [item.name for item in client.list_blobs("made-here")],
    "back": blob.download_as_text() == "x" * 300000,
    "part": big.download_as_bytes(start=10, end=19).decode(),
    "size": big.size, "weights": weights.size,
    "head": weights.download_as_bytes(start=0, end=7).hex(),
    "roles": [item["role"] for item in bucket.get_iam_policy().bindings][-1],
    "model": config["model_type"],
    "entries": [item.payload for item in entries],
}))
""",
    )
    assert found["names"] == ["a/b c.txt", "big"]
    assert found["back"] is True
    assert found["part"] == "y" * 10
    assert found["size"] == 700_000
    assert found["weights"] > 10**10
    assert found["head"] == "00" * 8
    assert found["roles"] == "roles/storage.objectViewer"
    assert found["model"] == "gemma4"
    assert found["entries"] == ["hello"]

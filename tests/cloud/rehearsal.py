"""A rehearsal cloud for tests, and ways to call it: as a REST client, as gcloud, by its control."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.rehearsal.cloud import launcher
from tests.support.processes import gone, wait_for

Json = dict[str, Any]

REGION = "us-east4"
RUN = f"https://{REGION}-run.googleapis.com"
KNATIVE = f"{RUN}/apis/serving.knative.dev/v1/namespaces/vllm-rehearsal"
V2 = "https://run.googleapis.com/v2/projects/vllm-rehearsal/locations"
BUCKET = "vllm-rehearsal-bucket"

# The reference deployment on an L4, as arguments of vLLM.
ARGS = (
    "--model=/mnt/models/gemma-4-E2B-it",
    "--max-model-len=16384",
    "--gpu-memory-utilization=0.95",
    "--kv-cache-dtype=fp8",
    "--max-num-seqs=8",
    "--enable-auto-tool-choice",
    "--tool-call-parser=gemma4",
    "--reasoning-parser=gemma4",
    "--host=0.0.0.0",
    "--port=8000",
)

needs_gcloud = pytest.mark.skipif(
    shutil.which("gcloud") is None, reason="gcloud is not installed here"
)


def service(name: str, **changes: Any) -> Json:
    """A service as gcloud sends the reference deployment, with changes by the names below."""
    values: Json = {
        "image": "vllm/vllm-openai:v0.26.0-cu129",
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": list(ARGS),
        "env": [],
        "cpu": "8",
        "memory": "32Gi",
        "gpu": "nvidia-l4",
        "concurrency": 4,
        "probe": {
            "initialDelaySeconds": 180,
            "periodSeconds": 60,
            "timeoutSeconds": 60,
            "failureThreshold": 10,
            "httpGet": {"path": "/health", "port": 8000},
        },
        "port": 8000,
        "annotations": {},
        "service_annotations": {},
        "bucket": BUCKET,
        "account": None,
        "traffic": None,
        "revision": None,
        "max_instances": "1",
    } | changes
    container: Json = {
        "image": values["image"],
        "command": values["command"],
        "args": values["args"],
        "env": values["env"],
        "ports": [{"containerPort": values["port"]}],
        "resources": {"limits": {"cpu": values["cpu"], "memory": values["memory"]}},
    }
    spec: Json = {"containerConcurrency": values["concurrency"], "containers": [container]}
    spec["timeoutSeconds"] = 3600
    annotations: Json = {"run.googleapis.com/cpu-throttling": "False"}
    if values["max_instances"] is not None:
        annotations["autoscaling.knative.dev/maxScale"] = values["max_instances"]
    if values["gpu"]:
        container["resources"]["limits"]["nvidia.com/gpu"] = "1"
        spec["nodeSelector"] = {"run.googleapis.com/accelerator": values["gpu"]}
        annotations["run.googleapis.com/gpu-zonal-redundancy-disabled"] = "True"
    if values["probe"]:
        container["startupProbe"] = values["probe"]
    if values["account"]:
        spec["serviceAccountName"] = values["account"]
    if values["bucket"]:
        container["volumeMounts"] = [{"name": "models", "mountPath": "/mnt/models"}]
        spec["volumes"] = [
            {
                "name": "models",
                "csi": {
                    "driver": "gcsfuse.run.googleapis.com",
                    "readOnly": True,
                    "volumeAttributes": {"bucketName": values["bucket"]},
                },
            }
        ]
    meta: Json = {"annotations": annotations | values["annotations"]}
    if values["revision"]:
        meta["name"] = values["revision"]
    made: Json = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": "vllm-rehearsal",
            "annotations": values["service_annotations"],
        },
        "spec": {"template": {"metadata": meta, "spec": spec}},
    }
    if values["traffic"]:
        made["spec"]["traffic"] = values["traffic"]
    return made


def ready(resource: Json) -> Json:
    """The Ready condition of a service or revision."""
    return next(item for item in resource["status"]["conditions"] if item["type"] == "Ready")


class Rehearsal:
    """A running cloud and its clients.

    Args:
        running: The cloud.
        base_env: What the environment of children begins with.
    """

    def __init__(self, running: launcher.Running, base_env: dict[str, str]) -> None:
        self.running = running
        self.env = launcher.clean(running, base_env)
        self.rest = httpx.Client(
            proxy=f"http://127.0.0.1:{running.port}",
            verify=ssl.create_default_context(cafile=running.ca_file),
            timeout=60,
            trust_env=False,
        )
        self.login()

    def login(self) -> None:
        """Get fresh tokens, as a client library does."""
        tokens = self.rest.post(
            "https://oauth2.googleapis.com/token",
            data={
                "grant_type": "refresh_token",
                "refresh_token": "1//rehearsal-refresh-token",
                "client_id": "x",
                "client_secret": "y",
            },
        ).json()
        self.rest.headers["authorization"] = f"Bearer {tokens['access_token']}"
        self.identity_token = str(tokens["id_token"])

    def close(self) -> None:
        """Close the client's connections."""
        self.rest.close()

    def control(self, method: str, path: str, body: Any = None) -> Json:
        """Call the control API."""
        return launcher.control(self.running, method, path, body)

    @contextmanager
    def fault(self, name: str = "", **fields: Any) -> Iterator[list[Json]]:
        """A fault that is on inside the block."""
        made = self.control("POST", "/faults", ({"name": name} if name else {}) | fields)["faults"]
        try:
            yield made
        finally:
            for fault in made:
                self.control("DELETE", f"/faults/{fault['id']}")

    def instances(self, name: str = "") -> list[Json]:
        """Instances of a service, or of all."""
        shown = self.control("GET", "/instances")["instances"]
        return [item for item in shown if name in ("", item["service"])]

    def deploy(self, name: str, within_s: float = 30, **changes: Any) -> Json:
        """Create a service and wait until it is ready or failed."""
        created = self.rest.post(f"{KNATIVE}/services", json=service(name, **changes))
        assert created.status_code == 200, created.text
        return self.settled(name, within_s)

    def update(self, name: str, change: Callable[[Json], None], within_s: float = 30) -> Json:
        """Read a service, change it, write it back, wait until it is ready or failed."""
        current = self.rest.get(f"{KNATIVE}/services/{name}").json()
        change(current)
        written = self.rest.put(f"{KNATIVE}/services/{name}", json=current)
        assert written.status_code == 200, written.text
        return self.settled(name, within_s)

    def settled(self, name: str, within_s: float = 30) -> Json:
        """A service once it is ready or failed."""

        def look() -> Json | None:
            """the service is ready or failed"""
            found = self.rest.get(f"{KNATIVE}/services/{name}").json()
            return dict(found) if ready(found)["status"] != "Unknown" else None

        return wait_for(look, within_s)

    def delete(self, name: str) -> None:
        """Delete a service and wait until it is gone."""
        self.rest.delete(f"{KNATIVE}/services/{name}")

        def gone() -> bool:
            """the service is gone"""
            return self.rest.get(f"{KNATIVE}/services/{name}").status_code == 404

        wait_for(gone)

    def logs(self, name: str, more: str = "") -> list[str]:
        """What a service's containers and the platform have written."""
        answer = self.rest.post(
            "https://logging.googleapis.com/v2/entries:list",
            json={
                "resourceNames": ["projects/vllm-rehearsal"],
                "filter": f'resource.labels.service_name="{name}" {more}',
                "pageSize": 1000,
            },
        )
        assert answer.status_code == 200, answer.text
        entries = answer.json().get("entries", [])
        return [item["textPayload"] for item in entries if "textPayload" in item]

    def load_s(self, name: str) -> float:
        """Seconds a service's log says that loading its weights took."""
        said = re.search(r"Loading weights took ([\d.]+) s", "\n".join(self.logs(name)))
        assert said is not None
        return float(said[1])

    def call(self, url: str, path: str = "/v1/models", **more: Any) -> httpx.Response:
        """Call an endpoint with an identity token."""
        headers = {"authorization": f"Bearer {self.identity_token}"} | more.pop("headers", {})
        method = "POST" if "json" in more else "GET"
        return self.rest.request(method, url + path, headers=headers, **more)

    def gcloud(self, *args: str, stdin: str = "", code: int = 0) -> str:
        """Run gcloud; returns its standard output, or its error output where it is to fail."""
        done = subprocess.run(
            ["gcloud", *args],
            input=stdin,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr if code else done.stdout


@contextmanager
def rehearsal(folder: Path, **options: Any) -> Iterator[Rehearsal]:
    """A cloud that runs inside the block, and leaves nothing behind."""
    # Not even a test run that is killed leaves a cloud behind.
    running = launcher.start(folder, owner_pid=os.getpid(), **options)
    client = Rehearsal(running, dict(os.environ))
    try:
        yield client
    finally:
        client.close()
        pids = [item["pid"] for item in client.instances()]
        assert launcher.stop(folder)
        log = (folder / "cloud.log").read_text(encoding="utf-8")
        assert "Traceback" not in log, log
        assert not _alive([running.pid, *pids])


def _alive(pids: list[int | None]) -> list[int]:
    deadline = time.monotonic() + 10
    while (left := [pid for pid in pids if pid and not gone(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left

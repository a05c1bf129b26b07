"""Services, sights and requests made by hand, for what is decided without asking anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backends.cloudrun.logs import Sight
from backends.cloudrun.services import Condition, RunService, Share
from backends.cloudrun.spec import CloudRunSpec, resolved, scaled
from backends.core.settings import Settings
from backends.knowledge.cloudrun import L4, CloudRunProfile
from backends.serving.startup_log import StartupLog

PROJECT = "fake-proj"

SERVICE = RunService(
    name="gemma4",
    region="us-east4",
    url="https://gemma4-abc-uk.a.run.app",
    labels={"managed-by": "vllm-devops"},
    etag="e1",
    generation=1,
    created_at=1000.0,
    updated_at=1000.0,
    ready=True,
    reconciling=False,
    conditions=(Condition("Ready", True),),
    gpu="nvidia-l4",
    cpu=8,
    memory_gib=32,
    zonal=False,
    image="vllm/vllm-openai:v0.26.0-cu129",
    args=("--model=/mnt/models/gemma-4-E2B-it",),
    env={},
    account=f"vllm-l4-gemma4@{PROJECT}.iam.gserviceaccount.com",
    concurrency=4,
    port=8000,
    min_instances=0,
    revision_min=0,
    max_instances=1,
    manual=None,
    created_revision="gemma4-00001-abc",
    ready_revision="gemma4-00001-abc",
    traffic=(Share("gemma4-00001-abc", 100, latest=True),),
    buckets=(f"{PROJECT}-bucket",),
)

STARTING = (
    "INFO 11-30 10:00:00 [api_server.py:1] vLLM API server version 0.26.0",
    "INFO 11-30 10:00:10 [core.py:1] Initializing a V1 LLM engine (v0.26.0) with config: "
    "model='/mnt/models/gemma-4-E2B-it'",
    "INFO 11-30 10:00:20 [gpu_model_runner.py:1] Starting to load model /mnt/models/x...",
)
READY = (*STARTING, "INFO:     Application startup complete.")


def service(**changes: Any) -> RunService:
    """The service above, with changes."""
    return replace(SERVICE, **changes)


def sight(lines: Sequence[str] = (), last_at: float = 0.0, **more: Any) -> Sight:
    """What logs of these lines tell."""
    log = StartupLog()
    for line in lines:
        log.feed_line(line)
    began = more.pop("began_at", last_at - 20 if last_at else 0.0)
    return Sight(log.progress, last_at=last_at, began_at=began, **more)


def request(profile: CloudRunProfile = L4, **options: Any) -> CloudRunSpec:
    """A resolved request."""
    spec = CloudRunSpec(**({"name": "gemma4"} | options))
    return scaled(resolved(spec, profile, Settings(), PROJECT), None)

"""Requests, nodes and looks made by hand, for what is decided without asking anybody."""

from __future__ import annotations

import json
from typing import Any

from backends.core.settings import Settings
from backends.tpu.records import TpuRequest, read_node, read_request
from backends.tpu.sight import Machine, read_look
from backends.tpu.spec import TpuSpec, resolved

PROJECT = "fake-proj"
ZONE = "us-east5-b"
NOW_S = 1_796_080_000.0
CREATED = "2026-11-30T22:00:00Z"
LABELS = {"managed-by": "vllm-devops", "vllm-devops-spec": "abc"}
SETTINGS = {"name": "gemma4", "model": "google/gemma-4-E2B-it", "port": 8000}

TPU_LOG = (
    "(EngineCore pid=1) INFO 11-30 10:00:00 [core.py:133] Initializing a V1 LLM engine (v0.27.0) "
    "with config: model='google/gemma-4-E2B-it', max_seq_len=32768\n"
    "(EngineCore pid=1) INFO 11-30 10:00:10 [x.py:1] Starting to load model "
    "google/gemma-4-E2B-it...\n"
    "(EngineCore pid=1) INFO 11-30 10:01:10 [x.py:1] Memory statistics | "
    "total_hbm_limit_gb=31.24GiB | total_hbm_limit_cap_gb=28.74GiB | total_hbm_used_gb=8.97GiB | "
    "total_hbm_avail_gb=19.77GiB\n"
    "(EngineCore pid=1) INFO 11-30 10:01:11 [x.py:1] GPU KV cache size: 1,151,744 tokens\n"
    "(EngineCore pid=1) INFO 11-30 10:01:11 [x.py:1] Maximum concurrency for 32,768 tokens per "
    "request: 35.15x\n"
)
COMPILED = (
    "(EngineCore pid=1) INFO 11-30 10:05:11 [x.py:1] Compilation of worker0 backbone, 16 tokens, "
    "finished in 240.00 [secs].\n"
)
READY = "INFO:     Application startup complete.\n"


def spec(**options: Any) -> TpuSpec:
    """A resolved request."""
    return resolved(TpuSpec(**({"name": "gemma4"} | options)), Settings())


def raw_request(state: str = "ACTIVE", **changes: Any) -> dict[str, Any]:
    """A queued resource as the API shows it."""
    return {
        "name": f"projects/{PROJECT}/locations/{ZONE}/queuedResources/gemma4",
        "createTime": CREATED,
        "state": {"state": state, "stateInitiator": "SERVICE"},
        "provisioningModel": "SPOT",
        "tpu": {
            "nodeSpec": [
                {
                    "nodeId": "gemma4-node",
                    "node": {
                        "acceleratorType": "v6e-1",
                        "labels": LABELS,
                        "metadata": {"vllm-devops": json.dumps(SETTINGS)},
                    },
                }
            ]
        },
    } | changes


def raw_node(state: str = "READY", **changes: Any) -> dict[str, Any]:
    """Its node."""
    return {
        "name": f"projects/{PROJECT}/locations/{ZONE}/nodes/gemma4-node",
        "state": state,
        "acceleratorType": "v6e-1",
        "createTime": CREATED,
        "labels": LABELS,
        "networkEndpoints": [
            {"ipAddress": "10.0.0.2", "accessConfig": {"externalIp": "203.0.113.9"}}
        ],
    } | changes


def request(state: str = "ACTIVE", node: str | None = "READY", **changes: Any) -> TpuRequest:
    """A request, with its node."""
    nodes = {} if node is None else {(ZONE, "gemma4-node"): read_node(raw_node(node))}
    return read_request(raw_request(state, **changes), nodes)


def look(
    phases: str = "", log: str = "", container: str = "running 0 x", tail: str = ""
) -> Machine:
    """What a look at its machine found."""
    mark = "\n@@vllm-devops@@ "
    return read_look(
        f"{mark}phases\n{phases}{mark}container\n{container}\n{mark}log\n{log}{mark}tail\n{tail}"
    )

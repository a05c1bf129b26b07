"""What a machine runs at boot: a fixed script below assignments that say what to serve.

Every value passes through one quoting function, so none can become a command. No secret is in it:
tokens are read at boot, by the machine's own account, from Secret Manager.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from backends.clouds.hosts.host import quote
from backends.knowledge.tpu import CONTAINER, RAY_PORT, Slice, find_slice
from backends.tpu.spec import TpuSpec, mm_limits

_BODY = Path(__file__).with_name("start.sh")

SETTINGS_KEY = "vllm-devops"
"""Metadata key under which a deployment's own settings stand, as JSON."""

# Seconds between two tries; looks for a secret, for a right that was just given is known after
# minutes; and seconds to readiness at most.
_PAUSE_S = 10
_SECRET_TRIES = 60
_START_PATIENCE_S = 3600

# As vLLM's guide for Ray on several hosts: one head, and the others join it.
RAY_HEAD = (
    'port=$1 hosts=$2; shift 2; ray start --head --port="$port" || exit 1; '
    'until [ "$(ray status 2> /dev/null | grep -c \' node_\')" -ge "$hosts" ]; do sleep 2; done; '
    'exec "$@"'
)
# Which host is up first is anybody's guess, so the others try until the first one is there.
RAY_WORKER = 'until ray start --block --address="$1"; do sleep 2; done'


def engine_args(spec: TpuSpec, split: int) -> list[str]:
    """What vLLM is told.

    Args:
        spec: The resolved request.
        split: The tensor-parallel size.
    """
    size = find_slice(str(spec.size))
    host = "0.0.0.0" if spec.public else "127.0.0.1"  # noqa: S104 (with a key and a firewall rule)
    args = ["vllm", "serve", str(spec.model), f"--host={host}", f"--port={spec.port}"]
    if spec.served_model_name:
        args.append(f"--served-model-name={spec.served_model_name}")
    args += [
        f"--max-model-len={spec.max_model_len}",
        f"--max-num-seqs={spec.max_num_seqs}",
        f"--tensor-parallel-size={split}",
        f"--max-num-batched-tokens={spec.max_num_batched_tokens}",
        f"--kv-cache-dtype={spec.kv_cache_dtype}",
        "--disable-chunked-mm-input",
        f"--limit-mm-per-prompt={mm_limits(spec)}",
        "--enable-auto-tool-choice",
        "--tool-call-parser=gemma4",
        "--reasoning-parser=gemma4",
    ]
    if spec.gpu_memory_utilization is not None:
        args.append(f"--gpu-memory-utilization={spec.gpu_memory_utilization:g}")
    if size.hosts > 1:
        args.append("--distributed-executor-backend=ray")
    return [*args, *spec.extra_args]


def start_script(spec: TpuSpec, split: int, project: str, *, key_secret: str = "") -> str:
    """The whole start-up script of a deployment's machines.

    Args:
        spec: The resolved request.
        split: The tensor-parallel size.
        project: The project whose Secret Manager holds the token.
        key_secret: Secret with the API key of a public endpoint; empty without one.
    """
    size = find_slice(str(spec.size))
    values: dict[str, str] = {
        "PROJECT": project,
        "IMAGE": str(spec.image),
        "CONTAINER": CONTAINER,
        "SECRET": str(spec.secret or ""),
        "KEY_SECRET": key_secret,
        "HOSTS": str(size.hosts),
        "RAY_PORT": str(RAY_PORT),
        "RAY_HEAD": RAY_HEAD,
        "RAY_WORKER": RAY_WORKER,
        "PAUSE": str(_PAUSE_S),
        "SECRET_TRIES": str(_SECRET_TRIES),
        "START_PATIENCE": str(_START_PATIENCE_S),
    }
    lines = [f"{name}={quote(value)}" for name, value in values.items()]
    lines += [
        f"SERVE=({quote(*engine_args(spec, split))})",
        f"ENVIRONMENT=({quote(*spec.env)})",
    ]
    return "\n".join(["#!/bin/bash", *lines, _BODY.read_text(encoding="utf-8")])


def settings_json(spec: TpuSpec, split: int) -> str:
    """What a deployment is, kept in its machine's metadata for whoever looks at it later."""
    kept = {
        "name": spec.name,
        "model": spec.model,
        "size": spec.size,
        "provisioning": spec.provisioning,
        "control_plane": spec.control_plane,
        "max_model_len": spec.max_model_len,
        "tensor_parallel_size": split,
        "port": spec.port,
        "public": spec.public,
        "ssh": spec.ssh,
        "network": spec.network,
        "secret": spec.secret,
        "image": spec.image,
        "max_run_hours": spec.max_run_hours,
    }
    return json.dumps({key: value for key, value in kept.items() if value is not None})


def digest_of(parts: Sequence[str]) -> str:
    """A short digest of what a deployment runs, for its label."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def hosts_of(size: Slice) -> range:
    """The worker numbers of a slice."""
    return range(size.hosts)

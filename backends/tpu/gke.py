"""The same deployment on Google Kubernetes Engine: a manifest that can be applied as it is.

Follows Google's guide on serving with vLLM on v6e in GKE (docs, 2026-11-30): the node pool's labels
select the slice, chips are requested as `google.com/tpu`, and the pool takes one pod a machine.
"""

from __future__ import annotations

import json
from typing import Any

from backends.core.errors import InvalidInputError
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.knowledge.tpu import PHASES, find_slice
from backends.tpu.fit import check_fit
from backends.tpu.records import TARGET, TARGET_LABEL
from backends.tpu.spec import TpuSpec
from backends.tpu.start import engine_args

_ACCELERATOR = "tpu-v6e-slice"
_PROBE_PERIOD_S = 10
# Twice the usual cold start: compiling alone takes eleven minutes.
_PATIENCE = 2.0
_CACHE_GIB = 100


def manifest(spec: TpuSpec) -> str:
    """Deployment, service and secret reference for one slice of one machine, as YAML.

    Args:
        spec: The resolved request.

    Raises:
        InvalidInputError: The slice has several machines; GKE's vLLM guide has no such form.
    """
    size = find_slice(str(spec.size))
    if size.hosts > 1:
        raise InvalidInputError(
            "options.size",
            f"{size.name} has {size.hosts} hosts; vLLM on GKE serves slices of one host.",
            allowed="v6e-1, v6e-4, v6e-8",
        )
    split = check_fit(spec).tensor_parallel_size
    objects = [_claim(spec), _deployment(spec, split), _service(spec)]
    head = (
        f"# vLLM on {size.name} in GKE. Before it:\n"
        f"#   gcloud container node-pools create {spec.name} --cluster=CLUSTER "
        f"--location=REGION --node-locations={spec.zone or 'ZONE'} "
        f"--machine-type={size.machine_type} {_pool_flags(spec)}\n"
        f'#   printf %s "$HF_TOKEN" | kubectl create secret generic {spec.secret} '
        "--from-file=token=/dev/stdin\n"
        f"# Then: kubectl apply -f this-file; kubectl port-forward service/{spec.name} "
        f"{spec.port}:{spec.port}\n"
    )
    return head + "---\n".join(_yaml(item) for item in objects)


def _pool_flags(spec: TpuSpec) -> str:
    flags = {
        "spot": "--num-nodes=1 --spot",
        "flex-start": "--num-nodes=0 --flex-start --enable-autoscaling --max-nodes=1 "
        "--reservation-affinity=none",
        "reservation": "--num-nodes=1 --reservation-affinity=specific "
        f"--reservation={spec.reservation}",
    }
    return flags.get(str(spec.provisioning), "--num-nodes=1")


def _labels(spec: TpuSpec) -> dict[str, str]:
    return {"app": spec.name, MANAGED_BY: MANAGED_BY_US, TARGET_LABEL: TARGET}


def _claim(spec: TpuSpec) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{spec.name}-cache", "labels": _labels(spec)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{_CACHE_GIB}Gi"}},
        },
    }


def _deployment(spec: TpuSpec, split: int) -> dict[str, Any]:
    size = find_slice(str(spec.size))
    chips = str(size.chips)
    # The pod has a network of its own: what reaches it is the service's business.
    args = [
        "--host=0.0.0.0" if item.startswith("--host=") else item
        for item in engine_args(spec, split)
    ]
    container = {
        "name": "vllm",
        "image": spec.image,
        "command": args[:2],
        "args": args[2:],
        "ports": [{"name": "http", "containerPort": spec.port}],
        "env": [
            {
                "name": "HF_TOKEN",
                "valueFrom": {
                    "secretKeyRef": {"name": spec.secret, "key": "token", "optional": True}
                },
            },
            {"name": "HF_HOME", "value": "/cache/huggingface"},
            {"name": "VLLM_XLA_CACHE_PATH", "value": "/cache/xla"},
            *(
                {"name": key, "value": value}
                for key, _, value in (item.partition("=") for item in spec.env)
            ),
        ],
        "resources": {
            "requests": {"google.com/tpu": chips, "memory": f"{min(64, size.memory_gib // 2)}Gi"},
            "limits": {"google.com/tpu": chips},
        },
        "startupProbe": _probe(spec, int(_patience_s() / _PROBE_PERIOD_S)),
        "readinessProbe": _probe(spec, 3),
        "livenessProbe": _probe(spec, 6),
        "volumeMounts": [
            {"name": "cache", "mountPath": "/cache"},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 (in the container)
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": spec.name, "labels": _labels(spec)},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": spec.name}},
            "template": {
                "metadata": {"labels": _labels(spec)},
                "spec": {
                    "nodeSelector": {
                        "cloud.google.com/gke-tpu-accelerator": _ACCELERATOR,
                        "cloud.google.com/gke-tpu-topology": size.topology,
                    },
                    "tolerations": [
                        {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}
                    ],
                    "containers": [container],
                    "volumes": [
                        {
                            "name": "cache",
                            "persistentVolumeClaim": {"claimName": f"{spec.name}-cache"},
                        },
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
                    ],
                },
            },
        },
    }


def _service(spec: TpuSpec) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": spec.name, "labels": _labels(spec)},
        "spec": {
            "type": "ClusterIP",
            "selector": {"app": spec.name},
            "ports": [{"name": "http", "port": spec.port, "targetPort": "http"}],
        },
    }


def _probe(spec: TpuSpec, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": _PROBE_PERIOD_S,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _patience_s() -> float:
    return _PATIENCE * sum(phase.seconds.value for phase in PHASES)


def _yaml(value: object, indent: int = 0) -> str:
    """Plain YAML: blocks of mappings and lists, with scalars as JSON has them."""
    pad = " " * indent
    if isinstance(value, dict):
        lines = []
        for key, item in value.items():
            inner = _yaml(item, indent + 2)
            nested = isinstance(item, dict | list) and bool(item)
            lines.append(f"{pad}{key}:\n{inner}" if nested else f"{pad}{key}: {inner.strip()}\n")
        return "".join(lines)
    if isinstance(value, list):
        return "".join(
            f"{pad}- {_yaml(item, indent + 2).lstrip()}"
            if isinstance(item, dict | list)
            else f"{pad}- {json.dumps(item)}\n"
            for item in value
        )
    return json.dumps(value) + "\n"

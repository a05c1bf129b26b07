"""From API v2 to Knative (API v1), in which everything is kept."""

from __future__ import annotations

import json
from typing import Any

from backends.rehearsal.cloud.run.shape import (
    ACCELERATOR,
    CPU_THROTTLING,
    EGRESS,
    ENVIRONMENT,
    INTERFACES,
    INVOKER_CHECK_DISABLED,
    MANUAL_COUNT,
    MAX_SCALE,
    MIN_SCALE,
    SCALING_MODE,
    SERVICE_MAX_SCALE,
    SERVICE_MIN_SCALE,
    ZONAL_DISABLED,
)
from backends.rehearsal.cloud.run.v2_names import (
    AFFINITY,
    BOOST,
    CLIENT,
    CLIENT_VERSION,
    DESCRIPTION,
    EGRESSES,
    ENVIRONMENTS,
    GCSFUSE,
    INGRESS,
    INGRESSES,
    LATEST,
    STAGE,
    SYSTEM,
    back,
    without_empty,
)
from backends.rehearsal.cloud.web import Json


def service_from_v2(service: Json, name: str, old: Json | None) -> Json:
    """A service of API v2 in API v1.

    Args:
        service: As it was sent.
        name: Its short name.
        old: What it was before, for annotations that API v2 does not know.
    """
    annotations: Json = {
        key: value
        for key, value in ((old or {}).get("metadata", {}).get("annotations") or {}).items()
        if key.startswith(SYSTEM) and key not in _FROM_V2
    }
    annotations |= service.get("annotations") or {}
    scaling = service.get("scaling") or {}
    manual = scaling.get("scalingMode") in {"MANUAL", 2}
    fields: Json = {
        INGRESS: back(INGRESSES, service.get("ingress")) or "all",
        STAGE: "" if service.get("launchStage") in {None, "GA", 4} else service["launchStage"],
        CLIENT: service.get("client"),
        CLIENT_VERSION: service.get("clientVersion"),
        DESCRIPTION: service.get("description"),
        SERVICE_MIN_SCALE: _text(scaling.get("minInstanceCount")),
        SERVICE_MAX_SCALE: _text(scaling.get("maxInstanceCount")),
        SCALING_MODE: "manual" if manual else "automatic",
        MANUAL_COUNT: str(scaling.get("manualInstanceCount") or 0) if manual else "",
        INVOKER_CHECK_DISABLED: "true" if service.get("invokerIamDisabled") else "",
    }
    annotations |= without_empty(fields)
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "labels": dict(service.get("labels") or {}),
            "annotations": annotations,
        },
        "spec": {
            "template": template_from_v2(service.get("template") or {}),
            "traffic": [_traffic_from_v2(item) for item in service.get("traffic") or []],
        },
    }


_FROM_V2 = {
    INGRESS,
    STAGE,
    CLIENT,
    CLIENT_VERSION,
    DESCRIPTION,
    SERVICE_MIN_SCALE,
    SERVICE_MAX_SCALE,
    SCALING_MODE,
    MANUAL_COUNT,
    INVOKER_CHECK_DISABLED,
}


def _text(value: Any) -> str:  # noqa: ANN401 (JSON)
    return str(value) if value else ""


def _traffic_from_v2(target: Json) -> Json:
    latest = target.get("type") in {LATEST, 1}
    return without_empty(
        {
            "latestRevision": latest or None,
            "revisionName": None if latest else str(target.get("revision", "")).rpartition("/")[2],
            "percent": target.get("percent"),
            "tag": target.get("tag"),
        }
    )


def template_from_v2(template: Json) -> Json:
    """A revision template of API v2 in API v1."""
    scaling = template.get("scaling") or {}
    access = template.get("vpcAccess") or {}
    containers = template.get("containers") or []
    resources = (containers[0].get("resources") or {}) if containers else {}
    fields: Json = {
        MIN_SCALE: _text(scaling.get("minInstanceCount")),
        MAX_SCALE: _text(scaling.get("maxInstanceCount")),
        EGRESS: back(EGRESSES, access.get("egress")),
        INTERFACES: json.dumps(access["networkInterfaces"])
        if access.get("networkInterfaces")
        else "",
        ENVIRONMENT: back(ENVIRONMENTS, template.get("executionEnvironment")),
        ZONAL_DISABLED: "true" if template.get("gpuZonalRedundancyDisabled") else "",
        AFFINITY: "true" if template.get("sessionAffinity") else "",
        BOOST: "true" if resources.get("startupCpuBoost") else "",
        CPU_THROTTLING: str(resources["cpuIdle"]).lower() if "cpuIdle" in resources else "",
    }
    accelerator = (template.get("nodeSelector") or {}).get("accelerator")
    timeout = str(template.get("timeout") or "").rstrip("s")
    spec = without_empty(
        {
            "containerConcurrency": template.get("maxInstanceRequestConcurrency"),
            "timeoutSeconds": int(float(timeout)) if timeout else None,
            "serviceAccountName": template.get("serviceAccount"),
            "containers": [_container_from_v2(item) for item in containers],
            "volumes": [_volume_from_v2(item) for item in template.get("volumes") or []],
            "nodeSelector": {ACCELERATOR: accelerator} if accelerator else None,
        }
    )
    meta = without_empty(
        {
            "name": template.get("revision"),
            "labels": dict(template.get("labels") or {}),
            "annotations": (template.get("annotations") or {}) | without_empty(fields),
        }
    )
    return {"metadata": meta, "spec": spec}


def _container_from_v2(container: Json) -> Json:
    limits = (container.get("resources") or {}).get("limits")
    return without_empty(
        {
            "name": container.get("name"),
            "image": container.get("image"),
            "command": container.get("command"),
            "args": container.get("args"),
            "env": [_env_from_v2(item) for item in container.get("env") or []],
            "resources": {"limits": limits} if limits else None,
            "ports": container.get("ports"),
            "volumeMounts": container.get("volumeMounts"),
            "startupProbe": container.get("startupProbe"),
            "livenessProbe": container.get("livenessProbe"),
            "workingDir": container.get("workingDir"),
        }
    )


def _env_from_v2(item: Json) -> Json:
    reference = (item.get("valueSource") or {}).get("secretKeyRef")
    if reference is None:
        return {"name": item["name"], "value": str(item.get("value", ""))}
    return {
        "name": item["name"],
        "valueFrom": {
            "secretKeyRef": {
                "name": str(reference["secret"]).rpartition("/")[2],
                "key": str(reference.get("version") or "latest"),
            }
        },
    }


def _volume_from_v2(volume: Json) -> Json:
    made: Json = {"name": volume["name"]}
    if "gcs" in volume:
        gcs = volume["gcs"]
        made["csi"] = {
            "driver": GCSFUSE,
            "readOnly": bool(gcs.get("readOnly")),
            "volumeAttributes": without_empty(
                {
                    "bucketName": gcs.get("bucket"),
                    "mountOptions": ",".join(gcs.get("mountOptions") or []),
                }
            ),
        }
    elif "secret" in volume:
        secret = volume["secret"]
        made["secret"] = without_empty(
            {
                "secretName": str(secret.get("secret", "")).rpartition("/")[2],
                "items": [
                    {"path": item.get("path"), "key": str(item.get("version") or "latest")}
                    for item in secret.get("items") or []
                ],
                "defaultMode": secret.get("defaultMode"),
            }
        )
    elif "emptyDir" in volume:
        empty = volume["emptyDir"]
        made["emptyDir"] = without_empty(
            {
                "medium": "Memory" if empty.get("medium") in {"MEMORY", 1} else "",
                "sizeLimit": empty.get("sizeLimit"),
            }
        )
    elif "nfs" in volume:
        made["nfs"] = volume["nfs"]
    return made

"""Cloud Run's two languages: Knative (API v1), in which everything is kept, and API v2."""

from __future__ import annotations

import json
from typing import Any

from backends.rehearsal.cloud.run.shape import (
    ACCELERATOR,
    CPU_THROTTLING,
    CREATOR,
    EGRESS,
    ENVIRONMENT,
    INTERFACES,
    INVOKER_CHECK_DISABLED,
    LOCATION,
    MANUAL_COUNT,
    MAX_SCALE,
    MIN_SCALE,
    MODIFIER,
    SCALING_MODE,
    SERVICE_MAX_SCALE,
    SERVICE_MIN_SCALE,
    ZONAL_DISABLED,
    truth,
)
from backends.rehearsal.cloud.web import Json

_BOOST = "run.googleapis.com/startup-cpu-boost"
_INGRESS = "run.googleapis.com/ingress"
_STAGE = "run.googleapis.com/launch-stage"
_CLIENT = "run.googleapis.com/client-name"
_CLIENT_VERSION = "run.googleapis.com/client-version"
_DESCRIPTION = "run.googleapis.com/description"
_AFFINITY = "run.googleapis.com/sessionAffinity"
_GCSFUSE = "gcsfuse.run.googleapis.com"

_INGRESSES = {
    "all": "INGRESS_TRAFFIC_ALL",
    "internal": "INGRESS_TRAFFIC_INTERNAL_ONLY",
    "internal-and-cloud-load-balancing": "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER",
}
_EGRESSES = {"all-traffic": "ALL_TRAFFIC", "private-ranges-only": "PRIVATE_RANGES_ONLY"}
_ENVIRONMENTS = {"gen1": "EXECUTION_ENVIRONMENT_GEN1", "gen2": "EXECUTION_ENVIRONMENT_GEN2"}
_STATES = {
    "True": "CONDITION_SUCCEEDED",
    "False": "CONDITION_FAILED",
    "Unknown": "CONDITION_RECONCILING",
}
_LATEST = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
_REVISION = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"

# Annotations and labels that API v2 has fields of its own for, or does not show.
_SYSTEM = ("run.googleapis.com/", "serving.knative.dev/", "autoscaling.knative.dev/")


def _own(values: Json | None) -> Json:
    return {
        name: value
        for name, value in (values or {}).items()
        if not name.startswith(_SYSTEM) and name not in {LOCATION, "client.knative.dev/nonce"}
    }


def _without_empty(values: Json) -> Json:
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}


def _back(table: dict[str, str], value: object) -> str:
    return next((key for key, name in table.items() if name == value), "")


# ----------------------------------------------------------------------------------- to v2


def service_to_v2(service: Json, project: str, region: str, *, reconciling: bool) -> Json:
    """A service in API v2."""
    meta, status = service["metadata"], service["status"]
    annotations = meta.get("annotations") or {}
    parent = f"projects/{project}/locations/{region}/services/{meta['name']}"

    def full(revision: str | None) -> str:
        return f"{parent}/revisions/{revision}" if revision else ""

    conditions = [condition_to_v2(item) for item in status.get("conditions", [])]
    ready = next((item for item in conditions if item["type"] == "Ready"), {})
    urls = json.loads(annotations.get("run.googleapis.com/urls", "[]"))
    return _without_empty(
        {
            "name": parent,
            "description": annotations.get(_DESCRIPTION),
            "uid": meta["uid"],
            "generation": str(meta["generation"]),
            "labels": _own(meta.get("labels")),
            "annotations": _own(annotations),
            "createTime": meta["creationTimestamp"],
            "updateTime": ready.get("lastTransitionTime", meta["creationTimestamp"]),
            "deleteTime": meta.get("deletionTimestamp"),
            "creator": annotations.get(CREATOR),
            "lastModifier": annotations.get(MODIFIER),
            "client": annotations.get(_CLIENT),
            "clientVersion": annotations.get(_CLIENT_VERSION),
            "ingress": _INGRESSES.get(annotations.get(_INGRESS, "all")),
            "launchStage": annotations.get(_STAGE, "GA"),
            "template": template_to_v2(service["spec"]["template"]),
            "traffic": [_traffic_to_v2(item) for item in service["spec"].get("traffic", [])],
            "scaling": _scaling_to_v2(annotations),
            "invokerIamDisabled": truth(annotations.get(INVOKER_CHECK_DISABLED)) or None,
            "uri": status.get("url"),
            "urls": urls,
            "observedGeneration": str(status.get("observedGeneration", 0)),
            "terminalCondition": ready,
            "conditions": [item for item in conditions if item["type"] != "Ready"],
            "latestReadyRevision": full(status.get("latestReadyRevisionName")),
            "latestCreatedRevision": full(status.get("latestCreatedRevisionName")),
            "trafficStatuses": [
                _traffic_to_v2(item) | _without_empty({"uri": item.get("url")})
                for item in status.get("traffic", [])
            ],
            "reconciling": reconciling or None,
            "etag": f'"{meta["resourceVersion"]}"',
        }
    )


def _scaling_to_v2(annotations: Json) -> Json:
    manual = str(annotations.get(SCALING_MODE, "")).lower() == "manual"
    scaling: Json = _without_empty(
        {
            "minInstanceCount": int(annotations.get(SERVICE_MIN_SCALE) or 0) or None,
            "maxInstanceCount": int(annotations.get(SERVICE_MAX_SCALE) or 0) or None,
            "scalingMode": "MANUAL" if manual else "AUTOMATIC",
        }
    )
    if manual:
        # Zero means something here: the service is disabled.
        scaling["manualInstanceCount"] = int(annotations.get(MANUAL_COUNT) or 0)
    return scaling


def _traffic_to_v2(target: Json) -> Json:
    return _without_empty(
        {
            "type": _LATEST if target.get("latestRevision") else _REVISION,
            "revision": None if target.get("latestRevision") else target.get("revisionName"),
            "percent": target.get("percent"),
            "tag": target.get("tag"),
        }
    )


def template_to_v2(template: Json) -> Json:
    """A revision template in API v2."""
    meta = template.get("metadata") or {}
    return _without_empty(
        {
            "revision": meta.get("name"),
            "labels": _own(meta.get("labels")),
            "annotations": _own(meta.get("annotations")),
        }
    ) | _spec_to_v2(meta.get("annotations") or {}, template["spec"])


def _spec_to_v2(annotations: Json, spec: Json) -> Json:
    timeout = spec.get("timeoutSeconds")
    interfaces = json.loads(annotations.get(INTERFACES, "[]"))
    return _without_empty(
        {
            "scaling": _without_empty(
                {
                    "minInstanceCount": int(annotations.get(MIN_SCALE) or 0) or None,
                    "maxInstanceCount": int(annotations.get(MAX_SCALE) or 0) or None,
                }
            ),
            "vpcAccess": _without_empty(
                {
                    "egress": _EGRESSES.get(annotations.get(EGRESS, "")),
                    "networkInterfaces": [
                        _without_empty(
                            {
                                "network": item.get("network"),
                                "subnetwork": item.get("subnetwork"),
                                "tags": item.get("tags"),
                            }
                        )
                        for item in interfaces
                    ],
                }
            ),
            "timeout": f"{timeout}s" if timeout else None,
            "serviceAccount": spec.get("serviceAccountName"),
            "containers": [
                _container_to_v2(item, annotations) for item in spec.get("containers", [])
            ],
            "volumes": [_volume_to_v2(item) for item in spec.get("volumes", [])],
            "executionEnvironment": _ENVIRONMENTS.get(annotations.get(ENVIRONMENT, "")),
            "maxInstanceRequestConcurrency": spec.get("containerConcurrency"),
            "sessionAffinity": truth(annotations.get(_AFFINITY)) or None,
            "nodeSelector": _without_empty(
                {"accelerator": (spec.get("nodeSelector") or {}).get(ACCELERATOR)}
            ),
            "gpuZonalRedundancyDisabled": truth(annotations.get(ZONAL_DISABLED)) or None,
        }
    )


def _container_to_v2(container: Json, annotations: Json) -> Json:
    limits = (container.get("resources") or {}).get("limits") or {}
    throttled = annotations.get(CPU_THROTTLING)
    return _without_empty(
        {
            "name": container.get("name"),
            "image": container.get("image"),
            "command": container.get("command"),
            "args": container.get("args"),
            "env": [_env_to_v2(item) for item in container.get("env", [])],
            "resources": _without_empty(
                {
                    "limits": limits,
                    "cpuIdle": None if throttled is None else truth(throttled),
                    "startupCpuBoost": truth(annotations.get(_BOOST)) or None,
                }
            ),
            "ports": container.get("ports"),
            "volumeMounts": container.get("volumeMounts"),
            "startupProbe": container.get("startupProbe"),
            "livenessProbe": container.get("livenessProbe"),
            "workingDir": container.get("workingDir"),
        }
    )


def _env_to_v2(item: Json) -> Json:
    reference = (item.get("valueFrom") or {}).get("secretKeyRef")
    if reference is None:
        return {"name": item["name"], "value": str(item.get("value", ""))}
    return {
        "name": item["name"],
        "valueSource": {
            "secretKeyRef": {
                "secret": reference["name"],
                "version": str(reference.get("key", "latest")),
            }
        },
    }


def _volume_to_v2(volume: Json) -> Json:
    made: Json = {"name": volume["name"]}
    if "csi" in volume:
        attributes = volume["csi"].get("volumeAttributes") or {}
        made["gcs"] = _without_empty(
            {
                "bucket": attributes.get("bucketName"),
                "readOnly": bool(volume["csi"].get("readOnly")) or None,
                "mountOptions": [
                    option for option in attributes.get("mountOptions", "").split(",") if option
                ],
            }
        )
    elif "secret" in volume:
        secret = volume["secret"]
        made["secret"] = _without_empty(
            {
                "secret": secret.get("secretName"),
                "items": [
                    {"path": item.get("path"), "version": str(item.get("key", "latest"))}
                    for item in secret.get("items", [])
                ],
                "defaultMode": secret.get("defaultMode"),
            }
        )
    elif "emptyDir" in volume:
        empty = volume["emptyDir"] or {}
        made["emptyDir"] = _without_empty(
            {"medium": str(empty.get("medium", "")).upper(), "sizeLimit": empty.get("sizeLimit")}
        )
    elif "nfs" in volume:
        made["nfs"] = volume["nfs"]
    return made


def condition_to_v2(condition: Json) -> Json:
    """A condition in API v2."""
    made = _without_empty(
        {
            "type": condition["type"],
            "state": _STATES[condition["status"]],
            "message": condition.get("message"),
            "lastTransitionTime": condition["lastTransitionTime"],
        }
    )
    reason = condition.get("reason", "")
    if reason:
        known = _REASONS.get(reason)
        made["revisionReason" if reason in _REVISION_REASONS else "reason"] = known or "UNKNOWN"
    return made


# Reasons that API v2 names by an enum.
_REASONS = {
    "HealthCheckContainerError": "HEALTH_CHECK_CONTAINER_ERROR",
    "ContainerMissing": "CONTAINER_MISSING",
    "SecretsAccessCheckFailed": "SECRETS_ACCESS_CHECK_FAILED",
    "Retired": "RETIRED",
}
_REVISION_REASONS = {"HealthCheckContainerError", "Retired"}


def revision_to_v2(revision: Json, project: str, region: str) -> Json:
    """A revision in API v2."""
    meta, status = revision["metadata"], revision["status"]
    labels = meta["labels"]
    service = labels["serving.knative.dev/service"]
    name = f"projects/{project}/locations/{region}/services/{service}/revisions/{meta['name']}"
    conditions = [condition_to_v2(item) for item in status["conditions"]]
    return _without_empty(
        {
            "name": name,
            "uid": meta["uid"],
            "generation": str(meta["generation"]),
            "labels": _own(labels),
            "annotations": _own(meta.get("annotations")),
            "createTime": meta["creationTimestamp"],
            "updateTime": conditions[0]["lastTransitionTime"],
            "service": service,
            "conditions": conditions,
            "observedGeneration": "1",
            "logUri": status.get("logUrl"),
            "reconciling": any(item["state"] == "CONDITION_RECONCILING" for item in conditions)
            or None,
            "etag": f'"{meta["resourceVersion"]}"',
        }
    ) | _spec_to_v2(meta.get("annotations") or {}, revision["spec"])


# ----------------------------------------------------------------------------------- from v2


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
        if key.startswith(_SYSTEM) and key not in _FROM_V2
    }
    annotations |= service.get("annotations") or {}
    scaling = service.get("scaling") or {}
    manual = scaling.get("scalingMode") in {"MANUAL", 2}
    fields: Json = {
        _INGRESS: _back(_INGRESSES, service.get("ingress")) or "all",
        _STAGE: "" if service.get("launchStage") in {None, "GA", 4} else service["launchStage"],
        _CLIENT: service.get("client"),
        _CLIENT_VERSION: service.get("clientVersion"),
        _DESCRIPTION: service.get("description"),
        SERVICE_MIN_SCALE: _text(scaling.get("minInstanceCount")),
        SERVICE_MAX_SCALE: _text(scaling.get("maxInstanceCount")),
        SCALING_MODE: "manual" if manual else "automatic",
        MANUAL_COUNT: str(scaling.get("manualInstanceCount") or 0) if manual else "",
        INVOKER_CHECK_DISABLED: "true" if service.get("invokerIamDisabled") else "",
    }
    annotations |= _without_empty(fields)
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
    _INGRESS,
    _STAGE,
    _CLIENT,
    _CLIENT_VERSION,
    _DESCRIPTION,
    SERVICE_MIN_SCALE,
    SERVICE_MAX_SCALE,
    SCALING_MODE,
    MANUAL_COUNT,
    INVOKER_CHECK_DISABLED,
}


def _text(value: Any) -> str:  # noqa: ANN401 (JSON)
    return str(value) if value else ""


def _traffic_from_v2(target: Json) -> Json:
    latest = target.get("type") in {_LATEST, 1}
    return _without_empty(
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
        EGRESS: _back(_EGRESSES, access.get("egress")),
        INTERFACES: json.dumps(access["networkInterfaces"])
        if access.get("networkInterfaces")
        else "",
        ENVIRONMENT: _back(_ENVIRONMENTS, template.get("executionEnvironment")),
        ZONAL_DISABLED: "true" if template.get("gpuZonalRedundancyDisabled") else "",
        _AFFINITY: "true" if template.get("sessionAffinity") else "",
        _BOOST: "true" if resources.get("startupCpuBoost") else "",
        CPU_THROTTLING: str(resources["cpuIdle"]).lower() if "cpuIdle" in resources else "",
    }
    accelerator = (template.get("nodeSelector") or {}).get("accelerator")
    timeout = str(template.get("timeout") or "").rstrip("s")
    spec = _without_empty(
        {
            "containerConcurrency": template.get("maxInstanceRequestConcurrency"),
            "timeoutSeconds": int(float(timeout)) if timeout else None,
            "serviceAccountName": template.get("serviceAccount"),
            "containers": [_container_from_v2(item) for item in containers],
            "volumes": [_volume_from_v2(item) for item in template.get("volumes") or []],
            "nodeSelector": {ACCELERATOR: accelerator} if accelerator else None,
        }
    )
    meta = _without_empty(
        {
            "name": template.get("revision"),
            "labels": dict(template.get("labels") or {}),
            "annotations": (template.get("annotations") or {}) | _without_empty(fields),
        }
    )
    return {"metadata": meta, "spec": spec}


def _container_from_v2(container: Json) -> Json:
    limits = (container.get("resources") or {}).get("limits")
    return _without_empty(
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
            "driver": _GCSFUSE,
            "readOnly": bool(gcs.get("readOnly")),
            "volumeAttributes": _without_empty(
                {
                    "bucketName": gcs.get("bucket"),
                    "mountOptions": ",".join(gcs.get("mountOptions") or []),
                }
            ),
        }
    elif "secret" in volume:
        secret = volume["secret"]
        made["secret"] = _without_empty(
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
        made["emptyDir"] = _without_empty(
            {
                "medium": "Memory" if empty.get("medium") in {"MEMORY", 1} else "",
                "sizeLimit": empty.get("sizeLimit"),
            }
        )
    elif "nfs" in volume:
        made["nfs"] = volume["nfs"]
    return made

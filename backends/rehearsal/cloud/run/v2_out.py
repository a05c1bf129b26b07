"""From Knative (API v1), in which everything is kept, to API v2."""

from __future__ import annotations

import json

from backends.rehearsal.cloud.run.shape import (
    ACCELERATOR,
    CPU_THROTTLING,
    CREATOR,
    EGRESS,
    ENVIRONMENT,
    INTERFACES,
    INVOKER_CHECK_DISABLED,
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
from backends.rehearsal.cloud.run.v2_names import (
    AFFINITY,
    BOOST,
    CLIENT,
    CLIENT_VERSION,
    DESCRIPTION,
    EGRESSES,
    ENVIRONMENTS,
    INGRESS,
    INGRESSES,
    LATEST,
    REVISION,
    STAGE,
    own,
    without_empty,
)
from backends.rehearsal.cloud.web import Json

_STATES = {
    "True": "CONDITION_SUCCEEDED",
    "False": "CONDITION_FAILED",
    "Unknown": "CONDITION_RECONCILING",
}


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
    return without_empty(
        {
            "name": parent,
            "description": annotations.get(DESCRIPTION),
            "uid": meta["uid"],
            "generation": str(meta["generation"]),
            "labels": own(meta.get("labels")),
            "annotations": own(annotations),
            "createTime": meta["creationTimestamp"],
            "updateTime": ready.get("lastTransitionTime", meta["creationTimestamp"]),
            "deleteTime": meta.get("deletionTimestamp"),
            "creator": annotations.get(CREATOR),
            "lastModifier": annotations.get(MODIFIER),
            "client": annotations.get(CLIENT),
            "clientVersion": annotations.get(CLIENT_VERSION),
            "ingress": INGRESSES.get(annotations.get(INGRESS, "all")),
            "launchStage": annotations.get(STAGE, "GA"),
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
                _traffic_to_v2(item) | without_empty({"uri": item.get("url")})
                for item in status.get("traffic", [])
            ],
            "reconciling": reconciling or None,
            "etag": f'"{meta["resourceVersion"]}"',
        }
    )


def _scaling_to_v2(annotations: Json) -> Json:
    manual = str(annotations.get(SCALING_MODE, "")).lower() == "manual"
    scaling: Json = without_empty(
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
    return without_empty(
        {
            "type": LATEST if target.get("latestRevision") else REVISION,
            "revision": None if target.get("latestRevision") else target.get("revisionName"),
            "percent": target.get("percent"),
            "tag": target.get("tag"),
        }
    )


def template_to_v2(template: Json) -> Json:
    """A revision template in API v2."""
    meta = template.get("metadata") or {}
    return without_empty(
        {
            "revision": meta.get("name"),
            "labels": own(meta.get("labels")),
            "annotations": own(meta.get("annotations")),
        }
    ) | _spec_to_v2(meta.get("annotations") or {}, template["spec"])


def _spec_to_v2(annotations: Json, spec: Json) -> Json:
    timeout = spec.get("timeoutSeconds")
    interfaces = json.loads(annotations.get(INTERFACES, "[]"))
    return without_empty(
        {
            "scaling": without_empty(
                {
                    "minInstanceCount": int(annotations.get(MIN_SCALE) or 0) or None,
                    "maxInstanceCount": int(annotations.get(MAX_SCALE) or 0) or None,
                }
            ),
            "vpcAccess": without_empty(
                {
                    "egress": EGRESSES.get(annotations.get(EGRESS, "")),
                    "networkInterfaces": [
                        without_empty(
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
            "executionEnvironment": ENVIRONMENTS.get(annotations.get(ENVIRONMENT, "")),
            "maxInstanceRequestConcurrency": spec.get("containerConcurrency"),
            "sessionAffinity": truth(annotations.get(AFFINITY)) or None,
            "nodeSelector": without_empty(
                {"accelerator": (spec.get("nodeSelector") or {}).get(ACCELERATOR)}
            ),
            "gpuZonalRedundancyDisabled": truth(annotations.get(ZONAL_DISABLED)) or None,
        }
    )


def _container_to_v2(container: Json, annotations: Json) -> Json:
    limits = (container.get("resources") or {}).get("limits") or {}
    throttled = annotations.get(CPU_THROTTLING)
    return without_empty(
        {
            "name": container.get("name"),
            "image": container.get("image"),
            "command": container.get("command"),
            "args": container.get("args"),
            "env": [_env_to_v2(item) for item in container.get("env", [])],
            "resources": without_empty(
                {
                    "limits": limits,
                    "cpuIdle": None if throttled is None else truth(throttled),
                    "startupCpuBoost": truth(annotations.get(BOOST)) or None,
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
        made["gcs"] = without_empty(
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
        made["secret"] = without_empty(
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
        made["emptyDir"] = without_empty(
            {"medium": str(empty.get("medium", "")).upper(), "sizeLimit": empty.get("sizeLimit")}
        )
    elif "nfs" in volume:
        made["nfs"] = volume["nfs"]
    return made


def condition_to_v2(condition: Json) -> Json:
    """A condition in API v2."""
    made = without_empty(
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
    return without_empty(
        {
            "name": name,
            "uid": meta["uid"],
            "generation": str(meta["generation"]),
            "labels": own(labels),
            "annotations": own(meta.get("annotations")),
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

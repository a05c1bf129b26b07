"""Revisions made from templates, and when two templates are the same."""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.run.conditions import UNKNOWN, condition
from backends.rehearsal.cloud.run.names import Key
from backends.rehearsal.cloud.run.shape import CREATOR, LOCATION, MODIFIER, read_shape
from backends.rehearsal.cloud.web import Json
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World

API = "serving.knative.dev/v1"
KNATIVE = "serving.knative.dev"
OPERATION = "run.googleapis.com/operation-id"
_NONCE = "client.knative.dev/nonce"

# What Cloud Run adds to a revision's own labels and annotations.
_ADDED = (CREATOR, MODIFIER, OPERATION, LOCATION)


def content(meta: Json, spec: Json | None = None) -> Json:
    """What makes two templates the same: spec, labels and annotations, without the added ones."""
    if spec is None:
        meta, spec = meta.get("metadata") or {}, meta["spec"]

    def own(values: Json | None) -> Json:
        return {
            name: value
            for name, value in (values or {}).items()
            if name not in _ADDED
            and not name.startswith((f"{KNATIVE}/", "run.googleapis.com/client-"))
            and name != _NONCE
        }

    return {
        "labels": own(meta.get("labels")),
        "annotations": own(meta.get("annotations")),
        "spec": spec,
    }


def nonce(meta: Json) -> str:
    """The mark by which gcloud asks for a new revision."""
    return str((meta.get("labels") or {}).get(_NONCE, ""))


def _digest(image: str) -> str:
    repository = image.partition("@")[0]
    return (
        f"{repository.rpartition(':')[0] or repository}@sha256:"
        + hashlib.sha256(image.encode()).hexdigest()
    )


def log_url(project: str, service: str, revision: str) -> str:
    """Where the console shows a revision's log."""
    return (
        f"https://console.cloud.google.com/logs/viewer?project={project}&resource="
        f"cloud_run_revision/service_name/{service}/revision_name/{revision}&advancedFilter="
        "resource.type%3D%22cloud_run_revision%22%0Aresource.labels.service_name%3D%22"
        f"{service}%22%0Aresource.labels.revision_name%3D%22{revision}%22"
    )


def make_revision(world: World, key: Key, service: Json, name: str, account: str) -> Json:
    """A revision of a service's template, not yet ready."""
    template = service["spec"]["template"]
    meta = template["metadata"]
    return {
        "apiVersion": API,
        "kind": "Revision",
        "metadata": {
            "name": name,
            "namespace": world.number,
            "uid": world.uid(),
            "resourceVersion": f"AAZ{world.next():08x}",
            "selfLink": f"/apis/{API}/namespaces/{world.number}/revisions/{name}",
            "generation": 1,
            "creationTimestamp": now(),
            "labels": {
                **(meta.get("labels") or {}),
                f"{KNATIVE}/service": key.name,
                f"{KNATIVE}/configuration": key.name,
                f"{KNATIVE}/route": key.name,
                f"{KNATIVE}/configurationGeneration": str(service["metadata"]["generation"]),
                f"{KNATIVE}/serviceUid": service["metadata"]["uid"],
                LOCATION: key.region,
            },
            "annotations": {
                **(meta.get("annotations") or {}),
                CREATOR: account,
                OPERATION: service["metadata"]["annotations"][OPERATION],
            },
            "ownerReferences": [
                {
                    "apiVersion": API,
                    "kind": "Configuration",
                    "name": key.name,
                    "uid": service["metadata"]["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": copy.deepcopy(template["spec"]),
        "status": {
            "observedGeneration": 1,
            "logUrl": log_url(world.project, key.name, name),
            "imageDigest": _digest(read_shape(template).image),
            "conditions": [
                condition("Ready", UNKNOWN, "Deploying", "Deploying Revision."),
                condition("ResourcesAvailable", UNKNOWN, "Deploying", "Provisioning."),
                condition("ContainerReady", UNKNOWN, "Deploying", "Deploying Revision."),
                condition("ContainerHealthy", UNKNOWN, "Deploying", "Deploying Revision."),
            ],
        },
    }

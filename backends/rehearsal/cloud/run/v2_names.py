"""Names that Cloud Run's two APIs have for the same things."""

from __future__ import annotations

from backends.rehearsal.cloud.run.shape import LOCATION
from backends.rehearsal.cloud.web import Json

BOOST = "run.googleapis.com/startup-cpu-boost"
INGRESS = "run.googleapis.com/ingress"
STAGE = "run.googleapis.com/launch-stage"
CLIENT = "run.googleapis.com/client-name"
CLIENT_VERSION = "run.googleapis.com/client-version"
DESCRIPTION = "run.googleapis.com/description"
AFFINITY = "run.googleapis.com/sessionAffinity"
GCSFUSE = "gcsfuse.run.googleapis.com"

INGRESSES = {
    "all": "INGRESS_TRAFFIC_ALL",
    "internal": "INGRESS_TRAFFIC_INTERNAL_ONLY",
    "internal-and-cloud-load-balancing": "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER",
}
EGRESSES = {"all-traffic": "ALL_TRAFFIC", "private-ranges-only": "PRIVATE_RANGES_ONLY"}
ENVIRONMENTS = {"gen1": "EXECUTION_ENVIRONMENT_GEN1", "gen2": "EXECUTION_ENVIRONMENT_GEN2"}
LATEST = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
REVISION = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"

# Annotations and labels that API v2 has fields of its own for, or does not show.
SYSTEM = ("run.googleapis.com/", "serving.knative.dev/", "autoscaling.knative.dev/")


def own(values: Json | None) -> Json:
    """Labels or annotations that are the user's."""
    return {
        name: value
        for name, value in (values or {}).items()
        if not name.startswith(SYSTEM) and name not in {LOCATION, "client.knative.dev/nonce"}
    }


def without_empty(values: Json) -> Json:
    """Without fields that hold nothing, which API v2 leaves out."""
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}


def back(table: dict[str, str], value: object) -> str:
    """The Knative word for an enum of API v2; empty where there is none."""
    return next((key for key, name in table.items() if name == value), "")

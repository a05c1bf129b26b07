"""Conditions of services and revisions, as Knative writes them."""

from __future__ import annotations

from backends.rehearsal.cloud.web import Json
from backends.rehearsal.cloud.world import now

UNKNOWN, TRUE, FALSE = "Unknown", "True", "False"


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Json:
    """One condition of a service or revision."""
    made: Json = {"type": kind, "status": status, "lastTransitionTime": now()}
    if reason:
        made["reason"] = reason
    if message:
        made["message"] = message
    return made


def condition_of(resource: Json, kind: str = "Ready") -> Json:
    """A condition of a resource, by type; empty where it has none of that type."""
    conditions: list[Json] = resource.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


def is_ready(resource: Json) -> bool:
    """Whether a service or revision is ready."""
    return bool(condition_of(resource).get("status") == TRUE)


def set_condition(resource: Json, made: Json) -> None:
    """Put a condition in; the time of one that has not changed stays."""
    conditions: list[Json] = resource["status"]["conditions"]
    for index, known in enumerate(conditions):
        if known["type"] == made["type"]:
            same = all(
                known.get(name) == made.get(name) for name in ("status", "reason", "message")
            )
            if not same:
                conditions[index] = made
            return
    conditions.append(made)

"""What a service's status says, worked out from its spec and its revisions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.run import names
from backends.rehearsal.cloud.run.conditions import (
    FALSE,
    TRUE,
    UNKNOWN,
    condition,
    condition_of,
    is_ready,
    set_condition,
)
from backends.rehearsal.cloud.run.names import Key
from backends.rehearsal.cloud.run.shape import read_shape
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World


def route(world: World, key: Key, service: Json) -> tuple[list[Json], str]:
    """Status traffic, and the first revision it waits for (empty: none)."""
    status = service["status"]
    before = status.get("traffic", [])
    routed: list[Json] = []
    waiting = ""
    for wanted in service["spec"]["traffic"]:
        target = {name: value for name, value in wanted.items() if name != "url"}
        if target.get("latestRevision"):
            target["revisionName"] = status.get("latestReadyRevisionName", "")
            if target["revisionName"] != status["latestCreatedRevisionName"]:
                waiting = waiting or status["latestCreatedRevisionName"]
        name = target.get("revisionName", "")
        revision = world.revisions.get(f"{key.region}/{name}")
        if not name or revision is None or not is_ready(revision):
            waiting = waiting or name or status["latestCreatedRevisionName"]
        if not name:
            target.pop("revisionName", None)
        if target.get("tag"):
            target["url"] = names.url(world.number, key, target["tag"])
        routed.append(target)
    ready = all(
        is_ready(world.revisions.get(f"{key.region}/{item.get('revisionName')}", {}))
        for item in routed
        if item.get("percent")
    )
    # Traffic moves only to what can take it; tags appear at once.
    if not ready and any(item.get("percent") for item in before):
        tags = [item for item in routed if item.get("tag") and not item.get("percent")]
        kept = [item for item in before if item.get("percent")]
        return [*kept, *tags], waiting
    return routed, waiting


def set_conditions(service: Json, created: Json | None, waiting: str) -> None:
    """Set Ready and what it stands on.

    Args:
        service: The service.
        created: Its latest revision.
        waiting: The revision that traffic waits for; empty: none.
    """
    ready = condition_of(created or {})
    state = ready.get("status", UNKNOWN)
    reason, message = ready.get("reason", ""), ready.get("message", "")
    if state == FALSE:
        name = service["status"]["latestCreatedRevisionName"]
        message = f"Revision '{name}' is not ready and cannot serve traffic. {message}"
    if state == TRUE:
        reason = message = ""
    set_condition(service, condition("ConfigurationsReady", state, reason, message))
    routes = UNKNOWN if waiting else TRUE
    if waiting and state == FALSE:
        routes = FALSE if waiting == service["status"]["latestCreatedRevisionName"] else routes
    set_condition(
        service,
        condition("RoutesReady", routes, reason if waiting else "", message if waiting else ""),
    )
    both = {state, routes}
    whole = FALSE if FALSE in both else UNKNOWN if UNKNOWN in both else TRUE
    set_condition(service, condition("Ready", whole, reason, message))
    service["status"]["conditions"].sort(
        key=lambda item: ("Ready", "ConfigurationsReady", "RoutesReady").index(item["type"])
    )


def wanted(service: Json) -> set[str]:
    """Revisions that have to stay up: those with traffic or a tag, and the latest."""
    status = service["status"]
    named = {
        item["revisionName"]
        for item in [*status.get("traffic", []), *service["spec"]["traffic"]]
        if item.get("revisionName")
    }
    return named | {status["latestCreatedRevisionName"]}


def kept_instances(world: World, key: Key, service: Json) -> int:
    """Most instances of the revisions that keep traffic or a tag beside a new template."""
    template = service["spec"]["template"]
    asked = template["metadata"].get("name", "")
    known = world.revisions.get(f"{key.region}/{asked}")
    if known is not None:
        # Only traffic or scaling changes: nothing further is started.
        return 0
    kept = {
        item["revisionName"]
        for item in service["spec"]["traffic"]
        if item.get("revisionName") and item["revisionName"] != asked
    }
    return sum(
        read_shape(revision).max_instances or 1
        for name in kept
        if (revision := world.revisions.get(f"{key.region}/{name}")) is not None
    )


def retire(service: Json, revisions: Iterable[Json]) -> None:
    """Say of revisions whether they serve."""
    serving = wanted(service)
    for revision in revisions:
        name = revision["metadata"]["name"]
        if not is_ready(revision):
            continue
        if name in serving:
            set_condition(revision, condition("Active", TRUE) | {"severity": "Info"})
            set_condition(revision, condition("Ready", TRUE))
        else:
            set_condition(
                revision,
                condition("Active", FALSE, "Retired", "Revision retired.") | {"severity": "Info"},
            )
            set_condition(revision, condition("Ready", TRUE, "Retired"))

"""Cloud Monitoring API: how many instances of a service there are, as a time series."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from backends.rehearsal.cloud.log_filter import compile_filter
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

_INSTANCES = "run.googleapis.com/container/instance_count"


def api(cloud: Cloud) -> Api:
    """The API."""
    world = cloud.world

    def listed(request: Request, project: str) -> Json:
        world.check_project(project)
        for needed in ("filter", "interval.endTime"):
            if not request.value(needed):
                raise ApiError(400, f"Field {needed} had an invalid value of: must be specified.")
        wanted = compile_filter(request.value("filter"))
        found = [series for series in _instance_counts(cloud) if wanted(series)]
        return page(request, found, "timeSeries", default=100_000) | {"unit": "1"}

    made = Api("monitoring.googleapis.com", "Cloud Monitoring API")
    path = r"/v3/projects/([^/]+)/timeSeries"
    made.add("GET", path, listed, "monitoring.timeSeries.list")
    return made


def _instance_counts(cloud: Cloud) -> list[Json]:
    """One series a revision and state, with the newest point only; none where nothing runs."""
    counts: Counter[tuple[str, str]] = Counter()
    resources: dict[str, Any] = {}
    for instance in cloud.fleet.instances():
        state = "active" if instance.inflight else "idle"
        resources[instance.place.revision] = instance.place.resource
        counts[instance.place.revision, state] += 1
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return [
        {
            "metric": {"type": _INSTANCES, "labels": {"state": state}},
            "resource": resources[revision],
            "metricKind": "GAUGE",
            "valueType": "INT64",
            "points": [
                {
                    "interval": {"startTime": now, "endTime": now},
                    "value": {"int64Value": str(number)},
                }
            ],
        }
        for (revision, state), number in sorted(counts.items())
    ]

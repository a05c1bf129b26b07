"""How many instances a service has, as Cloud Monitoring counts them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from backends.core.errors import DevopsError

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

_API = "https://monitoring.googleapis.com/v3/projects"
_METRIC = "run.googleapis.com/container/instance_count"

# A point a minute, seen up to three minutes later (Cloud Monitoring's list of Cloud Run metrics).
LAG_S = 240.0
_LOOK_BACK_S = 900.0
# Points of several series that belong together.
_SAME_S = 45.0
_KEEP_S = 15.0


@dataclass(frozen=True)
class Counted:
    """What was counted.

    Attributes:
        number: Instances; None where it could not be asked.
        at: When, Unix seconds.
        problem: Why it could not be asked.
    """

    number: int | None = None
    at: float = 0.0
    problem: str = ""


class InstanceCounter:
    """Counts the instances of services.

    Args:
        cloud: The project.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self._kept: dict[tuple[str, str], tuple[float, Counted]] = {}

    async def count(self, region: str, name: str) -> Counted:
        """The instances of one service some minutes ago. Never raises: `problem` says why not."""
        until, kept = self._kept.get((region, name), (0.0, Counted()))
        if time.monotonic() < until:
            return kept
        now = time.time()
        project = await self._cloud.project()
        terms = (
            f'metric.type="{_METRIC}"',
            'resource.type="cloud_run_revision"',
            f'resource.labels.service_name="{name}"',
            f'resource.labels.location="{region}"',
        )
        try:
            series = await self._cloud.rest.pages(
                f"{_API}/{project}/timeSeries",
                f"The instance count of {name}",
                "timeSeries",
                {
                    "filter": " AND ".join(terms),
                    "interval.startTime": _moment(now - _LOOK_BACK_S),
                    "interval.endTime": _moment(now),
                },
            )
        except DevopsError as error:
            counted = Counted(problem=f"{error.code}: {error.message}")
        else:
            counted = newest_count(series, now)
        self._kept[region, name] = (time.monotonic() + _KEEP_S, counted)
        return counted


def newest_count(series: list[dict[str, Any]], now_s: float) -> Counted:
    """The sum over revisions and states at the newest moment that has points.

    A service that runs has a point a minute; without one for as long as they take to show, none
    runs.
    """
    newest: list[tuple[float, int]] = []
    for item in series:
        points = [
            (_seconds(point["interval"]["endTime"]), int(point["value"].get("int64Value", 0)))
            for point in item.get("points", [])
        ]
        if points:
            newest.append(max(points))
    latest = max((at for at, _ in newest), default=0.0)
    if now_s - latest > LAG_S + 60:
        return Counted(0, now_s)
    return Counted(sum(number for at, number in newest if latest - at < _SAME_S), latest)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()

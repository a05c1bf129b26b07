"""Cloud Logging: what a service's containers, requests and platform said, and how a start goes.

Reads are few: a project may read 60 times a minute, and status is asked often.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from backends.core.errors import DevopsError, InvalidInputError, RateLimitedError
from backends.serving.startup_log import Phase, StartupLog, StartupProgress

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

SOURCES: dict[str, tuple[str, ...]] = {
    "container": ("run.googleapis.com%2Fstdout", "run.googleapis.com%2Fstderr"),
    "requests": ("run.googleapis.com%2Frequests",),
    "system": (
        "run.googleapis.com%2Fvarlog%2Fsystem",
        "cloudaudit.googleapis.com%2Factivity",
        "cloudaudit.googleapis.com%2Fsystem_event",
    ),
    "errors": (),
    "all": (),
}
"""What `source` may be. `errors` is every log from severity ERROR up; `all` is every log."""

# What is looked at to tell how a start goes: containers and the platform, not requests.
_STARTUP = (*SOURCES["container"], *SOURCES["system"])
_STARTUP_ENTRIES = 400
_LOOK_EVERY_S = 2.0
_BACK_OFF_S = 20.0
_PAGE = 1000
_MAX_LINES = 2000
# Wider and wider, so that a busy service's logs are not read whole.
_SINCE = (timedelta(hours=1), timedelta(days=1), timedelta(days=30))
_REQUESTS_READ = 200
# What is asked to see how it is, and not to use it.
_OURS = re.compile(r"/(?:health|metrics|ping|version|v1/models)(?:[? ]|$)")
_SEVERE = {"ERROR", "CRITICAL", "ALERT", "EMERGENCY"}
_IDLE_WORDS = ("Shutting down", "Application shutdown complete", "Finished server process")


@dataclass(frozen=True)
class Entry:
    """One log entry.

    Attributes:
        at: Unix seconds.
        severity: As Cloud Logging has it.
        log: The log's short name, e.g. `stderr`.
        text: The line.
        instance: The container instance it came from; empty where it says none.
        revision: The revision.
    """

    at: float
    severity: str
    log: str
    text: str
    instance: str = ""
    revision: str = ""

    def shown(self) -> str:
        """The entry as a line: time, severity where it says something, text."""
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        word = "" if self.severity in {"DEFAULT", "INFO", ""} else f" {self.severity}"
        return f"{when}Z{word} {self.text}"


@dataclass(frozen=True)
class Sight:
    """What the logs tell of a service's newest instance.

    Attributes:
        progress: How its start went.
        revision: Its revision.
        last_at: When anything was last heard of it, Unix seconds; 0: never.
        began_at: When it was first heard of, 0: never.
        served_at: When a request was last answered, 0: not seen.
        problem: Why the logs could not be read; empty if they could.
        trouble: What the platform itself says went wrong; empty if nothing.
        before: How the instance before it failed or what it waited for, where the newest has not
            said anything of that kind yet; empty if nothing.
    """

    progress: StartupProgress
    revision: str = ""
    last_at: float = 0.0
    began_at: float = 0.0
    problem: str = ""
    trouble: str = ""
    before: str = ""

    @property
    def ready_at(self) -> float:
        """When its start was over, Unix seconds; 0 where it is not, or not known."""
        after = self.progress.ready_after_s
        return self.began_at + after if after is not None and self.began_at else 0.0

    @property
    def gone(self) -> bool:
        """Whether the instance has ended by itself or was taken away."""
        return self.progress.phase is Phase.STOPPED


class LogReader:
    """Reads the logs of Cloud Run services.

    Args:
        cloud: The project.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self._sights: dict[tuple[str, str, str], tuple[float, Sight]] = {}

    async def entries(
        self,
        region: str,
        name: str,
        *,
        logs: Sequence[str] = (),
        severity: str = "",
        revision: str = "",
        since: timedelta | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """The newest entries, oldest first.

        Args:
            region: Where the service is.
            name: The service.
            logs: Log ids, percent-encoded; empty for all.
            severity: From this one up.
            revision: Only this revision.
            since: Not older than this.
            limit: At most so many.
        """
        project = await self._cloud.project()
        terms = [
            'resource.type="cloud_run_revision"',
            f'resource.labels.service_name="{name}"',
            f'resource.labels.location="{region}"',
        ]
        if revision:
            terms.append(f'resource.labels.revision_name="{revision}"')
        if logs:
            names = " OR ".join(f'logName="projects/{project}/logs/{log}"' for log in logs)
            terms.append(f"({names})")
        if severity:
            terms.append(f"severity>={severity}")
        if since is not None:
            moment = (datetime.now(UTC) - since).strftime("%Y-%m-%dT%H:%M:%SZ")
            terms.append(f'timestamp>="{moment}"')
        text = " AND ".join(terms)

        def read(client: Any) -> list[Entry]:  # noqa: ANN401 (logging.Client)
            found = client.list_entries(
                resource_names=[f"projects/{project}"],
                filter_=text,
                order_by="timestamp desc",
                page_size=min(limit, _PAGE),
            )
            # Cut here: with max_results the library asks for one page more than it needs.
            return [_entry(item) for item in itertools.islice(found, limit)]

        newest = await self._cloud.clients.logging(project, read, f"The logs of {name}")
        return newest[::-1]

    async def lines(
        self, region: str, name: str, source: str, lines: int
    ) -> tuple[list[Entry], timedelta]:
        """The newest lines of one source, looking back further while there are too few.

        Raises:
            InvalidInputError: There is no such source.
        """
        if source not in SOURCES:
            raise InvalidInputError("source", "is unknown.", allowed=", ".join(SOURCES))
        found: list[Entry] = []
        span = _SINCE[0]
        for span in _SINCE:
            found = await self.entries(
                region,
                name,
                logs=SOURCES[source],
                severity="ERROR" if source == "errors" else "",
                since=span,
                limit=min(lines, _MAX_LINES),
            )
            if len(found) >= lines:
                break
        return found, span

    async def last_request_at(self, region: str, name: str) -> float:
        """When a request of somebody else was last answered; 0 for not within a day.

        Args:
            region: Where the service is.
            name: The service.
        """
        found = await self.entries(
            region, name, logs=SOURCES["requests"], since=_SINCE[1], limit=_REQUESTS_READ
        )
        asked = [entry.at for entry in found if not _OURS.search(entry.text)]
        return max(asked, default=0.0)

    async def sight(self, region: str, name: str, revision: str, *, fresh: bool = False) -> Sight:
        """How the newest instance of a revision is doing, from at most one read in two seconds.

        Never raises for logs that cannot be read: `problem` says why, and what was seen before
        stays.

        Args:
            region: Where the service is.
            name: The service.
            revision: The revision.
            fresh: Read now, whatever was read a moment ago.
        """
        key = (region, name, revision)
        until, kept = self._sights.get(key, (0.0, None))
        if kept is not None and not fresh and time.monotonic() < until:
            return kept
        try:
            entries = await self.entries(
                region,
                name,
                logs=_STARTUP,
                revision=revision,
                since=_SINCE[1],
                limit=_STARTUP_ENTRIES,
            )
        except RateLimitedError as error:
            sight = kept or Sight(StartupProgress(), problem=error.message)
            self._sights[key] = (time.monotonic() + _BACK_OFF_S, sight)
            return sight
        except DevopsError as error:
            return Sight(
                kept.progress if kept else StartupProgress(),
                problem=f"{error.code}: {error.message}",
            )
        sight = newest_sight(entries)
        self._sights[key] = (time.monotonic() + _LOOK_EVERY_S, sight)
        return sight


def newest_sight(entries: Sequence[Entry]) -> Sight:
    """The newest instance's start, and what the one before it said, from all their entries."""
    instances = list(dict.fromkeys(entry.instance for entry in entries if entry.instance))
    newest = _seen_of(entries, instances[-1] if instances else "")
    if len(instances) < 2 or newest.progress.settled or newest.progress.notice or newest.trouble:
        return newest
    earlier = _seen_of(entries, instances[-2]).progress
    if earlier.failure is not None:
        return replace(newest, before="\n".join(earlier.failure.lines))
    # What it once waited for is over when it was ready after all.
    return replace(newest, before=earlier.notice if earlier.ready_after_s is None else "")


def _seen_of(entries: Sequence[Entry], instance: str) -> Sight:
    own = [entry for entry in entries if entry.instance in (instance, "")]
    if instance:
        first = next(index for index, entry in enumerate(own) if entry.instance == instance)
        own = own[first:]
    if not own:
        return Sight(StartupProgress())
    log = StartupLog()
    trouble = ""
    for entry in own:
        if entry.log in {"stdout", "stderr"}:
            log.feed_line(entry.text, at_s=entry.at)
        elif entry.log == "system" and entry.severity in _SEVERE:
            # Audit entries only repeat what the service's conditions say.
            trouble = entry.text
        if any(word in entry.text for word in _IDLE_WORDS) or "Container called exit(0)" in (
            entry.text
        ):
            log.process_ended(0)
    return Sight(
        log.progress,
        revision=own[-1].revision,
        last_at=own[-1].at,
        began_at=own[0].at,
        trouble=trouble,
    )


def _entry(item: Any) -> Entry:  # noqa: ANN401 (logging_v2.entries.LogEntry)
    payload = item.payload
    if isinstance(payload, dict):
        text = str(payload.get("message") or _audit_words(payload) or payload)
    else:
        text = str(payload or "")
    request = item.http_request
    if request:
        took = f" {request['latency']}" if request.get("latency") else ""
        text = (
            f"{request.get('requestMethod', '')} {request.get('requestUrl', '')} "
            f"{request.get('status', '')}{took} {text}"
        ).strip()
    resource = item.resource.labels if item.resource is not None else {}
    return Entry(
        at=item.timestamp.timestamp() if item.timestamp else 0.0,
        severity=str(item.severity or "DEFAULT"),
        log=str(item.log_name or "").rpartition("%2F")[2],
        text=text.rstrip(),
        instance=str((item.labels or {}).get("instanceId", "")),
        revision=str(resource.get("revision_name", "")),
    )


def _audit_words(payload: dict[str, Any]) -> str:
    """What an audit entry says, in a line."""
    status = payload.get("status") or {}
    words = [payload.get("methodName"), payload.get("resourceName"), status.get("message")]
    return " ".join(str(word) for word in words if word)

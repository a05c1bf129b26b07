"""Cloud Logging's entries: written by whatever runs, read by filter, in order, by page."""

from __future__ import annotations

import random
import re
import string
from typing import TYPE_CHECKING, Any, Protocol

from backends.rehearsal.cloud.log_filter import SEVERITIES, compile_filter
from backends.rehearsal.cloud.web import Json
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World

STDOUT = "run.googleapis.com%2Fstdout"
STDERR = "run.googleapis.com%2Fstderr"
SYSTEM = "run.googleapis.com%2Fvarlog%2Fsystem"
REQUESTS = "run.googleapis.com%2Frequests"
AUDIT = "cloudaudit.googleapis.com%2Factivity"
EVENT = "cloudaudit.googleapis.com%2Fsystem_event"

_MASK = re.compile(r"hf_[A-Za-z0-9]{8,}")


class LogWriter(Protocol):
    """Takes the lines of an instance: `LogStore`, or another cloud's logs."""

    def write(
        self,
        log: str,
        resource: Json,
        payload: str | Json,
        *,
        severity: str = "DEFAULT",
        labels: dict[str, str] | None = None,
        **fields: Any,  # noqa: ANN401 (further fields of the entry)
    ) -> None:
        """Write one entry; see `LogStore.write`."""


class LogStore:
    """The log entries of the project, newest last.

    Args:
        world: The project.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def write(
        self,
        log: str,
        resource: Json,
        payload: str | Json,
        *,
        severity: str = "DEFAULT",
        labels: dict[str, str] | None = None,
        **fields: Any,  # noqa: ANN401 (further fields of the entry)
    ) -> None:
        """Write one entry.

        Args:
            log: Id of the log, percent-encoded as in log names.
            resource: The monitored resource.
            payload: Text, or a JSON payload.
            severity: A severity of Cloud Logging.
            labels: Labels of the entry.
            **fields: E.g. `httpRequest`, `protoPayload`.
        """
        entry: Json = {
            "logName": f"projects/{self._world.project}/logs/{log}",
            "resource": resource,
            "timestamp": now(),
            "severity": severity,
            "labels": labels or {},
            **fields,
        }
        if isinstance(payload, str):
            if payload:
                entry["textPayload"] = payload
        else:
            entry["jsonPayload"] = payload
        self.add(entry)

    def add(self, entry: Json) -> None:
        """Write an entry as it is; what is missing is filled in."""
        stamped = {
            "insertId": "".join(random.choices(string.ascii_lowercase + string.digits, k=20)),
            "timestamp": now(),
            "receiveTimestamp": now(),
            "logName": f"projects/{self._world.project}/logs/rehearsal",
            "resource": {"type": "global", "labels": {"project_id": self._world.project}},
        } | entry
        stamped["severity"] = _severity(stamped.get("severity"))
        self._world.log_entries.append(stamped)

    def listed(self, body: Json) -> Json:
        """Answer `entries:list`.

        Raises:
            ApiError: The filter cannot be parsed.
        """
        test = compile_filter(str(body.get("filter", "")))
        # Ties keep the order they were written in.
        found = [entry for entry in self._world.log_entries if test(entry)]
        found.sort(key=lambda entry: str(entry["timestamp"]))
        # A page token says where to go on and how new the first page was, so that what is written
        # meanwhile does not move the pages.
        start, newest = 0, str(found[-1]["timestamp"]) if found else ""
        if token := str(body.get("pageToken") or ""):
            number, _, newest = token.partition("@")
            start = int(number) if number.isdecimal() else 0
            found = [entry for entry in found if str(entry["timestamp"]) <= newest]
        if "desc" in str(body.get("orderBy", "")):
            found.reverse()
        size = int(body.get("pageSize") or 50)
        answer: Json = {}
        if found[start : start + size]:
            answer["entries"] = found[start : start + size]
        if start + size < len(found):
            answer["nextPageToken"] = f"{start + size}@{newest}"
        return answer

    def clear(self) -> None:
        """Forget all entries."""
        self._world.log_entries.clear()


def run_resource(world: World, region: str, service: str, revision: str) -> Json:
    """The monitored resource of a Cloud Run revision."""
    return {
        "type": "cloud_run_revision",
        "labels": {
            "project_id": world.project,
            "location": region,
            "service_name": service,
            "revision_name": revision,
            "configuration_name": service,
        },
    }


def without_secrets(line: str) -> str:
    """A container's line without Hugging Face tokens."""
    return _MASK.sub("hf_***", line)


def _severity(value: Any) -> str:  # noqa: ANN401 (JSON)
    text = str(value or "DEFAULT").upper()
    return text if text in SEVERITIES else "DEFAULT"

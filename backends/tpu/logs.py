"""Logs of a TPU deployment: container, start script, systemd, serial console, Cloud Logging."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from backends.core.answers import LogsAnswer
from backends.core.errors import ConflictError, InvalidInputError, NotFoundError
from backends.core.masking import mask
from backends.core.words import plural
from backends.knowledge.tpu import CONTAINER
from backends.tpu.advice import misleading
from backends.tpu.sight import STATE_FOLDER

if TYPE_CHECKING:
    from backends.tpu.looking import TpuLooking
    from backends.tpu.records import TpuRequest

SOURCES = ("container", "startup", "systemd", "serial", "cloud")
"""What `source` may be; `container@N` and `startup@N` are those of worker N of a slice."""

_TIMEOUT_S = 25.0
_MAX_LINES = 2000
# Wider and wider, as in a busy project nobody wants to read a month.
_SINCE = (timedelta(hours=1), timedelta(days=1), timedelta(days=30))

_FOLDER = f'd="${{VLLM_DEVOPS_HOST_ROOT:-}}{STATE_FOLDER}"'
# vLLM writes to standard error; docker keeps both apart, and both are wanted.
_COMMANDS = {
    "container": 'sudo docker logs --tail "$1" "$2" 2>&1',
    "startup": f'{_FOLDER}; cat "$d/phases"; sudo journalctl -u google-startup-scripts.service '
    '-n "$1" --no-pager -o short-iso 2>&1',
    "systemd": 'sudo journalctl -u docker.service -n "$1" --no-pager -o short-iso 2>&1',
}


async def read_logs(target: TpuLooking, name: str, source: str | None, lines: int) -> LogsAnswer:
    """The newest lines of one source.

    Args:
        target: The target.
        name: The deployment.
        source: One of `SOURCES`, with `@N` for a worker; the container by default.
        lines: At most so many.

    Raises:
        InvalidInputError: There is no such source, worker, or no serial console.
        ConflictError: There is no machine yet.
    """
    request = await target.find(name)
    plain, _, number = (source or "container").partition("@")
    if plain not in SOURCES:
        raise InvalidInputError("source", "is unknown.", allowed=", ".join(SOURCES))
    worker = _worker(request, number)
    wanted = min(lines, _MAX_LINES)
    readers: dict[str, Callable[[], Awaitable[tuple[list[str], str]]]] = {
        "serial": lambda: _serial(target, request),
        "cloud": lambda: _cloud(target, request, wanted),
    }
    found, note = await readers.get(
        plain, lambda: _from_host(target, request, plain, worker, wanted)
    )()
    answer = target.newest_lines(
        name,
        mask("\n".join(found[-wanted:])).splitlines(),
        source=plain,
        sources=_sources(request),
        of=f"{f' of worker {worker}' if request.hosts > 1 else ''}{note}",
    )
    answer.warnings = misleading(answer.text)
    return answer


def _sources(request: TpuRequest) -> list[str]:
    names = [name for name in SOURCES if name != "serial" or request.plane == "compute"]
    return names + [f"container@{number}" for number in range(1, request.hosts)]


def _worker(request: TpuRequest, number: str) -> int:
    if not number:
        return 0
    if not number.isdigit() or int(number) >= request.hosts:
        raise InvalidInputError(
            "source", f"{request.name} has no worker {number}.", allowed=f"0 to {request.hosts - 1}"
        )
    return int(number)


async def _from_host(
    target: TpuLooking, request: TpuRequest, source: str, worker: int, lines: int
) -> tuple[list[str], str]:
    if request.stage != "active":
        raise ConflictError(
            f"{target.at(request.name)} has no running machine: {request.state}.",
            next_action=target.call("get_status", request.name),
        )
    host = await target.host(request, worker)
    result = await host.run(
        ["bash", "-c", _COMMANDS[source], "logs", str(lines), CONTAINER],
        timeout_s=_TIMEOUT_S,
        check=False,
        repeatable=True,
    )
    text = result.stdout or result.stderr
    return text.splitlines(), ""


async def _serial(target: TpuLooking, request: TpuRequest) -> tuple[list[str], str]:
    if request.plane != "compute":
        raise InvalidInputError(
            "source",
            "serial is Compute Engine's; nodes of the TPU API have no serial console to read.",
            allowed="startup (the start script's own log) or cloud",
        )
    project = await target.cloud.project()
    answer = await target.cloud.rest.get(
        f"https://compute.googleapis.com/compute/v1/projects/{project}/zones/{request.zone}"
        f"/instances/{request.name}/serialPort",
        f"The serial console of {request.name}",
        {"port": "1"},
    )
    return str(answer.get("contents", "")).splitlines(), ""


async def _cloud(target: TpuLooking, request: TpuRequest, lines: int) -> tuple[list[str], str]:
    """Entries of Cloud Logging about the node's workers, or about the instance."""
    project = await target.cloud.project()
    terms = (
        ['resource.type="gce_instance"', f'labels."compute.googleapis.com/resource_name"='
         f'"{request.name}"']
        if request.plane == "compute"
        else ['resource.type="tpu_worker"', f'resource.labels.node_id="{request.node_id}"']
    )  # fmt: skip
    for since in _SINCE:
        moment = (datetime.now(UTC) - since).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = " AND ".join([*terms, f'timestamp>="{moment}"'])

        def read(client: Any, text: str = text) -> list[str]:  # noqa: ANN401 (logging.Client)
            found = client.list_entries(
                resource_names=[f"projects/{project}"],
                filter_=text,
                order_by="timestamp desc",
                page_size=min(lines, 1000),
            )
            return [_line(item) for item in itertools.islice(found, lines)]

        try:
            newest = await target.cloud.clients.logging(project, read, f"The log of {request.name}")
        except NotFoundError:
            newest = []
        if newest:
            hours = since.total_seconds() / 3600
            return newest[::-1], f", Cloud Logging, of the last {plural(hours, 'hour')}"
    return [], ", Cloud Logging, of the last 30 days"


def _line(item: Any) -> str:  # noqa: ANN401 (logging_v2.entries.LogEntry)
    payload = item.payload
    text = str(payload.get("message") or payload) if isinstance(payload, dict) else str(payload)
    when = item.timestamp.strftime("%Y-%m-%dT%H:%M:%SZ") if item.timestamp else ""
    severity = str(item.severity or "DEFAULT")
    word = "" if severity in {"DEFAULT", "INFO"} else f" {severity}"
    return f"{when}{word} {text}".rstrip()

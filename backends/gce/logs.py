"""One view of a machine's logs: engine, preparation, kernel, serial console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.core.answers import LogsAnswer
from backends.core.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from backends.gce.looking import GceLooking
    from backends.gce.machines import Machine

SOURCES: dict[str, str] = {
    "engine": "vLLM's own log of this start",
    "previous": "vLLM's log of the start before",
    "prepare": "what the preparation did, step by step",
    "kernel": "the kernel's log: drivers, memory",
    "serial": "the serial console, readable while ssh is not",
}
"""What `source` may be."""


async def read(target: GceLooking, name: str, source: str | None, lines: int) -> LogsAnswer:
    """The newest lines of one source.

    Raises:
        InvalidInputError: There is no such source.
        ConflictError: The machine is off, and only the serial console could tell.
        NotFoundError: There is no machine, or no such log yet.
    """
    machine = await target.find(name)
    chosen = source or "engine"
    if chosen not in SOURCES:
        raise InvalidInputError("source", "is unknown.", allowed=", ".join(SOURCES))
    text = await _text(target, machine, chosen, lines)
    return target.newest_lines(
        name,
        text.splitlines()[-lines:],
        source=chosen,
        sources=list(SOURCES),
        of=f": {SOURCES[chosen]}",
    )


async def _text(target: GceLooking, machine: Machine, source: str, lines: int) -> str:
    if source == "serial":
        return await target.api.serial(machine.zone, machine.name)
    if machine.status != "RUNNING":
        raise ConflictError(
            f"{target.at(machine.name)} is off ({machine.status}); its logs are on its disks.",
            next_action=f"{target.call('start_serving', machine.name)}; or source='serial'.",
        )
    return await target.hosting.log(machine, source, lines)

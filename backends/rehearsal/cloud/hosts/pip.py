"""pip, to be written."""

from __future__ import annotations

from backends.rehearsal.cloud.hosts.machine import Machine


def main(machine: Machine, argv: list[str]) -> int:
    """Nothing can be installed yet."""
    del machine, argv
    return 1

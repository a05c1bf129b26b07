"""What a fault with a name is."""

from __future__ import annotations

from dataclasses import dataclass

from backends.rehearsal.cloud.web import Json


@dataclass(frozen=True)
class Scenario:
    """One fault with a name.

    Attributes:
        seen_as: What someone meets, in its own words.
        cause: What is behind it.
        natural: How it comes about without a switch; empty where only the switch makes it.
        effects: What switching it on does, see `faults.FaultBook`; empty where it is not switched.
    """

    seen_as: str
    cause: str
    natural: str = ""
    effects: tuple[Json, ...] = ()

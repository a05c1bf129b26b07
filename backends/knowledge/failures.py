"""Every failure signature under one roof: which tables there are, and which of two wins a line.

An id is `table.signature`. When two signatures claim the same line, one of them wins for a reason
that is written down: what is harmless is not a failure, a control plane's own table knows more of
it than vLLM's general one, and `OVERLAPS` holds all other pairs.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from backends.knowledge import (
    cloud_failures,
    engine_failures,
    false_signals,
    serving_failures,
)
from backends.knowledge.pattern_hints import hints_of
from backends.knowledge.signatures import Signature

# Which table speaks for which targets. A module without entries yet is left out.
_TABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("cloudrun", "cloudrun_failures", ("cloudrun-l4", "cloudrun-rtx6000")),
    ("build", "cloudbuild_failures", ("cloudrun-l4", "cloudrun-rtx6000")),
    ("sagemaker", "sagemaker_failures", ("sagemaker-l4",)),
    ("gce", "gce_failures", ("gce-t4",)),
    ("tpu", "tpu_failures", ("tpu-v6e",)),
)

OVERLAPS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("tpu.delete_active", "harmless.waiting_for_resources"): (
            "The refusal lists the states in which it would not refuse."
        ),
        ("tpu.hbm", "serving.tpu_hbm"): "The target's own table says what to change there.",
    }
)
"""(winner, loser) -> why, for pairs that may claim one line and that no rule above orders."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A signature and where it stands.

    Args:
        id: `table.signature`.
        table: Its table.
        rank: Its place: tables in order, and within a table the special before the general.
        signature: The signature.
        hints: Lower-case words, one of which every match contains; empty where none is sure.
    """

    id: str
    table: str
    rank: int
    signature: Signature
    hints: tuple[str, ...]

    @property
    def harmless(self) -> bool:
        """Whether it only looks bad."""
        return self.signature.kind == "harmless"


def entries(target: str | None = None, own: Sequence[Signature] | None = None) -> tuple[Entry, ...]:
    """The signatures that can be met on a target, those that win first.

    Args:
        target: Only what can happen there; None for all targets' tables.
        own: The target's own signatures, where it says them itself (`Backend.failure_signatures`).
    """
    return _known(target) if not own or target is None else _build(target, own)


@functools.cache
def _known(target: str | None) -> tuple[Entry, ...]:
    return _build(target, None)


def _build(target: str | None, own: Sequence[Signature] | None) -> tuple[Entry, ...]:
    found: list[Entry] = []

    def add(table: str, signatures: Sequence[Signature]) -> None:
        for item in signatures:
            if target is None or not item.targets or target in item.targets:
                hints = item.hints or hints_of(item.pattern.pattern)
                found.append(Entry(f"{table}.{item.id}", table, len(found), item, hints))

    add("harmless", false_signals.SIGNATURES)
    for table, module, targets in _TABLES:
        if target in targets:
            add(table, own or _table(module))
            own = None  # a target's own are its first table
    add("serving", serving_failures.SIGNATURES)
    add("engine", _engine())
    add("cloud", cloud_failures.SIGNATURES)
    for table, module, _ in _TABLES:
        if target is None:
            add(table, _table(module))
    return tuple(found)


def why_first(winner: Entry, loser: Entry, *, at_target: bool) -> str | None:
    """The reason for which one entry wins a line over another; None where it does not.

    Args:
        winner: The one that should win.
        loser: The other.
        at_target: Whether it is known where the text comes from.
    """
    if said := OVERLAPS.get((winner.id, loser.id)):
        return said
    if (loser.id, winner.id) in OVERLAPS:
        return None
    places = zip(_place(winner, at_target), _place(loser, at_target), _REASONS, strict=True)
    first, second, reason = next(step for step in places if step[0] != step[1])
    return reason if first < second else None


_REASONS = (
    "What is harmless is not a failure.",
    "A control plane's own table knows more of it than a general one; but where it is not known "
    "from where a text comes, the general explanation is the safe one.",
    "A reason says more than what follows from it.",
    "The words of one situation say more than a general rule; within a table the special stands "
    "before the general.",
)


def _place(entry: Entry, at_target: bool) -> tuple[bool, bool, bool, int]:
    """What orders two entries, the most telling first."""
    of_plane = entry.table in {table for table, _, _ in _TABLES}
    return (
        not entry.harmless,
        of_plane is not at_target,
        entry.signature.kind == "symptom",
        entry.rank,
    )


def _table(module: str) -> tuple[Signature, ...]:
    try:
        found = importlib.import_module(f"backends.knowledge.{module}")
    except ModuleNotFoundError as error:
        if error.name != f"backends.knowledge.{module}":
            raise
        return ()
    signatures: tuple[Signature, ...] = found.SIGNATURES
    return signatures


def _engine() -> tuple[Signature, ...]:
    source = "vLLM 0.32.0: recorded logs and source"
    rules = [
        Signature(rule.id, rule.pattern, rule.cause, rule.next_action, source=source)
        for rule in engine_failures.RULES
    ]
    return tuple(rules)

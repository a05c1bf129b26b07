"""What a failure signature is: words to look for, why they appear, and what mends it.

The tables are data: `engine_failures` (vLLM itself), `CONTROLPLANE_failures` (one a control plane),
`false_signals` (alarming lines that mean nothing). `failures` brings them under one roof.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from backends.core.errors import DevopsError

Kind = Literal["cause", "symptom", "harmless"]
"""cause: names a reason; symptom: what follows from one; harmless: looks bad and is not."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


class _Known(dict[str, str]):
    """Words for a template; what is not known reads so."""

    def __missing__(self, key: str) -> str:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Signature:
    """One way of failing, or of seeming to.

    Args:
        id: What it is called; one of its kind in all tables.
        pattern: Searched in the words of a CLI, a condition, a log or an answer. Its named groups
            may be used in `cause` and `fix`.
        cause: Why.
        fix: What mends it, as exact calls; `{target}` and `{name}` are filled in.
        kind: Whether it names the reason, only follows from one, or means nothing.
        source: Where it was met.
        date: When it was collected, `YYYY-MM-DD`.
        targets: Where it can happen; empty for anywhere.
        before: Signatures that may match the same text and that this one wins over, each with the
            reason.
        hints: Literal words (lower case), one of which every match contains, so that huge logs
            are searched quickly; empty: made from the pattern by `failures`.
    """

    id: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    kind: Kind = "cause"
    source: str = ""
    date: str = "2026-11-30"
    targets: tuple[str, ...] = ()
    before: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    hints: tuple[str, ...] = ()

    def explained(
        self, target: str, name: str, found: re.Match[str] | None = None
    ) -> tuple[str, str]:
        """Cause and fix for one deployment.

        Args:
            target: Its target.
            name: Its name.
            found: Where the pattern matched, for the words it caught.
        """
        caught = found.groupdict() if found is not None else {}
        words = _Known(
            {key: value.strip().rstrip(".") for key, value in caught.items() if value is not None}
        )
        words |= {"target": target, "name": name}
        return self.cause.format_map(words), self.fix.format_map(words)


def signature(
    id: str,
    pattern: str,
    cause: str,
    fix: str,
    *,
    kind: Kind = "cause",
    source: str = "",
    date: str = "2026-11-30",
    targets: tuple[str, ...] = (),
    before: Mapping[str, str] = _NOTHING,
    hints: tuple[str, ...] = (),
) -> Signature:
    """An entry of a table; its pattern ignores case and lets `.` cross lines."""
    compiled = re.compile(pattern, re.IGNORECASE | re.DOTALL)
    return Signature(id, compiled, cause, fix, kind, source, date, targets, before, hints)


def first_found(signatures: Sequence[Signature], words: str) -> Signature | None:
    """The first signature whose pattern is in some words, or None."""
    return next((item for item in signatures if item.pattern.search(words)), None)


def most_telling(signatures: Sequence[Signature], *words: str) -> Signature | None:
    """The signature that explains most, or None.

    Args:
        signatures: The table; the first that matches a text counts for it.
        words: Texts of one failure, from the one that knows most to the one that knows least, e.g.
            the engine's last words, then what the platform says. What only follows from a cause
            gives way to a cause, though that stands in a later text.
    """
    causes = [item for item in signatures if item.kind == "cause"]
    others = [item for item in signatures if item.kind != "cause"]
    for table in (causes, others):
        for text in words:
            found = first_found(table, text)
            if found is not None:
                return found
    return None


def explain(
    error: DevopsError, signatures: Sequence[Signature], target: str, name: str
) -> DevopsError:
    """The error with the cause and fix of the signature its words carry, if they carry one.

    Args:
        error: What was met; changed in place.
        signatures: The table to look in.
        target: The deployment's target.
        name: Its name.
    """
    found = first_found(signatures, f"{error.words} {error.message}")
    if found is not None:
        error.cause, error.next_action = found.explained(target, name)
    return error

"""A way of failing as a value: the words it is known by, why it happens, and what mends it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """One way of failing.

    Args:
        id: What it is called.
        pattern: Searched in the words of a CLI, of a condition, of a log or of an answer.
        cause: Why; `{target}` and `{name}` are filled in.
        fix: What mends it; the same.
    """

    id: str
    pattern: re.Pattern[str]
    cause: str
    fix: str

    def explained(self, target: str, name: str) -> tuple[str, str]:
        """Cause and fix for one deployment."""
        facts = {"target": target, "name": name}
        return self.cause.format(**facts), self.fix.format(**facts)


def signature(id: str, pattern: str, cause: str, fix: str) -> Signature:
    """A signature whose pattern ignores case and reads over line ends."""
    return Signature(id, re.compile(pattern, re.IGNORECASE | re.DOTALL), cause, fix)


def first_found(signatures: Sequence[Signature], words: str) -> Signature | None:
    """The first signature whose pattern is in some words, or None."""
    return next((item for item in signatures if item.pattern.search(words)), None)

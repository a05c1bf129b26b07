"""A number with where it comes from: every figure of `backends.knowledge` is one of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FactKind = Literal["published", "measured", "derived", "assumed"]
"""published: a vendor's page; measured: a run; derived: computed from those; assumed: ours."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure, its source and its date.

    Args:
        value: The number; its unit is in the name of the field that holds it.
        source: Page, article or run it was read from, or how it was computed.
        date: When it was read or measured, `YYYY-MM-DD`.
        kind: How far to trust it.
    """

    value: float
    source: str
    date: str
    kind: FactKind = "published"


COLLECTED = "2026-11-30"
"""The day the reference articles and their repositories were read."""


def published(value: float, source: str, date: str = COLLECTED) -> Fact:
    """A vendor's or maintainer's own figure."""
    return Fact(value, source, date, "published")


def measured(value: float, source: str, date: str = COLLECTED) -> Fact:
    """A figure someone measured on the real thing."""
    return Fact(value, source, date, "measured")


def derived(value: float, source: str, date: str = COLLECTED) -> Fact:
    """A figure computed from published or measured ones; `source` says how."""
    return Fact(value, source, date, "derived")


def assumed(value: float, source: str, date: str = COLLECTED) -> Fact:
    """A figure nobody has given us; `source` says why this one was chosen."""
    return Fact(value, source, date, "assumed")

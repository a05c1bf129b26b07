"""Pages of a list: one cursor format for every tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from backends.core.errors import InvalidInputError

T = TypeVar("T")


def page(items: Sequence[T], limit: int, cursor: str | None) -> tuple[list[T], str | None]:
    """One page of `items`, and the cursor of the next (None at the end).

    Raises:
        InvalidInputError: The cursor is not one that was given out.
    """
    start = 0
    if cursor is not None:
        if not cursor.isdecimal():
            raise InvalidInputError("cursor", "is not a next_cursor of this tool.")
        start = int(cursor)
    end = start + limit
    return list(items[start:end]), str(end) if end < len(items) else None

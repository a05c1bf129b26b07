"""Errors as values, for facts without which the rest can still be said."""

from __future__ import annotations

from typing import Any

from backends.core.errors import DevopsError


async def or_problem(asking: Any) -> Any:  # noqa: ANN401 (an awaitable; its result or its error)
    """The result, or the error as a value, for facts without which a plan can still be made."""
    try:
        return await asking
    except DevopsError as error:
        return error


def words_of(value: object) -> str:
    """An error that was met instead of a fact, in a few words."""
    return f"{value.code}: {value.message}" if isinstance(value, DevopsError) else str(value)

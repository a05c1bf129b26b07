"""Small grammar of answers."""

from __future__ import annotations


def plural(number: float, one: str, many: str = "") -> str:
    """A number with its noun: `1 day`, `2 days`.

    Args:
        number: How many.
        one: The noun for one.
        many: The noun for others, where it is not `one` with an s.
    """
    return f"{number:g} {one if number == 1 else many or one + 's'}"


def in_words(state: str) -> str:
    """A state as it is said in a sentence: `scaled to zero`."""
    return {"creating": "being created"}.get(state, state.replace("_", " "))

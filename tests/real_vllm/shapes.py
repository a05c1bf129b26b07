"""Comparing two JSON values by shape: the same keys and types, whatever the values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(real: Any, other: Any, path: str = "$") -> Iterator[str]:
    """Where `other` is not shaped like `real`, in words.

    A list's elements are compared with the first of the real list. Integer and float differ; null
    differs from everything else.
    """
    if type(real) is not type(other):
        yield f"{path}: {_name(other)} instead of {_name(real)}"
    elif isinstance(real, dict):
        for key in real.keys() - other.keys():
            yield f"{path}.{key}: missing"
        for key in other.keys() - real.keys():
            yield f"{path}.{key}: not in the real one"
        for key in real.keys() & other.keys():
            yield from differences(real[key], other[key], f"{path}.{key}")
    elif isinstance(real, list):
        if bool(real) is not bool(other):
            yield f"{path}: {'an empty' if not other else 'a filled'} list"
        for index, element in enumerate(other if real else []):
            yield from differences(real[0], element, f"{path}[{index}]")


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__

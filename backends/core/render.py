"""One renderer from an answer to what a client gets: structured content and Markdown.

Claude Code shows its model only the structured part of a result, Gemini CLI only the text
(measured 2026-11-30, versions 2.1.332 and 0.61.0), so both are made here from the same tree and
carry the same facts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

MAX_CHARS = 20_000
_TABLE_COLUMNS = 9
_INLINE_CHARS = 32

Tree = dict[str, Any]


def to_tree(answer: BaseModel) -> Tree:
    """The answer as plain JSON values: unknown (None) and empty parts left out, floats rounded."""
    tree = _shape(answer.model_dump(mode="json", exclude_none=True))
    return tree if isinstance(tree, dict) else {}


def to_markdown(tree: Tree) -> str:
    """Short Markdown with every leaf of `tree` in it."""
    parts: list[str] = []
    rest = dict(tree)
    summary = rest.pop("summary", None)
    if summary is not None:
        parts.append(str(summary))
    warnings = rest.pop("warnings", [])
    next_steps = rest.pop("next_steps", [])
    parts += [f"**Warning:** {warning}" for warning in warnings]
    parts += _section(rest, level=2)
    if next_steps:
        parts.append("Next:\n" + "\n".join(f"- {step}" for step in next_steps))
    return "\n\n".join(part for part in parts if part)


def clip(text: str, limit: int = MAX_CHARS, *, keep: str = "tail") -> tuple[str, int]:
    """Cut `text` to `limit` characters at a line's end; returns it and how many were cut.

    Args:
        text: What to cut.
        limit: The most characters to keep.
        keep: "tail" (logs: the newest lines) or "head".
    """
    if len(text) <= limit:
        return text, 0
    if keep == "tail":
        kept = text[-limit:]
        newline = kept.find("\n")
        kept = kept[newline + 1 :] if 0 <= newline < limit // 2 else kept
    else:
        kept = text[:limit]
        newline = kept.rfind("\n")
        kept = kept[:newline] if newline > limit // 2 else kept
    return kept, len(text) - len(kept)


def _shape(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(value, dict):
        shaped = {key: _shape(item) for key, item in value.items()}
        # `items: []` is an answer ("asked, and there is none"); other empty parts say nothing.
        return {
            key: item
            for key, item in shaped.items()
            if item not in ({}, [], None) or (key == "items" and item == [])
        }
    if isinstance(value, list):
        return [_shape(item) for item in value]
    if isinstance(value, float):
        return _rounded(value)
    return value


def _rounded(value: float) -> float | int | str:
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    # Six significant digits are more than any figure here is good for; whole parts stay whole.
    digits = max(0, 5 - math.floor(math.log10(abs(value))))
    return round(value, digits) if digits else round(value)


def _scalar(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _is_scalar(value: Any) -> bool:  # noqa: ANN401
    return not isinstance(value, dict | list)


def _fits_cells(value: Any) -> bool:  # noqa: ANN401
    """Whether a value goes into cells of a table: scalars, lists of them, objects of those."""
    if isinstance(value, dict):
        return all(map(_fits_cells, value.values()))
    if isinstance(value, list):
        return all(map(_is_scalar, value))
    return True


def _section(tree: Tree, level: int) -> list[str]:
    parts: list[str] = []
    bullets: list[str] = []

    def flush() -> None:
        if bullets:
            parts.append("\n".join(bullets))
            bullets.clear()

    for key, value in tree.items():
        if isinstance(value, str) and "\n" in value.strip():
            flush()
            parts.append(f"{key}:\n{_fenced(value)}")
        elif _is_scalar(value):
            bullets.append(f"- {key}: {_scalar(value)}")
        elif isinstance(value, list) and all(map(_is_scalar, value)):
            if any(len(_scalar(item)) > _INLINE_CHARS for item in value):
                bullets.append(f"- {key}:")
                bullets += [f"  - {_scalar(item)}" for item in value]
            else:
                bullets.append(f"- {key}: {_inline(value)}")
        elif isinstance(value, list) and all(isinstance(row, dict) for row in value):
            flush()
            parts += _rows(key, value, level)
        elif isinstance(value, list):
            flush()
            for index, item in enumerate(value, 1):
                body = _section(item if isinstance(item, dict) else {"value": item}, level + 1)
                parts.append(f"{'#' * level} {key} {index}\n\n" + "\n\n".join(body))
        else:
            flush()
            parts.append(f"{'#' * level} {key}\n\n" + "\n\n".join(_section(value, level + 1)))
    flush()
    return parts


def _rows(key: str, rows: list[Tree], level: int) -> list[str]:
    """One table of what fits its cells, then what each row has besides."""
    head = "#" * level
    flat = [{name: cell for name, cell in row.items() if _fits_cells(cell)} for row in rows]
    parts = [f"{head} {key}\n\n{_table(flat)}"]
    for index, row in enumerate(rows, 1):
        besides = {name: cell for name, cell in row.items() if not _fits_cells(cell)}
        if besides:
            # Its first fact names a row, as it does in the table.
            first = next(iter(flat[index - 1].values()), index)
            parts.append(f"{head} {key} {_scalar(first)}")
            parts += _section(besides, level + 1)
    return parts


def _inline(values: Sequence[Any]) -> str:
    return ", ".join(map(_scalar, values)) if values else "none"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _flatten(row: Tree, prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            flat[prefix + key] = _cell(_inline(value))
        else:
            flat[prefix + key] = _cell(value)
    return flat


def _cell(value: Any) -> str:  # noqa: ANN401
    return _scalar(value).strip().replace("|", "\\|").replace("\n", "<br>")


def _table(rows: list[Tree]) -> str:
    flat = [_flatten(row) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    if not columns:
        return "none"
    if len(columns) > _TABLE_COLUMNS:
        # More facts than a line holds: facts down, items across.
        first = columns[0]
        heads = [first, *(row.get(first, "") for row in flat)]
        body = [[column, *(row.get(column, "") for row in flat)] for column in columns[1:]]
    else:
        heads = columns
        body = [[row.get(column, "") for column in columns] for row in flat]
    lines = [heads, ["---"] * len(heads), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

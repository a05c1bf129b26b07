"""The Turing clamp: vLLM's Triton attention kernel within the shared memory of a Turing GPU.

Gemma 4 E2B and E4B mix head sizes 256 and 512, so vLLM takes its Triton attention, whose tiles need
98,304 bytes of shared memory where compute capability 7.5 has 65,536 (`OutOfResources: out of
resource: shared memory, Required: 98304, Hardware limit: 65536`). Below capability 8 the tiles are
halved until they fit a budget, and the kernel is launched with one stage. Method and budget: the
reference T4 deployment, collected 2026-11-30; this is an implementation of our own.

The place is found by structure, never by line or text: in the function that assigns both tile
sizes, after the last assignment and before the first use. At the launch itself it would be too
late: by then the sizes have been read. Where the structure is not what is known here, nothing is
written (`AnchorsError`).
"""

from __future__ import annotations

import ast
import os
import re
import stat
import tempfile
from pathlib import Path

SENTINEL = "Turing shared-memory clamp"
BUDGET_BYTES = 60_000
FILE_NAME = "triton_unified_attention.py"
FILE_IN_VLLM = "v1/attention/ops/" + FILE_NAME

_TILES = ("TILE_SIZE_PREFILL", "TILE_SIZE_DECODE")
_ROWS = "BLOCK_M"
_HEAD = "head_size"
_LAUNCH = "_turing_launch"
_STAGES = re.compile(r"(?:^|_)num_stages(?:_|$)")
_BEGIN = f"# >>> {SENTINEL} (vllm-devops)"
_END = f"# <<< {SENTINEL} (vllm-devops)"


class AnchorsError(Exception):
    """The file is not built as expected; nothing was changed. The text says what is missing."""


def is_clamped(source: str) -> bool:
    """Whether the clamp is in the file, at a place where it works.

    Raises:
        AnchorsError: It cannot be told: no known structure, or a clamp at a useless place.
    """
    where = _find(source)
    if SENTINEL not in source:
        return False
    for tile in _TILES:
        if not any(_halves(statement, tile) for statement in where.before_use):
            raise AnchorsError(f"there is a clamp, but not where {tile} is decided")
    return True


def clamped(source: str) -> str:
    """The file with the clamp; as it is where it has one.

    Raises:
        AnchorsError: The structure is not what is known.
    """
    if is_clamped(source):
        return source
    where = _find(source)
    lines = source.splitlines(keepends=True)
    # From the end, so that earlier positions stay right.
    for call in sorted(where.launches, key=lambda item: -(item.end_lineno or 0)):
        row = (call.end_lineno or 0) - 1
        column = len(lines[row].encode()[: (call.end_col_offset or 0) - 1].decode())
        before = lines[row][:column]
        comma = "" if before.rstrip().endswith(",") or not before.strip() else ", "
        lines[row] = f"{before}{comma}**{_LAUNCH}{lines[row][column:]}"
    lines[where.line : where.line] = [
        where.indent + text + "\n" if text else "\n" for text in _block(where)
    ]
    made = "".join(lines)
    try:
        compile(made, FILE_IN_VLLM, "exec")
    except SyntaxError as error:
        raise AnchorsError(f"the clamped file would not compile: {error}") from error
    if not is_clamped(made):
        raise AnchorsError("the clamp could not be verified in the clamped file")
    return made


def apply(path: Path) -> bool:
    """Clamp a file, whole or not at all; returns whether it had to be changed.

    Raises:
        AnchorsError: The structure is not what is known; the file is untouched.
        OSError: It cannot be read or written.
    """
    source = path.read_text(encoding="utf-8")
    made = clamped(source)
    if made == source:
        return False
    handle, name = tempfile.mkstemp(dir=str(path.parent), prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(made)
        Path(name).chmod(stat.S_IMODE(path.stat().st_mode))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
    return True


class _Place:
    """Where the clamp goes, and what it may use there.

    Attributes:
        line: Lines before it.
        indent: Its indentation.
        element_size: Expression for the bytes of an element.
        stages: Variables that decide the number of stages.
        launches: Calls that need the number of stages, where no variable decides it.
        before_use: Statements of the function before the tile sizes are used.
    """

    def __init__(self, function: ast.FunctionDef, after: ast.stmt, use: int) -> None:
        self.line = after.end_lineno or 0
        self.indent = " " * after.col_offset
        self.before_use = function.body[:use]
        self.element_size = _element_size(function)
        names = {name for name in _stored(function) if _STAGES.search(name)}
        self.stages = sorted(names)
        self.launches: list[ast.Call] = [] if names else _launches(function)


def _find(source: str) -> _Place:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise AnchorsError(f"the file is no Python: {error}") from error
    functions = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and set(_TILES) <= _stored(node)
    ]
    if len(functions) != 1:
        raise AnchorsError(f"{len(functions)} functions assign both {_TILES[0]} and {_TILES[1]}")
    function = functions[0]
    deciding = [
        index
        for index, statement in enumerate(function.body)
        if _stored(statement) & set(_TILES) and not _is_ours(statement, source)
    ]
    uses = [
        index
        for index, statement in enumerate(function.body)
        if _loaded(statement) & set(_TILES) and not _stored(statement) & set(_TILES)
    ]
    last = deciding[-1]
    if not uses:
        raise AnchorsError(f"{function.name} never uses its tile sizes")
    if uses[0] < last:
        raise AnchorsError(f"{function.name} uses its tile sizes before they are decided")
    known = {name for statement in function.body[:last] for name in _stored(statement)}
    for needed in (_ROWS, _HEAD):
        if needed not in known:
            raise AnchorsError(f"{function.name} does not set {needed} before its tile sizes")
    if any(_ROWS in _stored(statement) for statement in function.body[last + 1 : uses[0]]):
        raise AnchorsError(f"{function.name} changes {_ROWS} after its tile sizes")
    place = _Place(function, function.body[last], uses[0])
    early = [
        name
        for name in place.stages
        if any(
            name in _loaded(statement) and name not in _stored(statement)
            for statement in function.body[: last + 1]
        )
    ]
    if early:
        raise AnchorsError(f"{function.name} uses {early[0]} before its tile sizes")
    return place


def _is_ours(statement: ast.stmt, source: str) -> bool:
    """Whether a statement is the clamp itself: it changes what it decides."""
    segment = ast.get_source_segment(source, statement) or ""
    return any(_halves(statement, tile) for tile in _TILES) and "_turing" in segment


def _halves(statement: ast.stmt, tile: str) -> bool:
    return any(
        isinstance(node, ast.While) and tile in _stored(node) for node in ast.walk(statement)
    )


def _stored(node: ast.AST) -> set[str]:
    return {
        item.id
        for item in ast.walk(node)
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    }


def _loaded(node: ast.AST) -> set[str]:
    return {
        item.id
        for item in ast.walk(node)
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)
    }


def _element_size(function: ast.FunctionDef) -> str:
    """What the tile sizes themselves are decided by."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or not _stored(node) & set(_TILES):
            continue
        for item in ast.walk(node.value):
            if (
                isinstance(item, ast.Call)
                and isinstance(item.func, ast.Attribute)
                and item.func.attr == "element_size"
            ):
                return ast.unparse(item)
            if isinstance(item, ast.Name) and item.id == "element_size":
                return item.id
    raise AnchorsError(f"{function.name} does not decide its tile sizes by the element's size")


def _launches(function: ast.FunctionDef) -> list[ast.Call]:
    """Kernel launches (`kernel[grid](…)`) that take a tile size."""
    found = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and any(keyword.arg == "TILE_SIZE" for keyword in node.keywords)
    ]
    if not found:
        raise AnchorsError(f"{function.name} neither sets num_stages nor launches a kernel")
    for call in found:
        others = [
            keyword
            for keyword in call.keywords
            if not (isinstance(keyword.value, ast.Name) and keyword.value.id == _LAUNCH)
        ]
        if any(keyword.arg in {None, "num_stages"} for keyword in others):
            raise AnchorsError("a kernel's num_stages is decided at its launch")
    return found


def _block(where: _Place) -> list[str]:
    lines = [
        _BEGIN,
        "# Below compute capability 8 a block has 64 KiB of shared memory: halve the tiles until",
        "# they fit, and do not keep several stages of them.",
        *([f"{_LAUNCH} = {{}}"] if where.launches else []),
        "import torch as _turing_torch",
        "if _turing_torch.cuda.is_available() and "
        "_turing_torch.cuda.get_device_capability()[0] < 8:",
        f"    _turing_bytes = {_HEAD} * {where.element_size}",
    ]
    for tile in _TILES:
        lines += [
            f"    while {tile} > 16 and ({_ROWS} + 2 * {tile}) * _turing_bytes > {BUDGET_BYTES}:",
            f"        {tile} //= 2",
        ]
    lines += [f"    {name} = 1" for name in where.stages]
    if where.launches:
        lines.append(f'    {_LAUNCH}["num_stages"] = 1')
    return ["", *lines, _END]

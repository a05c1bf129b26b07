"""A worker's source alone: nothing of ours, nothing installed, an older Python."""

from __future__ import annotations

import ast
import io
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from backends.serving.engine.crew import WORKER_MODULE
from backends.serving.engine.packing import OLDEST_PYTHON, worker_source

# Imported where an endpoint needs them, which the engine's own loopback never does.
_AT_NEED = {"certifi", "botocore"}


def imports_of(tree: ast.Module) -> set[str]:
    """The modules that a source imports when it runs, by their full names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_a_worker_imports_nothing_but_python_itself() -> None:
    packed = zipfile.ZipFile(io.BytesIO(worker_source()))
    known: dict[str, set[str]] = {}
    left = {WORKER_MODULE}
    while left:
        module = left.pop()
        path = module.replace(".", "/") + ".py"
        source = packed.read(path).decode()
        known[module] = imports_of(ast.parse(source, feature_version=OLDEST_PYTHON))
        left |= {name for name in known[module] if name.startswith("backends.")} - known.keys()
    others = {
        name.partition(".")[0]
        for names in known.values()
        for name in names
        if not name.startswith("backends.")
    }
    assert others - sys.stdlib_module_names <= _AT_NEED
    assert len(known) > 15


@pytest.mark.parametrize("version", ["this", "3.10"])
def test_a_worker_starts_from_its_source_alone_and_ends_with_its_channel(
    tmp_path: Path, version: str
) -> None:
    python = sys.executable if version == "this" else shutil.which(f"python{version}") or ""
    alone = [python, "-S", "-I"]
    if not python or subprocess.call([*alone, "-c", ""], stderr=subprocess.DEVNULL):
        pytest.skip(f"there is no Python {version} here")
    archive = tmp_path / "worker.zip"
    archive.write_bytes(worker_source())
    start = f"import sys; sys.path.insert(0, {str(archive)!r}); import {WORKER_MODULE} as worker; "
    ours, theirs = socket.socketpair()
    with theirs:
        worker = subprocess.Popen(
            [*alone, "-c", start + "sys.exit(worker.main())"],
            stdin=theirs.fileno(), stderr=subprocess.PIPE, cwd=tmp_path,
        )  # fmt: skip
    ours.close()
    _, words = worker.communicate(timeout=30)
    assert (worker.returncode, words) == (0, b"")


def test_the_same_sources_make_the_same_archive() -> None:
    first = worker_source()
    worker_source.cache_clear()
    assert worker_source() == first

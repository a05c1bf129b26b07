"""The program that runs on machines: one file, nothing but an old Python's own library."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from backends.clouds.hosts import LocalHost
from backends.clouds.hosts.program import PROGRAM, UNPACKED, call, install, packed
from backends.core.errors import HostError
from backends.core.settings import PROJECT_DIR

SOURCES = sorted((PROJECT_DIR / "backends/serving/on_host").glob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_needs_nothing_but_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names, name


def test_the_same_sources_make_the_same_file() -> None:
    packed.cache_clear()
    first = packed()
    packed.cache_clear()
    assert packed() == first
    names = zipfile.ZipFile(io.BytesIO(first)).namelist()
    assert "__main__.py" in names
    assert len(names) == len(SOURCES) + 1


def test_it_says_how_it_is_used_and_refuses_the_rest(tmp_path: Path) -> None:
    program = tmp_path / "program.pyz"
    program.write_bytes(packed())
    done = subprocess.run(
        [sys.executable, str(program), "dance"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage: prepare" in done.stderr


async def test_it_is_put_on_a_host_once(tmp_path: Path) -> None:
    host = LocalHost(tmp_path, {"HOME": str(tmp_path)})
    await install(host)
    put_at = (tmp_path / PROGRAM).stat().st_mtime_ns
    await install(host)
    assert (tmp_path / PROGRAM).stat().st_mtime_ns == put_at
    (tmp_path / UNPACKED / "digest").write_text("another version")
    (tmp_path / PROGRAM).write_bytes(b"another version")
    await install(host)
    assert (tmp_path / PROGRAM).read_bytes() == packed()
    assert (tmp_path / UNPACKED / "on_host" / "cli.py").is_file()


async def test_a_host_without_a_python_is_named(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in (
        "bash",
        "sha256sum",
        "cut",
        "mktemp",
        "dirname",
        "mkdir",
        "cat",
        "chmod",
        "mv",
        "rm",
    ):
        (tools / name).symlink_to(Path("/usr/bin") / name)
    host = LocalHost(tmp_path, {"HOME": str(tmp_path), "PATH": str(tools)})
    with pytest.raises(HostError, match="exit code 127") as error:
        await install(host)
    assert "python3" in error.value.words
    with pytest.raises(HostError, match="did not report"):
        await call(host, ["facts"], timeout_s=10)

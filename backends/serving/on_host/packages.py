"""Steps about software: Python, vLLM with its CUDA torch, kernels for this GPU, containers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from . import clamp
from .driver import install, installed, refresh
from .settings import Settings
from .step import Finding, Step
from .system import HOME_FOLDER, PROGRAM, Json, StepError, at, must, run, write_root

# Triton compiles a small launcher with the system's compiler, against Python's headers.
_PYTHON_PACKAGES = ("python3-pip", "python3-dev", "gcc")
_LEAST_PYTHON = (3, 10)

_ASK_VERSIONS = """
import importlib.metadata as m, importlib.util as u, json
found = {}
for name in ("vllm", "torch", "triton", "transformers"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
spec = u.find_spec("vllm")
if spec and spec.submodule_search_locations:
    found["folder"] = list(spec.submodule_search_locations)[0]
print(json.dumps(found))
"""
_ASK_CUDA = """
import json, torch
found = {"cuda": torch.version.cuda, "available": torch.cuda.is_available()}
if found["available"]:
    found["capability"] = list(torch.cuda.get_device_capability())
    found["arch_list"] = torch.cuda.get_arch_list()
    found["gpu"] = torch.cuda.get_device_name()
print(json.dumps(found))
"""


def python_env(settings: Settings) -> dict[str, str]:
    """Variables under which our packages are installed, found and run."""
    return {
        "PYTHONUSERBASE": str(at(settings.user_base)),
        "PIP_CACHE_DIR": str(at(settings.pip_cache)),
        "TMPDIR": str(at(settings.temp)),
        "HF_HOME": str(at(settings.weights)),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONNOUSERSITE": "",
    }


def ask_python(settings: Settings, code: str, timeout_s: float = 120) -> Json:
    """Run a few lines under that Python and return the JSON they print.

    Raises:
        StepError: They failed.
    """
    done = must(
        [settings.python, "-c", code],
        "Asking " + settings.python,
        env=python_env(settings),
        timeout_s=timeout_s,
    )
    try:
        return dict(json.loads(done.out.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        raise StepError(settings.python + " gave no answer.", words=done.words) from None


def versions(settings: Settings) -> Json:
    """Versions of what is installed, and vLLM's folder."""
    return ask_python(settings, _ASK_VERSIONS)


class Python(Step):
    """A Python with pip, and what Triton compiles with."""

    name = "python"

    def look(self) -> Finding:
        """Whether they are there."""
        python = self.settings.python
        code = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
        seen = run([python, "-c", code])
        if seen.code == 127:
            raise StepError(
                "There is no " + python + ".",
                next_action="Choose a Python that the image has, or another image.",
                kind="no_python",
            )
        version = seen.out.strip()
        if tuple(map(int, version.split(".")[:2])) < _LEAST_PYTHON:
            raise StepError(f"{python} is {version}; vLLM needs 3.10.", kind="old_python")
        missing = [name for name in _PYTHON_PACKAGES if not installed(name)]
        pip = run([python, "-m", "pip", "--version"], env=python_env(self.settings))
        if pip.code != 0 and "python3-pip" not in missing:
            missing.append("python3-pip")
        facts = {"python": version, "packages_in": self.settings.user_base}
        if missing:
            return Finding(False, version + "; missing: " + ", ".join(missing), facts)
        return Finding(True, version + ", packages in " + self.settings.user_base, facts)

    def act(self) -> list[str]:
        """Install them."""
        refresh()
        install(list(_PYTHON_PACKAGES), "Installing Python's tools")
        return ["installed " + ", ".join(_PYTHON_PACKAGES)]


class Vllm(Step):
    """vLLM and the torch it was built for, with CUDA."""

    name = "vllm"
    _upgraded = False

    def look(self) -> Finding:
        """Whether what is installed satisfies the requirement."""
        found = versions(self.settings)
        facts = {key: value for key, value in found.items() if key != "folder"}
        words = ", ".join("{} {}".format(*item) for item in facts.items()) or "nothing installed"
        version = found.get("vllm")
        if version is None or "torch" not in found:
            return Finding(False, words, facts)
        if not satisfies(str(version), self.settings.vllm):
            return Finding(False, f"{words}; wanted {self.settings.vllm}", facts)
        if "+cpu" in str(found["torch"]):
            return Finding(False, words + ": torch has no CUDA", facts)
        if self.settings.upgrade and not self._upgraded:
            return Finding(False, words + "; an upgrade was asked for", facts)
        return Finding(True, words, facts)

    def act(self) -> list[str]:
        """Install them with all that they need (without it: `libcudnn.so.9` is not found)."""
        settings = self.settings
        index = ["--extra-index-url", settings.extra_index_url] if settings.extra_index_url else []
        without_cuda = "+cpu" in str(versions(settings).get("torch", ""))
        must(
            [
                *(settings.python, "-m", "pip", "install", "--user", "--break-system-packages"),
                *("--upgrade", "--upgrade-strategy", "eager", "--no-input"),
                *("--progress-bar", "off", *index),
                *(["--force-reinstall"] if without_cuda or self.state.get("unfit") else []),
                settings.vllm,
            ],
            "Installing " + settings.vllm,
            env=python_env(settings),
            timeout_s=5400,
            show=True,
        )
        self._upgraded = True
        found = versions(settings)
        if "+cpu" in str(found.get("torch", "")):
            raise StepError(
                "pip installed torch {}, which has no CUDA.".format(found["torch"]),
                cause="The package index gives a build without CUDA by default.",
                next_action="Prepare again with extra_index_url set to an index of torch's CUDA "
                "builds.",
                kind="no_cuda",
            )
        return ["installed vllm {}, torch {}".format(found.get("vllm"), found.get("torch"))]


class Cuda(Step):
    """torch sees the GPU, and its wheels hold code for it."""

    name = "cuda"

    def look(self) -> Finding:
        """Ask torch; what does not fit the GPU is remembered, for the next upgrade."""
        self.state["unfit"] = True
        found = self._ask()
        self.state["unfit"] = False
        return found

    def _ask(self) -> Finding:
        try:
            found = ask_python(self.settings, _ASK_CUDA, timeout_s=600)
        except StepError as error:
            library = re.search(r"lib(?:cudart|cudnn)\.so\.\d+", error.words)
            if library is None:
                raise
            raise StepError(
                f"torch cannot be imported: {library.group(0)} is missing.",
                words=error.words,
                cause="CUDA's libraries were not installed with it (a CPU build, or --no-deps).",
                next_action="Prepare again with upgrade=true.",
                kind="no_cuda",
            ) from None
        if not found["available"]:
            raise StepError(
                "torch (CUDA {}) does not see a GPU.".format(found["cuda"]),
                cause="torch has no CUDA, or the driver is older than it needs.",
                next_action="Prepare again with upgrade=true; see the step driver.",
                kind="no_cuda",
            )
        capability = tuple(found["capability"])
        arch = "sm_{}{}".format(*capability)
        if not covers(found["arch_list"], capability):
            raise StepError(
                "torch has no code for {}; it has {}.".format(arch, " ".join(found["arch_list"])),
                words="no kernel image is available for execution on the device",
                cause="This build of torch has dropped the GPU's generation.",
                next_action="Call prepare_host with upgrade=true, which installs it anew (with "
                "extra_index_url: from an index whose torch has it), or with another vllm.",
                kind="no_kernel",
            )
        self.state["capability"] = list(capability)
        return Finding(
            True,
            "{}, {} among {}".format(found["gpu"], arch, " ".join(found["arch_list"])),
            {"compute_capability": "{}.{}".format(*capability), "cuda": found["cuda"]},
        )

    def act(self) -> list[str]:
        """There is nothing to do: `look` either finds it or fails."""
        return []


class Clamp(Step):
    """The attention kernel fits the GPU's shared memory; needed below capability 8."""

    name = "clamp"

    def look(self) -> Finding:
        """Whether it is clamped, or need not be."""
        capability = self.state.get("capability")
        if capability is None:
            return Finding(False, "the GPU's capability is not known yet")
        if capability[0] >= 8:
            return Finding(True, "not needed for capability {}.{}".format(*capability))
        path = kernel_file(self.settings)
        return Finding(
            read_clamp(path),
            "{}{}".format("clamped: " if read_clamp(path) else "not clamped: ", path),
            {"file": str(path)},
        )

    def act(self) -> list[str]:
        """Clamp it."""
        path = kernel_file(self.settings)
        try:
            clamp.apply(path)
        except clamp.AnchorsError as error:
            raise _no_anchors(path, error) from None
        return ["clamped " + str(path)]


def kernel_file(settings: Settings) -> Path:
    """The installed attention kernel.

    Raises:
        StepError: vLLM is not installed, or has no such file.
    """
    folder = versions(settings).get("folder")
    if not folder:
        raise StepError("vLLM is not installed.", kind="no_vllm")
    path = Path(str(folder)) / clamp.FILE_IN_VLLM
    if not path.is_file():
        raise StepError(
            "This vLLM has no " + clamp.FILE_IN_VLLM + ".",
            cause="Its attention kernels were moved.",
            next_action="Choose a vLLM this clamp is known for (setting vllm, e.g. vllm==0.29.0).",
            kind="no_anchors",
        )
    return path


def read_clamp(path: Path) -> bool:
    """Whether a kernel file is clamped.

    Raises:
        StepError: It cannot be told.
    """
    try:
        return clamp.is_clamped(path.read_text(encoding="utf-8"))
    except clamp.AnchorsError as error:
        raise _no_anchors(path, error) from None


def _no_anchors(path: Path, error: Exception) -> StepError:
    return StepError(
        f"{path} is not built as expected, so it was not changed.",
        words=str(error),
        cause="This vLLM's kernel differs from those the clamp is known for.",
        next_action="Choose a vLLM this clamp is known for (setting vllm, e.g. vllm==0.29.0).",
        kind="no_anchors",
    )


class Docker(Step):
    """docker runs; Google's own images for Compute Engine lack it."""

    name = "docker"

    def look(self) -> Finding:
        """Whether it answers."""
        seen = run(["docker", "version", "--format", "{{.Server.Version}}"], root=True)
        if seen.code == 0:
            return Finding(True, "docker " + seen.out.strip())
        return Finding(False, seen.words or "docker does not answer")

    def act(self) -> list[str]:
        """Install and start it."""
        if not installed("docker.io"):
            refresh()
            install(["docker.io"], "Installing docker")
        run(["systemctl", "enable", "--now", "docker"], root=True)
        return ["installed docker"]


class Image(Step):
    """The engine's image is on the machine."""

    name = "image"

    def look(self) -> Finding:
        """Whether it is."""
        image = self.settings.image
        if not image:
            raise StepError("No image was named.", kind="settings")
        seen = run(["docker", "image", "inspect", image], root=True)
        return Finding(seen.code == 0, image)

    def act(self) -> list[str]:
        """Pull it, up to three times."""
        for attempt in range(3):
            pulled = run(
                ["docker", "pull", self.settings.image], root=True, timeout_s=3600, show=True
            )
            if pulled.code == 0:
                return ["pulled " + self.settings.image]
            if "no space left on device" in pulled.words:
                raise StepError(
                    "There is no room for the image.",
                    words=pulled.words,
                    cause="The boot disk is too small (Google's image has 10 GB).",
                    next_action="Deploy again with a boot disk of 200 GB.",
                    kind="no_space",
                )
            if attempt == 2:
                raise StepError("The image cannot be pulled.", words=pulled.words)
        return []


class Unit(Step):
    """systemd starts serving by itself after a boot."""

    name = "unit"
    unit = "vllm-devops-serve"

    def look(self) -> Finding:
        """Whether the unit is as it should be, and enabled."""
        try:
            same = at(self._path()).read_text(encoding="utf-8") == self._text()
        except FileNotFoundError:
            same = False
        enabled = run(["systemctl", "is-enabled", self.unit]).out.strip() == "enabled"
        return Finding(same and enabled, "enabled" if same and enabled else "not set up")

    def act(self) -> list[str]:
        """Write and enable it; it is not started now."""
        write_root(self._path(), self._text())
        must(["systemctl", "daemon-reload"], "systemctl", root=True)
        must(["systemctl", "enable", self.unit], "Enabling the unit", root=True)
        return ["enabled " + self.unit]

    def _path(self) -> str:
        return f"/etc/systemd/system/{self.unit}.service"

    def _text(self) -> str:
        import getpass

        program = HOME_FOLDER / PROGRAM
        return (
            "[Unit]\nDescription=vLLM, as vllm-devops last started it\n"
            "After=network-online.target local-fs.target\nWants=network-online.target\n\n"
            f"[Service]\nType=oneshot\nRemainAfterExit=yes\nUser={getpass.getuser()}\nWorkingDirectory={HOME_FOLDER.parent}\n"
            f'ExecStart=/usr/bin/env python3 "{program}" serve boot\nKillMode=none\n\n'
            "[Install]\nWantedBy=multi-user.target\n"
        )


def satisfies(version: str, requirement: str) -> bool:
    """Whether a version satisfies `NAME`, `NAME==V` or `NAME>=V`."""
    parts = re.match(r"^[\w.\[\]-]+?\s*(?:(==|>=)\s*([\w.+-]+))?$", requirement)
    if parts is None or parts.group(1) is None:
        return True
    have, want = _numbers(version), _numbers(parts.group(2))
    if parts.group(1) == "==":
        return have[: len(want)] == want
    return have >= want


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group(0).split(".")) if found else ()


def covers(arch_list: list[str], capability: tuple[int, ...]) -> bool:
    """Whether wheels hold code for a GPU: for its generation up to it, or to be compiled for it."""
    for arch in arch_list:
        found: re.Match[str] | None = re.match(r"(sm|compute)_(\d+)(\d)", arch)
        if found is None:
            continue
        theirs = (int(found.group(2)), int(found.group(3)))
        same = theirs[0] == capability[0]
        if theirs <= tuple(capability) and (found.group(1) == "compute" or same):
            return True
    return False

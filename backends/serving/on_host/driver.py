"""Steps about the GPU's driver: headers first, then the driver, then a restart."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .step import Finding, RebootNeeded, Step
from .system import Ran, StepError, at, boot_id, kernel_log, must, run

_APT = ["apt-get", "-y", "-o", "DPkg::Lock::Timeout=300"]
_QUERY = "name,driver_version,memory.total,compute_cap"


def installed(package: str) -> bool:
    """Whether dpkg has a package."""
    found = run(["dpkg-query", "-W", "-f=${Status}", package])
    return found.code == 0 and "install ok installed" in found.out


def install(packages: list[str], what: str) -> None:
    """Install packages.

    Raises:
        StepError: They cannot be had.
    """
    must([*_APT, "install", *packages], what, root=True, timeout_s=1800, show=True)


def refresh() -> None:
    """Read the package lists again."""
    must([*_APT, "update"], "apt-get update", root=True, timeout_s=300, show=True)


def gpu_query(fields: str) -> Ran:
    """Ask nvidia-smi; its exit code is not 0 where there is no driver."""
    return run(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"])


class Headers(Step):
    """The running kernel's headers are there before the driver, which is built against them."""

    name = "headers"

    def look(self) -> Finding:
        """Whether dpkg has them."""
        package = self._package()
        return Finding(installed(package), package, {"kernel": package[len("linux-headers-") :]})

    def act(self) -> list[str]:
        """Install them."""
        refresh()
        install([self._package()], "Installing the kernel's headers")
        return ["installed " + self._package()]

    @staticmethod
    def _package() -> str:
        return "linux-headers-" + must(["uname", "-r"], "uname").out.strip()


class Driver(Step):
    """nvidia-smi sees the GPU."""

    name = "driver"

    def look(self) -> Finding:
        """Whether it does."""
        seen = gpu_query(_QUERY)
        if seen.code == 0 and "," in seen.out:
            values = [item.strip() for item in seen.out.splitlines()[0].split(",")]
            names = ("gpu", "driver", "memory_mib", "compute_capability")
            facts = dict(zip(names, values))  # noqa: B905 (Python 3.9)
            return Finding(True, f"{values[0]}, driver {values[1]}", facts)
        has = installed(self.settings.driver_package)
        return Finding(False, "installed, not loaded" if has else "not installed")

    def act(self) -> list[str]:
        """Install it; where it is installed, load it or ask for a restart."""
        if not installed(self.settings.driver_package):
            self._add_repository()
            refresh()
            self.state["driver_installed_in_boot"] = boot_id()
            install([self.settings.driver_package], "Installing the driver")
        elif self.state.get("driver_installed_in_boot") != boot_id():
            return self._mend()
        if self.look().ok:
            return ["installed " + self.settings.driver_package]
        raise RebootNeeded

    def _mend(self) -> list[str]:
        """Installed, restarted, and still not loaded: the module may be of another kernel."""
        built = run(["dkms", "autoinstall"], root=True, timeout_s=1200, show=True)
        loaded = run(["modprobe", "nvidia"], root=True, timeout_s=120)
        if self.look().ok:
            return ["built the module for this kernel and loaded it"]
        if built.code == 0 and loaded.code != 0 and not self.state.get("driver_mended"):
            self.state["driver_mended"] = True
            raise RebootNeeded
        self.state.pop("driver_mended", None)
        status = run(["dkms", "status"]).out.strip()
        told = [line for line in kernel_log() if "nvidia" in line.lower() or "NVRM" in line]
        raise StepError(
            "The driver is installed but not loaded, after a restart too.",
            words="\n".join([loaded.words, "dkms status: " + status, *told[-5:]]),
            cause="The module was not built for this kernel, or the machine has no GPU.",
            next_action="Read the words; check that the machine has a GPU and that its kernel's "
            "headers are installed, then prepare again.",
            kind="driver_missing",
        )

    def _add_repository(self) -> None:
        """NVIDIA's packages for this system, by the keyring package NVIDIA publishes."""
        if list(at("/etc/apt/sources.list.d").glob("*cuda*")):
            return
        release = {}
        for line in at("/etc/os-release").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            release[key] = value.strip('"')
        system = release.get("ID", "") + release.get("VERSION_ID", "").replace(".", "")
        arch = must(["uname", "-m"], "uname").out.strip()
        url = f"{self.settings.driver_repository}/{system}/{arch}/cuda-keyring_1.1-1_all.deb"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cuda-keyring.deb"
            must(
                ["curl", "-fsSL", "--retry", "3", "--max-time", "120", "-o", file, url],
                "Fetching NVIDIA's keyring",
                timeout_s=420,
            )
            must(["dpkg", "-i", file], "Adding NVIDIA's packages", root=True, timeout_s=120)

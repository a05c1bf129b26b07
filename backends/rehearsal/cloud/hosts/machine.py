"""One machine: what it has, whether it runs, and its restarts. Standard library only.

Several processes use a machine at once, so every change is made under a lock on its folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]

SANDBOX = "VLLM_DEVOPS_SANDBOX"
ROOT = "VLLM_DEVOPS_HOST_ROOT"
LOOPBACK = "VLLM_DEVOPS_HOST_LOOPBACK"
REPO = Path(__file__).resolve().parents[4]

# From power-on to the first ssh, and the same once more, at Google's speed (20 to 40 s there).
BOOT_S = 25.0
_ENDED_S = 3.0


class Machine:
    """A machine's folder.

    Args:
        folder: `…/hosts/machines/KEY`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.farm = folder.parent.parent
        self.root = folder / "root"
        self.home = folder / "home"

    @classmethod
    def here(cls) -> Machine:
        """The machine this process runs on."""
        return cls(Path(os.environ[SANDBOX]))

    # ------------------------------------------------------------------------- state

    def read(self) -> Json:
        """What it has now; empty where it does not exist (any more)."""
        try:
            return dict(json.loads((self.folder / "machine.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}

    @contextlib.contextmanager
    def change(self) -> Iterator[Json]:
        """Its state, to be changed; written whole at the end of the block."""
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read()
            yield state
            new = self.folder / "machine.json.new"
            new.write_text(json.dumps(state), encoding="utf-8")
            new.replace(self.folder / "machine.json")

    def at(self, path: str) -> Path:
        """Where a path of the machine is."""
        if path.startswith(str(self.root)):
            return Path(path)
        return self.root / path.lstrip("/") if path.startswith("/") else Path(path)

    def seconds(self, google_s: float) -> float:
        """How long something that takes `google_s` there takes here."""
        return google_s / float(self.read().get("speed", 1))

    def env(self) -> dict[str, str]:
        """The environment of a login; nothing of the caller's."""
        state = self.read()
        return {
            "HOME": str(self.home),
            "USER": "rehearsal",
            "LOGNAME": "rehearsal",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PATH": f"{self.farm / 'programs'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            SANDBOX: str(self.folder),
            ROOT: str(self.root),
            LOOPBACK: str(state.get("address", "127.0.0.1")),
        }

    def log_kernel(self, line: str) -> None:
        """Add a line to the kernel log."""
        with self.change() as state:
            since = time.time() - float(state.get("booted_at", time.time()))
            state.setdefault("kernel_log", []).append(f"[{since:12.6f}] {line}")

    # ------------------------------------------------------------------------- faults

    def fault(self, name: str, command: str = "") -> Json | None:
        """The fault of that name that meets this machine now; counts it."""
        path = self.farm / "faults.json"
        if not path.exists():
            return None
        with (self.farm / ".faults.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                faults: list[Json] = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                return None
            for fault in faults:
                if (
                    fault["fault"] == name
                    and fault.get("times", 1) != 0
                    and fnmatch.fnmatchcase(self.folder.name.split(".")[2], fault.get("host", "*"))
                    and re.search(fault.get("command", ""), command)
                ):
                    fault["times"] = fault.get("times", 1) - (fault.get("times", 1) > 0)
                    new = self.farm / "faults.json.new"
                    new.write_text(json.dumps(faults), encoding="utf-8")
                    new.replace(path)
                    return fault
        return None

    # ------------------------------------------------------------------------- power

    def running(self) -> bool:
        """Whether it is powered on."""
        return self.read().get("status") == "running"

    def reachable(self) -> bool:
        """Whether its sshd answers."""
        state = self.read()
        return state.get("status") == "running" and time.time() >= float(state["up_at"])

    def power_on(self) -> None:
        """Boot: a new boot id, nothing of the last boot's memory; then what starts by itself."""
        with self.change() as state:
            state["status"] = "running"
            state["boot_id"] = new_uuid()
            state["boots"] = int(state.get("boots", 0)) + 1
            state["booted_at"] = time.time()
            state["up_at"] = time.time() + BOOT_S / float(state.get("speed", 1))
            state["swaps"] = {}
            state["engines"] = {}
            state["docker_down"] = False
            for unit in state.get("units", {}).values():
                unit.pop("pid", None)
                unit.pop("stopped", None)
            state["kernel_log"] = [
                f"[    0.000000] Linux version {state['kernel']} (rehearsal machine)"
            ]
            state["driver_loaded"] = self._driver_fits(state)
            self._write_proc(state)
            fstab = _fstab(self.root)
            for mountpoint in list(state["mounts"]):
                if mountpoint not in {line[1] for line in fstab}:
                    self.unmount(state, mountpoint)
            for device, mountpoint, kind, _ in fstab:
                if kind == "swap" and self.at(device).exists():
                    state["swaps"][device] = self.at(device).stat().st_size
                elif kind != "swap":
                    self.mount(state, device, mountpoint)
        if self.fault("driver-missing") is not None:
            with self.change() as state:
                state["driver_loaded"] = False
                state["driver_broken"] = True
        self.spawn([sys.executable, "-S", "-c", _BOOTING, str(REPO), str(self.folder)])

    def come_up(self) -> None:
        """Wait until it is up, then start its units and its startup script. In its own process."""
        state = self.read()
        boot = state.get("boot_id")
        time.sleep(max(0.0, float(state["up_at"]) - time.time()))
        state = self.read()
        if state.get("boot_id") != boot or state.get("status") != "running":
            return
        for name, unit in state.get("units", {}).items():
            if unit.get("enabled") and not unit.get("stopped"):
                from backends.rehearsal.cloud.hosts.programs import start_unit

                start_unit(self, name)
        script = state.get("metadata", {}).get("startup-script", "")
        if script:
            with (self.folder / "startup.log").open("ab") as log:
                self.spawn(["bash", "-c", script], env=self.env(), output=log)

    def power_off(self) -> None:
        """Everything on it ends at once."""
        if not (self.folder / "machine.json").exists():
            return
        with self.change() as state:
            state["status"] = "stopped"
            state["boot_id"] = ""
            state["engines"] = {}
        self.end_all()

    def reboot(self) -> None:
        """Off and on again."""
        self.power_off()
        self.power_on()

    def end_all(self) -> None:
        """End every process that runs on it, and nothing else: they carry its mark."""
        mark = f"{SANDBOX}={self.folder}".encode()
        until = time.monotonic() + _ENDED_S
        while True:
            found = [pid for pid in _pids() if mark in _environ(pid) and pid != os.getpid()]
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not found or time.monotonic() > until:
                return
            time.sleep(0.02)

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        output: Any = None,  # noqa: ANN401 (a file, as subprocess takes it)
    ) -> int:
        """Start a process that outlives this one; without `env` it does not run on the machine."""
        chosen = dict(env) if env is not None else _outside()
        # Every played program imports this module, and few of them start anything.
        import subprocess
        import threading

        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.DEVNULL,
            stderr=subprocess.STDOUT if output else subprocess.DEVNULL,
            cwd=self.home,
            env=chosen,
            start_new_session=True,
        )
        threading.Thread(target=process.wait, daemon=True).start()
        return process.pid

    # ------------------------------------------------------------------------- disks

    def mount(self, state: Json, device: str, mountpoint: str) -> bool:
        """Put a disk's folder where it is mounted; False where there is no such disk."""
        disk = find_disk(state, device)
        if disk is None or not disk.get("fs"):
            return False
        place = self.at(mountpoint)
        store = self.farm / "disks" / disk["store"]
        (store / "files").mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            return True
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            place.rmdir()
        place.symlink_to(store / "files")
        state["mounts"][mountpoint] = disk["device"]
        return True

    def unmount(self, state: Json, mountpoint: str) -> None:
        """Take it away again; what is on the disk stays."""
        place = self.at(mountpoint)
        if place.is_symlink():
            place.unlink()
            place.mkdir()
        state["mounts"].pop(mountpoint, None)

    def _write_proc(self, state: Json) -> None:
        """What programs read of the kernel, and the disks' names."""
        memory = int(state["ram_mib"]) * 1024
        for path, text in (
            ("proc/sys/kernel/random/boot_id", state["boot_id"]),
            ("proc/meminfo", f"MemTotal: {memory} kB\nMemAvailable: {memory // 10 * 9} kB"),
            *((disk["device"].lstrip("/"), "") for disk in state["disks"]),
        ):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(f"{text}\n", encoding="utf-8")
        by_id = self.root / "dev/disk/by-id"
        by_id.mkdir(parents=True, exist_ok=True)
        for disk in state["disks"]:
            link = by_id / disk["id"]
            if not link.is_symlink():
                link.symlink_to(self.root / disk["device"].lstrip("/"))

    @staticmethod
    def _driver_fits(state: Json) -> bool:
        built = state.get("packages", {}).get("nvidia-driver")
        return bool(built and state.get("gpu") and not state.get("driver_broken"))


def new_uuid() -> str:
    """A random id in the usual form (the module for it takes as long to import as all the rest)."""
    digits = os.urandom(16).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts)


def find_disk(state: Json, device: str) -> Json | None:
    """A disk by its device, one of its links, or `UUID=…`."""
    for disk in state.get("disks", []):
        names = {disk["device"], f"/dev/disk/by-id/{disk['id']}", f"UUID={disk.get('uuid')}"}
        if device in names:
            return dict(disk)
    return None


def _fstab(root: Path) -> list[tuple[str, str, str, str]]:
    try:
        text = (root / "etc/fstab").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and not words[0].startswith("#"):
            found.append((words[0], words[1], words[2], words[3]))
    return [item for item in found if item[1] != "/"]


def _outside() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in {SANDBOX, ROOT}}


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environ(pid: int) -> Sequence[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ()


_BOOTING = (
    "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
    "from backends.rehearsal.cloud.hosts.machine import Machine; "
    "Machine(Path(sys.argv[2])).come_up()"
)

Program = Callable[[Machine, list[str]], int]

"""Programs of a rehearsal machine that need hardware, root or a network, and their doings.

Each is a function of the machine and its arguments; `main` finds it by the name it was started by.
Standard library only: they start in hundredths of a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from backends.rehearsal.cloud.hosts.machine import REPO, Json, Machine, find_disk, new_uuid

Program = Callable[[Machine, list[str]], int]

_GIB = 2**30
_DRIVER = "615.71.09-2"
_WEIGHTS_MIB = 13_371
_ENGINE = (
    "from backends.rehearsal.cloud.hosts.engine import main; import sys; "
    "sys.exit(main(sys.argv[1:]))"
)
_TMP = "/tmp"  # noqa: S108 (the machine's own)


def main(name: str, argv: list[str]) -> int:
    """Run the program of that name; returns its exit code."""
    return TABLE[name](Machine.here(), argv)


def _out(text: str) -> int:
    sys.stdout.write(text if not text or text.endswith("\n") else text + "\n")
    sys.stdout.flush()
    return 0


def _fail(text: str, code: int = 1) -> int:
    sys.stderr.write(text + "\n")
    return code


# ----------------------------------------------------------------------------------- plain ones


def uname(machine: Machine, argv: list[str]) -> int:
    """The kernel's release, or the machine's kind."""
    return _out("x86_64" if "-m" in argv else str(machine.read()["kernel"]))


def uptime(machine: Machine, argv: list[str]) -> int:
    """When it was booted."""
    del argv
    booted = float(machine.read()["booted_at"])
    return _out(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(booted)))


def dmesg(machine: Machine, argv: list[str]) -> int:
    """The kernel's log."""
    del argv
    return _out("".join(f"{line}\n" for line in machine.read().get("kernel_log", [])))


def reboot(machine: Machine, argv: list[str]) -> int:
    """Restart: everything that runs here ends, this included."""
    del argv
    start = (
        f"import sys, time; sys.path.insert(0, {str(REPO)!r}); from pathlib import Path; "
        "from backends.rehearsal.cloud.hosts.machine import Machine; "
        "time.sleep(0.1); Machine(Path(sys.argv[1])).reboot()"
    )
    machine.spawn([sys.executable, "-S", "-E", "-c", start, str(machine.folder)])
    return 0


def shutdown(machine: Machine, argv: list[str]) -> int:
    """`shutdown -r now` restarts; anything else powers off."""
    if "-r" in argv:
        return reboot(machine, argv)
    start = (
        f"import sys, time; sys.path.insert(0, {str(REPO)!r}); from pathlib import Path; "
        "from backends.rehearsal.cloud.hosts.machine import Machine; "
        "time.sleep(0.1); Machine(Path(sys.argv[1])).power_off()"
    )
    machine.spawn([sys.executable, "-S", "-E", "-c", start, str(machine.folder)])
    return 0


# ----------------------------------------------------------------------------------- packages


def dpkg_query(machine: Machine, argv: list[str]) -> int:
    """`-W -f=${Status} NAME`: whether a package is installed."""
    name = argv[-1]
    packages = machine.read()["packages"]
    if name not in packages:
        return _fail(f"dpkg-query: no packages found matching {name}")
    wants_version = any("Version" in word for word in argv)
    return _out(str(packages[name]) if wants_version else "install ok installed")


def apt_get(machine: Machine, argv: list[str]) -> int:
    """`update` and `install`."""
    words = [word for word in argv if not word.startswith("-") and "=" not in word]
    if not words or words[0] in {"update", "clean"}:
        return _out("Reading package lists...")
    if machine.fault("apt-locked") is not None:
        return _fail(
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 "
            "(unattended-upgr)",
            100,
        )
    kernel = machine.read()["kernel"]
    for name in words[1:]:
        if machine.fault("apt", name) is not None:
            return _fail(f"E: Unable to locate package {name}", 100)
        if name.startswith("linux-headers-") and name != f"linux-headers-{kernel}":
            return _fail(f"E: Unable to locate package {name}", 100)
        if name == "nvidia-driver" and not machine.at("/etc/apt/sources.list.d/cuda.list").exists():
            return _fail("E: Unable to locate package nvidia-driver", 100)
        time.sleep(machine.seconds(90 if name == "nvidia-driver" else 20))
        with machine.change() as state:
            headers = f"linux-headers-{kernel}" in state["packages"]
            if name == "nvidia-driver" and not headers:
                state["driver_broken"] = True
            state["packages"][name] = _DRIVER if name == "nvidia-driver" else "1.0"
        _out(f"Setting up {name} ...")
    return 0


def dpkg(machine: Machine, argv: list[str]) -> int:
    """`-i FILE.deb`: the keyring that makes CUDA's packages known."""
    if "-i" in argv:
        machine.at("/etc/apt/sources.list.d/cuda.list").write_text("deb cuda /\n")
    return _out("Setting up cuda-keyring ...")


def curl(machine: Machine, argv: list[str]) -> int:
    """Downloads to `-o FILE`; the metadata server and Google's APIs without it."""
    if machine.fault("download") is not None:
        return _fail("curl: (6) Could not resolve host", 6)
    if "-o" in argv:
        Path(argv[argv.index("-o") + 1]).write_text("rehearsal\n", encoding="utf-8")
        return 0
    from backends.rehearsal.cloud.hosts.network import curl as play

    return play(machine, argv)


def dkms(machine: Machine, argv: list[str]) -> int:
    """`status` and `autoinstall` of the driver's module."""
    state = machine.read()
    if "nvidia-driver" not in state["packages"]:
        return 0
    if argv[:1] == ["autoinstall"]:
        if f"linux-headers-{state['kernel']}" not in state["packages"]:
            return _fail("Error! Your kernel headers for this kernel cannot be found.")
        with machine.change() as kept:
            kept["driver_broken"] = bool(machine.fault("dkms"))
        return 0
    broken = state.get("driver_broken")
    return _out(
        f"nvidia/{_DRIVER.split('-', 1)[0]}, {state['kernel']}, x86_64: "
        + ("added" if broken else "installed")
    )


def modprobe(machine: Machine, argv: list[str]) -> int:
    """Load the driver's module."""
    state = machine.read()
    if "nvidia" not in argv:
        return 0
    if "nvidia-driver" not in state["packages"] or state.get("driver_broken"):
        return _fail(
            f"modprobe: FATAL: Module nvidia not found in directory /lib/modules/{state['kernel']}"
        )
    # A module of the old kernel's nouveau must go first: only a restart does that here.
    return _fail("modprobe: ERROR: could not insert 'nvidia': No such device")


def nvidia_smi(machine: Machine, argv: list[str]) -> int:
    """`--query-gpu=… --format=csv,noheader,nounits`, `-L`, or a line."""
    state = machine.read()
    gpu = state.get("gpu")
    if "nvidia-driver" not in state["packages"]:
        return _fail("nvidia-smi: command not found", 127)
    if not gpu or not state.get("driver_loaded"):
        _out(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
            "sure that the latest NVIDIA driver is installed and running."
        )
        return 9
    used = _vram_used(machine, state)
    values = {
        "name": gpu["name"],
        "compute_cap": gpu["capability"],
        "memory.total": str(gpu["memory_mib"]),
        "memory.used": str(used),
        "memory.free": str(gpu["memory_mib"] - used),
        "driver_version": _DRIVER.split("-", 1)[0],
        "temperature.gpu": "41" if used < 100 else "68",
        "power.draw": "27.40" if used < 100 else "69.11",
        "power.limit": "70.00",
        "clocks.sm": "1590" if used < 100 else "1290",
        "clocks.max.sm": "1590",
        "utilization.gpu": "0" if used < 100 else "97",
        "clocks_throttle_reasons.active": "0x0000000000000001"
        if used < 100
        else "0x0000000000000004",
        "clocks_throttle_reasons.sw_power_cap": "Not Active" if used < 100 else "Active",
        "clocks_event_reasons.sw_power_cap": "Not Active" if used < 100 else "Active",
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "index": "0",
        "count": "1",
    }
    for word in argv:
        if word.startswith("--query-gpu="):
            return _out(", ".join(values.get(key, "[N/A]") for key in word[12:].split(",")))
        if word.startswith("--query-compute-apps="):
            rows = [f"{pid}, {used}" for pid in _engines(state)]
            return _out("".join(f"{row}\n" for row in rows))
    return _out(f"GPU 0: {gpu['name']} (UUID: {values['uuid']})")


def _engines(state: Json) -> list[int]:
    return [int(pid) for pid in state.get("engines", {}) if Path(f"/proc/{pid}").exists()]


def _vram_used(machine: Machine, state: Json) -> int:
    used = 0
    for pid in _engines(state):
        age = time.time() - float(state["engines"][str(pid)]["started_at"])
        share = min(1.0, age / max(machine.seconds(300), 1e-6))
        used = max(used, int(_WEIGHTS_MIB * share))
    return used


# ----------------------------------------------------------------------------------- disks


def df(machine: Machine, argv: list[str]) -> int:
    """`-Pk PATH`: what is free where that path is."""
    paths = [word for word in argv if not word.startswith("-")]
    state = machine.read()
    rows = ["Filesystem 1024-blocks Used Available Capacity Mounted on"]
    for path in paths or ["/"]:
        inside = "/" + str(machine.at(path)).removeprefix(str(machine.root)).lstrip("/")
        mounts = sorted(state["mounts"], key=len, reverse=True)
        where = next((m for m in mounts if inside == m or inside.startswith(m + "/")), "/")
        if where != "/":
            disk = find_disk(state, state["mounts"][where])
            total = int((disk or {}).get("size_gb", 10)) * _GIB
            free = int(total * 0.9)
        elif inside == _TMP or inside.startswith(f"{_TMP}/"):
            where, total = _TMP, int(3.9 * _GIB)
            free = 0 if machine.fault("tmp-full") is not None else total
        else:
            total = 32 * _GIB
            free = int(0.05 * _GIB) if machine.fault("disk-full") is not None else 20 * _GIB
        used = total - free
        rows.append(
            f"/dev/x {total // 1024} {used // 1024} {free // 1024} {100 * used // total}% {where}"
        )
    return _out("\n".join(rows))


def blkid(machine: Machine, argv: list[str]) -> int:
    """What is on a disk; 2 where nothing is."""
    disk = find_disk(machine.read(), argv[-1])
    if disk is None or not disk.get("fs"):
        return 2
    if "value" in argv:
        wanted = argv[argv.index("-s") + 1]
        return _out(str(disk["uuid"] if wanted == "UUID" else disk["fs"]))
    return _out(f'{argv[-1]}: UUID="{disk["uuid"]}" TYPE="{disk["fs"]}"')


def wipefs(machine: Machine, argv: list[str]) -> int:
    """`-n`: signatures of any kind on a disk."""
    disk = find_disk(machine.read(), argv[-1])
    if disk is None:
        return _fail(f"wipefs: error: {argv[-1]}: probing initialization failed: No such file", 1)
    if disk.get("foreign"):
        return _out("DEVICE OFFSET TYPE UUID LABEL\nsdb 0x438 crypto_LUKS")
    return _out("" if not disk.get("fs") else f"DEVICE OFFSET TYPE\nsdb 0x438 {disk['fs']}")


def lsblk(machine: Machine, argv: list[str]) -> int:
    """`-n -o NAME DEVICE`: a disk and its partitions."""
    disk = find_disk(machine.read(), argv[-1])
    if disk is None:
        return _fail(f"lsblk: {argv[-1]}: not a block device", 32)
    return _out(str(disk["device"]).removeprefix("/dev/"))


def mkfs(machine: Machine, argv: list[str]) -> int:
    """Make a file system on a disk."""
    with machine.change() as state:
        for disk in state["disks"]:
            if argv[-1] in {disk["device"], f"/dev/disk/by-id/{disk['id']}"}:
                disk["fs"], disk["uuid"] = "ext4", new_uuid()
                store = machine.farm / "disks" / disk["store"]
                store.mkdir(parents=True, exist_ok=True)
                import json

                (store / "fs.json").write_text(
                    json.dumps({"fs": disk["fs"], "uuid": disk["uuid"]}), encoding="utf-8"
                )
                return _out("Writing superblocks and filesystem accounting information: done")
    return _fail(f"mkfs.ext4: No such file or directory: {argv[-1]}")


def mount(machine: Machine, argv: list[str]) -> int:
    """`[-o OPTIONS] DEVICE FOLDER`."""
    words = list(argv)
    if "-o" in words:
        at = words.index("-o")
        del words[at : at + 2]
    with machine.change() as state:
        if machine.mount(state, words[-2], words[-1]):
            return 0
    return _fail(f"mount: {words[-1]}: special device {words[-2]} does not exist.", 32)


def umount(machine: Machine, argv: list[str]) -> int:
    """Unmount a folder."""
    with machine.change() as state:
        machine.unmount(state, argv[-1])
    return 0


def findmnt(machine: Machine, argv: list[str]) -> int:
    """`-n -o SOURCE --mountpoint FOLDER`: what is mounted there; 1 where nothing is."""
    source = machine.read()["mounts"].get(argv[-1])
    return 1 if source is None else _out(str(source))


def fallocate(machine: Machine, argv: list[str]) -> int:
    """`-l SIZE FILE`: a file of that size (sparse here)."""
    size, path = argv[argv.index("-l") + 1], argv[-1]
    if machine.fault("disk-full") is not None:
        return _fail("fallocate: fallocate failed: No space left on device")
    unit = {"G": _GIB, "M": 2**20}.get(size[-1])
    amount = int(size[:-1]) * unit if unit else int(size)
    with machine.at(path).open("wb") as file:
        file.truncate(amount)
    return 0


def mkswap(machine: Machine, argv: list[str]) -> int:
    """Mark a file as swap space."""
    place = machine.at(argv[-1])
    if place.stat().st_mode & 0o077:
        _fail(f"mkswap: {argv[-1]}: insecure permissions, 0600 suggested.")
    with place.open("r+b") as file:
        file.seek(4086)
        file.write(b"SWAPSPACE2")
    return _out("Setting up swapspace version 1")


def swapon(machine: Machine, argv: list[str]) -> int:
    """`--show=NAME,SIZE --bytes --noheadings --raw`, or a file."""
    if any(word.startswith("--show") for word in argv):
        swaps = machine.read()["swaps"]
        return _out("".join(f"{name} {size}\n" for name, size in swaps.items()))
    place = machine.at(argv[-1])
    with contextlib.suppress(FileNotFoundError), place.open("rb") as file:
        file.seek(4086)
        if file.read(10) == b"SWAPSPACE2":
            with machine.change() as state:
                state["swaps"][argv[-1]] = place.stat().st_size
            return 0
        return _fail(f"swapon: {argv[-1]}: read swap header failed", 255)
    return _fail(f"swapon: cannot open {argv[-1]}: No such file or directory", 255)


def swapoff(machine: Machine, argv: list[str]) -> int:
    """Stop swapping to a file."""
    with machine.change() as state:
        state["swaps"].pop(argv[-1], None)
    return 0


# ----------------------------------------------------------------------------------- services


def systemctl(machine: Machine, argv: list[str]) -> int:
    """daemon-reload, enable, disable, start, stop, show, is-active, is-enabled, reboot."""
    words = [word for word in argv if not word.startswith("-")]
    verb, names = (words[0] if words else ""), [word.removesuffix(".service") for word in words[1:]]
    if verb == "reboot":
        return reboot(machine, [])
    if verb == "poweroff":
        return shutdown(machine, [])
    if names == ["docker"] and verb in {"start", "restart"}:
        return _start_docker(machine)
    code = 0
    for name in names:
        if verb in {"enable", "disable"}:
            if verb == "enable" and not _unit_file(machine, name).exists():
                return _fail(f"Failed to enable unit: Unit file {name}.service does not exist.")
            with machine.change() as state:
                state["units"].setdefault(name, {})["enabled"] = verb == "enable"
        if verb == "start" or (verb == "enable" and "--now" in argv) or verb == "restart":
            if verb == "restart":
                _stop_unit(machine, name)
            if not _unit_file(machine, name).exists():
                return _fail(f"Failed to start {name}.service: Unit {name}.service not found.", 5)
            start_unit(machine, name)
        if verb == "stop" or (verb == "disable" and "--now" in argv):
            _stop_unit(machine, name)
        if verb in {"is-active", "is-enabled", "show"}:
            code = _asked(machine, verb, name)
    return code


def _asked(machine: Machine, verb: str, name: str) -> int:
    """Answer a question about a unit."""
    unit = machine.read()["units"].get(name, {})
    enabled, active = bool(unit.get("enabled")), _active_state(machine, name, unit)
    file_state = "enabled" if enabled else "disabled"
    if verb == "is-active":
        _out(active)
        return 0 if active == "active" else 3
    if verb == "is-enabled":
        _out(file_state)
        return 0 if enabled else 1
    # The start of an enabled unit is queued at boot; who stops it takes that away.
    waits = enabled and active == "inactive" and not unit.get("stopped")
    job = "\nJob=142" if waits else ""
    return _out(f"UnitFileState={file_state}\nActiveState={active}{job}")


def _start_docker(machine: Machine) -> int:
    if "docker.io" not in machine.read()["packages"]:
        return _fail("Failed to start docker.service: Unit docker.service not found.", 5)
    with machine.change() as state:
        state["docker_down"] = False
    return 0


def _unit_file(machine: Machine, name: str) -> Path:
    return machine.at(f"/etc/systemd/system/{name}.service")


def start_unit(machine: Machine, name: str) -> None:
    """Start a unit's `ExecStart`, with its `Environment`."""
    env = machine.env()
    command = ""
    for line in _unit_file(machine, name).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        if key == "ExecStart":
            command = value
        if key == "Environment":
            variable, _, text = value.strip('"').partition("=")
            env[variable] = text
        if key == "WorkingDirectory":
            command = f"cd {value} && {command}" if command else command
    with (machine.folder / f"unit-{name}.log").open("ab") as log:
        pid = machine.spawn(["bash", "-c", f"exec {command}"], env=env, output=log)
    with machine.change() as state:
        state["units"].setdefault(name, {}).update(pid=pid, stopped=False)


def _active_state(machine: Machine, name: str, unit: Json) -> str:
    if not unit.get("pid"):
        return "inactive"
    alive = Path(f"/proc/{unit['pid']}").exists()
    once = "Type=oneshot" in _unit_file(machine, name).read_text("utf-8")
    # A oneshot unit is active once it has ended (RemainAfterExit), not while it runs.
    return "active" if once != alive else "activating" if alive else "inactive"


def _stop_unit(machine: Machine, name: str) -> None:
    with machine.change() as state:
        unit = state["units"].setdefault(name, {})
        pid = int(unit.pop("pid", 0))
        unit["stopped"] = True
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)


def journalctl(machine: Machine, argv: list[str]) -> int:
    """`-u UNIT`: what a unit wrote; `-k`: the kernel."""
    if "-k" in argv:
        return dmesg(machine, [])
    if "-u" in argv:
        name = argv[argv.index("-u") + 1].removesuffix(".service")
        path = machine.folder / f"unit-{name}.log"
        if name == "google-startup-scripts":
            path = machine.folder / "startup.log"
        if path.exists():
            return _out(path.read_text(encoding="utf-8", errors="replace"))
        return _out("-- No entries --")
    return _out("")


def docker(machine: Machine, argv: list[str]) -> int:
    """pull, run, start, stop, rm, ps, logs, inspect of containers that hold vLLM."""
    if "docker.io" not in machine.read()["packages"]:
        return _fail("docker: command not found", 127)
    from backends.rehearsal.cloud.hosts.docker import main as play

    return play(machine, argv)


def ray(machine: Machine, argv: list[str]) -> int:
    """In a container: a node of a cluster."""
    from backends.rehearsal.cloud.hosts.ray import main as play

    return play(machine, argv)


def vllm(machine: Machine, argv: list[str]) -> int:
    """In a container: the engine."""
    del machine
    words = ["-c", _ENGINE, "vllm", *argv]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    os.execve(sys.executable, [sys.executable, *words], env)  # noqa: S606 (no shell is meant)
    return 1


def python3(machine: Machine, argv: list[str]) -> int:
    """`-m pip`, which installs from what the rehearsal sells; the rest never comes here."""
    from backends.rehearsal.cloud.hosts.pip import main as play

    return play(machine, argv[2:])


TABLE: dict[str, Program] = {
    "apt-get": apt_get,
    "blkid": blkid,
    "curl": curl,
    "df": df,
    "dkms": dkms,
    "dmesg": dmesg,
    "docker": docker,
    "dpkg": dpkg,
    "dpkg-query": dpkg_query,
    "fallocate": fallocate,
    "findmnt": findmnt,
    "journalctl": journalctl,
    "lsblk": lsblk,
    "mkfs.ext4": mkfs,
    "mkswap": mkswap,
    "modprobe": modprobe,
    "mount": mount,
    "nvidia-smi": nvidia_smi,
    "python3": python3,
    "ray": ray,
    "vllm": vllm,
    "reboot": reboot,
    "shutdown": shutdown,
    "swapoff": swapoff,
    "swapon": swapon,
    "systemctl": systemctl,
    "umount": umount,
    "uname": uname,
    "uptime": uptime,
    "wipefs": wipefs,
}

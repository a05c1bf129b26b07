"""All machines of a rehearsal cloud: made, started, stopped and removed by the APIs that sell them.

farm = HostFarm(cloud.folder / "hosts", cloud.speed)
farm.boot("gce", project, zone, "t4", instance_id="4242", disks=[...], metadata={...})
farm.stop("gce", zone, "t4"); farm.start("gce", zone, "t4"); farm.remove("gce", zone, "t4")
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.rehearsal.cloud.hosts.machine import REPO, Machine

Json = dict[str, Any]

PROGRAMS = (
    *(
        "apt-get",
        "blkid",
        "curl",
        "df",
        "dkms",
        "dmesg",
        "docker",
        "dpkg",
        "dpkg-query",
        "fallocate",
    ),
    *("findmnt", "journalctl", "lsblk", "mkfs.ext4", "mkswap", "modprobe", "mount", "nvidia-smi"),
    *("python3", "reboot", "shutdown", "swapoff", "swapon", "systemctl", "umount"),
    *("uname", "uptime", "wipefs"),
)
_CLIENTS = ("ssh", "scp")
_IN_CONTAINERS = ("ray", "vllm")

# Everything may be done there, so this is no program of Python's: it is run more than any other.
_SUDO = (
    'while case "$1" in -*) true ;; *) false ;; esac; do shift; done\n'
    '[ $# -gt 0 ] || exit 0\nexec env "$@"\n'
)

_KINDS: dict[str, Json] = {
    "gce": {
        "os": {"ID": "debian", "VERSION_ID": "13", "VERSION_CODENAME": "trixie"},
        "kernel": "6.12.57+deb13-cloud-amd64",
        "ram_mib": 7_680,
        "cpus": 2,
    },
    "tpu": {
        "os": {"ID": "ubuntu", "VERSION_ID": "22.04", "VERSION_CODENAME": "jammy"},
        "kernel": "6.8.0-1015-gcp",
        "ram_mib": 180_224,
        "cpus": 44,
    },
}
_GPUS: dict[str, Json] = {
    "nvidia-tesla-t4": {"name": "Tesla T4", "capability": "7.5", "memory_mib": 15_360},
    "nvidia-l4": {"name": "NVIDIA L4", "capability": "8.9", "memory_mib": 23_034},
}


class HostFarm:
    """The machines below a folder.

    Args:
        folder: Where they are kept.
        speed: What takes time at Google takes this many times less.
    """

    def __init__(self, folder: Path, speed: float) -> None:
        self.folder = folder
        self.speed = speed

    @property
    def client_path(self) -> str:
        """The folder of the stub `ssh`, to be first on a client's PATH."""
        return str(self.folder / "clients")

    def prepare(self) -> None:
        """Make the programs that clients and machines run."""
        for name in ("machines", "disks", "aliases", "controls"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for folder, names, module, more in (
            ("clients", _CLIENTS, "ssh", f", pathlib.Path({str(self.folder)!r})"),
            ("programs", PROGRAMS, "programs", ""),
            ("container", _IN_CONTAINERS, "programs", ""),
        ):
            place = self.folder / folder
            place.mkdir(exist_ok=True)
            for name in names:
                start = (
                    f"import pathlib, sys; sys.path.insert(0, {str(REPO)!r}); "
                    f"from backends.rehearsal.cloud.hosts.{module} import main; "
                    f"sys.exit(main({name!r}, sys.argv[1:]{more}))"
                )
                _program(place / name, [sys.executable, "-S", "-E", "-c", start])
        _write_program(self.folder / "programs" / "sudo", _SUDO)
        # The real one, as an image has it, without the packages of ours; only pip is played.
        python = self.folder / "programs" / "python3"
        played = python.read_text(encoding="utf-8").partition("\n")[2]
        real = shlex.quote(str(Path(sys.executable).resolve()))
        python.write_text(
            '#!/bin/sh\n[ "$1 $2" = "-m pip" ] || exec ' + f'{real} "$@"\n{played}',
            encoding="utf-8",
        )

    def boot(
        self,
        kind: str,
        project: str,
        zone: str,
        name: str,
        *,
        instance_id: str,
        workers: int = 1,
        metadata: Mapping[str, str] | None = None,
        accelerator: str = "",
        disks: Sequence[Json] = (),
        alias: str = "",
        docker: bool | None = None,
        account: str = "",
    ) -> list[str]:
        """Make a machine (or one for each worker) and power it on.

        Args:
            kind: `gce` or `tpu`.
            project: Its project.
            zone: Its zone.
            name: Name of the instance, or id of the node.
            instance_id: The API's own id, by which gcloud names its host key (`compute.ID`, for a
                node `tpu.ID-WORKER`).
            workers: Machines of a node.
            metadata: Its metadata; `startup-script` is run at every boot.
            accelerator: GPU type, whose driver is not installed; or a machine type with TPUs.
            disks: Data disks: `name` (device name), `size_gb`, `source` (the disk's own name).
            alias: gcloud's name for the host key where it is another.
            docker: Whether docker is installed; as in Google's image of that kind unless given.
            account: The service account that the metadata server gives tokens of.

        Returns:
            The address of each worker, in 127.0.0.0/8.
        """
        self.prepare()
        addresses = []
        for worker in range(workers):
            machine = self.machine(kind, zone, name, worker)
            shutil.rmtree(machine.folder, ignore_errors=True)
            for folder in (
                "home",
                "root/etc/systemd/system",
                "root/etc/apt/sources.list.d",
                "root/tmp",
            ):
                (machine.folder / folder).mkdir(parents=True)
            facts = _KINDS[kind]
            address = _address(self.folder, machine.folder.name)
            state: Json = {
                "kind": kind,
                "project": project,
                "zone": zone,
                "name": name,
                "worker": worker,
                "address": address,
                "speed": self.speed,
                "metadata": dict(metadata or {}),
                "account": account,
                "gpu": _GPUS.get(accelerator),
                "tpu": kind == "tpu" or accelerator.startswith("ct6e-"),
                "host_key": uuid.uuid4().hex,
                "packages": {"docker.io": "26.1"}
                if (kind == "tpu" and docker is not False)
                else {},
                "mounts": {},
                "swaps": {},
                "units": {},
                "engines": {},
                "containers": {},
                "images": [],
                "disks": [
                    {
                        "id": f"google-{disk['name']}",
                        "device": f"/dev/sd{chr(ord('b') + index)}",
                        "size_gb": int(disk["size_gb"]),
                        "store": f"{zone}.{disk.get('source', disk['name'])}",
                        **self._on_disk(f"{zone}.{disk.get('source', disk['name'])}"),
                    }
                    for index, disk in enumerate(disks)
                ],
                **facts,
            }
            release = "\n".join(f'{key}="{value}"' for key, value in facts["os"].items())
            (machine.root / "etc/os-release").write_text(release + "\n", encoding="utf-8")
            (machine.root / "etc/fstab").write_text(
                "PARTUUID=0000 / ext4 rw,discard,errors=remount-ro 0 1\n", encoding="utf-8"
            )
            with machine.change() as kept:
                kept.update(state)
            default = f"compute.{instance_id}" if kind == "gce" else f"tpu.{instance_id}-{worker}"
            (self.folder / "aliases" / (alias or default)).write_text(
                machine.folder.name, encoding="utf-8"
            )
            machine.power_on()
            addresses.append(address)
        return addresses

    def start(self, kind: str, zone: str, name: str) -> None:
        """Power on what was stopped."""
        for machine in self._of(kind, zone, name):
            if not machine.running():
                machine.power_on()

    def stop(self, kind: str, zone: str, name: str) -> None:
        """Power off; disks stay."""
        for machine in self._of(kind, zone, name):
            machine.power_off()

    def reset(self, kind: str, zone: str, name: str) -> None:
        """Off and on again, as by the API's reset."""
        for machine in self._of(kind, zone, name):
            machine.reboot()

    def remove(self, kind: str, zone: str, name: str) -> None:
        """Power off and forget; data disks stay until `remove_disk`."""
        for machine in self._of(kind, zone, name):
            machine.power_off()
            for alias in (self.folder / "aliases").iterdir():
                if alias.read_text(encoding="utf-8") == machine.folder.name:
                    alias.unlink()
            shutil.rmtree(machine.folder, ignore_errors=True)

    def remove_disk(self, zone: str, source: str) -> None:
        """Forget what is on a data disk."""
        shutil.rmtree(self.folder / "disks" / f"{zone}.{source}", ignore_errors=True)

    def set_metadata(self, kind: str, zone: str, name: str, metadata: Mapping[str, str]) -> None:
        """Replace a machine's metadata."""
        for machine in self._of(kind, zone, name):
            with machine.change() as state:
                state["metadata"] = dict(metadata)

    def serial(self, kind: str, zone: str, name: str) -> str:
        """Text of the serial console: the kernel's log and the startup script's output."""
        text = ""
        for machine in self._of(kind, zone, name):
            text += "".join(f"{line}\n" for line in machine.read().get("kernel_log", []))
            with contextlib.suppress(FileNotFoundError):
                log = (machine.folder / "startup.log").read_text(encoding="utf-8", errors="replace")
                text += "".join(
                    f"google_metadata_script_runner[641]: startup-script: {line}\n"
                    for line in log.splitlines()
                )
        return text

    def machine(self, kind: str, zone: str, name: str, worker: int = 0) -> Machine:
        """A machine by its names, whether it exists or not."""
        return Machine(self.folder / "machines" / f"{kind}.{zone}.{name}.{worker}")

    def set_faults(self, faults: Sequence[Json]) -> None:
        """What goes wrong on machines from now on; see `Machine.fault`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / "faults.json.new"
        new.write_text(json.dumps(list(faults)), encoding="utf-8")
        new.replace(self.folder / "faults.json")

    def faults(self) -> list[Json]:
        """The faults that are on, with how often they are still to happen."""
        try:
            return list(json.loads((self.folder / "faults.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return []

    def stop_all(self) -> None:
        """Power everything off (the cloud ends); `resume` powers it on again."""
        for machine in self._all():
            if machine.running():
                machine.power_off()
                with machine.change() as state:
                    state["resume"] = True

    def resume(self) -> None:
        """Power on what ran when the cloud ended, and make the programs."""
        self.prepare()
        for machine in self._all():
            if machine.read().get("resume"):
                with machine.change() as state:
                    state["resume"] = False
                machine.power_on()

    def clear(self) -> None:
        """Remove everything."""
        for machine in self._all():
            machine.power_off()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------------- inside

    def _all(self) -> Iterator[Machine]:
        folder = self.folder / "machines"
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                yield Machine(path)

    def _of(self, kind: str, zone: str, name: str) -> Iterator[Machine]:
        prefix = f"{kind}.{zone}.{name}."
        for machine in self._all():
            rest = machine.folder.name.removeprefix(prefix)
            if machine.folder.name.startswith(prefix) and rest.isdigit():
                yield machine

    def _on_disk(self, store: str) -> Json:
        """What a disk that was kept has on it."""
        try:
            return dict(
                json.loads((self.folder / "disks" / store / "fs.json").read_text(encoding="utf-8"))
            )
        except FileNotFoundError:
            return {"fs": None, "uuid": None}


def _address(farm: Path, key: str) -> str:
    """An address of its own in 127.0.0.0/8."""
    digest = hashlib.sha256(f"{farm}/{key}".encode()).digest()
    return f"127.{64 + digest[0] % 128}.{digest[1]}.{1 + digest[2] % 254}"


def _program(path: Path, words: Sequence[str]) -> None:
    _write_program(path, f'exec {shlex.join(words)} "$@"\n')


def _write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
    path.chmod(0o755)

"""What this machine has for serving: accelerators, their free memory, RAM and cores."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3

# Ask with this, bounded, and give the output to `inspect_machine`.
NVIDIA_SMI_ARGV = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,memory.free",
    "--format=csv,noheader,nounits",
)


@dataclass(frozen=True, slots=True)
class LocalAccelerator:
    """One accelerator. Memory is None where it could not be asked for."""

    kind: str
    name: str
    total_gib: float | None = None
    free_gib: float | None = None


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """RAM is what a process may still take, within a container's limit; `cpus` those it may use."""

    accelerators: tuple[LocalAccelerator, ...]
    ram_total_gib: float
    ram_available_gib: float
    cpus: int


def inspect_machine(nvidia_smi: str | None = None, *, root: Path = Path("/")) -> LocalMachine:
    """Look at this machine. Starts no process and takes milliseconds.

    Args:
        nvidia_smi: Output of `NVIDIA_SMI_ARGV`; None where it is missing or failed, and then
            NVIDIA GPUs are counted by their device files, without memory.
        root: Where /proc, /dev and /sys are.
    """
    import psutil

    memory = psutil.virtual_memory()
    total, available = float(memory.total), float(memory.available)
    limit, used = _cgroup(root, "memory.max"), _cgroup(root, "memory.current")
    if limit is not None:
        total = min(total, limit)
        available = min(available, max(0.0, limit - (used or 0.0)))
    affinity = getattr(os, "sched_getaffinity", None)
    return LocalMachine(
        accelerators=_accelerators(nvidia_smi, root),
        ram_total_gib=round(total / GIB, 2),
        ram_available_gib=round(available / GIB, 2),
        cpus=len(affinity(0)) if affinity else (os.cpu_count() or 1),
    )


def _cgroup(root: Path, name: str) -> float | None:
    try:
        return float((root / "sys/fs/cgroup" / name).read_text())
    except (OSError, ValueError):  # no cgroup v2 here, or "max": no limit
        return None


def _accelerators(nvidia_smi: str | None, root: Path) -> tuple[LocalAccelerator, ...]:
    found = _parse_nvidia_smi(nvidia_smi or "")
    if not found:
        found = [
            LocalAccelerator("nvidia", "NVIDIA GPU")
            for _ in sorted((root / "dev").glob("nvidia[0-9]*"))
        ]
    if (root / "dev/kfd").exists():
        found.append(LocalAccelerator("amd", "AMD GPU"))
    chips = list((root / "dev").glob("accel[0-9]*")) or list((root / "dev/vfio").glob("[0-9]*"))
    found += [LocalAccelerator("tpu", "TPU") for _ in chips]
    return tuple(found)


def _parse_nvidia_smi(text: str) -> list[LocalAccelerator]:
    found: list[LocalAccelerator] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 2)]
        if len(parts) == 3:
            total, free = (_gib_of_mib(part) for part in parts[1:])
            found.append(LocalAccelerator("nvidia", parts[0], total, free))
    return found


def _gib_of_mib(text: str) -> float | None:
    try:
        return round(float(text) / 1024, 2)
    except ValueError:  # "[N/A]" on GPUs that share the host's memory
        return None

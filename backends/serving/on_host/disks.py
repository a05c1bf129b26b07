"""Steps about disks: the data disk, swap, and whether there is room."""

from __future__ import annotations

import os
from pathlib import Path

from .step import Finding, Step
from .system import StepError, at, free_gib, must, run, write_root


class DataDisk(Step):
    """The data disk is mounted by its id; formatted only where nothing at all is on it."""

    name = "data_disk"

    def look(self) -> Finding:
        """Whether it is mounted and ours."""
        folder, device = self.settings.data_folder, self.settings.data_device
        if device is None:
            exists = at(folder).is_dir() and os.access(str(at(folder)), os.W_OK)
            return Finding(exists, folder + " is on the boot disk")
        if not at(device).exists():
            raise StepError(
                "There is no disk " + device + ".",
                cause="The data disk is not attached, or under another device name.",
                next_action="Attach it with that device name, then prepare again.",
                kind="no_disk",
            )
        source = mounted_at(folder)
        if source is None:
            kind = self._kind(device)
            return Finding(
                False, "not mounted; it holds " + (kind or "nothing"), {"filesystem": kind or ""}
            )
        if source not in {device, self._real(device)}:
            raise StepError(
                f"{source} is mounted at {folder}, not {device}.",
                cause="Another disk has that place.",
                next_action="Unmount it, or choose another data folder.",
                kind="other_disk",
            )
        if not os.access(str(at(folder)), os.W_OK):
            return Finding(False, "mounted, but not writable by this login")
        if self.settings.fstab and not self._in_fstab(folder):
            return Finding(False, "mounted, but not in /etc/fstab")
        return Finding(True, f"{source} at {folder}", {"device": source})

    def act(self) -> list[str]:
        """Format it if it is blank, mount it, hand it over."""
        folder, device = self.settings.data_folder, self.settings.data_device
        did = []
        if device is not None and mounted_at(folder) is None:
            if self._kind(device) is None:
                must(
                    ["mkfs.ext4", "-m", "0", "-E", "lazy_itable_init=0,discard", device],
                    "Formatting " + device,
                    root=True,
                    timeout_s=600,
                )
                did.append("formatted " + device + ", which was blank")
            if not at(folder).is_dir():
                must(["mkdir", "-p", at(folder)], "Making " + folder, root=True)
            must(
                ["mount", "-o", "discard,defaults", device, folder],
                "Mounting " + device,
                root=True,
            )
            did.append("mounted it at " + folder)
        if not at(folder).is_dir():
            must(["mkdir", "-p", at(folder)], "Making " + folder, root=True)
            did.append("made " + folder)
        if not os.access(str(at(folder)), os.W_OK):
            owner = f"{os.getuid()}:{os.getgid()}"
            must(["chown", owner, at(folder)], "Handing over " + folder, root=True)
            did.append("made this login its owner")
        if device is not None and self.settings.fstab and not self._in_fstab(folder):
            found = must(["blkid", "-s", "UUID", "-o", "value", device], "blkid", root=True)
            # nofail: a machine must boot without its data disk.
            add_to_fstab(f"UUID={found.out.strip()} {folder} ext4 discard,defaults,nofail 0 2")
            did.append("added it to /etc/fstab")
        return did

    def _kind(self, device: str) -> str | None:
        """The file system on a device; None where it is blank for certain."""
        found = run(["blkid", "-p", "-s", "TYPE", "-o", "value", device], root=True)
        if found.code == 0 and found.out.strip():
            kind = found.out.strip()
            if kind not in {"ext4", "xfs", "ext3", "btrfs"}:
                raise self._not_blank(device, kind)
            return kind
        if found.code not in {0, 2}:
            raise StepError("blkid cannot read " + device + ".", words=found.words, kind="no_disk")
        signatures = must(["wipefs", "-n", device], "wipefs", root=True).out.strip()
        if signatures:
            raise self._not_blank(device, signatures)
        parts = must(["lsblk", "-n", "-o", "NAME", device], "lsblk").out.split()
        if len(parts) != 1:
            raise self._not_blank(device, "partitions " + " ".join(parts[1:]))
        return None

    @staticmethod
    def _not_blank(device: str, what: str) -> StepError:
        return StepError(
            device + " is not blank, so it is not formatted.",
            words=what,
            cause="Somebody else's data may be on it.",
            next_action="Use another disk, or wipe this one by hand.",
            kind="not_blank",
        )

    @staticmethod
    def _real(device: str) -> str:
        real = os.path.realpath(str(at(device)))
        root = str(at("/")).rstrip("/")
        return real[len(root) :] if root and real.startswith(root) else real

    @staticmethod
    def _in_fstab(folder: str) -> bool:
        return any(line.split()[1:2] == [folder] for line in fstab_lines())


class Swap(Step):
    """A swap file is on; loading weights needs more than the machine's memory."""

    name = "swap"

    def look(self) -> Finding:
        """Whether enough of it is on."""
        wanted = int(self.settings.swap_gib * 2**30)
        active = active_swap()
        total = sum(active.values())
        facts = {"swap_gib": round(total / 2**30, 1), "wanted_gib": self.settings.swap_gib}
        if total < wanted * 0.98:
            return Finding(False, f"{total / 2**30:.1f} of {self.settings.swap_gib} GiB on", facts)
        ours = self.settings.swap_file
        if self.settings.fstab and ours in active and not self._in_fstab():
            return Finding(False, "on, but not in /etc/fstab", facts)
        return Finding(True, "%.1f GiB on" % (total / 2**30), facts)

    def act(self) -> list[str]:
        """Make the file where it is missing, and switch it on."""
        path, size = self.settings.swap_file, int(self.settings.swap_gib * 2**30)
        place, did = at(path), []
        if path not in active_swap():
            if not place.is_file() or place.stat().st_size < size:
                free = free_gib(Path(path).parent)
                if free is not None and free < self.settings.swap_gib + 1:
                    raise StepError(
                        f"{Path(path).parent} has {free:.1f} GiB free; the swap file needs "
                        f"{self.settings.swap_gib}.",
                        next_action="Use a larger data disk or less swap, then prepare again.",
                        kind="no_space",
                    )
                must(["rm", "-f", place], "Removing the old swap file", root=True)
                must(
                    ["fallocate", "-l", str(size), path],
                    "Making the swap file",
                    root=True,
                    timeout_s=300,
                )
                did.append(f"made {path} of {self.settings.swap_gib} GiB")
            must(["chmod", "600", place], "Closing the swap file to others", root=True)
            on = run(["swapon", path], root=True)
            if on.code != 0:
                must(["mkswap", path], "Formatting the swap file", root=True)
                must(["swapon", path], "Switching swap on", root=True)
            did.append("switched it on")
        if self.settings.fstab and not self._in_fstab():
            add_to_fstab(path + " none swap sw,nofail 0 0")
            did.append("added it to /etc/fstab")
        return did

    def _in_fstab(self) -> bool:
        return any(line.split()[:1] == [self.settings.swap_file] for line in fstab_lines())


class Space(Step):
    """There is room where packages, temporary files and weights go, measured path by path."""

    name = "space"

    def look(self) -> Finding:
        """Free space of every path that matters."""
        settings = self.settings
        missing = [path for path in settings.folders if not at(path).is_dir()]
        installed = at(settings.user_base + "/lib").is_dir()
        needs = {
            settings.data_folder: 0.0 if installed else settings.data_min_gib,
            settings.temp: 0.0 if installed else settings.temp_min_gib,
            settings.user_base: 0.0 if installed else settings.temp_min_gib,
            "/": settings.root_min_gib,
            "/tmp": 0.0,  # noqa: S108 (only measured: installations use their own)
        }
        facts, short = {}, []
        for path, needed in needs.items():
            free = free_gib(path)
            if free is None:
                raise StepError(f"The free space of {path} cannot be measured.")
            facts["free_gib " + path] = round(free, 1)
            if free < needed:
                short.append(f"{path} has {free:.1f} GiB free, {needed:.0f} are needed")
        if short:
            raise StepError(
                "There is not enough room: " + "; ".join(short) + ".",
                next_action="Give the machine a larger data disk, or clear these paths.",
                kind="no_space",
            )
        words = ", ".join(f"{key[9:]} {value}" for key, value in facts.items())
        if missing:
            return Finding(False, "missing: " + ", ".join(missing), facts)
        return Finding(True, "GiB free: " + words, facts)

    def act(self) -> list[str]:
        """Make our folders."""
        made = []
        for path in self.settings.folders:
            if not at(path).is_dir():
                at(path).mkdir(parents=True)
                made.append("made " + path)
        return made


def mounted_at(folder: str) -> str | None:
    """What is mounted there, or None."""
    found = run(["findmnt", "-n", "-o", "SOURCE", "--mountpoint", folder])
    return found.out.strip() or None if found.code == 0 else None


def active_swap() -> dict:  # type: ignore[type-arg]
    """Swap files and devices that are on, with their bytes.

    Raises:
        StepError: It cannot be told.
    """
    shown = must(
        ["swapon", "--show=NAME,SIZE", "--bytes", "--noheadings", "--raw"], "Looking at swap"
    )
    rows = [line.split() for line in shown.out.splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2}


def fstab_lines() -> list[str]:
    """Entries of /etc/fstab."""
    try:
        text = at("/etc/fstab").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def add_to_fstab(line: str) -> None:
    """Add an entry."""
    try:
        text = at("/etc/fstab").read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    if text and not text.endswith("\n"):
        text += "\n"
    write_root("/etc/fstab", text + line + "\n")

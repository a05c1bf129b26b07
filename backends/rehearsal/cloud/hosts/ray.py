"""The played ray: nodes that know of each other through a file, as those of one cluster do.

`ray start --head --port=P`, `ray start --block --address=HOST:P`, `ray status`. Standard library
only.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from backends.rehearsal.cloud.hosts.machine import Machine

_LOOK_S = 0.1


def main(machine: Machine, argv: Sequence[str]) -> int:
    """Run a ray command; returns its exit code."""
    verb = argv[0] if argv else ""
    options = dict(word.lstrip("-").partition("=")[::2] for word in argv[1:])
    mine = str(machine.read().get("address", ""))
    if verb == "status":
        return _status(_file(machine, mine))
    if verb != "start":
        sys.stderr.write(f"ray: no such command {verb!r}\n")
        return 2
    head = "head" in options
    where = mine if head else options.get("address", "").partition(":")[0]
    known = _file(machine, where)
    if not head and not known.exists():
        sys.stderr.write(f"ray: failed to connect to GCS at {where}\n")
        return 1
    _join(known, mine, machine.folder, fresh=head)
    sys.stdout.write("Ray runtime started.\n")
    sys.stdout.flush()
    while "block" in options:
        time.sleep(_LOOK_S)
    return 0


def _file(machine: Machine, head: str) -> Path:
    return machine.farm / f"ray-{head}.json"


def _join(path: Path, address: str, folder: Path, *, fresh: bool) -> None:
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        nodes = {} if fresh or not path.exists() else json.loads(path.read_text(encoding="utf-8"))
        nodes[address] = str(folder)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(nodes), encoding="utf-8")
        new.replace(path)


def _status(path: Path) -> int:
    if not path.exists():
        sys.stderr.write("ray.exceptions: could not find any running Ray instance\n")
        return 1
    nodes = json.loads(path.read_text(encoding="utf-8"))
    alive = [key for key, folder in nodes.items() if Machine(Path(folder)).running()]
    lines = "".join(f" 1 node_{key.replace('.', '')}\n" for key in alive)
    sys.stdout.write(f"======== Autoscaler status ========\nNode status\nActive:\n{lines}")
    return 0

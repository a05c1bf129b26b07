"""The network of a rehearsal machine: Google's metadata server, and Google's APIs by real curl.

Standard library only. What the metadata server says is in the machine's own state; tokens of its
service account come from the rehearsal cloud, whose door everything else goes through.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from backends.rehearsal.cloud.hosts.machine import Machine

Json = dict[str, Any]

_METADATA = "metadata.google.internal"
_PREFIX = "/computeMetadata/v1/"
_NOT_FOUND = 22
_NO_HOST = 6
_NO_WAY = 7
_TIMEOUT_S = 20


def curl(machine: Machine, argv: Sequence[str]) -> int:
    """Ask an address as curl does; returns its exit code."""
    url = next((word for word in argv if word.startswith(("http://", "https://"))), "")
    host = urlsplit(url).hostname or ""
    if machine.fault("network", url) is not None:
        return _fail(f"curl: ({_NO_HOST}) Could not resolve host: {host}", _NO_HOST)
    if host == _METADATA:
        return _metadata(machine, url, argv)
    if host.endswith(".googleapis.com"):
        return _outside(machine, argv)
    return _fail(f"curl: ({_NO_HOST}) Could not resolve host: {host}", _NO_HOST)


def _metadata(machine: Machine, url: str, argv: Sequence[str]) -> int:
    if not any("metadata-flavor: google" in word.lower() for word in argv):
        return _fail("curl: (22) The requested URL returned error: 403", _NOT_FOUND)
    path = urlsplit(url).path.removeprefix(_PREFIX)
    state = machine.read()
    values = {
        "instance/hostname": f"{state.get('name')}-w-{state.get('worker', 0)}.internal",
        "instance/zone": f"projects/{state.get('project')}/zones/{state.get('zone')}",
        "instance/name": str(state.get("name")),
        "project/project-id": str(state.get("project")),
    }
    if path in values:
        return _say(values[path])
    if path.startswith("instance/attributes/"):
        found = _attribute(machine, state, path.removeprefix("instance/attributes/"))
    elif path.startswith("instance/service-accounts/default/"):
        found = _account(machine, state, path.rpartition("/")[2])
    else:
        found = None
    if found is None:
        return _fail("curl: (22) The requested URL returned error: 404", _NOT_FOUND)
    return _say(found)


def _attribute(machine: Machine, state: Json, name: str) -> str | None:
    if name == "agent-worker-number":
        return str(state.get("worker", 0))
    if name == "worker-network-endpoints":
        prefix = machine.folder.name.rpartition(".")[0]
        others = sorted(machine.farm.glob(f"machines/{prefix}.*"))
        return ",".join(
            f"unknown:unknown:{Machine(folder).read().get('address', '')}" for folder in others
        )
    value = state.get("metadata", {}).get(name)
    return None if value is None else str(value)


def _account(machine: Machine, state: Json, what: str) -> str | None:
    account = str(state.get("account") or "")
    if what == "email":
        return account
    if what != "token" or not account:
        return None
    claims = base64.urlsafe_b64encode(json.dumps({"iss": account}).encode()).decode()
    done = subprocess.run(
        [
            *_real_curl(machine),
            *("-s", "--max-time", str(_TIMEOUT_S)),
            *("--data", f"assertion=x.{claims.rstrip('=')}.x"),
            "https://oauth2.googleapis.com/token",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S + 5,
    )
    return done.stdout if done.returncode == 0 and "access_token" in done.stdout else None


def _outside(machine: Machine, argv: Sequence[str]) -> int:
    command = [*_real_curl(machine), *argv]
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 (no shell is meant)
    return _NO_WAY


def _real_curl(machine: Machine) -> list[str]:
    """The real program, through the rehearsal cloud's door."""
    record = json.loads((machine.farm.parent / "cloud.json").read_text(encoding="utf-8"))
    path = os.pathsep.join(
        item for item in os.environ.get("PATH", "").split(os.pathsep) if "programs" not in item
    )
    return [
        shutil.which("curl", path=path) or "/usr/bin/curl",
        "--proxy",
        f"http://127.0.0.1:{record['port']}",
        "--cacert",
        str(Path(record["ca_file"])),
    ]


def _say(text: str) -> int:
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _fail(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code

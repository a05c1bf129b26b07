"""Machines of the rehearsal cloud without the cloud: a farm, and a gcloud that only opens ssh."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from backends.clouds.gcloud import Gcloud
from backends.clouds.google import GoogleCloud
from backends.clouds.hosts import GceHost, LocalHost
from backends.rehearsal.cloud.hosts import pip
from backends.rehearsal.cloud.hosts.farm import HostFarm
from backends.rehearsal.cloud.hosts.machine import Machine

ZONE = "us-west2-b"
SPEED = 400.0

# What gcloud 528 runs for `compute ssh`, without its own second.
_GCLOUD = """#!/bin/sh
flags=
for word in "$@"; do
  case "$word" in --ssh-flag=*) flags="$flags ${word#--ssh-flag=}";; esac
done
exec ssh -T -i key -o CheckHostIP=no -o HashKnownHosts=no -o HostKeyAlias=compute.$ALIAS \
  -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile=$KNOWN $flags \
  rehearsal@127.0.0.1 -- true
"""


class Grounds:
    """A farm with one virtual machine, and the way to it.

    Args:
        folder: Where everything is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.farm = HostFarm(folder / "hosts", SPEED)
        clients = folder / "gcloud-clients"
        clients.mkdir()
        program = clients / "gcloud"
        program.write_text(_GCLOUD, encoding="utf-8")
        program.chmod(0o755)
        self.variables = {
            "PATH": os.pathsep.join([self.farm.client_path, str(clients), os.environ["PATH"]]),
            "ALIAS": "4242",
            "KNOWN": str(folder / "known_hosts"),
            "CLOUDSDK_CONFIG": str(folder),
        }

    def boot(self, **more: Any) -> Machine:
        """The virtual machine `t4`, powered on, with an empty data disk."""
        values: dict[str, Any] = {
            "instance_id": "4242",
            "accelerator": "nvidia-tesla-t4",
            "disks": [{"name": "t4-data", "size_gb": 250}],
        } | more
        self.farm.boot("gce", "vllm-rehearsal", ZONE, "t4", **values)
        return self.machine

    def ready(self, vllm: str = "0.29.0", **more: Any) -> Machine:
        """The virtual machine as a preparation leaves it, but for the clamp."""
        machine = self.boot(**more)
        with machine.change() as state:
            state["packages"] |= {
                f"linux-headers-{state['kernel']}": "1.0",
                "nvidia-driver": "615.71.09-2",
                "python3-pip": "1.0",
                "python3-dev": "1.0",
                "gcc": "1.0",
            }
            state["driver_loaded"] = True
            state["disks"][0] |= {"fs": "ext4", "uuid": "made-by-the-test"}
            machine.mount(state, state["disks"][0]["device"], "/mnt/data")
            swap = machine.at("/mnt/data/swapfile")
            with swap.open("wb") as file:
                file.truncate(16 * 2**30)
                file.seek(4086)
                file.write(b"SWAPSPACE2")
            swap.chmod(0o600)
            state["swaps"]["/mnt/data/swapfile"] = 16 * 2**30
        for folder in ("pyuser", "tmp", "pipcache", "huggingface"):
            machine.at(f"/mnt/data/{folder}").mkdir()
        if vllm:
            pip.install(machine, vllm, machine.at("/mnt/data/pyuser"))
        return machine

    def slow_down(self, speed: float) -> None:
        """Let what is done on the machine from now on take longer; it has booted by then."""
        with self.machine.change() as state:
            state["speed"] = speed

    @property
    def machine(self) -> Machine:
        """The virtual machine."""
        return self.farm.machine("gce", ZONE, "t4")

    def host(self) -> GceHost:
        """A way to it, as a new process has one."""
        return GceHost(
            cast("GoogleCloud", self), project="vllm-rehearsal", zone=ZONE, instance="t4"
        )

    def inside(self) -> LocalHost:
        """The virtual machine as a server that runs on it sees it: no ssh, so it is quick."""
        return LocalHost(self.machine.home, self.machine.env() | {"PYTHONPATH": ""}, "t4")

    def fault(self, name: str, **fields: Any) -> None:
        """Something that goes wrong on it from now on."""
        self.farm.set_faults([*self.farm.faults(), {"fault": name, "times": 1, **fields}])

    # What a host asks of a GoogleCloud.

    @property
    def gcloud(self) -> Gcloud:
        """The CLI."""
        return Gcloud(self.env)

    async def env(self) -> Mapping[str, str]:
        """Variables of the CLI."""
        return self.variables


@pytest.fixture
def grounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Grounds]:
    """A farm of this test's own; nothing of it is left running, and no connection."""
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    monkeypatch.setattr("backends.clouds.hosts.remote._runtime_folder", lambda: sockets)
    if sys.platform != "linux":
        pytest.skip("machines of the rehearsal need /proc")
    made = Grounds(tmp_path)
    yield made
    made.farm.clear()

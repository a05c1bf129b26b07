"""A Ray cluster of two nodes on the loopback, in a process of its own.

Started as a program: prints the cluster's address, then obeys one word a line on standard input.
`kill` ends the second node's raylet as a power cut would, `end` (or the end of input) takes all
down. The second node has the custom resource `load`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ON_LOOPBACK = {
    # Ray puts the machine's own address in the place of a loopback one unless it thinks that
    # clusters are not to be had on this system.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
STORE_BYTES = 80 * 2**20
"""The least that Ray takes for an object store."""


@dataclass(frozen=True)
class RayCluster:
    """A running cluster."""

    address: str
    words: IO[str]

    def kill_second_node(self) -> None:
        self.words.write("kill\n")
        self.words.flush()


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Run a cluster until the block ends; `ON_LOOPBACK` must be in whoever speaks to it."""
    # its sockets' paths are long, and may not be
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    # Ray's dashboard asks for clouds around it and tells its makers that statistics are off. The
    # guard refuses that, as it should; it is no fault of ours that would have to be reported.
    env = {**os.environ, **ON_LOOPBACK}
    env.pop("TESTS_NETWORK_REPORT", None)
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("address "):
                break
        else:
            raise AssertionError("".join(said))
        yield RayCluster(said[-1].split()[1], process.stdin)
    finally:
        process.communicate("end\n", timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def main(folder: str) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
            "node_ip_address": "127.0.0.1",
            "temp_dir": folder,
        },
    )
    second = cluster.add_node(
        num_cpus=2, object_store_memory=STORE_BYTES, resources={"load": 1}, temp_dir=folder
    )
    sys.stdout.write(f"address {cluster.address}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line.strip() == "kill":
            second.kill_raylet(check_alive=False)
        if line.strip() == "end":
            break
    cluster.shutdown()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(sys.argv[1])

"""Machines we run commands on: this one, a virtual machine, a worker of a TPU node.

    host = GceHost(cloud, project="p", zone="us-west2-b", instance="t4")
    await host.run(["nvidia-smi", "-L"], timeout_s=20)
    await host.put(program, ".vllm-devops/program.pyz", timeout_s=60)
    await host.start_detached("exec python3 .vllm-devops/program.pyz prepare", name="prepare")
    job = await host.job("prepare")          # also after a dropped connection, or a new server
    tunnel = await cloud.tunnels.get("t4", host, 8000)

Paths on a host are relative to the login's home folder unless they begin with `/`.
"""

from backends.clouds.hosts.host import Host, HostJob, HostResult, quote
from backends.clouds.hosts.local import LocalHost
from backends.clouds.hosts.remote import GceHost, SshHost, TpuHost
from backends.clouds.hosts.tunnel import Tunnel, TunnelKeeper

__all__ = [
    "GceHost",
    "Host",
    "HostJob",
    "HostResult",
    "LocalHost",
    "SshHost",
    "TpuHost",
    "Tunnel",
    "TunnelKeeper",
    "quote",
]

"""Machines of the rehearsal cloud: sandboxes in which real shells run real scripts.

A machine is a folder. Commands that reach it (over the stub `ssh`, or as its startup script) are
run by a real bash, with `~` in the sandbox and, first on PATH, programs that play what needs
hardware or root: nvidia-smi, apt-get, mount, swapon, reboot, systemctl, docker, pip. What they
change is in `machine.json`. Nothing here imports more than the standard library, except the engine.

Two variables tell our own programs that they are on such a machine: `VLLM_DEVOPS_HOST_ROOT` is the
folder that stands for `/`, and `VLLM_DEVOPS_HOST_LOOPBACK` its address in 127.0.0.0/8, so that all
machines can listen on the same port.
"""

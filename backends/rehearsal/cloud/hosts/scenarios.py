"""Faults of machines that have a name: on the way to them, on their disks, in what is installed.

`seen_as` is verbatim where the T4 repository, OpenSSH or NVIDIA's programs have the words (read by
2026-11-30). Fields that may be added: `host` (a pattern of the machine's name), `times` (-1: until
it is switched off), for `host-dropped` `command` (a pattern of the command) and `after_s`.
"""

from __future__ import annotations

from backends.rehearsal.cloud.scenario import Scenario
from backends.rehearsal.cloud.web import Json


def _host(fault: str, **more: object) -> tuple[Json, ...]:
    return ({"kind": "host", "fault": fault, **more},)


HOST_SCENARIOS: dict[str, Scenario] = {
    "host-refused": Scenario(
        "ssh: connect to host … port 22: Connection refused",
        "The machine is starting, or its sshd is down.",
        "Connect in the first half minute after a start.",
        _host("refused"),
    ),
    "host-dropped": Scenario(
        "client_loop: send disconnect: Broken pipe",
        "The connection broke in the middle of a command, which goes on there.",
        "Restart the machine while a command runs.",
        _host("drop"),
    ),
    "host-key-changed": Scenario(
        "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!",
        "The machine shows another key than at first.",
        "",
        _host("host-key-changed"),
    ),
    "host-tmp-full": Scenario(
        "pip: No space left on device",
        "The machine's small temporary file system is full.",
        "Install without a TMPDIR of its own.",
        _host("tmp-full", times=-1),
    ),
    "host-disk-full": Scenario(
        "[Errno 28] No space left on device",
        "The disk that packages go to is full.",
        "",
        _host("disk-full", times=-1),
    ),
    "host-oom": Scenario(
        "Out of memory: Killed process N (VLLM::EngineCor)",
        "Main memory ran out while weights were loaded.",
        "Start the engine without swap.",
        _host("oom"),
    ),
    "host-driver-missing": Scenario(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "After a restart the driver's module is of another kernel.",
        "",
        (*_host("driver-missing"), *_host("dkms")),
    ),
    "host-no-sm75": Scenario(
        "no kernel image is available for execution on the device",
        "The next torch that pip installs has no code for a T4.",
        "",
        _host("no-sm75"),
    ),
    "host-torch-cpu": Scenario(
        "torch 2.13.0+cpu",
        "The next torch that pip installs is a build without CUDA.",
        "",
        _host("torch-cpu"),
    ),
    "host-no-cudart": Scenario(
        "ImportError: libcudart.so.13: cannot open shared object file",
        "The next torch that pip installs misses CUDA's runtime.",
        "",
        _host("no-cudart"),
    ),
    "host-kernel-moved": Scenario(
        "the clamp's anchors are not found",
        "The next vLLM that pip installs has its attention kernel elsewhere.",
        "",
        _host("kernel-moved"),
    ),
    "host-no-clamp": Scenario(
        "OutOfResources: out of resource: shared memory, Required: 98304, Hardware limit: 65536",
        "The attention kernel's tiles are too large for a Turing GPU.",
        "Start vLLM unclamped, as after an upgrade by hand.",
        _host("no-clamp"),
    ),
    "host-no-kernel": Scenario(
        "CUDA error: no kernel image is available for execution on the device",
        "vLLM's own wheel has no code for a T4, though torch has.",
        "",
        _host("no-kernel"),
    ),
    "host-no-cudnn": Scenario(
        "ImportError: libcudnn.so.9: cannot open shared object file",
        "The next torch that pip installs comes without what it needs (--no-deps).",
        "",
        _host("no-cudnn"),
    ),
    "host-apt-locked": Scenario(
        "E: Could not get lock /var/lib/dpkg/lock-frontend.",
        "Another installation holds the package lists for too long.",
        "",
        _host("apt-locked"),
    ),
    "host-docker-down": Scenario(
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon "
        "running?",
        "The Docker daemon was stopped, and with it what it ran.",
        "",
        _host("docker-down"),
    ),
    "host-image-no-space": Scenario(
        "failed to register layer: no space left on device",
        "The boot disk is too small for the engine's image.",
        "",
        _host("pull"),
    ),
}

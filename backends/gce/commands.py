"""The exact commands: what gcloud is told, from the request and nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from backends.clouds.gcloud import joined
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.gce.machines import NAME_LABEL, SPEC_KEY, TARGET_LABEL
from backends.gce.spec import GceSpec
from backends.knowledge import gce

TARGET = "gce-t4"
TAG = "vllm-devops"
SPEC_LABEL = "vllm-devops-spec"
IAP_RULE = "vllm-devops-allow-iap-ssh"
_QUIET = ("--quiet", "--format=json")


def data_disk(name: str) -> str:
    """The data disk of a deployment."""
    return f"{name}-data"


def router(region: str) -> str:
    """The router that we make in a region, with a NAT of the same name."""
    return f"vllm-devops-{region}"


def labels_of(name: str) -> dict[str, str]:
    """What is ours carries these."""
    return {MANAGED_BY: MANAGED_BY_US, TARGET_LABEL: TARGET, NAME_LABEL: name}


def serving_spec(spec: GceSpec) -> dict[str, Any]:
    """What the machine serves, as its metadata keep it: enough to start it again from anywhere."""
    kept = (
        "model",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "gpu_memory_utilization",
        "served_model_name",
        "text_only",
        "extra_args",
        "vllm",
        "secret",
        "start_at_boot",
    )
    values = spec.model_dump(exclude_none=True)
    return {key: values[key] for key in kept if values.get(key) not in (None, [], False)}


def create_argv(
    spec: GceSpec, project: str, zone: str, account: str, *, old_disk: bool
) -> tuple[str, ...]:
    """`gcloud compute instances create`, whole.

    Args:
        spec: The resolved request.
        project: The project.
        zone: The zone to try.
        account: The account the machine runs as.
        old_disk: Whether the data disk is there already and is attached again.
    """
    labels = labels_of(spec.name)
    disk = data_disk(spec.name)
    if old_disk:
        data = f"--disk=name={disk},device-name={gce.DATA_DEVICE},mode=rw,auto-delete=no"
    else:
        # Labels of a disk that is made with a machine are dropped here without a word (528).
        data = (
            f"--create-disk=name={disk},device-name={gce.DATA_DEVICE},"
            f"size={spec.data_disk_gib}GB,type={gce.DATA_DISK_TYPE},auto-delete=no"
        )
    argv = [
        *("gcloud", "compute", "instances", "create", spec.name),
        *(f"--project={project}", f"--zone={zone}"),
        f"--machine-type={spec.machine_type}",
        f"--accelerator=type={gce.GPU_TYPE},count=1",
        "--maintenance-policy=TERMINATE",
    ]
    argv.append("--provisioning-model=SPOT" if spec.spot else "--restart-on-failure")
    if spec.ttl_hours:
        argv.append(f"--max-run-duration={round(spec.ttl_hours * 3600)}s")
    if spec.spot or spec.ttl_hours:
        argv.append("--instance-termination-action=STOP")
    argv += [
        f"--image-project={gce.IMAGE_PROJECT}",
        f"--image-family={gce.IMAGE_FAMILY}",
        f"--boot-disk-size={spec.boot_disk_gib}GB",
        f"--boot-disk-type={gce.BOOT_DISK_TYPE}",
        data,
        f"--network={spec.network}",
    ]
    if spec.subnet:
        argv.append(f"--subnet={spec.subnet}")
    if not spec.external:
        argv.append("--no-address")
    meta = [f"{SPEC_KEY}={json.dumps(serving_spec(spec), sort_keys=True, separators=(',', ':'))}"]
    argv += [
        f"--service-account={account}",
        # What the account may do is what counts; the scope alone gives nothing.
        "--scopes=cloud-platform",
        f"--tags={TAG}",
        f"--metadata={joined(meta)}",
    ]
    words = ",".join(f"{key}={value}" for key, value in labels.items())
    argv.append(f"--labels={words},{SPEC_LABEL}={digest_of(argv)}")
    return (*argv, "--async", *_QUIET)


def digest_of(argv: list[str]) -> str:
    """What a machine of exactly these arguments, but for its zone, is recognised by."""
    kept = [item for item in argv if not item.startswith("--zone=")]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def label_of(argv: tuple[str, ...] | list[str]) -> str:
    """The recognising label inside a create command."""
    for item in argv:
        if item.startswith("--labels=") and f"{SPEC_LABEL}=" in item:
            return item.partition(f"{SPEC_LABEL}=")[2]
    return ""


def instance_argv(verb: str, name: str, project: str, zone: str, *flags: str) -> tuple[str, ...]:
    """`gcloud compute instances start|stop|delete|...`."""
    return (
        *("gcloud", "compute", "instances", verb, name),
        *(f"--project={project}", f"--zone={zone}"),
        *flags,
        *_QUIET,
    )


def label_disk_argv(name: str, project: str, zone: str) -> tuple[str, ...]:
    """`gcloud compute disks add-labels`: the data disk is ours."""
    labels = ",".join(f"{key}={value}" for key, value in labels_of(name).items())
    return (
        *("gcloud", "compute", "disks", "add-labels", data_disk(name)),
        *(f"--project={project}", f"--zone={zone}", f"--labels={labels}"),
        *_QUIET,
    )


def delete_disk_argv(name: str, project: str, zone: str) -> tuple[str, ...]:
    """`gcloud compute disks delete`."""
    return (
        *("gcloud", "compute", "disks", "delete", name),
        *(f"--project={project}", f"--zone={zone}"),
        *_QUIET,
    )


def firewall_argv(project: str, network: str) -> tuple[str, ...]:
    """A rule that lets IAP's tunnels reach ssh on our machines, and nobody else."""
    return (
        *("gcloud", "compute", "firewall-rules", "create", IAP_RULE),
        *(f"--project={project}", f"--network={network}"),
        *("--direction=INGRESS", "--allow=tcp:22", f"--source-ranges={gce.IAP_RANGE}"),
        *(f"--target-tags={TAG}", f"--description={MANAGED_BY}={MANAGED_BY_US}"),
        *_QUIET,
    )


def nat_argvs(project: str, network: str, region: str) -> tuple[tuple[str, ...], ...]:
    """A router and its NAT in a region."""
    name = router(region)
    return (
        (
            *("gcloud", "compute", "routers", "create", name),
            *(f"--project={project}", f"--network={network}", f"--region={region}"),
            f"--description={MANAGED_BY}={MANAGED_BY_US}",
            *_QUIET,
        ),
        (
            *("gcloud", "compute", "routers", "nats", "create", name),
            *(f"--project={project}", f"--router={name}", f"--region={region}"),
            *("--auto-allocate-nat-external-ips", "--nat-all-subnet-ip-ranges"),
            *_QUIET,
        ),
    )


def delete_router_argv(project: str, region: str) -> tuple[str, ...]:
    """Delete the router that we made, with its NAT."""
    return (
        *("gcloud", "compute", "routers", "delete", router(region)),
        *(f"--project={project}", f"--region={region}"),
        *_QUIET,
    )


def engine_argv(spec: dict[str, Any]) -> tuple[str, ...]:
    """What vLLM is told on the machine.

    Args:
        spec: What the machine's metadata say it serves.
    """
    argv = [
        *("--model", str(spec["model"])),
        *("--host", "127.0.0.1", "--port", str(gce.PORT)),
        *("--dtype", gce.DTYPE, "--kv-cache-dtype", gce.KV_CACHE_DTYPE),
        *("--tensor-parallel-size", "1"),
        *("--gpu-memory-utilization", f"{float(spec['gpu_memory_utilization']):g}"),
        *("--max-model-len", str(spec["max_model_len"])),
        *("--max-num-seqs", str(spec["max_num_seqs"])),
    ]
    if spec.get("max_num_batched_tokens"):
        argv += ["--max-num-batched-tokens", str(spec["max_num_batched_tokens"])]
    if spec.get("text_only"):
        argv.append("--language-model-only")
    if spec.get("served_model_name"):
        argv += ["--served-model-name", str(spec["served_model_name"])]
    argv += [
        "--enable-auto-tool-choice",
        *("--tool-call-parser", "gemma4", "--reasoning-parser", "gemma4"),
    ]
    return (*argv, *map(str, spec.get("extra_args") or []))

"""The exact commands: what gcloud is told, from the request, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from backends.core.errors import InvalidInputError
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.knowledge.tpu import COMPUTE_IMAGE_FAMILY, COMPUTE_IMAGE_PROJECT, find_slice
from backends.tpu.records import (
    NAME_LABEL,
    SEARCH_LABEL,
    SPEC_LABEL,
    TARGET,
    TARGET_LABEL,
    TpuNode,
    TpuRequest,
)
from backends.tpu.spec import TpuSpec
from backends.tpu.start import SETTINGS_KEY

SCOPE = "https://www.googleapis.com/auth/cloud-platform"

_TPU_MODELS = {
    "on-demand": "standard",
    "flex-start": "flex-start",
    "spot": "spot",
    "reservation": "reservation-bound",
}
_COMPUTE_MODELS = {
    "on-demand": "STANDARD",
    "flex-start": "FLEX_START",
    "spot": "SPOT",
    "reservation": "RESERVATION_BOUND",
}
_PATH = re.compile(r"[^,=]+")


def at(project: str, zone: str) -> list[str]:
    """The flags that say where."""
    return [f"--project={project}", f"--zone={zone}"]


def node_id(name: str) -> str:
    """The node a deployment's request becomes."""
    return f"{name}-node"


def tag_of(name: str) -> str:
    """The network tag that a public deployment's firewall rule is about."""
    return f"vllm-devops-{name}"[:63].rstrip("-")


def rule_of(name: str) -> str:
    """The firewall rule of a public deployment."""
    return tag_of(name)


def key_secret_of(name: str) -> str:
    """The secret that holds the API key of a public deployment."""
    return f"vllm-devops-{name}-key"


def labels_of(spec: TpuSpec, digest: str, search: str = "") -> dict[str, str]:
    """The labels of what a deployment makes."""
    labels = {
        MANAGED_BY: MANAGED_BY_US,
        TARGET_LABEL: TARGET,
        NAME_LABEL: spec.name,
        SPEC_LABEL: digest,
        "purpose": str(spec.provisioning),
    }
    return labels | ({SEARCH_LABEL: search} if search else {})


def create_argv(
    spec: TpuSpec,
    zone: str,
    project: str,
    account: str,
    labels: dict[str, str],
    files: tuple[Path, Path],
) -> list[str]:
    """Ask for the slice in one zone, by either control plane.

    Args:
        spec: The resolved request.
        zone: Where.
        project: The project.
        account: The service account its machines run as.
        labels: From `labels_of`.
        files: The start script and the settings, each the value of a metadata key.

    Raises:
        InvalidInputError: A path cannot be said to gcloud.
    """
    for path in files:
        if not _PATH.fullmatch(str(path)):
            raise InvalidInputError(
                "VLLM_DEVOPS_STATE_DIR", "must be a path without ',' and '=' for gcloud."
            )
    metadata = f"--metadata-from-file=startup-script={files[0]},{SETTINGS_KEY}={files[1]}"
    marks = "--labels=" + ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    common = [*at(project, zone), metadata, marks, f"--service-account={account}"]
    if spec.public:
        common.append(f"--tags={tag_of(spec.name)}")
    if spec.control_plane == "compute":
        return _instance_argv(spec, common)
    return _queued_argv(spec, common)


def _queued_argv(spec: TpuSpec, common: Sequence[str]) -> list[str]:
    """`queued-resources create`; alpha for provisioning model and run duration (528)."""
    argv = [
        *("gcloud", "alpha", "compute", "tpus", "queued-resources", "create", spec.name),
        *common,
        f"--scopes={SCOPE}",
        f"--node-id={node_id(spec.name)}",
        f"--accelerator-type={spec.size}",
        f"--runtime-version={spec.runtime_version}",
        f"--provisioning-model={_TPU_MODELS[str(spec.provisioning)]}",
        f"--valid-until-duration={_duration(spec.valid_until_hours)}",
    ]
    if spec.max_run_hours is not None:
        argv.append(f"--max-run-duration={_duration(spec.max_run_hours)}")
    if spec.reservation:
        argv.append(f"--reservation={spec.reservation}")
    argv.append(f"--network={spec.network}")
    if spec.subnet:
        argv.append(f"--subnetwork={spec.subnet}")
    if spec.internal_ips:
        argv.append("--internal-ips")
    return [*argv, "--async", "--quiet", "--format=json"]


def _instance_argv(spec: TpuSpec, common: Sequence[str]) -> list[str]:
    """`instances create` of a `ct6e-*` machine."""
    flex = spec.provisioning == "flex-start"
    argv = [
        # FLEX_START is alpha's alone in gcloud 528, and how long such a request stays valid cannot
        # be said in it: without hardware it is refused soon.
        *(["gcloud", "alpha"] if flex else ["gcloud"]),
        *("compute", "instances", "create", spec.name),
        *common,
        f"--machine-type={find_slice(str(spec.size)).machine_type}",
        f"--image-family={COMPUTE_IMAGE_FAMILY}",
        f"--image-project={COMPUTE_IMAGE_PROJECT}",
        "--maintenance-policy=TERMINATE",
        f"--boot-disk-size={spec.boot_disk_gib}GB",
        "--scopes=cloud-platform",
        f"--provisioning-model={_COMPUTE_MODELS[str(spec.provisioning)]}",
    ]
    if spec.max_run_hours is not None:
        argv.append(f"--max-run-duration={_duration(spec.max_run_hours)}")
    if spec.provisioning in {"flex-start", "spot"} or spec.max_run_hours is not None:
        argv.append("--instance-termination-action=DELETE")
    if spec.reservation:
        argv += ["--reservation-affinity=specific", f"--reservation={spec.reservation}"]
    if spec.internal_ips:
        argv.append("--no-address")
    where = f"--subnet={spec.subnet}" if spec.subnet else f"--network={spec.network}"
    # Waited for: what a zone refuses is told by the operation, not by the request.
    return [*argv, where, "--quiet", "--format=json"]


def delete_argv(request: TpuRequest, project: str) -> list[str]:
    """Delete a request with all it became; by force only where nothing else works."""
    if request.plane == "compute":
        return [
            *("gcloud", "compute", "instances", "delete", request.name),
            *at(project, request.zone),
            *("--quiet", "--format=json"),
        ]
    return [
        *("gcloud", "compute", "tpus", "queued-resources", "delete", request.name),
        *at(project, request.zone),
        *(["--force"] if request.needs_force else []),
        *("--async", "--quiet"),
    ]


def delete_node_argv(node: TpuNode, project: str) -> list[str]:
    """Delete a node that no request owns."""
    return [
        *("gcloud", "compute", "tpus", "tpu-vm", "delete", node.name),
        *at(project, node.zone),
        *("--async", "--quiet"),
    ]


def power_argv(request: TpuRequest, verb: str, project: str) -> list[str]:
    """Start or stop the machine of a request."""
    group = (
        ("compute", "instances", verb, request.name)
        if request.plane == "compute"
        else ("compute", "tpus", "tpu-vm", verb, request.node_id)
    )
    return ["gcloud", *group, *at(project, request.zone), "--quiet", "--format=json"]


def rule_argv(spec: TpuSpec, project: str) -> list[str]:
    """Let the named callers, and nobody else, reach the port of a public deployment."""
    return [
        *("gcloud", "compute", "firewall-rules", "create", rule_of(spec.name)),
        f"--project={project}",
        f"--network={spec.network}",
        "--direction=INGRESS",
        "--action=ALLOW",
        f"--rules=tcp:{spec.port}",
        f"--source-ranges={','.join(spec.allow_from)}",
        f"--target-tags={tag_of(spec.name)}",
        f"--description={MANAGED_BY}={MANAGED_BY_US}",
        *("--quiet", "--format=json"),
    ]


def delete_rule_argv(name: str, project: str) -> list[str]:
    """Take the rule of a public deployment away."""
    return [
        *("gcloud", "compute", "firewall-rules", "delete", rule_of(name)),
        *(f"--project={project}", "--quiet", "--format=json"),
    ]


def key_argv(name: str, project: str) -> list[str]:
    """Keep the API key of a public deployment, which comes on standard input."""
    return [
        *("gcloud", "secrets", "create", key_secret_of(name), f"--project={project}"),
        *("--data-file=-", "--replication-policy=automatic"),
        f"--labels={MANAGED_BY}={MANAGED_BY_US},{NAME_LABEL}={name}",
        *("--quiet", "--format=json"),
    ]


def delete_key_argv(name: str, project: str) -> list[str]:
    """Delete the API key of a public deployment."""
    return [
        *("gcloud", "secrets", "delete", key_secret_of(name)),
        *(f"--project={project}", "--quiet"),
    ]


def _duration(hours: float | None) -> str:
    seconds = round((hours or 0) * 3600)
    return f"{seconds}s"

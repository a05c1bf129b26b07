"""What Cloud Run refuses before it makes anything, in its words where they are known.

Known words are those of API validations and quota refusals people have published by 2026-11-30; the
two about an unknown GPU type and a region that does not sell it are ours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.catalogue import (
    CPU_MEMORY,
    CPU_QUOTA,
    GIB,
    GPUS,
    MEMORY_QUOTA,
    RunGpu,
)
from backends.rehearsal.cloud.run.shape import (
    CPU_THROTTLING,
    DEFAULT_MAX_INSTANCES,
    MAX_SCALE,
    ZONAL_DISABLED,
    Shape,
    container_of,
    read_shape,
)
from backends.rehearsal.cloud.web import ApiError, Json, bad_request

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,47}[a-z0-9])?")
_IMAGE = re.compile(
    r"(?:(?:[a-z]+\.)?gcr\.io|[a-z0-9-]+-docker\.pkg\.dev|docker\.io)/[a-z0-9._/-]+"
    r"(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
    r"|[a-z0-9._-]+(?:/[a-z0-9._-]+)*(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
)
_RESERVED_ENV = {"PORT", "K_SERVICE", "K_REVISION", "K_CONFIGURATION"}
_MAX_SCALE_FIELD = f"spec.template.metadata.annotations[{MAX_SCALE}]"

Violations = list[tuple[str, str]]


def check(world: World, region: str, service: Json, active_instances: int) -> Shape:
    """Check a service as it was sent; returns what its template asks for.

    Args:
        world: Quotas.
        region: Where.
        service: The service, API v1.
        active_instances: Most instances of this service's other revisions that keep serving.

    Raises:
        ApiError: 400 with field violations.
    """
    name = str(service["metadata"]["name"])
    if not _NAME.fullmatch(name):
        raise bad_request(
            [
                (
                    "metadata.name",
                    "only lowercase, digits, and hyphens; must begin with letter, and may not end "
                    "with hyphen; must be less than 50 characters",
                )
            ]
        )
    template = service["spec"]["template"]
    try:
        shape = read_shape(template)
    except ValueError as error:
        raise bad_request(
            [
                (
                    "spec.template.spec.containers[0].resources.limits",
                    f"Could not parse Quantity: {error}",
                )
            ]
        ) from error
    violations = [
        *_container(shape),
        *_probes(container_of(template["spec"])),
        *_gpu(region, template, shape),
        *_traffic(service),
    ]
    if violations:
        raise bad_request(violations)
    _quotas(world, region, template, shape, active_instances)
    return shape


def _container(shape: Shape) -> Violations:
    spec = "spec.template.spec"
    first = f"{spec}.containers[0]"
    found: Violations = []
    if not _IMAGE.fullmatch(shape.image):
        found.append(
            (
                f"{first}.image",
                "Expected an image path like [host/]repo-path[:tag and/or @digest], where host is "
                f"one of [region.]gcr.io, [region-]docker.pkg.dev or docker.io but obtained "
                f"{shape.image}",
            )
        )
    reserved = sorted(_RESERVED_ENV & {*shape.env, *shape.secret_env})
    if reserved:
        found.append(
            (
                f"{first}.env",
                f"The following reserved env names were provided: {', '.join(reserved)}. These "
                "values are automatically set by the system.",
            )
        )
    if not 0 <= shape.concurrency <= 1000:
        found.append((f"{spec}.container_concurrency", "Must be a number between 0 and 1000."))
    if shape.timeout_s > 3600:
        found.append((f"{spec}.timeout_seconds", "The maximum allowed time is one hour."))
    if shape.max_instances is not None and shape.max_instances < shape.min_instances:
        found.append(
            (
                _MAX_SCALE_FIELD,
                "max_instance_count must be greater than or equal to min_instance_count.",
            )
        )
    if not shape.gpus:
        found += _cpu_memory(first, shape)
    return found


def _cpu_memory(where: str, shape: Shape) -> Violations:
    if shape.cpu < 1:
        if shape.concurrency > 1:
            return [
                (
                    f"{where}.resources.limits.cpu",
                    "Invalid value specified for cpu. Total cpu < 1 is not supported with "
                    "concurrency > 1.",
                )
            ]
        return []
    for cpu, least, most in CPU_MEMORY:
        if shape.cpu == cpu:
            if least * GIB <= shape.memory <= most * GIB:
                return []
            low = f"{least:g}Gi" if least >= 1 else f"{least * 1024:.0f}Mi"
            return [
                (
                    f"{where}.resources.limits.memory",
                    "Invalid value specified for container memory. "
                    f"For {cpu} CPU, memory must be between {low} and {most:g}Gi inclusive.",
                )
            ]
    allowed = ", ".join(str(cpu) for cpu, _, _ in CPU_MEMORY)
    return [
        (
            f"{where}.resources.limits.cpu",
            f"Invalid value specified for cpu. Must be equal to one of [.08-1], {allowed}",
        )
    ]


# Limits of the API by probe: the longest initial delay, and the longest period and timeout.
_PROBE_LIMITS = {"startupProbe": (240, 240), "livenessProbe": (3600, 3600)}


def _probes(container: Json) -> Violations:
    found: Violations = []
    for name, (longest_delay, longest) in _PROBE_LIMITS.items():
        probe = container.get(name)
        if not probe:
            continue
        where = "spec.template.spec.containers[0]." + re.sub(r"P", "_p", name)
        if sum(kind in probe for kind in ("httpGet", "tcpSocket", "grpc")) != 1:
            found.append((where, "Exactly one probe action must be set."))
        delay = int(probe.get("initialDelaySeconds") or 0)
        if not 0 <= delay <= longest_delay:
            found.append(
                (
                    where,
                    f"initial_delay_seconds must be a number between 0 and {longest_delay}.",
                )
            )
        for key, label in (("timeoutSeconds", "timeout"), ("periodSeconds", "period")):
            if not 0 <= int(probe.get(key) or 0) <= longest:
                found.append((where, f"{label}_seconds must be a number between 0 and {longest}."))
        if int(probe.get("failureThreshold", 1)) < 1:
            found.append((f"{where}.failure_threshold", "Must be a positive number if set."))
    return found


def _gpu(region: str, template: Json, shape: Shape) -> Violations:
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    selector = "spec.template.spec.node_selector"
    limits = "spec.template.spec.containers[0].resources.limits"
    if not shape.gpus:
        if ZONAL_DISABLED in annotations:
            return [
                (
                    f"spec.template.metadata.annotations[{ZONAL_DISABLED}]",
                    "GPU must be set when GPU redundancy is set.",
                )
            ]
        return []
    if shape.gpus != 1:
        return [(f"{limits}[nvidia.com/gpu]", "GPU can only be set to 1.")]
    gpu = GPUS.get(shape.gpu_type)
    if gpu is None:
        return [
            (
                selector,
                f"Unsupported GPU type '{shape.gpu_type}'. Supported types: {', '.join(GPUS)}.",
            )
        ]
    if region not in gpu.regions:
        return [
            (selector, f"GPU type '{gpu.name}' is not supported in region '{region}'."),
        ]
    found: Violations = []
    if shape.environment == "gen1":
        found.append(
            (
                "spec.template.metadata.annotations[run.googleapis.com/execution-environment]",
                "Execution environment must be set to gen2 in order to set GPU requirements.",
            )
        )
    # gcloud leaves the annotation out unless asked; the platform then gives CPU always.
    if str(annotations.get(CPU_THROTTLING, "false")).lower() == "true":
        found.append(
            (
                f"spec.template.metadata.annotations[{CPU_THROTTLING}]",
                "CPU throttling must be disabled in order to set GPU requirements.",
            )
        )
    return found + _gpu_minimum(limits, gpu, shape)


def _gpu_minimum(where: str, gpu: RunGpu, shape: Shape) -> Violations:
    least, most = gpu.memory_gib
    if gpu.name == "nvidia-l4":
        short = [
            *(["CPU must be at least 4"] if shape.cpu < gpu.cpus[0] else []),
            *(["memory must be at least 16Gi"] if shape.memory < least * GIB else []),
        ]
        if short:
            return [(where, f"In order to set GPU, {'; '.join(short)}.")]
    found: Violations = []
    if shape.cpu not in gpu.cpus:
        allowed = ", ".join(str(cpu) for cpu in gpu.cpus)
        found.append(
            (
                f"{where}.cpu",
                f"Invalid value specified for cpu with GPU type {gpu.name}. Must be equal to one "
                f"of {allowed}",
            )
        )
    if not least * GIB <= shape.memory <= most * GIB:
        found.append(
            (
                f"{where}.memory",
                f"Invalid value specified for container memory. For GPU type {gpu.name}, memory "
                f"must be between {least:g}Gi and {most:g}Gi inclusive.",
            )
        )
    return found


def _traffic(service: Json) -> Violations:
    traffic = service["spec"].get("traffic") or []
    if not traffic:
        return []
    found: Violations = []
    total = sum(int(item.get("percent") or 0) for item in traffic)
    if total != 100:
        found.append(("spec.traffic", f"The sum of percents is {total}, should be 100."))
    tags = [item["tag"] for item in traffic if item.get("tag")]
    if len(set(tags)) != len(tags):
        found.append(("spec.traffic", "Traffic targets may not contain a duplicate tag."))
    return found


# ----------------------------------------------------------------------------------- quotas


def _quotas(world: World, region: str, template: Json, shape: Shape, active_instances: int) -> None:
    """Compare most instances times what one takes with what the project may use in the region.

    Where no number of instances was asked for, Cloud Run takes as many as the quota allows.
    """
    wanted: list[tuple[str, int, str]] = [
        (CPU_QUOTA, int(shape.cpu * 1000), "to set the requested total CPU"),
        (MEMORY_QUOTA, shape.memory, "to set the requested total memory"),
    ]
    gpu = GPUS.get(shape.gpu_type) if shape.gpus else None
    if gpu is not None:
        quota = gpu.zonal_quota if shape.zonal_redundancy else gpu.quota
        if world.quotas.get(quota, {}).get(region, 0) < 1:
            how = "with" if shape.zonal_redundancy else "without"
            raise bad_request(
                [
                    (
                        _MAX_SCALE_FIELD,
                        f"You do not have quota for using GPUs {how} zonal redundancy. Learn more "
                        "about GPU zonal redundancy: g.co/cloudrun/gpu-redundancy-help\n\n"
                        "To request quota: g.co/cloudrun/gpu-quota",
                    )
                ]
            )
        wanted.insert(0, (quota, 1, "in order to set GPU requirements"))
    allowed = {name: world.quotas.get(name, {}).get(region, 0) for name, _, _ in wanted}
    if shape.max_instances is None:
        most = min(
            DEFAULT_MAX_INSTANCES,
            *(max(allowed[name] // each, 1) for name, each, _ in wanted),
        )
        template.setdefault("metadata", {}).setdefault("annotations", {})[MAX_SCALE] = str(most)
    else:
        most = shape.max_instances
    instances = most + active_instances
    violated = [(name, each, why) for name, each, why in wanted if each * instances > allowed[name]]
    if violated:
        raise _quota_error(violated, allowed, instances)


def _quota_error(
    violated: list[tuple[str, int, str]], allowed: dict[str, int], instances: int
) -> ApiError:
    name, each, why = violated[0]
    lines = "\n".join(
        f"{quota} requested: {size * instances} allowed: {allowed[quota]}"
        for quota, size, _ in violated
    )
    fewest = min(allowed[quota] // size for quota, size, _ in violated)
    if "Gpu" in name:
        advice = "\nTo request quota: g.co/cloudrun/gpu-quota\n"
    else:
        advice = (
            "\nConsider running your workload in a region with greater capacity, or requesting an "
            "increase in quota for this region if you are seeing sustained usage near this limit, "
            "see https://cloud.google.com/run/quotas.\n\n"
        )
    del each
    return bad_request(
        [
            (
                _MAX_SCALE_FIELD,
                f"Max instances must be set to {fewest} or fewer {why}.{advice}"
                f"Quota violated:\n{lines}",
            )
        ]
    )

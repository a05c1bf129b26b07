"""What a Cloud Run template asks for, read from its Knative (API v1) form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backends.rehearsal.cloud.web import Json

GPU_RESOURCE = "nvidia.com/gpu"
ACCELERATOR = "run.googleapis.com/accelerator"

MIN_SCALE = "autoscaling.knative.dev/minScale"
MAX_SCALE = "autoscaling.knative.dev/maxScale"
SERVICE_MIN_SCALE = "run.googleapis.com/minScale"
SERVICE_MAX_SCALE = "run.googleapis.com/maxScale"
SCALING_MODE = "run.googleapis.com/scalingMode"
MANUAL_COUNT = "run.googleapis.com/manualInstanceCount"
CPU_THROTTLING = "run.googleapis.com/cpu-throttling"
ZONAL_DISABLED = "run.googleapis.com/gpu-zonal-redundancy-disabled"
ENVIRONMENT = "run.googleapis.com/execution-environment"
INTERFACES = "run.googleapis.com/network-interfaces"
EGRESS = "run.googleapis.com/vpc-access-egress"
CREATOR = "serving.knative.dev/creator"
MODIFIER = "serving.knative.dev/lastModifier"
LOCATION = "cloud.googleapis.com/location"
INVOKER_CHECK_DISABLED = "run.googleapis.com/invoker-iam-disabled"

DEFAULT_CONCURRENCY = 80
DEFAULT_MAX_INSTANCES = 100

_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def parse_cpu(text: str) -> float:
    """CPUs of a Kubernetes quantity: `8`, `8000m`.

    Raises:
        ValueError: It is none.
    """
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def parse_bytes(text: str) -> int:
    """Bytes of a Kubernetes quantity: `32Gi`, `512M`.

    Raises:
        ValueError: It is none.
    """
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    if match is None or match.group(2) not in _UNITS:
        raise ValueError(text)
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def truth(text: object) -> bool:
    """A boolean annotation, however it is written."""
    return str(text).lower() == "true"


@dataclass(frozen=True)
class Probe:
    """A startup probe, with the platform's defaults filled in.

    Attributes:
        initial_delay_s: Seconds before the first try.
        period_s: Seconds between tries.
        timeout_s: Seconds a try may take.
        threshold: Failed tries until the container is given up.
        kind: `HTTP`, `TCP` or `gRPC`.
        path: Path of an HTTP probe.
        given: Whether the service asked for it; otherwise it is the platform's TCP probe.
    """

    initial_delay_s: float = 0
    period_s: float = 240
    timeout_s: float = 240
    threshold: int = 1
    kind: str = "TCP"
    path: str = "/"
    given: bool = False

    @property
    def budget_s(self) -> float:
        """Seconds a container has to answer the probe."""
        return self.initial_delay_s + self.period_s * self.threshold


@dataclass(frozen=True)
class Shape:
    """What one revision is.

    Attributes:
        image: Container image.
        command: Entry point, empty for the image's own.
        args: Arguments.
        env: Plain variables.
        secret_env: Variable -> (secret, version).
        cpu: CPUs.
        memory: Bytes.
        gpus: GPUs.
        gpu_type: `--gpu-type`, empty without one.
        zonal_redundancy: Whether the GPU is reserved in more than one zone.
        concurrency: Requests an instance takes at once.
        timeout_s: Seconds a request may take.
        port: Port the container must listen on.
        min_instances: Least instances.
        max_instances: Most instances; None: not said.
        service_account: E-mail, empty for the default one.
        probe: The startup probe.
        buckets: Mount path -> bucket.
        vpc_egress: `all-traffic`, `private-ranges-only` or empty.
        network: Whether it has a network interface in a VPC.
        cpu_throttling: Whether CPU is only given during requests.
        environment: `gen1`, `gen2` or empty.
    """

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    cpu: float = 1.0
    memory: int = 512 * 2**20
    gpus: int = 0
    gpu_type: str = ""
    zonal_redundancy: bool = True
    concurrency: int = DEFAULT_CONCURRENCY
    timeout_s: float = 300
    port: int = 8080
    min_instances: int = 0
    max_instances: int | None = None
    service_account: str = ""
    probe: Probe = field(default_factory=Probe)
    buckets: Mapping[str, str] = field(default_factory=dict)
    vpc_egress: str = ""
    network: bool = False
    cpu_throttling: bool = True
    environment: str = ""


def container_of(spec: Json) -> Json:
    """The serving container of a template's spec."""
    containers: list[Json] = spec.get("containers") or [{}]
    return next((item for item in containers if item.get("ports")), containers[0])


def read_probe(raw: Json | None) -> Probe:
    """A startup probe of API v1."""
    if not raw:
        return Probe()
    kind = "HTTP" if "httpGet" in raw else "gRPC" if "grpc" in raw else "TCP"
    return Probe(
        initial_delay_s=float(raw.get("initialDelaySeconds") or 0),
        period_s=float(raw.get("periodSeconds") or 10),
        timeout_s=float(raw.get("timeoutSeconds") or 1),
        threshold=int(raw.get("failureThreshold") or 3),
        kind=kind,
        path=str((raw.get("httpGet") or {}).get("path") or "/"),
        given=True,
    )


def read_shape(template: Json) -> Shape:
    """A revision template, or a revision, of API v1.

    Raises:
        ValueError: A quantity or number in it is none.
    """
    annotations: dict[str, Any] = (template.get("metadata") or {}).get("annotations") or {}
    spec: Json = template.get("spec") or {}
    container = container_of(spec)
    limits = (container.get("resources") or {}).get("limits") or {}
    env = container.get("env") or []
    volumes = {item["name"]: item for item in spec.get("volumes") or []}
    buckets = {
        mount["mountPath"]: str(volume["csi"].get("volumeAttributes", {}).get("bucketName", ""))
        for mount in container.get("volumeMounts") or []
        if (volume := volumes.get(mount["name"])) and "csi" in volume
    }
    ports = container.get("ports") or [{}]
    most = annotations.get(MAX_SCALE)
    return Shape(
        image=str(container.get("image", "")),
        command=tuple(container.get("command") or ()),
        args=tuple(container.get("args") or ()),
        env={item["name"]: str(item.get("value", "")) for item in env if "valueFrom" not in item},
        secret_env={
            item["name"]: (
                str(item["valueFrom"]["secretKeyRef"]["name"]),
                str(item["valueFrom"]["secretKeyRef"].get("key", "latest")),
            )
            for item in env
            if "secretKeyRef" in (item.get("valueFrom") or {})
        },
        cpu=parse_cpu(str(limits.get("cpu", "1"))),
        memory=parse_bytes(str(limits.get("memory", "512Mi"))),
        gpus=int(limits.get(GPU_RESOURCE, 0)),
        gpu_type=str((spec.get("nodeSelector") or {}).get(ACCELERATOR, "")),
        zonal_redundancy=not truth(annotations.get(ZONAL_DISABLED)),
        concurrency=int(spec.get("containerConcurrency") or DEFAULT_CONCURRENCY),
        timeout_s=float(spec.get("timeoutSeconds") or 300),
        port=int(ports[0].get("containerPort") or 8080),
        min_instances=int(annotations.get(MIN_SCALE) or 0),
        max_instances=None if most is None else int(most),
        service_account=str(spec.get("serviceAccountName") or ""),
        probe=read_probe(container.get("startupProbe")),
        buckets=buckets,
        vpc_egress=str(annotations.get(EGRESS, "")),
        network=bool(annotations.get(INTERFACES)),
        cpu_throttling=str(annotations.get(CPU_THROTTLING, "true")).lower() != "false",
        environment=str(annotations.get(ENVIRONMENT, "")),
    )


@dataclass(frozen=True)
class Scaling:
    """How many instances a service may and must have.

    Attributes:
        manual: A fixed number, or None with automatic scaling.
        least: Least instances with automatic scaling.
        most: Most instances of the service; None: as its revisions say.
    """

    manual: int | None = None
    least: int = 0
    most: int | None = None


def read_scaling(service: Json) -> Scaling:
    """A service's own scaling, from its annotations."""
    annotations = service["metadata"].get("annotations") or {}
    most = annotations.get(SERVICE_MAX_SCALE)
    if str(annotations.get(SCALING_MODE, "")).lower() == "manual":
        return Scaling(manual=int(annotations.get(MANUAL_COUNT) or 0))
    return Scaling(
        least=int(annotations.get(SERVICE_MIN_SCALE) or 0),
        most=None if most is None else int(most),
    )

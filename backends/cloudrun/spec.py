"""What a Cloud Run deployment is described by, with everything not said taken from the profile."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, Field, field_validator

from backends.base import DeploySpec
from backends.clouds.options import pinned_image, plain_arguments, plain_variables
from backends.core.errors import InvalidInputError
from backends.core.names import check_name
from backends.knowledge.cloudrun import MAX_PROBE_TOTAL_S, PROBE_LIMITS, CloudRunProfile, Probe

if TYPE_CHECKING:
    from backends.cloudrun.services import RunService
    from backends.core.settings import Settings

_MEMBER = re.compile(
    r"^(?:(?:user|group|serviceAccount):[^\s:@]+@[^\s:@]+|domain:[\w.-]+|allAuthenticatedUsers)$"
)
_BUCKET = re.compile(r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$")
_FOLDER = re.compile(r"^[\w.-]+(?:/[\w.-]+)*$")
_PROBE_KEYS = {
    "initialDelaySeconds": "initial_delay_s",
    "periodSeconds": "period_s",
    "timeoutSeconds": "timeout_s",
    "failureThreshold": "failure_threshold",
}


class CloudRunSpec(DeploySpec):
    """Options of `cloudrun-l4` and `cloudrun-rtx6000`."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    region: str | None = Field(
        None,
        pattern="^[a-z]+-[a-z]+[0-9]+$",
        description="Region; default: GOOGLE_CLOUD_LOCATION where it sells the GPU.",
    )
    source: Literal["bucket", "huggingface"] | None = Field(
        None, description="Where weights are read from: bucket (default) or huggingface."
    )
    bucket: str | None = Field(None, description="Bucket with the weights; default: ours.")
    load: Literal["mount", "stream", "copy"] | None = Field(
        None,
        description="How weights are read from the bucket: mount, stream (runai_streamer), or "
        "copy (into memory first).",
    )
    secret: str | None = Field(
        None,
        pattern="^[A-Za-z0-9_-]{1,255}$",
        description="Secret that holds the Hugging Face token; default: hf-token.",
    )
    image: str | None = Field(
        None, description="Container image, pinned by tag or digest; default: vLLM's own."
    )
    build: str | None = Field(
        None,
        description="Folder here with a Dockerfile: Cloud Build makes the image from it first.",
    )
    server: Literal["vllm", "image"] | None = Field(
        None,
        description="vllm: we give vLLM its arguments. image: the image starts its own server; it "
        "is told MODEL, MAX_MODEL_LEN and MAX_SEQS in variables.",
    )
    port: int | None = Field(None, ge=1, le=65535, description="Port the container listens on.")
    cpu: int | None = Field(None, ge=4, le=64, description="vCPUs of an instance.")
    memory_gib: int | None = Field(None, ge=16, le=256, description="Memory of an instance, GiB.")
    concurrency: int | None = Field(
        None, ge=1, le=1000, description="Requests an instance admits at once (the platform's cap)."
    )
    min_instances: int | None = Field(
        None, ge=0, le=100, description="Kept warm; 0 (default) scales to zero."
    )
    max_instances: int | None = Field(None, ge=1, le=100, description="At most; default: 1.")
    scaling: Literal["auto"] | int | None = Field(
        None,
        description="auto, or a number for manual scaling; a redeploy keeps the mode it finds.",
    )
    zonal_redundancy: bool = Field(False, description="Reserve the GPU in several zones; dearer.")
    service_account: str | None = Field(
        None,
        pattern=r"^[\w.-]+@[\w.-]+$",
        description="Account the service runs as; default: one of its own with least privilege.",
    )
    invokers: list[str] = Field(
        default_factory=list,
        description="Who may call it: user:..., group:..., serviceAccount:...; private otherwise.",
    )
    public: bool = Field(False, description="Anybody may call it, at your cost.")
    vpc: bool | None = Field(
        None, description="All egress through the VPC (faster bucket reads; no Hugging Face)."
    )
    network: str | None = Field(None, pattern="^[a-z0-9-]+$", description="VPC network.")
    subnet: str | None = Field(None, pattern="^[a-z0-9-]+$", description="VPC subnet.")
    candidate: bool = Field(
        False, description="A new revision with tag candidate and no traffic, for shift_traffic."
    )
    quantization: Literal["fp8", "none"] | None = Field(
        None, description="vLLM's --quantization while loading; none for what is quantised already."
    )
    kv_cache_dtype: Literal["auto", "fp8", "bfloat16"] | None = Field(
        None, description="vLLM's --kv-cache-dtype."
    )
    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=0.98, description="vLLM's --gpu-memory-utilization."
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=256, le=1_048_576, description="vLLM's --max-num-batched-tokens."
    )
    served_model_name: str | None = Field(
        None, pattern=r"^[\w./:-]+$", description="Name the model is served under."
    )
    startup_probe: str | None = Field(
        None,
        description="Overrides, e.g. periodSeconds=30,failureThreshold=20 "
        "(also initialDelaySeconds, timeoutSeconds).",
    )
    request_timeout_s: int | None = Field(
        None, ge=1, le=3600, description="Longest request, seconds."
    )
    env: list[str] = Field(
        default_factory=list, description="Further variables, KEY=VALUE; never secrets."
    )
    extra_args: list[str] = Field(
        default_factory=list, description="Further arguments of vLLM, one item a word."
    )
    ignore_quota: bool = Field(
        False, description="Plan although quotas look short (a first GPU may come with quota)."
    )

    @field_validator("invokers")
    @classmethod
    def _members(cls, value: list[str]) -> list[str]:
        for member in value:
            if not _MEMBER.match(member):
                raise ValueError(
                    "is not a list of members: user:NAME@DOMAIN, group:..., serviceAccount:..., "
                    "domain:...; public=true lets anybody call it"
                )
        return value

    @field_validator("image")
    @classmethod
    def _pinned(cls, value: str | None) -> str | None:
        return pinned_image(value)

    @field_validator("bucket")
    @classmethod
    def _bucket_name(cls, value: str | None) -> str | None:
        if value is not None and not _BUCKET.match(value.removeprefix("gs://").rstrip("/")):
            raise ValueError("is not a bucket's name")
        return None if value is None else value.removeprefix("gs://").rstrip("/")

    @field_validator("extra_args")
    @classmethod
    def _no_keys(cls, value: list[str]) -> list[str]:
        return plain_arguments(
            value,
            shown_in="the service's description. Cloud Run itself lets nobody in without "
            "roles/run.invoker",
        )

    @field_validator("env")
    @classmethod
    def _variables(cls, value: list[str]) -> list[str]:
        return plain_variables(value, shown_in="the service's description")

    @field_validator("scaling")
    @classmethod
    def _some_instances(cls, value: str | int | None) -> str | int | None:
        if isinstance(value, int) and not 1 <= value <= 100:
            raise ValueError("is auto, or 1 to 100 instances (stop_serving stops it)")
        return value


def resolved(
    spec: CloudRunSpec, profile: CloudRunProfile, settings: Settings, project: str
) -> CloudRunSpec:
    """The request with everything that was not said filled in and checked.

    The numbers of instances are left open: a redeploy keeps those it finds (`scaled`).

    Raises:
        InvalidInputError: A value, or a pair of values, is not possible.
    """
    check_name(spec.name)
    source = spec.source or "bucket"
    model = spec.model or profile.reference.checkpoint.removesuffix("-fp8")
    bucket = spec.bucket
    if model.startswith("gs://"):
        if spec.source == "huggingface":
            raise InvalidInputError("model", "is a bucket folder, but options.source is not.")
        named, _, model = model.removeprefix("gs://").rstrip("/").partition("/")
        if bucket not in (None, named):
            raise InvalidInputError("options.bucket", "is another bucket than that of model.")
        bucket = named
    if source == "bucket" and not _FOLDER.match(folder_of(model)):
        raise InvalidInputError("model", "is not a folder of a bucket.", allowed="gs://BUCKET/NAME")
    updates: dict[str, object] = {
        "region": spec.region or default_region(profile, settings),
        "source": source,
        "model": spec.model or (model if source == "bucket" else f"google/{model}"),
        "cpu": spec.cpu or profile.cpu,
        "memory_gib": spec.memory_gib or profile.memory_gib,
        "concurrency": spec.concurrency or profile.reference.admission_cap,
        "max_num_seqs": spec.max_num_seqs or profile.reference.max_num_seqs,
        "max_model_len": spec.max_model_len or profile.reference.max_model_len,
        "max_num_batched_tokens": spec.max_num_batched_tokens
        or profile.reference.max_num_batched_tokens,
        "kv_cache_dtype": spec.kv_cache_dtype or profile.reference.kv_cache_dtype,
        "gpu_memory_utilization": spec.gpu_memory_utilization
        or profile.reference.memory_utilization,
        "image": spec.image or profile.image,
        "server": spec.server or "vllm",
        "port": spec.port or profile.port,
        "request_timeout_s": spec.request_timeout_s or profile.request_timeout_s,
        "vpc": (profile.vpc and source == "bucket") if spec.vpc is None else spec.vpc,
    }
    if source == "bucket":
        updates["bucket"] = bucket or settings.google_cloud_bucket or f"{project}-bucket"
        updates["load"] = spec.load or profile.load
    else:
        updates["secret"] = spec.secret or "hf-token"
    full = spec.model_copy(update=updates)
    _check(full, profile)
    probe_of(full, profile)
    return full


def scaled(spec: CloudRunSpec, found: RunService | None) -> CloudRunSpec:
    """The request with numbers of instances: those said, else those found, else 0 to 1.

    Raises:
        InvalidInputError: At least more than at most.
    """
    low, high = spec.min_instances, spec.max_instances
    if low is None:
        low = found.min_instances if found else 0
        low = min(low, high) if high is not None else low
    if high is None:
        high = max(found.max_instances if found else 1, low)
    if low > high:
        raise InvalidInputError("options.min_instances", "is above max_instances.")
    return spec.model_copy(update={"min_instances": low, "max_instances": high})


def default_region(profile: CloudRunProfile, settings: Settings) -> str:
    """The region that is set where it sells the GPU, else the profile's own."""
    return profile.region(settings.google_cloud_location)


def folder_of(model: str) -> str:
    """The bucket folder of a model: its path in `gs://`, else the last part of its id."""
    if model.startswith("gs://"):
        return model.removeprefix("gs://").rstrip("/").partition("/")[2]
    return model.rstrip("/").rpartition("/")[2]


def probe_of(spec: CloudRunSpec, profile: CloudRunProfile) -> Probe:
    """The startup probe with its overrides, within the API's limits.

    Raises:
        InvalidInputError: Not within them.
    """
    probe = profile.probe
    values = {name: int(getattr(probe, name)) for name in _PROBE_KEYS.values()}
    for item in filter(None, (spec.startup_probe or "").split(",")):
        key, _, value = item.partition("=")
        if key not in _PROBE_KEYS or not value.isdecimal():
            raise InvalidInputError(
                "options.startup_probe", "is not understood.", allowed=", ".join(_PROBE_KEYS)
            )
        values[_PROBE_KEYS[key]] = int(value)
    shown = {name: key for key, name in _PROBE_KEYS.items()}
    for name, (low, high) in PROBE_LIMITS.items():
        if not low <= values[name] <= high:
            raise InvalidInputError(
                "options.startup_probe",
                f"{shown[name]} is {values[name]}.",
                allowed=f"{low} to {high}",
            )
    if values["timeout_s"] > values["period_s"]:
        raise InvalidInputError(
            "options.startup_probe",
            "timeoutSeconds is above periodSeconds.",
            allowed="a try must end before the next begins",
        )
    made = Probe(probe.path, **values)
    if made.period_s * made.failure_threshold > MAX_PROBE_TOTAL_S:
        raise InvalidInputError(
            "options.startup_probe",
            f"periodSeconds x failureThreshold is {made.period_s * made.failure_threshold}.",
            allowed=f"at most {MAX_PROBE_TOTAL_S} s with a GPU",
        )
    return made


def _check(spec: CloudRunSpec, profile: CloudRunProfile) -> None:
    region = str(spec.region)
    if profile.sells(region) is None:
        raise InvalidInputError(
            "options.region",
            f"{region} does not sell {profile.hardware} on Cloud Run.",
            allowed=", ".join(sold.name for sold in profile.regions),
        )
    pair = next((pair for pair in profile.pairs if pair[0] == spec.cpu), None)
    if pair is None:
        raise InvalidInputError(
            "options.cpu",
            f"{spec.cpu} does not go with {profile.gpu_type}.",
            allowed=", ".join(str(pair[0]) for pair in profile.pairs),
        )
    if not pair[1] <= int(spec.memory_gib or 0) <= pair[2]:
        raise InvalidInputError(
            "options.memory_gib",
            f"{spec.memory_gib} does not go with {spec.cpu} vCPU and {profile.gpu_type}.",
            allowed=f"{pair[1]} to {pair[2]}",
        )
    if spec.public and spec.invokers:
        raise InvalidInputError("options.invokers", "have no meaning with public=true.")
    if spec.server == "image" and spec.extra_args:
        raise InvalidInputError(
            "options.extra_args", "are vLLM's; with server=image use options.env."
        )
    if spec.source == "huggingface" and spec.load is not None:
        raise InvalidInputError("options.load", "is about buckets; leave it out.")
    if spec.source == "huggingface" and spec.vpc:
        raise InvalidInputError(
            "options.vpc",
            "sends all traffic into the VPC, where Hugging Face cannot be reached without NAT.",
            allowed="source=bucket after stage_model, or vpc=false",
        )

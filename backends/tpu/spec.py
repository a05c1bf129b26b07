"""What a TPU deployment is described by, with everything not said taken from what is known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, Field, field_validator

from backends.base import DeploySpec
from backends.clouds.options import (
    caller_networks,
    pinned_image,
    plain_arguments,
    plain_variables,
)
from backends.core.errors import InvalidInputError
from backends.core.names import check_name
from backends.knowledge.targets import TPU_V6E
from backends.knowledge.tpu import (
    COMPUTE_DISK_GB,
    DEFAULT_ZONE,
    IMAGE,
    MAX_NUM_BATCHED_TOKENS,
    MAX_RUN_HOURS,
    MIN_RUN_HOURS,
    MM_LIMITS,
    RUNTIME_VERSION,
    ZONES,
    Provisioning,
    find_slice,
    region_of,
)

if TYPE_CHECKING:
    from backends.core.settings import Settings

ControlPlane = Literal["tpu", "compute"]

_ZONE = re.compile(r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")
_SHOWN_IN = "the machine's metadata"


class TpuSpec(DeploySpec):
    """Options of `tpu-v6e`."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    size: str | None = Field(
        None, description="v6e-1 (default), v6e-4, v6e-8; v6e-16 and up run vLLM over Ray."
    )
    provisioning: Provisioning | None = Field(
        None,
        description="flex-start (default: half the price, waits in a queue, runs max_run_hours), "
        "spot, on-demand or reservation.",
    )
    control_plane: ControlPlane | None = Field(
        None, description="tpu: a queued resource (default). compute: a ct6e-* instance."
    )
    zone: str | None = Field(None, description="One zone to ask in.")
    zones: list[str] = Field(
        default_factory=list,
        description="Zones to ask in one after the other until one gives hardware, as an "
        "operation; ['any'] takes all known.",
    )
    zone_wait_minutes: float | None = Field(
        None,
        gt=0,
        le=24 * 60,
        description="How long a request may wait in one of zones before the next is asked "
        "(default 15); in the last it waits on.",
    )
    valid_until_hours: float | None = Field(
        None, gt=0, le=168, description="How long a request may wait in the queue; default 4."
    )
    max_run_hours: float | None = Field(
        None,
        ge=MIN_RUN_HOURS.value,
        le=MAX_RUN_HOURS.value,
        description="When Google ends it: always with flex-start (default 4).",
    )
    reservation: str | None = Field(
        None,
        pattern=r"^[a-z0-9/._-]+$",
        description="Its name, with provisioning=reservation.",
    )
    runtime_version: str | None = Field(
        None, pattern=r"^[a-z0-9.-]+$", description="Software of the TPU VM."
    )
    network: str | None = Field(None, pattern="^[a-z0-9-]+$", description="VPC network.")
    subnet: str | None = Field(None, pattern="^[a-z0-9-]+$", description="VPC subnet.")
    internal_ips: bool = Field(
        False, description="No external address; then ssh=iap and a NAT for pulling are needed."
    )
    ssh: Literal["external", "iap"] | None = Field(
        None, description="How the machine is reached; default external."
    )
    service_account: str | None = Field(
        None,
        pattern=r"^[\w.-]+@[\w.-]+$",
        description="Account the machine runs as; default: one of its own with one right.",
    )
    secret: str | None = Field(
        None,
        pattern="^[A-Za-z0-9_-]{1,255}$",
        description="Secret that holds the Hugging Face token, read at boot; default hf-token.",
    )
    image: str | None = Field(None, description="Container image, pinned; default: vLLM's own.")
    tensor_parallel_size: int | None = Field(
        None, ge=1, le=64, description="vLLM's --tensor-parallel-size; default: chips that help."
    )
    kv_cache_dtype: Literal["auto", "fp8", "bfloat16"] | None = Field(
        None, description="vLLM's --kv-cache-dtype; auto is best on v6e."
    )
    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=0.98, description="vLLM's --gpu-memory-utilization; best left out."
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=256, le=1_048_576, description="vLLM's --max-num-batched-tokens."
    )
    text_only: bool = Field(False, description="Take no images or sound: quicker to compile.")
    served_model_name: str | None = Field(
        None, pattern=r"^[\w./:-]+$", description="Name the model is served under."
    )
    port: int | None = Field(None, ge=1024, le=65535, description="Port on the machine.")
    public: bool = Field(
        False, description="Answer on the external address too, with an API key, for allow_from."
    )
    allow_from: list[str] = Field(
        default_factory=list, description="Callers let in with public, e.g. 203.0.113.7/32."
    )
    boot_disk_gib: int | None = Field(
        None, ge=100, le=2000, description="Boot disk with control_plane=compute, GiB."
    )
    env: list[str] = Field(
        default_factory=list, description="Further variables, KEY=VALUE; never secrets."
    )
    extra_args: list[str] = Field(
        default_factory=list, description="Further arguments of vLLM, one item a word."
    )
    ignore_quota: bool = Field(False, description="Plan although quotas look short.")

    @field_validator("zone")
    @classmethod
    def _a_zone(cls, value: str | None) -> str | None:
        if value is not None and not _ZONE.match(value):
            raise ValueError("is not a zone, e.g. us-east5-b")
        return value

    @field_validator("zones")
    @classmethod
    def _some_zones(cls, value: list[str]) -> list[str]:
        if value == ["any"]:
            return list(ZONES)
        for zone in value:
            if not _ZONE.match(zone):
                raise ValueError("takes zones, e.g. us-east5-b, or ['any']")
        if len(set(value)) != len(value):
            raise ValueError("names a zone twice")
        return value

    @field_validator("image")
    @classmethod
    def _pinned(cls, value: str | None) -> str | None:
        return pinned_image(value)

    @field_validator("env")
    @classmethod
    def _variables(cls, value: list[str]) -> list[str]:
        return plain_variables(value, shown_in=_SHOWN_IN)

    @field_validator("extra_args")
    @classmethod
    def _no_keys(cls, value: list[str]) -> list[str]:
        return plain_arguments(value, shown_in=f"{_SHOWN_IN}; public=true makes a key of its own")

    @field_validator("allow_from")
    @classmethod
    def _callers(cls, value: list[str]) -> list[str]:
        return caller_networks(value)

    @property
    def asked_in(self) -> list[str]:
        """The zones of a resolved request, in order."""
        return self.zones or [str(self.zone)]


def resolved(spec: TpuSpec, settings: Settings) -> TpuSpec:
    """The request with everything that was not said filled in and checked.

    Raises:
        InvalidInputError: A value, or a pair of values, is not possible.
    """
    check_name(spec.name)
    size = find_slice(spec.size or "v6e-1")
    plane: ControlPlane = spec.control_plane or "tpu"
    provisioning: Provisioning = spec.provisioning or "flex-start"
    model = spec.model or f"google/{TPU_V6E.checkpoint}"
    zone = spec.zone or (None if spec.zones else default_zone(settings))
    runs_out = provisioning == "flex-start" or spec.max_run_hours is not None
    full = spec.model_copy(
        update={
            "size": size.name,
            "provisioning": provisioning,
            "control_plane": plane,
            "zone": zone,
            "model": model,
            "zone_wait_minutes": (spec.zone_wait_minutes or 15.0) if spec.zones else None,
            "valid_until_hours": spec.valid_until_hours or 4.0,
            "max_run_hours": (spec.max_run_hours or 4.0) if runs_out else None,
            "runtime_version": (spec.runtime_version or RUNTIME_VERSION)
            if plane == "tpu"
            else None,
            "network": spec.network or "default",
            "ssh": spec.ssh or ("iap" if spec.internal_ips else "external"),
            "secret": spec.secret or "hf-token",
            "image": spec.image or IMAGE,
            "max_model_len": spec.max_model_len or TPU_V6E.max_model_len,
            "max_num_seqs": spec.max_num_seqs or TPU_V6E.max_num_seqs,
            "max_num_batched_tokens": spec.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
            "kv_cache_dtype": spec.kv_cache_dtype or "auto",
            "port": spec.port or 8000,
            "boot_disk_gib": (spec.boot_disk_gib or int(COMPUTE_DISK_GB.value))
            if plane == "compute"
            else None,
        }
    )
    _check(spec, full)
    return full


def default_zone(settings: Settings) -> str:
    """A known zone of the region that is set, else the reference's."""
    wanted = settings.google_cloud_location
    return next((zone for zone in ZONES if wanted and region_of(zone) == wanted), DEFAULT_ZONE)


def mm_limits(spec: TpuSpec) -> str:
    """The value of --limit-mm-per-prompt."""
    return '{"image":0,"audio":0,"video":0}' if spec.text_only else MM_LIMITS


def _check(said: TpuSpec, full: TpuSpec) -> None:
    size = find_slice(str(full.size))
    if said.zone and said.zones:
        raise InvalidInputError("options.zone", "and options.zones exclude each other.")
    if full.provisioning == "reservation" and not full.reservation:
        raise InvalidInputError("options.reservation", "is needed with provisioning=reservation.")
    if full.reservation and full.provisioning != "reservation":
        raise InvalidInputError(
            "options.reservation", f"has no meaning with provisioning={full.provisioning}."
        )
    if full.control_plane == "tpu" and full.provisioning != "flex-start" and said.max_run_hours:
        raise InvalidInputError(
            "options.max_run_hours",
            f"goes with flex-start on the TPU API, not with {full.provisioning}.",
            allowed="provisioning=flex-start, or control_plane=compute",
        )
    if full.control_plane == "compute":
        if size.machine_type is None:
            raise InvalidInputError(
                "options.control_plane",
                f"compute has no {size.name}: slices of several hosts are the TPU API's.",
                allowed="control_plane=tpu",
            )
        if said.runtime_version:
            raise InvalidInputError(
                "options.runtime_version", "is the TPU API's; compute takes a machine image."
            )
    elif said.boot_disk_gib is not None:
        raise InvalidInputError("options.boot_disk_gib", "goes with control_plane=compute.")
    if full.public and not full.allow_from:
        raise InvalidInputError(
            "options.allow_from",
            "is needed with public=true: who is let in.",
            allowed="the caller's address, e.g. ['203.0.113.7/32']",
        )
    if full.allow_from and not full.public:
        raise InvalidInputError("options.allow_from", "has no meaning without public=true.")
    if full.public and full.internal_ips:
        raise InvalidInputError("options.public", "needs an external address (internal_ips).")
    if full.internal_ips and full.ssh != "iap":
        raise InvalidInputError("options.ssh", "must be iap without an external address.")

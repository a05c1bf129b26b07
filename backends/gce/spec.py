"""What a deployment on a T4 machine is described by, with what was not said filled in."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from backends.base import DeploySpec, EndOptions
from backends.core.errors import InvalidInputError
from backends.core.names import check_name
from backends.knowledge import gce

_HUB_MODEL = re.compile(r"^[\w.-]+/[\w.-]+$")


class GceSpec(DeploySpec):
    """Options of `gce-t4`."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    zones: list[str] | None = Field(
        None,
        description="Zones to try, in this order; default: those with quota, the reference's "
        "first, then the cheapest, without those that had no T4 lately.",
    )
    provisioning: Literal["on-demand", "spot"] = Field(
        "on-demand", description="spot is cheaper, and Google may take the machine at any time."
    )
    machine_type: Literal["n1-standard-2", "n1-standard-4", "n1-standard-8"] = Field(
        "n1-standard-2", description="N1 machine the T4 goes into."
    )
    boot_disk_gib: int = Field(
        gce.BOOT_DISK_GIB, ge=16, le=1000, description="Boot disk (pd-ssd), GiB."
    )
    data_disk_gib: int = Field(
        gce.DATA_DISK_GIB,
        ge=60,
        le=10_000,
        description="Data disk (pd-balanced) for packages, weights and swap, GiB; it is kept when "
        "the machine is destroyed, and used again by the same name.",
    )
    external: bool = Field(
        False, description="A public address instead of IAP and Cloud NAT; ssh goes to it."
    )
    nat: bool = Field(
        True, description="Make a Cloud NAT where the region has none; false: bring your own way."
    )
    network: str = Field("default", pattern="^[a-z0-9-]+$", description="VPC network.")
    subnet: str | None = Field(
        None, pattern="^[a-z0-9-]+$", description="VPC subnet; default: the network's own."
    )
    service_account: str | None = Field(
        None,
        pattern=r"^[\w.-]+@[\w.-]+$",
        description="Account the machine runs as; default: one of its own with least privilege.",
    )
    secret: str = Field(
        "hf-token",
        pattern="^[A-Za-z0-9_-]{1,255}$",
        description="Secret with the Hugging Face token, handed to the engine if it exists.",
    )
    vllm: str | None = Field(
        None, pattern=r"^\d+\.\d+\.\d+(?:\.?\w+)?$", description="Version of vLLM to install."
    )
    text_only: bool = Field(
        True, description="Leave vision and audio out: sooner ready, more KV cache."
    )
    gpu_memory_utilization: float = Field(
        gce.GPU_MEMORY_UTILIZATION, gt=0, le=0.98, description="vLLM's --gpu-memory-utilization."
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=256, le=1_048_576, description="vLLM's --max-num-batched-tokens."
    )
    served_model_name: str | None = Field(
        None, pattern=r"^[\w./:-]+$", description="Name the model is served under."
    )
    extra_args: list[str] = Field(
        default_factory=list, description="Further arguments of vLLM, one item a word."
    )
    start_at_boot: bool = Field(
        False, description="A systemd unit brings the server back after every boot by itself."
    )

    @field_validator("zones")
    @classmethod
    def _known_zones(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and (not value or len(value) > gce.MAX_ZONES):
            raise ValueError(f"takes 1 to {gce.MAX_ZONES} zones")
        for zone in value or []:
            if not re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]", zone):
                raise ValueError("takes zones, e.g. us-west2-b")
        return None if value is None else list(dict.fromkeys(value))

    @field_validator("extra_args")
    @classmethod
    def _no_keys(cls, value: list[str]) -> list[str]:
        if any(item.startswith(("--api-key", "--hf-token")) for item in value):
            raise ValueError(
                "must not carry secrets: they would stand in the machine's metadata. The server "
                "listens on 127.0.0.1 only, and save_hf_token keeps the Hugging Face token"
            )
        return value

    @property
    def spot(self) -> bool:
        """Whether Google may take it back."""
        return self.provisioning == "spot"

    @property
    def wanted(self) -> str:
        """What zones are asked for, as the zone memory names it."""
        return f"T4 {self.provisioning}"


class StopOptions(EndOptions):
    """Options of stop_serving."""

    power_off: bool = Field(
        False,
        description="Stop the machine too: only its disks go on billing, and a T4 may not be free "
        "when it is started again.",
    )


class DestroyOptions(EndOptions):
    """Options of destroy."""

    data_disk: bool = Field(
        False, description="Delete the data disk too, with packages and weights."
    )


def resolved(spec: GceSpec) -> GceSpec:
    """The request with the model and lengths filled in and checked; zones are chosen later.

    Raises:
        InvalidInputError: A value is not possible.
    """
    check_name(spec.name)
    if len(spec.name) > 40:
        raise InvalidInputError("name", "is too long for the disk's name.", allowed="1 to 40")
    model = spec.model or gce.MODEL
    if not _HUB_MODEL.match(model):
        raise InvalidInputError(
            "model", "is no Hugging Face id.", allowed="ORGANISATION/NAME, e.g. " + gce.MODEL
        )
    return spec.model_copy(
        update={
            "model": model,
            "max_model_len": spec.max_model_len or gce.MAX_MODEL_LEN,
            "max_num_seqs": spec.max_num_seqs or gce.MAX_NUM_SEQS,
        }
    )

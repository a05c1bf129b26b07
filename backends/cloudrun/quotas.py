"""What a project may allocate on Cloud Run, region by region, and what it does already.

Cloud Run refuses by what could run, not by what runs: `max_instances` times what one instance
takes, over all services of the region. Limits come from Cloud Quotas; Compute Engine's quotas say
nothing about Cloud Run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.cloudrun.services import RunService
from backends.core.errors import QuotaError
from backends.core.owned import together
from backends.knowledge.cloudrun import (
    CPU_QUOTA,
    GIB,
    MEMORY_QUOTA,
    QUOTA_SERVICE,
    CloudRunProfile,
)

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

_URL = "https://cloudquotas.googleapis.com/v1/projects/{project}/locations/global/services"


@dataclass(frozen=True)
class Amount:
    """GPUs, vCPUs and GiB."""

    gpus: float = 0.0
    cpus: float = 0.0
    memory_gib: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.gpus + other.gpus, self.cpus + other.cpus, self.memory_gib + other.memory_gib
        )


@dataclass(frozen=True)
class Limits:
    """Limits of one region; None where the project has none of that name there.

    Attributes:
        gpus: GPUs of the profile's kind.
        cpus: vCPUs.
        memory_gib: Memory.
    """

    gpus: float | None
    cpus: float | None
    memory_gib: float | None


def gpu_quota(profile: CloudRunProfile, *, zonal: bool = False) -> str:
    """The id of the GPU quota that counts."""
    return profile.zonal_quota if zonal else profile.quota


async def limits_of(
    cloud: GoogleCloud, profile: CloudRunProfile, regions: Sequence[str], *, zonal: bool = False
) -> dict[str, Limits]:
    """The limits of some regions.

    Raises:
        DevopsError: Cloud Quotas could not be asked; never answered with "no quota".
    """
    project = await cloud.project()
    base = f"{_URL.format(project=project)}/{QUOTA_SERVICE}/quotaInfos"

    async def asked(quota: str) -> dict[str, Any]:
        return await cloud.rest.get(f"{base}/{quota}", f"The quota {quota} of {project}")

    gpu, cpu, memory = await together(
        asked(gpu_quota(profile, zonal=zonal)), asked(CPU_QUOTA), asked(MEMORY_QUOTA)
    )
    return {
        region: Limits(
            gpus=_gpus(_value(gpu, region), profile.quota_divisor),
            cpus=_scaled(_value(cpu, region), 1000),
            memory_gib=_scaled(_value(memory, region), GIB),
        )
        for region in regions
    }


def could_use(service: RunService) -> Amount:
    """What a service may take at most."""
    count = service.manual if service.manual is not None else service.max_instances
    return Amount(
        gpus=count if service.gpu else 0,
        cpus=count * service.cpu,
        memory_gib=count * service.memory_gib,
    )


def used(services: Sequence[RunService], region: str, profile: CloudRunProfile) -> Amount:
    """What the services of a region may take together: GPUs of the profile's kind only."""
    total = Amount()
    for service in services:
        if service.region == region:
            amount = could_use(service)
            same = service.gpu == profile.gpu_type
            total += Amount(amount.gpus if same else 0, amount.cpus, amount.memory_gib)
    return total


def shortages(
    profile: CloudRunProfile, limits: Limits, need: Amount, taken: Amount, *, zonal: bool = False
) -> list[str]:
    """What is short, each by the quota's exact name, with what to request; empty if nothing is."""
    gpu = gpu_quota(profile, zonal=zonal)
    rows = (
        (gpu, limits.gpus, need.gpus, taken.gpus, "GPU", 1.0),
        (CPU_QUOTA, limits.cpus, need.cpus, taken.cpus, "vCPU", 1000.0),
        (MEMORY_QUOTA, limits.memory_gib, need.memory_gib, taken.memory_gib, "GiB", float(GIB)),
    )
    found: list[str] = []
    for quota, limit, wanted, others, unit, factor in rows:
        allowed = 0.0 if limit is None else limit
        total = wanted + others
        if total > allowed:
            also = f" besides the {others:g} others may take" if others else ""
            ask = f"request {total * factor:.0f}" if factor != 1.0 else f"request {total:g}"
            found.append(
                f"{quota}: {wanted:g} {unit} needed{also}, {allowed:g} {unit} allowed; {ask}"
            )
    return found


def refuse_if_short(target: str, region: str, short: Sequence[str], *, what: str) -> None:
    """Refuse before anything is sent.

    Raises:
        QuotaError: Names every quota that is too small and what to request.
    """
    if not short:
        return
    raise QuotaError(
        f"{what} does not fit the project's quota in {region}: {'; '.join(short)}.",
        cause="Cloud Run counts max_instances times what one instance takes, over all services of "
        "the region.",
        next_action=f"find_capacity(target={target!r}) shows where it fits; or lower "
        "max_instances, cpu or memory_gib; or ask the person to request the quota at "
        "https://console.cloud.google.com/iam-admin/quotas. Google may give a project its first "
        "GPUs with the first deployment: options.ignore_quota=true tries.",
        details={"quota": ", ".join(item.partition(":")[0] for item in short)},
    )


def _value(info: Mapping[str, Any], region: str) -> float | None:
    """The limit of a region: its own entry, else the one for all regions that it applies to."""
    general: float | None = None
    for entry in info.get("dimensionsInfos", []):
        raw = entry.get("details", {}).get("value")
        if raw is None:
            continue
        place = entry.get("dimensions", {}).get("region")
        if place == region:
            return float(raw)
        if place is None and region in entry.get("applicableLocations", [region]):
            general = float(raw)
    return general


def _scaled(value: float | None, factor: float) -> float | None:
    if value is None:
        return None
    return float("inf") if value < 0 else value / factor


def _gpus(value: float | None, divisor: int) -> float | None:
    """GPUs. The RTX PRO 6000's quota has been seen in thousandths (2026): nobody has 1000."""
    if value is not None and value >= divisor:
        return value / divisor
    return _scaled(value, 1)

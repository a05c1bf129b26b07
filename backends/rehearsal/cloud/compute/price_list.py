"""What the rehearsed Compute Engine charges where T4s and TPU v6e are rehearsed most.

Descriptions, units and prices as Google's price list had them by 2026-11-30 (SkyPilot catalogue
v8, the TPU v6e repository, the disk pricing page). Other regions are not in it: there a target has
to fall back on what it knows itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_ON_DEMAND, _SPOT = "OnDemand", "Preemptible"
_MEMORY_GIB_PER_VCPU = 3.75
_CORE_SHARE = 0.6655
"""Share of an N1 vCPU with its memory that is the core's: 0.031611 of 0.0475 in Iowa."""


@dataclass(frozen=True)
class Entry:
    """One price.

    Attributes:
        description: As Google has it.
        region: Where it holds.
        unit: Of use.
        usd: For one unit.
        usage: `OnDemand`, `Preemptible` or `Commit1Yr`.
    """

    description: str
    region: str
    unit: str
    usd: float
    usage: str = _ON_DEMAND


# Region: its title, T4 and N1 vCPU with memory per hour, each on demand and on spot.
_T4 = {
    "us-west2": ("Los Angeles", 0.41, 0.164, 0.45643 / 8, 0.15257 / 8),
    "us-central1": ("Americas", 0.35, 0.175, 0.38 / 8, 0.10446 / 8),
}
# Region: its title, a v6e chip per hour on demand, flex-start and spot; 0 where it is not sold so.
_V6E = {
    "us-east5": ("Columbus", 2.70, 1.35, 1.4033),
    "europe-west4": ("Netherlands", 2.97, 0.0, 1.782),
}
_DISKS = {"Storage": 0.04, "Balanced": 0.10, "SSD backed": 0.17}


def compute_entries() -> Iterator[Entry]:
    """Every price there is, those that are easily taken for another among them."""
    for region, (title, gpu, gpu_spot, vcpu, vcpu_spot) in _T4.items():
        name = "Nvidia Tesla T4 GPU"
        yield Entry(f"{name} running in {title}", region, "h", gpu)
        spot = f"{name} attached to Spot Preemptible VMs running in {title}"
        yield Entry(spot, region, "h", gpu_spot, _SPOT)
        commitment = f"Commitment v1: {name} running in {title} for 1 Year"
        yield Entry(commitment, region, "h", gpu * 0.63, "Commit1Yr")
        for usd, before, usage in ((vcpu, "", _ON_DEMAND), (vcpu_spot, "Spot Preemptible ", _SPOT)):
            n1 = f"{before}N1 Predefined Instance"
            core = usd * _CORE_SHARE
            ram = (usd - core) / _MEMORY_GIB_PER_VCPU
            yield Entry(f"{n1} Core running in {title}", region, "h", core, usage)
            yield Entry(f"{n1} Ram running in {title}", region, "GiBy.h", ram, usage)
        for kind, usd in _DISKS.items():
            yield Entry(f"{kind} PD Capacity in {title}", region, "GiBy.mo", usd)
            yield Entry(f"Regional {kind} PD Capacity in {title}", region, "GiBy.mo", 2 * usd)
    for region, (title, on_demand, flex, spot_chip) in _V6E.items():
        yield Entry(f"TpuV6e running in {title}", region, "h", on_demand)
        if flex:
            yield Entry(f"DWS Defined Duration V6e running in {title}", region, "h", flex)
        attached = f"TpuV6e attached to Spot Preemptible VMs running in {title}"
        yield Entry(attached, region, "h", spot_chip, _SPOT)

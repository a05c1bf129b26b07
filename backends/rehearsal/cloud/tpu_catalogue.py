"""What the rehearsed Google has of Cloud TPU v6e: zones, slices, limits of a project.

Sources, read by 2026-11-30: the TPU v6e repository (which zones had hardware, which took
flex-start, quota ids, states, refusals), and the Cloud TPU pages on regions, quotas (64 preemptible
cores, 0 on demand unless asked for) and flex-start. Kept apart from `backends.knowledge` on
purpose: a rehearsal that read our own tables could not contradict them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Slices: topology, and how many machines they are made of.
SLICES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "v6e-1": ("1x1", 1),
        "v6e-4": ("2x2", 1),
        "v6e-8": ("2x4", 1),
        "v6e-16": ("4x4", 4),
        "v6e-32": ("4x8", 8),
        "v6e-64": ("8x8", 16),
    }
)

# Zones with v6e hardware: those of the pages, and how many chips a slice may have at most.
HARDWARE_ZONES: Mapping[str, int] = MappingProxyType(
    {
        "us-central1-b": 8,
        "us-east1-d": 64,
        "us-east5-a": 64,
        "us-east5-b": 64,
        "us-south1-a": 8,
        "europe-west4-a": 64,
        "asia-northeast1-b": 64,
        "southamerica-west1-a": 8,
    }
)
# Zones of the API that have other TPUs, but no v6e: quota may be there all the same.
OTHER_ZONES = ("us-central1-a", "us-west1-c", "us-west4-a", "europe-west2-a", "asia-east1-c")
ALL_ZONES = (*HARDWARE_ZONES, *OTHER_ZONES)

# Provisioning models a zone does not take for v6e.
REFUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        zone: ("FLEX_START",)
        for zone in HARDWARE_ZONES
        if zone not in {"us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b"}
    }
)
RESERVATIONS: Mapping[str, str] = MappingProxyType({"v6e-reserved": "us-east5-a"})

ON_DEMAND_QUOTA = "TPUV6EPerProjectPerZoneForTPUAPI"
PREEMPTIBLE_QUOTA = "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"
RUNTIMES = ("v2-alpha-tpuv6e", "tpu-ubuntu2204-base")
MAX_RUN_S = 7 * 24 * 3600

# Google's seconds in each state of a request that goes well.
ACCEPTED_S = 3.0
WAITING_S = 40.0
PROVISIONING_S = 60.0
SUSPENDING_S = 20.0
DELETING_S = 20.0
START_STOP_S = 20.0


def default_quotas() -> dict[str, dict[str, int]]:
    """Limits by quota id and zone: on demand as given to a project that has asked once."""
    return {
        ON_DEMAND_QUOTA: dict.fromkeys(ALL_ZONES, 8) | {"us-south1-a": 0, "us-central1-b": 0},
        PREEMPTIBLE_QUOTA: dict.fromkeys(ALL_ZONES, 64),
    }

"""What the rehearsed Compute Engine sells: zones, machine types, GPUs, disks, images, quotas.

Sources, collected 2026-11-30: zones and GPUs from the Billing Catalogue as the SkyPilot catalogue
(v8) lists it; machine types from Google's machine family pages; limits as a project has them once
GPUs were asked for and given. Kept apart from `backends.knowledge` on purpose: a rehearsal that
read our own tables could not contradict them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ZONES: Mapping[str, str] = MappingProxyType(
    {
        "asia-east1": "abc",
        "asia-northeast1": "abc",
        "asia-northeast3": "abc",
        "asia-south1": "abc",
        "asia-south2": "abc",
        "asia-southeast1": "abc",
        "australia-southeast1": "abc",
        "europe-west1": "bcd",
        "europe-west2": "abc",
        "europe-west3": "abc",
        "europe-west4": "abc",
        "me-west1": "abc",
        "northamerica-northeast1": "abc",
        "southamerica-east1": "abc",
        "us-central1": "abcf",
        "us-east1": "bcd",
        "us-east4": "abc",
        "us-east5": "abc",
        "us-south1": "abc",
        "us-west1": "abc",
        "us-west2": "abc",
        "us-west3": "abc",
        "us-west4": "abc",
    }
)
"""Regions and the letters of their zones."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that is attached to a machine.

    Attributes:
        title: As Google describes it.
        zones: Letters by region.
        machines: Prefixes of machine types it goes with.
        quota: The regional quota it counts on; `PREEMPTIBLE_` before it for spot.
    """

    title: str
    zones: Mapping[str, str]
    machines: tuple[str, ...]
    quota: str

    def sold_in(self, zone: str) -> bool:
        """Whether a zone sells it."""
        region, _, letter = zone.rpartition("-")
        return letter in self.zones.get(region, "")


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "nvidia-tesla-t4": Gpu(
            "NVIDIA T4",
            MappingProxyType(
                {
                    "asia-east1": "ac",
                    "asia-northeast1": "ac",
                    "asia-northeast3": "bc",
                    "asia-south1": "ab",
                    "asia-southeast1": "abc",
                    "australia-southeast1": "ac",
                    "europe-west1": "bcd",
                    "europe-west2": "ab",
                    "europe-west3": "b",
                    "europe-west4": "abc",
                    "me-west1": "bc",
                    "northamerica-northeast1": "c",
                    "southamerica-east1": "ac",
                    "us-central1": "abcf",
                    "us-east1": "cd",
                    "us-east4": "abc",
                    "us-west1": "ab",
                    "us-west2": "bc",
                    "us-west3": "b",
                    "us-west4": "ab",
                }
            ),
            ("n1-", "custom-"),
            "NVIDIA_T4_GPUS",
        ),
        "nvidia-l4": Gpu(
            "NVIDIA L4",
            MappingProxyType(
                {"us-central1": "abc", "us-east1": "bcd", "us-east4": "ac", "us-west1": "abc"}
            ),
            ("g2-",),
            "NVIDIA_L4_GPUS",
        ),
    }
)


@dataclass(frozen=True)
class Machine:
    """A machine type.

    Attributes:
        cpus: vCPUs.
        memory_mb: Memory.
        zones: Letters by region; empty: everywhere.
        tpus: TPU chips it comes with.
    """

    cpus: int
    memory_mb: int
    zones: Mapping[str, str] = field(default_factory=dict)
    tpus: int = 0

    def sold_in(self, zone: str) -> bool:
        """Whether a zone sells it."""
        region, _, letter = zone.rpartition("-")
        return not self.zones or letter in self.zones.get(region, "")


_V6E_ZONES = MappingProxyType(
    {
        "asia-northeast1": "b",
        "europe-west4": "a",
        "us-central1": "b",
        "us-east1": "d",
        "us-east5": "ab",
    }
)
MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        **{f"n1-standard-{n}": Machine(n, 3_840 * n) for n in (1, 2, 4, 8, 16)},
        **{f"n1-highmem-{n}": Machine(n, 6_656 * n) for n in (2, 4, 8)},
        **{f"e2-standard-{n}": Machine(n, 4_096 * n) for n in (2, 4, 8)},
        **{f"g2-standard-{n}": Machine(n, 4_096 * n) for n in (4, 8, 12, 16)},
        "ct6e-standard-1t": Machine(44, 180_224, _V6E_ZONES, 1),
        "ct6e-standard-4t": Machine(180, 737_280, _V6E_ZONES, 4),
        "ct6e-standard-8t": Machine(180, 1_474_560, _V6E_ZONES, 8),
    }
)

DISK_TYPES: tuple[str, ...] = ("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced")

IMAGE_GIB: Mapping[str, int] = MappingProxyType(
    {"debian-12": 10, "debian-13": 10, "ubuntu-2404-lts-amd64": 10, "common-cu129-debian-12": 50}
)
"""Sizes of image families that differ from 10 GiB, and those most asked for."""

QUOTAS: Mapping[str, float] = MappingProxyType(
    {
        "CPUS": 72.0,
        "PREEMPTIBLE_CPUS": 0.0,
        "NVIDIA_T4_GPUS": 1.0,
        "PREEMPTIBLE_NVIDIA_T4_GPUS": 1.0,
        "NVIDIA_L4_GPUS": 1.0,
        "PREEMPTIBLE_NVIDIA_L4_GPUS": 0.0,
        "SSD_TOTAL_GB": 500.0,
        "DISKS_TOTAL_GB": 4096.0,
        "INSTANCES": 720.0,
        "IN_USE_ADDRESSES": 8.0,
    }
)
"""Limits of a region, in Compute Engine's own names."""

TPU_QUOTA = "TPUS_PER_TPU_FAMILY"
TPU_PREEMPTIBLE_QUOTA = "PREEMPTIBLE_TPU_V6E"
TPU_QUOTAS: Mapping[str, float] = MappingProxyType({TPU_QUOTA: 8.0, TPU_PREEMPTIBLE_QUOTA: 64.0})
"""Limits of v6e chips in a region: a pool apart from the TPU API's, which regions do not show."""

GPUS_ALL_REGIONS = "GPUS_ALL_REGIONS"
PROJECT_QUOTAS: Mapping[str, float] = MappingProxyType(
    {GPUS_ALL_REGIONS: 1.0, "CPUS_ALL_REGIONS": 360.0, "NETWORKS": 5.0, "FIREWALLS": 100.0}
)
"""Limits of the project. The vCPUs are those of a project that was given TPU chips: two hosts of
four or eight chips have 180 each. A new project has 32 or fewer (scenario `tpu-vcpus`)."""


def region_of(zone: str) -> str:
    """The region of a zone."""
    return zone.rpartition("-")[0]


def is_zone(zone: str) -> bool:
    """Whether there is such a zone."""
    region, _, letter = zone.rpartition("-")
    return len(letter) == 1 and letter in ZONES.get(region, "")


def all_zones() -> list[str]:
    """Every zone."""
    return [f"{region}-{letter}" for region, letters in ZONES.items() for letter in letters]

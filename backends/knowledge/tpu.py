"""Cloud TPU v6e: slices, zones, ways to get them, prices, images and times.

Everything was read or measured by 2026-11-30: in the TPU v6e article and its repository, on
Google's pages on TPU regions, queued resources, flex-start and pricing, and in gcloud 528.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from backends.core.errors import InvalidInputError
from backends.knowledge.facts import Fact, assumed, derived, measured, published

Provisioning = Literal["on-demand", "flex-start", "spot", "reservation"]
PROVISIONING: tuple[Provisioning, ...] = ("on-demand", "flex-start", "spot", "reservation")

_REPOSITORY = "TPU v6e repository"
_PRICES = "Cloud TPU pricing page and Billing Catalog, service 6F81-5844-456A"


@dataclass(frozen=True, slots=True)
class Slice:
    """One size of v6e.

    Args:
        name: The accelerator type.
        chips: Chips of the whole slice.
        topology: How they are wired.
        hosts: Virtual machines it is made of.
        vcpus: vCPUs of one of them.
        memory_gib: Memory of one of them.
        machine_type: The same on Compute Engine, where one machine is the whole slice.
    """

    name: str
    chips: int
    topology: str
    hosts: int
    vcpus: int
    memory_gib: int
    machine_type: str | None = None

    @property
    def chips_per_host(self) -> int:
        """Chips of one of its machines."""
        return self.chips // self.hosts

    @property
    def reference(self) -> bool:
        """Whether it is one of the sizes the target is made for."""
        return self.chips <= 8


# Sizes and machines: Google's v6e page (44, 180 and 180 vCPUs; 176, 720 and 1440 GB).
SLICES: Mapping[str, Slice] = MappingProxyType(
    {
        item.name: item
        for item in (
            Slice("v6e-1", 1, "1x1", 1, 44, 164, "ct6e-standard-1t"),
            Slice("v6e-4", 4, "2x2", 1, 180, 670, "ct6e-standard-4t"),
            Slice("v6e-8", 8, "2x4", 1, 180, 1341, "ct6e-standard-8t"),
            Slice("v6e-16", 16, "4x4", 4, 180, 670),
            Slice("v6e-32", 32, "4x8", 8, 180, 670),
            Slice("v6e-64", 64, "8x8", 16, 180, 670),
        )
    }
)

# Zones that are known to have v6e; which really do, and in which sizes, the API says when asked.
ZONES: tuple[str, ...] = (
    "us-east5-a",
    "us-east5-b",
    "us-east1-d",
    "us-central1-b",
    "us-south1-a",
    "europe-west4-a",
    "asia-northeast1-b",
    "southamerica-west1-a",
)
DEFAULT_ZONE = "us-east5-b"

# What was met when flex-start was asked for: confirmed in the repository's runs, the last by
# Google's page; refused with "FLEX_START provisioning model is not supported".
FLEX_START_SEEN: Mapping[str, bool] = MappingProxyType(
    {
        "us-east5-a": True,
        "us-east5-b": True,
        "europe-west4-a": True,
        "asia-northeast1-b": True,
        "us-central1-b": False,
        "us-south1-a": False,
    }
)

# USD per chip-hour by provisioning model and region. A region that is not here has no published
# rate that we know: no number is better than a guessed one.
_US = ("us-east5", "us-east1", "us-central1", "us-south1")
_ON_DEMAND = {
    **{region: published(2.70, f"{_PRICES}: v6e on demand, US regions") for region in _US},
    "europe-west4": published(2.97, f"{_PRICES}: v6e on demand, europe-west4"),
    "europe-west2": published(3.24, f"{_PRICES}: v6e on demand, europe-west2"),
    "asia-northeast1": published(3.24, f"{_PRICES}: v6e on demand, Asia"),
}
USD_PER_CHIP_HOUR: Mapping[str, Mapping[str, Fact]] = MappingProxyType(
    {
        "on-demand": MappingProxyType(_ON_DEMAND),
        "flex-start": MappingProxyType(
            {region: published(1.35, f"{_PRICES}: DWS Defined Duration V6e, US") for region in _US}
        ),
        "spot": MappingProxyType(
            {
                "us-east5": published(1.4033, f"{_PRICES}: spot v6e, us-east5"),
                "europe-west4": published(1.782, f"{_PRICES}: spot v6e, europe-west4"),
            }
        ),
        "reservation": MappingProxyType({}),
    }
)

QUOTA_SERVICE = "tpu.googleapis.com"
ON_DEMAND_QUOTA = "TPUV6EPerProjectPerZoneForTPUAPI"
# Flex-start too counts against it (Google's flex-start page).
PREEMPTIBLE_QUOTA = "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"
# Compute Engine counts the same chips in another pool.
COMPUTE_QUOTA_SERVICE = "compute.googleapis.com"
COMPUTE_ON_DEMAND_QUOTA = "TPUS-PER-TPU-FAMILY-per-project-region"
COMPUTE_PREEMPTIBLE_QUOTA = "PREEMPTIBLE-TPU-V6E-per-project-region"
COMPUTE_FAMILY = "CT6E"

RUNTIME_VERSION = "v2-alpha-tpuv6e"
IMAGE = "vllm/vllm-tpu:v0.27.0"
COMPUTE_IMAGE_FAMILY = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
COMPUTE_IMAGE_PROJECT = "ubuntu-os-accelerator-images"
COMPUTE_DISK_GB = published(
    200, f"{_REPOSITORY}: the image's own 10 GB end in 'no space left on device'"
)

MAX_RUN_HOURS = published(168, "Google's flex-start page: up to 7 days")
MIN_RUN_HOURS = assumed(1 / 6, "ten minutes, as Compute Engine's run durations")

PORT = 8000
RAY_PORT = 6379
CONTAINER = "vllm"
# vLLM on TPU raises the batch to this for image input, and refuses less (repository, v0.26).
MAX_NUM_BATCHED_TOKENS = 4096
MM_LIMITS = '{"image":4,"audio":1}'

HBM_GIB = measured(31.24, f"{_REPOSITORY}: 'total_hbm_limit_gb=31.24GiB'")
HBM_CAP_GIB = measured(28.74, f"{_REPOSITORY}: 'total_hbm_limit_cap_gb=28.74GiB'")
# What programs of a compiled graph need besides weights and KV cache, on each chip.
ACTIVATIONS_GIB = derived(
    2.5, f"{_REPOSITORY}: 31.24 less the 28.74 GiB that weights and KV cache may take together"
)
KNOWN_GOOD_CONTEXT: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "E2B": (65_536, f"{_REPOSITORY}: served on v6e-1; 1 151 744 tokens of KV cache at 16k, "
                        "32k and 64k alike"),
        "12B": (4_096, f"{_REPOSITORY}: sweep of 2026-07-25, infeasible from 8 192 on v6e-1"),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch between the request and readiness.

    Args:
        name: As `get_status` shows it.
        seconds: How long it usually takes; 0 where nobody can say.
    """

    name: str
    seconds: Fact


QUEUED = "queued"
PROVISIONING_PHASE = "provisioning"
BOOTING = "booting"
PULLING = "pulling"
LOADING = "loading"
COMPILING = "compiling"

# A cold start. The wait in the queue is anybody's guess and stands apart.
PHASES: tuple[Phase, ...] = (
    Phase(QUEUED, assumed(0, "no one knows: minutes to never; WAITING_FOR_RESOURCES is normal")),
    Phase(PROVISIONING_PHASE, assumed(120, "share of what flex-start runs took once chosen")),
    Phase(BOOTING, assumed(60, "share of the 510 s to healthy of 2026-07-21")),
    Phase(PULLING, assumed(90, "image of several GB; share of the 510 s")),
    Phase(LOADING, assumed(82, "857 s cold, less 685 s of compiling and 90 s of pulling")),
    Phase(COMPILING, measured(685, f"{_REPOSITORY}: 685 of 857 s cold")),
)
WARM_COMPILING_S = derived(
    325, f"{_REPOSITORY}: a restart with the compile cache takes 497 s instead of 857"
)


def find_slice(name: str) -> Slice:
    """The size of that name.

    Raises:
        InvalidInputError: There is none.
    """
    try:
        return SLICES[name]
    except KeyError:
        raise InvalidInputError(
            "options.size", f"{name[:24]} is no v6e slice.", allowed=", ".join(SLICES)
        ) from None


def region_of(zone: str) -> str:
    """The region of a zone: `us-east5` of `us-east5-b`."""
    return zone.rpartition("-")[0]


def usd_per_chip_hour(provisioning: str, zone: str) -> Fact | None:
    """The list price of one chip; None where none is known."""
    return USD_PER_CHIP_HOUR.get(provisioning, {}).get(region_of(zone))


def quota_id(provisioning: str, plane: str = "tpu") -> str | None:
    """The quota a provisioning model counts against; None for reservations.

    Args:
        provisioning: The model.
        plane: `tpu`, which counts by zone, or `compute`, which counts by region in another pool.
    """
    if provisioning == "reservation":
        return None
    if plane == "compute":
        on_demand = provisioning == "on-demand"
        return COMPUTE_ON_DEMAND_QUOTA if on_demand else COMPUTE_PREEMPTIBLE_QUOTA
    return ON_DEMAND_QUOTA if provisioning == "on-demand" else PREEMPTIBLE_QUOTA

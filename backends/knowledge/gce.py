"""Compute Engine with a Tesla T4: machines, zones, prices, images, times, and what vLLM is told.

Rates of GPUs and N1 machines are those of Google's Billing Catalogue as the SkyPilot catalogue (v8,
`gcp/vms.csv`) lists it; what the GCE T4 article and its repository say wins over them. Everything
was read by 2026-11-30.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from backends.knowledge.facts import Fact, assumed, derived, measured, published

Provisioning = Literal["on-demand", "spot"]

_ARTICLE = "GCE T4 article and its repository"
_CATALOGUE = "Google's Billing Catalogue, as the SkyPilot catalogue v8 lists it"
_DISKS = "Compute Engine disk pricing page, US rate; other regions up to a fifth more"
_NETWORK = "Cloud NAT and VPC pricing pages, read 2026-10-16"

GPU_TYPE = "nvidia-tesla-t4"
HARDWARE = "NVIDIA Tesla T4, 16 GB"
GPU_QUOTA = "NVIDIA_T4_GPUS"
SPOT_GPU_QUOTA = "PREEMPTIBLE_NVIDIA_T4_GPUS"
GLOBAL_QUOTA = "GPUS_ALL_REGIONS"
DISK_QUOTA = "SSD_TOTAL_GB"

HOURS_A_MONTH = 730.0


@dataclass(frozen=True, slots=True)
class MachineType:
    """A machine the GPU goes with.

    Args:
        vcpus: vCPUs.
        memory_gib: Memory.
    """

    vcpus: int
    memory_gib: float


# Only N1 machines take a T4: 3.75 GiB a vCPU.
MACHINES: Mapping[str, MachineType] = MappingProxyType(
    {f"n1-standard-{count}": MachineType(count, 3.75 * count) for count in (2, 4, 8)}
)
DEFAULT_MACHINE = "n1-standard-2"


@dataclass(frozen=True, slots=True)
class T4Region:
    """A region that sells T4s, with its rates in USD per hour.

    Args:
        letters: Its zones that have them.
        gpu: One T4 on demand.
        gpu_spot: One T4 on spot, which changes up to once a month.
        vcpu: One N1 vCPU with its memory, on demand.
        vcpu_spot: The same on spot.
    """

    letters: str
    gpu: Fact
    gpu_spot: Fact
    vcpu: Fact
    vcpu_spot: Fact


def _region(
    letters: str, gpu: float, gpu_spot: float, n1_standard_8: float, n1_standard_8_spot: float
) -> T4Region:
    return T4Region(
        letters,
        published(gpu, _CATALOGUE),
        published(gpu_spot, _CATALOGUE),
        derived(n1_standard_8 / 8, f"{_CATALOGUE}: an eighth of n1-standard-8"),
        derived(n1_standard_8_spot / 8, f"{_CATALOGUE}: an eighth of n1-standard-8, spot"),
    )


REGIONS: Mapping[str, T4Region] = MappingProxyType(
    {
        # The article's 0.5241 USD an hour is 0.41 for the T4; the catalogue says 0.4207.
        "us-west2": T4Region(
            "bc",
            derived(0.41, f"{_ARTICLE}: n1-standard-2 and T4 are 0.5241 USD an hour"),
            published(0.164, _CATALOGUE),
            derived(0.45643 / 8, f"{_CATALOGUE}: an eighth of n1-standard-8"),
            derived(0.15257 / 8, f"{_CATALOGUE}: an eighth of n1-standard-8, spot"),
        ),
        "us-central1": _region("abcf", 0.35, 0.175, 0.38, 0.10446),
        "us-east1": _region("cd", 0.35, 0.175, 0.38, 0.10446),
        "us-west1": _region("ab", 0.35, 0.175, 0.38, 0.10446),
        "us-east4": _region("abc", 0.37, 0.1644, 0.42797, 0.09039),
        "us-west4": _region("ab", 0.37, 0.1258, 0.42797, 0.13016),
        "us-west3": _region("b", 0.420735, 0.1195, 0.45643, 0.13222),
        "northamerica-northeast1": _region("c", 0.385385, 0.1868, 0.41834, 0.19165),
        "europe-west1": _region("bcd", 0.35, 0.14, 0.41801, 0.12502),
        "europe-west2": _region("ab", 0.399, 0.1181, 0.48958, 0.10186),
        "europe-west3": _region("b", 0.41, 0.164, 0.48958, 0.12322),
        "europe-west4": _region("abc", 0.3675, 0.175, 0.41834, 0.16734),
        "europe-central2": _region("bc", 0.41, 0.164, 0.45981, 0.07816),
        "me-west1": _region("bc", 0.385, 0.1093, 0.418, 0.08815),
        "asia-east1": _region("ac", 0.35, 0.1383, 0.44, 0.07126),
        "asia-east2": _region("ac", 0.44, 0.2004, 0.53169, 0.10504),
        "asia-northeast1": _region("ac", 0.37, 0.1311, 0.48751, 0.13323),
        "asia-northeast3": _region("bc", 0.37, 0.1539, 0.48751, 0.12365),
        "asia-south1": _region("ab", 0.41, 0.1701, 0.4564, 0.08292),
        "asia-southeast1": _region("abc", 0.37, 0.1645, 0.46877, 0.07744),
        "asia-southeast2": _region("ab", 0.4033, 0.1854, 0.51096, 0.09469),
        "australia-southeast1": _region("ac", 0.44, 0.1746, 0.53918, 0.14194),
        "southamerica-east1": _region("ac", 0.48, 0.2329, 0.60319, 0.10006),
    }
)
"""Where T4s are sold. What a zone really has, `acceleratorTypes` of the API says when asked."""

DEFAULT_REGION = "us-west2"
DEFAULT_ZONES: tuple[str, ...] = (
    "us-west2-b",
    "us-west2-c",
    "us-central1-a",
    "us-central1-b",
    "us-central1-c",
    "us-central1-f",
    "us-west1-b",
    "us-east1-c",
    "us-east4-b",
)
"""Tried in this order unless told otherwise: the reference's zone first, then the cheapest."""
MAX_ZONES = 6
"""Zones of one plan: each takes about half a minute to say no."""

DISK_USD_PER_GIB_MONTH: Mapping[str, Fact] = MappingProxyType(
    {
        "pd-standard": published(0.04, _DISKS),
        "pd-balanced": published(0.10, _DISKS),
        "pd-ssd": published(0.17, _DISKS),
    }
)
ADDRESS_USD_PER_HOUR = published(0.005, _NETWORK)
SPOT_ADDRESS_USD_PER_HOUR = published(0.0025, _NETWORK)
NAT_USD_PER_HOUR = published(0.0014 + 0.005, f"{_NETWORK}: one machine and one address")
NAT_USD_PER_GIB = published(0.045, _NETWORK)

IMAGE_PROJECT = "debian-cloud"
IMAGE_FAMILY = "debian-13"
BOOT_DISK_GIB, BOOT_DISK_TYPE = 32, "pd-ssd"
DATA_DISK_GIB, DATA_DISK_TYPE = 250, "pd-balanced"
DATA_DEVICE = "vllm-data"
"""Name of the data disk in the guest: `/dev/disk/by-id/google-vllm-data`."""
MOUNT = "/opt1"
"""Where the reference mounts the data disk."""

IAP_RANGE = "35.235.240.0/20"
"""Addresses that IAP's tunnels come from (Google's IAP TCP forwarding page)."""

# Phases of a deployment's way to readiness, in order, with usual seconds of the reference.
CREATING_S = assumed(60.0, "hardware is found and the disks are made; no log with times")
BOOTING_S = assumed(45.0, "Debian 13 until ssh answers; no log with times")
PREPARING_S = assumed(
    1500.0, "driver by DKMS on two vCPUs, a reboot, and vLLM with torch; no log with times"
)
LOADING_S: Mapping[str, Fact] = MappingProxyType(
    {
        "bf16": measured(531.0, f"{_ARTICLE}: cold start, bf16"),
        "w4a16": measured(478.0, f"{_ARTICLE}: cold start, QAT w4a16"),
    }
)
WARM_LOADING_S: Mapping[str, Fact] = MappingProxyType(
    {
        "bf16": measured(392.0, f"{_ARTICLE}: warm start, bf16"),
        "w4a16": measured(362.0, f"{_ARTICLE}: warm start, QAT w4a16"),
    }
)

# What vLLM is told (article and repository): a T4 knows neither bf16 nor fp8.
DTYPE = "float16"
KV_CACHE_DTYPE = "auto"
GPU_MEMORY_UTILIZATION = 0.9
MAX_MODEL_LEN = 16_384
MAX_NUM_SEQS = 8
MAX_NUM_BATCHED_TOKENS = 4_096
MODEL = "google/gemma-4-E2B-it"
PORT = 8000
SWAP_GIB = 16


def region_of(zone: str) -> str:
    """The region of a zone."""
    return zone.rpartition("-")[0]


def sold_in(zone: str) -> bool:
    """Whether our table has T4s in a zone."""
    region, _, letter = zone.rpartition("-")
    return region in REGIONS and letter in REGIONS[region].letters


def all_zones() -> tuple[str, ...]:
    """Every zone of the table, those tried by default first."""
    every = [f"{region}-{letter}" for region, sold in REGIONS.items() for letter in sold.letters]
    rest = [zone for zone in every if zone not in DEFAULT_ZONES]
    return (*DEFAULT_ZONES, *rest)


@dataclass(frozen=True, slots=True)
class Rate:
    """What a machine costs per hour, and how that is made up.

    Args:
        machine: vCPUs, memory and GPU while it runs.
        basis: The parts, in words.
        fact: The part that its source and date are taken from.
        live: Whether Google's price list said it just now.
    """

    machine: float
    basis: str
    fact: Fact
    live: bool = False


def machine_rate(zone: str, machine: str, spot: bool) -> Rate | None:
    """The rate of a machine with one T4 in a zone; None where no rate is known.

    Args:
        zone: The zone.
        machine: The machine type.
        spot: Whether on spot.
    """
    region = REGIONS.get(region_of(zone))
    kind = MACHINES.get(machine)
    if region is None or kind is None:
        return None
    gpu, vcpu = (region.gpu_spot, region.vcpu_spot) if spot else (region.gpu, region.vcpu)
    return made_up(machine, spot, gpu, kind.vcpus * vcpu.value)


def made_up(
    machine: str, spot: bool, gpu: Fact, usd_per_hour: float, *, live: bool = False
) -> Rate:
    """A rate by its parts.

    Args:
        machine: The machine type.
        spot: Whether on spot.
        gpu: One T4, USD per hour.
        usd_per_hour: The machine without it.
        live: Whether Google's price list said both.
    """
    words = f"{'spot ' if spot else ''}{machine} {usd_per_hour:.4f} + T4 {gpu.value:.4f}"
    return Rate(round(gpu.value + usd_per_hour, 4), words, gpu, live)


def disk_usd_per_month(kind: str, gib: float) -> float | None:
    """What a disk costs a month, used or not; None where no rate is known."""
    rate = DISK_USD_PER_GIB_MONTH.get(kind)
    return None if rate is None else round(rate.value * gib, 2)

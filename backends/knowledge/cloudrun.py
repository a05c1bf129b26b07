"""Cloud Run with a GPU: what it sells where, its limits and prices, and the reference deployments.

Adding an entry needs no code. Everything here has its source; all was collected on 2026-11-30.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from backends.knowledge.facts import Fact, assumed, derived, published
from backends.knowledge.targets import CLOUDRUN_L4, CLOUDRUN_RTX6000, TargetProfile

GIB = 2**30

_GPU_PAGE = "Cloud Run documentation, GPU support for services and worker pools"
_PRICES = "Cloud Run pricing page, instance-based billing, tier 1"
_ARTICLE_L4 = "Cloud Run L4 article and its repository"
_DGEM = "DiffusionGemma repository"

QUOTA_SERVICE = "run.googleapis.com"
CPU_QUOTA = "CpuAllocPerProjectRegion"
"""Total CPU of all instances that could run, in thousandths of a vCPU. New projects: 20000."""
MEMORY_QUOTA = "MemAllocPerProjectRegion"
"""Total memory of all instances that could run, in bytes. New projects: 42949672960 (40 GiB)."""

# One reader's export of Google's price list (asia-south2), and another's reading of the Cloud
# Billing Catalog (asia-southeast1, in INR): the second's amounts stand to each other as these do.
_PRICES_2 = "Cloud Billing price list, asia-south2, instance-based billing, tier 2"
_PRICES_2_GPU = (
    "Cloud Billing Catalog, asia-southeast1 in INR, in proportion to the vCPU's price there: 1.2 "
    "times tier 1"
)


@dataclass(frozen=True)
class Tier:
    """What regions of one price tier charge for CPU and memory.

    Args:
        regions: Which they are.
        cpu_usd_per_s: One vCPU.
        memory_usd_per_gib_s: One GiB.
    """

    regions: frozenset[str]
    cpu_usd_per_s: Fact
    memory_usd_per_gib_s: Fact


TIERS: tuple[Tier, ...] = (
    Tier(
        frozenset({"asia-east1", "europe-west1", "europe-west4", "us-central1", "us-east4"}),
        published(0.000018, _PRICES),
        published(0.000002, _PRICES),
    ),
    Tier(
        frozenset({"asia-south1", "asia-south2", "asia-southeast1"}),
        published(0.0000216, _PRICES_2, "2026-08-19"),
        published(0.0000024, _PRICES_2, "2026-08-19"),
    ),
)
"""Tiers 1 and 2, as far as they sell GPUs; which is which is in the locations documentation."""

BUCKET_USD_PER_GIB_MONTH = published(0.020, "Cloud Storage pricing page, standard, us regions")

IDLE_S = assumed(900.0, "Cloud Run keeps an idle instance for up to 15 minutes (documentation)")
"""How long an instance without requests may go on, and be paid for."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A startup probe.

    Args:
        path: What is asked over HTTP; empty for a TCP probe.
        initial_delay_s: Seconds before the first try.
        period_s: Seconds between tries.
        timeout_s: Seconds a try may take.
        failure_threshold: Tries that may fail in a row.
    """

    path: str
    initial_delay_s: int
    period_s: int
    timeout_s: int
    failure_threshold: int

    @property
    def patience_s(self) -> int:
        """Seconds until a container that does not answer is given up."""
        return self.initial_delay_s + self.period_s * self.failure_threshold

    def flag(self, port: int) -> str:
        """The value of `--startup-probe`."""
        kind = f"httpGet.path={self.path},httpGet.port" if self.path else "tcpSocket.port"
        return (
            f"{kind}={port},initialDelaySeconds={self.initial_delay_s},"
            f"periodSeconds={self.period_s},timeoutSeconds={self.timeout_s},"
            f"failureThreshold={self.failure_threshold}"
        )


# Limits of the API (Run Admin API reference, Probe; health check page for the total with a GPU).
PROBE_LIMITS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "initial_delay_s": (0, 240),
        "period_s": (1, 240),
        "timeout_s": (1, 240),
        "failure_threshold": (1, 1800),
    }
)
MAX_PROBE_TOTAL_S = 1800
"""`period x failureThreshold` may not pass this with a GPU (600 without)."""


@dataclass(frozen=True, slots=True)
class SoldRegion:
    """A region that sells the GPU.

    Args:
        name: The region.
        note: What to know of it, e.g. that it takes an invitation.
    """

    name: str
    note: str = ""


@dataclass(frozen=True)
class CloudRunProfile:
    """A reference deployment on Cloud Run: every flag that is not asked for comes from here.

    Args:
        target: The target's name.
        title: For people.
        hardware: For people.
        gpu_type: Value of `--gpu-type`.
        reference: The engine's side: checkpoint, lengths, admission cap, start-up.
        quota: Quota id of the GPU without zonal redundancy.
        zonal_quota: With it.
        quota_divisor: The GPU quota may be counted in thousandths from this value on.
        regions: Where it is sold.
        default_region: Where the reference deployment runs.
        pairs: vCPUs, least and most GiB that go with them.
        cpu: Its vCPUs.
        memory_gib: Its memory.
        gpu_usd_per_s: List price of the GPU without zonal redundancy, by tier; those known.
        zonal_gpu_usd_per_s: With it; the same.
        image: Its image, pinned.
        port: What vLLM listens on.
        probe: Its startup probe.
        request_timeout_s: Longest request.
        load: How weights are read: `mount`, `stream` (runai_streamer) or `copy` (into memory).
        vpc: Whether egress goes through the VPC, for weights at the bucket's full speed.
        cpu_boost: Whether more CPU is given while starting.
        quantization: vLLM's `--quantization` for checkpoints that are not quantised.
        env: Variables of the container.
        engine_flags: vLLM's flags that nobody is asked about.
        flag_sources: Where the flags come from.
    """

    target: str
    title: str
    hardware: str
    gpu_type: str
    reference: TargetProfile
    quota: str
    zonal_quota: str
    quota_divisor: int
    regions: tuple[SoldRegion, ...]
    default_region: str
    pairs: tuple[tuple[int, int, int], ...]
    cpu: int
    memory_gib: int
    gpu_usd_per_s: tuple[Fact, ...]
    zonal_gpu_usd_per_s: tuple[Fact, ...]
    image: str
    port: int
    probe: Probe
    request_timeout_s: int
    load: str
    vpc: bool
    cpu_boost: bool
    quantization: str | None
    env: Mapping[str, str] = field(default_factory=dict)
    engine_flags: tuple[str, ...] = ()
    flag_sources: str = ""

    def sells(self, region: str) -> SoldRegion | None:
        """The region's entry, or None where the GPU is not sold there."""
        return next((sold for sold in self.regions if sold.name == region), None)

    def region(self, wanted: str | None) -> str:
        """The region that is wanted where it sells the GPU, else the profile's own."""
        return wanted if wanted and self.sells(wanted) else self.default_region


# vLLM's flags of both references: what Gemma 4 needs to call tools and reason in the open.
_GEMMA = (
    "--enable-auto-tool-choice",
    "--tool-call-parser=gemma4",
    "--reasoning-parser=gemma4",
)

L4 = CloudRunProfile(
    target="cloudrun-l4",
    title="Cloud Run service, scales to zero",
    hardware="NVIDIA L4, 24 GB",
    gpu_type="nvidia-l4",
    reference=CLOUDRUN_L4,
    quota="NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion",
    zonal_quota="NvidiaL4GpuAllocPerProjectRegion",
    quota_divisor=1000,
    regions=(
        SoldRegion("us-east4"),
        SoldRegion("us-central1", "by invitation for new users since 2026"),
        SoldRegion("europe-west1"),
        SoldRegion("europe-west4"),
        SoldRegion("asia-southeast1"),
        SoldRegion("asia-south1", "by invitation"),
    ),
    default_region="us-east4",
    # The GPU page: at least 4 vCPU and 16 GiB; the memory page: 4 GiB a vCPU at most.
    pairs=((4, 16, 16), (6, 16, 24), (8, 16, 32)),
    cpu=8,
    memory_gib=32,
    gpu_usd_per_s=(
        published(0.0001867, _PRICES),
        derived(0.0001867 * 1.2, _PRICES_2_GPU, "2026-08-01"),
    ),
    zonal_gpu_usd_per_s=(
        published(0.0002909, _PRICES),
        derived(0.0002909 * 1.2, _PRICES_2_GPU, "2026-08-01"),
    ),
    # A -cu129 build: Cloud Run's L4 fleet has driver 535, and others need a newer one.
    image="vllm/vllm-openai:v0.26.0-cu129",
    port=8000,
    probe=Probe("/health", 180, 60, 60, 10),
    request_timeout_s=3600,
    load="mount",
    vpc=False,
    cpu_boost=False,
    quantization=None,
    env=MappingProxyType({"VLLM_ENABLE_CUDA_COMPATIBILITY": "0"}),
    engine_flags=(
        "--dtype=bfloat16",
        "--disable-chunked-mm-input",
        "--tensor-parallel-size=1",
        "--enable-chunked-prefill",
        *_GEMMA,
        "--async-scheduling",
        "--limit-mm-per-prompt={}",
    ),
    flag_sources=_ARTICLE_L4,
)

RTX6000 = CloudRunProfile(
    target="cloudrun-rtx6000",
    title="Cloud Run service, scales to zero",
    hardware="NVIDIA RTX PRO 6000 Blackwell, 96 GB",
    gpu_type="nvidia-rtx-pro-6000",
    reference=CLOUDRUN_RTX6000,
    quota="NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion",
    zonal_quota="NvidiaRtxPro6000GpuAllocPerProjectRegion",
    quota_divisor=1000,
    regions=(
        SoldRegion("us-central1"),
        SoldRegion("europe-west4"),
        SoldRegion("asia-southeast1"),
        SoldRegion("asia-south2", "by invitation"),
    ),
    default_region="us-central1",
    # The GPU page: at least 20 vCPU and 80 GiB. The upper ends are not published; Google says.
    pairs=tuple((cpu, 80, 176) for cpu in range(20, 46, 2)),
    cpu=20,
    memory_gib=80,
    gpu_usd_per_s=(derived(2.20 / 3600, f"{_DGEM}: about 2.20 USD an hour"),),
    zonal_gpu_usd_per_s=(),
    image="vllm/vllm-openai:v0.26.0-cu129",
    port=8080,
    probe=Probe("/health", 10, 5, 4, 120),
    request_timeout_s=3600,
    load="stream",
    vpc=True,
    cpu_boost=True,
    quantization="fp8",
    env=MappingProxyType({"CUDA_MODULE_LOADING": "LAZY"}),
    engine_flags=(
        "--dtype=bfloat16",
        "--tensor-parallel-size=1",
        "--enable-chunked-prefill",
        "--enable-prefix-caching",
        "--generation-config=auto",
        *_GEMMA,
    ),
    flag_sources=f"{_DGEM}; RTX PRO 6000 rigs of the gemma4-tips repository",
)

PROFILES: Mapping[str, CloudRunProfile] = MappingProxyType({p.target: p for p in (L4, RTX6000)})


@dataclass(frozen=True, slots=True)
class Rates:
    """What one region charges for the parts of an instance, in USD.

    Args:
        gpu: One GPU, a second.
        cpu: One vCPU, a second.
        memory: One GiB, a second.
        live: Whether they were read from the provider's price list now.
    """

    gpu: Fact
    cpu: Fact
    memory: Fact
    live: bool = False

    def usd_per_hour(self, cpu: float, memory_gib: float) -> float:
        """What an instance of a size costs per hour while it exists."""
        rate = self.gpu.value + cpu * self.cpu.value + memory_gib * self.memory.value
        return round(rate * 3600, 4)


def rates_of(profile: CloudRunProfile, region: str, *, zonal: bool = False) -> Rates | None:
    """The list prices of a region; None where one of them is not known.

    Args:
        profile: Which GPU.
        region: Where.
        zonal: With zonal redundancy.
    """
    gpus = profile.zonal_gpu_usd_per_s if zonal else profile.gpu_usd_per_s
    for tier, gpu in zip(TIERS, gpus, strict=False):
        if region in tier.regions:
            return Rates(gpu, tier.cpu_usd_per_s, tier.memory_usd_per_gib_s)
    return None


def usd_per_instance_hour(
    profile: CloudRunProfile, region: str, cpu: float, memory_gib: float, *, zonal: bool = False
) -> float | None:
    """What one instance costs per hour while it exists; None where no rate is known.

    Args:
        profile: Which GPU.
        region: Where.
        cpu: vCPUs.
        memory_gib: Memory.
        zonal: With zonal redundancy.
    """
    rates = rates_of(profile, region, zonal=zonal)
    return None if rates is None else rates.usd_per_hour(cpu, memory_gib)

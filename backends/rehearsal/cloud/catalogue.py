"""What the rehearsed Google sells and allows: regions, GPUs, limits of a project, list prices.

Sources, collected 2026-11-30: the Cloud Run GPU page (regions, minimum CPU and memory), the Cloud
Run pricing page (rates), codelab reports of new projects (40 GiB and 20 vCPU a region), and the
DiffusionGemma repository (RTX PRO 6000 rate, regions). Kept apart from `backends.knowledge` on
purpose: a rehearsal that read our own tables could not contradict them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from backends.rehearsal.cloud import tpu_catalogue

GIB = 2**30

# Cloud Run regions and the short code in their service URLs (`https://NAME-HASH-uk.a.run.app`).
REGIONS: Mapping[str, str] = MappingProxyType(
    {
        "asia-east1": "de",
        "asia-northeast1": "an",
        "asia-south1": "el",
        "asia-south2": "em",
        "asia-southeast1": "as",
        "europe-west1": "ew",
        "europe-west2": "nw",
        "europe-west3": "ey",
        "europe-west4": "ez",
        "us-central1": "uc",
        "us-east1": "ue",
        "us-east4": "uk",
        "us-east5": "ul",
        "us-south1": "vp",
        "us-west1": "uw",
        "us-west2": "wl",
    }
)


@dataclass(frozen=True)
class RunGpu:
    """A GPU that Cloud Run sells.

    Attributes:
        name: Value of `--gpu-type`.
        title: As the price list has it.
        regions: Where it is sold.
        cpus: CPU counts it goes with.
        memory_gib: Least and most memory it goes with.
        quota: Quota id without zonal redundancy.
        zonal_quota: Quota id with zonal redundancy.
        metric: Quota metric without zonal redundancy.
        profile: The simulator's profile for it.
        usd_per_s: List price a second, without and with zonal redundancy.
    """

    name: str
    title: str
    regions: tuple[str, ...]
    cpus: tuple[float, ...]
    memory_gib: tuple[float, float]
    quota: str
    zonal_quota: str
    metric: str
    profile: str
    usd_per_s: tuple[float, float]


GPUS: Mapping[str, RunGpu] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            RunGpu(
                name="nvidia-l4",
                title="Nvidia L4 GPU",
                regions=(
                    "asia-east1",
                    "asia-south1",
                    "asia-southeast1",
                    "europe-west1",
                    "europe-west4",
                    "us-central1",
                    "us-east4",
                ),
                cpus=(4.0, 6.0, 8.0),
                memory_gib=(16, 32),
                quota="NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion",
                zonal_quota="NvidiaL4GpuAllocPerProjectRegion",
                metric="run.googleapis.com/nvidia_l4_gpu_allocation_no_zonal_redundancy",
                profile="cloudrun-l4",
                usd_per_s=(0.0001867, 0.0002909),
            ),
            RunGpu(
                name="nvidia-rtx-pro-6000",
                title="Nvidia RTX PRO 6000 GPU",
                regions=("asia-south2", "asia-southeast1", "europe-west4", "us-central1"),
                cpus=(20.0, 22.0, 24.0, 26.0, 28.0, 30.0),
                memory_gib=(80, 120),
                quota="NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion",
                zonal_quota="NvidiaRtxPro6000GpuAllocPerProjectRegion",
                metric="run.googleapis.com/nvidia_rtx_pro_6000_gpu_allocation_no_zonal_redundancy",
                profile="cloudrun-rtx6000",
                # 2.20 USD an hour; a rate with zonal redundancy is not published.
                usd_per_s=(2.20 / 3600, 2.20 / 3600),
            ),
        )
    }
)

CPU_USD_PER_S = 0.000018
MEMORY_USD_PER_GIB_S = 0.000002

CPU_QUOTA = "CpuAllocPerProjectRegion"
MEMORY_QUOTA = "MemAllocPerProjectRegion"

# CPU and memory that go together without a GPU: CPUs, least and most GiB (gen2).
CPU_MEMORY: tuple[tuple[float, float, float], ...] = (
    (1.0, 0.5, 4.0),
    (2.0, 0.5, 8.0),
    (4.0, 2.0, 16.0),
    (6.0, 4.0, 24.0),
    (8.0, 4.0, 32.0),
)


def default_quotas() -> dict[str, dict[str, int]]:
    """Limits of a project to which Google has given GPUs: values by quota id and region.

    CPU in thousandths, memory in bytes, as the Quotas API has them. Three GPUs is what a first
    request gives; memory and CPU are what a grown project has, so that a deployment can pass. The
    refusals of a new project (20 vCPU, 40 GiB, no GPU) are faults that can be switched on.
    """
    quotas: dict[str, dict[str, int]] = {
        CPU_QUOTA: dict.fromkeys(REGIONS, 200_000),
        MEMORY_QUOTA: dict.fromkeys(REGIONS, 400 * GIB),
    }
    for gpu in GPUS.values():
        quotas[gpu.quota] = dict.fromkeys(gpu.regions, 3)
        quotas[gpu.zonal_quota] = dict.fromkeys(gpu.regions, 0)
    return quotas | tpu_catalogue.default_quotas()


NEW_PROJECT_CPU = 20_000
NEW_PROJECT_MEMORY = 40 * GIB

# What a new project has, and what the reference deployments need on top (`gcloud services enable`).
DEFAULT_APIS = (
    "bigquery.googleapis.com",
    "cloudapis.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "servicemanagement.googleapis.com",
    "serviceusage.googleapis.com",
    "storage-api.googleapis.com",
    "storage-component.googleapis.com",
    "storage.googleapis.com",
)
NEEDED_APIS = (
    "artifactregistry.googleapis.com",
    "cloudbilling.googleapis.com",
    "cloudbuild.googleapis.com",
    "cloudquotas.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "iap.googleapis.com",
    "run.googleapis.com",
    "secretmanager.googleapis.com",
    "tpu.googleapis.com",
)

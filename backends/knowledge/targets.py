"""Profiles of the targets: which chip, at which price, admitting how many requests, ready when.

A profile describes the reference deployment of a target. The simulator behaves like it, plans and
cost figures start from it. List prices; what an account really pays may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from backends.core.errors import NotFoundError
from backends.knowledge.accelerators import L4, RTX_PRO_6000, T4, V6E, Accelerator
from backends.knowledge.facts import Fact, assumed, derived, measured, published


@dataclass(frozen=True, slots=True)
class StartupPhase:
    """One stretch between the request and readiness.

    Args:
        name: `provision`, `container`, `import`, `weights`, `compile`, `kv_cache`, `api`.
        seconds: How long the reference deployment took.
    """

    name: str
    seconds: Fact


@dataclass(frozen=True, slots=True)
class TargetProfile:
    """The reference deployment of one target.

    Args:
        name: Profile name, which is the target's name for all but `tpu-v6e` sizes.
        title: For people.
        accelerator: The chip.
        chips: How many, tensor-parallel.
        usd_per_hour: List price of the whole machine while it serves, on demand.
        checkpoint: Checkpoint the reference deployment serves.
        max_model_len: Its context limit.
        kv_cache_dtype: Its `--kv-cache-dtype`.
        max_num_seqs: Its `--max-num-seqs`.
        max_num_batched_tokens: Its `--max-num-batched-tokens`.
        memory_utilization: Its `--gpu-memory-utilization`; None means vLLM's default.
        admission_cap: Requests the platform lets through at once (Cloud Run's `--concurrency`);
            0 means no cap. The rest wait in front of vLLM, where its metrics do not see them.
        startup: What happens before it answers, in order.
    """

    name: str
    title: str
    accelerator: Accelerator
    chips: int
    usd_per_hour: Fact
    checkpoint: str
    max_model_len: int
    kv_cache_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_utilization: float | None
    admission_cap: int
    startup: tuple[StartupPhase, ...]

    @property
    def startup_s(self) -> float:
        """Seconds from request to readiness of the reference deployment."""
        return sum(phase.seconds.value for phase in self.startup)

    def faster(self, speed: float) -> TargetProfile:
        """The same with a start that takes so many times less, as in a rehearsal."""
        return replace(
            self,
            startup=tuple(
                replace(phase, seconds=replace(phase.seconds, value=phase.seconds.value / speed))
                for phase in self.startup
            ),
        )


def _phases(*phases: tuple[str, Fact]) -> tuple[StartupPhase, ...]:
    return tuple(StartupPhase(name, seconds) for name, seconds in phases)


_SAGEMAKER = "SageMaker L4 repository: log of one deployment"
_NO_SPLIT = "no log with times is published; split of the whole as on SageMaker"

CLOUDRUN_L4 = TargetProfile(
    name="cloudrun-l4",
    title="Cloud Run service, one NVIDIA L4",
    accelerator=L4,
    chips=1,
    usd_per_hour=derived(
        1.4209,
        "us-east4, 8 vCPU and 32 GiB, no zonal redundancy: 0.0001867 + 8 x 0.000018 + "
        "32 x 0.000002 USD/s (Cloud Run pricing page)",
    ),
    checkpoint="gemma-4-E2B-it",
    max_model_len=16_384,
    kv_cache_dtype="fp8",
    max_num_seqs=8,
    max_num_batched_tokens=4_096,
    memory_utilization=0.95,
    admission_cap=4,
    startup=_phases(
        ("container", assumed(20.0, "streamed image start; no log with times is published")),
        ("import", assumed(35.0, _NO_SPLIT)),
        (
            "weights",
            derived(110.0, "10.2 GB from a bucket mount; 17.5 GiB took 65 s in D's fast case"),
        ),
        ("compile", assumed(60.0, _NO_SPLIT)),
        ("kv_cache", assumed(25.0, _NO_SPLIT)),
        ("api", assumed(5.0, _NO_SPLIT)),
    ),
)

CLOUDRUN_RTX6000 = TargetProfile(
    name="cloudrun-rtx6000",
    title="Cloud Run service, one NVIDIA RTX PRO 6000",
    accelerator=RTX_PRO_6000,
    chips=1,
    usd_per_hour=derived(
        4.072,
        "20 vCPU and 80 GiB: GPU 2.20 USD/h (DiffusionGemma repository) + 20 x 0.0648 + "
        "80 x 0.0072 (Cloud Run pricing page)",
    ),
    checkpoint="gemma-4-26B-A4B-it-fp8",
    max_model_len=32_767,
    kv_cache_dtype="fp8",
    max_num_seqs=8,
    max_num_batched_tokens=8_192,
    memory_utilization=0.95,
    admission_cap=16,
    startup=_phases(
        ("container", assumed(20.0, "as cloudrun-l4")),
        ("import", assumed(30.0, "as cloudrun-l4, faster host")),
        ("weights", derived(190.0, "51.6 GB at the 0.27 GB/s of D's 17.5 GiB in 65 s")),
        ("compile", assumed(60.0, "as cloudrun-l4")),
        ("kv_cache", assumed(20.0, "as cloudrun-l4")),
        ("api", assumed(5.0, "as cloudrun-l4")),
    ),
)

SAGEMAKER_L4 = TargetProfile(
    name="sagemaker-l4",
    title="SageMaker endpoint, ml.g6.xlarge (one NVIDIA L4)",
    accelerator=L4,
    chips=1,
    usd_per_hour=published(1.1267, "ml.g6.xlarge in us-east-2, SageMaker pricing page"),
    checkpoint="gemma-4-E2B-it",
    max_model_len=8_192,
    kv_cache_dtype="auto",
    max_num_seqs=256,
    max_num_batched_tokens=2_496,
    memory_utilization=0.9,
    admission_cap=0,
    startup=_phases(
        ("container", measured(361.0, f"{_SAGEMAKER}: 7.4 min less the load of the weights")),
        ("weights", measured(82.75, f"{_SAGEMAKER}: 'took 9.75 GiB ... 82.75 seconds'")),
        ("compile", measured(108.0, f"{_SAGEMAKER}: KV cache at 9.2 min")),
        ("api", measured(42.0, f"{_SAGEMAKER}: InService at 9.9 min")),
    ),
)

GCE_T4 = TargetProfile(
    name="gce-t4",
    title="Compute Engine n1-standard-2 with one Tesla T4",
    accelerator=T4,
    chips=1,
    usd_per_hour=published(0.5241, "n1-standard-2 and T4 in us-west2, Compute Engine pricing"),
    checkpoint="gemma-4-E2B-it",
    max_model_len=16_384,
    kv_cache_dtype="auto",
    max_num_seqs=8,
    # vLLM's default there: the serve command names none, and the KV cache of its log agrees.
    max_num_batched_tokens=2_048,
    memory_utilization=0.9,
    admission_cap=0,
    startup=_phases(
        ("import", assumed(60.0, "two vCPUs; share of the whole is ours")),
        ("weights", derived(270.0, "GCE T4 article: 531 s cold in all, 392 s warm")),
        ("compile", assumed(150.0, "share of the 531 s")),
        ("kv_cache", assumed(41.0, "share of the 531 s")),
        ("api", assumed(10.0, "share of the 531 s")),
    ),
)

TPU_V6E = TargetProfile(
    name="tpu-v6e",
    title="Cloud TPU v6e-1",
    accelerator=V6E,
    chips=1,
    usd_per_hour=published(2.70, "one v6e chip on demand, US regions; flex-start 1.35"),
    checkpoint="gemma-4-E2B-it",
    max_model_len=32_768,
    kv_cache_dtype="auto",
    max_num_seqs=256,
    max_num_batched_tokens=4_096,
    memory_utilization=None,
    admission_cap=0,
    startup=_phases(
        ("container", assumed(90.0, "image pull; share of the 510 s to healthy of 2026-07-21")),
        ("weights", assumed(60.0, "share of the 510 s")),
        ("compile", derived(335.0, "510 s in all; compilation is 685 of 857 s cold")),
        ("kv_cache", assumed(10.0, "share of the 510 s")),
        ("api", assumed(15.0, "share of the 510 s")),
    ),
)

PROFILES: Mapping[str, TargetProfile] = MappingProxyType(
    {p.name: p for p in (CLOUDRUN_L4, CLOUDRUN_RTX6000, SAGEMAKER_L4, GCE_T4, TPU_V6E)}
)


def find_profile(name: str) -> TargetProfile:
    """The profile of that name.

    Raises:
        NotFoundError: There is no such profile in the table.
    """
    try:
        return PROFILES[name.lower()]
    except KeyError:
        raise NotFoundError(
            f"No target profile named {name!r} is known.",
            next_action=f"Use one of: {', '.join(PROFILES)}.",
        ) from None

"""The memory plan against every allocation that was ever logged: weights, KV cache, verdicts.

python -m benchmarks.memory_accuracy
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import Any

from backends.knowledge.accelerators import find_accelerator
from backends.knowledge.checkpoints import find_checkpoint
from backends.knowledge.memory import Host, MemoryPlan, plan_memory


@dataclass(frozen=True)
class Allocation:
    """One start that was logged.

    Args:
        title: Which.
        chip: Accelerator.
        checkpoint: Weights.
        settings: Arguments of `plan_memory`.
        kv_tokens: What "GPU KV cache size" said; None where it was not logged.
        kv_gib: What "Available KV cache memory" said; None where it was not logged.
        fits: Whether it started.
        used: Whether a constant of the model was set by this log, so that it is no prediction.
        weights_gib: Weights that were loaded, where fewer than the checkpoint has (no images).
    """

    title: str
    chip: str
    checkpoint: str
    settings: dict[str, Any]
    kv_tokens: int | None = None
    kv_gib: float | None = None
    fits: bool = True
    used: bool = False
    weights_gib: float | None = None


_SAGEMAKER = {"max_model_len": 8192, "max_num_seqs": 256, "memory_utilization": 0.9}
_T4 = {"max_model_len": 16384, "max_num_seqs": 8, "memory_utilization": 0.9}
_V6E = {"max_num_batched_tokens": 4096}
_E2B, _QAT = "gemma-4-E2B-it", "gemma-4-E2B-it-qat-w4a16-ct"
_26B, _31B = "gemma-4-26B-A4B-it-qat-w4a16-ct", "gemma-4-31B-it-qat-w4a16-ct"
_WITH_IMAGES = _SAGEMAKER | {"max_num_batched_tokens": 2496}

# FACTS of the reference articles and, for 26B and 31B, the run notes of the SageMaker repository
# (2026-09-28), read 2026-11-30.
LOGGED: tuple[Allocation, ...] = (
    Allocation("T4, E2B bf16", "t4", _E2B, _T4, 315_974),
    Allocation("T4, E2B w4a16", "t4", _QAT, _T4, 519_681, 4.66),
    Allocation("T4, E2B w4a16, text only", "t4", _QAT, _T4, 623_940, 5.59, weights_gib=7.12),
    Allocation("L4 SageMaker, E2B bf16", "l4", _E2B, _SAGEMAKER, 723_484, used=True),
    Allocation("L4 SageMaker, E2B w4a16", "l4", _QAT, _SAGEMAKER, 867_999),
    Allocation("L4 SageMaker, 26B w4a16", "l4", _26B, _WITH_IMAGES, 14_623),
    Allocation("L40S SageMaker, 26B w4a16", "l40s", _26B, _WITH_IMAGES, 141_961),
    Allocation("L40S SageMaker, 31B w4a16", "l40s", _31B, _WITH_IMAGES, 28_846),
    Allocation(
        "L4 SageMaker, 31B w4a16, 1024 tokens, text only",
        "l4",
        _31B,
        {
            "max_model_len": 1024,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 1024,
            "memory_utilization": 0.97,
        },
        2_555,
        weights_gib=18.7,
    ),
    Allocation("L4 SageMaker, 31B w4a16, standard", "l4", _31B, _WITH_IMAGES, fits=False),
    Allocation(
        "L4 SageMaker, 31B w4a16 on 16 GiB of RAM",
        "l4",
        _31B,
        _WITH_IMAGES | {"host": Host(16)},
        fits=False,
    ),
    Allocation("v6e-1, E2B, 32k", "v6e", _E2B, {"max_model_len": 32768, **_V6E}, 1_151_744, 19.77),
    Allocation("v6e-1, E2B, 16k", "v6e", _E2B, {"max_model_len": 16384, **_V6E}, 1_151_744, 19.78),
    Allocation("v6e-1, E2B, 64k", "v6e", _E2B, {"max_model_len": 65536, **_V6E}, 1_151_744, 19.79),
    Allocation(
        "v6e-4, 26B fp8, fp8 KV",
        "v6e",
        "gemma-4-26B-A4B-it-fp8",
        {
            "max_model_len": 32768,
            "memory_utilization": 0.8,
            "chips": 4,
            "kv_cache_dtype": "fp8",
            **_V6E,
        },
        458_240,
        15.32,
    ),
    Allocation("v6e-1, 12B, 4k", "v6e", "gemma-4-12B-it", {"max_model_len": 4224, **_V6E}),
    Allocation(
        "v6e-1, 12B, 8k", "v6e", "gemma-4-12B-it", {"max_model_len": 8320, **_V6E}, fits=False
    ),
    Allocation(
        "T4 without swap, E2B bf16 on 7.5 GiB of RAM", "t4", _E2B, _T4 | {"host": Host(7.5)},
        fits=False,
    ),
    Allocation(
        "T4 with 16 GiB of swap, E2B bf16", "t4", _E2B, _T4 | {"host": Host(7.5, 16)}
    ),
    Allocation(
        "Cloud Run L4, 17.5 GiB copied into 32 GiB of RAM",
        "rtx-pro-6000",
        "diffusiongemma-26B-A4B-it-NVFP4",
        {"max_model_len": 4096, "host": Host(32, load="copy")},
        fits=False,
    ),
    Allocation(
        "Cloud Run RTX, 17.5 GiB copied into 80 GiB of RAM",
        "rtx-pro-6000",
        "diffusiongemma-26B-A4B-it-NVFP4",
        {"max_model_len": 4096, "host": Host(80, load="copy")},
    ),
    Allocation("v6e-1, E2B w4a16", "v6e", _QAT, {"max_model_len": 8192, **_V6E}, fits=False),
)  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """A logged allocation beside what was predicted."""

    logged: Allocation
    plan: MemoryPlan

    @property
    def error(self) -> float | None:
        """Relative error of the KV cache in tokens, signed; None where none was logged."""
        if self.logged.kv_tokens is None:
            return None
        return self.plan.kv_tokens / self.logged.kv_tokens - 1

    @property
    def right(self) -> bool:
        """Whether the verdict is what happened."""
        return (self.plan.verdict != "does not fit") is self.logged.fits


def checked() -> list[Checked]:
    """Every allocation, predicted."""
    found: list[Checked] = []
    for item in LOGGED:
        checkpoint = find_checkpoint(item.checkpoint)
        if item.weights_gib is not None:
            checkpoint = checkpoint.with_resident(item.weights_gib, "text only, logged")
        plan = plan_memory(find_accelerator(item.chip), checkpoint, suggest=False, **item.settings)
        found.append(Checked(item, plan))
    return found


def main() -> int:
    """Print every allocation."""
    print("Memory plan beside logged allocations. Error: predicted / logged - 1 (KV tokens).\n")
    results = checked()
    for item in results:
        logged, error = item.logged, item.error
        tokens = (
            f"{logged.kv_tokens:>9,} {item.plan.kv_tokens:>9,}" if logged.kv_tokens else " " * 19
        )
        shown = f"{error:+7.1%}" if error is not None else " " * 7
        gib = f"{logged.kv_gib:6.2f} {item.plan.kv_gib:6.2f}" if logged.kv_gib else " " * 13
        happened = "started" if logged.fits else "did not start"
        verdict = f"{item.plan.verdict}{'' if item.right else '  WRONG'}"
        print(f"{logged.title:50s} {tokens} {shown} {gib}  {happened}: {verdict}"
              f"{' (used)' if logged.used else ''}")  # fmt: skip
    sizes = [abs(item.error) for item in results if item.error is not None and not item.logged.used]
    wrong = sum(not item.right for item in results)
    print(
        f"\n  KV cache: {len(sizes)} predicted, median error {statistics.median(sizes):.1%}, worst "
        f"{max(sizes):.1%}; verdicts: {len(results) - wrong} of {len(results)} right\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether a checkpoint fits an accelerator, what is left for the KV cache, and what to change.

The one place that answers it: every target's plan, the comparison of targets and `inspect` ask
here. All of it is predicted, from the same model that the simulator runs on; docs/KNOWLEDGE.md has
the errors against every allocation that was ever logged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from backends.knowledge.accelerators import ACCELERATORS, Accelerator
from backends.knowledge.checkpoints import CHECKPOINTS, GIB, Checkpoint
from backends.knowledge.roofline import StepModel

Verdict = Literal["fits", "tight", "does not fit"]

MIN_CONTEXT = 256
"""No length below this is proposed (vLLM's smallest useful `--max-model-len`)."""

COPY_HEADROOM_GIB = 16.0
"""RAM the engine needs beside weights that are copied into it: 32 GiB did not do for 17.5 GiB of
weights with the vision tower, 80 GiB did (DiffusionGemma repository, 2026-11-30)."""

IMAGE_GIB = 30.0
"""Disk that an unpacked vLLM image and its caches take (a 10 GB boot disk filled up, TPU v6e
repository; vLLM's CUDA images unpack to 20 to 28 GiB; 2026-11-30)."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the accelerator.

    Args:
        memory_gib: RAM.
        swap_gib: Swap.
        disk_gib: Free disk for image and weights; None where that does not matter.
        load: How weights come into the accelerator: `mmap` (a file is mapped, vLLM's default),
            `stream` (in pieces), or `copy` (the files are put into RAM first).
        downloads: Whether the weights are put on the disk first.
    """

    memory_gib: float
    swap_gib: float = 0.0
    disk_gib: float | None = None
    load: Literal["mmap", "stream", "copy"] = "mmap"
    downloads: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What the memory will be used for, per chip.

    Args:
        verdict: Whether it fits.
        usable_gib: What vLLM may use of the chip.
        weights_gib: Weights.
        working_gib: Activations, logits, graphs.
        kv_gib: Left for the KV cache; negative where weights do not fit.
        kv_tokens: Tokens the cache holds over all sequences.
        max_concurrency: Requests of full length it holds at once.
        longest: Longest `max_model_len` that one request could have; 0 where none.
        reasons: Why it is tight or does not fit.
        changes: What would help, the cheapest first.
    """

    verdict: Verdict
    usable_gib: float
    weights_gib: float
    working_gib: float
    kv_gib: float
    kv_tokens: int
    max_concurrency: float
    longest: int
    reasons: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    def facts(self) -> dict[str, str | int | float]:
        """For an answer; all predicted."""
        return {
            "memory_fit_predicted": self.verdict,
            "usable_gib": round(self.usable_gib, 2),
            "weights_gib_predicted": round(self.weights_gib, 2),
            "working_gib_predicted": round(self.working_gib, 2),
            "kv_cache_gib_predicted": round(self.kv_gib, 2),
            "kv_cache_tokens_predicted": self.kv_tokens,
            "full_length_requests_at_once_predicted": round(self.max_concurrency, 2),
        }


def plan_memory(
    accelerator: Accelerator,
    checkpoint: Checkpoint,
    *,
    max_model_len: int,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    kv_cache_dtype: str = "auto",
    memory_utilization: float | None = None,
    chips: int = 1,
    host: Host | None = None,
    suggest: bool = True,
) -> MemoryPlan:
    """What vLLM will find when it starts.

    Args:
        accelerator: The chip.
        checkpoint: The weights.
        max_model_len: Longest context, tokens.
        max_num_seqs: vLLM's `--max-num-seqs`.
        max_num_batched_tokens: vLLM's token budget of a step.
        kv_cache_dtype: vLLM's `--kv-cache-dtype`.
        memory_utilization: vLLM's `--gpu-memory-utilization`; the chip's default unless given.
        chips: Tensor-parallel size.
        host: The machine, to check RAM and disk too.
        suggest: Whether to look for what would help.

    Raises:
        InvalidInputError: A value is out of range.
    """
    model = StepModel(accelerator, checkpoint, chips, kv_cache_dtype=kv_cache_dtype)
    share = memory_utilization or accelerator.default_memory_utilization.value
    usable = accelerator.memory_gib.value * share
    working = model.working_gib(max_num_seqs, max_num_batched_tokens)
    kv_gib = usable - model.weights_gib - working
    lay = model.kv_layout
    pool = kv_gib * GIB
    tokens = lay.tokens(pool, max_model_len, max_num_batched_tokens)
    concurrency = tokens / max_model_len
    top = checkpoint.attention.max_context_tokens
    longest = _longest(model, pool, top, max_num_batched_tokens)
    no, tight = _judge(
        accelerator, checkpoint, model, usable, kv_gib, tokens, max_model_len, longest
    )
    if host is not None:
        stops, warns = check_host(checkpoint, host)
        no, tight = no + stops, tight + warns
    verdict: Verdict = "does not fit" if no else "tight" if tight else "fits"
    changes: list[str] = []
    if suggest and verdict != "fits":
        asked = {
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "kv_cache_dtype": kv_cache_dtype,
            "memory_utilization": memory_utilization,
        }
        changes = _changes(accelerator, checkpoint, chips, asked, longest)
    return MemoryPlan(
        verdict,
        usable,
        model.weights_gib,
        working,
        kv_gib,
        tokens,
        concurrency,
        longest,
        tuple(no + tight),
        tuple(changes),
    )


def runs_on(checkpoint: Checkpoint, accelerator: Accelerator) -> bool:
    """Whether vLLM serves the checkpoint's encoding on the chip at all."""
    wanted = checkpoint.weight_format
    return wanted in accelerator.formats or (wanted == "bf16" and "fp16" in accelerator.formats)


def check_host(checkpoint: Checkpoint, host: Host) -> tuple[list[str], list[str]]:
    """What of the machine around the accelerator stops it, and what is tight."""
    stops: list[str] = []
    tight: list[str] = []
    files_gib = checkpoint.disk_gb.value * 1e9 / GIB
    room = host.memory_gib + host.swap_gib
    if host.load == "mmap" and files_gib > room:
        stops.append(
            f"The host has {room:.3g} GiB of RAM and swap; mapping {files_gib:.1f} GiB of weights "
            "needs as much ('unable to mmap', or the kernel kills the loader): more RAM or swap, "
            "or a streaming loader."
        )
    elif host.load == "mmap" and files_gib > host.memory_gib:
        tight.append(
            f"{files_gib:.1f} GiB of weights pass through {host.memory_gib:.3g} GiB of RAM: "
            "loading depends on swap and is slow."
        )
    if host.load == "copy" and files_gib + COPY_HEADROOM_GIB > host.memory_gib:
        stops.append(
            f"{files_gib:.1f} GiB of weights copied into RAM leave less than "
            f"{COPY_HEADROOM_GIB:.0f} GiB of {host.memory_gib:.3g} to the engine: more memory, or "
            "load='mount' or 'stream'."
        )
    if host.disk_gib is not None:
        need = IMAGE_GIB + (files_gib if host.downloads else 0.0)
        if need > host.disk_gib:
            stops.append(
                f"The disk has {host.disk_gib:.3g} GiB; vLLM's image and caches"
                f"{' and the weights' if host.downloads else ''} take about {need:.0f}."
            )
    return stops, tight


def _judge(
    chip: Accelerator,
    checkpoint: Checkpoint,
    model: StepModel,
    usable: float,
    kv_gib: float,
    tokens: int,
    length: int,
    longest: int,
) -> tuple[list[str], list[str]]:
    """Why it does not fit, and why it is tight."""
    no: list[str] = []
    tight: list[str] = []
    if not runs_on(checkpoint, chip):
        no.append(
            f"vLLM does not serve {checkpoint.weight_format} on {chip.title} (it serves "
            f"{', '.join(chip.formats)})."
        )
    if kv_gib <= 0:
        no.append(
            f"No memory for the KV cache: weights take {model.weights_gib:.1f} GiB and the engine "
            f"{usable - model.weights_gib - kv_gib:.1f} of the {usable:.1f} GiB a chip that vLLM "
            f"may use of {chip.title}."
        )
    elif tokens < length:
        no.append(
            f"The KV cache would hold {tokens} tokens, less than one request of {length}: vLLM "
            f"would refuse to start (longest: {longest})."
        )
    elif tokens < 2 * length:
        tight.append(
            f"The KV cache holds {tokens / length:.1f} requests of {length} tokens: others wait."
        )
    elif kv_gib < 1.0:
        tight.append(f"Only {kv_gib:.2f} GiB are left for the KV cache.")
    return no, tight


def _longest(model: StepModel, pool: float, top: int, batched: int) -> int:
    """The longest context of which the pool holds one request."""

    def holds(length: int) -> bool:
        return model.kv_layout.tokens(pool, length, batched) >= length

    if not holds(MIN_CONTEXT):
        return 0
    low, high = MIN_CONTEXT, top
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _changes(
    chip: Accelerator,
    checkpoint: Checkpoint,
    chips: int,
    asked: dict[str, object],
    longest: int,
) -> list[str]:
    """What would make it fit, each tried."""

    def fits(what: Accelerator = chip, which: Checkpoint = checkpoint, count: int = chips,
             **other: object) -> bool:  # fmt: skip
        values = asked | other
        plan = plan_memory(what, which, chips=count, suggest=False, **values)  # type: ignore[arg-type]
        return plan.verdict == "fits"

    found: list[str] = []
    length = int(str(asked["max_model_len"]))
    shorter = longest // 2 // 256 * 256
    if MIN_CONTEXT <= shorter < length and fits(max_model_len=shorter):
        found.append(f"max_model_len={shorter}")
    seqs = int(str(asked["max_num_seqs"]))
    if seqs > 8 and fits(max_num_seqs=8):
        found.append("max_num_seqs=8")
    if asked["kv_cache_dtype"] == "auto" and "fp8" in chip.tflops and fits(kv_cache_dtype="fp8"):
        found.append("kv_cache_dtype='fp8'")
    share = asked["memory_utilization"]
    if chip.kind == "gpu" and (share is None or float(str(share)) < 0.95) and fits(
        memory_utilization=0.95
    ):  # fmt: skip
        found.append("gpu_memory_utilization=0.95")
    smaller = [
        other
        for other in CHECKPOINTS.values()
        if other.size == checkpoint.size
        and other.resident_gib.value < checkpoint.resident_gib.value
        and fits(which=other)
    ]
    found += [f"the {other.weight_format} encoding: {other.name}" for other in smaller]
    if chip.kind == "tpu":
        found += [f"{count} chips" for count in (4, 8) if count > chips and fits(count=count)][:1]
    bigger = [
        other
        for other in ACCELERATORS.values()
        if other.memory_gib.value > chip.memory_gib.value and fits(what=other, count=1)
    ]
    if bigger:
        named = min(bigger, key=lambda other: other.memory_gib.value)
        found.append(f"an accelerator with more memory: {named.title}")
    if not found:
        less = [
            other.name
            for other in CHECKPOINTS.values()
            if other.resident_gib.value < checkpoint.resident_gib.value and fits(which=other)
        ]
        found += [f"a smaller model: {less[-1]}"] if less else []
    return found

"""Whether a checkpoint fits a slice: heads against chips, weights and KV cache against HBM.

All of it is predicted, from tables; what really fits, the engine's log says (`advice.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.core.errors import InvalidInputError, NotFoundError
from backends.knowledge.accelerators import V6E
from backends.knowledge.checkpoints import Checkpoint, find_checkpoint
from backends.knowledge.memory import MemoryPlan, plan_memory
from backends.knowledge.tpu import KNOWN_GOOD_CONTEXT, Slice, find_slice
from backends.tpu.spec import TpuSpec


@dataclass(frozen=True)
class Fit:
    """What is predicted of heads and memory.

    Attributes:
        tensor_parallel_size: Chips the model is split over.
        figures: For the plan's settings.
        warnings: What looks tight or wasteful.
        notes: What was chosen, and why.
    """

    tensor_parallel_size: int
    figures: dict[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def checkpoint_of(model: str) -> Checkpoint | None:
    """The checkpoint of our tables that a model's id names; None where it is not in them."""
    try:
        return find_checkpoint(model.rstrip("/").rpartition("/")[2])
    except NotFoundError:
        return None


def usual_context(spec: TpuSpec) -> tuple[int, str]:
    """The context to take where none was said, and why it is not the usual one.

    Args:
        spec: The resolved request.
    """
    usual = int(spec.max_model_len or 0)
    size = find_slice(str(spec.size))
    checkpoint = checkpoint_of(str(spec.model))
    if checkpoint is None:
        return usual, ""
    known = KNOWN_GOOD_CONTEXT.get(checkpoint.size)
    if known and size.name == "v6e-1" and known[0] < usual:
        return known[0], f"max_model_len {known[0]} instead of {usual}: {known[1]}."
    split = spec.tensor_parallel_size or size.chips
    tokens = _planned(spec, checkpoint, split, usual).kv_tokens
    for length in (usual, 16_384, 8_192, 4_096):
        if length <= usual and tokens >= 2 * length:
            why = f"max_model_len {length} instead of {usual}: the KV cache holds {tokens} tokens."
            return length, "" if length == usual else why
    return usual, ""


def check_fit(spec: TpuSpec) -> Fit:
    """What a resolved request will have in memory.

    Raises:
        InvalidInputError: It cannot be split so, cannot be loaded, or does not fit.
    """
    size = find_slice(str(spec.size))
    checkpoint = checkpoint_of(str(spec.model))
    wanted = spec.tensor_parallel_size
    if wanted is not None and wanted > size.chips:
        raise InvalidInputError(
            "options.tensor_parallel_size", f"is more than the {size.chips} chips of {size.name}."
        )
    if size.hosts > 1 and wanted not in (None, size.chips):
        raise InvalidInputError(
            "options.tensor_parallel_size",
            f"must be {size.chips} on {size.name}: over Ray every chip takes part.",
        )
    if checkpoint is None:
        split = wanted or size.chips
        return Fit(
            split,
            {"tensor_parallel_size": split},
            warnings=("The checkpoint is not in our tables: its fit is not predicted.",),
        )
    if checkpoint.weight_format == "w4a16":
        raise InvalidInputError(
            "model",
            f"{checkpoint.name} is w4a16 compressed-tensors, which vLLM on TPU cannot load "
            "(tpu-inference issue 3225: NotImplementedError).",
            allowed="the bf16 checkpoint, e.g. google/gemma-4-E2B-it",
        )
    split = wanted or size.chips
    _check_heads(checkpoint, split)
    return _memory(spec, size, checkpoint, split)


def _check_heads(checkpoint: Checkpoint, split: int) -> None:
    heads = checkpoint.attention.query_heads
    if heads % split:
        raise InvalidInputError(
            "options.tensor_parallel_size",
            f"{split} does not divide the {heads} attention heads of {checkpoint.name}.",
            allowed=", ".join(str(n) for n in (1, 2, 4, 8, 16) if heads % n == 0),
        )


def _memory(spec: TpuSpec, size: Slice, checkpoint: Checkpoint, split: int) -> Fit:
    plan = _planned(spec, checkpoint, split, int(spec.max_model_len or 0))
    if plan.verdict == "does not fit":
        short = 0 < plan.longest < int(spec.max_model_len or 0)
        raise InvalidInputError(
            "max_model_len" if short else "model",
            f"does not fit {size.name} (predicted). {' '.join(plan.reasons)}",
            allowed="; ".join(plan.changes) or "a larger size, or a smaller checkpoint",
        )
    warnings = [*plan.reasons, *_habits(spec, size, checkpoint, split)]
    return Fit(split, {"tensor_parallel_size": split, **plan.facts()}, tuple(warnings))


def _planned(spec: TpuSpec, checkpoint: Checkpoint, split: int, length: int) -> MemoryPlan:
    """What memory will be used for. fp8 is left out: it changes nothing on v6e."""
    return plan_memory(
        V6E,
        checkpoint,
        max_model_len=length,
        max_num_seqs=int(spec.max_num_seqs or 256),
        max_num_batched_tokens=int(spec.max_num_batched_tokens or 4096),
        memory_utilization=spec.gpu_memory_utilization,
        chips=split,
    )


def _habits(spec: TpuSpec, size: Slice, checkpoint: Checkpoint, split: int) -> list[str]:
    warnings: list[str] = []
    attention = checkpoint.attention
    heads, full = attention.kv_heads, attention.kv_heads_full
    fewest = min(heads, full)
    if split > fewest:
        some = "" if heads == full else " in its full-attention layers"
        warnings.append(
            f"{checkpoint.name} has {fewest} KV head{'s' if fewest > 1 else ''}{some}: over "
            f"{split} chips that part of its KV cache is copied {split // fewest} times, so more "
            "chips hold fewer tokens than one would think. They help a larger checkpoint more."
        )
    if size.chips > split:
        warnings.append(f"{size.chips - split} of {size.chips} chips are paid for and idle.")
    known = KNOWN_GOOD_CONTEXT.get(checkpoint.size)
    if known and size.name == "v6e-1" and int(spec.max_model_len or 0) > known[0]:
        warnings.append(
            f"{spec.max_model_len} is above {known[0]}, the most known good: {known[1]}."
        )
    if spec.kv_cache_dtype == "fp8":
        warnings.append(
            "kv_cache_dtype=fp8 changes nothing on v6e: its matrix units have no fp8 and the KV "
            "cache stays bf16, whatever the log says."
        )
    if spec.gpu_memory_utilization is not None and spec.gpu_memory_utilization > 0.92:
        warnings.append(
            "gpu_memory_utilization above 0.92 leaves compiled programs short: on smaller chips "
            "0.95 failed after eleven minutes of compiling."
        )
    return warnings

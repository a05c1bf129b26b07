"""Whether a checkpoint fits an instance type: GPU, and the host's RAM. Predicted, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from backends.core.errors import InvalidInputError, NotFoundError
from backends.knowledge.checkpoints import Checkpoint, find_checkpoint
from backends.knowledge.memory import Host, check_host, plan_memory
from backends.knowledge.sagemaker import PROFILE, TYPES
from backends.sagemaker.spec import SageMakerSpec


@dataclass(frozen=True)
class Fit:
    """What is predicted of the memory: figures for the plan's settings, and what looks tight."""

    figures: dict[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def checkpoint_of(model: str) -> Checkpoint | None:
    """The checkpoint of a model, by the last part of its id or folder; None where unknown."""
    try:
        return find_checkpoint(model.rstrip("/").rpartition("/")[2])
    except NotFoundError:
        return None


def too_small(model: str, types: Sequence[str]) -> dict[str, str]:
    """Types whose RAM cannot map the weights, each with the reason."""
    checkpoint = checkpoint_of(model)
    if checkpoint is None:
        return {}
    found: dict[str, str] = {}
    for kind in types:
        stops, _ = check_host(checkpoint, Host(TYPES[kind].memory_gib))
        if stops:
            found[kind] = stops[0]
    return found


def check_fit(spec: SageMakerSpec) -> Fit:
    """What the deployment will have in memory.

    Raises:
        InvalidInputError: The weights leave nothing for the KV cache.
    """
    checkpoint = checkpoint_of(str(spec.model))
    if checkpoint is None:
        return Fit(warnings=("The checkpoint is not in our tables: its fit is not predicted.",))
    chips = int(spec.tensor_parallel_size or 1)
    plan = plan_memory(
        PROFILE.accelerator,
        checkpoint,
        max_model_len=int(spec.max_model_len or PROFILE.max_model_len),
        max_num_seqs=int(spec.max_num_seqs or PROFILE.max_num_seqs),
        max_num_batched_tokens=int(spec.max_num_batched_tokens or PROFILE.max_num_batched_tokens),
        kv_cache_dtype=str(spec.kv_cache_dtype or "auto"),
        memory_utilization=spec.gpu_memory_utilization,
        chips=chips,
    )
    change = f" Would fit: {'; '.join(plan.changes)}." if plan.changes else ""
    if plan.kv_gib <= 0:
        many = f"{chips} x " if chips > 1 else ""
        raise InvalidInputError(
            "model",
            f"takes {plan.weights_gib:.1f} GiB a GPU; of {many}L4 vLLM may use "
            f"{plan.usable_gib:.1f} GiB each, so nothing is left for the KV cache "
            f"(predicted).{change}",
            allowed="a smaller or quantised checkpoint, or types with more GPUs (ml.g6.12xlarge)",
        )
    warnings = [f"{reason} (predicted)" for reason in plan.reasons]
    if warnings and change:
        warnings.append(change.strip())
    return Fit(dict(plan.facts()), tuple(warnings))

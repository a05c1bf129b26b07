"""Checkpoints a TPU machine can serve: it loads them from Hugging Face by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.core.answers import ModelEntry
from backends.core.errors import NotFoundError
from backends.core.settings import Settings
from backends.knowledge.model_files import catalogue
from backends.knowledge.tpu import SLICES
from backends.tpu.fit import check_fit, checkpoint_of, usual_context
from backends.tpu.spec import TpuSpec, resolved

if TYPE_CHECKING:
    from backends.tpu.looking import TpuLooking


async def list_models(target: TpuLooking) -> list[ModelEntry]:
    """The catalogue, and what deployments serve."""
    entries = catalogue()
    requests, _ = await target.world()
    entries += [
        ModelEntry(
            id=item.model,
            where=f"served by {target.at(item.name)}",
            kind=item.state,
            note="simulated" if target.cloud.rehearsal else None,
        )
        for item in requests
        if item.model is not None
    ]
    return entries


def inspect(model: str) -> dict[str, str | int | float | bool]:
    """What our tables say of a checkpoint, and how it fits each size.

    Raises:
        NotFoundError: It is not in our tables.
    """
    from backends.core.errors import InvalidInputError

    checkpoint = checkpoint_of(model)
    if checkpoint is None:
        raise NotFoundError(
            f"{model[:80]} is not in our tables; a TPU machine reads its files only when it "
            "starts.",
            next_action="list_models(target='tpu-v6e')",
        )
    facts: dict[str, str | int | float | bool] = {
        "repository": checkpoint.repo_id,
        "encoding": checkpoint.weight_format,
        "kv_heads": checkpoint.attention.kv_heads,
        "disk_gb": checkpoint.disk_gb.value,
        "max_context": checkpoint.attention.max_context_tokens,
    }
    for size in SLICES.values():
        if not size.reference:
            continue
        spec = resolved(TpuSpec(name="x", model=model, size=size.name), Settings())
        length, _ = usual_context(spec)
        try:
            fit = check_fit(spec.model_copy(update={"max_model_len": length}))
        except InvalidInputError as error:
            facts[f"on {size.name}"] = error.message
            continue
        facts[f"on {size.name}"] = (
            f"fits at {length}: {fit.figures.get('kv_cache_tokens_predicted')} tokens of KV cache "
            "(predicted)"
        )
    return facts

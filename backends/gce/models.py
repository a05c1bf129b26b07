"""Checkpoints for a T4: what we know, whether it fits, and what is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.core.answers import ModelEntry
from backends.knowledge import gce
from backends.knowledge.accelerators import T4
from backends.knowledge.checkpoints import CHECKPOINTS, Checkpoint
from backends.knowledge.memory import plan_memory
from backends.knowledge.model_files import catalogue
from backends.knowledge.model_files import inspect as inspect_files

if TYPE_CHECKING:
    from backends.gce.looking import GceLooking


async def list_models(target: GceLooking) -> list[ModelEntry]:
    """The catalogue with what is predicted of each on a T4, and what machines serve."""
    # One repository may be served in several encodings; each fits or not by itself.
    known = {(item.repo_id, item.weight_format): item for item in CHECKPOINTS.values()}
    entries = [
        entry.model_copy(update={"note": _fit_words(known[entry.id, str(entry.encoding)])})
        for entry in catalogue()
    ]
    for machine in await target.t4_machines():
        model = str(machine.spec.get("model") or "")
        if model:
            entries.append(
                ModelEntry(
                    id=model,
                    where=f"served by {target.at(machine.name)}",
                    kind="as its metadata say",
                    note="simulated" if target.cloud.rehearsal else None,
                )
            )
    return entries


def inspect(model: str) -> dict[str, str | int | float | bool]:
    """What a folder on this machine or the catalogue says of a checkpoint, and how it fits a T4."""
    facts = inspect_files(model)
    checkpoint = CHECKPOINTS.get(model.rstrip("/").rpartition("/")[2])
    return facts | ({"on_a_t4": _fit_words(checkpoint)} if checkpoint is not None else {})


def _fit_words(checkpoint: Checkpoint) -> str:
    plan = plan_memory(
        T4,
        checkpoint,
        max_model_len=gce.MAX_MODEL_LEN,
        max_num_seqs=gce.MAX_NUM_SEQS,
        max_num_batched_tokens=gce.MAX_NUM_BATCHED_TOKENS,
        memory_utilization=gce.GPU_MEMORY_UTILIZATION,
        suggest=False,
    )
    reason = f": {plan.reasons[0]}" if plan.reasons else ""
    return f"{plan.verdict} on a T4 (predicted){reason}"

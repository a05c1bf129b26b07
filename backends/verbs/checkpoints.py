"""Which checkpoint a model's name stands for, what its files say, and where it fits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from backends.core.answers import Fit
from backends.core.errors import DevopsError, InvalidInputError, NotFoundError
from backends.knowledge.checkpoints import GIB, find_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.app import App
    from backends.base import HasModels
    from backends.knowledge.checkpoints import Checkpoint
    from backends.serving.model_sources import ModelSource

Facts = dict[str, str | int | float | bool]

_FIT_LENGTH = 8192


async def known_checkpoint(app: App, model: str) -> Checkpoint:
    """The figures of a model: from the catalogue, else from its config.json and index.

    Raises:
        NotFoundError: Neither the catalogue, nor this machine, nor Hugging Face has it.
        InvalidInputError: Its files do not say what it is.
    """
    try:
        return find_checkpoint(model)
    except NotFoundError:
        from backends.serving.model_sources import read_checkpoint

        ask = not app.settings.rehearsal
        return await asyncio.to_thread(read_checkpoint, model, ask_hub=ask)


async def inspect(app: App, backend: HasModels, model: str) -> tuple[Facts, list[Fit], str]:
    """What a model really is, by its files where there are any, and where it fits.

    Returns:
        Facts, fits by target, and the arguments vLLM needs for it.

    Raises:
        NotFoundError: Nobody has it.
        InvalidInputError: Its files do not say what it is.
    """
    from backends.knowledge.from_config import checkpoint_from, flags_of, parameter_count

    source = await _source(app, backend, model)
    try:
        facts: Facts = await backend.inspect_model(model)
    except NotFoundError:
        if source is None:
            raise
        facts = {"source": source.source, "is_gemma4": _is_gemma4(source.config)}
    if source is None:
        try:
            checkpoint = find_checkpoint(model)
        except NotFoundError:
            return facts, [], ""
        config: Mapping[str, Any] = {"model_type": "gemma4"}
        known = checkpoint.resident_gib
        facts.setdefault("source", f"catalogue ({known.source}, {known.date})")
        facts.setdefault("is_gemma4", True)
    else:
        config = source.config
        try:
            checkpoint = checkpoint_from(
                model.rstrip("/").rpartition("/")[2],
                config,
                source.weight_bytes,
                source.source,
                repo_id=source.repo_id,
            )
        except InvalidInputError as error:
            return facts | {"unknown_because": error.message}, [], ""
        architectures = config.get("architectures") or ["not said"]
        facts["architecture"] = str(architectures[0])
        facts.setdefault("source", source.source)
        facts.setdefault("is_gemma4", _is_gemma4(config))
        facts["encoding"] = checkpoint.weight_format
        parameters = parameter_count(config, source.weight_bytes)
        facts["parameters_billion"] = round(parameters / 1e9, 2)
        checkpoint = _measured(checkpoint, model)
    attention = checkpoint.attention
    facts |= {
        "weights_on_disk_gib": round(checkpoint.disk_gb.value * 1e9 / GIB, 2),
        "weights_resident_gib": round(checkpoint.resident_gib.value, 2),
        "read_gb_per_step": round(checkpoint.read_gb(1), 3),
        "kv_bytes_per_token_bf16": attention.kv_bytes_per_token(),
        "kv_layers": f"{attention.kv_sliding_layers} sliding + {attention.kv_full_layers} full of "
        f"{attention.layers}",
        "max_context_tokens": attention.max_context_tokens,
    }
    return facts, await asyncio.to_thread(fits, checkpoint), flags_of(config).words()


def fits(checkpoint: Checkpoint, length: int = _FIT_LENGTH) -> list[Fit]:
    """On which targets a checkpoint fits, at the reference settings of each.

    Args:
        checkpoint: The weights.
        length: Context asked for, tokens; less where the model has less.
    """
    from backends.knowledge.cost import offers
    from backends.knowledge.memory import Host, plan_memory

    found: list[Fit] = []
    for offer in offers():
        if offer.may_end:
            continue  # the same hardware as on demand
        profile = offer.profile
        plan = plan_memory(
            profile.accelerator,
            checkpoint,
            max_model_len=min(length, checkpoint.attention.max_context_tokens),
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            kv_cache_dtype=profile.kv_cache_dtype,
            memory_utilization=profile.memory_utilization,
            chips=offer.chips,
            host=Host(offer.host_memory_gib, offer.host_swap_gib),
        )
        found.append(
            Fit(
                target=offer.title,
                verdict=plan.verdict,
                kv_cache_tokens=plan.kv_tokens or None,
                longest_context=plan.longest or None,
                reasons=list(plan.reasons),
                would_fit=list(plan.changes),
            )
        )
    return found


async def _source(app: App, backend: HasModels, model: str) -> ModelSource | None:
    """Its files, if any place has them."""
    from backends.serving.model_sources import read_source

    found = await backend.model_source(model)
    if found is not None:
        return found
    try:
        find_checkpoint(model)
        known = True
    except NotFoundError:
        known = False
    ask = not app.settings.rehearsal and not known
    try:
        return await asyncio.to_thread(read_source, model, ask_hub=ask)
    except NotFoundError:
        return None
    except DevopsError:
        if known:
            return None
        raise


def _measured(checkpoint: Checkpoint, model: str) -> Checkpoint:
    """The catalogue's entry, whose figures were measured, where the files are the same thing."""
    try:
        known = find_checkpoint(model)
    except NotFoundError:
        return checkpoint
    mine, theirs = checkpoint.attention, known.attention
    alike = (
        known.weight_format == checkpoint.weight_format
        and (mine.layers, mine.hidden_size) == (theirs.layers, theirs.hidden_size)
        and abs(known.disk_gb.value / checkpoint.disk_gb.value - 1) < 0.1
    )
    return known if alike else checkpoint


def _is_gemma4(config: Mapping[str, Any]) -> bool:
    return str(config.get("model_type", "")).startswith("gemma4")

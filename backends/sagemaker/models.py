"""Checkpoints: those known, those served, and what a bucket folder's own config.json says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from backends.core.answers import ModelEntry
from backends.core.errors import InvalidInputError, NotFoundError
from backends.knowledge.model_files import catalogue

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking

_GIB = 2**30
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
_SHOWN = (
    "num_hidden_layers",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "max_position_embeddings",
    "vocab_size",
)


async def list_models(target: SageMakerLooking) -> list[ModelEntry]:
    """The catalogue, and what endpoints were told to serve.

    Raises:
        DevopsError: A region did not answer: what is served there is not known.
    """
    deployed, silent = await target.everything()
    if silent:
        raise target.unknown_regions(silent, "what is served there")
    entries = catalogue()
    for item in deployed:
        model = await target.model_of(item)
        if model is not None and model.source:
            entries.append(
                ModelEntry(
                    id=model.source,
                    where=f"served by {target.at(item.name)}"
                    if item.endpoint
                    else f"kept for {target.at(item.name)}",
                    kind="as its variables say",
                    note="simulated" if target.aws.rehearsal else None,
                )
            )
    return entries


async def inspect(target: SageMakerLooking, model: str) -> dict[str, str | int | float | bool]:
    """What a bucket folder's own files say.

    Args:
        target: The target.
        model: `s3://BUCKET/FOLDER`.

    Raises:
        InvalidInputError: It is no bucket folder.
        NotFoundError: There is no such folder.
    """
    bucket, _, folder = model.removeprefix("s3://").rstrip("/").partition("/")
    if not model.startswith("s3://") or not bucket or not folder:
        raise InvalidInputError(
            "inspect",
            "is no bucket folder; what a Hugging Face id is, target local says.",
            allowed="s3://BUCKET/FOLDER",
        )
    region = target.home()
    found = await target.aws.items(
        "s3", "list_objects_v2", "Contents", region, Bucket=bucket, Prefix=f"{folder}/"
    )
    sizes = {str(item["Key"]).removeprefix(f"{folder}/"): int(item["Size"]) for item in found}
    if not sizes:
        raise NotFoundError(f"s3://{bucket}/{folder} is empty or not there.")
    config: dict[str, Any] = {}
    if "config.json" in sizes:
        answer = await target.aws.call(
            "s3", "get_object", region, Bucket=bucket, Key=f"{folder}/config.json"
        )
        try:
            parsed = json.loads(answer["Body"])
        except ValueError:
            parsed = None
        config = parsed if isinstance(parsed, dict) else {}
    kind = str(config.get("model_type", "")) or "not said"
    weights = sum(size for name, size in sizes.items() if name.endswith(_WEIGHTS))
    facts: dict[str, str | int | float | bool] = {
        "source": f"s3://{bucket}/{folder}/config.json" if config else f"s3://{bucket}/{folder}",
        "model_type": kind,
        "is_gemma4": kind.startswith("gemma4"),
        "weights_gib": round(weights / _GIB, 3),
        "files": len(sizes),
        "whole": bool(config) and weights > 0,
    }
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    for key in _SHOWN:
        value = inner.get(key, config.get(key))
        if isinstance(value, int):
            facts[key] = value
    return facts

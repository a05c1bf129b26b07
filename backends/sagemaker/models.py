"""Checkpoints: those known, those served, and what a bucket folder's own config.json says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from backends.core.answers import ModelEntry
from backends.core.errors import DevopsError, InvalidInputError, NotFoundError
from backends.core.problems import or_problem, words_of
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


async def check_folder(target: SageMakerLooking, uri: str, region: str) -> list[str]:
    """Look whether a bucket folder can be served from in a region, before anything is paid for.

    Args:
        target: The target.
        uri: `s3://BUCKET/FOLDER`.
        region: Where it is to be served.

    Returns:
        What could not be looked at, as warnings.

    Raises:
        InvalidInputError: It is not there, in another region, or no checkpoint.
    """
    bucket, _, folder = uri.removeprefix("s3://").rstrip("/").partition("/")
    where = await or_problem(target.aws.call("s3", "get_bucket_location", region, Bucket=bucket))
    if isinstance(where, NotFoundError):
        raise InvalidInputError(
            "model",
            f"names the bucket {bucket}, which is not there.",
            next_action=f"aws s3 mb s3://{bucket} --region {region}, then aws s3 sync FOLDER {uri}",
        )
    if not isinstance(where, DevopsError):
        its = str(where.get("LocationConstraint") or "us-east-1")
        if its != region:
            raise InvalidInputError(
                "model",
                f"is in a bucket of {its}, and SageMaker in {region} reads model data only from "
                "buckets of its own region.",
                next_action=f"Deploy with options.region={its!r}; or copy it to a bucket of "
                f"{region}: aws s3 sync {uri} s3://OTHER/{folder} --source-region {its} "
                f"--region {region}",
            )
    found = await or_problem(
        target.aws.items(
            "s3", "list_objects_v2", "Contents", region, Bucket=bucket, Prefix=f"{folder}/"
        )
    )
    if isinstance(found, DevopsError):
        return [
            f"{uri} was not looked into ({words_of(found)}); the role that SageMaker reads it with "
            "may all the same."
        ]
    names = {str(item["Key"]).removeprefix(f"{folder}/") for item in found}
    if not any(name.endswith(_WEIGHTS) for name in names) or "config.json" not in names:
        missing = "config.json" if "config.json" not in names else "weights"
        raise InvalidInputError(
            "model",
            f"{uri} has no {missing}, so vLLM could not start from it.",
            allowed="a folder with config.json, tokenizer and safetensors",
            next_action=f"aws s3 sync FOLDER {uri} --region {region}, then plan again.",
        )
    return []


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

"""Checkpoints in the bucket: what each folder's config.json says it is, never its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.cloudrun.facts import BucketFolder, bucket_folder
from backends.cloudrun.looking import model_of
from backends.cloudrun.transfer import stage_call
from backends.clouds.google_facts import or_problem
from backends.clouds.google_vertex import garden_models
from backends.core.answers import ModelEntry
from backends.core.errors import DevopsError, InvalidInputError, NotFoundError
from backends.core.owned import together
from backends.knowledge.model_files import catalogue

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking
    from backends.serving.model_sources import ModelSource

_MAX_FOLDERS = 50


async def bucket_of(target: CloudRunLooking) -> str:
    """The bucket with weights: the one set, else `PROJECT-bucket`."""
    settings = target.services.settings
    return settings.google_cloud_bucket or f"{await target.cloud.project()}-bucket"


async def list_models(target: CloudRunLooking) -> list[ModelEntry]:
    """The catalogue, the folders of the bucket, and what services were told to serve."""
    bucket = await bucket_of(target)
    entries = catalogue()
    in_bucket, in_garden = await together(
        _in_bucket(target, bucket), garden_models(target.cloud.rest)
    )
    entries += in_bucket + in_garden
    for service in await target.all_services():
        model = model_of(service)
        if model is not None:
            entries.append(
                ModelEntry(
                    id=model,
                    where=f"served by {target.at(service.name)}",
                    kind="as its arguments say",
                    note="simulated" if target.cloud.rehearsal else None,
                )
            )
    return entries


async def inspect(target: CloudRunLooking, model: str) -> dict[str, str | int | float | bool]:
    """What a bucket folder's own files say.

    Args:
        target: The target.
        model: `gs://BUCKET/FOLDER`, or a folder of our bucket.

    Raises:
        NotFoundError: There is no such folder or bucket.
    """
    found = await _folder(target, model)
    if not found.sizes:
        raise NotFoundError(
            f"{found.uri} is empty or not there.",
            next_action=f"{stage_call(target.target, model)} brings weights.",
        )
    return _facts(found)


async def source_of(target: CloudRunLooking, model: str) -> ModelSource | None:
    """config.json and size of a bucket folder; None where there is no whole one."""
    from backends.serving.model_sources import ModelSource

    try:
        found = await _folder(target, model)
    except (NotFoundError, InvalidInputError):
        return None
    if not found.config or not found.has_weights:
        return None
    return ModelSource(found.config, round(found.weights_gib * 2**30), f"{found.uri}/config.json")


async def _folder(target: CloudRunLooking, model: str) -> BucketFolder:
    if model.startswith("gs://"):
        bucket, _, folder = model.removeprefix("gs://").rstrip("/").partition("/")
    else:
        bucket, folder = await bucket_of(target), model.rstrip("/").rpartition("/")[2]
    if not bucket or not folder:
        raise InvalidInputError("inspect", "is no bucket folder.", allowed="gs://BUCKET/FOLDER")
    return await bucket_folder(target.cloud, bucket, folder)


def _facts(found: BucketFolder) -> dict[str, str | int | float | bool]:
    config = found.config
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    architectures = config.get("architectures") or ["not said"]
    facts: dict[str, str | int | float | bool] = {
        "source": f"{found.uri}/config.json" if config else f"{found.uri} (no config.json)",
        "architecture": str(architectures[0]),
        "model_type": found.model_type or "not said",
        "is_gemma4": found.is_gemma4,
        "encoding": found.encoding,
        "weights_gib": round(found.weights_gib, 3),
        "files": len(found.sizes),
        "whole": found.has_weights,
    }
    for key in ("num_hidden_layers", "num_key_value_heads", "head_dim", "sliding_window",
                "max_position_embeddings", "vocab_size"):  # fmt: skip
        value = inner.get(key, config.get(key))
        if isinstance(value, int):
            facts[key] = value
    return facts


async def _in_bucket(target: CloudRunLooking, bucket: str) -> list[ModelEntry]:
    folders = await or_problem(_folders(target, bucket))
    if isinstance(folders, NotFoundError):
        return [
            ModelEntry(
                id=f"gs://{bucket}",
                where="bucket",
                note="there is no such bucket yet; stage_model makes it",
            )
        ]
    if isinstance(folders, DevopsError):
        raise folders
    found = await together(
        *(bucket_folder(target.cloud, bucket, folder) for folder in folders[:_MAX_FOLDERS])
    )
    return [
        ModelEntry(
            id=item.uri,
            where="bucket",
            kind=item.model_type or "no config.json",
            encoding=item.encoding if item.config else None,
            weights_gib=round(item.weights_gib, 3),
            note=None if item.is_gemma4 and item.has_weights else _why_not(item),
        )
        for item in found
    ]


def _why_not(item: BucketFolder) -> str:
    if not item.has_weights:
        return "not a whole checkpoint"
    return f"not a Gemma 4, whatever its name: model_type is {item.model_type or 'not said'}"


async def _folders(target: CloudRunLooking, bucket: str) -> list[str]:
    def look(client: Any) -> list[str]:  # noqa: ANN401 (storage.Client)
        client.get_bucket(bucket, timeout=10, retry=None)
        pages = client.list_blobs(bucket, delimiter="/", timeout=10, retry=None)
        for _ in pages:  # prefixes are known once the items have been read
            pass
        return sorted(prefix.rstrip("/") for prefix in pages.prefixes)

    project = await target.cloud.project()
    return await target.cloud.clients.storage(project, look, f"The bucket gs://{bucket}")

"""Reads what a model is from where it lies, without its weights: a folder, the cache, Hugging Face.

Of a repository only config.json and the index of its weights are read, a few hundred kilobytes at
most; where there is no index, the first bytes of the one weights file, which hold its header.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.core.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from backends.knowledge.checkpoints import CHECKPOINTS
from backends.knowledge.model_files import hub_cache

if TYPE_CHECKING:
    import httpx

    from backends.knowledge.checkpoints import Checkpoint

HUB = "https://huggingface.co"
_TIMEOUT_S = 10.0
_MAX_JSON_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class ModelSource:
    """What was read of a model.

    Attributes:
        config: Its config.json.
        weight_bytes: Size of its weight files.
        source: Where from.
        repo_id: Hugging Face id, if it has one.
    """

    config: Mapping[str, Any]
    weight_bytes: int
    source: str
    repo_id: str = ""


def read_checkpoint(model: str, *, ask_hub: bool = True) -> Checkpoint:
    """The figures of a model that is in no table.

    Args:
        model: A folder, or a Hugging Face id.
        ask_hub: Whether Hugging Face may be asked.

    Raises:
        NotFoundError: Nobody has it.
        InvalidInputError: Its files do not say what it is.
        PermissionDeniedError: It is gated.
        UnavailableError: Hugging Face did not answer.
    """
    from backends.knowledge.from_config import checkpoint_from

    found = read_source(model, ask_hub=ask_hub)
    return checkpoint_from(
        model.rstrip("/").rpartition("/")[2],
        found.config,
        found.weight_bytes,
        found.source,
        repo_id=found.repo_id,
    )


def read_source(model: str, *, ask_hub: bool = True) -> ModelSource:
    """config.json and the size of the weights, from wherever the model is found first.

    Raises:
        As `read_checkpoint`.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _of_folder(folder)
    snapshots = sorted(
        hub_cache().glob(f"models--{model.replace('/', '--')}/snapshots/*/config.json")
    )
    if snapshots:
        try:
            return _of_folder(snapshots[-1].parent)
        except InvalidInputError:
            pass  # only part of it is cached; the hub knows the rest
    if ask_hub and model.count("/") == 1 and not model.startswith(("/", ".", "~", "gs:", "s3:")):
        return _of_hub(model)
    raise NotFoundError(
        "The model is neither a folder here, nor in the local cache, nor catalogued.",
        next_action=f"Catalogued: {', '.join(CHECKPOINTS)}.",
    )


def _of_folder(folder: Path) -> ModelSource:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError("model", f"{path} cannot be read: {error}.") from None
    if not isinstance(config, dict):
        raise InvalidInputError("model", f"{path} does not hold a JSON object.")
    index = folder / "model.safetensors.index.json"
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if index.exists():
        try:
            said = _total_size(json.loads(index.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            said = 0
        weights = max(weights, said)
    if not weights:
        weights = sum(file.stat().st_size for file in folder.glob("*.bin"))
    if not weights:
        raise InvalidInputError("model", f"{folder} has no weights and no index of them.")
    return ModelSource(config, weights, str(path))


def _of_hub(repo: str) -> ModelSource:
    import httpx

    base = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    token = os.environ.get("HF_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(
        base_url=base, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True
    ) as client:
        config = _json(client, repo, "config.json")
        if config is None:
            raise NotFoundError(
                f"{repo} has no config.json on Hugging Face: there is no such model, or it is "
                "private.",
                next_action="Correct the id; HF_TOKEN in the server's environment opens private "
                "ones.",
            )
        index = _json(client, repo, "model.safetensors.index.json")
        size = _total_size(index) if index else _single_file_bytes(client, repo)
    if not size:
        raise InvalidInputError("model", f"{repo} has no safetensors files on Hugging Face.")
    return ModelSource(config, size, f"{base}/{repo} (config.json, index)", repo)


def _json(client: httpx.Client, repo: str, file: str) -> dict[str, Any] | None:
    response = _get(client, repo, file, {})
    if response is None:
        return None
    try:
        parsed = json.loads(response)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidInputError("model", f"{repo}/{file} is not a JSON object.")
    return parsed


def _single_file_bytes(client: httpx.Client, repo: str) -> int:
    """Bytes of tensors in model.safetensors, from its header."""
    start = _get(client, repo, "model.safetensors", {"Range": "bytes=0-7"}, most=8)
    if start is None or len(start) < 8:
        return 0
    (length,) = struct.unpack("<Q", start)
    if not 2 <= length <= _MAX_JSON_BYTES:
        return 0
    text = _get(client, repo, "model.safetensors", {"Range": f"bytes=8-{7 + length}"}, most=length)
    try:
        header = json.loads(text or b"")
    except ValueError:
        return 0
    ends = [
        int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"
    ]
    return max(ends, default=0)


def _get(
    client: httpx.Client,
    repo: str,
    file: str,
    headers: Mapping[str, str],
    *,
    most: int = _MAX_JSON_BYTES,
) -> bytes | None:
    """The first bytes of a file of a repository; None where there is no such file."""
    import httpx

    kept = b""
    try:
        with client.stream("GET", f"/{repo}/resolve/main/{file}", headers=headers) as response:
            if response.status_code == httpx.codes.NOT_FOUND:
                return None
            if response.status_code in {401, 403}:
                raise PermissionDeniedError(
                    f"Hugging Face does not show {repo}.",
                    words=response.headers.get("x-error-message", f"HTTP {response.status_code}"),
                    cause="There is no such model, or its licence has to be accepted first.",
                    next_action="Correct the id, or set HF_TOKEN in the server's environment.",
                )
            response.raise_for_status()
            for chunk in response.iter_bytes():
                kept += chunk
                if len(kept) >= most:
                    break
    except httpx.HTTPError as error:
        raise UnavailableError(
            f"Hugging Face could not be asked for {repo}.",
            words=str(error) or type(error).__name__,
            next_action="Try again later, or name a folder, or one of the catalogue.",
        ) from error
    return kept[:most]


def _total_size(index: Mapping[str, Any]) -> int:
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    return int(size) if isinstance(size, int | float) else 0

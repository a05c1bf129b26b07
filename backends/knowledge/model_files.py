"""What a checkpoint's own files say it is: config.json and safetensors headers, never its name."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from backends.core.answers import ModelEntry
from backends.core.errors import InvalidInputError, NotFoundError
from backends.knowledge.checkpoints import CHECKPOINTS, find_checkpoint

Facts = dict[str, str | int | float | bool]

# A safetensors header is at most 100 MB by the format's own rule.
_MAX_HEADER_BYTES = 100_000_000


def catalogue() -> list[ModelEntry]:
    """The checkpoints we know figures of."""
    return [
        ModelEntry(
            id=checkpoint.repo_id,
            where="catalogue",
            kind=checkpoint.size,
            encoding=checkpoint.weight_format,
            weights_gib=checkpoint.resident_gib.value,
        )
        for checkpoint in CHECKPOINTS.values()
    ]


def hub_cache() -> Path:
    """Where Hugging Face keeps models: HF_HUB_CACHE, HF_HOME/hub, or ~/.cache/huggingface/hub."""
    explicit = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    home = os.environ.get("HF_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache" / "huggingface") / "hub"


def cached_models() -> list[ModelEntry]:
    """Models in the local Hugging Face cache that have a config.json."""
    root = hub_cache()
    if not root.is_dir():
        return []
    entries: list[ModelEntry] = []
    for folder in sorted(root.glob("models--*")):
        configs = sorted(folder.glob("snapshots/*/config.json"), key=lambda p: p.stat().st_mtime)
        if not configs:
            continue
        snapshot = configs[-1].parent
        facts = inspect(str(snapshot))
        weights = facts.get("weights_gib")
        entries.append(
            ModelEntry(
                id=folder.name.removeprefix("models--").replace("--", "/"),
                where=str(snapshot),
                kind=str(facts.get("architecture", "unknown")),
                encoding=str(facts["encoding"]) if "encoding" in facts else None,
                weights_gib=float(weights) if isinstance(weights, int | float) else None,
            )
        )
    return entries


def inspect(model: str) -> Facts:
    """What the files of a model folder say, or what the catalogue knows of an id.

    Args:
        model: A folder with config.json, a Hugging Face id in the local cache, or a catalogued id.

    Raises:
        NotFoundError: Neither a folder nor known.
        InvalidInputError: A folder without a readable config.json.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _from_folder(folder)
    snapshots = sorted(
        hub_cache().glob(f"models--{model.replace('/', '--')}/snapshots/*/config.json")
    )
    if snapshots:
        return _from_folder(snapshots[-1].parent)
    try:
        known = find_checkpoint(model)
    except NotFoundError:
        raise NotFoundError(
            f"{model[:128]!r} is neither a folder here, nor in the local cache, nor catalogued.",
            next_action=f"Catalogued: {', '.join(CHECKPOINTS)}.",
        ) from None
    attention = known.attention
    return {
        "source": f"catalogue ({known.resident_gib.source}, {known.resident_gib.date})",
        "id": known.repo_id,
        "size": known.size,
        "encoding": known.weight_format,
        "weights_resident_gib": known.resident_gib.value,
        "weights_on_disk_gb": known.disk_gb.value,
        "kv_bytes_per_token_bf16": attention.kv_bytes_per_token(),
        "is_gemma4": True,
    }


def _from_folder(folder: Path) -> Facts:
    config = _config(folder)
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    kind = str(config.get("model_type", ""))
    architectures = config.get("architectures") or []
    facts: Facts = {
        "source": str(folder / "config.json"),
        "architecture": str(architectures[0]) if architectures else "not said",
        "model_type": kind or "not said",
        # A folder's name is never believed: rigs have served gemma-2b as "gemma-4".
        "is_gemma4": kind.startswith("gemma4"),
    }
    for key, fact in (
        ("num_hidden_layers", "layers"),
        ("num_key_value_heads", "kv_heads"),
        ("head_dim", "head_dim"),
        ("global_head_dim", "global_head_dim"),
        ("sliding_window", "sliding_window"),
        ("max_position_embeddings", "max_context_tokens"),
        ("vocab_size", "vocab_size"),
    ):
        value = inner.get(key, config.get(key))
        if isinstance(value, int):
            facts[fact] = value
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        facts["encoding"] = str(
            quantization.get("quant_method") or quantization.get("quant_algo") or "quantized"
        )
    else:
        facts["encoding"] = str(config.get("dtype") or config.get("torch_dtype") or "not said")
    facts |= _weights(folder)
    return facts


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInputError(
            "inspect", f"{folder} has no config.json.", allowed="a model folder"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidInputError("inspect", f"{path} cannot be read: {error}.") from None
    if not isinstance(config, dict):
        raise InvalidInputError("inspect", f"{path} does not hold a JSON object.")
    return config


def _weights(folder: Path) -> Facts:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return {"weights": "no safetensors files here"}
    parameters = 0
    problems: list[str] = []
    for file in files:
        try:
            parameters += _parameters(file)
        except (OSError, ValueError, struct.error) as error:
            problems.append(f"{file.name}: {error}")
    facts: Facts = {
        "weights_gib": sum(file.stat().st_size for file in files) / 2**30,
        "weight_files": len(files),
    }
    if problems:
        facts["unreadable"] = "; ".join(problems)
    else:
        # Of packed 4-bit weights this counts the packed words, not the numbers in them.
        facts["stored_elements"] = parameters
    return facts


def _parameters(file: Path) -> int:
    """How many elements a safetensors file stores, from its header alone."""
    with file.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        if not 2 <= length <= _MAX_HEADER_BYTES:
            raise ValueError("not a safetensors header")
        header = json.loads(handle.read(length))
    total = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        elements = 1
        for size in tensor["shape"]:
            elements *= int(size)
        total += elements
    return total

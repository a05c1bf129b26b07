"""What a transfer of weights is, and whether a checkpoint is there as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.cloudrun.facts import BucketFolder
from backends.core.errors import NotFoundError
from backends.knowledge.checkpoints import find_checkpoint

GIB = 2**30
# A list of patterns. None begins with ^, for gcloud takes `^...^` for a delimiter of the list; none
# has a $, for Cloud Build takes that for a variable.
EXCLUDE = r"\.cache/.*,\.git/.*,.*\.lock,.*\.incomplete"


@dataclass(frozen=True)
class Transfer:
    """What is to be brought where.

    Attributes:
        model: What was asked for.
        local: Its folder on this machine; None for Hugging Face.
        bucket: Where to.
        folder: Where to in the bucket.
        region: Where a bucket and a build are made.
        found: What is there; None where there is no bucket.
        wanted: Bytes by file, where that is known: of a local folder.
        secret: Whether the token is in Secret Manager.
        project: The project.
    """

    model: str
    local: Path | None
    bucket: str
    folder: str
    region: str
    found: BucketFolder | None
    wanted: Mapping[str, int]
    secret: bool
    project: str

    @property
    def uri(self) -> str:
        """`gs://bucket/folder`."""
        return f"gs://{self.bucket}/{self.folder}"

    @property
    def tag(self) -> str:
        """By which a build of exactly this transfer is found again."""
        return f"vllm-stage-{hashlib.sha256(f'{self.model} {self.uri}'.encode()).hexdigest()[:12]}"

    @property
    def missing(self) -> list[str]:
        """Files that are not there in their size; of Hugging Face only whether all is there."""
        sizes = self.found.sizes if self.found is not None else {}
        if self.local is not None:
            return [name for name, size in self.wanted.items() if sizes.get(name) != size]
        return [] if self.found is not None and whole(self.found) else ["the checkpoint"]

    @property
    def total_gib(self) -> float:
        """Size of the whole, as far as it is known; 0 where it is not."""
        if self.wanted:
            return sum(self.wanted.values()) / GIB
        if self.found is not None and not self.missing:
            return self.found.total_gib
        try:
            return find_checkpoint(self.model).disk_gb.value * 1e9 / GIB
        except NotFoundError:
            return 0.0


def whole(folder: BucketFolder) -> bool:
    """Whether a folder holds all of a checkpoint: config, tokenizer, weights, each shard named.

    A single file is whole by its name; shards carry `-00001-of-00004` in theirs.
    """
    names = folder.sizes
    weights = [name for name, size in names.items() if name.endswith(".safetensors") and size > 0]
    if not folder.has_weights or not weights:
        return False
    for name in weights:
        head, found, tail = name.removesuffix(".safetensors").rpartition("-of-")
        if found and tail.isdecimal():
            stem = head.rpartition("-")[0]
            count = sum(1 for other in weights if other.startswith(f"{stem}-"))
            if count < int(tail):
                return False
    return True


def stage_call(target: str, model: str) -> str:
    """The call that brings a model's weights, as far as its Hugging Face id is known.

    Args:
        target: The target.
        model: A folder of a bucket, or an id.
    """
    try:
        known = find_checkpoint(model).repo_id
    except NotFoundError:
        known = model if model.count("/") == 1 and "://" not in model else ""
    return (
        f"stage_model(target={target!r}, model={known!r})"
        if known
        else (f"stage_model(target={target!r}, model=...)")
    )

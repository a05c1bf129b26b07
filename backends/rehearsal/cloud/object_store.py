"""Cloud Storage's objects: what people put there, on disk, and model weights that are only said."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from backends.knowledge.checkpoints import Checkpoint
from backends.rehearsal.cloud.web import Json
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World

_PIECE = 1 << 20

# Of an object whose bytes are not kept: it reads as zeros.
_VIRTUAL = "rehearsal-virtual"


class Readable(Protocol):
    """What bytes can be read from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes more; none at the end."""


class ObjectStore:
    """Objects of all buckets; their metadata is in the world, their bytes below a folder.

    Args:
        world: The project.
        folder: Where the bytes are kept.
    """

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._folder = folder

    def put(self, bucket: str, name: str, data: Readable | bytes, meta: Json) -> Json:
        """Store an object; returns its metadata.

        Args:
            bucket: The bucket, which exists.
            name: The object's name.
            data: Its bytes.
            meta: What the uploader said: `contentType`, `metadata`.
        """
        path = self._path(bucket, name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        md5, crc, size = hashlib.md5(usedforsecurity=False), Crc32c(), 0
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as file:
            for piece in _pieces(data):
                md5.update(piece)
                crc.update(piece)
                size += len(piece)
                file.write(piece)
        temporary.replace(path)
        digest = base64.b64encode(md5.digest()).decode()
        return self._describe(bucket, name, size, crc.text(), meta | {"md5Hash": digest})

    def put_virtual(self, bucket: str, name: str, size: int) -> Json:
        """Store an object of which only the size is true: it reads as zeros.

        Composite objects (parallel uploads) have no MD5 either.
        """
        path = self._path(bucket, name)
        path.unlink(missing_ok=True)
        crc = base64.b64encode(hashlib.sha256(name.encode()).digest()[:4]).decode()
        return self._describe(bucket, name, size, crc, {"metadata": {_VIRTUAL: "true"}})

    def put_model(self, bucket: str, folder: str, checkpoint: Checkpoint, model_type: str) -> None:
        """Store a checkpoint: a true config.json, weights of the true size."""
        attention = checkpoint.attention
        config: Json = {
            "architectures": [
                "Gemma4ForConditionalGeneration" if model_type == "gemma4" else "GemmaForCausalLM"
            ],
            "model_type": model_type,
            "dtype": "bfloat16",
            "text_config": {"max_position_embeddings": attention.max_context_tokens},
        }
        if checkpoint.weight_format == "w4a16":
            config["quantization_config"] = {"quant_method": "compressed-tensors"}
        files = {
            "config.json": config,
            "generation_config.json": {"temperature": 1.0, "top_k": 64, "top_p": 0.95},
            "tokenizer_config.json": {"tokenizer_class": "GemmaTokenizer"},
        }
        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        for name, content in files.items():
            data = json.dumps(content, indent=2).encode()
            self.put(bucket, prefix + name, data, {"contentType": "application/json"})
        self.put_virtual(bucket, f"{prefix}tokenizer.json", 32_169_626)
        weights = int(checkpoint.disk_gb.value * 1e9)
        self.put_virtual(bucket, f"{prefix}model.safetensors", weights)

    def read(self, bucket: str, name: str, start: int, end: int) -> Iterator[bytes]:
        """Bytes `start` to `end` (not included) of an object, in pieces."""
        meta = self._world.objects[bucket][name]
        if meta.get("metadata", {}).get(_VIRTUAL):
            left = end - start
            while left > 0:
                yield bytes(min(left, _PIECE))
                left -= _PIECE
            return
        with self._path(bucket, name).open("rb") as file:
            file.seek(start)
            left = end - start
            while left > 0:
                piece = file.read(min(left, _PIECE))
                if not piece:
                    return
                yield piece
                left -= len(piece)

    def read_json(self, bucket: str, name: str) -> Json | None:
        """A small JSON object of a bucket; None where there is none or it is no JSON."""
        meta = self._world.objects.get(bucket, {}).get(name)
        if meta is None or int(meta["size"]) > _PIECE:
            return None
        try:
            value: Any = json.loads(b"".join(self.read(bucket, name, 0, int(meta["size"]))))
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def delete(self, bucket: str, name: str) -> bool:
        """Delete an object; False where there is none."""
        if self._world.objects.get(bucket, {}).pop(name, None) is None:
            return False
        self._path(bucket, name).unlink(missing_ok=True)
        return True

    def copy(self, source: tuple[str, str], to: tuple[str, str], meta: Json) -> Json:
        """Copy an object within the cloud."""
        known = self._world.objects[source[0]][source[1]]
        if known.get("metadata", {}).get(_VIRTUAL):
            return self.put_virtual(*to, int(known["size"]))
        said = {"contentType": known["contentType"]} | meta
        with self._path(*source).open("rb") as file:
            return self.put(*to, file, said)

    def compose(self, bucket: str, names: list[str], to: str, meta: Json) -> Json:
        """Join objects into one, as parallel uploads do at their end."""
        path = self._path(bucket, to).with_suffix(".join")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with path.open("wb") as whole:
                for name in names:
                    with self._path(bucket, name).open("rb") as part:
                        shutil.copyfileobj(part, whole, _PIECE)
            with path.open("rb") as whole:
                made = self.put(bucket, to, whole, meta)
        finally:
            path.unlink(missing_ok=True)
        made.pop("md5Hash", None)
        made["componentCount"] = len(names)
        return made

    def clear(self) -> None:
        """Forget the bytes of all buckets."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def drop_bucket(self, bucket: str) -> None:
        """Forget a bucket's bytes."""
        self._world.objects.pop(bucket, None)
        shutil.rmtree(self._folder / bucket, ignore_errors=True)

    def _path(self, bucket: str, name: str) -> Path:
        # Names of objects may be no names of files.
        return self._folder / bucket / hashlib.sha256(name.encode()).hexdigest()

    def _describe(self, bucket: str, name: str, size: int, crc: str, meta: Json) -> Json:
        from urllib.parse import quote

        generation = str(1_700_000_000_000_000 + self._world.next())
        path = f"b/{bucket}/o/{quote(name, safe='')}"
        made: Json = {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{generation}",
            "selfLink": f"https://www.googleapis.com/storage/v1/{path}",
            "mediaLink": f"https://storage.googleapis.com/download/storage/v1/{path}"
            f"?generation={generation}&alt=media",
            "name": name,
            "bucket": bucket,
            "generation": generation,
            "metageneration": "1",
            "contentType": str(meta.get("contentType") or "application/octet-stream"),
            "storageClass": "STANDARD",
            "size": str(size),
            "crc32c": crc,
            "etag": "CAE=",
            "timeCreated": now(),
            "updated": now(),
            "timeStorageClassUpdated": now(),
            "timeFinalized": now(),
        }
        for key in ("md5Hash", "metadata", "cacheControl", "contentEncoding"):
            if meta.get(key):
                made[key] = meta[key]
        self._world.objects.setdefault(bucket, {})[name] = made
        self._world.dirty = True
        return made


class Crc32c:
    """A CRC32C over pieces; the C library comes with google-cloud-storage."""

    def __init__(self) -> None:
        import google_crc32c

        self._checksum: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]

    def update(self, data: bytes) -> None:
        """Take another piece in."""
        self._checksum.update(data)

    def text(self) -> str:
        """The sum as Google writes it: base64 of four bytes, big-endian."""
        return base64.b64encode(self._checksum.digest()).decode()


def _pieces(data: Readable | bytes) -> Iterator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    while piece := data.read(_PIECE):
        yield piece

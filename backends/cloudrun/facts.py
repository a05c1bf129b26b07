"""What a plan depends on: the world looked at once, all at the same time, nothing changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.core.errors import NotFoundError

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

GIB = 2**30
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
_MAX_CONFIG_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class BucketFolder:
    """A folder of a bucket.

    Attributes:
        uri: `gs://bucket/folder`.
        sizes: Bytes by file name inside the folder.
        config: Its config.json, empty where there is none that can be read.
        location: Where the bucket is.
    """

    uri: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    location: str = ""

    @property
    def total_gib(self) -> float:
        """Size of all files."""
        return sum(self.sizes.values()) / GIB

    @property
    def weights_gib(self) -> float:
        """Size of the weight files."""
        return sum(n for name, n in self.sizes.items() if name.endswith(_WEIGHTS)) / GIB

    @property
    def has_weights(self) -> bool:
        """Whether something is there that could be served."""
        return "config.json" in self.sizes and self.weights_gib > 0

    @property
    def model_type(self) -> str:
        """What config.json says it is."""
        return str(self.config.get("model_type", ""))

    @property
    def is_gemma4(self) -> bool:
        """Whether config.json says Gemma 4; the folder's name is never believed."""
        return self.model_type.startswith("gemma4")

    @property
    def encoding(self) -> str:
        """How the weights are stored, in words."""
        quantization = self.config.get("quantization_config")
        if isinstance(quantization, dict):
            return str(quantization.get("quant_method") or quantization.get("quant_algo") or "yes")
        return str(self.config.get("dtype") or self.config.get("torch_dtype") or "not said")

    @property
    def quantised(self) -> bool:
        """Whether the weights are quantised already."""
        return isinstance(self.config.get("quantization_config"), dict)


async def bucket_folder(cloud: GoogleCloud, bucket: str, folder: str) -> BucketFolder:
    """A folder with its sizes and config.json; empty sizes where there is no such folder.

    Raises:
        NotFoundError: There is no such bucket.
        DevopsError: It may not be read.
    """
    uri = f"gs://{bucket}/{folder}"
    prefix = f"{folder.rstrip('/')}/"

    def look(client: Any) -> BucketFolder:  # noqa: ANN401 (storage.Client)
        place = client.get_bucket(bucket, timeout=10, retry=None)
        sizes = {
            blob.name.removeprefix(prefix): int(blob.size or 0)
            for blob in client.list_blobs(bucket, prefix=prefix, timeout=10, retry=None)
            if not blob.name.endswith("/")
        }
        config: dict[str, Any] = {}
        if 0 < sizes.get("config.json", 0) <= _MAX_CONFIG_BYTES:
            text = place.blob(f"{prefix}config.json").download_as_bytes(timeout=10, retry=None)
            try:
                parsed = json.loads(text)
            except ValueError:
                parsed = None
            config = parsed if isinstance(parsed, dict) else {}
        return BucketFolder(uri, sizes, config, str(place.location or "").lower())

    try:
        return await cloud.clients.storage(await cloud.project(), look, f"The bucket folder {uri}")
    except NotFoundError as error:
        error.message = f"There is no bucket gs://{bucket}."
        error.next_action = "stage_model makes the bucket and brings weights; or name another one."
        raise

"""What a plan depends on: the world looked at once, all at the same time, nothing changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.core.errors import ApiDisabledError, DevopsError, NotFoundError
from backends.core.names import MANAGED_BY, MANAGED_BY_US

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


async def account_exists(cloud: GoogleCloud, email: str) -> bool:
    """Whether a service account exists."""
    project = await cloud.project()
    return await _exists(
        cloud,
        f"https://iam.googleapis.com/v1/projects/{project}/serviceAccounts/{email}",
        f"The service account {email}",
    )


async def account_is_ours(cloud: GoogleCloud, email: str) -> bool:
    """Whether a service account is there and was made by us, by its name or description."""
    project = await cloud.project()
    try:
        account = await cloud.rest.get(
            f"https://iam.googleapis.com/v1/projects/{project}/serviceAccounts/{email}",
            f"The service account {email}",
        )
    except NotFoundError:
        return False
    by_name = str(account.get("displayName", "")).startswith(f"{MANAGED_BY_US} ")
    return by_name or f"{MANAGED_BY}={MANAGED_BY_US}" in str(account.get("description", ""))


async def secret_exists(cloud: GoogleCloud, secret: str) -> bool:
    """Whether a secret exists."""
    project = await cloud.project()
    return await _exists(
        cloud,
        f"https://secretmanager.googleapis.com/v1/projects/{project}/secrets/{secret}",
        f"The secret {secret}",
    )


async def has_role(cloud: GoogleCloud, policy_url: str, what: str, member: str, role: str) -> bool:
    """Whether a policy gives a member a role.

    Args:
        cloud: The project.
        policy_url: Where the policy is read.
        what: What it is the policy of, for error messages.
        member: `serviceAccount:...`.
        role: `roles/...`.
    """
    policy = await cloud.rest.get(policy_url, f"The policy of {what}")
    return any(
        binding.get("role") == role and member in binding.get("members", [])
        for binding in policy.get("bindings", [])
    )


async def private_access(cloud: GoogleCloud, region: str, subnet: str) -> bool | None:
    """Whether a subnet has Private Google Access; None where there is no such subnet."""
    project = await cloud.project()
    try:
        answer = await cloud.rest.get(
            f"https://compute.googleapis.com/compute/v1/projects/{project}/regions/{region}"
            f"/subnetworks/{subnet}",
            f"The subnet {subnet} in {region}",
        )
    except NotFoundError:
        return None
    return bool(answer.get("privateIpGoogleAccess", False))


async def disabled_apis(cloud: GoogleCloud, *names: str) -> list[str]:
    """Which of these APIs are not enabled.

    Args:
        cloud: The project.
        names: Short names: `run` for run.googleapis.com.
    """
    project = await cloud.project()

    async def enabled(name: str) -> bool:
        answer = await cloud.rest.get(
            f"https://serviceusage.googleapis.com/v1/projects/{project}/services"
            f"/{name}.googleapis.com",
            f"The API {name}.googleapis.com",
        )
        return answer.get("state") == "ENABLED"

    states = await asyncio.gather(*(enabled(name) for name in names))
    return [f"{name}.googleapis.com" for name, on in zip(names, states, strict=True) if not on]


def refuse_disabled(apis: list[str], project: str) -> None:
    """Refuse while an API is off; it is never switched on silently.

    Raises:
        ApiDisabledError: Names them and the command.
    """
    if apis:
        raise ApiDisabledError(
            f"Not enabled in project {project}: {', '.join(apis)}.",
            cause="A new project has most APIs off. They are free to enable; what they do is not.",
            next_action="Ask the person to run: gcloud services enable "
            f"{' '.join(apis)} --project={project}",
        )


async def _exists(cloud: GoogleCloud, url: str, what: str) -> bool:
    try:
        await cloud.rest.get(url, what)
    except NotFoundError:
        return False
    return True


def words_of(value: object) -> str:
    """An error that was met instead of a fact, in a few words."""
    return f"{value.code}: {value.message}" if isinstance(value, DevopsError) else str(value)

"""Names and addresses of Cloud Run services and revisions."""

from __future__ import annotations

import hashlib
import random
import string
from dataclasses import dataclass

from backends.rehearsal.cloud.catalogue import REGIONS

_DOMAIN = ".run.app"


@dataclass(frozen=True)
class Key:
    """Where a service or revision is.

    Attributes:
        region: Its region.
        name: Its name.
    """

    region: str
    name: str

    def __str__(self) -> str:
        return f"{self.region}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Key:
        """The key `region/name` stands for."""
        region, _, name = text.partition("/")
        return cls(region, name)


def policy_name(project: str, key: Key) -> str:
    """The resource whose IAM policy says who may call the service."""
    return f"projects/{project}/locations/{key.region}/services/{key.name}"


def revision_name(service: str, generation: int) -> str:
    """A new revision's name, as Cloud Run makes them."""
    suffix = random.choice(string.ascii_lowercase[1:]) + "".join(
        random.choices("bcdfghjklmnpqrstvwxz2456789", k=2)
    )
    return f"{service}-{generation:05d}-{suffix}"


def project_hash(number: str) -> str:
    """The ten letters that stand for the project in service URLs."""
    digest = hashlib.sha256(number.encode()).digest()
    return "".join("abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in digest[:10])


def hosts(number: str, key: Key) -> list[str]:
    """Host names of a service, the one shown as its URL first."""
    code = REGIONS.get(key.region, "xx")
    return [
        f"{key.name}-{project_hash(number)}-{code}.a{_DOMAIN}",
        f"{key.name}-{number}.{key.region}{_DOMAIN}",
    ]


def url(number: str, key: Key, tag: str = "") -> str:
    """A service's URL, or that of one of its tags."""
    host = hosts(number, key)[0]
    return f"https://{tag}---{host}" if tag else f"https://{host}"


def is_endpoint(host: str) -> bool:
    """Whether a host name is that of a Cloud Run service."""
    return host.endswith(_DOMAIN)

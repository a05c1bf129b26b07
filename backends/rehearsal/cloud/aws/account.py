"""The rehearsed AWS account: what it has, region by region, and its circumstances."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.catalogue import default_quotas
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.world import World

ACCOUNT_ID = "123456789012"
USER = "rehearsal"
USER_ARN = f"arn:aws:iam::{ACCOUNT_ID}:user/{USER}"

ACCESS_KEY = "AKIAREHEARSAL0000001"
"""The key of the profile that the rehearsal is logged in with."""

DEAD_KEY = "ASIAREHEARSALEXPIRED"
"""A session's key that has expired, whatever happens: for who exported one hours ago."""

SECRET_KEY = "rehearsal-secret-key-that-opens-nothing"  # noqa: S105 (of no account)


@dataclass
class Circumstances:
    """What faults change. All are as they were when the faults are switched off.

    Attributes:
        expired: Whether the login has expired.
        denied: Permissions the caller does not have, e.g. `sagemaker:CreateEndpoint`, patterns.
        no_capacity: `region/type` patterns of what cannot be had now.
    """

    expired: bool = False
    denied: list[str] = field(default_factory=list)
    no_capacity: list[str] = field(default_factory=list)


class Account:
    """The account.

    Args:
        world: Where all of it is kept.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.now = Circumstances()

    def changed(self) -> None:
        """Have it saved."""
        self._world.dirty = True

    def region(self, name: str) -> Json:
        """What a region has: `models`, `configs`, `endpoints`, `quotas`, `tags`, ..."""
        regions = self._world.aws.setdefault("regions", {})
        if name not in regions:
            regions[name] = {
                "models": {},
                "configs": {},
                "endpoints": {},
                "quotas": default_quotas(name),
                "quota_requests": [],
                "targets": {},
                "policies": {},
                "alarms": {},
            }
        found: Json = regions[name]
        return found

    def known_regions(self) -> list[str]:
        """Regions that something was asked of."""
        return list(self._world.aws.get("regions", {}))

    @property
    def buckets(self) -> dict[str, Json]:
        """Buckets of S3 by name, with the region of each."""
        found: dict[str, Json] = self._world.aws.setdefault("buckets", {})
        return found

    @property
    def roles(self) -> dict[str, Json]:
        """IAM roles by name."""
        found: dict[str, Json] = self._world.aws.setdefault("roles", {})
        return found

    @staticmethod
    def arn(service: str, region: str, resource: str) -> str:
        """An ARN of the account."""
        return f"arn:aws:{service}:{region}:{ACCOUNT_ID}:{resource}"

    @staticmethod
    def seconds() -> float:
        """The time as AWS's JSON has it: to the millisecond."""
        return round(time.time(), 3)

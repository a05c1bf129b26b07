"""Everything the rehearsed project has, in one place, kept on disk across restarts."""

from __future__ import annotations

import base64
import os
import random
import uuid
from collections import deque
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backends.core.state import read_json, write_json
from backends.rehearsal.cloud.catalogue import (
    DEFAULT_APIS,
    NEEDED_APIS,
    default_quotas,
)
from backends.rehearsal.cloud.web import ApiError, Json

PROJECT = "vllm-rehearsal"
PROJECT_NUMBER = "424242424242"
ACCOUNT = "rehearsal@example.com"

_MAX_LOG_ENTRIES = 20_000


def now() -> str:
    """The time in Google's form, to the microsecond."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Knobs:
    """What the control API can turn. Every one is back at its default after `reset`.

    Args:
        token_lifetime_s: Seconds an access or identity token lives.
        login: `ok`, `expired` (refresh token revoked) or `reauth` (reauthentication needed).
        tokens_valid_from: Tokens issued before this second (epoch) are refused.
        denied: Permissions the caller does not hold, e.g. `run.services.create` or `run.*`.
        no_capacity: Regions in which no GPU can be had, quota or not.
        quotas_shown: What the Quotas API says of a limit, where it is not what is held to.
    """

    token_lifetime_s: float = 3600
    login: str = "ok"
    tokens_valid_from: float = 0
    denied: list[str] = field(default_factory=list)
    no_capacity: list[str] = field(default_factory=list)
    quotas_shown: dict[str, int] = field(default_factory=dict)


@dataclass
class World:
    """The state of the rehearsed project; all of it is JSON.

    Keys of dictionaries are resource names, for Cloud Run `region/name`. `options` are small
    circumstances of Compute Engine: `compute_quotas` (by region, `global` or `*`, and metric),
    `serial` (the console's text), `insert_error` (of an instance).
    `aws` is the whole of AWS's side.
    """

    project: str = PROJECT
    number: str = PROJECT_NUMBER
    account: str = ACCOUNT
    knobs: Knobs = field(default_factory=Knobs)
    services: dict[str, Json] = field(default_factory=dict)
    revisions: dict[str, Json] = field(default_factory=dict)
    operations: dict[str, Json] = field(default_factory=dict)
    policies: dict[str, Json] = field(default_factory=dict)
    service_accounts: dict[str, Json] = field(default_factory=dict)
    enabled: list[str] = field(default_factory=list)
    quotas: dict[str, dict[str, int]] = field(default_factory=default_quotas)
    secrets: dict[str, Json] = field(default_factory=dict)
    buckets: dict[str, Json] = field(default_factory=dict)
    objects: dict[str, dict[str, Json]] = field(default_factory=dict)
    repositories: dict[str, Json] = field(default_factory=dict)
    images: dict[str, Json] = field(default_factory=dict)
    builds: dict[str, Json] = field(default_factory=dict)
    subnets: dict[str, Json] = field(default_factory=dict)
    instances: dict[str, Json] = field(default_factory=dict)
    disks: dict[str, Json] = field(default_factory=dict)
    serials: dict[str, str] = field(default_factory=dict)
    firewalls: dict[str, Json] = field(default_factory=dict)
    routers: dict[str, Json] = field(default_factory=dict)
    project_metadata: Json = field(default_factory=dict)
    queued_resources: dict[str, Json] = field(default_factory=dict)
    nodes: dict[str, Json] = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    aws: Json = field(default_factory=dict)
    counter: int = 0

    def __post_init__(self) -> None:
        self.log_entries: deque[Json] = deque(maxlen=_MAX_LOG_ENTRIES)
        self.dirty = False

    @classmethod
    def fresh(cls, *, empty: bool = False) -> World:
        """A project as it is at first.

        Args:
            empty: Nothing enabled that Google does not enable by itself; otherwise all APIs the
                product needs are.
        """
        world = cls()
        world.enabled = sorted(DEFAULT_APIS if empty else {*DEFAULT_APIS, *NEEDED_APIS})
        world.policies[f"projects/{world.project}"] = {
            "version": 1,
            "etag": world.etag(),
            "bindings": [
                {"role": "roles/owner", "members": [f"user:{world.account}"]},
                {
                    "role": "roles/editor",
                    "members": [f"serviceAccount:{world.default_account}"],
                },
                {
                    "role": "roles/cloudbuild.builds.builder",
                    "members": [f"serviceAccount:{world.number}@cloudbuild.gserviceaccount.com"],
                },
            ],
        }
        world.service_accounts[world.default_account] = world.make_service_account(
            world.default_account, "Compute Engine default service account"
        )
        return world

    @classmethod
    def load(cls, path: Path) -> World | None:
        """The world saved in `path`, or None where there is none."""
        saved = read_json(path)
        if saved is None:
            return None
        known = {item.name for item in fields(cls)}
        values = {key: value for key, value in saved.items() if key in known}
        # Faults are of one run.
        values["knobs"] = Knobs()
        return cls(**values)

    def save(self, path: Path) -> None:
        """Write all of it; log entries are not kept."""
        value: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        value["knobs"] = vars(self.knobs)
        write_json(path, value)
        self.dirty = False

    @property
    def default_account(self) -> str:
        """The service account a container runs as unless told otherwise."""
        return f"{self.number}-compute@developer.gserviceaccount.com"

    def make_service_account(self, email: str, title: str) -> Json:
        """The IAM resource of a service account."""
        return {
            "name": f"projects/{self.project}/serviceAccounts/{email}",
            "projectId": self.project,
            "uniqueId": str(random.randrange(10**20, 10**21)),
            "email": email,
            "displayName": title,
            "etag": self.etag(),
            "oauth2ClientId": str(random.randrange(10**20, 10**21)),
        }

    def next(self) -> int:
        """A number never given before."""
        self.counter += 1
        return self.counter

    @staticmethod
    def uid() -> str:
        """A new unique id."""
        return str(uuid.uuid4())

    @staticmethod
    def etag() -> str:
        """A new etag: base64, for clients decode it."""
        return base64.b64encode(os.urandom(9)).decode()

    def is_ours(self, project: str) -> bool:
        """Whether a project id or number is the rehearsed project."""
        return project in {self.project, self.number, "-", "_"}

    def check_project(self, project: str) -> None:
        """Refuse another project the way Google does: it may exist, you may not know.

        Raises:
            ApiError: 403.
        """
        if not self.is_ours(project):
            raise ApiError(
                403,
                f"Permission denied on resource project {project}.",
                details=[
                    {
                        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                        "reason": "CONSUMER_INVALID",
                        "domain": "googleapis.com",
                        "metadata": {"consumer": f"projects/{project}"},
                    }
                ],
            )

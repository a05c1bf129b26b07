"""What a project at Google needs before a target can be used: APIs, and who may do what.

Data only. APIs and permissions follow from the requests that the targets make (read from their
code, 2026-11-30); which role holds a permission is from the IAM roles reference of that day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Grant:
    """A role that one of Google's own accounts needs in the project.

    Args:
        account: The account, with `{number}` for the project's number.
        role: The role.
        why: What does not work without it.
        included_in: Wider roles that hold it too.
    """

    account: str
    role: str
    why: str
    included_in: tuple[str, ...] = ("roles/editor", "roles/owner")

    def member(self, number: str) -> str:
        """The account as policies name it."""
        return f"serviceAccount:{self.account.format(number=number)}"


@dataclass(frozen=True)
class GoogleNeeds:
    """What a target needs of a project.

    Args:
        apis: Short names: `run` for run.googleapis.com.
        permissions: A permission that the person needs, and the least role that holds it.
        grants: Roles of Google's accounts.
        private_access: Whether its subnet needs Private Google Access.
    """

    apis: tuple[str, ...]
    permissions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    grants: tuple[Grant, ...] = ()
    private_access: bool = False


_COMPUTE_ACCOUNT = "{number}-compute@developer.gserviceaccount.com"

# Builds run as this account in projects made since June 2024; it has no role by itself where an
# organisation's policy says so (Cloud Build documentation, default service account).
BUILDER = Grant(
    _COMPUTE_ACCOUNT,
    "roles/cloudbuild.builds.builder",
    "Cloud Build stages weights and makes images as this account",
)

_CLOUD_RUN = GoogleNeeds(
    apis=(
        *("run", "iam", "storage", "logging", "monitoring", "cloudquotas"),
        *("secretmanager", "cloudbuild", "artifactregistry", "compute"),
    ),
    permissions=MappingProxyType(
        {
            "run.services.create": "roles/run.admin",
            "run.services.setIamPolicy": "roles/run.admin",
            "iam.serviceAccounts.create": "roles/iam.serviceAccountAdmin",
            "iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser",
            "storage.buckets.create": "roles/storage.admin",
            "storage.buckets.setIamPolicy": "roles/storage.admin",
            "logging.logEntries.list": "roles/logging.viewer",
            "monitoring.timeSeries.list": "roles/monitoring.viewer",
            "cloudquotas.quotas.get": "roles/cloudquotas.viewer",
            "secretmanager.secrets.create": "roles/secretmanager.admin",
            "cloudbuild.builds.create": "roles/cloudbuild.builds.editor",
            "artifactregistry.repositories.create": "roles/artifactregistry.admin",
        }
    ),
    grants=(BUILDER,),
)

_TPU = GoogleNeeds(
    apis=("tpu", "compute", "iam", "secretmanager", "logging", "cloudquotas"),
    permissions=MappingProxyType(
        {
            "tpu.queuedResources.create": "roles/tpu.admin",
            "tpu.nodes.create": "roles/tpu.admin",
            "compute.instances.create": "roles/compute.instanceAdmin.v1",
            "compute.firewalls.create": "roles/compute.securityAdmin",
            "iam.serviceAccounts.create": "roles/iam.serviceAccountAdmin",
            "iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser",
            "secretmanager.secrets.create": "roles/secretmanager.admin",
            "logging.logEntries.list": "roles/logging.viewer",
            "cloudquotas.quotas.get": "roles/cloudquotas.viewer",
        }
    ),
)

_COMPUTE_ADMIN = "roles/compute.instanceAdmin.v1"
_GCE = GoogleNeeds(
    apis=("compute", "iam", "iap", "secretmanager"),
    permissions=MappingProxyType(
        {
            "compute.instances.create": _COMPUTE_ADMIN,
            "compute.instances.setMetadata": _COMPUTE_ADMIN,
            "compute.disks.create": _COMPUTE_ADMIN,
            "compute.firewalls.create": "roles/compute.securityAdmin",
            "compute.routers.create": "roles/compute.networkAdmin",
            "iam.serviceAccounts.create": "roles/iam.serviceAccountAdmin",
            "iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser",
            "iap.tunnelInstances.accessViaIAP": "roles/iap.tunnelResourceAccessor",
            "secretmanager.secrets.create": "roles/secretmanager.admin",
            "secretmanager.versions.access": "roles/secretmanager.admin",
        }
    ),
)

NEEDS: Mapping[str, GoogleNeeds] = MappingProxyType(
    {
        "gce-t4": _GCE,
        "cloudrun-l4": _CLOUD_RUN,
        "cloudrun-rtx6000": GoogleNeeds(
            _CLOUD_RUN.apis, _CLOUD_RUN.permissions, _CLOUD_RUN.grants, private_access=True
        ),
        "tpu-v6e": _TPU,
    }
)
"""By target. A target that is not here is not Google's, or needs nothing."""

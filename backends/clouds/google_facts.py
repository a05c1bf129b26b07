"""What any Google Cloud target may ask before it acts: accounts, rights, secrets, APIs, subnets."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from backends.core.errors import ApiDisabledError, NotFoundError
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together
from backends.core.problems import or_problem, words_of

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

__all__ = [
    "READER",
    "SECRET_READER",
    "account_email",
    "account_exists",
    "account_id",
    "account_is_ours",
    "disabled_apis",
    "has_role",
    "or_problem",
    "private_access",
    "refuse_disabled",
    "secret_exists",
    "words_of",
]

READER = "roles/storage.objectViewer"
SECRET_READER = "roles/secretmanager.secretAccessor"  # noqa: S105 (the name of a role)


def account_id(target: str, name: str) -> str:
    """The id of the service account of a deployment: 6 to 30 characters.

    Each target has its own for a name: a project's targets share one namespace of accounts, and an
    account is deleted with its deployment, which must not be what another one runs as.

    Args:
        target: The target, e.g. `gce-t4`.
        name: The deployment.
    """
    full = f"vllm-{target.rpartition('-')[2]}-{name}"
    if len(full) <= 30:
        return full
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{full[:23].rstrip('-')}-{digest}"


def account_email(target: str, name: str, project: str) -> str:
    """The service account that is made for a deployment of a target."""
    return f"{account_id(target, name)}@{project}.iam.gserviceaccount.com"


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

    states = await together(*(enabled(name) for name in names))
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

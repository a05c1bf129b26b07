"""Service accounts that a deploy which was killed left: they cost nothing, and are ours."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from backends.clouds.google_facts import (
    READER,
    account_email,
    account_is_ours,
    has_role,
    or_problem,
)
from backends.clouds.google_steps import remove_account_steps
from backends.core.answers import Price
from backends.core.names import MANAGED_BY_US
from backends.core.plans import Plan

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud


async def accounts_left(cloud: GoogleCloud, target: str, names: Collection[str]) -> dict[str, str]:
    """By name, the accounts of a target's deployments that are no more.

    Args:
        cloud: The project.
        target: The target, e.g. `cloudrun-l4`.
        names: Those that are deployed.

    Raises:
        DevopsError: The project's accounts could not be asked.
    """
    project = await cloud.project()
    accounts = await cloud.rest.pages(
        f"https://iam.googleapis.com/v1/projects/{project}/serviceAccounts",
        f"The service accounts of {project}",
        "accounts",
        {"pageSize": "100"},
    )
    found: dict[str, str] = {}
    for account in accounts:
        words = str(account.get("displayName", ""))
        name = words.removeprefix(f"{MANAGED_BY_US} ")
        email = str(account.get("email", ""))
        if name == words or name in names or email != account_email(target, name, project):
            continue
        found[name] = f"the service account {email}"
    return found


async def plan_account_left(
    cloud: GoogleCloud, target: str, name: str, *, bucket: str = ""
) -> Plan | None:
    """Delete the account of a name that nothing is deployed under; None: there is none of ours.

    Args:
        cloud: The project.
        target: The target.
        name: The deployment's name.
        bucket: A bucket that the account may have been allowed to read; empty: none.

    Raises:
        DevopsError: The account could not be asked.
    """
    project = await cloud.project()
    email = account_email(target, name, project)
    if not await account_is_ours(cloud, email):
        return None
    url = f"https://storage.googleapis.com/storage/v1/b/{bucket}/iam"
    member = f"serviceAccount:{email}"
    # A bucket that cannot be asked, or is not there, has no right that could be taken here.
    reads = bool(bucket) and (
        await or_problem(has_role(cloud, url, f"gs://{bucket}", member, READER)) is True
    )
    return Plan(
        verb="destroy",
        target=target,
        name=name,
        summary=f"delete what is left of {target}/{name}, which nothing uses: the service account "
        f"{email}.",
        steps=remove_account_steps(email, project, buckets=(bucket,) if reads else ()),
        live={f"left of {name}": email},
        price=Price(usd_per_hour=0, basis="it cost nothing"),
    )

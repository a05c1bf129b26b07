"""A Hugging Face token in Secret Manager: in by standard input, read by our accounts only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from backends.clouds.google_facts import (
    SECRET_READER,
    disabled_apis,
    refuse_disabled,
    secret_exists,
)
from backends.clouds.process import Secret
from backends.core.answers import TokenSaved
from backends.core.errors import ConflictError, NotManagedError
from backends.core.names import MANAGED_BY, MANAGED_BY_US

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

SECRET_NAME = "hf-token"  # noqa: S105 (a name)
_API = "https://secretmanager.googleapis.com/v1/projects"


async def save_token(
    cloud: GoogleCloud,
    target: str,
    token: SecretStr,
    accounts: Sequence[str],
    *,
    read_by: str,
    next_step: str,
) -> TokenSaved:
    """Keep the token as the newest version; older ones are switched off, not deleted.

    Args:
        cloud: The project.
        target: For which target.
        token: The token; it goes by standard input only.
        accounts: Accounts of our deployments, which may read it from then on.
        read_by: Who reads it, in words, e.g. "containers that start from now on read it".
        next_step: What to do now, as a call.

    Raises:
        NotManagedError: A secret of that name is there and not ours.
        DevopsError: Secret Manager refused.
    """
    project = await cloud.project()
    refuse_disabled(await disabled_apis(cloud, "secretmanager"), project)
    done: list[str] = []
    older: list[str] = []
    at = f"--project={project}"
    hidden = Secret(token.get_secret_value())
    if not await secret_exists(cloud, SECRET_NAME):
        argv = [
            *("gcloud", "secrets", "create", SECRET_NAME, at, "--data-file=-"),
            *("--replication-policy=automatic", f"--labels={MANAGED_BY}={MANAGED_BY_US}"),
            *("--quiet", "--format=json"),
        ]
        try:
            await cloud.gcloud.run(argv, stdin=hidden)
            done.append(f"made the secret {SECRET_NAME} with its first version")
        except ConflictError:
            await _add(cloud, at, hidden, done)  # somebody made it at the same moment
    else:
        await _refuse_foreign(cloud, project)
        older = await _enabled(cloud, project)
        await _add(cloud, at, hidden, done)
    version = max(await _enabled(cloud, project), key=int, default=None)
    for number in older:
        await cloud.gcloud.run(
            [
                *("gcloud", "secrets", "versions", "disable", number),
                *(f"--secret={SECRET_NAME}", at, "--quiet", "--format=json"),
            ]
        )
        done.append(f"switched version {number} off (gcloud secrets versions enable turns it on)")
    await _grant(cloud, accounts, at, done)
    return TokenSaved(
        summary=f"The Hugging Face token is kept in Secret Manager as {SECRET_NAME}, version "
        f"{version or 'unknown'}; {read_by}.",
        target=target,
        secret=f"projects/{project}/secrets/{SECRET_NAME}",
        version=version,
        readers=list(dict.fromkeys(accounts)),
        done=done,
        next_steps=[next_step],
    )


async def _add(cloud: GoogleCloud, at: str, hidden: Secret, done: list[str]) -> None:
    await cloud.gcloud.run(
        [
            *("gcloud", "secrets", "versions", "add", SECRET_NAME, at, "--data-file=-"),
            *("--quiet", "--format=json"),
        ],
        stdin=hidden,
    )
    done.append(f"added a version to the secret {SECRET_NAME}")


async def _refuse_foreign(cloud: GoogleCloud, project: str) -> None:
    secret = await cloud.rest.get(
        f"{_API}/{project}/secrets/{SECRET_NAME}", f"The secret {SECRET_NAME}"
    )
    if secret.get("labels", {}).get(MANAGED_BY) != MANAGED_BY_US:
        raise NotManagedError(
            f"The secret {SECRET_NAME} exists and does not carry {MANAGED_BY}={MANAGED_BY_US}.",
            next_action="Use it as it is (options.secret), or ask the person to run: gcloud "
            f"secrets update {SECRET_NAME} --project={project} "
            f"--update-labels={MANAGED_BY}={MANAGED_BY_US}",
        )


async def _enabled(cloud: GoogleCloud, project: str) -> list[str]:
    """Numbers of the versions that are on."""
    versions: list[dict[str, Any]] = await cloud.rest.pages(
        f"{_API}/{project}/secrets/{SECRET_NAME}/versions",
        f"The versions of the secret {SECRET_NAME}",
        "versions",
    )
    return [
        str(item["name"]).rpartition("/")[2] for item in versions if item.get("state") == "ENABLED"
    ]


async def _grant(cloud: GoogleCloud, accounts: Sequence[str], at: str, done: list[str]) -> None:
    """Let the accounts of our deployments read it; new ones get the right when they are made."""
    for account in dict.fromkeys(accounts):
        await cloud.gcloud.change_policy(
            [
                *("gcloud", "secrets", "add-iam-policy-binding", SECRET_NAME, at),
                *(f"--member=serviceAccount:{account}", f"--role={SECRET_READER}"),
                *("--condition=None", "--quiet", "--format=json"),
            ]
        )
        done.append(f"let {account} read it")

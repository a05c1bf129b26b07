"""A Hugging Face token in Secret Manager: in by standard input, read by our accounts only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from backends.clouds.google_facts import (
    SECRET_READER,
    account_email,
    disabled_apis,
    refuse_disabled,
    secret_exists,
)
from backends.clouds.process import Secret
from backends.core.answers import TokenSaved
from backends.core.errors import ConflictError, NotManagedError
from backends.core.names import MANAGED_BY, MANAGED_BY_US

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking

SECRET_NAME = "hf-token"  # noqa: S105 (a name)
_API = "https://secretmanager.googleapis.com/v1/projects"


async def save_token(target: CloudRunLooking, token: SecretStr) -> TokenSaved:
    """Keep the token as the newest version; older ones are switched off, not deleted.

    Raises:
        NotManagedError: A secret of that name is there and not ours.
        DevopsError: Secret Manager refused.
    """
    cloud = target.cloud
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
            await _add(target, at, hidden, done)  # somebody made it at the same moment
    else:
        await _refuse_foreign(target, project)
        older = await _enabled(target, project)
        await _add(target, at, hidden, done)
    version = max(await _enabled(target, project), key=int, default=None)
    for number in older:
        await cloud.gcloud.run(
            [
                *("gcloud", "secrets", "versions", "disable", number),
                *(f"--secret={SECRET_NAME}", at, "--quiet", "--format=json"),
            ]
        )
        done.append(f"switched version {number} off (gcloud secrets versions enable turns it on)")
    readers = await _grant(target, project, at, done)
    return TokenSaved(
        summary=f"The Hugging Face token is kept in Secret Manager as {SECRET_NAME}, version "
        f"{version or 'unknown'}; containers that start from now on read it.",
        target=target.target,
        secret=f"projects/{project}/secrets/{SECRET_NAME}",
        version=version,
        readers=readers,
        done=done,
        next_steps=[
            f"plan_deployment(target={target.target!r}, options={{'source': 'huggingface'}})"
        ],
    )


async def _add(target: CloudRunLooking, at: str, hidden: Secret, done: list[str]) -> None:
    await target.cloud.gcloud.run(
        [
            *("gcloud", "secrets", "versions", "add", SECRET_NAME, at, "--data-file=-"),
            *("--quiet", "--format=json"),
        ],
        stdin=hidden,
    )
    done.append(f"added a version to the secret {SECRET_NAME}")


async def _refuse_foreign(target: CloudRunLooking, project: str) -> None:
    secret = await target.cloud.rest.get(
        f"{_API}/{project}/secrets/{SECRET_NAME}", f"The secret {SECRET_NAME}"
    )
    if secret.get("labels", {}).get(MANAGED_BY) != MANAGED_BY_US:
        raise NotManagedError(
            f"The secret {SECRET_NAME} exists and does not carry {MANAGED_BY}={MANAGED_BY_US}.",
            next_action="Use it as it is (options.secret), or ask the person to run: gcloud "
            f"secrets update {SECRET_NAME} --project={project} "
            f"--update-labels={MANAGED_BY}={MANAGED_BY_US}",
        )


async def _enabled(target: CloudRunLooking, project: str) -> list[str]:
    """Numbers of the versions that are on."""
    versions: list[dict[str, Any]] = await target.cloud.rest.pages(
        f"{_API}/{project}/secrets/{SECRET_NAME}/versions",
        f"The versions of the secret {SECRET_NAME}",
        "versions",
    )
    return [
        str(item["name"]).rpartition("/")[2] for item in versions if item.get("state") == "ENABLED"
    ]


async def _grant(target: CloudRunLooking, project: str, at: str, done: list[str]) -> list[str]:
    """Let the accounts of our deployments read it; new ones get the right when they are made."""
    ours = [
        service.account
        for service in await target.all_services()
        if service.managed and service.account == account_email(service.name, project)
    ]
    for account in dict.fromkeys(ours):
        await target.cloud.gcloud.change_policy(
            [
                *("gcloud", "secrets", "add-iam-policy-binding", SECRET_NAME, at),
                *(f"--member=serviceAccount:{account}", f"--role={SECRET_READER}"),
                *("--condition=None", "--quiet", "--format=json"),
            ]
        )
        done.append(f"let {account} read it")
    return ours

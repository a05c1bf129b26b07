"""Steps that plans on Google Cloud share: an account with one right, and how steps are run."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from backends.clouds.google_facts import READER, SECRET_READER
from backends.core.errors import ConflictError, DevopsError, NotFoundError
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.plans import Step

if TYPE_CHECKING:
    from backends.clouds.gcloud import Gcloud

# A new service account is not known everywhere at once; bindings are tried again for so long.
_NEW_ACCOUNT_S = 20.0
_NEW_ACCOUNT_EVERY_S = 2.0
_NOT_YET = re.compile(r"does not exist|not found|Unknown service account", re.IGNORECASE)
STEP_TIMEOUT_S = 20.0


def account_step(name: str, email: str, project: str) -> Step:
    """Make the service account that only one deployment runs as.

    Args:
        name: The deployment.
        email: The account's address, from `account_email`.
        project: The project.
    """
    return Step(
        title="Make a service account that only this deployment runs as",
        kind="gcloud",
        argv=(
            *("gcloud", "iam", "service-accounts", "create", email.partition("@")[0]),
            f"--project={project}",
            f"--display-name={MANAGED_BY_US} {name}",
            f"--description={MANAGED_BY}={MANAGED_BY_US}",
            *("--quiet", "--format=json"),
        ),
        data={"exists_ok": True},
        creates=(f"service account {email}",),
        undo=f"gcloud iam service-accounts delete {email} --project={project} --quiet",
    )


def reader_step(email: str, project: str, *, bucket: str = "", secret: str = "") -> Step:
    """Give an account the one right it needs: to read the weights' bucket, or the token's secret.

    Args:
        email: The account.
        project: The project.
        bucket: The bucket; or else
        secret: the secret.
    """
    member = f"--member=serviceAccount:{email}"
    words: tuple[str, ...]
    flags: tuple[str, ...]
    if bucket:
        words = ("storage", "buckets", "{}-iam-policy-binding", f"gs://{bucket}")
        role, what = READER, f"gs://{bucket}"
    else:
        words = ("secrets", "{}-iam-policy-binding", secret)
        role, what = SECRET_READER, f"the secret {secret}"
    flags = (f"--project={project}", member, f"--role={role}")
    if not bucket:
        flags = (*flags, "--condition=None")
    return Step(
        title=f"Let that account read {what}, and nothing else",
        kind="gcloud",
        argv=(
            "gcloud",
            *(word.format("add") for word in words),
            *flags,
            "--quiet",
            "--format=json",
        ),
        data={"new_account": True},
        creates=(f"{role} of {email} on {what}",),
        undo=" ".join(("gcloud", *(word.format("remove") for word in words), *flags)),
    )


def remove_account_steps(
    email: str, project: str, *, buckets: tuple[str, ...] = (), secrets: tuple[str, ...] = ()
) -> list[Step]:
    """Take an account's rights, then delete it; what is gone already is no failure."""
    member = f"--member=serviceAccount:{email}"
    steps = [
        Step(
            title=f"Take its right to read gs://{bucket}",
            kind="gcloud",
            argv=(
                *("gcloud", "storage", "buckets", "remove-iam-policy-binding", f"gs://{bucket}"),
                *(f"--project={project}", member, f"--role={READER}", "--quiet", "--format=json"),
            ),
            data={"missing_ok": True},
        )
        for bucket in buckets
    ]
    steps += [
        Step(
            title=f"Take its right to read the secret {secret}",
            kind="gcloud",
            argv=(
                *("gcloud", "secrets", "remove-iam-policy-binding", secret),
                *(f"--project={project}", member, f"--role={SECRET_READER}", "--all"),
                *("--quiet", "--format=json"),
            ),
            data={"missing_ok": True},
        )
        for secret in secrets
    ]
    return [
        *steps,
        Step(
            title="Delete the service account that only it ran as",
            kind="gcloud",
            argv=(
                *("gcloud", "iam", "service-accounts", "delete", email),
                *(f"--project={project}", "--quiet"),
            ),
            data={"missing_ok": True},
        ),
    ]


async def run_gcloud_step(gcloud: Gcloud, step: Step, *, timeout_s: float = STEP_TIMEOUT_S) -> str:
    """Run a step that is one gcloud command; returns what it did, in words.

    What its `data` says counts: `exists_ok`, `missing_ok`, and `new_account` (tried again while a
    new account is not known everywhere).

    Raises:
        DevopsError: It was refused or failed: by its kind.
    """
    until = time.monotonic() + _NEW_ACCOUNT_S
    while True:
        try:
            if any(word.endswith("-iam-policy-binding") for word in step.argv):
                await gcloud.change_policy(step.argv)
            else:
                await gcloud.run(step.argv, timeout_s=timeout_s)
        except ConflictError:
            if step.data.get("exists_ok"):
                return f"{step.title}: it was there already"
            raise
        except NotFoundError as error:
            if step.data.get("missing_ok"):
                return f"{step.title}: it was gone already"
            if not _may_come(step, error, until):
                raise
            await asyncio.sleep(_NEW_ACCOUNT_EVERY_S)
        except DevopsError as error:
            if not _may_come(step, error, until):
                raise
            await asyncio.sleep(_NEW_ACCOUNT_EVERY_S)
        else:
            return f"{step.title}: done"


def _may_come(step: Step, error: DevopsError, until: float) -> bool:
    """Whether the step only waits for a new service account to be known."""
    return (
        bool(step.data.get("new_account"))
        and bool(_NOT_YET.search(error.words))
        and "ccount" in error.words
        and time.monotonic() < until
    )

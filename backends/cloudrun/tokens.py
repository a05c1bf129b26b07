"""The Hugging Face token of Cloud Run services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.clouds import google_tokens
from backends.clouds.google_facts import account_email
from backends.clouds.google_tokens import SECRET_NAME

if TYPE_CHECKING:
    from pydantic import SecretStr

    from backends.cloudrun.looking import CloudRunLooking
    from backends.core.answers import TokenSaved

__all__ = ["SECRET_NAME", "save_token"]


async def save_token(target: CloudRunLooking, token: SecretStr) -> TokenSaved:
    """Keep the token in Secret Manager, and let the accounts of our services read it.

    Raises:
        NotManagedError: A secret of that name is there and not ours.
        DevopsError: Secret Manager refused.
    """
    project = await target.cloud.project()
    ours = [
        service.account
        for service in await target.all_services()
        if service.managed
        and service.account == account_email(target.target, service.name, project)
    ]
    return await google_tokens.save_token(
        target.cloud,
        target.target,
        token,
        ours,
        read_by="containers that start from now on read it",
        next_step=f"plan_deployment(target={target.target!r}, options={{'source': 'huggingface'}})",
    )

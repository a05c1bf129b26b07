"""Start what was stopped or has failed, or put what runs on new instances."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from backends.core.answers import Changed
from backends.core.errors import ConflictError, DevopsError, NotFoundError
from backends.core.state import stamp
from backends.core.words import in_words
from backends.sagemaker import commands
from backends.sagemaker.commands import Argv
from backends.sagemaker.endpoints import BROKEN, BUSY, Config, Deployed
from backends.sagemaker.running import explained

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking

_GONE_S = 20.0


async def start(target: SageMakerLooking, name: str, *, restart: bool) -> Changed:
    """Make the endpoint again from its newest configuration.

    Args:
        target: The target.
        name: The deployment.
        restart: Also where it runs: blue/green onto new instances with the same settings.

    Raises:
        ConflictError: SageMaker is changing it, or its configuration is gone.
        DevopsError: It was refused: quota, login.
    """
    deployed = await target.ours(name)
    if deployed.of_components:
        from backends.sagemaker.component_ending import start_again

        return await start_again(target, deployed, restart=restart)
    endpoint, config = deployed.endpoint, deployed.config
    if config is None:
        raise ConflictError(
            f"{target.at(name)} has no configuration to start from.",
            next_action=f"plan_deployment(target={target.target!r}, name={name!r})",
        )
    if endpoint is not None and endpoint.status in BUSY:
        raise target.busy(name, endpoint.status)
    done: list[str] = []
    if endpoint is None:
        await _run(target, name, _create(deployed, config), done)
    elif endpoint.status in BROKEN:
        await _run(target, name, commands.delete_endpoint(deployed.region, name), done)
        await _gone(target, deployed)
        await _run(target, name, _create(deployed, config), done)
    elif restart:
        copy = commands.config_name(name, commands.digest_of([config.name, stamp()]))
        raws = [dict(variant.raw) for variant in config.variants]
        tags = [{"Key": key, "Value": value} for key, value in config.tags.items()]
        await _run(target, name, commands.create_config(deployed.region, copy, raws, tags), done)
        update = commands.update_endpoint(deployed.region, name, copy, None, retain=True)
        await _run(target, name, update, done)
    target.remember(name, deployed.region)
    status = await target.status(name)
    return Changed(
        summary=f"{target.at(name)} can serve again and is {in_words(status.state)}."
        if done
        else f"{target.at(name)} is {in_words(status.state)}; nothing to start.",
        target=target.target,
        name=name,
        state=status.state,
        url=status.url,
        done=done,
        usd_per_hour=status.usd_per_hour,
        next_steps=status.next_steps,
    )


def _create(deployed: Deployed, config: Config) -> Argv:
    tags = [{"Key": key, "Value": value} for key, value in config.tags.items()]
    return commands.create_endpoint(deployed.region, deployed.name, config.name, tags)


async def _run(target: SageMakerLooking, name: str, argv: Argv, done: list[str]) -> None:
    try:
        await target.aws.run(argv)
    except DevopsError as error:
        if done:
            error.message += f" Done before: {'; '.join(done)}."
        raise explained(error, target.target, name) from error
    done.append(" ".join(argv))


async def _gone(target: SageMakerLooking, deployed: Deployed) -> None:
    """Wait until a deleted endpoint's name is free.

    Raises:
        ConflictError: It takes longer than a call may.
    """
    until = time.monotonic() + _GONE_S
    while time.monotonic() < until:
        try:
            await target.api.endpoint(deployed.region, deployed.name)
        except NotFoundError:
            return
        await asyncio.sleep(0.5)
    raise ConflictError(
        f"{target.at(deployed.name)} is being deleted; its settings are kept.",
        next_action=f"Call start_serving(target={target.target!r}, name={deployed.name!r}) again "
        "in a minute.",
    )

"""Running what is deployed: capacity, scaling, traffic, cold starts, weights and tokens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import SecretStr, ValidationError

from backends.base import Scaling
from backends.core.answers import Capacity, Changed, Staged, Started, TokenSaved, Traffic
from backends.core.errors import InvalidInputError, NotFoundError
from backends.core.paging import page
from backends.verbs.deploying import check_budget
from backends.verbs.measuring import worker_env

if TYPE_CHECKING:
    from backends.app import App
    from backends.base import (
        FindsCapacity,
        PreparesHost,
        SavesTokens,
        Scales,
        ShiftsTraffic,
        StagesModels,
    )
    from backends.core.operations import Operation


async def find_capacity(
    app: App, target: str, place: str | None, limit: int, cursor: str | None
) -> Capacity:
    """Where a target can run."""
    backend = cast("FindsCapacity", app.backend(target, "find_capacity"))
    found = await backend.capacity(place)
    items, next_cursor = page(found.items, limit, cursor)
    return found.model_copy(
        update={"items": items, "total": len(found.items), "next_cursor": next_cursor}
    )


async def update_scaling(app: App, target: str, name: str, scaling: Scaling) -> Changed:
    """Change how many instances serve.

    Raises:
        InvalidInputError: Nothing was said, or it contradicts itself.
        BudgetError: It could cost more than the operator allows.
    """
    backend = cast("Scales", app.backend(target, "update_scaling"))
    if scaling == Scaling():
        raise InvalidInputError(
            "min_instances", "or another of the numbers is needed; nothing was said."
        )
    if scaling.instances is not None and (
        scaling.automatic or scaling.min_instances is not None or scaling.max_instances is not None
    ):
        raise InvalidInputError(
            "instances", "is manual scaling; it excludes min_instances, max_instances, automatic."
        )
    if scaling.instances == 0:
        await backend.check_zero(name)
    low, high = scaling.min_instances, scaling.max_instances
    if low is not None and high is not None and low > high:
        raise InvalidInputError("min_instances", "is above max_instances.")
    await check_budget(app, await backend.scaling_price(name, scaling), f"{target}/{name}")
    return await backend.scale(name, scaling)


async def shift_traffic(
    app: App, target: str, name: str, to: str, percent: int, *, check: bool
) -> Traffic:
    """Send a share of traffic to another revision."""
    backend = cast("ShiftsTraffic", app.backend(target, "shift_traffic"))
    return await backend.shift_traffic(name, to, percent, check=check)


async def probe_cold_start(app: App, target: str, name: str) -> Started:
    """Start timing a cold start, as an operation."""
    backend = app.backend(target, "probe_cold_start")
    await backend.status(name)
    operation = await asyncio.to_thread(
        app.operations.start, "cold_start", target, name, {}, worker_env(app)
    )
    return Started(
        summary=f"Timing a cold start of {target}/{name}; it takes as long as the start does.",
        operation_id=operation.id,
        kind=operation.kind,
        target=target,
        name=name,
        next_steps=[f"get_operation(operation_id={operation.id!r}, wait_s=40)"],
    )


async def prepare_host(
    app: App, target: str, name: str, options: Mapping[str, object], check_only: bool
) -> Started:
    """Start preparing a machine, as an operation; one that is under way is gone on with.

    Raises:
        InvalidInputError: An option is unknown or wrong.
        NotFoundError: There is no such deployment.
    """
    backend = cast("PreparesHost", app.backend(target, "prepare_host"))
    try:
        chosen = backend.HostOptions.model_validate(dict(options))
    except ValidationError as error:
        item = error.errors(include_url=False, include_input=False)[0]
        allowed = ", ".join(backend.HostOptions.model_fields)
        unknown = item["type"] == "extra_forbidden"
        raise InvalidInputError(
            f"options.{'.'.join(map(str, item['loc']))}"[:60],
            "is unknown." if unknown else item["msg"].removeprefix("Value error, "),
            allowed=allowed if unknown else "",
        ) from None
    await backend.status(name)
    for known in await asyncio.to_thread(app.operations.all):
        if (known.kind, known.target, known.name) == ("prepare_host", target, name) and (
            not known.finished
        ):
            return _preparing(known, f"{target}/{name} is being prepared already.")
    params = {
        "options": chosen.model_dump(mode="json", exclude_unset=True),
        "check_only": check_only,
    }
    operation = await asyncio.to_thread(
        app.operations.start, "prepare_host", target, name, params, worker_env(app)
    )
    doing = "Looking at" if check_only else "Preparing"
    return _preparing(
        operation,
        f"{doing} the machine of {target}/{name}, step by step; it goes on by itself.",
    )


def _preparing(operation: Operation, summary: str) -> Started:
    return Started(
        summary=summary,
        operation_id=operation.id,
        kind=operation.kind,
        target=operation.target,
        name=operation.name,
        next_steps=[f"get_operation(operation_id={operation.id!r}, wait_s=40)"],
    )


async def stage_model(
    app: App, target: str, model: str, destination: str | None, *, commands_only: bool
) -> Staged:
    """Bring weights to where the target reads them, as an operation; or show the commands."""
    backend = cast("StagesModels", app.backend(target, "stage_model"))
    staged = await backend.plan_staging(model, destination)
    if commands_only or not staged.commands:
        return staged
    operation = await asyncio.to_thread(
        app.operations.start,
        "stage_model",
        target,
        model.rpartition("/")[2],
        {"model": model, "destination": destination},
        worker_env(app),
    )
    return staged.model_copy(
        update={
            "operation_id": operation.id,
            "next_steps": [f"get_operation(operation_id={operation.id!r}, wait_s=40)"],
        }
    )


async def save_hf_token(app: App, target: str, file: str | None) -> TokenSaved:
    """Keep a Hugging Face token where the target reads it; it never passes through the model.

    MCP forbids asking for secrets in a form, so the token comes from HF_TOKEN of the server's
    environment, or from a file: the one named, HF_TOKEN_PATH, or where `hf auth login` keeps it.
    """
    backend = cast("SavesTokens", app.backend(target, "save_hf_token"))
    return await backend.save_token(await asyncio.to_thread(_token, file))


# What Hugging Face's tokens begin with: a person's, and an organisation's (docs, 2026-11).
_TOKEN_STARTS = ("hf_", "api_org_")


def _token(file: str | None) -> SecretStr:
    if file is None and (value := os.environ.get("HF_TOKEN", "").strip()):
        return _checked(value, "HF_TOKEN")
    if file is not None and file.strip().startswith(_TOKEN_STARTS):
        raise InvalidInputError(
            "file",
            "looks like a token itself. It has been in the conversation now: revoke it.",
            allowed="the path of a file that holds a token",
        )
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    path = Path(file or os.environ.get("HF_TOKEN_PATH") or home / "token").expanduser()
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(
            f"No token: HF_TOKEN is not set and {path} cannot be read.",
            words=getattr(error, "strerror", None) or str(error),
            next_action="Ask the person to run `hf auth login`, or to start the server with "
            "HF_TOKEN set. Never ask for the token in the chat.",
        ) from error
    return _checked(value, str(path))


def _checked(value: str, where: str) -> SecretStr:
    """A token, and not whatever else a file holds: it is about to leave this machine."""
    if not value.startswith(_TOKEN_STARTS) or len(value.split()) != 1:
        raise InvalidInputError(
            "file",
            f"{where} does not hold a Hugging Face token.",
            allowed=f"one word that begins with {' or '.join(_TOKEN_STARTS)}",
        )
    return SecretStr(value)

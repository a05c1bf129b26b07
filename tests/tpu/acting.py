"""What tests do to the TPU target through a client, in a call."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.support.clients import Caller
from tests.support.reply import Reply
from tests.tpu.conftest import TARGET

# The project's default account: with it a deployment is one command, without the one before it
# that makes an account.
ACCOUNT = "424242424242-compute@developer.gserviceaccount.com"
# A run of hours is over in seconds here.
LONG: dict[str, Any] = {"max_run_hours": 160}


async def deploy(caller: Caller, name: str = "gemma4", **options: Any) -> Reply:
    """Plan and deploy; the reply of whichever refused, or of the deployment."""
    options = {"service_account": ACCOUNT} | options
    if options.get("provisioning", "flex-start") == "flex-start":
        options = LONG | options
    model = {"model": options.pop("model")} if "model" in options else {}
    planned = await caller.tool(
        "plan_deployment", target=TARGET, name=name, options=options, **model
    )
    if planned.is_error:
        return planned
    return await caller.tool("deploy", target=TARGET, name=name, plan_id=planned.plan_id)


async def destroy(caller: Caller, name: str = "gemma4", **options: Any) -> Reply:
    """Plan and destroy."""
    planned = await caller.tool("destroy", target=TARGET, name=name, options=options or None)
    if planned.is_error:
        return planned
    return await caller.tool("destroy", target=TARGET, name=name, plan_id=planned.plan_id)


async def stop(caller: Caller, name: str = "gemma4", **options: Any) -> Reply:
    """Plan and stop."""
    planned = await caller.tool("stop_serving", target=TARGET, name=name, options=options or None)
    if planned.is_error:
        return planned
    return await caller.tool("stop_serving", target=TARGET, name=name, plan_id=planned.plan_id)


async def until(
    caller: Caller, *wanted: str, name: str = "gemma4", within_s: float = 40
) -> dict[str, Any]:
    """The status once it is in one of the wanted states."""
    deadline = time.monotonic() + within_s
    while True:
        status = (await caller.tool("get_status", target=TARGET, name=name)).ok
        if status["state"] in wanted:
            return status
        assert time.monotonic() < deadline, status["summary"]
        await asyncio.sleep(0.2)


async def operation(caller: Caller, operation_id: str) -> dict[str, Any]:
    """An operation once it has ended."""
    return (await caller.tool("get_operation", operation_id=operation_id, wait_s=40)).ok

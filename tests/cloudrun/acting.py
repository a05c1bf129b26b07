"""What tests do to a Cloud Run target through a client, in a call."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.support.clients import Caller
from tests.support.reply import Reply

L4 = "cloudrun-l4"
RTX = "cloudrun-rtx6000"


# The project's default account: with it a deployment is one command, without the two before it
# that make an account and give it its right.
ACCOUNT = "424242424242-compute@developer.gserviceaccount.com"


async def deploy(
    caller: Caller,
    target: str = L4,
    name: str = "gemma4",
    *,
    own_account: bool = False,
    **options: Any,
) -> Reply:
    """Plan and deploy; the reply of whichever refused, or of the deployment.

    Args:
        caller: The client.
        target: Where.
        name: The deployment.
        own_account: Make it an account of its own, as is the default.
        options: Its options.
    """
    if not own_account:
        options.setdefault("service_account", ACCOUNT)
    planned = await caller.tool("plan_deployment", target=target, name=name, options=options)
    if planned.is_error:
        return planned
    return await caller.tool("deploy", target=target, name=name, plan_id=planned.plan_id)


async def destroy(caller: Caller, target: str = L4, name: str = "gemma4") -> Reply:
    """Plan and destroy."""
    planned = await caller.tool("destroy", target=target, name=name)
    return await caller.tool("destroy", target=target, name=name, plan_id=planned.plan_id)


async def settled(caller: Caller, target: str = L4, name: str = "gemma4") -> dict[str, Any]:
    """The status once it is neither creating nor starting."""
    return (await caller.tool("wait_until_ready", target=target, name=name)).ok


async def until(
    caller: Caller, wanted: str, target: str = L4, name: str = "gemma4", within_s: float = 25
) -> dict[str, Any]:
    """The status once it is in the wanted state."""
    deadline = time.monotonic() + within_s
    while True:
        status = (await caller.tool("get_status", target=target, name=name)).ok
        if status["state"] == wanted:
            return status
        assert time.monotonic() < deadline, status["summary"]
        await asyncio.sleep(0.3)

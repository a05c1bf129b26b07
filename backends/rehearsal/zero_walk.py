"""The life of what scales to zero, through a real MCP client: down, asleep, woken, destroyed.

`make rehearse TARGET=sagemaker-l4 ARGS=--scale-to-zero` plays it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping

from backends.rehearsal.guest import Guest, Json, RefusedError, WalkError
from backends.rehearsal.stages import (
    PROMPT,
    end,
    look,
    make_sure_it_is_gone,
    show_plan,
    until_finished,
    until_ready,
)

OPTIONS: Mapping[str, Json] = {
    "sagemaker-l4": {"scale_to_zero": True, "instance_types": ["ml.g6.xlarge"]}
}
"""Options that a deployment is made with to scale to zero, by target."""

READY_TIMEOUT_S = 900.0
LOOK_EVERY_S = 2.0
MAX_TOKENS = 32
_OPERATION = re.compile(r"operation (op-[\w-]+)")


async def walk(guest: Guest, target: str, name: str) -> None:
    """Deploy it, send it to zero, wake it with a request, and destroy it.

    Args:
        guest: The client.
        target: The target.
        name: The deployment.

    Raises:
        WalkError: A call was refused, or something is not as it should be.
    """
    show, here = guest.terminal, {"target": target, "name": name}
    show.heading("1. Plan what scales to zero, and deploy exactly that plan")
    plan = await guest.ask("plan_deployment", **here, options=OPTIONS[target])
    show_plan(show, plan)
    for item in plan["keeps_billing"]:
        show.say(f"goes on billing: {item}")
    done = await guest.ask("deploy", **here, plan_id=plan["plan_id"])
    await _operations(guest, done, "Putting the model on its endpoint")
    await until_ready(guest, here, READY_TIMEOUT_S)
    await look(guest, here, max_tokens=MAX_TOKENS)

    show.heading("2. To zero, now instead of after a quarter of an hour without requests")
    await guest.ask("update_scaling", **here, instances=0)
    asleep = await _until_free(guest, here)
    show.good(str(asleep["summary"]))

    show.heading("3. A request finds nobody, and wakes it")
    try:
        await guest.ask("query_model", **here, prompt=PROMPT, max_tokens=MAX_TOKENS)
    except RefusedError as refused:
        show.say(str(refused.error.get("cause")))
    else:
        raise WalkError("It answered, though it was at zero.")
    await until_ready(guest, here, READY_TIMEOUT_S)
    await look(guest, here, max_tokens=MAX_TOKENS)

    show.heading("4. Destroy it: what it hosts, then its endpoint")
    gone = await end(guest, "destroy", here)
    await _operations(guest, gone, "Destroying it")
    await make_sure_it_is_gone(guest, here)
    show.heading(f"{target} went to zero and came back (simulated)")


async def _operations(guest: Guest, answer: Json, what: str) -> None:
    """Follow the operations that an answer says were started."""
    found = _OPERATION.findall(" ".join(map(str, answer.get("done", ()))))
    for operation_id in dict.fromkeys(found):
        await until_finished(guest, operation_id, what)


async def _until_free(guest: Guest, here: Json) -> Json:
    """Look until it is at zero and costs nothing; returns its status.

    Raises:
        WalkError: It goes on costing money for longer than it may.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        status = await guest.ask("get_status", **here)
        if status["state"] == "scaled_to_zero" and status.get("usd_per_hour") == 0:
            return status
        if time.monotonic() > deadline:
            raise WalkError(f"It did not go to zero: {status['summary']}")
        await asyncio.sleep(LOOK_EVERY_S)

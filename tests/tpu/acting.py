"""What tests do to the TPU target through a client, in a call."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from tests.cloud.rehearsal import Rehearsal
from tests.support.clients import Caller
from tests.support.cloud import Cloud
from tests.support.processes import wait_for
from tests.support.reply import Reply
from tests.tpu.made import SETTINGS

TARGET = "tpu-v6e"

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
    caller: Caller, *wanted: str, name: str = "gemma4", within_s: float = 90
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


_API = "https://tpu.googleapis.com/v2alpha1/projects/vllm-rehearsal/locations"
_OURS = {"managed-by": "vllm-devops", "vllm-devops-target": TARGET}


class Zone:
    """Makes requests and nodes as somebody else's REST client would.

    Args:
        cloud: The cloud.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.client = Rehearsal(cloud.running, {})

    def ask(
        self, name: str, zone: str = "us-east5-b", labels: dict[str, str] | None = None,
        script: str = "", **more: Any,
    ) -> None:  # fmt: skip
        """A queued resource of one v6e-1, which runs a script at boot."""
        node: dict[str, Any] = {
            "acceleratorType": "v6e-1",
            "runtimeVersion": "v2-alpha-tpuv6e",
            "labels": _OURS if labels is None else labels,
            "metadata": {"vllm-devops": json.dumps(SETTINGS | {"name": name})},
        }
        if script:
            node["metadata"]["startup-script"] = script
        body = {"provisioningModel": "SPOT", "tpu": {"nodeSpec": [
            {"nodeId": f"{name}-node", "node": node}]}} | more  # fmt: skip
        answer = self.client.rest.post(
            f"{_API}/{zone}/queuedResources", params={"queuedResourceId": name}, json=body
        )
        assert answer.status_code == 200, answer.text

    def state(self, name: str, zone: str = "us-east5-b") -> str:
        """The state of a queued resource."""
        answer = self.client.rest.get(f"{_API}/{zone}/queuedResources/{name}").json()
        return str(answer["state"]["state"])

    def until(self, wanted: str, name: str = "gemma4") -> None:
        """Wait until a queued resource is in a state."""

        def there() -> bool:
            """the request is in that state"""
            return self.state(name) == wanted

        wait_for(there, 20)

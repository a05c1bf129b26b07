"""What tests do to a Cloud Run target through a client, in a call."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from tests.cloudrun.conftest import Cloud
from tests.support.clients import Caller
from tests.support.reply import Reply

GOLDEN = Path(__file__).parent / "golden"
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


def given(
    cloud: Cloud,
    name: str = "gemma4",
    region: str = "us-east4",
    *,
    label: bool = True,
    without: tuple[str, ...] = (),
    **env: str,
) -> None:
    """A service that was deployed by us, or by somebody: made as gcloud makes it, without gcloud.

    Its body is the recorded one of the reference deployment. Where a deployment is not what a test
    is about, this saves two seconds of a processor.

    Args:
        cloud: Where.
        name: The service.
        region: Where in it.
        label: Whether it carries our label.
        without: Arguments of vLLM that it is not given.
        env: Variables of its container.
    """
    body = json.loads((GOLDEN / "body-l4.json").read_text(encoding="utf-8"))
    body["metadata"]["name"] = name
    body["spec"]["template"]["spec"]["serviceAccountName"] = ACCOUNT
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [item for item in container["args"] if item not in without]
    if env:
        _set_env(body, env)
    if not label:
        body["metadata"]["labels"] = {}
    path = f"/apis/serving.knative.dev/v1/namespaces/{cloud.running.project}/services"
    cloud.google("POST", f"https://{region}-run.googleapis.com{path}", body)


def renew(cloud: Cloud, name: str = "gemma4", region: str = "us-east4", **env: str) -> None:
    """A new revision of a service, with these variables, without gcloud."""
    path = f"/apis/serving.knative.dev/v1/namespaces/{cloud.running.project}/services/{name}"
    url = f"https://{region}-run.googleapis.com{path}"
    body = cloud.google("GET", url)
    _set_env(body, env)
    if image := env.get("IMAGE"):
        body["spec"]["template"]["spec"]["containers"][0]["image"] = image
    cloud.google("PUT", url, body)


def _set_env(body: dict[str, Any], env: dict[str, str]) -> None:
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": key, "value": value} for key, value in env.items()]


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

"""What scales to zero, from a plan to nothing left, in the rehearsal cloud."""

from __future__ import annotations

import json

from tests.sagemaker.acting import NAME, TARGET, finished, operation_in, settled, until
from tests.support.clients import Caller
from tests.support.cloud import Cloud

ONE = ["ml.g6.xlarge"]


async def test_it_goes_to_zero_costs_nothing_and_is_woken_by_a_request(
    cloud: Cloud, caller: Caller
) -> None:
    """The whole life, with the real aws CLI."""
    planned = await caller.tool(
        "plan_deployment", target=TARGET, name=NAME,
        options={"scale_to_zero": True, "instance_types": ONE},
    )  # fmt: skip
    plan = planned.ok
    assert plan["price"]["usd_per_hour"] == 1.1267
    assert "0 USD/h at zero" in plan["price"]["basis"]
    assert any("27 minutes after the last request" in item for item in plan["keeps_billing"])
    commands = [step["command"] for step in plan["steps"]]
    assert any('"MinInstanceCount":0' in command for command in commands)
    assert any("create-inference-component" in command for command in commands)
    assert any("NoCapacityInvocationFailures" in command for command in commands)

    done = await caller.tool("deploy", target=TARGET, name=NAME, plan_id=planned.plan_id)
    assert done.ok["state"] == "creating", done.text
    made = await finished(caller, operation_in(done.ok["done"]))
    assert made["state"] == "succeeded", str(made)
    ready = await settled(caller)
    assert ready["state"] == "ready", ready["summary"]
    assert ready["facts"]["copies"] == "1 of 1 (0 to 1 by load)"
    assert ready["usd_per_hour"] == 1.1267
    health = (await caller.tool("verify_model_health", target=TARGET, deep=True)).ok
    assert health["healthy"], health
    logs = (await caller.tool("get_logs", target=TARGET, lines=200)).ok
    assert "Application startup complete" in logs["text"]
    assert "/aws/sagemaker/InferenceComponents/gemma4" in logs["summary"]
    metrics = (await caller.tool("get_metrics", target=TARGET)).ok
    assert metrics["now"]["invocations"] >= 1

    zero = (await caller.tool("update_scaling", target=TARGET, name=NAME, instances=0)).ok
    assert zero["usd_per_hour"] == 0
    asleep = await until(caller, "scaled_to_zero", "nothing is billed but its alarms")
    assert asleep["usd_per_hour"] == 0
    listed = (await caller.tool("list_deployments")).ok
    assert listed["usd_per_hour_now"] == 0
    woken = (await caller.tool("query_model", target=TARGET, prompt="Hello", max_tokens=4)).error
    assert woken["code"] == "endpoint_not_ready"
    assert "has begun to wake it" in woken["cause"]
    again = await settled(caller)
    assert again["state"] == "ready", again["summary"]
    answer = (await caller.tool("query_model", target=TARGET, prompt="Hello", max_tokens=4)).ok
    assert answer["basis"] == "simulated"

    ended = await caller.tool("destroy", target=TARGET, name=NAME, options={"role": True})
    titles = [step["title"] for step in ended.ok["steps"]]
    component = next(i for i, title in enumerate(titles) if "inference component" in title)
    endpoint = next(i for i, title in enumerate(titles) if "Delete the endpoint gemma4" in title)
    assert component < endpoint
    left = (await caller.tool("destroy", target=TARGET, name=NAME, plan_id=ended.plan_id)).ok
    gone = await finished(caller, operation_in(left["done"]))
    assert gone["state"] == "succeeded", gone
    assert NAME not in json.dumps(
        {key: value for key, value in cloud.world()["aws"].items() if key != "logs"}
    )
    assert (await caller.tool("list_deployments")).ok["items"] == []

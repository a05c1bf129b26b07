"""The whole life of a TPU deployment through a client, with the real gcloud, in the rehearsal."""

from __future__ import annotations

from tests.support.clients import Caller
from tests.support.cloud import Cloud
from tests.tpu.conftest import TARGET

# A run of hours is over in seconds here.
LONG = {"max_run_hours": 160}


async def test_flex_start_from_capacity_to_nothing_left(cloud: Cloud, caller: Caller) -> None:
    capacity = (await caller.tool("find_capacity", target=TARGET, place="us-east5-b")).ok
    assert [item["provisioning"] for item in capacity["items"]] == [
        "flex-start",
        "spot",
        "on-demand",
    ]
    planned = await caller.tool(
        "plan_deployment", target=TARGET, name="gemma4", options={"zone": "us-east5-b"} | LONG
    )
    assert planned.ok["price"]["usd_per_hour"] == 1.35
    done = await caller.tool("deploy", target=TARGET, name="gemma4", plan_id=planned.plan_id)
    assert "accepted" in done.ok["summary"], done.text
    waited = (await caller.tool("wait_until_ready", target=TARGET, name="gemma4")).ok
    assert waited["state"] == "ready", waited["summary"]
    assert waited["models"] == ["google/gemma-4-E2B-it"]
    status = (await caller.tool("get_status", target=TARGET, name="gemma4", detail=True)).ok
    assert status["facts"]["kv_tokens"] == 1_151_732
    assert "of its run are left" in status["summary"]
    assert status["host"]["cpus"] > 0
    health = (await caller.tool("verify_model_health", target=TARGET, name="gemma4")).ok
    assert health["healthy"]
    logs = (await caller.tool("get_logs", target=TARGET, name="gemma4", source="startup")).ok
    assert "vllm-devops: ready" in logs["text"]
    planned = await caller.tool("destroy", target=TARGET, name="gemma4")
    assert any("--force" in step["command"] for step in planned.ok["steps"])
    gone = await caller.tool("destroy", target=TARGET, name="gemma4", plan_id=planned.plan_id)
    assert gone.ok["state"] == "stopped"
    world = cloud.world()
    assert world["nodes"] == world["queued_resources"] == {}
    assert not [email for email in world["service_accounts"] if email.startswith("vllm-")]

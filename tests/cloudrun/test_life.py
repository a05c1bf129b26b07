"""The whole life of a deployment through a client, with the real gcloud, in the rehearsal cloud."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.cloudrun.acting import L4, RTX, deploy, destroy, settled
from tests.cloudrun.conftest import Cloud
from tests.support.clients import Caller

_GOLDEN = Path(__file__).parent / "golden"


def _check_golden(name: str, body: dict[str, Any]) -> None:
    """Compare with a recorded body, but for what gcloud makes up each time."""
    text = json.dumps(body, indent=1, sort_keys=True)
    known = json.loads(text)
    for holder in (known["metadata"], known["spec"]["template"]["metadata"]):
        holder.get("labels", {}).pop("client.knative.dev/nonce", None)
        holder.get("annotations", {}).pop("run.googleapis.com/client-version", None)
    path = _GOLDEN / f"body-{name}.json"
    if os.environ.get("TESTS_UPDATE_SNAPSHOTS"):
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert known == json.loads(path.read_text(encoding="utf-8"))


async def test_an_l4_service_from_quota_to_nothing_left(cloud: Cloud, caller: Caller) -> None:
    capacity = (await caller.tool("find_capacity", target=L4)).ok
    assert capacity["items"][0]["place"] == "us-east4"
    assert {item["verdict"] for item in capacity["items"]} == {"can run"}

    planned = await caller.tool(
        "plan_deployment", target=L4, name="gemma4", options={"invokers": ["user:me@example.com"]}
    )
    assert planned.ok["price"]["usd_per_hour"] == 1.4209
    assert "Rehearsal" in planned.text
    assert any("admits 4 requests at once" in warning for warning in planned.ok["warnings"])
    done = await caller.tool("deploy", target=L4, name="gemma4", plan_id=planned.plan_id)
    assert done.ok["state"] in {"starting", "ready"}, done.text
    _check_golden("l4", cloud.requests("POST", "/namespaces/vllm-rehearsal/services")[0]["body"])

    waited = await settled(caller)
    assert waited["state"] == "ready", waited["summary"]
    assert waited["models"] == ["/mnt/models/gemma-4-E2B-it"]
    health = (await caller.tool("verify_model_health", target=L4, name="gemma4")).ok
    assert health["healthy"]
    answer = (await caller.tool("query_model", target=L4, prompt="Hello", max_tokens=8)).ok
    assert answer["basis"] == "simulated"
    logs = (await caller.tool("get_logs", target=L4, lines=200)).ok
    assert "Application startup complete" in logs["text"]
    listed = (await caller.tool("list_deployments")).ok
    assert listed["complete"]
    assert listed["usd_per_hour_now"] == 1.4209

    warm = (await caller.tool("update_scaling", target=L4, name="gemma4", min_instances=1)).ok
    assert "at least 1" in warm["summary"]
    assert warm["usd_per_hour"] == 1.4209

    candidate = await deploy(caller, own_account=True, candidate=True, concurrency=8)
    assert not candidate.is_error, candidate.text
    assert (await settled(caller))["state"] == "ready"
    shares = await _shares(caller)
    first = next(name for name, percent in shares.items() if percent == 100)
    half = (await caller.tool("shift_traffic", target=L4, name="gemma4", to="candidate",
                              percent=50)).ok  # fmt: skip
    assert all(check["ok"] for check in half["checks"])
    assert {share["percent"] for share in half["shares"]} == {0, 50}
    whole = (await caller.tool("shift_traffic", target=L4, name="gemma4", to="candidate",
                               check=False)).ok  # fmt: skip
    assert first not in {s["revision"] for s in whole["shares"] if s["percent"]}
    back = (await caller.tool("shift_traffic", target=L4, name="gemma4", to="previous",
                              check=False)).ok  # fmt: skip
    assert {s["revision"] for s in back["shares"] if s["percent"] == 100} == {first}

    gone = await destroy(caller)
    assert any("gemma-4-E2B-it stays" in item for item in gone.ok["keeps_billing"])
    world = cloud.world()
    assert world["services"] == {}
    assert not [email for email in world["service_accounts"] if email.startswith("vllm-")]
    assert "vllm-gemma4" not in json.dumps(world["policies"])
    assert (await caller.tool("list_deployments")).ok["items"] == []


async def _shares(caller: Caller) -> dict[str, int]:
    status = (await caller.tool("get_status", target=L4, name="gemma4")).ok
    revision, _, rest = status["facts"]["serving_revision"].partition(" (")
    return {revision: int(rest.partition(" ")[0])}


async def test_an_rtx_service_with_direct_vpc_egress_and_streamed_weights(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault(kind="seed-model", folder="gemma-4-26B-A4B-it", checkpoint="gemma-4-26B-A4B-it")
    done = await deploy(caller, RTX, own_account=True)
    assert not done.is_error, done.text
    body = cloud.requests("POST", "/namespaces/vllm-rehearsal/services")[0]["body"]
    _check_golden("rtx6000", body)
    waited = await settled(caller, RTX)
    assert waited["state"] == "ready", waited["summary"]
    health = (await caller.tool("verify_model_health", target=RTX)).ok
    assert health["healthy"], health
    assert (await destroy(caller, RTX)).ok["state"] == "stopped"


async def test_stopping_keeps_the_service_and_says_why_nobody_is_answered(
    cloud: Cloud, caller: Caller
) -> None:
    await deploy(caller)
    await settled(caller)
    planned = await caller.tool("stop_serving", target=L4, name="gemma4")
    await caller.tool("stop_serving", target=L4, name="gemma4", plan_id=planned.plan_id)
    status = (await caller.tool("get_status", target=L4)).ok
    assert status["state"] == "stopped"
    assert status["usd_per_hour"] == 0
    refused = (await caller.tool("query_model", target=L4, prompt="Hello")).error
    assert "Service is disabled" in refused["cause"]
    assert "start_serving" in refused["next_action"]
    again = (await caller.tool("start_serving", target=L4, name="gemma4")).ok
    assert again["state"] in {"scaled_to_zero", "ready", "starting"}


async def test_a_redeploy_keeps_manual_scaling_and_a_changed_service_voids_plans(
    cloud: Cloud, caller: Caller
) -> None:
    await deploy(caller)
    old = await caller.tool("destroy", target=L4, name="gemma4")
    await caller.tool("update_scaling", target=L4, name="gemma4", instances=1)
    refused = await caller.tool("destroy", target=L4, name="gemma4", plan_id=old.plan_id)
    assert refused.error["reason"] == "stale"
    assert "generation" in refused.text
    planned = await caller.tool(
        "plan_deployment", target=L4, name="gemma4", options={"concurrency": 8}
    )
    command = planned.ok["steps"][-1]["command"]
    assert "--scaling" not in command
    assert any("manual at 1" in note for note in planned.ok["notes"])
    await caller.tool("deploy", target=L4, name="gemma4", plan_id=planned.plan_id)
    status = (await caller.tool("get_status", target=L4)).ok
    assert status["facts"]["scaling"] == "manual, 1 instances"
    told = await caller.tool(
        "plan_deployment", target=L4, name="gemma4", options={"scaling": "auto"}
    )
    assert any("Ends the manual scaling" in warning for warning in told.ok["warnings"])

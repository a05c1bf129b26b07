"""The whole life of a deployment through a client, with the real gcloud, in the rehearsal cloud."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from backends.rehearsal import rehearse
from backends.rehearsal.guest import Guest
from backends.rehearsal.terminal import Terminal
from tests.cloudrun.acting import GOLDEN, L4, RTX, deploy, destroy, given, settled
from tests.cloudrun.conftest import SPEED, Cloud
from tests.support.clients import Caller


def _check_golden(name: str, body: dict[str, Any]) -> None:
    """Compare with a recorded body, but for what gcloud makes up each time."""
    text = json.dumps(body, indent=1, sort_keys=True)
    known = json.loads(text)
    for holder in (known["metadata"], known["spec"]["template"]["metadata"]):
        holder.get("labels", {}).pop("client.knative.dev/nonce", None)
        holder.get("annotations", {}).pop("run.googleapis.com/client-version", None)
    path = GOLDEN / f"body-{name}.json"
    if os.environ.get("TESTS_UPDATE_SNAPSHOTS"):
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert known == json.loads(path.read_text(encoding="utf-8"))


async def test_an_l4_service_from_quota_to_nothing_left(
    cloud: Cloud, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk of `make rehearse`, and what it leaves and has sent."""
    monkeypatch.setattr(rehearse, "NAME", "gemma4")
    monkeypatch.setattr(rehearse, "LEVELS", [4, 8])
    monkeypatch.setattr(rehearse, "MAX_TOKENS", 32)
    out = io.StringIO()
    guest = Guest(caller.client, Terminal(out))
    await rehearse.Rehearsal(guest, L4, tmp_path).walk()
    said = " ".join(out.getvalue().split())
    called = re.findall(r"→ ([a-z_]+)\(", out.getvalue())
    assert list(dict.fromkeys(called)) == [
        *("get_help", "find_capacity", "plan_deployment", "deploy", "wait_until_ready"),
        *("verify_model_health", "query_model", "get_metrics", "get_logs", "get_status"),
        *("run_benchmark", "get_operation", "get_benchmarks", "update_scaling", "shift_traffic"),
        *("stop_serving", "start_serving", "destroy", "list_deployments"),
    ]
    assert called.count("shift_traffic") == 3
    assert said.count("Rehearsal: the clouds are played") == 1
    assert "us-east4 can run 1.421" in said
    assert "price: 1.4209 USD per hour" in said
    assert "admits 4 requests at once" in said
    levels = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["levels"]
    at_4, at_8 = (level["output_tokens_per_s"] for level in levels)
    assert at_8 < 1.2 * at_4, "the platform admits four at once"
    if all(level["valid"] for level in levels):
        assert "admission limit, about 4, is what holds throughput down" in said
    else:  # a machine that is busy with something else, and the walk says so
        assert "Do not use the levels marked invalid" in said
    assert "goes on billing: gs://vllm-rehearsal-bucket/gemma-4-E2B-it stays" in said
    assert caller.questions, "a person was asked before it was stopped and destroyed"
    assert (tmp_path / "benchmark.png").is_file()

    first = cloud.requests("POST", "/namespaces/vllm-rehearsal/services")[0]["body"]
    _check_golden("l4", first)
    world = cloud.world()
    assert world["services"] == {}
    assert not [email for email in world["service_accounts"] if email.startswith("vllm-")]
    assert "vllm-l4-gemma4" not in json.dumps(world["policies"])


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


async def test_a_stopped_service_says_why_nobody_is_answered(cloud: Cloud, caller: Caller) -> None:
    given(cloud)
    await settled(caller)
    cloud.fault("service-disabled")
    status = (await caller.tool("get_status", target=L4)).ok
    assert status["state"] == "stopped"
    assert status["usd_per_hour"] == 0
    refused = (await caller.tool("query_model", target=L4, prompt="Hello")).error
    assert "Service is disabled" in refused["cause"]
    assert "start_serving" in refused["next_action"]


async def test_a_service_that_is_being_deleted_is_not_called_ready(
    cloud: Cloud, caller: Caller
) -> None:
    given(cloud)
    await settled(caller)
    cloud.control("POST", "/settings", {"speed": 1})
    where = f"projects/{cloud.running.project}/locations/us-east4/services/gemma4"
    cloud.google("DELETE", f"https://run.googleapis.com/v2/{where}")
    status = (await caller.tool("get_status", target=L4, name="gemma4")).ok
    cloud.control("POST", "/settings", {"speed": SPEED})
    assert status["state"] == "stopping"
    assert "cost ends when it is gone" in status["summary"]
    assert status["next_steps"] == [f"get_status(target='{L4}', name='gemma4')"]


async def test_a_redeploy_keeps_manual_scaling_and_a_changed_service_voids_plans(
    cloud: Cloud, caller: Caller
) -> None:
    given(cloud)
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
    assert status["facts"]["scaling"] == "manual, 1 instance"
    told = await caller.tool(
        "plan_deployment", target=L4, name="gemma4", options={"scaling": "auto"}
    )
    assert any("Ends the manual scaling" in warning for warning in told.ok["warnings"])

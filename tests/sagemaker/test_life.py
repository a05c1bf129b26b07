"""The whole life of an endpoint through a client, with the real aws CLI, in the rehearsal cloud."""

from __future__ import annotations

import json

import pytest

from tests.sagemaker.acting import (
    NAME,
    TARGET,
    bucket_folder,
    deploy,
    destroy,
    finished,
    settled,
    slowly,
    status,
    until,
    without_cli,
)
from tests.support.clients import Caller
from tests.support.cloud import Cloud


async def test_an_endpoint_from_quota_to_nothing_left(cloud: Cloud, caller: Caller) -> None:
    capacity = (await caller.tool("find_capacity", target=TARGET)).ok
    best = capacity["items"][0]
    assert (best["place"], best["verdict"]) == ("us-east-2 ml.g6.xlarge", "can run")
    assert (best["quota_limit"], best["quota_used"], best["usd_per_hour"]) == (2.0, 0.0, 1.1267)
    # Newest by version: a rebuild of 0.29 was pushed later, and -soci, omni- and floating tags too.
    assert "0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.1," in best["note"]
    assert "gpu-4-1" in best["note"]

    planned = await caller.tool("plan_deployment", target=TARGET, name=NAME)
    assert planned.ok["price"]["usd_per_hour"] == 1.654
    assert "ml.g6.xlarge 1.1267" in planned.ok["price"]["basis"]
    assert any("holds quota for each of" in warning for warning in planned.ok["warnings"])
    done = await caller.tool("deploy", target=TARGET, name=NAME, plan_id=planned.plan_id)
    assert done.ok["state"] in {"creating", "starting", "ready"}, done.text

    waited = await settled(caller)
    assert waited["state"] == "ready", waited["summary"]
    assert waited["models"] == ["gemma-4-E2B-it"]
    assert waited["usd_per_hour"] == 1.1267
    health = (await caller.tool("verify_model_health", target=TARGET, deep=True)).ok
    assert health["healthy"], health
    answer = (await caller.tool("query_model", target=TARGET, prompt="Hello", max_tokens=8)).ok
    assert answer["basis"] == "simulated"
    assert answer["ttft_ms"] > 0
    logs = (await caller.tool("get_logs", target=TARGET, lines=200)).ok
    assert "Application startup complete" in logs["text"]
    metrics = (await caller.tool("get_metrics", target=TARGET)).ok
    assert metrics["now"]["invocations"] >= 2
    assert {row["latency_ms"] for row in metrics["latency_ms"]} == {"model", "overhead"}
    assert "inside the container" in metrics["warnings"][1]
    listed = (await caller.tool("list_deployments")).ok
    assert listed["usd_per_hour_now"] == 1.1267

    started = (
        await caller.tool("run_benchmark", target=TARGET, concurrency=[2], requests=4, max_tokens=8)
    ).ok
    result = (await finished(caller, started["operation_id"]))["result"]
    assert result["run_state"] == "completed"
    assert result["platform"]["invocations"] >= 4
    assert 0 < result["platform"]["overhead_latency_ms_mean"] < 100
    assert "no CLI and no SDK" in result["platform"]["note"]

    kept = (await caller.tool("destroy", target=TARGET, name=NAME)).ok
    assert [f"The role vllm-devops-{NAME}" in item for item in kept["stays"]] == [True]
    assert not any("nothing" in item for item in kept["keeps_billing"])
    gone = await destroy(caller, role=True)
    assert any("Its log" in item for item in gone.ok["keeps_billing"])
    assert "Goes on billing: Its log" in caller.questions[-1]
    assert f"vllm-devops-{NAME}" not in json.dumps(cloud.world())
    assert (await caller.tool("list_deployments")).ok["items"] == []
    # All of it would be made anew, for nothing of it is left.
    again = (await caller.tool("plan_deployment", target=TARGET, name=NAME)).ok
    assert len(again["steps"]) == len(planned.ok["steps"])


async def test_a_candidate_gets_traffic_after_it_kept_the_contract(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cloud
    without_cli(monkeypatch, "update-endpoint", "update-endpoint-weights-and-capacities")
    await deploy(caller, instance_types=["ml.g6.xlarge"])
    await settled(caller)
    candidate = await caller.tool(
        "plan_deployment", target=TARGET, name=NAME, max_model_len=16384,
        options={"candidate": True, "instance_types": ["ml.g6.2xlarge"]},
    )  # fmt: skip
    titles = [step["title"] for step in candidate.ok["steps"]]
    assert any("alarm on server errors" in title for title in titles)
    assert "--retain-all-variant-properties" in candidate.ok["steps"][-1]["command"]
    await caller.tool("deploy", target=TARGET, name=NAME, plan_id=candidate.plan_id)
    assert (await settled(caller))["state"] == "ready"
    half = (
        await caller.tool("shift_traffic", target=TARGET, name=NAME, to="candidate", percent=50)
    ).ok
    assert len(half["checks"]) == 4
    assert all(check["ok"] for check in half["checks"]), half
    back = (
        await caller.tool("shift_traffic", target=TARGET, name=NAME, to="previous", check=False)
    ).ok
    shares = {share.get("tag"): share["percent"] for share in back["shares"]}
    assert shares == {"candidate": 0, None: 100}
    none = await caller.tool("shift_traffic", target=TARGET, name=NAME, to="nobody")
    assert none.error["code"] == "invalid_input"
    await destroy(caller)


async def test_a_redeploy_is_blue_green_and_the_same_settings_are_refused(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cloud
    without_cli(monkeypatch)
    await deploy(caller, instance_types=["ml.g6.xlarge"])
    await settled(caller)
    again = await deploy(caller, instance_types=["ml.g6.xlarge"])
    assert again.error["code"] == "conflict"
    assert "exactly these settings" in again.text
    short = await deploy(caller, instance_types=["ml.g6.xlarge"], instances=2)
    assert short.error["code"] == "quota"
    assert "old and the new instances at once" in short.error["cause"]
    other = await deploy(caller, instance_types=["ml.g6.2xlarge"], rollout="canary")
    assert not other.is_error, other.text
    waited = await settled(caller)
    assert waited["state"] == "ready", waited["summary"]
    assert "1 x ml.g6.2xlarge" in waited["summary"]
    nothing = await caller.tool("shift_traffic", target=TARGET, name=NAME, to="candidate")
    assert nothing.error["code"] == "not_found"
    # Every configuration and model of the name goes, also those of earlier settings.
    planned = (await caller.tool("destroy", target=TARGET, name=NAME)).ok
    assert sum("configuration" in step["title"] for step in planned["steps"]) == 2
    assert sum("the model" in step["title"] for step in planned["steps"]) == 2


async def test_stopping_keeps_the_settings_and_starting_makes_the_same_again(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cli(monkeypatch)
    await deploy(caller)
    await settled(caller)
    planned = await caller.tool("stop_serving", target=TARGET, name=NAME)
    assert any("cannot scale" in warning for warning in planned.ok["warnings"])
    with slowly(cloud):
        ending = (
            await caller.tool("stop_serving", target=TARGET, name=NAME, plan_id=planned.plan_id)
        ).ok
    # Accepted is not over: it is paid for until it is gone.
    assert ending["state"] == "stopping"
    assert "was stopped" not in ending["summary"]
    assert "is being deleted" in ending["summary"]
    assert "cost ends when it is gone" in ending["summary"]
    look = f"get_status(target='{TARGET}', name='{NAME}')"
    assert ending["next_steps"] == (await status(caller))["next_steps"] == [look]
    early = (await caller.tool("start_serving", target=TARGET, name=NAME)).error
    assert look in early["next_action"]
    stopped = await until(caller, "stopped")
    assert stopped["usd_per_hour"] == 0
    listed = (await caller.tool("list_deployments")).ok
    assert [(item["name"], item["state"]) for item in listed["items"]] == [(NAME, "stopped")]
    refused = (await caller.tool("query_model", target=TARGET, prompt="Hello")).error
    assert "start_serving" in refused["next_action"]
    again = (await caller.tool("start_serving", target=TARGET, name=NAME)).ok
    assert again["state"] in {"creating", "starting", "ready"}
    assert (await settled(caller))["state"] == "ready"
    # Its own use of quota does not make its pool another one.
    same = (await caller.tool("plan_deployment", target=TARGET, name=NAME)).error
    assert same["code"] == "conflict"
    assert "exactly these settings" in same["message"]
    restarted = (await caller.tool("start_serving", target=TARGET, name=NAME, restart=True)).error
    assert restarted["code"] == "quota"  # new instances beside the old ones
    with slowly(cloud):
        gone = (await destroy(caller)).ok
    assert "was destroyed" not in gone["summary"]
    assert (gone["state"], gone["next_steps"]) == ("stopping", [look])


async def test_instances_are_set_by_hand_or_chosen_by_load(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = without_cli(monkeypatch)
    await bucket_folder(cloud, "weights", "gemma-4-E2B-it")
    await deploy(caller, instance_types=["ml.g6.xlarge"], model="s3://weights/gemma-4-E2B-it")
    ready = await settled(caller)
    assert ready["models"] == ["gemma-4-E2B-it"]
    assert "1 x ml.g6.xlarge" in ready["summary"]
    sent.clear()
    ranged = (await caller.tool("update_scaling", target=TARGET, name=NAME, max_instances=2)).ok
    assert "1 to 2 instances" in ranged["summary"]
    assert ranged["usd_per_hour"] == 2.2534
    assert [words[2] for words in sent] == ["register-scalable-target", "put-scaling-policy"]
    by_hand = (await caller.tool("update_scaling", target=TARGET, name=NAME, instances=2)).ok
    assert "2 instances" in by_hand["summary"]
    assert (await settled(caller))["usd_per_hour"] == 2.2534
    zero = (await caller.tool("update_scaling", target=TARGET, name=NAME, min_instances=0)).error
    assert zero["code"] == "not_supported"
    assert "inference components" in zero["message"]
    assert "'scale_to_zero': True" in zero["next_action"]
    none = (await caller.tool("update_scaling", target=TARGET, name=NAME, instances=0)).error
    assert none["code"] == "not_supported"
    more = (await caller.tool("update_scaling", target=TARGET, name=NAME, instances=3)).error
    assert more["code"] == "quota"
    assert "ml.g6.xlarge for endpoint usage" in more["quota"]
    cloud.control("POST", "/reset")

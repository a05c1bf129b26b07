"""One machine from its plan to its end, with the real gcloud, in the rehearsal cloud."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.clients import Caller
from tests.support.cloud import Cloud
from tests.support.reply import Reply
from tests.support.traffic import seen_in_use

ON = {"target": "gce-t4", "name": "t4"}
_NOTHING: dict[str, list[str]] = {"instances": [], "disks": [], "routers": []}


async def _until(caller: Caller, state: str) -> list[Reply]:
    """Wait for a state; every answer on the way."""
    seen: list[Reply] = [await caller.tool("wait_until_ready", **ON, timeout_s=1)]
    # Its work is followed in its own records first: to look at a machine over ssh costs more.
    listed = await caller.tool("get_operation")
    for _ in range(20):
        newest = listed.structured["items"][0]["operation_id"]
        work = await caller.tool("get_operation", operation_id=newest, wait_s=40)
        if work.structured["finished"]:
            break
    for _ in range(20):
        seen.append(await caller.tool("wait_until_ready", **ON, timeout_s=40))
        assert not seen[-1].is_error, seen[-1].text
        if seen[-1].structured["state"] in {state, "failed", "stopped"}:
            break
    assert seen[-1].structured["state"] == state, seen[-1].text
    return seen


async def _end(caller: Caller, verb: str, **options: object) -> tuple[Reply, Reply]:
    planned = await caller.tool(verb, **ON, options=options)
    assert not planned.is_error, planned.text
    done = await caller.tool(verb, **ON, plan_id=planned.plan_id)
    assert not done.is_error, done.text
    return planned, done


async def _deploy(caller: Caller) -> Reply:
    planned = await caller.tool("plan_deployment", **ON, options={"start_at_boot": True})
    assert not planned.is_error, planned.text
    began = time.monotonic()
    deployed = await caller.tool("deploy", **ON, plan_id=planned.plan_id)
    assert not deployed.is_error, deployed.text
    assert deployed.structured["operation_id"]
    assert time.monotonic() - began < 45
    return planned


def _left(cloud: Cloud) -> dict[str, list[str]]:
    world = cloud.world()
    return {kind: sorted(world[kind]) for kind in _NOTHING}


async def test_from_the_plan_to_the_end(caller: Caller, cloud: Cloud) -> None:
    planned = await _deploy(caller)
    assert "--maintenance-policy=TERMINATE" in planned.text
    # From the first moment it is somewhere: who asks without a name must not deploy it again.
    begun = await caller.tool("get_status", target="gce-t4")
    assert begun.structured["name"] == "t4", begun.text
    assert begun.structured["state"] in {"creating", "starting"}
    await _until(caller, "ready")
    _is_the_machine_that_was_described(cloud.world()["instances"]["us-west2-b/t4"])

    told = await caller.tool("get_status", **ON, detail=True)
    assert told.structured["state"] == "ready"
    assert told.structured["host"]["gpu.name"] == "Tesla T4", told.structured["host"]
    answer = await caller.tool("query_model", **ON, prompt="Hello", max_tokens=8)
    assert not answer.is_error, answer.text
    for source, words in [("engine", "vLLM"), ("prepare", "vllm"), ("serial", "login:")]:
        log = await caller.tool("get_logs", **ON, source=source, lines=500)
        assert words in log.text, source

    await _measured_beside_the_engine(caller)
    await seen_in_use(caller, "gce-t4")

    # It restarts under us, and its unit brings the server back; nobody is asked.
    before = told.structured["host"]["boot"]
    at = "https://compute.googleapis.com/compute/v1/projects/vllm-rehearsal/zones/us-west2-b"
    cloud.google("POST", f"{at}/instances/t4/reset")
    await _until(caller, "ready")
    told = await caller.tool("get_status", **ON, detail=True)
    assert told.structured["host"]["boot"] != before
    answer = await caller.tool("query_model", **ON, prompt="Hello", max_tokens=8)
    assert not answer.is_error, answer.text

    # The kernel kills the next engine.
    cloud.fault(kind="host", fault="oom", times=1)
    started = await caller.tool("start_serving", **ON, restart=True)
    assert not started.is_error, started.text
    killed = (await _until(caller, "failed"))[-1].structured
    assert "Out of memory: Killed process" in killed["error"]
    assert "swap" in killed["error_cause"]

    # Its owner switches it off; one call brings everything back.
    planned, done = await _end(caller, "stop_serving", power_off=True)
    assert "about 30.44 USD a month" in planned.structured["keeps_billing"][0]
    assert done.structured["keeps_billing"] == planned.structured["keeps_billing"]
    listed = await caller.tool("list_deployments", target="gce-t4")
    assert listed.structured["items"][0]["usd_per_hour"] == pytest.approx(0.0417)
    started = await caller.tool("start_serving", **ON)
    assert not started.is_error, started.text
    await _until(caller, "ready")

    # It ends; its data disk does not, unless that is asked for too.
    planned, _ = await _end(caller, "destroy")
    assert "t4-data (250 GiB pd-balanced in us-west2-b)" in planned.structured["keeps_billing"][0]
    assert _left(cloud) == _NOTHING | {"disks": ["us-west2-b/t4-data"]}
    listed = await caller.tool("list_deployments", target="gce-t4")
    assert "only its data disk is kept" in listed.structured["items"][0]["note"]
    [saving] = listed.structured["could_save"]
    assert saving["call"] == "destroy(target='gce-t4', name='t4', options={'data_disk': true})"
    planned, _ = await _end(caller, "destroy", data_disk=True)
    assert not planned.structured.get("keeps_billing")
    assert _left(cloud) == _NOTHING
    assert not [mail for mail in cloud.world()["service_accounts"] if mail.startswith("vllm-")]


async def _measured_beside_the_engine(caller: Caller) -> None:
    small = {"concurrency": [1], "requests": 2, "max_tokens": 4, "prompt_tokens": 16}
    begun = await caller.tool("run_benchmark", **ON, **small, options={"runner": "host"})
    assert not begun.is_error, begun.text
    done = await caller.tool(
        "get_operation", operation_id=begun.structured["operation_id"], wait_s=40
    )
    assert done.structured["state"] == "succeeded", done.text
    shown = await caller.tool("get_benchmarks", benchmark_ids=[begun.structured["benchmark_id"]])
    assert shown.structured["levels"][0]["concurrency"] == 1, shown.text


def _is_the_machine_that_was_described(machine: dict[str, Any]) -> None:
    assert machine["machineType"].endswith("/n1-standard-2")
    [gpu] = machine["guestAccelerators"]
    assert gpu["acceleratorType"].endswith("/nvidia-tesla-t4")
    assert gpu["acceleratorCount"] == 1
    assert machine["scheduling"]["onHostMaintenance"] == "TERMINATE"
    boot, data = machine["disks"]
    assert (boot["boot"], boot["autoDelete"], boot["diskSizeGb"]) == (True, True, "32")
    assert (data["boot"], data["autoDelete"], data["diskSizeGb"]) == (False, False, "250")
    assert machine["labels"]["managed-by"] == "vllm-devops"
    [interface] = machine["networkInterfaces"]
    assert not interface.get("accessConfigs")
    [account] = machine["serviceAccounts"]
    assert account["email"].startswith("vllm-t4-t4@")

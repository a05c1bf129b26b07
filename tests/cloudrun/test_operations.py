"""Long work on Cloud Run: a cold start timed by a worker. And short work: how fast a read is."""

from __future__ import annotations

import time

from tests.cloudrun.acting import L4, given, settled
from tests.cloudrun.conftest import Cloud
from tests.support.clients import Caller


async def test_a_cold_start_is_timed_phase_by_phase(cloud: Cloud, caller: Caller) -> None:
    given(cloud)
    await settled(caller)
    started = (await caller.tool("probe_cold_start", target=L4, name="gemma4")).ok
    while True:
        answer = (
            await caller.tool("get_operation", operation_id=started["operation_id"], wait_s=40)
        ).ok
        if answer["finished"]:
            break
    assert answer["state"] == "succeeded", answer
    result = answer["result"]
    assert result["basis"] == "simulated"
    assert 0 < result["loading_weights_s"] < result["ready_s"] <= result["first_token_s"] + 1
    status = (await caller.tool("get_status", target=L4)).ok
    assert status["facts"]["scaling"] == "automatic"

    cloud.fault("manual-scaling")
    warm = (await caller.tool("probe_cold_start", target=L4, name="gemma4")).ok
    ended = (await caller.tool("get_operation", operation_id=warm["operation_id"], wait_s=40)).ok
    assert ended["state"] == "failed"
    assert "keeps 1 instance up" in ended["error"]


async def test_a_warm_read_takes_less_than_a_tenth_of_a_second(
    cloud: Cloud, caller: Caller
) -> None:
    took: list[float] = []
    for _ in range(12):
        began = time.perf_counter()
        assert (await caller.tool("list_deployments", target=L4)).ok["items"] == []
        took.append(time.perf_counter() - began)
    assert min(took) < 0.1, took


async def test_a_redeploy_without_a_region_goes_where_the_service_is(
    cloud: Cloud, caller: Caller
) -> None:
    given(cloud, region="europe-west4")
    planned = (await caller.tool("plan_deployment", target=L4, name="gemma4")).ok
    assert "in europe-west4" in planned["summary"]
    elsewhere = await caller.tool(
        "plan_deployment", target=L4, name="gemma4", options={"region": "us-east4"}
    )
    assert elsewhere.error["code"] == "conflict"
    assert "europe-west4" in elsewhere.text

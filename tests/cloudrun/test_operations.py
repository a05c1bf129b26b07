"""Long work on Cloud Run: a cold start timed by a worker."""

from __future__ import annotations

from tests.cloudrun.acting import L4, deploy, settled
from tests.cloudrun.conftest import Cloud
from tests.support.clients import Caller


async def test_a_cold_start_is_timed_phase_by_phase(cloud: Cloud, caller: Caller) -> None:
    await deploy(caller)
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

    await caller.tool("update_scaling", target=L4, name="gemma4", min_instances=1)
    warm = (await caller.tool("probe_cold_start", target=L4, name="gemma4")).ok
    ended = (await caller.tool("get_operation", operation_id=warm["operation_id"], wait_s=40)).ok
    assert ended["state"] == "failed"
    assert "keeps 1 instances up" in ended["error"]

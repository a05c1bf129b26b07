"""Who uses a service: last requests from its log, time-to-live on its label, diagnosis of it."""

from __future__ import annotations

from tests.cloudrun.acting import L4, deploy, settled
from tests.cloudrun.conftest import Cloud
from tests.support.clients import Caller


async def test_last_request_time_to_live_and_diagnosis_of_a_service(
    cloud: Cloud, caller: Caller
) -> None:
    assert not (await deploy(caller, ttl_hours=0.5, min_instances=1)).is_error
    body = cloud.requests("POST", "/namespaces/vllm-rehearsal/services")[0]["body"]
    assert body["metadata"]["labels"]["vllm-devops-ttl-minutes"] == "30"
    assert (await settled(caller))["state"] == "ready"

    (before,) = (await caller.tool("list_deployments", target=L4)).ok["items"]
    assert before["no_request_for_h"] == 24, "health checks of ours are no requests"
    assert before["ends_at"] > before["created_at"]
    assert (await caller.tool("query_model", target=L4, prompt="Hello", max_tokens=8)).ok
    (after,) = (await caller.tool("list_deployments", target=L4)).ok["items"]
    assert after["no_request_for_h"] < 0.1
    assert after["usd_since_start_at_most"] < 1

    found = (await caller.tool("diagnose", target=L4, name="gemma4")).ok
    assert found["verdict"] == "nothing found", found["summary"]
    assert {item["source"] for item in found["looked_at"]} >= {"status", "log container"}

"""Who uses a service: last requests from its log, time-to-live on its label, diagnosis of it."""

from __future__ import annotations

from tests.cloudrun.acting import L4, deploy, settled
from tests.cloudrun.conftest import TARGETS, Cloud
from tests.support.clients import Caller, connected, make_app


async def test_last_request_time_to_live_and_diagnosis_of_a_service(
    cloud: Cloud, caller: Caller
) -> None:
    assert not (await deploy(caller, ttl_hours=0.5, min_instances=1)).is_error
    body = cloud.requests("POST", "/namespaces/vllm-rehearsal/services")[0]["body"]
    assert body["metadata"]["labels"]["vllm-devops-ttl-minutes"] == "30"
    assert (await settled(caller))["state"] == "ready"

    (before,) = (await caller.tool("list_deployments", target=L4)).ok["items"]
    assert "last_request_at" not in before, "health checks of ours are no requests"
    assert before["no_request_for_h"] < 1, "no longer than it exists"
    assert before["ends_at"] > before["created_at"]
    assert (await caller.tool("query_model", target=L4, prompt="Hello", max_tokens=8)).ok
    (after,) = (await caller.tool("list_deployments", target=L4)).ok["items"]
    assert after["no_request_for_h"] < 0.1
    assert after["usd_since_start_at_most"] < 1

    found = (await caller.tool("diagnose", target=L4, name="gemma4")).ok
    assert found["verdict"] == "nothing found", found["summary"]
    assert {item["source"] for item in found["looked_at"]} >= {"status", "log container"}


async def test_a_price_comes_from_the_live_list_and_else_says_its_age(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault(host="cloudbilling.googleapis.com", status=503)
    planned = (await caller.tool("plan_deployment", target=L4, name="gemma4")).ok
    assert " old, not read now" in planned["price"]["basis"]
    assert planned["price"]["usd_per_hour"] == 1.4209
    cloud.mend()
    fresh = make_app(cloud.state_dir, rehearsal=True, targets=TARGETS)
    async with connected(fresh) as other:
        live = (await other.tool("plan_deployment", target=L4, name="gemma4")).ok
    assert "live price list" in live["price"]["basis"]
    assert "Cloud Billing Catalog" in live["price"]["source"]
    assert live["price"]["usd_per_hour"] == 1.4209
    assert live["cost"]["usd_per_month_predicted"] > 0
    assert live["predicted"][0]["concurrency"] == 1


async def test_models_are_those_of_catalogue_bucket_and_model_garden_each_once(
    cloud: Cloud, caller: Caller
) -> None:
    listed = (await caller.tool("list_models", limit=100)).ok
    where = {item["where"] for item in listed["items"]}
    assert {"catalogue", "bucket", "Vertex AI Model Garden"} <= where
    keys = [(item["id"], item["where"], item.get("encoding")) for item in listed["items"]]
    assert len(keys) == len(set(keys))
    garden = [item["kind"] for item in listed["items"] if item["where"].startswith("Vertex")]
    assert "gemma4" in garden
    assert "text-embedding-005" not in garden
    cloud.fault(host="aiplatform.googleapis.com", status=403)
    again = (await caller.tool("list_models", target=L4, limit=100)).ok
    (said,) = [item for item in again["items"] if item["where"] == "Vertex AI"]
    assert "not asked" in said["note"]

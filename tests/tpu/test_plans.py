"""Plans, lists and destructions against the rehearsal's TPU API: everything but the CLI is real."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clients import Caller
from tests.support.cloud import Cloud
from tests.tpu.acting import ACCOUNT, LONG, TARGET, Zone


@pytest.fixture
def waiting(cloud: Cloud, zone: Zone) -> Zone:
    """Nothing is ever taken out of the queue, so states stay as they are."""
    cloud.fault(kind="tpu-wait", zone="*", seconds=None)
    return zone


async def plan(caller: Caller, **options: Any) -> Any:
    """Plan a deployment."""
    options = {"service_account": ACCOUNT} | options
    if options.get("provisioning", "flex-start") == "flex-start":
        options = LONG | options
    return await caller.tool("plan_deployment", target=TARGET, name="gemma4", options=options)


async def test_hardware_quota_and_capacity_are_three_gates(cloud: Cloud, caller: Caller) -> None:
    found = (await caller.tool("find_capacity", target=TARGET, limit=50)).ok
    by_place = {(item["place"], item["provisioning"]): item for item in found["items"]}
    # Hardware: zones without v6e are not offered, though they have quota.
    assert not [place for place, _ in by_place if place == "us-central1-a"]
    assert any("us-central1-a" in warning for warning in found["warnings"])
    # Quota: none on demand in one zone, and it is said what to ask for.
    short = by_place["us-south1-a", "on-demand"]
    assert short["verdict"] == "short of quota"
    assert "us-south1-a: TPUV6EPerProjectPerZoneForTPUAPI (for on-demand)" in found["to_request"]
    # The model: refused by the zone.
    assert by_place["us-central1-b", "flex-start"]["verdict"] == "not sold here"
    # Capacity: unknown until asked for.
    can = by_place["us-east5-b", "flex-start"]
    assert can["verdict"] == "can run"
    assert "capacity: unknown" in can["note"]
    assert can["usd_per_hour"] == 1.35
    assert by_place["us-east5-b", "spot"]["usd_per_hour"] == 1.4033
    assert by_place["europe-west4-a", "on-demand"]["usd_per_hour"] == 2.97
    assert "usd_per_hour" not in by_place["southamerica-west1-a", "spot"]


async def test_quotas_that_cannot_be_read_are_an_error_and_not_none(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault(kind="request", method="GET", path="/quotaInfos/", status=503, times=-1)
    refused = await caller.tool("find_capacity", target=TARGET)
    assert refused.is_error
    planned = await plan(caller, zone="us-east5-b", provisioning="spot")
    assert any("Quotas were not checked" in warning for warning in planned.ok["warnings"])
    assert "live price list" in planned.ok["price"]["basis"]
    assert "Cloud Billing Catalog" in planned.ok["price"]["source"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zone": "us-central1-a"}, "has no v6e-1 (it has no v6e)"),
        ({"zones": ["us-central1-a", "us-central1-b"]}, "refused flex-start"),
        ({"zone": "us-south1-a", "provisioning": "on-demand"}, "1 needed, 0 used, 0 allowed"),
    ],
)
async def test_a_zone_that_cannot_be_is_refused_before_anything_is_sent(
    cloud: Cloud, caller: Caller, options: dict[str, Any], words: str
) -> None:
    planned = await plan(caller, **options)
    assert planned.is_error
    assert words in planned.text
    assert cloud.world()["queued_resources"] == {}


async def test_a_list_that_is_not_whole_makes_no_plan(cloud: Cloud, caller: Caller) -> None:
    cloud.fault(
        kind="request", method="GET", path="/queuedResources$", times=-1, status=200,
        body={"queuedResources": [], "unreachable": ["locations/us-east5-b"]},
    )  # fmt: skip
    planned = await plan(caller, zone="us-east5-b")
    assert planned.is_error
    assert "is not whole" in planned.text
    listed = (await caller.tool("list_deployments")).ok
    assert not listed["complete"]


async def test_a_taken_name_is_refused_and_ended_requests_count_against_quota(
    cloud: Cloud, caller: Caller, waiting: Zone
) -> None:
    waiting.ask("gemma4")
    planned = await plan(caller, zone="us-east5-b", provisioning="spot")
    assert planned.error["code"] == "conflict"
    assert "WAITING_FOR_RESOURCES" in planned.text or "ACCEPTED" in planned.text
    assert "second bill" in planned.text


async def test_what_is_not_ours_is_listed_and_never_destroyed(
    cloud: Cloud, caller: Caller, waiting: Zone
) -> None:
    waiting.ask("theirs", labels={"team": "other"})
    listed = (await caller.tool("list_deployments")).ok
    assert [(item["name"], item["managed"]) for item in listed["items"]] == [("theirs", False)]
    refused = await caller.tool("destroy", target=TARGET, name="theirs")
    assert refused.error["code"] == "not_managed"


async def test_a_name_in_two_zones_must_be_told_apart(
    cloud: Cloud, caller: Caller, waiting: Zone
) -> None:
    waiting.ask("twin", "us-east5-a")
    waiting.ask("twin", "us-east5-b")
    refused = await caller.tool("get_status", target=TARGET, name="twin")
    assert "twin@us-east5-a" in refused.text
    assert "twin@us-east5-b" in refused.text
    one = (await caller.tool("get_status", target=TARGET, name="twin@us-east5-a")).ok
    assert one["facts"]["zone"] == "us-east5-a"
    names = [item["name"] for item in (await caller.tool("list_deployments")).ok["items"]]
    assert names == ["twin@us-east5-a", "twin@us-east5-b"]


async def test_keeping_one_and_removing_the_others_names_every_one(
    cloud: Cloud, caller: Caller, waiting: Zone
) -> None:
    waiting.ask("keep")
    waiting.ask("old", "us-east5-a")
    waiting.ask("older", "europe-west4-a")
    options = {"others": ["old", "older@europe-west4-a"]}
    planned = await caller.tool("destroy", target=TARGET, name="keep", options=options)
    commands = [step["command"] for step in planned.ok["steps"]]
    assert len(commands) == 2
    assert "delete old " in commands[0]
    assert "delete older " in commands[1]
    assert not any("--force" in command for command in commands)
    assert any("place in the queue" in warning for warning in planned.ok["warnings"])
    itself = await caller.tool("destroy", target=TARGET, name="keep", options={"others": ["keep"]})
    assert "which is to be kept" in itself.text
    done = await caller.tool("destroy", target=TARGET, name="keep", plan_id=planned.plan_id)
    assert not done.is_error, done.text
    left = [name.rpartition("/")[2] for name in cloud.world()["queued_resources"]]
    assert left == ["keep"]


async def test_an_orphan_node_is_shown_with_its_price_and_destroyed(
    cloud: Cloud, caller: Caller, zone: Zone
) -> None:
    zone.ask("gemma4")
    zone.until("ACTIVE")
    cloud.fault("tpu-orphan-node")
    (item,) = (await caller.tool("list_deployments")).ok["items"]
    assert item["name"] == "gemma4-node"
    assert item["usd_per_hour"] == 1.4033
    assert "owned by no queued resource" in item["note"]
    planned = await caller.tool("destroy", target=TARGET, name="gemma4-node")
    assert "tpu-vm delete gemma4-node" in planned.ok["steps"][0]["command"]
    gone = await caller.tool("destroy", target=TARGET, name="gemma4-node", plan_id=planned.plan_id)
    assert not gone.is_error, gone.text
    assert cloud.world()["nodes"] == {}


@pytest.mark.parametrize("scenario", ["tpu-stockout", "tpu-internal-error"])
async def test_a_failed_request_says_why_and_is_destroyed_without_force(
    cloud: Cloud, caller: Caller, zone: Zone, scenario: str
) -> None:
    cloud.fault(scenario)
    zone.ask("gemma4")
    zone.until("FAILED")
    status = (await caller.tool("get_status", target=TARGET, name="gemma4")).ok
    assert status["state"] == "failed"
    assert status["error"]
    assert status["usd_per_hour"] == 0
    planned = await caller.tool("destroy", target=TARGET, name="gemma4")
    assert "--force" not in planned.ok["steps"][0]["command"]


async def test_a_run_of_flex_start_shows_what_is_left_of_it(
    cloud: Cloud, caller: Caller, zone: Zone
) -> None:
    zone.ask("gemma4", provisioningModel="FLEX_START", runDuration={"maxRunDuration": "36000s"})
    zone.until("ACTIVE")
    (item,) = (await caller.tool("list_deployments")).ok["items"]
    assert "10.0 h left" in item["note"]


async def test_the_manifest_for_gke_and_a_dated_price_come_with_the_plan(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault(host="cloudbilling.googleapis.com", status=503, times=-1)
    planned = await caller.tool(
        "plan_deployment", target=TARGET, format="gke", options={"zone": "us-east5-b"}
    )
    assert "google.com/tpu" in planned.ok["document"]
    assert " old, not read now" in planned.ok["price"]["basis"]


async def test_checkpoints_are_listed_and_inspected(cloud: Cloud, caller: Caller) -> None:
    listed = (await caller.tool("list_models", target=TARGET)).ok
    assert any(item["id"].endswith("gemma-4-E2B-it") for item in listed["items"])
    facts = (await caller.tool("list_models", target=TARGET, inspect="google/gemma-4-E2B-it")).ok
    assert "fits" in str(facts)

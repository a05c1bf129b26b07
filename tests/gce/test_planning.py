"""What is planned, refused and shown before a machine exists, over REST in the rehearsal cloud."""

from __future__ import annotations

from typing import Any

import pytest

from backends.clouds.zone_memory import ZoneMemory
from backends.core.state import StateDir
from tests.gce.made import PROJECT
from tests.support.clients import Caller
from tests.support.cloud import Cloud

ON = {"target": "gce-t4", "name": "t4"}
_API = f"https://compute.googleapis.com/compute/v1/projects/{PROJECT}"


def _foreign(cloud: Cloud, name: str = "t4", **labels: str) -> None:
    """A T4 machine that somebody else made."""
    zone = "zones/us-west2-c"
    gpu = {"acceleratorType": f"{zone}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}
    boot = {"boot": True, "autoDelete": True, "initializeParams": {"diskName": name}}
    cloud.google(
        "POST",
        f"{_API}/{zone}/instances",
        {
            "name": name,
            "machineType": f"{zone}/machineTypes/n1-standard-2",
            "guestAccelerators": [gpu],
            "scheduling": {"onHostMaintenance": "TERMINATE"},
            "labels": labels,
            "disks": [boot],
        },
    )


def _nothing_sent(cloud: Cloud) -> bool:
    return not [item for item in cloud.requests("POST") if "compute" in item["host"]]


async def _plan(caller: Caller, **options: object) -> dict[str, Any]:
    planned = await caller.tool("plan_deployment", **ON, options=options)
    assert not planned.is_error, planned.text
    return planned.structured


async def test_a_plan_names_each_command_what_it_makes_and_what_it_costs(
    caller: Caller, cloud: Cloud
) -> None:
    cloud.google("DELETE", f"{_API}/global/firewalls/default-allow-ssh")
    planned = await _plan(caller)
    commands = [step["command"] for step in planned["steps"]]
    wanted = [
        "gcloud iam service-accounts create",
        "gcloud compute firewall-rules create",
        "gcloud compute instances create t4",
        "gcloud compute disks add-labels t4-data",
        "gcloud compute routers create",
        "gcloud compute routers nats create",
    ]
    assert [command[: len(said)] for said, command in zip(wanted, commands, strict=False)] == wanted
    assert "--no-address" in commands[2]
    assert "--maintenance-policy=TERMINATE" in commands[2]
    assert "35.235.240.0/20" in commands[1]
    assert "--host=127.0.0.1" in commands[-1].replace("--host 127", "--host=127")
    assert planned["price"]["usd_per_hour"] == pytest.approx(0.5722)
    assert "live price list" in planned["price"]["basis"]
    assert "Cloud Billing Catalog" in planned["price"]["source"]
    assert planned["depends_on"]["machine t4"] == "absent"
    assert _nothing_sent(cloud)


async def test_spot_a_public_address_and_a_dated_price_without_the_price_list(
    caller: Caller, cloud: Cloud
) -> None:
    cloud.fault(host="cloudbilling.googleapis.com", status=503, times=-1)
    spot = await _plan(caller, provisioning="spot", external=True)
    create = next(
        step["command"] for step in spot["steps"] if "instances create" in step["command"]
    )
    assert "--provisioning-model=SPOT" in create
    assert "--instance-termination-action=STOP" in create
    assert "--no-address" not in create
    assert not [step for step in spot["steps"] if "routers" in step["command"]]
    assert "30 s notice" in " ".join(spot["warnings"])
    assert spot["price"]["usd_per_hour"] < 0.4
    assert " old, not read now" in spot["price"]["basis"]


async def test_capacity_shows_quota_price_and_what_was_seen_when(
    caller: Caller, cloud: Cloud
) -> None:
    folder = cloud.state_dir / "rehearsal"
    ZoneMemory(StateDir(folder), "gce-t4").note(
        "T4 on-demand", "us-west2-b", "stockout", "no hardware"
    )
    found = await caller.tool("find_capacity", target="gce-t4", place="us-west2", limit=10)
    assert not found.is_error, found.text
    rows = {(item["place"], item["provisioning"]): item for item in found.structured["items"]}
    assert len(rows) == 4
    first = rows["us-west2-b", "on-demand"]
    assert first["usd_per_hour"] == pytest.approx(0.5241, abs=0.06)
    assert "stockout" in str(first) or "no T4" in str(first), first
    assert rows["us-west2-b", "spot"]["usd_per_hour"] < first["usd_per_hour"]


async def test_a_project_without_gpus_is_told_what_to_request(caller: Caller, cloud: Cloud) -> None:
    cloud.fault("gce-no-gpus")
    found = await caller.tool("find_capacity", target="gce-t4", limit=1)
    assert "GPUS_ALL_REGIONS" in found.text
    refused = await caller.tool("plan_deployment", **ON)
    assert refused.is_error
    assert "GPUS_ALL_REGIONS" in refused.text
    assert _nothing_sent(cloud)


async def test_a_machine_of_somebody_else_is_shown_and_left_alone(
    caller: Caller, cloud: Cloud
) -> None:
    _foreign(cloud)
    listed = await caller.tool("list_deployments", target="gce-t4")
    [item] = listed.structured["items"]
    assert item["managed"] is False
    for tool in ("plan_deployment", "stop_serving", "start_serving", "destroy"):
        refused = await caller.tool(tool, **ON)
        assert refused.is_error, tool
        assert "not_managed" in refused.text, refused.text
    assert not cloud.requests("DELETE")


async def test_what_may_not_be_read_is_not_taken_for_nothing(caller: Caller, cloud: Cloud) -> None:
    cloud.fault(kind="deny", permission="compute.instances.list")
    listed = await caller.tool("list_deployments", target="gce-t4")
    assert listed.structured.get("complete") is not True, listed.text
    assert "compute.instances.list" in listed.text
    refused = await caller.tool("plan_deployment", **ON)
    assert refused.is_error
    assert "permission_denied" in refused.text

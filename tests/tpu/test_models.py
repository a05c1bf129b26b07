"""Sizes by provisioning models, from nothing to active and back, with the real gcloud.

Two of the eight are left out, since their whole life is in `test_life`: v6e-1 by flex-start and
v6e-4 by spot.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backends.core.errors import CloudError
from backends.tpu import running
from tests.support.clients import Caller
from tests.support.cloud import Cloud
from tests.tpu.acting import Zone, deploy, destroy

ZONE = "us-east5-a"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "on-demand": ("STANDARD", {}),
    "flex-start": ("FLEX_START", {}),
    "spot": ("SPOT", {}),
    "reservation": ("RESERVATION_BOUND", {"reservation": "v6e-reserved"}),
}


@pytest.mark.parametrize(
    ("size", "provisioning"),
    [
        ("v6e-1", "on-demand"),
        ("v6e-1", "spot"),
        ("v6e-1", "reservation"),
        ("v6e-4", "on-demand"),
        ("v6e-4", "flex-start"),
        ("v6e-4", "reservation"),
    ],
)
async def test_a_slice_becomes_active_by_each_provisioning_model_and_leaves_nothing(
    cloud: Cloud, caller: Caller, size: str, provisioning: str
) -> None:
    named, more = MODELS[provisioning]
    done = await deploy(caller, zone=ZONE, size=size, provisioning=provisioning, **more)
    assert not done.is_error, done.text
    found = await _active(cloud)
    assert found["provisioningModel"] == named
    assert ("runDuration" in found) is (provisioning == "flex-start")
    (node,) = cloud.world()["nodes"].values()
    assert (node["state"], node["acceleratorType"]) == ("READY", size)
    gone = await destroy(caller)
    assert gone.ok["state"] == "stopped"
    world = cloud.world()
    assert {**world["nodes"], **world["queued_resources"]} == {}


async def _active(cloud: Cloud) -> dict[str, Any]:
    """The only request, once it is active."""
    for _ in range(200):
        (found,) = cloud.world()["queued_resources"].values()
        if found["state"]["state"] == "ACTIVE":
            return dict(found)
        assert found["state"]["state"] != "FAILED", found
        await asyncio.sleep(0.05)
    raise AssertionError(f"it never became active: {found['state']}")


COMPUTE: dict[str, Any] = {"zone": "us-east5-b", "control_plane": "compute"}


async def test_the_pool_of_compute_engine_is_looked_at_before_and_named_after_a_refusal(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("tpu-compute-quota")
    for provisioning, quota in [
        ("on-demand", "TPUS-PER-TPU-FAMILY-per-project-region"),
        ("spot", "PREEMPTIBLE-TPU-V6E-per-project-region"),
    ]:
        planned = await deploy(caller, provisioning=provisioning, **COMPUTE)
        assert planned.is_error
        assert quota in planned.text
    assert cloud.requests("POST", "/instances") == []
    # Whoever goes on all the same is told by Google, and why by us.
    refused = await deploy(caller, provisioning="on-demand", ignore_quota=True, **COMPUTE)
    assert refused.is_error
    assert "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region us-east5." in refused.text
    assert "in a pool of its own" in refused.text
    assert "control_plane='tpu'" in refused.text
    assert cloud.world()["instances"] == {}


async def test_a_machine_type_that_is_not_open_to_everybody_leads_to_the_tpu_api(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOOK_FOR_S", 0.0)
    cloud.fault("tpu-gated-machine")
    refused = await deploy(caller, provisioning="on-demand", **COMPUTE)
    assert refused.is_error
    assert "not allowed to use the machine type [ct6e-standard-1t]" in refused.text
    assert "not open to everybody" in refused.text
    assert "control_plane='tpu'" in refused.text


def test_a_quota_that_is_lowered_too_far_is_refused_in_words_we_know(zone: Zone) -> None:
    url = "https://cloudquotas.googleapis.com/v1/projects/vllm-rehearsal/locations/global"
    body = {
        "quotaId": "TPUV6EPerProjectPerZoneForTPUAPI",
        "service": "tpu.googleapis.com",
        "dimensions": {"zone": ZONE},
        "quotaConfig": {"preferredValue": "4"},
    }
    answer = zone.client.rest.post(f"{url}/quotaPreferences", json=body)
    assert answer.status_code == 400
    error = running.explained(
        CloudError("refused", words=answer.json()["error"]["message"]), "gemma4"
    )
    assert error.cause is not None
    assert "lowered by more than a tenth" in error.cause
    assert "force" in str(error.next_action)
    forced = {"ignoreSafetyChecks": "QUOTA_DECREASE_PERCENTAGE_TOO_HIGH"}
    answer = zone.client.rest.post(f"{url}/quotaPreferences", json=body, params=forced)
    assert answer.json()["quotaConfig"]["grantedValue"] == "4"

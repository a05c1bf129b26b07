"""Sizes by provisioning models: the whole life of each pair, with the real gcloud.

Two of the eight are left out, since their life is told in `test_life`, with more that happens in
it: v6e-1 by flex-start and v6e-4 by spot.
"""

from __future__ import annotations

from typing import Any

import pytest

from backends.core.errors import CloudError
from backends.tpu import running
from tests.support.clients import Caller
from tests.support.cloud import Cloud
from tests.tpu.acting import Zone, deploy, destroy, until

ZONE = "us-east5-a"
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


async def test_a_machine_of_four_chips_serves_and_what_lacks_vcpus_is_told_what_to_ask_for(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"size": "v6e-4", "provisioning": "spot", **COMPUTE}
    cloud.fault("tpu-vcpus")
    with monkeypatch.context() as patch:
        patch.setattr(running, "LOOK_FOR_S", 0.0)
        refused = await deploy(caller, **asked)
    assert refused.is_error
    assert "Quota 'CPUS_ALL_REGIONS' exceeded.  Limit: 32.0 globally." in refused.text
    assert "180 with four or eight" in refused.text
    assert "CPUS-ALL-REGIONS-per-project" in refused.text
    assert cloud.world()["instances"] == {}
    cloud.mend()
    done = await deploy(caller, **asked)
    assert not done.is_error, done.text
    status = await until(caller, "ready")
    assert status["facts"]["tensor_parallel_size"] == 4
    assert not (await destroy(caller)).is_error
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

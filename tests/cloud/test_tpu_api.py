"""The played TPU API: its states in order, its refusals in Google's words, what ends a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.cloud.rehearsal import Json, Rehearsal
from tests.support.processes import wait_for

_V2 = "https://tpu.googleapis.com/v2/projects/vllm-rehearsal/locations"
_ALPHA = _V2.replace("/v2/", "/v2alpha1/")
ZONE = "us-east5-b"


@pytest.fixture(autouse=True)
def _nothing_left(cloud: Rehearsal) -> Any:
    yield
    for item in cloud.rest.get(f"{_V2}/-/queuedResources").json().get("queuedResources", []):
        cloud.rest.delete(f"https://tpu.googleapis.com/v2/{item['name']}", params={"force": "True"})

    def empty() -> bool:
        """every request is gone"""
        return not cloud.rest.get(f"{_V2}/-/queuedResources").json().get("queuedResources")

    wait_for(empty, 20)


def ask(
    cloud: Rehearsal, name: str = "qr", zone: str = ZONE, size: str = "v6e-1", **more: Any
) -> httpx.Response:
    """Ask for a slice."""
    node = {"acceleratorType": size, "runtimeVersion": "v2-alpha-tpuv6e"} | more.pop("node", {})
    body = {"tpu": {"nodeSpec": [{"nodeId": f"{name}-node", "node": node}]}} | more
    url = f"{_ALPHA}/{zone}/queuedResources"
    return cloud.rest.post(url, params={"queuedResourceId": name}, json=body)


def get(cloud: Rehearsal, name: str = "qr") -> Json:
    """A queued resource."""
    return dict(cloud.rest.get(f"{_V2}/{ZONE}/queuedResources/{name}").json())


def until(cloud: Rehearsal, state: str) -> Json:
    """A queued resource once it is in a state."""

    def there() -> Json | None:
        """the request is in that state"""
        found = get(cloud)
        return found if found.get("state", {}).get("state") == state else None

    return wait_for(there, 20)


def message(answer: httpx.Response) -> str:
    """Google's sentence."""
    assert answer.status_code >= 400, answer.text
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (
            {"zone": "us-central1-a"},
            400,
            'The requested accelerator configuration for accelerator type, "v6e-1", could not be '
            'found in the zonal accelerator configurations for "us-central1-a".; the accelerator '
            "v6e-1 was not found in zone us-central1-a [EID: ",
        ),
        ({"zone": "mars-north1-a"}, 400, 'The requested zone "mars-north1-a" is not supported.'),
        (
            {"zone": "us-central1-b", "provisioningModel": "FLEX_START",
             "runDuration": {"maxRunDuration": "14400s"}},
            400,
            'FLEX_START provisioning model is not supported for accelerator type "v6e-1" in '
            'location "us-central1-b"',
        ),
        (
            {"provisioningModel": "STANDARD", "spot": {}},
            400,
            "STANDARD provisioning model is incompatible with spot requests",
        ),
        (
            {"zone": "us-south1-a"},
            429,
            "Quota limit 'TPUV6EPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone "
            "us-south1-a.",
        ),
        ({"provisioningModel": "FLEX_START"}, 400, "max run duration"),
        (
            {"provisioningModel": "RESERVATION_BOUND", "reservationName": "x/reservations/nope"},
            404,
            "Reservation 'nope' was not found",
        ),
        ({"node": {"runtimeVersion": "v1"}}, 400, 'runtime version "v1" is not supported'),
    ],
)  # fmt: skip
def test_refusals_are_googles(
    cloud: Rehearsal, request_: dict[str, Any], code: int, words: str
) -> None:
    refused = ask(cloud, **request_)
    assert refused.status_code == code
    assert words in message(refused)


def test_a_request_goes_through_its_states_and_becomes_a_node(cloud: Rehearsal) -> None:
    made = ask(cloud)
    assert made.json()["done"]
    assert get(cloud)["state"]["state"] in {"ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"}
    assert "already exists" in message(ask(cloud))
    until(cloud, "ACTIVE")
    node = cloud.rest.get(f"{_V2}/{ZONE}/nodes/qr-node").json()
    assert node["state"] == "READY"
    assert node["networkEndpoints"][0]["accessConfig"]["externalIp"].startswith("127.")
    assert "_play" not in node
    refused = cloud.rest.delete(f"{_V2}/{ZONE}/queuedResources/qr")
    assert message(refused) == (
        "DeleteQueuedResource is not supported when state is ACTIVE (must be one of [ACCEPTED "
        "WAITING_FOR_RESOURCES SUSPENDED FAILED])"
    )


def test_a_request_that_waits_expires_when_its_time_is_over(cloud: Rehearsal) -> None:
    with cloud.fault("tpu-never-comes"):
        ask(cloud, queueingPolicy={"validUntilDuration": "200s"})
        until(cloud, "WAITING_FOR_RESOURCES")
        failed = until(cloud, "FAILED")
    assert failed["state"]["failedData"]["error"]["message"]
    assert cloud.rest.delete(f"{_V2}/{ZONE}/queuedResources/qr").status_code == 200


def test_preempted_capacity_suspends_the_request_and_takes_the_node(cloud: Rehearsal) -> None:
    ask(cloud, provisioningModel="SPOT")
    until(cloud, "ACTIVE")
    with cloud.fault("tpu-preempted"):
        until(cloud, "SUSPENDED")
    assert cloud.rest.get(f"{_V2}/{ZONE}/nodes/qr-node").status_code == 404


def test_a_flex_start_run_ends_when_it_said_it_would(cloud: Rehearsal) -> None:
    ask(cloud, provisioningModel="FLEX_START", runDuration={"maxRunDuration": "600s"})
    until(cloud, "ACTIVE")
    until(cloud, "SUSPENDED")


def test_a_node_is_stopped_and_started_and_one_of_several_hosts_is_not(cloud: Rehearsal) -> None:
    ask(cloud, size="v6e-16", provisioningModel="SPOT")
    until(cloud, "ACTIVE")
    url = f"{_V2}/{ZONE}/nodes/qr-node"
    assert len(cloud.rest.get(url).json()["networkEndpoints"]) == 4
    assert "more than one host" in message(cloud.rest.post(f"{url}:stop", json={}))


def test_a_zones_slices_and_quotas_are_two_things(cloud: Rehearsal) -> None:
    def types(zone: str) -> list[str]:
        answer = cloud.rest.get(f"{_V2}/{zone}/acceleratorTypes").json()
        return [item["type"] for item in answer["acceleratorTypes"]]

    assert "v6e-8" in types(ZONE)
    assert types("us-central1-a") == ["v3-8"]
    quota = cloud.rest.get(
        "https://cloudquotas.googleapis.com/v1/projects/vllm-rehearsal/locations/global/services/"
        "tpu.googleapis.com/quotaInfos/TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"
    ).json()
    zones = {item["dimensions"]["zone"] for item in quota["dimensionsInfos"]}
    assert {ZONE, "us-central1-a"} <= zones

"""Compute Engine as it is played: what it makes, refuses, keeps and forgets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.cloud.rehearsal import Json, Rehearsal, needs_gcloud

API = "https://compute.googleapis.com/compute/v1/projects/vllm-rehearsal"
ZONE = "us-west2-b"
AT = f"{API}/zones/{ZONE}"


def _disk(zone: str, name: str, **more: Any) -> Json:
    kind = f"zones/{zone}/diskTypes/pd-balanced"
    made = {"diskName": name, "diskSizeGb": "100", "diskType": kind}
    return {"initializeParams": made, "autoDelete": False} | more


def _machine(name: str = "t4", zone: str = ZONE, **changes: Any) -> Json:
    boot = _disk(zone, name, boot=True, autoDelete=True)
    gpu = f"zones/{zone}/acceleratorTypes/nvidia-tesla-t4"
    return {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/n1-standard-2",
        "guestAccelerators": [{"acceleratorType": gpu, "acceleratorCount": 1}],
        "scheduling": {"onHostMaintenance": "TERMINATE"},
        "disks": [boot, _disk(zone, f"{name}-data")],
    } | changes


def _insert(cloud: Rehearsal, body: Json, zone: str = ZONE) -> httpx.Response:
    return cloud.rest.post(f"{API}/zones/{zone}/instances", json=body)


def _done(cloud: Rehearsal, answer: httpx.Response) -> Json:
    """The operation that was answered, once it is over."""
    assert answer.status_code == 200, answer.text
    operation = answer.json()
    place = operation["selfLink"].partition("/projects/vllm-rehearsal/")[2]
    waited = cloud.rest.post(f"{API}/{place}/wait")
    assert waited.json()["status"] == "DONE"
    return dict(waited.json())


def _made(cloud: Rehearsal, **changes: Any) -> Json:
    assert "error" not in _done(cloud, _insert(cloud, _machine(**changes)))
    return dict(cloud.rest.get(f"{AT}/instances/t4").json())


def _there(cloud: Rehearsal) -> tuple[list[str], list[str]]:
    world = cloud.control("GET", "/world")
    return sorted(world["instances"]), sorted(world["disks"])


def _words(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


def test_a_machine_lives_and_its_data_disk_stays(cloud: Rehearsal) -> None:
    made = _made(cloud)
    assert made["status"] == "RUNNING"
    assert made["scheduling"]["provisioningModel"] == "STANDARD"
    assert "accessConfigs" not in made["networkInterfaces"][0]
    assert "login:" in cloud.rest.get(f"{AT}/instances/t4/serialPort").json()["contents"]
    assert _words(cloud.rest.delete(f"{AT}/disks/t4-data"))[0] == 400

    assert "error" not in _done(cloud, cloud.rest.post(f"{AT}/instances/t4/stop"))
    assert cloud.rest.get(f"{AT}/instances/t4").json()["status"] == "TERMINATED"
    assert "error" not in _done(cloud, cloud.rest.post(f"{AT}/instances/t4/start"))
    assert cloud.rest.get(f"{AT}/instances/t4").json()["status"] == "RUNNING"

    _done(cloud, cloud.rest.delete(f"{AT}/instances/t4"))
    assert cloud.rest.get(f"{AT}/instances/t4").status_code == 404
    assert _there(cloud) == ([], [f"{ZONE}/t4-data"])
    again = _machine()
    again["disks"][1] = {"source": f"zones/{ZONE}/disks/t4-data", "autoDelete": False}
    assert "error" not in _done(cloud, _insert(cloud, again))
    _done(cloud, cloud.rest.delete(f"{AT}/instances/t4"))
    _done(cloud, cloud.rest.delete(f"{AT}/disks/t4-data"))
    assert _there(cloud) == ([], [])


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"scheduling": {}}, 400, "do not support live migration"),
        ({"machineType": "x/n1-standard-3"}, 400, "does not exist in zone"),
        ({"machineType": "x/e2-standard-4"}, 400, "accelerators are not supported with"),
        ({"serviceAccounts": [{"email": "nobody@x"}]}, 400, "does not have access to service"),
        (
            {"guestAccelerators": [{"acceleratorType": "x/nvidia-tesla-z9"}]},
            404,
            "acceleratorTypes/nvidia-tesla-z9' was not found",
        ),
        ({"disks": [{"source": "x/disks/gone", "boot": True}]}, 404, "disks/gone' was not found"),
    ],
)
def test_what_is_asked_for_is_checked_before_anything_is_made(
    cloud: Rehearsal, changes: Json, code: int, words: str
) -> None:
    status, said = _words(_insert(cloud, _machine(**changes)))
    assert (status, words in said) == (code, True), said
    assert _there(cloud) == ([], [])


def test_a_zone_without_t4s_does_not_have_the_type(cloud: Rehearsal) -> None:
    # us-south1 has machines, and no T4 in any zone.
    status, said = _words(_insert(cloud, _machine(zone="us-south1-a"), "us-south1-a"))
    assert status == 404
    assert "acceleratorTypes/nvidia-tesla-t4" in said
    listed = cloud.rest.get(f"{API}/aggregated/acceleratorTypes").json()["items"]
    assert any(
        item["name"] == "nvidia-tesla-t4"
        for item in listed[f"zones/{ZONE}"]["acceleratorTypes"]
    )  # fmt: skip


def test_the_same_name_is_refused_and_nothing_changes(cloud: Rehearsal) -> None:
    made = _made(cloud)
    status, said = _words(_insert(cloud, _machine()))
    assert (status, "already exists" in said) == (409, True)
    assert cloud.rest.get(f"{AT}/instances/t4").json()["id"] == made["id"]


def test_a_second_gpu_is_over_the_quota_of_the_project(cloud: Rehearsal) -> None:
    _made(cloud)
    quotas = cloud.rest.get(API).json()["quotas"]
    [gpus] = [item for item in quotas if item["metric"] == "GPUS_ALL_REGIONS"]
    assert (gpus["limit"], gpus["usage"]) == (1, 1)
    status, said = _words(_insert(cloud, _machine(zone="us-central1-a"), "us-central1-a"))
    assert (status, said) == (403, "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 1.0 globally.")


def test_a_regional_quota_fails_the_operation(cloud: Rehearsal) -> None:
    with cloud.fault("gce-no-t4-quota"):
        failed = _done(cloud, _insert(cloud, _machine()))
    [error] = failed["error"]["errors"]
    assert error["code"] == "QUOTA_EXCEEDED"
    assert "NVIDIA_T4_GPUS" in error["message"]
    assert _there(cloud) == ([], [])


@pytest.mark.parametrize(
    ("leaves", "machines", "disks"),
    [("", [], []), ("disks", [], ["t4", "t4-data"]), ("machine", ["t4"], ["t4", "t4-data"])],
)
def test_a_stockout_fails_the_operation_and_may_leave_things(
    cloud: Rehearsal, leaves: str, machines: list[str], disks: list[str]
) -> None:
    with cloud.fault("gce-stockout", zone="us-west2-*", leaves=leaves):
        failed = _done(cloud, _insert(cloud, _machine()))
    [error] = failed["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert "does not have enough resources available to fulfill the request" in error["message"]
    assert _there(cloud) == (
        [f"{ZONE}/{name}" for name in machines],
        [f"{ZONE}/{name}" for name in disks],
    )


def test_hardware_may_be_gone_when_a_machine_is_started_again(cloud: Rehearsal) -> None:
    _made(cloud)
    _done(cloud, cloud.rest.post(f"{AT}/instances/t4/stop"))
    with cloud.fault("gce-stockout", times=1):
        assert "error" in _done(cloud, cloud.rest.post(f"{AT}/instances/t4/start"))
        assert cloud.rest.get(f"{AT}/instances/t4").json()["status"] == "TERMINATED"
        assert "error" not in _done(cloud, cloud.rest.post(f"{AT}/instances/t4/start"))


def test_google_takes_spot_machines_back_and_says_so(cloud: Rehearsal) -> None:
    spot = {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}
    _made(cloud, scheduling=spot)
    with cloud.fault("gce-preempted"):
        listed = cloud.rest.get(
            f"{AT}/operations", params={"filter": 'operationType="compute.instances.preempted"'}
        ).json()["items"]
        _done(cloud, httpx.Response(200, json=listed[0]))
    assert cloud.rest.get(f"{AT}/instances/t4").json()["status"] == "TERMINATED"
    assert _there(cloud)[1] == [f"{ZONE}/t4", f"{ZONE}/t4-data"]


def test_labels_and_metadata_change_only_with_the_print_they_were_read_with(
    cloud: Rehearsal,
) -> None:
    made = _made(cloud)
    labels = {"labels": {"a": "b"}, "labelFingerprint": "other"}
    assert _words(cloud.rest.post(f"{AT}/instances/t4/setLabels", json=labels))[0] == 412
    labels["labelFingerprint"] = made["labelFingerprint"]
    _done(cloud, cloud.rest.post(f"{AT}/instances/t4/setLabels", json=labels))
    items = [{"key": "k", "value": "v"}]
    metadata = {"items": items, "fingerprint": made["metadata"]["fingerprint"]}
    _done(cloud, cloud.rest.post(f"{AT}/instances/t4/setMetadata", json=metadata))
    changed = cloud.rest.get(f"{AT}/instances/t4").json()
    assert changed["labels"] == {"a": "b"}
    assert changed["metadata"]["items"] == items


def test_a_router_with_a_nat_and_a_firewall_rule(cloud: Rehearsal) -> None:
    routers = f"{API}/regions/us-west2/routers"
    network = "global/networks/default"
    _done(cloud, cloud.rest.post(routers, json={"name": "r", "network": network}))
    nat = {"name": "n", "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}
    _done(cloud, cloud.rest.patch(f"{routers}/r", json={"nats": [nat]}))
    [found] = cloud.rest.get(routers).json()["items"]
    assert found["nats"][0]["name"] == "n"
    rule = {
        "name": "iap",
        "network": network,
        "sourceRanges": ["35.235.240.0/20"],
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
    }
    _done(cloud, cloud.rest.post(f"{API}/global/firewalls", json=rule))
    assert cloud.rest.get(f"{API}/global/firewalls/iap").json()["direction"] == "INGRESS"
    _done(cloud, cloud.rest.delete(f"{API}/global/firewalls/iap"))
    _done(cloud, cloud.rest.delete(f"{routers}/r"))
    assert cloud.rest.get(f"{routers}/r").status_code == 404


def test_machine_types_of_tpus_are_there_where_tpus_are(cloud: Rehearsal) -> None:
    types = f"{API}/zones/{{}}/machineTypes/ct6e-standard-1t"
    assert cloud.rest.get(types.format("us-east5-a")).status_code == 200
    assert cloud.rest.get(types.format(ZONE)).status_code == 404


@needs_gcloud
def test_gcloud_says_that_there_is_nothing_where_it_may_not_look(cloud: Rehearsal) -> None:
    _made(cloud)
    assert len(json.loads(cloud.gcloud("compute", "instances", "list", "--format=json"))) == 1
    with cloud.fault(kind="deny", permission="compute.instances.list"):
        # Exit 0 and an empty list: never to be taken for "nothing is there".
        assert json.loads(cloud.gcloud("compute", "instances", "list", "--format=json")) == []
        refused = cloud.rest.get(f"{API}/aggregated/instances")
    assert refused.status_code == 403

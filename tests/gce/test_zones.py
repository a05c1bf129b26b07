"""Which zones a plan tries, and what decides: the request, a kept disk, quotas, what zones said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.clouds.zone_memory import ZoneMemory
from backends.core.errors import ConflictError, InvalidInputError, QuotaError
from backends.core.state import StateDir
from backends.gce.machines import Disk, Quota
from backends.gce.world import Limits, lets_iap_in, nat_regions
from backends.gce.zones import choose
from backends.knowledge import gce
from tests.gce.made import limits, request, world


@pytest.fixture
def memory(tmp_path: Path) -> ZoneMemory:
    """What zones said lately: nothing yet."""
    return ZoneMemory(StateDir(tmp_path), "gce-t4")


def kept(zone: str) -> Disk:
    """A data disk of an earlier deployment."""
    return Disk("t4-data", zone, 250, "pd-balanced", {"managed-by": "vllm-devops"}, (), "")


def test_the_references_zone_comes_first_then_the_cheapest(memory: ZoneMemory) -> None:
    zones = choose(request(zones=None), world(), memory).zones
    assert zones[:3] == ("us-west2-b", "us-west2-c", "us-central1-a")
    assert len(zones) == gce.MAX_ZONES


def test_zones_that_were_asked_for_keep_their_order_whatever_they_said(memory: ZoneMemory) -> None:
    memory.note("T4 on-demand", "us-east4-b", "stockout", "none")
    chosen = choose(request(zones=["us-east4-b", "us-west2-c"]), world(), memory)
    assert chosen.zones == ("us-east4-b", "us-west2-c")
    assert "us-east4-b: stockout 0 min ago; it is tried all the same." in chosen.warnings


def test_a_zone_that_had_none_lately_comes_last_and_only_for_what_it_was_asked(
    memory: ZoneMemory,
) -> None:
    memory.note("T4 on-demand", "us-west2-b", "stockout", "none")
    usual = choose(request(zones=None), world(), memory).zones
    assert "us-west2-b" not in usual[:3]
    spot = choose(request(zones=None, provisioning="spot"), world(), memory).zones
    assert spot[0] == "us-west2-b"


def test_regions_without_quota_are_left_out_and_named(memory: ZoneMemory) -> None:
    regions = dict(limits().by_region) | {"us-west2": {gce.GPU_QUOTA: Quota(1.0, 1.0)}}
    short = world(limits=Limits(Quota(2.0, 1.0), regions))
    chosen = choose(request(zones=None), short, memory)
    assert not any(zone.startswith("us-west2") for zone in chosen.zones)
    assert "Left out for want of quota: us-west2." in chosen.notes


def test_no_gpu_anywhere_is_said_before_anything_is_sent(memory: ZoneMemory) -> None:
    with pytest.raises(QuotaError) as refused:
        choose(request(zones=None), world(limits=limits(GPUS_ALL_REGIONS=0.0)), memory)
    assert "GPUS_ALL_REGIONS: 1 GPU needed, 0 allowed; request 1" in refused.value.message
    assert refused.value.details["quota"] == "GPUS_ALL_REGIONS"


def test_spot_counts_on_its_own_quota_where_there_is_one(memory: ZoneMemory) -> None:
    only_spot = limits(NVIDIA_T4_GPUS=0.0)
    assert choose(request(provisioning="spot"), world(limits=only_spot), memory).zones
    with pytest.raises(QuotaError, match="NVIDIA_T4_GPUS: 1 GPU needed"):
        choose(request(), world(limits=only_spot), memory)


def test_a_large_data_disk_is_held_against_the_disk_quota(memory: ZoneMemory) -> None:
    with pytest.raises(QuotaError, match="SSD_TOTAL_GB: 632 GB needed, 500 allowed"):
        choose(request(data_disk_gib=600), world(), memory)
    assert choose(request(data_disk_gib=600), world(kept=kept("us-west2-b")), memory).zones


def test_a_kept_disk_decides_the_zone(memory: ZoneMemory) -> None:
    there = world(kept=kept("us-east4-a"))
    assert choose(request(zones=None), there, memory).zones == ("us-east4-a",)
    with pytest.raises(ConflictError, match="in us-east4-a, which is not among"):
        choose(request(zones=["us-west2-b"]), there, memory)


def test_a_zone_that_sells_no_t4_is_refused_by_name(memory: ZoneMemory) -> None:
    with pytest.raises(InvalidInputError, match="us-south1-a does not sell"):
        choose(request(zones=["us-south1-a"]), world(), memory)


_IAP_ONLY = {
    "network": "global/networks/default",
    "direction": "INGRESS",
    "sourceRanges": ["35.235.240.0/20"],
    "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
}


@pytest.mark.parametrize(
    ("changes", "open_"),
    [
        ({}, True),
        ({"sourceRanges": ["0.0.0.0/0"]}, True),
        ({"sourceRanges": ["35.235.240.0/24"]}, False),
        ({"sourceRanges": ["::/0"]}, False),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["20-25"]}]}, True),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["80"]}]}, False),
        ({"allowed": [{"IPProtocol": "udp"}]}, False),
        ({"allowed": [{"IPProtocol": "all"}]}, True),
        ({"targetTags": ["vllm-devops", "other"]}, True),
        ({"targetTags": ["other"]}, False),
        ({"targetServiceAccounts": ["a@b"]}, False),
        ({"direction": "EGRESS"}, False),
        ({"disabled": True}, False),
        ({"network": "global/networks/other"}, False),
    ],
)
def test_a_rule_lets_iap_in_only_if_it_really_does(changes: dict[str, object], open_: bool) -> None:
    assert lets_iap_in([_IAP_ONLY | changes], "default") is open_


def test_a_region_has_a_nat_when_one_serves_its_subnets() -> None:
    nat = {"sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}
    routers: list[dict[str, Any]] = [
        {"region": "r/us-west2", "network": "n/default", "nats": [nat]},
        {"region": "r/us-east4", "network": "n/default", "nats": []},
        {"region": "r/us-east1", "network": "n/other", "nats": [nat]},
    ]
    assert nat_regions(routers, "default") == {"us-west2"}

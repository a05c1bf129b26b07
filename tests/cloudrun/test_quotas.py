"""Limits as Cloud Quotas gives them, and what is short of them."""

from __future__ import annotations

from typing import Any

import pytest

from backends.cloudrun.quotas import (
    Amount,
    Limits,
    could_use,
    limits_of,
    refuse_if_short,
    shortages,
    used,
)
from backends.core.errors import QuotaError
from backends.knowledge.cloudrun import CPU_QUOTA, L4, MEMORY_QUOTA, RTX6000, CloudRunProfile
from tests.cloudrun.made import service

pytestmark = pytest.mark.anyio

GIB = 2**30


class _Rest:
    def __init__(self, infos: dict[str, Any]) -> None:
        self.infos = infos

    async def get(self, url: str, what: str) -> dict[str, Any]:
        del what
        return {"dimensionsInfos": self.infos.get(url.rpartition("/")[2], [])}


class _Cloud:
    def __init__(self, infos: dict[str, Any]) -> None:
        self.rest = _Rest(infos)

    async def project(self) -> str:
        return "p"


def _entry(value: int, region: str | None = None, **more: Any) -> dict[str, Any]:
    dimensions = {} if region is None else {"dimensions": {"region": region}}
    return {"details": {"value": str(value)}} | dimensions | more


async def _limits(infos: dict[str, Any], profile: CloudRunProfile, region: str) -> Limits:
    return (await limits_of(_Cloud(infos), profile, [region]))[region]  # type: ignore[arg-type]


async def test_a_regions_own_limit_counts_before_the_general_one() -> None:
    infos = {
        L4.quota: [_entry(0), _entry(3, "us-east4")],
        CPU_QUOTA: [_entry(20_000)],
        MEMORY_QUOTA: [_entry(-1, "us-east4"), _entry(40 * GIB)],
    }
    limits = await _limits(infos, L4, "us-east4")
    assert (limits.gpus, limits.cpus, limits.memory_gib) == (3, 20, float("inf"))
    other = await _limits(infos, L4, "europe-west4")
    assert (other.gpus, other.cpus, other.memory_gib) == (0, 20, 40)


async def test_a_general_limit_that_does_not_apply_to_a_region_is_none_there() -> None:
    infos = {L4.quota: [_entry(3, applicableLocations=["us-east4"])]}
    assert (await _limits(infos, L4, "us-central1")).gpus is None
    assert (await _limits(infos, L4, "us-east4")).gpus == 3


async def test_a_gpu_quota_in_thousandths_is_read_as_gpus() -> None:
    limits = await _limits({RTX6000.quota: [_entry(2000, "us-central1")]}, RTX6000, "us-central1")
    assert limits.gpus == 2


def test_what_could_run_counts_and_not_what_runs() -> None:
    assert could_use(service(max_instances=3)) == Amount(3, 24, 96)
    assert could_use(service(max_instances=3, manual=1)) == Amount(1, 8, 32)
    others = [
        service(),
        service(gpu="nvidia-rtx-pro-6000", cpu=20, memory_gib=80),
        service(region="us-central1"),
    ]
    assert used(others, "us-east4", L4) == Amount(1, 28, 112)


def test_80_gib_asked_and_40_allowed_is_said_with_the_number_to_request() -> None:
    short = shortages(RTX6000, Limits(1, 20, 40), Amount(1, 20, 80), Amount())
    assert short == ["MemAllocPerProjectRegion: 80 GiB needed, 40 GiB allowed; request 85899345920"]
    with pytest.raises(QuotaError) as caught:
        refuse_if_short("cloudrun-rtx6000", "us-central1", short, what="1 x one RTX")
    assert caught.value.details["quota"] == "MemAllocPerProjectRegion"
    assert "max_instances" in caught.value.next_action


def test_a_quota_that_is_not_there_allows_nothing() -> None:
    short = shortages(L4, Limits(None, None, None), Amount(1, 8, 32), Amount())
    assert [item.partition(":")[0] for item in short] == [L4.quota, CPU_QUOTA, MEMORY_QUOTA]

"""The search for hardware keeps to its rule, whatever zones, networks and people do meanwhile."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.clouds.zone_memory import ZoneMemory
from backends.core.errors import (
    CapacityError,
    CloudError,
    ConflictError,
    PermissionDeniedError,
    UnavailableError,
)
from backends.core.state import StateDir
from backends.tpu import running
from backends.tpu import search as searching
from tests.tpu.fake_google import Google, Job, Target

A, B, C = "us-east5-a", "us-east5-b", "europe-west4-a"
NO_HARDWARE = (
    'INVALID_ARGUMENT: The requested accelerator configuration for accelerator type, "v6e-1", '
    f'could not be found in the zonal accelerator configurations for "{A}".'
)
FLEX_REFUSED = (
    'INVALID_ARGUMENT: FLEX_START provisioning model is not supported for accelerator type "v6e-1" '
    f'in location "{A}"'
)
QUOTA = "Quota limit 'TPUV6EPreemptiblePerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0"
FULL = "There is no more capacity in the zone"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_LOOK_EVERY_REHEARSAL_S", 0.0)
    monkeypatch.setattr(running, "LOOK_FOR_S", 0.0)
    monkeypatch.setattr(running, "_LOOK_EVERY_S", 0.0)


async def search(
    google: Google, folder: Path, *zones: str, wait_s: float = 0.0, adopt: str = "",
    job: Job | None = None,
) -> tuple[dict[str, Any], Target]:  # fmt: skip
    """Run a search; returns its result and the target."""
    target = Target(google, StateDir(folder))
    params = {
        "zones": list(zones),
        "zone_wait_s": wait_s,
        "digest": "abc",
        "plane": "tpu",
        "what": "v6e-1 flex-start",
        "adopt": adopt,
        "commands": {zone: shlex.join(["gcloud", "create", f"--zone={zone}"]) for zone in zones},
    }
    async with asyncio.timeout(10):
        result = await searching.search(target, "g", params, job or Job())  # type: ignore[arg-type]
    return result, target


async def test_it_moves_on_when_the_plans_time_in_a_zone_is_over(tmp_path: Path) -> None:
    google = Google({A: "WAITING_FOR_RESOURCES", B: ["ACCEPTED", "PROVISIONING", "ACTIVE"]})
    result, target = await search(google, tmp_path, A, B)
    assert (result["zone"], result["state"]) == (B, "ACTIVE")
    assert google.commands == [f"create {A}", f"delete {A}", f"create {B}"]
    assert google.most_alive == 1
    notes = ZoneMemory(target.state, "tpu-v6e").notes("v6e-1 flex-start")
    assert {zone: note.kind for zone, note in notes.items()} == {A: "waited", B: "got"}


async def test_in_the_last_zone_it_waits_on(tmp_path: Path) -> None:
    states = ["WAITING_FOR_RESOURCES"] * 50 + ["PROVISIONING", "ACTIVE"]
    google = Google({A: states})
    result, _ = await search(google, tmp_path, A)
    assert result["state"] == "ACTIVE"
    assert google.commands == [f"create {A}"]


async def test_a_request_that_was_chosen_is_never_given_up(tmp_path: Path) -> None:
    google = Google({A: ["PROVISIONING"] * 20 + ["ACTIVE"], B: "ACTIVE"})
    result, _ = await search(google, tmp_path, A, B)
    assert result["zone"] == A
    assert google.commands == [f"create {A}"]


async def test_one_that_is_chosen_while_it_is_being_deleted_is_kept(tmp_path: Path) -> None:
    google = Google({A: ["WAITING_FOR_RESOURCES"] * 2 + ["PROVISIONING", "ACTIVE"], B: "ACTIVE"})
    refusal = CloudError("refused", words="DeleteQueuedResource is not supported when state is X")
    google.refuses_delete[A] = (refusal, "PROVISIONING")
    result, _ = await search(google, tmp_path, A, B)
    assert (result["zone"], result["state"]) == (A, "ACTIVE")
    assert f"create {B}" not in google.commands


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (NO_HARDWARE, "no_hardware"),
        (FLEX_REFUSED, "model_refused"),
        (QUOTA, "quota"),
        (FULL, "stockout"),
    ],
)
async def test_a_zones_own_refusal_is_remembered_and_the_next_is_asked(
    tmp_path: Path, words: str, kind: str
) -> None:
    google = Google({A: CloudError("refused", words=words), B: "ACTIVE"})
    result, target = await search(google, tmp_path, A, B)
    assert result["zone"] == B
    notes = ZoneMemory(target.state, "tpu-v6e").notes("v6e-1 flex-start")
    assert notes[A].kind == kind
    assert google.commands == [f"create {A}", f"create {B}"]


async def test_a_refusal_that_no_zone_would_mend_ends_it(tmp_path: Path) -> None:
    google = Google({A: PermissionDeniedError("no", words="PERMISSION_DENIED"), B: "ACTIVE"})
    with pytest.raises(PermissionDeniedError):
        await search(google, tmp_path, A, B)
    assert google.commands == [f"create {A}"]


async def test_a_request_whose_answer_was_lost_is_found_and_not_made_twice(tmp_path: Path) -> None:
    google = Google({A: ["ACCEPTED", "ACTIVE"], B: "ACTIVE"}, lost={A})
    result, _ = await search(google, tmp_path, A, B)
    assert result["zone"] == A
    assert google.commands == [f"create {A}"]


async def test_a_lost_answer_with_nothing_behind_it_ends_the_search(tmp_path: Path) -> None:
    google = Google({A: UnavailableError("no answer"), B: "ACTIVE"})
    with pytest.raises(UnavailableError):
        await search(google, tmp_path, A, B)
    assert google.commands == [f"create {A}"]


async def test_a_failed_request_is_cleared_away_before_the_next_is_made(tmp_path: Path) -> None:
    google = Google({A: ["ACCEPTED", "FAILED"], B: "ACTIVE"})
    result, _ = await search(google, tmp_path, A, B, wait_s=100)
    assert result["zone"] == B
    assert google.commands == [f"create {A}", f"delete {A}", f"create {B}"]
    assert google.most_alive == 1


async def test_it_makes_no_second_beside_somebody_elses_request(tmp_path: Path) -> None:
    google = Google({A: "ACTIVE"})
    google.put(C, "WAITING_FOR_RESOURCES", digest="other")
    with pytest.raises(ConflictError, match="not made beside it"):
        await search(google, tmp_path, A)
    assert google.commands == []


async def test_it_never_deletes_a_request_that_it_did_not_make(tmp_path: Path) -> None:
    google = Google({A: "WAITING_FOR_RESOURCES", B: "ACTIVE"})

    def replaced(zones: Google) -> None:
        if A in zones.alive:
            labels = dict(zones.alive[A].labels) | {"vllm-devops-spec": "other"}
            zones.alive[A] = replace(zones.alive[A], labels=labels)

    job = Job()
    target_params = search(google, tmp_path, A, B, job=job)
    google.on_look = lambda zones: replaced(zones) if len(job.said) > 1 else None
    with pytest.raises(ConflictError, match="left alone"):
        await target_params
    assert google.commands == [f"create {A}"]
    assert A in google.alive


async def test_a_new_search_goes_on_with_the_request_that_waits(tmp_path: Path) -> None:
    google = Google({A: ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"], B: "ACTIVE"})
    google.put(A, "WAITING_FOR_RESOURCES")
    result, _ = await search(google, tmp_path, A, B, wait_s=100, adopt=A)
    assert result["zone"] == A
    assert google.commands == []


async def test_stopping_it_leaves_the_living_request_alone(tmp_path: Path) -> None:
    google = Google({A: "WAITING_FOR_RESOURCES", B: "ACTIVE"})
    job = Job()

    def stop(zones: Google) -> None:
        job.stopping = bool(zones.commands)

    google.on_look = stop
    result, _ = await search(google, tmp_path, A, B, wait_s=100, job=job)
    assert result["left"] == f"g@{A} (WAITING_FOR_RESOURCES)"
    assert google.commands == [f"create {A}"]
    assert A in google.alive


async def test_a_request_that_somebody_deletes_ends_the_search(tmp_path: Path) -> None:
    google = Google({A: "WAITING_FOR_RESOURCES", B: "ACTIVE"})

    looks = [0]

    def gone(zones: Google) -> None:
        looks[0] += 1
        if looks[0] > 3:
            zones.alive.pop(A, None)

    google.on_look = gone
    with pytest.raises(CloudError, match="somebody else deleted it"):
        await search(google, tmp_path, A, B, wait_s=100)
    assert google.commands == [f"create {A}"]


async def test_looks_that_fail_for_a_while_do_not_end_it(tmp_path: Path) -> None:
    google = Google({A: ["ACCEPTED", "WAITING_FOR_RESOURCES", "ACTIVE"]})
    left = [10]

    def fail(zones: Google) -> None:
        if zones.looks.get(A, 0) > 1 and left[0]:
            left[0] -= 1
            raise UnavailableError("503")

    google.on_look = fail
    result, _ = await search(google, tmp_path, A)
    assert result["state"] == "ACTIVE"


async def test_when_no_zone_gives_hardware_each_ones_word_is_told(tmp_path: Path) -> None:
    google = Google({A: CloudError("no", words=FULL), B: ["ACCEPTED", "FAILED"]})
    with pytest.raises(CapacityError) as caught:
        await search(google, tmp_path, A, B, wait_s=100)
    assert f"{A}: stockout" in caught.value.message
    assert f"{B}: failed" in caught.value.message
    assert google.alive == {}

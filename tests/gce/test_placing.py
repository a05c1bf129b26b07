"""Getting a machine: on to the next zone, nothing half-made left, in the rehearsal cloud over REST.

gcloud itself is played by a stub that sends what gcloud sends; tests/gce/test_life.py has the real.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from backends.base import Services
from backends.clouds.gcloud import Gcloud
from backends.clouds.google import GoogleCloud
from backends.clouds.google_errors import error_of
from backends.clouds.process import Argument
from backends.clouds.zone_memory import ZoneMemory
from backends.core.errors import (
    CapacityError,
    ConflictError,
    NotFoundError,
    OperationError,
    OutcomeUnknownError,
    QuotaError,
)
from backends.core.state import StateDir
from backends.gce.commands import create_argv
from backends.gce.machines import ComputeApi, Machine
from backends.gce.placing import Placer, Refusal
from backends.gce.spec import GceSpec
from tests.gce.made import PROJECT, request
from tests.support.clients import make_app
from tests.support.cloud import SPEED, Cloud

ZONES = ("us-west2-b", "us-west2-c", "us-central1-a")
_ACCOUNT = "424242424242-compute@developer.gserviceaccount.com"
_API = f"https://compute.googleapis.com/compute/v1/projects/{PROJECT}"


class SaysGcloud:
    """Sends what `gcloud compute instances create|delete` and `disks delete` send.

    Args:
        cloud: The project, for its REST access.
        spec: What is to be made.
        cut_off: Creates that get no answer although Google has taken them.
    """

    def __init__(self, cloud: GoogleCloud, spec: GceSpec, cut_off: int = 0) -> None:
        self._cloud, self._spec, self.cut_off = cloud, spec, cut_off
        self.said: list[str] = []
        self.then: Callable[[], None] = lambda: None

    async def run(self, argv: Sequence[Argument], **_: Any) -> str:
        """Run one of the three commands."""
        words = [str(item) for item in argv]
        flags = dict(item.removeprefix("--").partition("=")[::2] for item in words[5:])
        kind, verb, name = words[2], words[3], words[4]
        self.said.append(f"{verb} {name} in {flags['zone']}")
        place = f"{_API}/zones/{flags['zone']}/{kind}"
        if verb == "create":
            answer = await self._send("POST", place, self._body(name, flags))
            self.then()
            if self.cut_off > 0:
                self.cut_off -= 1
                raise OutcomeUnknownError("gcloud did not finish.")
            return json.dumps([answer])
        answer = await self._send("DELETE", f"{place}/{name}")
        done = await self._send(
            "POST", f"{_API}/zones/{flags['zone']}/operations/{answer['name']}/wait"
        )
        assert done["status"] == "DONE"
        disk = f"{_API}/zones/{flags['zone']}/disks/{name}-data"
        if flags.get("delete-disks") == "all":
            await self._send("DELETE", disk)
        return "[]"

    async def _send(self, method: str, url: str, body: Any = None) -> dict[str, Any]:
        import httpx

        env = await self._cloud.env()
        token = await self._cloud.login.access_token()
        async with httpx.AsyncClient(
            proxy=env["HTTPS_PROXY"], verify=_trust(env["SSL_CERT_FILE"]), trust_env=False
        ) as http:
            answer = await http.request(
                method, url, json=body, headers={"authorization": f"Bearer {token}"}
            )
        if answer.status_code >= 300:
            message = answer.json()["error"]["message"]
            raise error_of(f"Could not fetch resource:\n - {message}", "gcloud compute")
        return dict(answer.json())

    def _body(self, name: str, flags: dict[str, str]) -> dict[str, Any]:
        zone = f"{_API}/zones/{flags['zone']}"
        data: dict[str, Any] = {"deviceName": "vllm-data", "autoDelete": False}
        if "disk" in flags:
            data["source"] = f"{zone}/disks/{name}-data"
        else:
            data["initializeParams"] = {
                "diskName": f"{name}-data",
                "diskSizeGb": str(self._spec.data_disk_gib),
                "diskType": f"{zone}/diskTypes/pd-balanced",
            }
        labels = dict(item.split("=") for item in flags["labels"].split(","))
        return {
            "name": name,
            "machineType": f"{zone}/machineTypes/{flags['machine-type']}",
            "guestAccelerators": [
                {"acceleratorType": f"{zone}/acceleratorTypes/nvidia-tesla-t4",
                 "acceleratorCount": 1}
            ],
            "scheduling": {"onHostMaintenance": flags["maintenance-policy"]},
            "labels": labels,
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": {}}, data],
        }  # fmt: skip


def _trust(file: str) -> Any:
    import ssl

    return ssl.create_default_context(cafile=file)


class Ground:
    """A placer in the rehearsal, and what is left in it.

    Args:
        cloud: The rehearsal cloud.
        folder: For what zones said.
    """

    def __init__(self, cloud: Cloud, folder: Path) -> None:
        app = make_app(cloud.state_dir, rehearsal=True, targets=("gce-t4",))
        services: Services = app.backends.get("gce-t4").services
        self.cloud, self.google = cloud, GoogleCloud(services)
        self.spec = request(zones=list(ZONES))
        self.gcloud = SaysGcloud(self.google, self.spec)
        self.google.gcloud = cast("Gcloud", self.gcloud)
        self.api = ComputeApi(self.google)
        self.memory = ZoneMemory(StateDir(folder), "gce-t4")
        self.heard: list[str] = []
        self.stop = False

    async def place(self, *, kept_disk: bool = False) -> tuple[Machine, list[Refusal]]:
        """Ask the zones in order."""
        creates = {
            zone: create_argv(self.spec, PROJECT, zone, _ACCOUNT, old_disk=kept_disk)
            for zone in ZONES
        }
        return await Placer(self.google, self.api, self.memory, look_every_s=0.02).place(
            "t4", self.spec.wanted, creates, kept_disk=kept_disk, said=self.heard.append,
            should_stop=lambda: self.stop,
        )  # fmt: skip

    def left(self) -> tuple[list[str], list[str]]:
        """Machines and disks that are there."""
        world = self.cloud.world()
        return sorted(world["instances"]), sorted(world["disks"])


@pytest.fixture
async def ground(cloud: Cloud, tmp_path: Path) -> Ground:
    """A placer with a login of its own."""
    made = Ground(cloud, tmp_path)
    real = GoogleCloud(make_app(cloud.state_dir, rehearsal=True).backends.get("gce-t4").services)
    made.google.login = real.login
    made.google.rest = real.rest
    return made


async def test_a_zone_without_hardware_is_passed_remembered_and_left_clean(ground: Ground) -> None:
    ground.cloud.fault("gce-stockout", zone="us-west2-*")
    machine, refusals = await ground.place()
    assert machine.zone == "us-central1-a"
    assert machine.status == "RUNNING"
    assert [item.zone for item in refusals] == ["us-west2-b", "us-west2-c"]
    assert ground.heard[-1] == "creating: asking us-central1-a for a T4 (3 of 3)"
    kinds = {zone: note.kind for zone, note in ground.memory.notes("T4 on-demand").items()}
    assert kinds == {"us-west2-b": "stockout", "us-west2-c": "stockout", "us-central1-a": "got"}
    assert ground.left() == (
        ["us-central1-a/t4"],
        ["us-central1-a/t4", "us-central1-a/t4-data"],
    )


async def test_no_zone_has_any_and_each_is_named_with_its_words(ground: Ground) -> None:
    ground.cloud.fault("gce-stockout")
    with pytest.raises(CapacityError) as refused:
        await ground.place()
    assert "us-central1-a: out of stock" in refused.value.message
    assert "Nothing was left behind" in refused.value.message
    assert refused.value.words.count("does not have enough resources available") == 3
    assert "tries the plan's other zones" in refused.value.next_action
    assert ground.left() == ([], [])


@pytest.mark.parametrize("leaves", ["disks", "machine"])
async def test_what_a_refused_request_leaves_behind_is_deleted(ground: Ground, leaves: str) -> None:
    ground.cloud.fault("gce-stockout", zone="us-west2-b", leaves=leaves)
    machine, _ = await ground.place()
    assert machine.zone == "us-west2-c"
    assert ground.left() == (["us-west2-c/t4"], ["us-west2-c/t4", "us-west2-c/t4-data"])
    assert any(said.startswith("delete t4") for said in ground.gcloud.said)


async def test_a_data_disk_that_was_there_before_survives_a_refusal(ground: Ground) -> None:
    machine, _ = await ground.place()
    await ground.gcloud.run(["gcloud", "compute", "instances", "delete", "t4",
                             f"--zone={machine.zone}"])  # fmt: skip
    assert ground.left()[1] == ["us-west2-b/t4-data"]
    ground.cloud.fault("gce-stockout", zone="us-west2-b", leaves="machine")
    with pytest.raises(NotFoundError):
        # The other zones have no such disk, and say so.
        await ground.place(kept_disk=True)
    assert ground.left() == ([], ["us-west2-b/t4-data"])


async def test_a_create_that_got_no_answer_is_found_by_its_label_and_not_doubled(
    ground: Ground,
) -> None:
    ground.gcloud.cut_off = 1
    machine, _ = await ground.place()
    assert machine.zone == "us-west2-b"
    assert [said for said in ground.gcloud.said if said.startswith("create")] == [
        "create t4 in us-west2-b"
    ]


async def test_a_machine_of_somebody_else_in_the_way_is_not_touched(ground: Ground) -> None:
    await ground.place()
    ground.spec = request(zones=list(ZONES), max_model_len=4096)
    ground.gcloud.said.clear()
    with pytest.raises(ConflictError):
        await ground.place()
    assert ground.left()[0] == ["us-west2-b/t4"]
    assert not any(said.startswith("delete") for said in ground.gcloud.said)


@pytest.mark.parametrize(("region", "zone"), [("us-west2", "us-central1-a"), ("*", None)])
async def test_a_regional_quota_sends_on_to_another_region(
    ground: Ground, region: str, zone: str | None
) -> None:
    ground.cloud.fault(kind="compute-quota", region=region, metric="NVIDIA_T4_GPUS", value=0)
    if zone is None:
        with pytest.raises(QuotaError, match="No zone could give"):
            await ground.place()
        return
    assert (await ground.place())[0].zone == zone


async def test_a_project_without_any_gpu_is_not_asked_again_in_the_next_zone(
    ground: Ground,
) -> None:
    ground.cloud.fault("gce-no-gpus")
    with pytest.raises(QuotaError) as refused:
        await ground.place()
    assert "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally." in refused.value.words
    assert "request GPUS_ALL_REGIONS" in refused.value.next_action
    assert ground.gcloud.said == ["create t4 in us-west2-b"]


async def test_a_wish_to_stop_ends_before_the_next_zone_and_between_looks(ground: Ground) -> None:
    ground.stop = True
    with pytest.raises(OperationError, match="was cancelled"):
        await ground.place()
    assert ground.gcloud.said == []
    ground.stop = False
    ground.gcloud.then = lambda: setattr(ground, "stop", True)
    ground.cloud.control("POST", "/settings", {"speed": 20})
    try:
        with pytest.raises(OperationError, match="was cancelled"):
            await ground.place()
    finally:
        ground.cloud.control("POST", "/settings", {"speed": SPEED})
    assert ground.left() == ([], [])

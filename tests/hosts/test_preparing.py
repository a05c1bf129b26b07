"""Preparing a machine: the real program on a played machine, cut off and broken in every way."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from backends.clouds.hosts import GceHost, Host, preparing
from backends.clouds.hosts.preparing import HostOptions, Prepared
from backends.core.errors import StepFailedError
from backends.rehearsal.cloud.hosts.machine import Machine
from backends.serving.on_host import packages
from backends.serving.on_host.settings import GPU_STEPS, Settings
from tests.hosts.conftest import Grounds

DISK = "/dev/disk/by-id/google-t4-data"
SETTINGS: dict[str, Any] = {"data_device": DISK}


async def prepared(
    host: Host, settings: Mapping[str, Any] = SETTINGS, told: list[dict[str, Any]] | None = None
) -> Prepared:
    """Prepare, looking often."""
    seen = told if told is not None else []
    return await preparing.prepare(host, settings, seen.append, every_s=0.25)


async def up(host: GceHost) -> GceHost:
    """The host once it answers."""
    await host.wait_until_up(timeout_s=20, every_s=0.1)
    return host


def end_state(machine: Machine) -> dict[str, Any]:
    """What a preparation leaves, as far as it may not depend on how it came about."""
    state = machine.read()
    kernel = "mnt/data/pyuser/lib/*/site-packages/vllm/v1/attention/ops/*unified*.py"
    return {
        "packages": state["packages"],
        "mounts": state["mounts"],
        "swaps": state["swaps"],
        "driver": state["driver_loaded"],
        "units": {name for name, unit in state["units"].items() if unit.get("enabled")},
        "unit_files": sorted(p.name for p in machine.at("/etc/systemd/system").iterdir()),
        "kernel": [path.read_text() for path in machine.root.glob(kernel)],
        "fstab": machine.at("/etc/fstab").read_text(),
    }


async def test_a_bare_machine_is_prepared_and_a_second_time_nothing_is_done(
    grounds: Grounds,
) -> None:
    machine = grounds.boot()
    host = grounds.host()
    looked = await preparing.look(await up(host), SETTINGS)
    assert {step["state"] for step in looked.steps} == {"would_change", "failed"}
    assert not machine.read()["mounts"]
    told: list[dict[str, Any]] = []
    first = await prepared(host, SETTINGS, told)
    assert first.ok, first.words()
    assert [step["step"] for step in first.steps] == [*GPU_STEPS[:-1]]
    assert first.restarts == 1
    assert [step["step"] for step in first.steps if step["state"] == "checked"] == ["cuda"]
    assert any(event.get("event") == "reboot" for event in told)
    after = end_state(machine)
    assert after["driver"]
    assert after["units"] == set()
    assert after["unit_files"] == []
    assert "Turing shared-memory clamp" in after["kernel"][0]
    again = await prepared(host)
    assert again.ok
    assert {step["state"] for step in again.steps} == {"checked"}
    assert (again.restarts, end_state(machine)) == (0, after)


async def test_cut_off_and_begun_again_at_every_step_it_ends_in_the_same_state(
    grounds: Grounds,
) -> None:
    """We die and the connection drops at every step, and the machine's job at every third."""
    machine = grounds.boot()
    settings = SETTINGS | {"fstab": True, "unit": True}
    cut: set[str] = set()
    disks = set()
    resumed = 0

    class Cut(Exception):  # noqa: N818
        """Our side is no more."""

    def tell(report: dict[str, Any]) -> None:
        step = report.get("step")
        if report.get("event") == "step" and step not in cut:
            cut.add(str(step))
            raise Cut

    for attempt in range(40):
        host = grounds.host()
        try:
            found = await preparing.prepare(host, settings, tell, every_s=0.3)
        except Cut:
            grounds.fault("drop", command="begun|bash")
            if attempt % 3 == 2:
                await host.end_job("prepare", patience_s=0)
            disks.add(machine.read()["disks"][0]["uuid"])
            continue
        resumed += found.resumed
        break
    else:
        pytest.fail("it never came to an end")
    assert found.ok, found.words()
    assert cut == {*GPU_STEPS}
    assert len(disks - {None}) == 1
    last = end_state(machine)
    assert last["units"] == {"vllm-devops-serve"}
    assert last["unit_files"] == ["vllm-devops-serve.service"]
    assert len(last["fstab"].splitlines()) == 3


async def test_a_preparation_under_way_is_joined_not_begun_again(grounds: Grounds) -> None:
    machine = grounds.ready(vllm="")
    steps = SETTINGS | {"steps": ["data_disk", "vllm"]}
    host = await up(grounds.host())
    grounds.slow_down(60.0)
    first = asyncio.create_task(prepared(grounds.host(), steps))
    while (await host.job("prepare")).state != "running":  # noqa: ASYNC110 (another process)
        await asyncio.sleep(0.02)
    second = await prepared(host, steps)
    assert second.ok
    assert second.resumed
    assert (await first).ok
    log = machine.home.joinpath(".vllm-devops/jobs/prepare/log").read_text()
    assert log.count("Collecting vllm") == 1


async def test_a_stop_ends_the_work_on_the_machine_too(grounds: Grounds) -> None:
    machine = grounds.ready(vllm="")
    host = await up(grounds.host())
    grounds.slow_down(5.0)
    wanted = False

    def tell(report: dict[str, Any]) -> None:
        nonlocal wanted
        wanted = wanted or report.get("step") == "vllm"

    found = await preparing.prepare(
        host,
        SETTINGS | {"steps": ["vllm"]},
        tell,
        should_stop=lambda: wanted,
        every_s=0.05,
    )
    assert not found.ok
    assert (await host.job("prepare")).state != "running"
    assert not await preparing.under_way(host)
    # What it was running has ended with it: nothing is installed behind our back.
    played = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"-m\0pip" in _bytes(path) and str(machine.folder).encode() in _bytes(path)
    ]
    assert played == []


def _bytes(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


# ----------------------------------------------------------------------------- what can go wrong

FAILURES: list[tuple[str, dict[str, Any], list[str], str, str]] = [
    # (fault, settings, steps, kind, words somewhere in the error)
    ("disk-full", {}, ["vllm"], "no_space", "No space left on device"),
    ("no-sm75", {"upgrade": True}, ["vllm", "cuda"], "no_kernel", "no code for sm_75"),
    ("torch-cpu", {"upgrade": True}, ["vllm"], "no_cuda", "extra_index_url"),
    ("no-cudart", {"upgrade": True}, ["vllm", "cuda"], "no_cuda", "libcudart.so.13"),
    ("pip-network", {"upgrade": True}, ["vllm"], "command_failed", "Could not find a version"),
    ("kernel-moved", {"upgrade": True}, ["vllm", "cuda", "clamp"], "no_anchors", "not changed"),
]


@pytest.mark.parametrize(
    ("fault", "settings", "steps", "kind", "words"), FAILURES, ids=[row[0] for row in FAILURES]
)
async def test_what_goes_wrong_with_vllm_is_named_with_its_words(
    grounds: Grounds,
    fault: str,
    settings: dict[str, Any],
    steps: list[str],
    kind: str,
    words: str,
) -> None:
    grounds.ready(vllm="0.29.0" if settings else "")
    host = grounds.inside()
    grounds.fault(fault)
    found = await prepared(host, SETTINGS | settings | {"steps": steps})
    assert found.failed is not None
    assert found.failed["kind"] == kind
    with pytest.raises(StepFailedError) as error:
        found.raise_if_failed("t4")
    told = error.value
    assert words in " ".join([told.message, told.words, told.cause, told.next_action])
    assert told.next_action


async def test_a_disk_that_is_not_blank_is_never_formatted(grounds: Grounds) -> None:
    machine = grounds.boot()
    with machine.change() as state:
        state["disks"][0]["foreign"] = True
    found = await prepared(grounds.inside(), SETTINGS | {"steps": ["data_disk"]})
    assert found.failed is not None
    assert found.failed["kind"] == "not_blank"
    assert "crypto_LUKS" in found.failed["words"]
    assert machine.read()["disks"][0]["fs"] is None


async def test_a_disk_that_is_missing_or_too_small_is_named(grounds: Grounds) -> None:
    grounds.boot(disks=[{"name": "t4-data", "size_gb": 12}])
    host = grounds.inside()
    missing = {"data_device": "/dev/disk/by-id/google-other", "steps": ["data_disk"]}
    found = await prepared(host, missing)
    assert found.failed is not None
    assert found.failed["kind"] == "no_disk"
    small = await prepared(host, SETTINGS | {"steps": ["data_disk", "swap"]})
    assert small.failed is not None
    assert small.failed["kind"] == "no_space"
    assert "10.8 GiB free; the swap file needs 16" in small.failed["error"]


async def test_a_kept_disk_is_mounted_with_what_is_on_it(grounds: Grounds) -> None:
    machine = grounds.boot()
    steps = SETTINGS | {"steps": ["data_disk"]}
    host = await up(grounds.host())
    assert (await prepared(host, steps)).ok
    (machine.at("/mnt/data") / "weights").write_text("10 GB")
    await host.close()
    grounds.farm.remove("gce", "us-west2-b", "t4")
    machine = grounds.boot(instance_id="4242")
    grounds.variables["KNOWN"] += "-of-the-new-machine"
    found = await prepared(await up(grounds.host()), steps)
    assert found.steps[0]["did"] == [f"mounted it at {Settings({}).data_folder}"]
    assert (machine.at("/mnt/data") / "weights").read_text() == "10 GB"


async def test_a_full_tmp_does_not_matter_and_is_said(grounds: Grounds) -> None:
    grounds.ready(vllm="")
    host = grounds.inside()
    grounds.fault("tmp-full", times=-1)
    found = await prepared(host, SETTINGS | {"steps": ["space", "vllm"]})
    assert found.ok, found.words()
    assert found.steps[0]["facts"]["free_gib /tmp"] == 0


async def test_a_driver_missing_after_the_restart_is_named_with_what_dkms_says(
    grounds: Grounds,
) -> None:
    grounds.ready()
    with grounds.machine.change() as state:
        del state["packages"]["nvidia-driver"]
        state["driver_loaded"] = False
    host = await up(grounds.host())
    grounds.fault("driver-missing")
    grounds.fault("dkms")
    found = await prepared(host, SETTINGS | {"steps": ["data_disk", "driver"]})
    assert found.failed is not None
    assert found.failed["kind"] == "driver_missing"
    assert "dkms status: nvidia/615.71.09" in found.failed["words"]
    assert found.restarts == 2


async def test_a_module_of_another_kernel_is_built_again(grounds: Grounds) -> None:
    grounds.ready()
    with grounds.machine.change() as state:
        state["driver_loaded"] = False
        state["driver_broken"] = True
    found = await prepared(
        await up(grounds.host()), SETTINGS | {"steps": ["data_disk", "headers", "driver"]}
    )
    assert found.ok, found.words()
    assert found.restarts == 1
    assert grounds.machine.read()["driver_loaded"]


async def test_a_restart_that_is_not_wanted_is_refused(grounds: Grounds) -> None:
    grounds.ready()
    with grounds.machine.change() as state:
        del state["packages"]["nvidia-driver"]
        state["driver_loaded"] = False
    settings = SETTINGS | {"steps": ["driver"], "may_reboot": False}
    found = await prepared(grounds.inside(), settings)
    assert found.failed is not None
    assert (found.failed["kind"], found.restarts) == ("reboot_needed", 0)


async def test_package_lists_that_are_locked_or_out_of_reach_are_named(grounds: Grounds) -> None:
    grounds.boot()
    host = grounds.inside()
    grounds.fault("apt-locked")
    locked = await prepared(host, {"steps": ["headers"]})
    assert locked.failed is not None
    assert "held by process 812" in locked.failed["words"]
    grounds.fault("download")
    unreached = await prepared(host, {"steps": ["driver"]})
    assert unreached.failed is not None
    assert "Fetching NVIDIA's keyring" in unreached.failed["error"]


async def test_an_old_vllm_is_upgraded_and_clamped_again(grounds: Grounds) -> None:
    grounds.ready(vllm="0.26.0")
    found = await prepared(grounds.inside(), SETTINGS | {"steps": ["vllm", "cuda", "clamp"]})
    assert found.ok
    assert [step["state"] for step in found.steps] == ["changed", "checked", "changed"]
    assert "vllm 0.29.0" in found.steps[0]["did"][0]


async def test_what_does_not_fit_the_gpu_is_installed_anew_by_an_upgrade(grounds: Grounds) -> None:
    grounds.ready(vllm="")
    host = grounds.inside()
    steps = SETTINGS | {"steps": ["vllm", "cuda"]}
    grounds.fault("no-sm75")
    assert not (await prepared(host, steps)).ok
    still = await prepared(host, steps)
    assert [step["state"] for step in still.steps] == ["checked", "failed"]
    assert "upgrade=true" in still.steps[1]["next_action"]
    found = await prepared(host, steps | {"upgrade": True})
    assert [step["state"] for step in found.steps] == ["changed", "checked"]


async def test_a_container_machine_gets_docker_and_its_image(grounds: Grounds) -> None:
    grounds.boot()
    settings = {"steps": ["docker", "image"], "image": "vllm/vllm-tpu:nightly"}
    host = grounds.inside()
    grounds.fault("pull", times=1)
    full = await prepared(host, settings)
    assert full.failed is not None
    assert full.failed["kind"] == "no_space"
    found = await prepared(host, settings)
    assert found.ok
    assert grounds.machine.read()["images"] == ["vllm/vllm-tpu:nightly"]


async def test_settings_nobody_knows_are_refused_on_the_machine(grounds: Grounds) -> None:
    grounds.boot()
    found = await prepared(grounds.inside(), {"swap_gb": 3})
    assert not found.ok
    assert found.failed is not None
    assert "swap_gb" in found.failed["error"]


def test_every_option_of_the_tool_is_a_setting_of_the_machine() -> None:
    chosen = HostOptions().model_dump()
    assert vars(Settings(chosen)).items() >= chosen.items()
    json.dumps(chosen)


@pytest.mark.parametrize(
    ("version", "requirement", "good"),
    [
        ("0.29.0", "vllm>=0.27.2", True),
        ("0.27.2rc0", "vllm>=0.27.2", True),
        ("0.26.0", "vllm>=0.27.2", False),
        ("0.29.0+cu130", "vllm==0.29.0", True),
        ("0.29.1", "vllm==0.29.0", False),
        ("0.29.1", "vllm", True),
    ],
)
def test_a_version_satisfies_a_requirement(version: str, requirement: str, good: bool) -> None:
    assert packages.satisfies(version, requirement) is good


@pytest.mark.parametrize(
    ("arches", "good"),
    [
        (["sm_75", "sm_80"], True),
        (["sm_70", "sm_80"], True),
        (["sm_80", "sm_90"], False),
        (["compute_70"], True),
        (["compute_80"], False),
        ([], False),
    ],
)
def test_wheels_cover_a_t4_by_its_generation_or_by_what_can_be_compiled(
    arches: list[str], good: bool
) -> None:
    assert packages.covers(arches, (7, 5)) is good

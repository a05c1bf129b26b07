"""Starting and stopping the engine on a machine: the real program, with the simulator as vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import replace

import pytest

from backends.clouds.hosts import Host, serving
from backends.clouds.hosts.program import install
from backends.clouds.hosts.serving import Engine, Launch
from backends.core.errors import EngineError
from backends.rehearsal.cloud.hosts import pip
from backends.rehearsal.cloud.hosts.machine import Machine
from tests.hosts.conftest import Grounds
from tests.hosts.test_preparing import SETTINGS, up

LAUNCH = Launch(
    argv=(
        *("-m", "vllm.entrypoints.openai.api_server", "--model", "google/gemma-4-E2B-it"),
        *("--dtype", "float16", "--host", "127.0.0.1", "--port", "8000"),
    ),
    port=8000,
    settings=SETTINGS,
)


async def settled(host: Host, within_s: float = 60) -> Engine:
    """The engine once it is neither starting nor absent."""
    until = time.monotonic() + within_s
    while True:
        engine = await serving.status(host)
        if engine.state not in {"starting", "absent"}:
            return engine
        assert time.monotonic() < until, engine
        await asyncio.sleep(0.2)


def unclamped(machine: Machine) -> bool:
    """Whether the installed kernel has no clamp."""
    [kernel] = machine.root.glob(
        "mnt/data/pyuser/lib/*/site-packages/vllm/v1/attention/ops/*unified*.py"
    )
    return "Turing" not in kernel.read_text()


async def test_the_engine_starts_is_watched_and_stops_with_the_memory_free(
    grounds: Grounds,
) -> None:
    machine = grounds.ready()
    host = grounds.inside()
    assert (await serving.status(host)).state == "absent"
    done = await serving.start(host, LAUNCH, secrets={"HF_TOKEN": "hf_never_written"})
    assert [line.partition(":")[0] for line in done[:-1]] == list(serving.GUARDS)
    assert "clamped" in done[3]
    assert "launched" in done[-1]
    again = await serving.start(host, LAUNCH)
    assert again == [again[0]]
    assert "already running" in again[0]
    ready = await settled(host)
    assert ready.state == "ready"
    assert ready.facts["vram_mib"] == 13_371
    assert ready.vram[0][0] < ready.vram[-1][0]
    assert ready.vram[-1][1] == 13_371
    log = await host.read(serving.ENGINE_LOG)
    assert b"Application startup complete" in log
    facts = await serving.facts(host)
    assert facts["gpu"]["throttled_by"] == "power cap"
    assert facts["gpu"]["memory_used_mib"] == 13_371
    assert facts["free_gib"]["/mnt/data"] == 225
    assert facts["memory_gib"] == 7.5
    assert facts["swap_gib"] == 16
    text, free = await serving.stop(host)
    assert free
    assert "went from 13371 to 0 MiB" in text
    assert (await serving.status(host)).facts["reason"] == "stopped"
    assert await serving.stop(host) == ("it was not running", True)
    for path in machine.folder.rglob("*"):
        if path.is_file() and path.stat().st_size < 10**6:
            assert b"hf_never_written" not in path.read_bytes(), path


async def test_after_a_restart_one_call_brings_it_back(grounds: Grounds) -> None:
    machine = grounds.ready()
    host = await up(grounds.host())
    await serving.start(host, LAUNCH)
    assert (await settled(host)).state == "ready"
    machine.reboot()
    await up(host)
    gone = await serving.status(host)
    assert (gone.state, gone.facts["reason"]) == ("stopped", "machine_restarted")
    done = await serving.start(host, None)
    assert "mounted" in done[0]
    assert "switched it on" in done[1]
    assert (await settled(host)).state == "ready"


async def test_with_the_unit_it_comes_back_by_itself(grounds: Grounds) -> None:
    from backends.clouds.hosts import preparing

    machine = grounds.ready()
    host = await up(grounds.host())
    settings = SETTINGS | {"unit": True, "steps": ["unit"]}
    assert (await preparing.prepare(host, settings, lambda _: None, every_s=0.1)).ok
    await serving.start(host, replace(LAUNCH, settings=SETTINGS | {"unit": True}))
    machine.reboot()
    await up(host)
    until = time.monotonic() + 60
    while (await serving.status(host)).state != "ready":
        assert time.monotonic() < until
        await asyncio.sleep(0.3)


async def test_a_unit_that_was_stopped_by_hand_is_told_from_one_whose_start_is_still_to_come(
    grounds: Grounds,
) -> None:
    from backends.clouds.hosts import preparing

    machine = grounds.ready()
    host = grounds.inside()
    settings = SETTINGS | {"unit": True, "steps": ["unit"]}
    assert (await preparing.prepare(host, settings, lambda _: None, every_s=0.1)).ok
    await serving.start(host, replace(LAUNCH, settings=SETTINGS | {"unit": True}))
    with machine.change() as state:
        state["speed"] = 5.0  # so that there is a time between the boot and the unit's start
    machine.reboot()
    coming = await serving.status(host)
    assert (coming.facts["reason"], coming.facts["unit"]) == ("machine_restarted", "queued")
    await host.run(["sudo", "systemctl", "stop", "vllm-devops-serve"], timeout_s=20)
    stopped = await serving.status(host)
    assert (stopped.state, stopped.facts["unit"]) == ("stopped", "inactive")


async def test_a_clamp_that_an_upgrade_took_away_is_put_back(grounds: Grounds) -> None:
    machine = grounds.ready()
    host = grounds.inside()
    guards = replace(LAUNCH, guards=("clamp",))
    await serving.start(host, guards)
    assert not unclamped(machine)
    await serving.stop(host)
    pip.install(machine, "0.30.0", machine.at("/mnt/data/pyuser"))
    assert unclamped(machine)
    done = await serving.start(host, guards)
    assert "an upgrade had taken it away" in done[0]
    assert not unclamped(machine)


async def test_without_a_clamp_it_dies_as_on_a_t4(grounds: Grounds) -> None:
    grounds.ready()
    host = grounds.inside()
    try:
        await serving.start(host, replace(LAUNCH, guards=()))
    except EngineError as error:
        words = error.words
    else:
        engine = await settled(host)
        assert engine.state == "failed"
        words = "\n".join(engine.last_lines)
    assert "Required: 98304, Hardware limit: 65536" in words


async def test_a_kernel_that_cannot_be_clamped_is_not_started(grounds: Grounds) -> None:
    machine = grounds.ready(vllm="")
    grounds.fault("kernel-moved")
    pip.install(machine, "0.31.0", machine.at("/mnt/data/pyuser"))
    with pytest.raises(EngineError, match="not built as expected") as error:
        await serving.start(grounds.inside(), LAUNCH)
    assert error.value.details["kind"] == "no_anchors"
    assert (await serving.status(grounds.inside())).state == "absent"


async def test_an_out_of_memory_kill_is_read_from_the_kernels_log(grounds: Grounds) -> None:
    machine = grounds.ready()
    with machine.change() as state:
        state["swaps"] = {}
    host = grounds.inside()
    with contextlib.suppress(EngineError):  # it may be gone before the start has ended
        await serving.start(host, replace(LAUNCH, guards=("clamp",)))
    engine = await settled(host)
    assert engine.state == "failed"
    assert engine.killed_for_memory.endswith("oom_score_adj:0")
    with pytest.raises(EngineError, match="killed it for want of main memory") as told:
        serving.raise_if_failed(engine, "t4")
    assert "prepare_host" in told.value.next_action
    assert "Loading model from scratch..." in told.value.words
    # The guard brings swap back, and with it the weights fit.
    done = await serving.start(host, LAUNCH)
    assert "switched it on" in done[1]
    assert (await settled(host)).state == "ready"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("-m", "no_such_module"), "No module named no_such_module"),
        (("-c", "raise SystemExit(4)"), "it ended with exit code 4"),
        (("-c", "import os; os.kill(os.getpid(), 11)"), "signal 11 ended it"),
        ((*LAUNCH.argv, "--load-format", "fastsafetensors"), "no GPU was found"),
    ],
)
async def test_an_engine_that_is_gone_at_once_is_told_with_its_last_lines(
    grounds: Grounds, argv: tuple[str, ...], words: str
) -> None:
    grounds.ready()
    with pytest.raises(EngineError) as error:
        await serving.start(grounds.inside(), replace(LAUNCH, argv=argv, guards=()))
    assert words in error.value.message + error.value.words


async def test_guards_name_what_stands_in_the_way(grounds: Grounds) -> None:
    machine = grounds.ready()
    host = grounds.inside()
    with socket.create_server((machine.read()["address"], 8000)):  # noqa: SIM117
        with pytest.raises(EngineError, match="Port 8000 is taken") as taken:
            await serving.start(host, LAUNCH)
    assert taken.value.details["kind"] == "port_taken"
    with machine.change() as state:
        state["driver_loaded"] = False
    with pytest.raises(EngineError, match="does not see a GPU") as missing:
        await serving.start(host, LAUNCH)
    assert missing.value.next_action == "Call prepare_host."
    await install(host)
    machine.at("/dev/disk/by-id/google-t4-data").unlink()
    with machine.change() as state:
        machine.unmount(state, "/mnt/data")
    with pytest.raises(EngineError, match="There is no disk"):
        await serving.start(host, LAUNCH)

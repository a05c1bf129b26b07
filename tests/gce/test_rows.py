"""Each failure that the T4 references met is produced on a machine, and answered by the tools.

The machine is the rehearsal's, looked at without Google and without ssh: what is told of it comes
through the server, from the words of the programs that run there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from backends.core.errors import DevopsError
from backends.gce.hosting import Hosting
from backends.gce.looking import GceLooking
from backends.gce.machines import SPEC_KEY, ComputeApi, Machine
from backends.gce.placing import explained
from backends.knowledge import gce
from backends.serving.startup_log import Phase
from tests.gce.made import machine
from tests.hosts.conftest import Grounds
from tests.support.clients import Caller, connected, make_app

ON = {"target": "gce-t4", "name": "t4"}
_CALL = "(target='gce-t4', name='t4'"
_ANEW = f"prepare_host{_CALL}, options={{'upgrade': true}})"
_AGAIN = f"plan_deployment{_CALL}"


@dataclass
class Bench:
    """A machine that is prepared, and the server that tells of it."""

    grounds: Grounds
    caller: Caller
    hosting: Hosting
    machine: Machine

    async def prepare(self, **options: Any) -> DevopsError | None:
        """As a worker does; the error it ends with."""
        from backends.clouds.hosts.preparing import prepare

        settings = self.hosting.settings(self.machine) | options
        try:
            host = await self.hosting.host(self.machine)
            found = await prepare(host, settings, lambda _: None, every_s=0.1)
            found.raise_if_failed("t4")
        except DevopsError as error:
            return explained(error, "t4")
        return None

    async def serve(self, **spec: Any) -> DevopsError | None:
        """As a worker does; the error of one that died at once."""
        wanted = json.dumps(self.machine.spec | spec)
        named = replace(self.machine, metadata={SPEC_KEY: wanted})
        with contextlib.suppress(DevopsError):
            await self.hosting.serve(named)
        until = time.monotonic() + 30
        while True:
            engine = (await self.hosting.sight(self.machine)).engine
            if engine.state == "died" or engine.progress.phase is Phase.READY:
                return None
            assert time.monotonic() < until, engine

    async def told(self, state: str, cause: str, fix: str) -> None:
        """What the tools that tell how it is must say; get_status says the same as the first."""
        answer = (await self.caller.tool("wait_until_ready", **ON)).structured
        assert answer["state"] == state, answer
        assert cause in answer["error_cause"], answer
        assert fix in " ".join(answer["next_steps"]), answer
        found = await self.caller.tool("diagnose", **ON)
        assert cause in found.text, found.text
        assert fix in found.text, found.text


@pytest.fixture
async def bench(
    grounds: Grounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    """A prepared machine and a client."""
    made = machine(started_at=time.time() - 900)

    async def find(*_: object) -> Machine:
        return made

    async def nothing(*_: object) -> list[Any]:
        return []

    async def host(*_: object) -> object:
        return grounds.inside()

    monkeypatch.setattr(gce, "DATA_DEVICE", "t4-data")
    monkeypatch.setattr(gce, "MOUNT", "/mnt/data")
    monkeypatch.setattr(GceLooking, "find", find)
    monkeypatch.setattr(ComputeApi, "disks", nothing)
    monkeypatch.setattr(ComputeApi, "machines", nothing)
    monkeypatch.setattr(Hosting, "host", host)
    app = make_app(tmp_path / "state", targets=("gce-t4",))
    async with connected(app) as caller:
        backend = app.backend("gce-t4", "get_status")
        assert isinstance(backend, GceLooking)
        yield Bench(grounds, caller, backend.hosting, made)


@pytest.mark.parametrize(
    ("fault", "cause", "fix"),
    [
        ("no-cudart", "beside a torch for the CPU", _ANEW),
        ("no-cudnn", "pip --no-deps", _ANEW),
        ("torch-cpu", "a torch without CUDA", _ANEW),
        ("no-sm75", "without sm_75", _ANEW),
        ("kernel-moved", "differs from those the clamp is known for", "'vllm==0.29.0'"),
        ("disk-full", "is full", f"{_AGAIN}, options={{'data_disk_gib': 400}})"),
    ],
)
async def test_what_pip_brings_is_told_with_the_call_that_mends_it(
    bench: Bench, fault: str, cause: str, fix: str
) -> None:
    bench.grounds.ready()
    bench.grounds.fault(fault)
    steps = ["vllm", "cuda", "clamp"]
    moved = {"vllm": "vllm==0.31.0"} if fault == "kernel-moved" else {}
    error = await bench.prepare(upgrade=True, steps=steps, **moved)
    assert error is not None
    assert cause in error.cause
    assert fix in error.next_action
    await bench.told("failed", cause, fix)
    # The call that was named does mend it.
    again = {"vllm": "vllm==0.29.0"} if moved else {"upgrade": True}
    if fault != "disk-full":
        assert await bench.prepare(**again, steps=steps) is None


async def test_a_full_tmp_stands_in_nobodys_way(bench: Bench) -> None:
    bench.grounds.ready(vllm="")
    bench.grounds.fault("tmp-full", times=-1)
    assert await bench.prepare(steps=["space", "vllm"]) is None
    log = await bench.hosting.log(bench.machine, "prepare", 100)
    assert '"free_gib /tmp": 0.0' in log


@pytest.mark.parametrize(
    ("fault", "spec", "vllm", "cause", "fix"),
    [
        (
            "no-clamp",
            {},
            "0.29.0",
            "the clamp is not in the installed file",
            f"prepare_host{_CALL})",
        ),
        ("no-kernel", {}, "0.29.0", "without sm_75", _ANEW),
        ("", {"vllm": "0.26.0"}, "0.26.0", "vLLM 0.26", f"{_AGAIN}, options={{'vllm': '0.29.0'}})"),
        (
            "",
            {"extra_args": ["--load-format", "fastsafetensors"]},
            "0.29.0",
            "fastsafetensors",
            f"{_AGAIN}) without --load-format",
        ),
        ("oom", {}, "0.29.0", "without swap", f"start_serving{_CALL})"),
    ],
    ids=["clamp", "kernel", "old-vllm", "fastsafetensors", "oom"],
)
async def test_what_the_engine_dies_of_is_told_with_the_call_that_mends_it(
    bench: Bench, fault: str, spec: dict[str, Any], vllm: str, cause: str, fix: str
) -> None:
    bench.grounds.ready(vllm)
    if fault:
        bench.grounds.fault(fault)
    await bench.serve(**spec)
    await bench.told("failed", cause, fix)


async def test_a_driver_that_is_gone_after_a_restart_is_told(bench: Bench) -> None:
    played = bench.grounds.ready()
    with played.change() as state:
        state["driver_loaded"] = False
        state["driver_broken"] = True
        del state["packages"][f"linux-headers-{state['kernel']}"]
    error = await bench.prepare(steps=["driver"])
    assert error is not None
    assert f"prepare_host{_CALL})" in error.next_action
    await bench.told("failed", "driver", f"prepare_host{_CALL})")


async def test_a_restart_is_told_and_what_brings_it_back(bench: Bench) -> None:
    played = bench.grounds.ready()
    await bench.serve()
    played.reboot()
    await bench.told("stopped", "A restart ends vLLM", f"start_serving{_CALL})")
    status = await bench.caller.tool("get_status", **ON)
    assert "A restart ends vLLM" in status.structured["error_cause"]
    assert "the machine has restarted" in status.structured["summary"]

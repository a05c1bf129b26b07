"""What happens on a machine that serves, through a client: load made there, and its faults.

One machine has all of it happen, test by test; each begins with what it needs.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends.rehearsal.cloud.hosts.machine import Machine
from backends.tpu.start import start_script
from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import Cloud, as_good_as_new
from tests.tpu.acting import TARGET, Zone, operation, until
from tests.tpu.made import spec

ON: dict[str, Any] = {"target": TARGET, "name": "gemma4"}
_CLEAN = ': > "$STATE/phases"'
# Google's own runner takes seconds to begin with the script.
_SCRIPT = (
    start_script(spec().model_copy(update={"secret": ""}), 1, "vllm-rehearsal")
    .replace("PAUSE=10\n", "PAUSE=0.2\n")
    .replace(_CLEAN, f"sleep 1\n{_CLEAN}", 1)
)


@pytest.fixture(scope="module")
def machine(tpu_cloud: Cloud) -> Iterator[Machine]:
    """The machine of a deployment, asked for without gcloud."""
    with as_good_as_new(tpu_cloud):
        zone = Zone(tpu_cloud)
        zone.ask("gemma4", script=_SCRIPT)
        zone.until("ACTIVE")
        zone.client.close()
        hosts = Path(tpu_cloud.running.state_dir) / "hosts/machines"
        yield Machine(hosts / "tpu.us-east5-b.gemma4-node.0")


@pytest.fixture
async def caller(tpu_cloud: Cloud, machine: Machine) -> AsyncIterator[Caller]:
    """A client of a server that rehearses there."""
    assert machine.read()
    app = make_app(tpu_cloud.state_dir, rehearsal=True, targets=(TARGET,))
    async with connected(app) as connection:
        yield connection
    tpu_cloud.mend()


async def settled(caller: Caller) -> dict[str, Any]:
    """How it is once it serves, or will not by itself."""
    return (await caller.tool("wait_until_ready", **ON, timeout_s=40)).ok


async def serves(caller: Caller) -> None:
    """Wait until it does."""
    found = await settled(caller)
    assert found["state"] == "ready", found


async def started(caller: Caller) -> str:
    """What a start from anew says."""
    done = await caller.tool("start_serving", **ON, restart=True)
    return str(done.ok["summary"])


async def benchmark(
    caller: Caller, concurrency: tuple[int, ...] = (1, 4), requests: int = 4, **options: object
) -> tuple[str, dict[str, Any]]:
    """The id of a small benchmark, and its operation at its end."""
    loads = {"concurrency": concurrency, "requests": requests}
    begun = await caller.tool(
        "run_benchmark", **ON, **loads, max_tokens=8, prompt_tokens=16, options=options
    )
    return begun.ok["benchmark_id"], await operation(caller, begun.ok["operation_id"])


def levels(cloud: Cloud, benchmark_id: str) -> list[dict[str, Any]]:
    """What a benchmark measured."""
    run = cloud.state_dir / "rehearsal" / "benchmarks" / benchmark_id / "run.json"
    found: list[dict[str, Any]] = json.loads(run.read_text(encoding="utf-8"))["levels"]
    return found


async def test_load_is_made_beside_the_container_and_compared_with_load_through_the_tunnel(
    tpu_cloud: Cloud, caller: Caller
) -> None:
    await serves(caller)
    there, ended = await benchmark(caller, runner="host")
    assert ended["state"] == "succeeded", ended
    made = levels(tpu_cloud, there)
    assert [(level["requests"], level["errors"]) for level in made] == [(4, 0), (4, 0)]
    assert made[0]["nodes"][0]["node"] == "tpu-v6e/gemma4 worker 0 (us-east5-b)"
    here, _ = await benchmark(caller)
    compared = (await caller.tool("get_benchmarks", benchmark_ids=[there, here])).ok
    assert [row["runner"] for row in compared["comparison"]] == ["host", "local"]
    # A machine that is busy otherwise makes levels invalid, and nothing is said of those.
    valid = [level["valid"] for run in (there, here) for level in levels(tpu_cloud, run)]
    said = " ".join(compared.get("findings", ()))
    assert "Client distance at concurrency 1" in said or not all(valid), said


async def test_a_connection_that_drops_makes_a_level_invalid_and_names_the_machine(
    tpu_cloud: Cloud, caller: Caller
) -> None:
    await serves(caller)
    tpu_cloud.fault("host-dropped", command=r"program load", after_s=1)
    dropped, _ = await benchmark(caller, (2,), requests=100, runner="host")
    [first] = levels(tpu_cloud, dropped)
    assert not first["valid"]
    assert "worker 0 (us-east5-b)" in " ".join(first["invalid_reasons"]), first


async def test_a_dropped_connection_and_a_restart_in_the_middle_of_a_start_are_no_failures(
    tpu_cloud: Cloud, caller: Caller, machine: Machine
) -> None:
    await serves(caller)
    tpu_cloud.fault("host-dropped", command=r"part phases", after_s=0)
    tpu_cloud.fault("host-dropped", command=r"setsid nohup", after_s=0)
    assert "start script runs again on 1 of 1" in await started(caller)
    assert not [fault for fault in _left(machine) if fault["fault"] == "drop"]
    await asyncio.to_thread(machine.reboot)
    # Notes and container of the boot before are not taken for a failure of this one.
    await serves(caller)


async def test_another_host_key_is_told_with_what_the_person_is_to_do(
    caller: Caller, machine: Machine
) -> None:
    await serves(caller)
    with machine.change() as state:
        known, state["host_key"] = state["host_key"], "of somebody else"
    await asyncio.to_thread(machine.reboot)  # the connection that stands would not notice
    status = await until(caller, "unknown")
    assert "key is not the one it was" in status["error"]
    assert "stands between" in status["error_cause"]
    assert "google_compute_known_hosts" in " ".join(status["next_steps"])
    with machine.change() as state:
        state["host_key"] = known
    await serves(caller)


async def test_an_engine_that_the_kernel_killed_is_told_by_the_kernels_own_line(
    tpu_cloud: Cloud, caller: Caller
) -> None:
    tpu_cloud.fault("host-oom")
    await started(caller)
    status = await settled(caller)
    assert status["state"] == "failed", status
    assert "Out of memory: Killed process" in status["error"]
    assert "main memory ran out" in status["error_cause"]
    assert "start_serving" in status["next_steps"][0]


async def test_a_full_disk_is_told_while_it_starts_and_when_that_has_failed(
    tpu_cloud: Cloud, caller: Caller, machine: Machine
) -> None:
    with machine.change() as state:
        state["images"] = []
    tpu_cloud.fault("host-disk-full")
    await started(caller)
    status = await settled(caller)
    assert status["state"] == "failed", status
    assert "no space left on device" in status["error"]
    assert "disk is full" in status["error_cause"]


async def test_without_the_docker_daemon_it_is_degraded_and_one_call_brings_both_back(
    tpu_cloud: Cloud, caller: Caller
) -> None:
    tpu_cloud.fault("host-docker-down")
    status = await settled(caller)
    assert status["state"] == "degraded", status
    assert "Cannot connect to the Docker daemon" in status["error"]
    assert "start_serving" in status["next_steps"][0]
    planned = await caller.tool("stop_serving", **ON)
    stopped = await caller.tool("stop_serving", **ON, plan_id=planned.plan_id)
    assert "Cannot connect to the Docker daemon" in stopped.text
    assert (await settled(caller))["state"] == "degraded"
    await started(caller)
    await serves(caller)


async def test_nothing_is_open_or_under_way_when_the_client_has_left(tpu_cloud: Cloud) -> None:
    before = asyncio.all_tasks()
    # Google's price list takes long, and is read on behind the calls.
    tpu_cloud.fault(host=r"^cloudbilling\.googleapis\.com$", action="delay", delay_s=20, times=-1)
    app = make_app(tpu_cloud.state_dir, rehearsal=True, targets=(TARGET,))
    async with connected(app) as caller:
        assert not (await caller.tool("get_logs", **ON, source="cloud")).is_error
        assert not (await caller.tool("query_model", **ON, prompt="Hi", max_tokens=2)).is_error
        assert not (await caller.tool("find_capacity", target=TARGET)).is_error
    tpu_cloud.mend()
    assert asyncio.all_tasks() == before
    gc.collect()
    ours = psutil.Process().net_connections("tcp")
    port = tpu_cloud.running.port
    assert not [item for item in ours if item.raddr and item.raddr.port == port]
    # What kept the tunnel open has gone too.
    assert not [
        child for child in psutil.Process().children() if "ssh" in " ".join(child.cmdline())
    ]


def _left(machine: Machine) -> list[dict[str, Any]]:
    """Faults that have not happened yet."""
    path = machine.farm / "faults.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [fault for fault in found if fault.get("times", 1) != 0]

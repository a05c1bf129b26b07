"""What happens on a machine that serves, seen through a client: load made there, and its faults."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends.rehearsal.cloud.hosts.machine import Machine
from backends.tpu.start import start_script
from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import Cloud
from tests.tpu.acting import TARGET, Zone, operation, until
from tests.tpu.made import spec

PROJECT = "vllm-rehearsal"
ON: dict[str, Any] = {"target": TARGET, "name": "gemma4"}


@pytest.fixture
def machine(cloud: Cloud, zone: Zone) -> Machine:
    """The machine of a deployment that boots, asked for without gcloud."""
    script = start_script(spec().model_copy(update={"secret": ""}), 1, PROJECT)
    zone.ask("gemma4", script=script)
    zone.until("ACTIVE")
    folder = Path(cloud.running.state_dir) / "hosts/machines/tpu.us-east5-b.gemma4-node.0"
    return Machine(folder)


async def measured(caller: Caller, **options: object) -> str:
    """The id of a small benchmark that has ended."""
    small = {"concurrency": [1, 4], "requests": 4, "max_tokens": 8, "prompt_tokens": 16}
    begun = await caller.tool("run_benchmark", **ON, **small, options=options)
    ended = await operation(caller, begun.ok["operation_id"])
    assert ended["state"] == "succeeded", ended
    return str(begun.ok["benchmark_id"])


async def test_load_is_made_beside_the_container_and_compared_with_load_through_the_tunnel(
    cloud: Cloud, caller: Caller, machine: Machine
) -> None:
    await until(caller, "ready")
    there = await measured(caller, runner="host")
    run = cloud.state_dir / "rehearsal" / "benchmarks" / there / "run.json"
    levels = json.loads(run.read_text(encoding="utf-8"))["levels"]
    assert [(level["requests"], level["errors"]) for level in levels] == [(4, 0), (4, 0)]
    assert levels[0]["nodes"][0]["node"] == "tpu-v6e/gemma4 worker 0 (us-east5-b)"
    here = await measured(caller)
    compared = (await caller.tool("get_benchmarks", benchmark_ids=[there, here])).ok
    assert [row["runner"] for row in compared["comparison"]] == ["host", "local"]
    assert any("Client distance at concurrency 1" in said for said in compared["findings"])


async def test_nothing_is_open_or_under_way_when_the_client_has_left(
    cloud: Cloud, zone: Zone
) -> None:
    zone.ask("gemma4")
    before = asyncio.all_tasks()
    # Google's price list takes long, and is read on behind the calls.
    cloud.fault(host=r"^cloudbilling\.googleapis\.com$", action="delay", delay_s=20, times=-1)
    async with connected(make_app(cloud.state_dir, rehearsal=True, targets=(TARGET,))) as caller:
        assert not (await caller.tool("get_logs", **ON, source="cloud")).is_error
        assert not (await caller.tool("find_capacity", target=TARGET)).is_error
    assert asyncio.all_tasks() == before
    gc.collect()
    zone.client.close()
    ours = psutil.Process().net_connections("tcp")
    port = cloud.running.port
    assert not [item for item in ours if item.raddr and item.raddr.port == port]

"""The whole life of TPU deployments through a client, with the real gcloud, in the rehearsal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import Any

from tests.support.clients import Caller
from tests.support.cloud import Cloud
from tests.support.probe import Probe
from tests.support.traffic import seen_in_use
from tests.tpu.acting import ACCOUNT, LONG, TARGET, deploy, destroy, operation, stop, until


def machines(cloud: Cloud) -> dict[str, Any]:
    """Nodes and requests that are left."""
    world = cloud.world()
    return {**world["nodes"], **world["queued_resources"]}


async def test_a_public_flex_start_deployment_from_capacity_to_nothing_left(
    cloud: Cloud, caller: Caller, monkeypatch: Any
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_only-for-this-test")
    saved = (await caller.tool("save_hf_token", target=TARGET)).ok
    assert saved["secret"].endswith("hf-token")
    options = {"zone": "us-east5-b", "public": True, "allow_from": ["203.0.113.7"]} | LONG
    planned = await caller.tool("plan_deployment", target=TARGET, name="gemma4", options=options)
    assert planned.ok["price"]["usd_per_hour"] == 1.35
    titles = [step["title"] for step in planned.ok["steps"]]
    assert len(titles) == 6
    done = await caller.tool("deploy", target=TARGET, name="gemma4", plan_id=planned.plan_id)
    assert "accepted" in done.ok["summary"], done.text
    status = await until(caller, "ready")
    assert status["models"] == ["google/gemma-4-E2B-it"]
    assert status["url"].endswith(":8000")
    assert "of its run are left" in status["summary"]
    answer = (await caller.tool("query_model", target=TARGET, prompt="Hello", max_tokens=8)).ok
    assert answer["basis"] == "simulated"
    body = cloud.requests("POST", "/queuedResources")[0]["body"]
    metadata = body["tpu"]["nodeSpec"][0]["node"]["metadata"]
    assert "hf_only" not in str(body)
    assert set(metadata) == {"startup-script", "vllm-devops"}
    rules = cloud.world()["firewalls"]
    assert rules["vllm-devops-gemma4"]["sourceRanges"] == ["203.0.113.7/32"]
    gone = await destroy(caller)
    assert gone.ok["state"] == "stopped"
    world = cloud.world()
    assert machines(cloud) == {}
    assert list(world["secrets"]) == ["hf-token"]
    assert "vllm-devops-gemma4" not in world["firewalls"]
    assert not [email for email in world["service_accounts"] if email.startswith("vllm-")]


async def test_spot_v6e_4_is_preempted_in_the_middle_of_a_benchmark(
    cloud: Cloud, caller: Caller
) -> None:
    done = await deploy(caller, zone="us-east5-b", size="v6e-4", provisioning="spot")
    assert not done.is_error, done.text
    await until(caller, "ready")
    status = (await caller.tool("get_status", target=TARGET, name="gemma4", detail=True)).ok
    assert status["facts"]["chips"] == 4
    assert status["facts"]["hbm_gib_per_chip"] == 31.24
    assert "left for activations" in status["facts"]["context_advice"]
    assert status["host"]["cpus"] > 0
    cloud_log = (await caller.tool("get_logs", target=TARGET, name="gemma4", source="cloud")).ok
    assert "TPU runtime started" in cloud_log["text"]
    bench = (
        await caller.tool(
            "run_benchmark", target=TARGET, name="gemma4", concurrency=[1, 64], requests=1000,
            options={"mode": "grid", "contexts": [128, 30_000]},
        )
    ).ok  # fmt: skip
    await _measuring(caller, bench["operation_id"])
    await seen_in_use(caller, TARGET)
    cloud.fault("tpu-preempted")
    failed = await until(caller, "failed")
    assert "preempted" in failed["summary"]
    result = await operation(caller, bench["operation_id"])
    assert result["finished"]
    run = cloud.state_dir / "rehearsal" / "benchmarks" / bench["benchmark_id"] / "run.json"
    cells = {
        (cell["concurrency"], cell["context_tokens"]): cell
        for row in json.loads(run.read_text(encoding="utf-8"))["grid"]
        for cell in (row if isinstance(row, list) else [row])
    }
    # Beforehand, by the pool the engine publishes; the others end with the machine.
    assert cells[64, 30_000]["status"] == "infeasible"
    assert "tokens of KV cache" in cells[64, 30_000]["reason"]
    assert cells[1, 30_000]["status"] != "ok"
    assert not (await destroy(caller)).is_error
    assert machines(cloud) == {}


async def test_a_search_outlives_server_and_worker_and_goes_on_where_it_waited(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("tpu-never-comes", zone="us-east5-a")
    zones: dict[str, Any] = {
        "zones": ["us-central1-a", "us-east5-a", "us-east5-b"],
        "zone_wait_minutes": 30,
    }
    first = _search_of_a_server_that_is_killed(cloud, zones)
    going_on = (await caller.tool("get_operation", operation_id=first)).ok
    assert not going_on["finished"], going_on
    status = (await caller.tool("get_status", target=TARGET, name="gemma4")).ok
    assert status["state"] == "creating"
    assert first in str(status)
    again = await deploy(caller, **zones)
    assert f"{first} is looking for hardware" in again.text
    await _waits_in(cloud, "us-east5-a")
    record = cloud.state_dir / "rehearsal" / "operations" / first / "operation.json"
    os.kill(int(json.loads(record.read_text(encoding="utf-8"))["pid"]), signal.SIGKILL)
    lost = await operation(caller, first)
    assert lost["state"] == "failed"
    alone = (await caller.tool("get_status", target=TARGET, name="gemma4")).ok
    assert alone["phase"] == "queued"
    assert "waiting, not failing" in alone["summary"]
    planned = await deploy(caller, **zones | {"zone_wait_minutes": 0.02})
    found = await operation(caller, _operation_in(planned.text))
    assert found["state"] == "succeeded", found
    assert found["result"]["zone"] == "us-east5-b"
    assert "us-east5-a: waited" in found["result"]["tried"][0]
    capacity = (await caller.tool("find_capacity", target=TARGET, place="us-east5")).ok
    flex = {i["place"]: i for i in capacity["items"] if i["provisioning"] == "flex-start"}
    assert flex["us-east5-a"]["verdict"] == "no capacity lately"
    assert "gave hardware" in flex["us-east5-b"]["note"]
    creates = cloud.requests("POST", "/queuedResources")
    assert len(creates) == 2


async def test_a_search_for_capacity_that_never_comes_tells_each_zones_word_and_leaves_nothing(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("tpu-never-comes")
    zones = ["us-east5-a", "us-east5-b"]
    # In the last zone a request waits until it is no longer valid: seconds, here.
    done = await deploy(caller, zones=zones, zone_wait_minutes=0.02, valid_until_hours=0.5)
    ended = await operation(caller, _operation_in(done.text))
    assert ended["state"] == "failed", ended
    assert "No zone gave v6e-1 flex-start: us-east5-a: waited" in str(ended["error"])
    assert "us-east5-b: failed (The request was not filled in time.)" in str(ended["error"])
    assert machines(cloud) == {}
    assert cloud.requests("POST", "/queuedResources")[1:]
    gone = await caller.tool("get_status", target=TARGET, name="gemma4")
    assert "no deployment 'gemma4'" in gone.text


async def test_a_reserved_slice_whose_create_was_not_answered_and_whose_engine_runs_out_of_memory(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("tpu-create-unheard")
    cloud.fault("tpu-hbm")
    done = await deploy(
        caller, zone="us-east5-a", provisioning="reservation", reservation="v6e-reserved"
    )
    assert "found there by its label" in done.text
    # gcloud asked again by itself, and was told that it exists.
    assert len(cloud.requests("POST", "/queuedResources")) == 2
    assert len(cloud.world()["queued_resources"]) == 1
    failed = await until(caller, "failed")
    assert "Ran out of memory on HBM" in failed["error"]
    assert "max_model_len" in failed["next_steps"][0]


async def test_a_machine_of_compute_engine_serves_behind_the_same_verbs(
    cloud: Cloud, caller: Caller
) -> None:
    done = await deploy(
        caller, zone="us-east5-b", control_plane="compute", provisioning="on-demand"
    )
    assert not done.is_error, done.text
    await until(caller, "ready")
    logs = (await caller.tool("get_logs", target=TARGET, name="gemma4", source="serial")).ok
    assert "vllm-devops: installing docker" in logs["text"]
    assert (await stop(caller, machine=True)).ok["state"] == "stopped"
    assert (await until(caller, "stopped"))["usd_per_hour"] == 0
    assert not (await caller.tool("start_serving", target=TARGET, name="gemma4")).is_error
    assert not (await destroy(caller)).is_error
    assert cloud.world()["instances"] == {}


async def test_a_slice_of_four_hosts_serves_over_ray(cloud: Cloud, caller: Caller) -> None:
    done = await deploy(
        caller, zone="us-east5-b", size="v6e-16", model="google/gemma-4-31B-it",
        provisioning="spot",
    )  # fmt: skip
    assert not done.is_error, done.text
    ready = await until(caller, "ready")
    assert (ready["facts"]["hosts"], ready["facts"]["tensor_parallel_size"]) == (4, 16)
    refused = await stop(caller, machine=True)
    assert "4 hosts" in refused.text
    assert "4 of 4 hosts" in (await stop(caller)).text
    log = (await caller.tool("get_logs", target=TARGET, name="gemma4", source="container@3")).ok
    assert "Ray runtime started" in log["text"]


async def _measuring(caller: Caller, operation_id: str) -> None:
    """Wait until a benchmark has begun to ask."""
    for _ in range(200):
        found = (await caller.tool("get_operation", operation_id=operation_id)).ok
        if float(found.get("done") or 0) > 0:
            return
        assert not found["finished"], found
        await asyncio.sleep(0.1)
    raise AssertionError("the benchmark never began")


def _operation_in(text: str) -> str:
    found = re.search(r"op-[\w-]+", text)
    assert found is not None, text
    return found[0]


async def _waits_in(cloud: Cloud, zone: str) -> None:
    for _ in range(100):
        for name, item in cloud.world()["queued_resources"].items():
            if f"/{zone}/" in name and item["state"]["state"] == "WAITING_FOR_RESOURCES":
                return
        await asyncio.sleep(0.1)
    raise AssertionError(f"nothing waits in {zone}")


def _search_of_a_server_that_is_killed(cloud: Cloud, options: dict[str, Any]) -> str:
    """The search that a server of its own process has started before it was killed."""
    env = {
        "VLLM_DEVOPS_STATE_DIR": str(cloud.state_dir),
        "VLLM_DEVOPS_REHEARSAL": "1",
        "VLLM_DEVOPS_TARGETS": TARGET,
    }
    with Probe(env=env) as probe:
        planned = probe.tool(
            "plan_deployment", target=TARGET, name="gemma4",
            options={"service_account": ACCOUNT} | LONG | options,
        )  # fmt: skip
        done = probe.tool("deploy", target=TARGET, name="gemma4", plan_id=planned.plan_id)
        found = _operation_in(done.expect_ok().text)
        probe.process.kill()
        probe.wait(5)
    return found

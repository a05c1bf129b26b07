"""Each size by each provisioning model, from a plan to nothing left, with the real gcloud."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clients import Caller
from tests.support.cloud import Cloud
from tests.tpu.acting import TARGET, deploy, destroy, operation, stop

# Where all four are to be had in the rehearsal.
ZONE = "us-east5-a"
ON: dict[str, Any] = {"target": TARGET, "name": "gemma4"}
# By provisioning model: Google's word for it, and USD per chip-hour there. A reservation bills
# whether it is used or not, at a rate that was agreed on with whoever holds it.
MODELS: dict[str, tuple[str, float | None]] = {
    "on-demand": ("STANDARD", 2.7),
    "flex-start": ("FLEX_START", 1.35),
    "spot": ("SPOT", 1.4033),
    "reservation": ("RESERVATION_BOUND", None),
}
EIGHT_AND_THE_LARGEST = [
    *((size, model) for size in ("v6e-1", "v6e-4") for model in MODELS),
    ("v6e-8", "on-demand"),
]


@pytest.mark.parametrize(("size", "provisioning"), EIGHT_AND_THE_LARGEST)
async def test_a_slice_lives_its_whole_life_by_each_provisioning_model(
    cloud: Cloud, caller: Caller, size: str, provisioning: str
) -> None:
    chips = int(size.removeprefix("v6e-"))
    word, rate = MODELS[provisioning]
    more = {"reservation": "v6e-reserved"} if provisioning == "reservation" else {}
    options = {"zone": ZONE, "size": size, "provisioning": provisioning} | more
    done = await deploy(caller, **options)
    assert "accepted" in done.ok["summary"], done.text

    ready = await _waited(caller)
    (found,) = cloud.world()["queued_resources"].values()
    assert (found["provisioningModel"], found["state"]["state"]) == (word, "ACTIVE")
    assert ("runDuration" in found) is (provisioning == "flex-start")
    assert ("of its run are left" in ready["summary"]) is (provisioning == "flex-start")
    assert (ready["facts"]["size"], ready["facts"]["tensor_parallel_size"]) == (size, chips)
    assert ready.get("usd_per_hour") == (None if rate is None else round(rate * chips, 4))

    health = (await caller.tool("verify_model_health", **ON)).ok
    assert health["healthy"], health
    answer = (await caller.tool("query_model", **ON, prompt="Hello", max_tokens=8)).ok
    assert answer["usage"]["completion_tokens"] == 8, answer
    await _measured(caller)
    metrics = (await caller.tool("get_metrics", **ON, interval_s=0)).ok
    assert metrics["latency_ms"], metrics
    log = (await caller.tool("get_logs", **ON, lines=50)).ok
    assert "POST /v1/chat/completions" in log["text"]

    assert (await stop(caller)).ok["state"] == "stopped"
    stopped = (await caller.tool("get_status", **ON)).ok
    assert "the machine goes on billing" in stopped["summary"]
    started = (await caller.tool("start_serving", **ON)).ok
    assert "The start script runs on 1 of 1 hosts" in started["summary"]
    # At once: what is stopped no more is not said to be.
    await _waited(caller)
    gone = await destroy(caller)
    assert gone.ok["state"] == "stopped"
    world = cloud.world()
    assert {**world["nodes"], **world["queued_resources"]} == {}


async def _waited(caller: Caller) -> dict[str, Any]:
    """The status once it serves."""
    for _ in range(4):
        waited = (await caller.tool("wait_until_ready", **ON)).ok
        if waited["state"] not in {"creating", "starting"}:
            break
    assert waited["state"] == "ready", waited["summary"]
    return waited


async def _measured(caller: Caller) -> None:
    """A benchmark of one level, to its end."""
    small = {"concurrency": [2], "requests": 4, "max_tokens": 8, "prompt_tokens": 16}
    begun = (await caller.tool("run_benchmark", **ON, **small)).ok
    ended = await operation(caller, begun["operation_id"])
    assert ended["state"] == "succeeded", ended
    found = (await caller.tool("get_benchmarks", benchmark_ids=[begun["benchmark_id"]])).ok
    (level,) = found["levels"]
    assert (level["requests"], level["errors"]) == (4, 0)

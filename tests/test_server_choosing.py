"""plan_deployment and list_models as advisers: comparison, predicted speed and cost, inspect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.knowledge.test_from_config import E2B_CONFIG
from tests.support.clients import FAST, Caller, connected, make_app


@pytest.fixture
async def caller(state_dir: Path) -> AsyncIterator[Caller]:
    async with connected(make_app(state_dir)) as connection:
        yield connection


async def test_without_a_target_one_call_ranks_all_of_them(caller: Caller) -> None:
    load = {"requests_per_hour": 100, "hours_a_day": 2, "ttft_ms": 1000}
    asked = {"model": "google/gemma-4-E2B-it", "load": load}
    found = (await caller.tool("plan_deployment", **asked, detail=True)).ok
    assert found["basis"] == "predicted"
    targets = [item["target"] for item in found["items"]]
    assert {"cloudrun-l4", "sagemaker-l4", "gce-t4", "tpu-v6e"} <= set(targets)
    ranks = [item["rank"] for item in found["items"] if "rank" in item]
    assert ranks == sorted(ranks)
    assert all(item["reasons"] for item in found["items"])
    assert found["break_even"]
    assert any("days old" in price for item in found["items"] for price in item["prices"])

    reply = await caller.tool("plan_deployment", **asked)
    brief = reply.ok
    assert max(len(reply.text), len(json.dumps(brief, separators=(",", ":")))) <= 4000
    # The cheapest of each target, in order; of the others what they cost: nothing is left out.
    assert brief["items"][0]["target"] == found["items"][0]["target"]
    assert {item["target"] for item in brief["items"]} == set(targets)
    assert len(brief["items"]) == len(set(targets))
    able = [item for item in found["items"] if item["verdict"] == "can serve"]
    shown = [item for item in brief["items"] if item["verdict"] == "can serve"]
    assert len(shown) + len(brief["dearer_offers"]) == len(able)
    assert "detail=true" in brief["next_steps"][-1]


async def test_the_next_step_plans_the_offer_that_was_recommended_not_another_of_its_target(
    state_dir: Path,
) -> None:
    async with connected(make_app(state_dir, targets=("gce-t4", "local"))) as caller:
        found = (await caller.tool("plan_deployment", load={"requests_per_hour": 500})).ok
    assert found["items"][0]["variant"] == "spot", found["items"][0]
    call, _ = found["next_steps"]
    assert call.endswith("options={'provisioning': 'spot'})")


async def test_a_load_that_makes_no_sense_is_refused_by_name(caller: Caller) -> None:
    reply = await caller.tool("plan_deployment", load={"requests": 5})
    assert "load.requests: is unknown. Allowed: requests_per_hour" in reply.text
    reply = await caller.tool("plan_deployment", load={"requests_per_hour": "many"})
    assert "Allowed" not in reply.text, "the value is wrong, not the name"
    reply = await caller.tool("plan_deployment", target="local", load={"hours_a_day": 25})
    assert "load.hours_a_day" in reply.text


async def test_settings_that_only_a_target_has_are_refused_without_one(caller: Caller) -> None:
    reply = await caller.tool("plan_deployment", options={"region": "us-east4"})
    assert reply.error["field"] == "options"
    assert "needs a target" in reply.text


async def test_a_plan_shows_predicted_speed_beside_its_price(caller: Caller) -> None:
    planned = await caller.tool("plan_deployment", target="local", options=FAST)
    rows = planned.ok["predicted"]
    assert [row["concurrency"] for row in rows][:2] == [1, 4]
    assert all(0 < row["output_tokens_per_s"] < row["bound_output_tokens_per_s"] for row in rows)


async def test_inspect_of_a_folder_says_what_it_is_where_it_fits_and_what_vllm_needs(
    caller: Caller, tmp_path: Path
) -> None:
    folder = tmp_path / "some-name"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(E2B_CONFIG))
    index = {"metadata": {"total_size": 10_246_621_918}, "weight_map": {}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = (await caller.tool("list_models", inspect=str(folder))).ok
    assert found["facts"]["is_gemma4"] is True
    assert found["facts"]["encoding"] == "bf16"
    assert found["facts"]["parameters_billion"] == pytest.approx(5.12, abs=0.02)
    assert "--reasoning-parser=gemma4" in found["needs_arguments"]
    fits = {fit["target"]: fit["verdict"] for fit in found["fits"]}
    assert fits["cloudrun-l4"] == "fits"


async def test_inspect_of_a_catalogued_id_says_where_it_fits(caller: Caller) -> None:
    found = (await caller.tool("list_models", inspect="google/gemma-4-31B-it-qat-w4a16-ct")).ok
    fits = {fit["target"]: fit for fit in found["fits"]}
    assert fits["sagemaker-l4"]["verdict"] == "does not fit"
    assert fits["cloudrun-rtx6000"]["verdict"] == "fits"


async def test_a_benchmark_is_shown_beside_what_was_predicted_and_the_bound(
    caller: Caller,
) -> None:
    options = FAST | {"profile": "sagemaker-l4"}
    planned = await caller.tool("plan_deployment", target="local", name="demo", options=options)
    await caller.tool("deploy", target="local", plan_id=planned.plan_id)
    await caller.tool("wait_until_ready", target="local", name="demo")
    started = (
        await caller.tool(
            "run_benchmark", target="local", name="demo", concurrency=[1, 4], requests=8,
            max_tokens=32,
        )
    ).ok  # fmt: skip
    done = (await caller.tool("get_operation", operation_id=started["operation_id"], wait_s=40)).ok
    assert done["finished"], done["summary"]
    ids = [started["benchmark_id"]]
    shown = (await caller.tool("get_benchmarks", benchmark_ids=ids, detail=True)).ok
    rows = {row["concurrency"]: row for row in shown["predicted"]}
    assert set(rows) == {1, 4}
    for row in rows.values():
        assert row["predicted_output_tokens_per_s"] <= row["bound_output_tokens_per_s"]
        # The simulator runs on the same model; only a busy machine can hold it up.
        assert 0.4 < row["measured_over_predicted"] < 1.25

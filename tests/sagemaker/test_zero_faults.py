"""What goes wrong with what scales to zero is told with its way out, and nothing is lost."""

from __future__ import annotations

from typing import Any, cast

import pytest

from backends.sagemaker import component_later, running
from backends.sagemaker.backend import SageMakerBackend
from tests.sagemaker.acting import (
    NAME,
    TARGET,
    deploy,
    operations_at_once,
    settled,
    status,
    until,
    without_cli,
)
from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import Cloud
from tests.support.reply import Reply

ONE = ["ml.g6.xlarge"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is sent, by AWS's client; operations are done within their call."""
    operations_at_once(monkeypatch)
    return without_cli(monkeypatch)


async def _deploy(caller: Caller, **options: Any) -> Reply:
    return await deploy(caller, scale_to_zero=True, instance_types=ONE, **options)


def _backend(cloud: Cloud) -> SageMakerBackend:
    app = make_app(cloud.state_dir, rehearsal=True, targets=(TARGET,))
    return cast("SageMakerBackend", app.backends.get(TARGET))


# ---------------------------------------------------------------------------- being refused


async def test_a_region_that_keeps_an_instance_says_so_before_anything_is_paid_for(
    cloud: Cloud, sent: list[list[str]]
) -> None:
    del sent
    app = make_app(cloud.state_dir, rehearsal=True, targets=(TARGET,), aws_regions=("eu-north-1",))
    async with connected(app) as caller:
        refused = (await _deploy(caller, region="eu-north-1")).error
        assert "Min instance count needs to be greater than 0" in refused["words"]
        assert "Deploy in another region" in refused["next_action"]
        assert "SageMaker model gemma4-vllm-" in refused["made_before_the_failure"]
        assert "delete-model" in refused["undo"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("candidate", True),
        ("rollout", "canary"),
        ("rollback_alarms", ["a"]),
        ("fallback_regions", ["us-west-2"]),
    ],
)
async def test_what_does_not_go_with_it_is_refused_by_name(
    cloud: Cloud, caller: Caller, option: str, value: object
) -> None:
    del cloud
    refused = (await _deploy(caller, **{option: value})).error
    assert refused["field"] == f"options.{option}"
    assert "does not go with scale_to_zero" in refused["message"]


# ------------------------------------------------------------------------ cut off in between


async def test_an_operation_that_died_leaves_nothing_unmentioned_and_is_gone_on_from(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = without_cli(monkeypatch)

    async def dies(*_: object) -> str:
        return "started, and died with its machine"

    monkeypatch.setattr(running, "_start_operation", dies)
    await _deploy(caller)
    empty = await until(caller, "failed", "hosts no model yet")
    assert empty["usd_per_hour"] == 1.1267
    assert "goes on from what is there" in empty["next_steps"][0]
    refused = (await caller.tool("query_model", target=TARGET, prompt="Hello")).error
    assert refused["code"] == "conflict"
    sent.clear()
    operations_at_once(monkeypatch)
    again = (await _deploy(caller)).ok
    assert sent[0][2] == "create-inference-component"
    assert len(again["done"]) == 6
    assert (await settled(caller))["state"] == "ready"
    # Two that were cut off after the component: what it lacks is said, and set up by one call.
    backend = _backend(cloud)
    await backend.aws.call(
        "application-autoscaling", "deregister_scalable_target", "us-east-2",
        ServiceNamespace="sagemaker", ResourceId=f"inference-component/{NAME}",
        ScalableDimension="sagemaker:inference-component:DesiredCopyCount",
    )  # fmt: skip
    lacking = await status(caller)
    assert any("Automatic scaling is off" in item for item in lacking["warnings"])
    same = (await _deploy(caller)).error
    assert "min_instances=0" in same["next_action"]
    mended = (await caller.tool("update_scaling", target=TARGET, name=NAME, min_instances=0)).ok
    assert "between 0 and 1 copies" in mended["summary"]
    assert any("ARN-OF" not in line and "put-metric-alarm" in line for line in mended["done"])


async def test_a_cli_that_is_cut_off_at_the_component_is_looked_after(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost before it was done: named with its undo. Lost after it was done: seen to be done."""
    monkeypatch.setattr(running, "_LOOK_FOR_S", 0.1)
    operations_at_once(monkeypatch)
    without_cli(monkeypatch, "create-inference-component", "register-scalable-target")
    cloud.fault(kind="request", operation="^CreateInferenceComponent$", action="cut", times=3)
    refused = (await _deploy(caller)).error
    assert "Made there before: perhaps SageMaker inference component" in refused["message"]
    cloud.mend()
    cloud.fault(kind="request", operation="^CreateInferenceComponent$", action="lose-answer")
    # What comes to the same when it is sent twice is sent again.
    cloud.fault(kind="request", operation="^RegisterScalableTarget$", action="cut", times=3)
    done = await _deploy(caller)
    assert not done.is_error, done.text
    assert "the aws CLI was cut off, but it is done" in done.text
    assert (await settled(caller))["state"] == "ready"


# -------------------------------------------------------------------------- starts that fail


async def test_a_model_that_does_not_come_up_ends_the_operation_with_its_cause(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch, sent: list[list[str]]
) -> None:
    monkeypatch.setattr(component_later, "_AGAIN_REHEARSED_S", 0.1)
    cloud.fault(kind="start", service=NAME, times=-1, fail="oom")
    refused = (await _deploy(caller, startup_timeout_s=300)).error
    assert "21.96 GiB" in refused["cause"]
    assert "Made there before: SageMaker inference component gemma4" in refused["message"]
    failed = await status(caller)
    assert failed["state"] == "failed"
    assert "21.96 GiB" in failed["error_cause"]
    # Other settings take its place, on the same instance.
    cloud.mend()
    await until(caller, "failed", "could not be put on")
    sent.clear()
    other = await _deploy(caller, startup_timeout_s=300, gpu_memory_utilization=0.8)
    assert not other.is_error, other.text
    words = [item[2] for item in sent]
    assert words.index("delete-inference-component") < words.index("create-inference-component")
    ready = await settled(caller)
    assert ready["state"] == "ready", ready["summary"]


# ------------------------------------------------------------------------------- ending it


async def test_it_is_stopped_for_good_started_again_and_says_why_it_cannot_be_woken(
    cloud: Cloud, caller: Caller, sent: list[list[str]]
) -> None:
    await _deploy(caller, instances=2, capacity_timeout_s=300)
    planned = await caller.tool("stop_serving", target=TARGET, name=NAME)
    sent.clear()
    await caller.tool("stop_serving", target=TARGET, name=NAME, plan_id=planned.plan_id)
    assert [words[2] for words in sent] == [
        "deregister-scalable-target",
        "delete-alarms",
        "update-inference-component-runtime-config",
    ]
    stopped = await until(caller, "stopped", "no request starts it")
    assert "start_serving" in stopped["next_steps"][0]
    asked = (await caller.tool("query_model", target=TARGET, prompt="Hello")).error
    assert "automatic scaling is not set up" in asked["cause"]
    started = (await caller.tool("start_serving", target=TARGET, name=NAME)).ok
    assert started["state"] == "starting"
    ready = await settled(caller)
    assert ready["facts"]["copies"] == "1 of 1 (0 to 2 by load)"
    again = (await caller.tool("start_serving", target=TARGET, name=NAME, restart=True)).error
    assert again["code"] == "not_supported"
    shifted = (await caller.tool("shift_traffic", target=TARGET, name=NAME, to="candidate")).error
    assert shifted["code"] == "not_supported"
    more = (await caller.tool("update_scaling", target=TARGET, name=NAME, max_instances=3)).error
    assert "up to 2" in more["message"]
    await caller.tool("update_scaling", target=TARGET, name=NAME, instances=0)
    await until(caller, "scaled_to_zero", "nothing is billed")
    cloud.fault("aws-no-capacity")
    woken = (await caller.tool("update_scaling", target=TARGET, name=NAME, instances=1)).ok
    assert woken["state"] == "starting"
    stuck = await until(caller, "stopped", "could not be")
    assert "InsufficientInstanceCapacity" in stuck["error"]
    assert "Quota is permission, not hardware" in stuck["error_cause"]

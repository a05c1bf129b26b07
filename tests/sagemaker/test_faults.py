"""What goes wrong on SageMaker is answered with its cause and the way out, and nothing is lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from backends.clouds.aws import Aws
from backends.core.errors import ConflictError, DevopsError, RateLimitedError
from backends.sagemaker import running
from backends.sagemaker.backend import SageMakerBackend
from backends.sagemaker.commands import delete_endpoint
from tests.sagemaker.acting import (
    NAME,
    TARGET,
    deploy,
    destroy,
    finished,
    operation_in,
    settled,
    status,
    until,
    without_cli,
)
from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import Cloud

ONE = ["ml.g6.xlarge"]


def _backend(cloud: Cloud) -> SageMakerBackend:
    """The target itself, for what no tool does."""
    app = make_app(cloud.state_dir, rehearsal=True, targets=(TARGET,))
    return cast("SageMakerBackend", app.backends.get(TARGET))


# ------------------------------------------------------------------------------- being refused


async def test_one_region_that_does_not_answer_fails_the_list_and_is_named(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cli(monkeypatch)
    # A region that the account has not switched on.
    app = make_app(
        cloud.state_dir, rehearsal=True, targets=(TARGET,), aws_regions=("us-east-2", "eu-south-9")
    )
    async with connected(app) as caller:
        await _one_silent_region(caller)


async def _one_silent_region(caller: Caller) -> None:
    await deploy(caller, instance_types=ONE)
    listed = (await caller.tool("list_deployments")).ok
    assert not listed["complete"]
    assert listed["items"] == []
    assert "1 AWS regions did not answer (eu-south-9)" in listed["not_answering"][0]["error"]
    alone = (await caller.tool("list_deployments", target=TARGET)).error
    assert alone["code"] == "api_disabled"
    assert alone["found_elsewhere"] == f"{NAME} in us-east-2"
    assert "eu-south-9 is not enabled for this account" in alone["cause"]
    assert "VLLM_DEVOPS_AWS_REGIONS" in alone["next_action"]
    # What is in a region that answers is found all the same.
    assert (await status(caller))["name"] == NAME
    unknown = (await caller.tool("get_status", target=TARGET, name="nope")).error
    assert unknown["code"] == "api_disabled"
    assert "is not known" in unknown["message"]


async def test_what_is_not_there_was_asked_for_everywhere(cloud: Cloud, caller: Caller) -> None:
    del cloud
    missing = (await caller.tool("get_status", target=TARGET, name="nope")).error
    assert missing["code"] == "not_found"
    assert "us-east-2, us-west-2" in missing["cause"]


async def test_an_expired_login_is_one_clear_error_with_the_one_command(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("aws-login-expired")
    refused = (await caller.tool("find_capacity", target=TARGET)).error
    assert refused["code"] == "unauthenticated"
    assert "expired" in refused["words"]
    assert "Ask the person to run: aws " in refused["next_action"]
    listed = (await caller.tool("list_deployments")).ok
    assert not listed["complete"]


async def test_a_throttled_login_is_tried_again_by_itself(cloud: Cloud, caller: Caller) -> None:
    cloud.fault("aws-login-throttled")
    assert (await caller.tool("list_deployments")).ok["complete"]


async def test_quota_calls_that_are_throttled_say_so_and_never_mean_no_quota(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("aws-quota-calls-throttled")
    refused = (await caller.tool("find_capacity", target=TARGET, place="us-east-2")).error
    assert refused["code"] == "cloud"
    assert "rate_limited" in refused["message"]
    planned = (await caller.tool("plan_deployment", target=TARGET, name=NAME)).ok
    assert any("Quotas of us-east-2 were not checked" in item for item in planned["warnings"])


async def test_quotas_that_were_not_answered_are_named_and_asked_alone_the_next_time(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cloud
    real, asked, throttled = Aws.items, [], ["us-east-2"]

    async def items(
        self: Aws, service: str, operation: str, key: str, region: str, **more: Any
    ) -> list[Any]:
        if operation == "list_service_quotas":
            asked.append(region)
            if region in throttled:
                raise RateLimitedError("aws service-quotas was refused.")
        return await real(self, service, operation, key, region, **more)

    monkeypatch.setattr(Aws, "items", items)
    first = (await caller.tool("find_capacity", target=TARGET)).ok
    assert first["not_answering"][0]["target"] == f"{TARGET} in us-east-2"
    assert first["next_steps"][0].startswith(f"find_capacity(target='{TARGET}') again: the quotas")
    assert "of us-east-2 were" in first["next_steps"][0]
    throttled.clear()
    asked.clear()
    then = (await caller.tool("find_capacity", target=TARGET)).ok
    assert asked == ["us-east-2"]
    assert "not_answering" not in then
    assert not any("again" in step for step in then["next_steps"])


async def test_no_quota_is_refused_before_anything_is_sent_and_by_name(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.fault("aws-quota-none")
    sent = without_cli(monkeypatch)
    refused = (await deploy(caller)).error
    assert refused["code"] == "quota"
    assert "ml.g6.xlarge for endpoint usage" in refused["quota"]
    assert "0 allowed; request 1" in refused["message"]
    assert not sent
    capacity = (await caller.tool("find_capacity", target=TARGET, place="us-east-2")).ok
    assert {item["verdict"] for item in capacity["items"]} == {"short of quota"}
    assert capacity["to_request"]


async def test_a_quota_that_sagemaker_itself_refuses_names_what_was_made_and_its_undo(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.fault("aws-quota-none")
    # The real CLI says it; what comes before is arranged.
    without_cli(monkeypatch, "create-endpoint")
    refused = (await deploy(caller, ignore_quota=True, instance_types=ONE)).error
    assert refused["failure"] == "quota"
    assert "account-level service limit 'ml.g6.xlarge for endpoint usage'" in refused["words"]
    assert "A pool holds quota for every type it lists" in refused["cause"]
    for made in ("IAM role vllm-devops-gemma4", "SageMaker model gemma4-vllm-", "configuration"):
        assert made in refused["made_before_the_failure"]
    for undo in ("delete-endpoint-config", "delete-model", "delete-role ", "delete-role-policy"):
        assert undo in refused["undo"]
    # It goes on from what is there, and what is left over can be destroyed.
    cloud.mend()
    stopped = await status(caller)
    assert stopped["state"] == "stopped"
    planned = (
        await caller.tool(
            "plan_deployment", target=TARGET, name=NAME, options={"instance_types": ONE}
        )
    ).ok
    assert len(planned["steps"]) == 1
    gone = await destroy(caller, role=True)
    assert not gone.is_error, gone.text
    assert "vllm-devops-gemma4" not in str(cloud.world())


async def test_a_name_that_is_taken_by_somebody_else_is_never_touched(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cli(monkeypatch)
    await deploy(caller, instance_types=ONE)
    await settled(caller)
    aws = _backend(cloud).aws
    arn = "arn:aws:sagemaker:us-east-2:123456789012:endpoint/gemma4"
    await aws.call("sagemaker", "delete_tags", "us-east-2", ResourceArn=arn, TagKeys=["managed-by"])
    for refused in (
        await destroy(caller),
        await deploy(caller, instance_types=["ml.g6.2xlarge"]),
        await caller.tool("update_scaling", target=TARGET, name=NAME, instances=2),
    ):
        assert refused.error["code"] == "not_managed"
        assert "aws sagemaker add-tags" in refused.error["next_action"]
    listed = (await caller.tool("list_deployments")).ok
    assert [item["managed"] for item in listed["items"]] == [False]


async def test_a_name_in_another_region_is_a_conflict(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cloud
    without_cli(monkeypatch)
    await deploy(caller, region="us-west-2", instance_types=ONE)
    there = (await deploy(caller, region="us-east-2")).error
    assert there["code"] == "conflict"
    assert "exists in us-west-2" in there["message"]
    busy = (await deploy(caller)).error
    assert busy["code"] == "conflict"
    assert "us-west-2" in str(busy) or "Creating" in str(busy)


async def test_a_plan_is_void_when_the_world_has_changed(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cloud
    without_cli(monkeypatch)
    planned = await caller.tool(
        "plan_deployment", target=TARGET, name=NAME, options={"instance_types": ONE}
    )
    await deploy(caller, name="other", instance_types=ONE)
    late = await caller.tool("deploy", target=TARGET, name=NAME, plan_id=planned.plan_id)
    assert late.error["reason"] == "stale"
    assert "quota of ml.g6.xlarge in us-east-2" in late.text


async def test_a_budget_counts_the_dearest_type_of_the_pool(cloud: Cloud) -> None:
    app = make_app(
        cloud.state_dir, rehearsal=True, targets=(TARGET,), aws_regions=("us-east-2",),
        max_usd_per_hour=1.5,
    )  # fmt: skip
    async with connected(app) as caller:
        dear = (await caller.tool("plan_deployment", target=TARGET, name=NAME)).error
        assert dear["code"] == "over_budget"
        assert "1.654 USD/h" in dear["message"]
        cheap = await caller.tool(
            "plan_deployment", target=TARGET, name=NAME, options={"instance_types": ONE}
        )
        assert cheap.ok["price"]["usd_per_hour"] == 1.1267


# --------------------------------------------------------------------- cut off in the middle


_STEPS = (
    "create-role", "put-role-policy", "create-model", "create-endpoint-config", "create-endpoint",
)  # fmt: skip


_AWS = shutil.which("aws")


def _killed_cli(path: Path, monkeypatch: pytest.MonkeyPatch, *, before: str) -> None:
    """An aws that kills itself: at one operation before it does it, or after each it did."""
    real = f'{_AWS} "$@"\n'
    kill = f'case "$*" in *"{before} "*) kill -9 $$;; esac\n{real}' if before else real
    program = path / "aws"
    program.write_text(f"#!/bin/sh\n{kill}{'' if before else 'kill -9 $$'}\n", encoding="utf-8")
    program.chmod(0o755)
    if str(path) not in os.environ["PATH"]:
        monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")


async def test_a_cli_that_is_killed_before_any_step_leaves_nothing_unmentioned(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running, "_LOOK_FOR_S", 0.1)
    without_cli(monkeypatch, *_STEPS)
    things = {
        "create-role": "IAM role vllm-devops-gemma4",
        "put-role-policy": "policy vllm-devops of",
        "create-model": "SageMaker model gemma4-vllm-",
        "create-endpoint-config": "SageMaker endpoint configuration gemma4-vllm-",
        "create-endpoint": "SageMaker endpoint gemma4 in us-east-2",
    }
    # Each time it goes on from what is there, and is killed one step later.
    for step, thing in things.items():
        _killed_cli(tmp_path, monkeypatch, before=step)
        refused = (await deploy(caller, instance_types=ONE)).error
        assert refused["failure"] == "outcome_unknown"
        assert "goes on from what is there" in refused["next_action"]
        assert f"perhaps {thing}" in refused["made_before_the_failure"], step
        assert refused["undo"], step
        earlier = list(things)[max(0, list(things).index(step) - 1)]
        if earlier not in {step, "put-role-policy"}:
            assert things[earlier].rpartition(" ")[2] in str(cloud.world())
    _killed_cli(tmp_path, monkeypatch, before="nothing")
    done = await deploy(caller, instance_types=ONE)
    assert len(done.ok["done"]) == 1


async def test_a_cli_that_is_killed_after_every_step_is_seen_to_have_done_it(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del cloud
    _killed_cli(tmp_path, monkeypatch, before="")
    done = (await deploy(caller, instance_types=ONE)).ok["done"]
    assert len(done) == len(_STEPS)
    assert all("the aws CLI was cut off, but it is done" in line for line in done)


async def test_a_lost_answer_of_the_create_is_found_by_looking(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cli(monkeypatch, "create-endpoint")
    await caller.tool("list_deployments")
    cloud.fault("aws-create-answer-lost")
    done = await deploy(caller, instance_types=ONE)
    assert not done.is_error, done.text
    assert (await settled(caller))["state"] == "ready"


async def test_without_the_cli_reading_works_and_changing_says_what_to_install(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del cloud
    monkeypatch.setenv("PATH", str(tmp_path))
    planned = await caller.tool(
        "plan_deployment", target=TARGET, name=NAME, options={"instance_types": ONE}
    )
    refused = (await caller.tool("deploy", target=TARGET, name=NAME, plan_id=planned.plan_id)).error
    assert refused["failure"] == "cli_missing"
    assert "install the AWS CLI" in refused["next_action"]
    assert (await caller.tool("list_deployments")).ok["complete"]


# -------------------------------------------------------------------------- starts that fail


async def test_waiting_for_capacity_is_told_from_loading_and_ends_with_the_way_out(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cli(monkeypatch)
    cloud.fault("aws-no-capacity")
    await deploy(caller, instance_types=ONE)
    waiting = await status(caller)
    assert waiting["state"] == "creating"
    assert waiting["phase"] == "waiting_for_capacity"
    assert "no log yet" in waiting["summary"]
    assert waiting["usd_per_hour"] == 0
    assert waiting["expected_s"] == pytest.approx(593.75)
    logs = (await caller.tool("get_logs", target=TARGET)).error
    assert logs["code"] == "conflict"
    assert "first container starts" in logs["cause"]
    failed = await settled(caller)
    assert failed["state"] == "failed"
    assert "InsufficientInstanceCapacity" in failed["error"]
    assert "Quota is permission, not hardware" in failed["error_cause"]
    assert "fallback_regions" in failed["next_steps"][0]
    assert failed["usd_per_hour"] == 0
    over = (await deploy(caller, instance_types=ONE)).error
    assert over["code"] == "conflict"
    assert "destroy" in over["next_action"]


_STARTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "gpu memory": ({"fail": "oom"}, "21.96 GiB", "text_only"),
    "no cache": ({"fail": "kv"}, "nothing is left for the KV cache", "gpu_memory_utilization"),
    "host memory": (
        {
            "after": "Starting to load model",
            "lines": [
                "Traceback (most recent call last):",
                "RuntimeError: unable to mmap 23265352448 bytes from file </m.safetensors>: "
                "Cannot allocate memory (12)",
            ],
            "exit_code": 1,
        },
        "host's RAM",
        "ml.g6.2xlarge",
    ),
    "small batch": (
        {
            "after": "checkpoint shards",
            "lines": [
                "Traceback (most recent call last):",
                "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (2496) is larger "
                "than max_num_batched_tokens (2048). Please increase max_num_batched_tokens.",
                "RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            "exit_code": 1,
        },
        "2,496 tokens",
        "max_num_batched_tokens=2496",
    ),
}


@pytest.mark.parametrize("kind", _STARTS)
async def test_a_start_that_crashes_is_told_while_sagemaker_still_says_creating(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    trouble, cause, fix = _STARTS[kind]
    without_cli(monkeypatch)
    cloud.fault(kind="start", service=NAME, times=-1, **trouble)
    pool = kind == "no cache"
    types = [*ONE, "ml.g6.2xlarge"] if pool else ONE
    await deploy(caller, instance_types=types, startup_timeout_s=2400)
    early = await settled(caller)
    assert early["state"] == "failed", early["summary"]
    assert "goes on saying Creating until its health-check window of 2400 s" in early["summary"]
    assert cause in early["error_cause"], early
    assert fix in early["next_steps"][0], early
    # A dead engine's instance is paid for all the same, of whichever type it is.
    assert early["usd_per_hour"] == (1.222 if pool else 1.1267)
    assert (await caller.tool("list_deployments")).ok["usd_per_hour_now"] == early["usd_per_hour"]
    assert ("at most" in str(early["facts"].get("usd_per_hour_is"))) == pool
    found = (await caller.tool("diagnose", target=TARGET, name=NAME)).ok
    assert cause in str(found)
    if kind != "gpu memory":
        return
    late = await until(caller, "failed", "failed (Failed)")
    assert "did not pass the ping health check" in late["error"]
    assert cause in late["error_cause"], late
    assert fix in late["next_steps"][0], late


async def test_a_driver_too_old_for_the_image_has_no_log_and_names_the_machine_image(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cloud
    without_cli(monkeypatch)
    await deploy(caller, instance_types=ONE, ami="al2-ami-sagemaker-inference-gpu-3-1")
    failed = await settled(caller)
    assert failed["state"] == "failed"
    assert "CannotStartContainerError" in failed["error"]
    assert "before a container was started" in failed["summary"]
    assert "newer than the NVIDIA driver" in failed["error_cause"]
    assert "al2023-ami-sagemaker-inference-gpu-4-1" in failed["next_steps"][0]


async def test_a_model_that_cannot_fit_is_refused_before_anything_is_paid_for(
    cloud: Cloud, caller: Caller
) -> None:
    del cloud
    whole = (await deploy(caller, model="google/gemma-4-31B-it")).error
    assert whole["code"] == "invalid_input"
    small = (await deploy(caller, model="google/gemma-4-12B-it", instance_types=ONE)).error
    assert "16 GiB of RAM" in small["message"]
    assert "unable to mmap" in small["message"]


# ------------------------------------------------------------------- what takes its time


async def test_what_is_creating_is_not_deleted_but_can_be_left_to_an_operation(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.fault("aws-no-capacity")
    without_cli(monkeypatch)
    await deploy(caller, instance_types=ONE)
    refused = (await caller.tool("destroy", target=TARGET, name=NAME)).error
    assert refused["code"] == "conflict"
    assert "Cannot update in-progress endpoint" in refused["words"]
    assert "when_settled" in refused["next_action"]
    left = (await destroy(caller, when_settled=True, role=True)).ok
    assert "was destroyed" not in left["summary"] or "operation" in str(left["done"])
    ended = await finished(caller, operation_in(left["done"]))
    assert ended["state"] == "succeeded", ended
    assert ended["result"]["settled_as"] == "Failed"
    assert "vllm-devops-gemma4" not in str(cloud.world())
    assert (await caller.tool("list_deployments")).ok["items"] == []


async def test_sagemakers_own_refusal_to_delete_is_explained(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.fault("aws-no-capacity")
    without_cli(monkeypatch)
    await deploy(caller, instance_types=ONE)
    monkeypatch.undo()
    backend = _backend(cloud)
    with pytest.raises(ConflictError) as met:
        await backend.aws.run(delete_endpoint("us-east-2", NAME))
    error: DevopsError = running.explained(met.value, TARGET, NAME)
    assert "Cannot update in-progress endpoint" in error.words
    assert "wait_until_ready" in error.next_action


async def test_the_next_region_is_tried_only_when_asked_and_by_itself(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.fault(kind="aws-no-capacity", where="us-east-2/*")
    without_cli(monkeypatch)
    planned = await caller.tool(
        "plan_deployment", target=TARGET, name=NAME,
        options={"instance_types": ONE, "fallback_regions": ["us-west-2"]},
    )  # fmt: skip
    titles = [step["title"] for step in planned.ok["steps"]]
    assert sum("Only if us-east-2 has no capacity" in title for title in titles) == 3
    assert "else in us-west-2" in planned.ok["summary"]
    done = (await caller.tool("deploy", target=TARGET, name=NAME, plan_id=planned.plan_id)).ok
    ended = await finished(caller, operation_in(done["done"]))
    assert ended["state"] == "succeeded", ended
    assert ended["result"] == {
        "region": "us-west-2",
        "tried": ["us-east-2: no capacity"],
        "endpoint_status": "InService",
    }
    there = await settled(caller)
    assert there["state"] == "ready"
    assert there["facts"]["region"] == "us-west-2"
    # What the first region still has of it goes with it.
    plan = (await caller.tool("destroy", target=TARGET, name=NAME)).ok
    assert {"us-east-2", "us-west-2"} == {
        region for region in ("us-east-2", "us-west-2") if region in str(plan["steps"])
    }


async def test_a_next_region_that_refuses_names_what_was_made_there(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.fault(kind="aws-no-capacity", where="us-east-2/*")
    without_cli(monkeypatch)
    planned = await caller.tool(
        "plan_deployment", target=TARGET, name=NAME,
        options={"instance_types": ONE, "fallback_regions": ["us-west-2"]},
    )  # fmt: skip
    done = (await caller.tool("deploy", target=TARGET, name=NAME, plan_id=planned.plan_id)).ok
    # Somebody else was quicker.
    cloud.fault(kind="aws-quota", type=ONE[0], value=0, region="us-west-2")
    ended = await finished(caller, operation_in(done["done"]))
    assert ended["state"] == "failed"
    assert "account-level service limit" in ended["error"]
    assert "Made there before: SageMaker model gemma4-vllm-" in ended["error"]
    assert any("destroy(" in step for step in ended["next_steps"])
    gone = (await caller.tool("destroy", target=TARGET, name=NAME)).ok
    assert "us-west-2" in str(gone["steps"])


async def test_a_region_that_is_not_looked_into_is_refused(cloud: Cloud, caller: Caller) -> None:
    del cloud
    for options in ({"region": "eu-central-1"}, {"fallback_regions": ["eu-central-1"]}):
        refused = (await deploy(caller, **options)).error
        assert refused["code"] == "invalid_input"
        assert "VLLM_DEVOPS_AWS_REGIONS" in refused["next_action"]


async def test_a_region_that_fails_otherwise_is_not_left(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.fault(kind="start", service=NAME, times=-1, fail="oom")
    without_cli(monkeypatch)
    done = (
        await deploy(
            caller, instance_types=ONE, fallback_regions=["us-west-2"], startup_timeout_s=600
        )
    ).ok
    ended = await finished(caller, operation_in(done["done"]))
    assert ended["state"] == "failed"
    assert "not for want of capacity" in ended["error"]


# ----------------------------------------------------------------------------- the endpoint


async def test_refusals_of_the_front_door_are_explained(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cli(monkeypatch)
    await deploy(caller, instance_types=ONE)
    early = (await caller.tool("query_model", target=TARGET, prompt="Hello")).error
    assert early["code"] == "conflict"
    await settled(caller)
    for scenario, code, cause in (
        ("aws-invoke-throttled", "endpoint_busy", "throttles invocations"),
        ("aws-invoke-unavailable", "endpoint_not_ready", "No container of it can take"),
    ):
        cloud.fault(scenario)
        refused = (await caller.tool("query_model", target=TARGET, prompt="Hello")).error
        assert refused["code"] == code, refused
        assert cause in refused["cause"], refused
        cloud.mend()

"""What goes wrong on Cloud Run is answered with its cause and the way out, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from backends.cloudrun import running
from tests.cloudrun.acting import L4, RTX, deploy, destroy, given, renew, settled, until
from tests.cloudrun.conftest import TARGETS, Cloud
from tests.support.clients import Caller, connected, make_app

# ------------------------------------------------------------------------------- being refused


async def test_a_refused_list_is_never_an_empty_one(cloud: Cloud, caller: Caller) -> None:
    cloud.fault(kind="deny", permission="run.services.*")
    listed = (await caller.tool("list_deployments")).ok
    assert not listed["complete"]
    assert {item["target"] for item in listed["not_answering"]} == set(TARGETS)
    assert all("permission_denied" in item["error"] for item in listed["not_answering"])
    status = await caller.tool("get_status", target=L4, name="gemma4")
    assert status.error["code"] == "permission_denied"


async def test_a_disabled_api_is_named_with_the_command_and_never_enabled_silently(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("api-disabled")
    refused = (await caller.tool("plan_deployment", target=L4)).error
    assert refused["code"] == "api_disabled"
    assert "gcloud services enable run.googleapis.com" in refused["next_action"]
    assert not cloud.requests("POST", "batchEnable")
    assert not cloud.requests("POST", ":enable")


@pytest.mark.parametrize("scenario", ["login-expired", "login-reauth"])
async def test_an_expired_login_is_one_clear_error_with_the_one_command(
    cloud: Cloud, caller: Caller, scenario: str
) -> None:
    cloud.fault(scenario)
    cloud.fault("api-401")
    refused = (await caller.tool("find_capacity", target=L4)).error
    assert refused["code"] == "unauthenticated"
    assert "gcloud auth login --update-adc" in refused["next_action"]


async def test_a_token_that_dies_in_the_middle_is_renewed_once(
    cloud: Cloud, caller: Caller
) -> None:
    assert (await caller.tool("list_deployments")).ok["complete"]
    before = len(cloud.requests("POST", "/token"))
    cloud.fault("api-401")
    assert (await caller.tool("list_deployments")).ok["complete"]
    assert (await caller.tool("find_capacity", target=L4)).ok["items"]
    assert len(cloud.requests("POST", "/token")) > before


@pytest.mark.parametrize(
    ("scenario", "code"), [("api-429", "rate_limited"), ("api-503", "unavailable")]
)
async def test_a_control_plane_in_trouble_is_named(
    cloud: Cloud, caller: Caller, scenario: str, code: str
) -> None:
    await caller.tool("list_deployments")
    cloud.fault(scenario, **({"host": "^run"} if code == "unavailable" else {}))
    listed = (await caller.tool("list_deployments")).ok
    assert code in listed["not_answering"][0]["error"]
    refused = (await caller.tool("get_status", target=L4, name="gemma4")).error
    assert refused["code"] == code
    if code == "rate_limited":
        assert refused["retry_after_s"] == 7


async def test_without_gcloud_reading_works_and_changing_says_what_to_install(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("gcloud") is None
    assert (await caller.tool("list_deployments")).ok["complete"]
    planned = await caller.tool("plan_deployment", target=L4)
    refused = (await caller.tool("deploy", target=L4, plan_id=planned.plan_id)).error
    assert refused["failure"] == "cli_missing"
    assert "install the Google Cloud CLI" in refused["next_action"]
    doctor = (await caller.tool("get_help", topic="doctor")).ok["doctor"]
    assert any(check.get("ok") is False and "not on PATH" in check["detail"] for check in doctor)


# -------------------------------------------------------------------------------------- quota


async def test_a_new_project_is_told_every_quota_that_is_short_before_anything_is_sent(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("new-project")
    for target, gpu in ((L4, "NvidiaL4Gpu"), (RTX, "NvidiaRtxPro6000Gpu")):
        cloud.fault(kind="seed-model", folder="gemma-4-26B-A4B-it", checkpoint="gemma-4-31B-it")
        refused = (await caller.tool("plan_deployment", target=target)).error
        assert refused["code"] == "quota"
        assert f"{gpu}AllocNoZonalRedundancyPerProjectRegion" in refused["quota"]
        if target == RTX:
            assert "MemAllocPerProjectRegion" in refused["quota"]
            assert "request 85899345920" in refused["message"]
        capacity = (await caller.tool("find_capacity", target=target)).ok
        assert {item["verdict"] for item in capacity["items"]} == {"short of quota"}
        assert any(gpu in line for line in capacity["to_request"])
    assert not cloud.requests("POST", "/services")


async def test_what_cloud_run_refuses_itself_names_what_was_made_before_and_its_undo(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("gpu-quota-none")
    refused = (await deploy(caller, own_account=True, ignore_quota=True)).error
    assert refused["failure"] == "quota"
    assert "no GPU quota" in refused["cause"]
    assert "g.co/cloudrun/gpu-quota" in refused["next_action"]
    assert "service account vllm-l4-gemma4@" in refused["made_before_the_failure"]
    assert "gcloud iam service-accounts delete" in refused["undo"]


async def test_more_instances_than_the_gpu_quota_are_explained_by_the_refusal(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("gpu-quota-short")
    refused = (await deploy(caller, max_instances=3, ignore_quota=True)).error
    assert "requested: 3 allowed: 1" in " ".join(refused["words"].split())
    assert "pass the GPU quota" in refused["cause"]
    assert "max_instances=1" in refused["next_action"]


async def test_a_denied_create_is_a_permission_and_not_an_absence(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("permission-denied")
    refused = (await deploy(caller)).error
    assert refused["failure"] == "permission_denied"
    assert "run.services.create" in refused["words"]


# ------------------------------------------------------------------- cut off in the middle


async def test_a_create_whose_answer_was_lost_is_there_and_made_once(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("create-answer-lost")
    done = await deploy(caller)
    services = cloud.world()["services"]
    assert list(services) == ["us-east4/gemma4"], done.text
    again = await deploy(caller, concurrency=8)
    assert not again.is_error, again.text
    assert list(cloud.world()["services"]) == ["us-east4/gemma4"]


async def test_a_create_that_gcloud_did_not_live_to_see_is_found_by_its_label(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running, "_DEPLOY_TIMEOUT_S", 5.0)
    # A gcloud that has done its work and then hangs, until it is ended with all it started.
    slow = tmp_path / "gcloud"
    slow.write_text(
        f'#!/bin/sh\n{shutil.which("gcloud")} "$@"\ncase "$*" in *"run deploy"*) sleep 60;; esac\n',
        encoding="utf-8",
    )
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = await deploy(caller)
    assert not done.is_error, done.text
    assert any("found there by its label" in line for line in done.ok["done"])
    assert list(cloud.world()["services"]) == ["us-east4/gemma4"]
    assert len(cloud.requests("POST", "/namespaces/vllm-rehearsal/services")) == 1


async def test_a_create_that_never_came_says_that_its_outcome_is_unknown(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_DEPLOY_TIMEOUT_S", 3.0)
    monkeypatch.setattr(running, "_LOOK_FOR_S", 0.5)
    cloud.fault(
        kind="request", action="delay", method="POST", path="/services$", host="run", delay_s=30
    )
    refused = (await deploy(caller)).error
    assert refused["failure"] == "outcome_unknown"
    assert "get_status" in refused["next_action"]
    assert "makes no second" in refused["next_action"]


# -------------------------------------------------------------------------- starts that fail

_STARTS = {
    "cuda-compatibility": "CUDA compatibility libraries",
    "gpu-kernel-mismatch": "compiled kernels belong to another vLLM",
    "host-out-of-memory": "host's memory is full",
    "container-disk-full": "file system is memory",
    "no-nat": "no way to Hugging Face",
    "hf-rate-limited": "Hugging Face limits requests",
    "wrong-architecture": "does not hold a Gemma 4",
    "startup-probe-kill": "did not answer its startup probe in time",
}


async def test_every_failed_start_is_explained_by_its_own_words(
    cloud: Cloud, caller: Caller
) -> None:
    given(cloud)
    assert (await settled(caller))["state"] == "ready"
    for scenario, cause in _STARTS.items():
        cloud.fault(scenario)
        renew(cloud, TRY=scenario)
        status = await until(caller, "degraded")
        assert cause in status["error_cause"], (scenario, status)
        assert status["next_steps"][0], scenario
        assert "goes on serving" in status["summary"]
        cloud.mend()
    renew(cloud, IMAGE="us-east4-docker.pkg.dev/vllm-rehearsal/vllm/none:v1")
    status = await until(caller, "degraded")
    assert "not found" in status["error"]
    assert "no image of that name" in status["error_cause"]
    assert "options.image" in status["next_steps"][0]


@pytest.mark.parametrize("scenario", ["staging-stuck", "staging-denied"])
async def test_an_image_that_stays_in_its_staging_phase_is_told_by_its_bucket(
    cloud: Cloud, caller: Caller, scenario: str
) -> None:
    denied = "googleapi: Error 403: a@b does not have storage.objects.list access to the bucket"
    if scenario == "staging-denied":
        cloud.fault(kind="start", lines=[denied], hang=True)
    else:
        cloud.fault(scenario)
    given(cloud, COPY_TO_SHM="1")
    deadline = time.monotonic() + 20
    while True:
        status = (await caller.tool("get_status", target=L4, detail=True)).ok
        if "error_cause" in status or time.monotonic() > deadline:
            break
    assert status["phase"] in {"mounting_gcs", "staging_tmpfs"}, status
    assert "account may not read the bucket" in status["error_cause"]
    assert any("roles/storage.objectViewer" in step for step in status["next_steps"])
    assert status["state"] == "starting"


@pytest.mark.parametrize(
    ("scenario", "cause"),
    [("no-capacity", "no free GPU"), ("hf-rate-limited", "Hugging Face limits requests")],
)
async def test_a_start_that_waits_says_what_for(
    cloud: Cloud, caller: Caller, scenario: str, cause: str
) -> None:
    cloud.fault(scenario)
    given(cloud)
    status = (await caller.tool("get_status", target=L4)).ok
    while "error_cause" not in status:
        assert status["state"] in {"starting", "failed"}, status
        status = (await caller.tool("get_status", target=L4)).ok
    assert cause in status["error_cause"]
    assert len(status["next_steps"]) > 1


# ----------------------------------------------------------------------------- the endpoint

_REFUSALS = {
    "endpoint-401": ("endpoint_auth", "identity token"),
    "endpoint-429": ("endpoint_busy", "admits 4 requests at once"),
    "loading-refused": ("endpoint_busy", "before its model is loaded"),
    "server-busy": ("endpoint_not_ready", "More requests wait"),
    "truncated-headers": ("endpoint_not_ready", "HTTP/1.0"),
    "engine-crash": ("endpoint_not_ready", "More was asked of the engine"),
}


async def test_every_refusal_of_the_front_door_is_explained(cloud: Cloud, caller: Caller) -> None:
    given(cloud)
    await settled(caller)
    for scenario, (code, cause) in _REFUSALS.items():
        cloud.fault(scenario)
        refused = (await caller.tool("query_model", target=L4, prompt="Hello")).error
        assert refused["code"] == code, scenario
        assert cause in refused["cause"], scenario
        assert "<html" not in refused.get("words", "")
        cloud.mend()
    cloud.fault("endpoint-403")
    refused = (await caller.tool("query_model", target=L4, prompt="Hello")).error
    assert refused["code"] == "endpoint_auth"
    assert "roles/run.invoker" in refused["cause"]
    assert "add-iam-policy-binding gemma4" in refused["next_action"]
    cloud.mend()
    cloud.fault("logging-429")
    status = (await caller.tool("get_status", target=L4)).ok
    assert status["state"] in {"ready", "scaled_to_zero"}
    app = make_app(cloud.state_dir, rehearsal=True, targets=TARGETS)
    async with connected(app) as other:  # one that has read no logs yet
        status = (await other.tool("get_status", target=L4)).ok
        assert "1 instance up, by Cloud Monitoring" in status["summary"]
        assert any("rate_limited" in text or "Logs" in text for text in status["warnings"])
    assert (await caller.tool("query_model", target=L4, prompt="Hello", max_tokens=4)).ok


async def test_tool_calls_that_come_back_as_text_are_told_by_the_flags_that_are_missing(
    cloud: Cloud, caller: Caller
) -> None:
    given(cloud, without=("--enable-auto-tool-choice", "--tool-call-parser=gemma4"))
    await settled(caller)
    health = (await caller.tool("verify_model_health", target=L4, deep=True)).ok
    (check,) = [item for item in health["checks"] if item["name"] == "tool_call"]
    assert check["ok"] is False
    assert any("tool-call-parser" in step for step in health["next_steps"]), health["next_steps"]


# ------------------------------------------------------------------------- whose it is


async def test_a_service_that_is_not_ours_is_seen_and_never_changed(
    cloud: Cloud, caller: Caller
) -> None:
    given(cloud, label=False)
    app = make_app(cloud.state_dir, rehearsal=True, targets=TARGETS)
    async with connected(app) as other:
        listed = (await other.tool("list_deployments", target=L4)).ok
        assert [item["managed"] for item in listed["items"]] == [False]
        for tool, arguments in (
            ("destroy", {}),
            ("plan_deployment", {}),
            ("update_scaling", {"min_instances": 1}),
        ):
            refused = (await other.tool(tool, target=L4, name="gemma4", **arguments)).error
            assert refused["code"] == "not_managed"
            assert "--update-labels=managed-by=vllm-devops" in refused["next_action"]


async def test_an_account_that_a_killed_deploy_left_is_mentioned_and_can_be_deleted(
    cloud: Cloud, caller: Caller
) -> None:
    # What its first step makes, before the server that ran it was killed.
    account = {"displayName": "vllm-devops gemma4", "description": "managed-by=vllm-devops"}
    cloud.google(
        "POST",
        f"https://iam.googleapis.com/v1/projects/{cloud.running.project}/serviceAccounts",
        {"accountId": "vllm-l4-gemma4", "serviceAccount": account},
    )
    listed = (await caller.tool("list_deployments", target=L4)).ok
    assert listed["items"] == []
    assert "The service account vllm-l4-gemma4@" in listed["left_over"][0]
    assert f"destroy(target='{L4}', name='gemma4')" in listed["left_over"][0]
    assert "left_over" not in (await caller.tool("list_deployments", target=RTX)).ok
    gone = await destroy(caller)
    assert gone.ok["state"] == "stopped"
    assert "left_over" not in (await caller.tool("list_deployments", target=L4)).ok

"""Faults: each named one can be switched on and off, and does what its row says."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest

from backends.rehearsal.cloud.scenarios import SCENARIOS
from tests.cloud.rehearsal import BUCKET, KNATIVE, Json, Rehearsal, ready, service
from tests.support.processes import wait_for

SWITCHED = [name for name, scenario in SCENARIOS.items() if scenario.effects]


def test_every_scenario_says_what_it_is_and_how_to_have_it(cloud: Rehearsal) -> None:
    shown = cloud.control("GET", "/scenarios")
    assert shown.keys() == SCENARIOS.keys()
    for name, scenario in SCENARIOS.items():
        assert scenario.seen_as, name
        assert scenario.cause, name
        assert scenario.effects or scenario.natural, name


@pytest.mark.parametrize("name", SWITCHED)
def test_every_scenario_can_be_switched_on_and_off(cloud: Rehearsal, name: str) -> None:
    before = cloud.control("GET", "/world")
    with cloud.fault(name) as made:
        shown = cloud.control("GET", "/faults")["faults"]
        assert [item["id"] for item in shown] == [item["id"] for item in made]
        assert {item["name"] for item in shown} == {name}
    assert cloud.control("GET", "/faults")["faults"] == []
    after = cloud.control("GET", "/world")
    for part in ("quotas", "enabled", "policies"):
        assert after[part] == before[part]
    for knob in ("denied", "no_capacity", "login", "token_lifetime_s"):
        assert after["knobs"][knob] == before["knobs"][knob]


# Faults in the start of a container, and the words its log or its revision then has.
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cuda-compatibility", "Error 803: system has unsupported display driver"),
        ("gpu-kernel-mismatch", "_C::gptq_marlin_repack() Expected a value of type 'Tensor'"),
        ("host-out-of-memory", "Memory limit of 32768 MiB exceeded with 33139 MiB used."),
        ("hf-rate-limited", "Rate limited. Waiting 253.0s before retry [Retry 1/5]."),
        ("engine-out-of-memory", "torch.OutOfMemoryError: CUDA out of memory."),
        ("no-kv-cache", "ValueError: No available memory for the cache blocks."),
        ("model-not-found", "huggingface_hub.errors"),
        ("stuck-start", "STARTUP HTTP probe failed 10 times consecutively"),
        ("startup-probe-kill", "STARTUP HTTP probe failed 10 times consecutively"),
        ("wrong-architecture", "could not locate think start/end tokens"),
    ],
)
def test_a_start_goes_wrong_as_asked(cloud: Rehearsal, name: str, words: str) -> None:
    with cloud.fault(name):
        made = cloud.deploy("troubled", within_s=45)
        assert ready(made)["status"] == "False"
        assert "failed the configured startup probe checks" in ready(made)["message"]
        assert words in "\n".join(cloud.logs("troubled"))


def test_a_slow_start_is_slow_and_gets_there(cloud: Rehearsal) -> None:
    with cloud.fault("slow-start", service="slow"):
        for name in ("usual", "slow"):
            assert ready(cloud.deploy(name))["status"] == "True"
    assert cloud.load_s("slow") == pytest.approx(cloud.load_s("usual") * 3, rel=0.1)


def test_a_fault_meets_the_service_it_names(cloud: Rehearsal) -> None:
    with cloud.fault("engine-out-of-memory", service="bad-*"):
        assert ready(cloud.deploy("good"))["status"] == "True"
        assert ready(cloud.deploy("bad-one"))["status"] == "False"
        # Once only: the next start is well.
        cloud.delete("bad-one")
        assert ready(cloud.deploy("bad-one"))["status"] == "True"


def test_requests_fail_as_often_as_asked(cloud: Rehearsal) -> None:
    with cloud.fault(path="/services$", method="GET", status=503, times=2, skip=1) as made:
        seen = [cloud.rest.get(f"{KNATIVE}/services").status_code for _ in range(4)]
        assert seen == [200, 503, 503, 200]
        met = cloud.control("GET", "/faults")["faults"][0]
        assert met["met"] == 2
        logged = [item.get("fault") for item in cloud.control("GET", "/requests")["requests"][-4:]]
        assert logged == [None, made[0]["id"], made[0]["id"], None]


def test_an_answer_can_have_any_body_header_and_delay(cloud: Rehearsal) -> None:
    fault: Json = {
        "path": "/services$",
        "status": 429,
        "headers": {"retry-after": "7"},
        "body": {"error": {"code": 429, "message": "slow down"}},
        "delay_s": 0.3,
    }
    with cloud.fault(**fault):
        began = time.monotonic()
        answer = cloud.rest.get(f"{KNATIVE}/services")
        assert time.monotonic() - began >= 0.3
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    assert answer.json()["error"]["message"] == "slow down"


def test_a_cut_connection_does_nothing_and_a_lost_answer_does(cloud: Rehearsal) -> None:
    with (
        cloud.fault("api-cut", path="/services$", method="POST"),
        pytest.raises(httpx.RemoteProtocolError),
    ):
        cloud.rest.post(f"{KNATIVE}/services", json=service("cut"))
    assert cloud.rest.get(f"{KNATIVE}/services/cut").status_code == 404
    with cloud.fault("create-answer-lost"), pytest.raises(httpx.RemoteProtocolError):
        cloud.rest.post(f"{KNATIVE}/services", json=service("lost"))
    assert cloud.rest.get(f"{KNATIVE}/services/lost").status_code == 200
    lost = [
        item
        for item in cloud.control("GET", "/requests")["requests"]
        if item["method"] == "POST" and item["path"].endswith("/services")
    ]
    assert [item["status"] for item in lost] == [None, None]


def test_the_api_is_disabled_denied_or_logged_out(cloud: Rehearsal) -> None:
    with cloud.fault("api-disabled"):
        error = cloud.rest.get(f"{KNATIVE}/services").json()["error"]
        assert "Cloud Run Admin API has not been used in project 424242424242" in error["message"]
        assert error["details"][0]["reason"] == "SERVICE_DISABLED"
    with cloud.fault("permission-denied", permission="run.services.*"):
        error = cloud.rest.get(f"{KNATIVE}/services/x").json()["error"]
        assert error["message"] == (
            "Permission 'run.services.get' denied on resource "
            "'namespaces/vllm-rehearsal/services/x' (or resource may not exist)."
        )
    with cloud.fault("api-401"):
        assert cloud.rest.get(f"{KNATIVE}/services").status_code == 401
        cloud.login()
        assert cloud.rest.get(f"{KNATIVE}/services").status_code == 200
    for name, subtype in (("login-expired", None), ("login-reauth", "invalid_rapt")):
        with cloud.fault(name):
            refused = cloud.rest.post(
                "https://oauth2.googleapis.com/token",
                data={"grant_type": "refresh_token", "refresh_token": "x"},
            )
            assert refused.status_code == 400
            assert refused.json()["error"] == "invalid_grant"
            assert refused.json().get("error_subtype") == subtype


def test_denials_come_in_each_apis_own_words(cloud: Rehearsal) -> None:
    with cloud.fault("permission-denied", permission="*"):
        for url, words in (
            (
                "https://storage.googleapis.com/storage/v1/b/x",
                "does not have storage.buckets.get access to the Google Cloud Storage bucket.",
            ),
            (
                "https://secretmanager.googleapis.com/v1/projects/vllm-rehearsal/secrets",
                "denied for resource 'projects/vllm-rehearsal/secrets' (or it may not exist).",
            ),
            (
                "https://compute.googleapis.com/compute/v1/projects/vllm-rehearsal/zones",
                "Required 'compute.zones.list' permission for 'projects/vllm-rehearsal/zones'",
            ),
        ):
            answer = cloud.rest.get(url)
            assert answer.status_code == 403
            assert words in answer.json()["error"]["message"]


def test_endpoints_answer_wrongly_as_asked(cloud: Rehearsal) -> None:
    url = cloud.deploy("faulty")["status"]["url"]
    for name, status, words in (
        ("endpoint-401", 401, "Error: Unauthorized"),
        ("endpoint-403", 403, "Error: Forbidden"),
        ("endpoint-429", 429, "Rate exceeded."),
        ("loading-refused", 429, "model is loading"),
        ("server-busy", 503, "server busy"),
        ("truncated-headers", 503, "early terminated the request (truncated headers)"),
        ("engine-crash", 502, "EngineCore encountered an issue"),
        ("service-disabled", 503, "Service is disabled."),
    ):
        with cloud.fault(name):
            answer = cloud.call(url)
            assert answer.status_code == status, name
            assert words in answer.text
            if name == "engine-crash":
                assert cloud.call(url).text == "no healthy backend"
    with cloud.fault("endpoint-cut"), pytest.raises(httpx.RemoteProtocolError):
        cloud.call(url)


def test_logging_can_run_out_of_reads(cloud: Rehearsal) -> None:
    with cloud.fault("logging-429"):
        answer = cloud.rest.post(
            "https://logging.googleapis.com/v2/entries:list",
            json={"resourceNames": ["projects/vllm-rehearsal"]},
        )
    assert answer.status_code == 429
    assert "logging.googleapis.com" in answer.json()["error"]["message"]


def test_a_build_fails_with_what_it_was_told(cloud: Rehearsal) -> None:
    builds = "https://cloudbuild.googleapis.com/v1/projects/vllm-rehearsal/builds"
    steps = [
        {
            "name": "python:3.11-slim",
            "entrypoint": "bash",
            "args": ["-c", "hf download google/gemma-4-12B-it --local-dir /workspace/m"],
        },
        {
            "name": "gcr.io/cloud-builders/gcloud",
            "args": ["storage", "cp", "-r", "/workspace/m", f"gs://{BUCKET}/gemma-4-12B-it"],
        },
    ]

    def build() -> Json:
        made = cloud.rest.post(builds, json={"steps": steps}).json()["metadata"]["build"]
        assert made["status"] == "QUEUED"

        def finished() -> Json | None:
            """the build is finished"""
            found = cloud.rest.get(f"{builds}/{made['id']}").json()
            return dict(found) if found["status"] not in {"QUEUED", "WORKING"} else None

        return wait_for(finished)

    objects = f"https://storage.googleapis.com/storage/v1/b/{BUCKET}/o"
    with cloud.fault("build-disk-full"):
        failed = build()
    assert failed["status"] == "FAILURE"
    logged = cloud.rest.post(
        "https://logging.googleapis.com/v2/entries:list",
        json={
            "resourceNames": ["projects/vllm-rehearsal"],
            "filter": f'resource.type="build" resource.labels.build_id="{failed["id"]}"',
        },
    ).json()["entries"]
    assert any("No space left on device" in item["textPayload"] for item in logged)
    assert "items" not in cloud.rest.get(objects, params={"prefix": "gemma-4-12B-it/"}).json()
    done = build()
    assert done["status"] == "SUCCESS"
    staged = cloud.rest.get(objects, params={"prefix": "gemma-4-12B-it/"}).json()["items"]
    assert {item["name"].rpartition("/")[2] for item in staged} >= {
        "config.json",
        "model.safetensors",
    }


def test_faults_can_come_from_a_file(cloud: Rehearsal) -> None:
    path = Path(cloud.running.state_dir) / "faults.json"
    path.write_text(json.dumps([{"name": "gpu-quota-none"}]), encoding="utf-8")
    try:
        answer = cloud.rest.post(f"{KNATIVE}/services", json=service("filed"))
        assert "quota for using GPUs" in answer.json()["error"]["message"]
    finally:
        path.unlink()
    assert cloud.rest.get(f"{KNATIVE}/services").status_code == 200
    assert cloud.control("GET", "/faults")["faults"] == []

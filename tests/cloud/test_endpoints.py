"""The URLs of services: who is let in, who answers, how many at once, and what goes wrong."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.cloud.conftest import SPEED
from tests.cloud.rehearsal import KNATIVE, REGION, V2, Json, Rehearsal, ready, service
from tests.support.processes import wait_for

MODEL = "/mnt/models/gemma-4-E2B-it"
DIRECT_EGRESS = {
    "run.googleapis.com/network-interfaces": '[{"network":"default"}]',
    "run.googleapis.com/vpc-access-egress": "all-traffic",
}
STAGING_ENV = [
    {"name": "MODEL", "value": "/mnt/models/gemma-4-E2B-it"},
    {"name": "COPY_TO_SHM", "value": "0"},
    {"name": "MAX_INFLIGHT", "value": "2"},
]


def chat(tokens: int = 4, **more: Any) -> Json:
    """A chat request."""
    messages = [{"role": "user", "content": "Say something about the weather."}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "ignore_eos": True} | more


def allow(cloud: Rehearsal, name: str, *members: str) -> None:
    """Let members call a service."""
    resource = f"projects/vllm-rehearsal/locations/{REGION}/services/{name}"
    binding = {"role": "roles/run.invoker", "members": list(members)}
    answer = cloud.rest.post(
        f"https://run.googleapis.com/v1/{resource}:setIamPolicy",
        json={"policy": {"bindings": [binding]}},
    )
    assert answer.status_code == 200


def test_a_private_service_wants_a_token_and_a_role(cloud: Rehearsal) -> None:
    url = cloud.deploy("private")["status"]["url"]
    without = httpx.Request("GET", f"{url}/v1/models")
    bare = cloud.rest.send(without)
    assert bare.status_code == 403
    assert "<title>403 Forbidden</title>" in bare.text
    wrong = cloud.call(url, headers={"authorization": "Bearer eyJ.no.token"})
    assert wrong.status_code == 401
    assert 'error="invalid_token"' in wrong.headers["www-authenticate"]
    assert cloud.call(url).status_code == 200
    with cloud.fault("endpoint-403"):
        assert cloud.call(url).status_code == 403
        allow(cloud, "private", f"user:{cloud.running.account}")
        assert cloud.call(url).status_code == 200
    allow(cloud, "private", "allUsers")
    assert cloud.rest.send(without).status_code == 200
    words = " ".join(cloud.logs("private", "severity=WARNING"))
    assert "The request was not authenticated" in words


def test_a_service_account_calls_with_a_token_for_the_url(cloud: Rehearsal) -> None:
    url = cloud.deploy("machine")["status"]["url"]
    account = cloud.rest.post(
        "https://iam.googleapis.com/v1/projects/vllm-rehearsal/serviceAccounts",
        json={"accountId": "short"},
    )
    assert account.status_code == 400  # six letters at least
    account = cloud.rest.post(
        "https://iam.googleapis.com/v1/projects/vllm-rehearsal/serviceAccounts",
        json={"accountId": "caller-one"},
    )
    email = account.json()["email"]

    def token(audience: str) -> dict[str, str]:
        answer = cloud.rest.post(
            "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
            f"{email}:generateIdToken",
            json={"audience": audience, "includeEmail": True},
        )
        return {"authorization": f"Bearer {answer.json()['token']}"}

    assert cloud.call(url, headers=token(url)).status_code == 403
    allow(cloud, "machine", f"serviceAccount:{email}")
    assert cloud.call(url, headers=token(url)).status_code == 200
    assert cloud.call(url, headers=token("https://elsewhere.example")).status_code == 401


def test_tokens_run_out(cloud: Rehearsal) -> None:
    url = cloud.deploy("tokens")["status"]["url"]
    with cloud.fault("short-tokens", seconds=1):
        cloud.login()

        def expired() -> bool:
            """the token has run out"""
            return cloud.call(url).status_code == 401

        wait_for(expired, 5)

        def refused() -> bool:
            """the APIs take the access token no more"""
            answer = cloud.rest.get(f"{KNATIVE}/services").json()
            return bool(answer.get("error", {}).get("status") == "UNAUTHENTICATED")

        wait_for(refused, 5)
    cloud.login()
    assert cloud.call(url).status_code == 200


def test_both_of_its_urls_answer_and_no_other(cloud: Rehearsal) -> None:
    cloud.deploy("urls")
    urls = cloud.rest.get(f"{V2}/{REGION}/services/urls").json()["urls"]
    assert [cloud.call(url).status_code for url in urls] == [200, 200]
    assert cloud.call("https://other-424242424242.us-east4.run.app").status_code == 404
    model = cloud.call(urls[0]).json()["data"][0]
    assert model["id"] == MODEL
    assert model["max_model_len"] == 16384


def test_traffic_goes_where_it_was_sent(cloud: Rehearsal) -> None:
    first = cloud.deploy("split")["status"]["latestReadyRevisionName"]

    def candidate(current: Json) -> None:
        container = current["spec"]["template"]["spec"]["containers"][0]
        container["args"] = [*container["args"], "--served-model-name=candidate"]
        current["spec"]["template"]["metadata"]["name"] = "split-00002-new"
        current["spec"]["traffic"] = [
            {"revisionName": first, "percent": 100},
            {"revisionName": "split-00002-new", "tag": "candidate"},
        ]

    made = cloud.update("split", candidate)
    url = made["status"]["url"]
    tagged = made["status"]["traffic"][1]["url"]
    assert tagged == url.replace("https://", "https://candidate---")
    assert cloud.call(url).json()["data"][0]["id"] == MODEL
    assert cloud.call(tagged).json()["data"][0]["id"] == "candidate"

    def half(current: Json) -> None:
        current["spec"]["traffic"] = [
            {"revisionName": first, "percent": 50},
            {"revisionName": "split-00002-new", "percent": 50},
        ]

    moved = cloud.update("split", half)
    assert len(moved["status"]["traffic"]) == 2
    seen = Counter(cloud.call(url).json()["data"][0]["id"] for _ in range(60))
    assert 10 <= seen["candidate"] <= 50
    assert seen["candidate"] + seen[MODEL] == 60
    # The tag is gone, and its URL with it.
    assert cloud.call(tagged).status_code == 503


def test_it_sleeps_when_nobody_asks_and_wakes_when_somebody_does(cloud: Rehearsal) -> None:
    cloud.control("POST", "/settings", {"idle_s": 0.3})
    try:
        url = cloud.deploy("sleepy")["status"]["url"]
        wait_for(lambda: not cloud.instances("sleepy"))
        assert ready(cloud.settled("sleepy"))["status"] == "True"
        assert not cloud.instances("sleepy"), "reading its status woke it"
        cloud.control("POST", "/settings", {"idle_s": 30})
        assert cloud.call(url, "/health").status_code == 200
        assert [item["phase"] for item in cloud.instances("sleepy")] == ["ready"]
        assert any("Reason: AUTOSCALING" in line for line in cloud.logs("sleepy"))
    finally:
        cloud.control("POST", "/settings", {"idle_s": 30})


def test_minimum_and_manual_instances_are_kept(cloud: Rehearsal) -> None:
    url = cloud.deploy("kept", max_instances="2")["status"]["url"]

    def manual(count: int) -> Any:
        def change(current: Json) -> None:
            annotations = current["metadata"]["annotations"]
            annotations["run.googleapis.com/scalingMode"] = "manual"
            annotations["run.googleapis.com/manualInstanceCount"] = str(count)

        return change

    cloud.update("kept", manual(2))
    wait_for(lambda: [item["phase"] for item in cloud.instances("kept")] == ["ready"] * 2)
    cloud.update("kept", manual(0))
    began = time.monotonic()
    disabled = cloud.call(url)
    assert time.monotonic() - began < 0.2
    assert disabled.status_code == 503
    assert "Service is disabled." in disabled.text
    revision = cloud.rest.get(f"{KNATIVE}/revisions").json()["items"][0]
    healthy = {item["type"]: item["status"] for item in revision["status"]["conditions"]}
    assert healthy["ContainerHealthy"] == "True"
    wait_for(lambda: not cloud.instances("kept"))


def test_throughput_is_flat_above_the_admission_cap(cloud: Rehearsal) -> None:
    url = cloud.deploy("plateau")["status"]["url"]
    assert cloud.call(url, "/v1/chat/completions", json=chat()).status_code == 200

    def level(concurrency: int) -> float:
        def one(_: int) -> int:
            answer = cloud.call(url, "/v1/chat/completions", json=chat(16))
            assert answer.status_code == 200
            return int(answer.json()["usage"]["completion_tokens"])

        began = time.monotonic()
        with ThreadPoolExecutor(concurrency) as pool:
            tokens = sum(pool.map(one, range(8)))
        return tokens / (time.monotonic() - began)

    rates = {concurrency: level(concurrency) for concurrency in (1, 4, 8)}
    assert rates[4] > rates[1] * 1.6
    assert rates[8] < rates[4] * 1.4
    assert max(item["inflight"] for item in cloud.instances("plateau")) <= 4


def test_more_requests_bring_more_instances_up_to_the_most(cloud: Rehearsal) -> None:
    url = cloud.deploy("wide", max_instances="2", concurrency=1)["status"]["url"]

    def one(_: int) -> int:
        return cloud.call(url, "/v1/chat/completions", json=chat(40)).status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(one, range(6)))
    assert statuses == [200] * 6
    assert len(cloud.instances("wide")) == 2


def test_streams_come_piece_by_piece(cloud: Rehearsal) -> None:
    url = cloud.deploy("stream")["status"]["url"]
    headers = {"authorization": f"Bearer {cloud.identity_token}"}
    body = chat(20, stream=True)
    times: list[float] = []
    with cloud.rest.stream(
        "POST", f"{url}/v1/chat/completions", json=body, headers=headers
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-vllm-devops-simulated"] == "1"
        times.extend(time.monotonic() for line in answer.iter_lines() if line)
    assert len(times) > 15
    assert times[-1] - times[0] > 0.1


def test_a_client_that_leaves_frees_its_place(cloud: Rehearsal) -> None:
    url = cloud.deploy("leaver", concurrency=1)["status"]["url"]
    headers = {"authorization": f"Bearer {cloud.identity_token}"}
    body = chat(4000, stream=True)
    with cloud.rest.stream(
        "POST", f"{url}/v1/chat/completions", json=body, headers=headers
    ) as answer:
        pieces = answer.iter_bytes()
        assert next(pieces)
        assert cloud.instances("leaver")[0]["inflight"] == 1
    wait_for(lambda: cloud.instances("leaver")[0]["inflight"] == 0, 5)
    assert cloud.call(url, "/v1/chat/completions", json=chat()).status_code == 200


def test_an_instance_that_dies_is_replaced(cloud: Rehearsal) -> None:
    url = cloud.deploy("mortal")["status"]["url"]
    before = cloud.instances("mortal")[0]["pid"]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(cloud.call, url, "/v1/chat/completions", json=chat(4000))
        wait_for(lambda: cloud.instances("mortal")[0]["inflight"] == 1)
        cloud.control("POST", "/faults", {"name": "instance-killed", "service": "mortal"})
        assert answer.result().status_code == 503
        assert "upstream connect error" in answer.result().text
    assert cloud.call(url).status_code == 200
    assert cloud.instances("mortal")[0]["pid"] != before
    assert any("Container terminated on signal 9." in line for line in cloud.logs("mortal"))


def test_a_start_on_demand_that_fails_is_not_available(cloud: Rehearsal) -> None:
    cloud.control("POST", "/settings", {"idle_s": 0.2})
    try:
        url = cloud.deploy("unlucky")["status"]["url"]
        wait_for(lambda: not cloud.instances("unlucky"))
        with cloud.fault("no-kv-cache", times=-1):
            answer = cloud.call(url)
        assert answer.status_code == 503
        assert "not available yet" in answer.text
    finally:
        cloud.control("POST", "/settings", {"idle_s": 30})


def test_a_container_on_the_wrong_port_never_starts(cloud: Rehearsal) -> None:
    made = cloud.deploy("ports", port=8080, probe=None)
    assert "listen on the port defined provided by the PORT=8080" in ready(made)["message"]
    assert cloud.call(made["status"]["url"]).status_code == 503


def test_an_image_that_stages_weights_listens_before_it_is_ready(cloud: Rehearsal) -> None:
    cloud.control("POST", "/settings", {"speed": 250})
    try:
        body = service(
            "stages",
            env=STAGING_ENV,
            command=None,
            args=None,
            concurrency=8,
            annotations=DIRECT_EGRESS,
        )
        cloud.rest.post(f"{KNATIVE}/services", json=body)
        url = cloud.settled("stages")["status"]["url"]
        early = cloud.call(url, "/health")
        assert early.status_code == 200
        assert early.json()["vllm_ready"] is False
        refused = cloud.call(url, "/v1/chat/completions", json=chat())
        assert refused.status_code == 503
        assert refused.json()["error"] == "model is loading"
        phases: list[str] = []

        def warmed() -> bool:
            """the image says that it is warmed"""
            health = cloud.call(url, "/health").json()
            if health["phase"] not in phases:
                phases.append(health["phase"])
            return bool(health["vllm_ready"] and health["warmed"])

        wait_for(warmed, 40)
        assert phases[-1] == "ready"
        assert "staging_tmpfs" in phases
        assert cloud.call(url, "/v1/chat/completions", json=chat()).status_code == 200
        with ThreadPoolExecutor(6) as pool:
            bodies = [chat(100)] * 6
            answers = list(
                pool.map(lambda body: cloud.call(url, "/v1/chat/completions", json=body), bodies)
            )
        busy = [answer for answer in answers if answer.status_code == 503]
        assert busy
        assert busy[0].text == "server busy"
    finally:
        cloud.control("POST", "/settings", {"speed": SPEED})


def test_staging_is_slow_without_vpc_egress(cloud: Rehearsal) -> None:
    for name, egress in (("direct", DIRECT_EGRESS), ("public", {})):
        body = service(name, env=STAGING_ENV, command=None, args=None, annotations=egress)
        cloud.rest.post(f"{KNATIVE}/services", json=body)

    def loaded() -> bool:
        """both have loaded their weights"""
        return all(
            any("Loading weights took" in line for line in cloud.logs(name))
            for name in ("direct", "public")
        )

    wait_for(loaded, 30)
    assert cloud.load_s("public") > cloud.load_s("direct") * 2.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"env": [{"name": "VLLM_ENABLE_CUDA_COMPATIBILITY", "value": "1"}]},
            "Error 803: system has unsupported display driver / cuda driver combination",
        ),
        ({"args": ["--model=/mnt/models/not-there", "--port=8000"]}, "HFValidationError"),
        (
            {
                "args": ["--model=google/gemma-4-E2B-it", "--port=8000"],
                "bucket": "",
                "annotations": DIRECT_EGRESS,
            },
            "httpx.ConnectTimeout",
        ),
        (
            {"args": ["--model=google/gemma-4-12B-it", "--port=8000"], "bucket": ""},
            "CUDA out of memory",
        ),
        ({"bucket": "no-such-bucket"}, "bucket no-such-bucket does not exist"),
        (
            {
                "env": [{"name": "COPY_TO_SHM", "value": "1"}],
                "args": ["--model=google/gemma-4-E4B-it", "--port=8000"],
                "bucket": "",
                "memory": "24Gi",
            },
            "Memory limit of 24576 MiB exceeded with",
        ),
    ],
)
def test_what_cannot_start_says_why_in_its_log(cloud: Rehearsal, changes: Json, words: str) -> None:
    made = cloud.deploy("fails", **changes)
    if ready(made)["status"] == "True":  # an image that listens before it loads

        def said() -> bool:
            """the log says why"""
            return words in "\n".join(cloud.logs("fails"))

        wait_for(said)
        return
    assert "startup probe" in ready(made)["message"]
    assert words in "\n".join(cloud.logs("fails"))


def test_an_image_or_secret_that_is_not_there_fails_the_revision(cloud: Rehearsal) -> None:
    image = "us-east4-docker.pkg.dev/vllm-rehearsal/vllm/custom:1"
    assert f"Image '{image}' not found." in ready(cloud.deploy("noimage", image=image))["message"]
    reference = {"secretKeyRef": {"name": "hf-token", "key": "latest"}}
    wanted = [{"name": "HF_TOKEN", "valueFrom": reference}]
    message = ready(cloud.deploy("nosecret", env=wanted))["message"]
    assert "Secret projects/424242424242/secrets/hf-token/versions/latest was not found" in message
    secrets = "https://secretmanager.googleapis.com/v1/projects/vllm-rehearsal/secrets"
    cloud.rest.post(secrets, params={"secretId": "hf-token"}, json={})
    cloud.rest.post(f"{secrets}/hf-token:addVersion", json={"payload": {"data": "aGY="}})
    message = ready(cloud.deploy("denied", env=wanted))["message"]
    assert "Permission denied on secret: projects/424242424242/secrets/hf-token" in message
    assert "roles/secretmanager.secretAccessor" in message
    ghost = service("ghost", account="ghost@vllm-rehearsal.iam.gserviceaccount.com")
    refused = cloud.rest.post(f"{KNATIVE}/services", json=ghost)
    assert refused.status_code == 403
    assert "iam.serviceaccounts.actAs" in refused.json()["error"]["message"]


def test_a_bucket_must_let_the_service_account_in(cloud: Rehearsal) -> None:
    url = "https://iam.googleapis.com/v1/projects/vllm-rehearsal/serviceAccounts"
    email = cloud.rest.post(url, json={"accountId": "reader-one"}).json()["email"]
    made = cloud.deploy("reader", account=email)
    assert ready(made)["status"] == "False"
    assert any("storage.objects.list access" in line for line in cloud.logs("reader"))
    cloud.delete("reader")
    bucket = "https://storage.googleapis.com/storage/v1/b/vllm-rehearsal-bucket/iam"
    binding = {"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{email}"]}
    assert cloud.rest.put(bucket, json={"bindings": [binding]}).status_code == 200
    assert ready(cloud.deploy("reader", account=email))["status"] == "True"


def test_without_the_parser_tools_are_refused(cloud: Rehearsal) -> None:
    arguments = ["--model=/mnt/models/gemma-4-E2B-it", "--port=8000"]
    url = cloud.deploy("toolless", args=arguments)["status"]["url"]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = chat(tools=tools, tool_choice="auto")
    answer = cloud.call(url, "/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "--enable-auto-tool-choice" in answer.text

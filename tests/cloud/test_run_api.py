"""Cloud Run's API: what is refused and in which words, and what becomes of what is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from backends.rehearsal.cloud.run.v2_in import service_from_v2
from tests.cloud.conftest import SPEED
from tests.cloud.rehearsal import (
    ARGS,
    BUCKET,
    KNATIVE,
    REGION,
    V2,
    Json,
    Rehearsal,
    ready,
    service,
)
from tests.support.processes import wait_for

MAX_SCALE = "spec.template.metadata.annotations[autoscaling.knative.dev/maxScale]"
PROBE = {"httpGet": {"path": "/health", "port": 8000}}
RTX: Json = {"gpu": "nvidia-rtx-pro-6000", "cpu": "20", "memory": "80Gi"}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"gpu": "nvidia-h9000"}, "node_selector", "Unsupported GPU type 'nvidia-h9000'"),
        (RTX, "node_selector", "not supported in region 'us-east4'"),
        ({"cpu": "2"}, "limits", "CPU must be at least 4"),
        ({"memory": "8Gi"}, "limits", "memory must be at least 16Gi"),
        ({"gpu": "", "cpu": "3"}, "limits.cpu", "Must be equal to one of [.08-1], 1.0"),
        ({"gpu": "", "cpu": "1", "memory": "8Gi"}, "memory", "between 512Mi and 4Gi inclusive"),
        ({"memory": "many"}, "limits", "Could not parse Quantity"),
        ({"concurrency": 2000}, "container_concurrency", "between 0 and 1000"),
        ({"image": "ghcr.io/org/Image"}, "image", "Expected an image path like"),
        ({"env": [{"name": "PORT", "value": "1"}]}, "env", "reserved env names were provided"),
        ({"probe": PROBE | {"periodSeconds": 241}}, "startup_probe", "between 0 and 240"),
        ({"probe": PROBE | {"timeoutSeconds": 300}}, "startup_probe", "timeout_seconds must"),
        ({"probe": PROBE | {"initialDelaySeconds": 1800}}, "startup_probe", "initial_delay"),
        ({"probe": PROBE | {"failureThreshold": -1}}, "failure_threshold", "positive number"),
        ({"probe": {"periodSeconds": 10}}, "startup_probe", "Exactly one probe action"),
        (
            {"annotations": {"run.googleapis.com/cpu-throttling": "true"}},
            "cpu-throttling",
            "must be disabled in order to set GPU requirements",
        ),
        (
            {"annotations": {"run.googleapis.com/execution-environment": "gen1"}},
            "execution-environment",
            "must be set to gen2 in order to set GPU",
        ),
        ({"traffic": [{"latestRevision": True, "percent": 70}]}, "traffic", "should be 100"),
        (
            {"annotations": {"autoscaling.knative.dev/minScale": "3"}},
            "maxScale",
            "greater than or equal to min_instance_count",
        ),
        (
            {"traffic": [{"revisionName": "other-00001-abc", "percent": 100}]},
            "traffic",
            "Revision 'other-00001-abc' not found",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_field(
    cloud: Rehearsal, changes: Json, field: str, words: str
) -> None:
    answer = cloud.rest.post(f"{KNATIVE}/services", json=service("wrong", **changes))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["status"] == "INVALID_ARGUMENT"
    violation = error["details"][0]["fieldViolations"][0]
    assert field in violation["field"]
    assert words in " ".join(item["description"] for item in error["details"][0]["fieldViolations"])
    assert cloud.rest.get(f"{KNATIVE}/services").json()["items"] == []


def test_bad_names_and_bodies_are_refused(cloud: Rehearsal) -> None:
    for name in ("Upper", "-dash", "ends-", "x" * 50):
        answer = cloud.rest.post(f"{KNATIVE}/services", json=service(name))
        assert "only lowercase" in answer.json()["error"]["message"]
    assert cloud.rest.post(f"{KNATIVE}/services", json={"metadata": {}}).status_code == 400
    assert cloud.rest.post(f"{KNATIVE}/services", json=[1]).status_code == 400


@pytest.mark.parametrize(
    ("fault", "changes", "lines"),
    [
        ("gpu-quota-none", {}, ["You do not have quota for using GPUs without zonal redundancy."]),
        (
            "gpu-quota-short",
            {"max_instances": "3"},
            [
                "Max instances must be set to 1 or fewer in order to set GPU requirements.",
                "NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion requested: 3 allowed: 1",
            ],
        ),
        (
            "memory-quota",
            {"max_instances": "2"},
            ["MemAllocPerProjectRegion requested: 68719476736 allowed: 42949672960"],
        ),
        (
            "cpu-quota",
            {"max_instances": "3"},
            [
                "Max instances must be set to 2 or fewer to set the requested total CPU.",
                "CpuAllocPerProjectRegion requested: 24000 allowed: 20000",
            ],
        ),
        ("new-project", {}, ["To request quota: g.co/cloudrun/gpu-quota"]),
    ],
)
def test_quotas_are_held(cloud: Rehearsal, fault: str, changes: Json, lines: list[str]) -> None:
    with cloud.fault(fault):
        answer = cloud.rest.post(f"{KNATIVE}/services", json=service("big", **changes))
        violation = answer.json()["error"]["details"][0]["fieldViolations"][0]
        assert violation["field"] == MAX_SCALE
        for line in lines:
            assert line in violation["description"]
    # With the fault switched off, the same request passes.
    checked = cloud.rest.post(
        f"{KNATIVE}/services", params={"dryRun": "all"}, json=service("big", **changes)
    )
    assert checked.status_code == 200


def test_zonal_redundancy_has_a_quota_of_its_own(cloud: Rehearsal) -> None:
    wanted = service("zonal")
    del wanted["spec"]["template"]["metadata"]["annotations"][
        "run.googleapis.com/gpu-zonal-redundancy-disabled"
    ]
    answer = cloud.rest.post(f"{KNATIVE}/services", json=wanted)
    assert "GPUs with zonal redundancy" in answer.json()["error"]["message"]
    cloud.control(
        "POST", "/settings", {"quotas": {"NvidiaL4GpuAllocPerProjectRegion": {REGION: 1}}}
    )
    assert cloud.rest.post(f"{KNATIVE}/services", json=wanted).status_code == 200


def test_without_a_maximum_the_quota_decides(cloud: Rehearsal) -> None:
    made = cloud.deploy("open", max_instances=None)
    annotations = made["spec"]["template"]["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/maxScale"] == "3"


def test_the_rtx_card_needs_its_region_and_its_machine(cloud: Rehearsal) -> None:
    url = KNATIVE.replace(REGION, "us-central1")
    for changes, words in (
        ({"cpu": "8"}, "Must be equal to one of 20.0, 22.0"),
        ({"memory": "40Gi"}, "memory must be between 80Gi"),
    ):
        answer = cloud.rest.post(f"{url}/services", json=service("rtx", **(RTX | changes)))
        assert words in answer.json()["error"]["message"]
    assert cloud.rest.post(f"{url}/services", json=service("rtx", **RTX)).status_code == 200
    assert cloud.rest.get(f"{KNATIVE}/services/rtx").status_code == 404
    everywhere = cloud.rest.get(
        "https://run.googleapis.com/v1/projects/vllm-rehearsal/locations/-/services"
    ).json()
    assert [item["metadata"]["name"] for item in everywhere["items"]] == ["rtx"]


def test_a_new_service_becomes_ready_through_its_phases(cloud: Rehearsal) -> None:
    cloud.control("POST", "/settings", {"speed": 100})
    created = cloud.rest.post(f"{KNATIVE}/services", json=service("phases")).json()
    assert ready(created)["status"] == "Unknown"
    assert created["status"]["observedGeneration"] == created["metadata"]["generation"] == 1
    assert created["status"]["traffic"] == [{"latestRevision": True, "percent": 100}]
    assert [item["phase"] for item in cloud.instances("phases")] == ["starting"]
    name = created["status"]["latestCreatedRevisionName"]
    revision = cloud.rest.get(f"{KNATIVE}/revisions/{name}").json()
    assert {item["status"] for item in revision["status"]["conditions"]} == {"Unknown"}
    made = cloud.settled("phases")
    assert [item["status"] for item in made["status"]["conditions"]] == ["True"] * 3
    assert made["status"]["latestReadyRevisionName"] == name
    assert made["status"]["traffic"][0]["revisionName"] == name
    revision = cloud.rest.get(f"{KNATIVE}/revisions/{name}").json()
    kinds = {item["type"]: item["status"] for item in revision["status"]["conditions"]}
    assert kinds["ContainerHealthy"] == kinds["ResourcesAvailable"] == "True"
    lines = cloud.logs("phases")
    order = [
        "Starting new instance. Reason: DEPLOYMENT_ROLLOUT",
        "Starting to load model /mnt/models/gemma-4-E2B-it",
        "Loading weights took",
        "GPU KV cache size:",
        "Application startup complete.",
        "STARTUP HTTP probe succeeded after",
    ]
    found = [next(i for i, line in enumerate(lines) if words in line) for words in order]
    assert found == sorted(found)
    cloud.control("POST", "/settings", {"speed": SPEED})


def test_a_name_is_taken_once(cloud: Rehearsal) -> None:
    cloud.deploy("once")
    again = cloud.rest.post(f"{KNATIVE}/services", json=service("once"))
    assert again.status_code == 409
    assert again.json()["error"]["message"] == "Resource 'once' already exists."


def test_a_stale_write_is_refused(cloud: Rehearsal) -> None:
    old = cloud.deploy("raced")

    def label(current: Json) -> None:
        current["metadata"]["labels"]["who"] = "somebody"

    cloud.update("raced", label)
    answer = cloud.rest.put(f"{KNATIVE}/services/raced", json=old)
    assert answer.status_code == 409
    assert answer.json()["error"]["status"] == "ABORTED"
    assert "was specified but current version is" in answer.json()["error"]["message"]


def test_only_a_changed_template_makes_a_revision(cloud: Rehearsal) -> None:
    first = cloud.deploy("rev")["status"]["latestCreatedRevisionName"]

    def label(current: Json) -> None:
        current["metadata"]["labels"]["managed-by"] = "vllm-devops"

    def environment(current: Json) -> None:
        container = current["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "A", "value": "1"}]

    same = cloud.update("rev", label)
    assert same["status"]["latestCreatedRevisionName"] == first
    assert same["metadata"]["generation"] == 2
    other = cloud.update("rev", environment)
    assert other["status"]["latestCreatedRevisionName"] != first
    retired = cloud.rest.get(f"{KNATIVE}/revisions/{first}").json()
    assert ready(retired)["reason"] == "Retired"
    assert cloud.rest.delete(f"{KNATIVE}/revisions/{first}").status_code == 200
    newest = other["status"]["latestCreatedRevisionName"]
    refused = cloud.rest.delete(f"{KNATIVE}/revisions/{newest}")
    assert refused.json()["error"]["status"] == "FAILED_PRECONDITION"


def test_a_failed_revision_leaves_the_old_one_serving(cloud: Rehearsal) -> None:
    first = cloud.deploy("stays")["status"]["latestReadyRevisionName"]
    with cloud.fault("cuda-compatibility"):

        def change(current: Json) -> None:
            container = current["spec"]["template"]["spec"]["containers"][0]
            container["env"] = [{"name": "A", "value": "1"}]

        broken = cloud.update("stays", change)
    assert ready(broken)["status"] == "False"
    assert "is not ready and cannot serve traffic" in ready(broken)["message"]
    assert broken["status"]["latestReadyRevisionName"] == first
    assert broken["status"]["traffic"][0]["revisionName"] == first
    assert cloud.call(broken["status"]["url"]).status_code == 200


def test_deleting_takes_a_while_and_takes_everything(cloud: Rehearsal) -> None:
    made = cloud.deploy("short")
    resource = f"projects/vllm-rehearsal/locations/{REGION}/services/short"
    policy = {"bindings": [{"role": "roles/run.invoker", "members": ["allUsers"]}]}
    url = f"https://run.googleapis.com/v1/{resource}"
    cloud.rest.post(f"{url}:setIamPolicy", json={"policy": policy})
    assert cloud.rest.delete(f"{KNATIVE}/services/short").json()["status"] == "Success"
    between = cloud.rest.get(f"{KNATIVE}/services/short")
    assert between.status_code == 404 or between.json()["metadata"]["deletionTimestamp"]
    cloud.delete("short")
    assert cloud.rest.get(f"{KNATIVE}/revisions").json()["items"] == []
    assert cloud.call(made["status"]["url"]).status_code == 404
    wait_for(lambda: not cloud.instances("short"))
    cloud.deploy("short")
    assert "bindings" not in cloud.rest.get(f"{url}:getIamPolicy").json()


def test_no_capacity_is_waiting_not_failing(cloud: Rehearsal) -> None:
    with cloud.fault("no-capacity", region=REGION):
        cloud.rest.post(f"{KNATIVE}/services", json=service("waits"))

        def waiting() -> bool:
            """the revision says what it waits for"""
            found = cloud.rest.get(f"{KNATIVE}/services/waits").json()
            return ready(found).get("reason") == "GpuCapacityUnavailable"

        wait_for(waiting)
        assert cloud.instances("waits") == []
    assert ready(cloud.settled("waits"))["status"] == "True"


def test_policies_are_read_changed_and_held_to_their_etag(cloud: Rehearsal) -> None:
    cloud.deploy("policy")
    url = (
        f"https://run.googleapis.com/v2/projects/vllm-rehearsal/locations/{REGION}/services/policy"
    )
    policy = cloud.rest.get(f"{url}:getIamPolicy").json()
    binding = {"role": "roles/run.invoker", "members": ["user:someone@example.com"]}
    made = cloud.rest.post(
        f"{url}:setIamPolicy", json={"policy": policy | {"bindings": [binding]}}
    ).json()
    assert cloud.rest.get(f"{url}:getIamPolicy").json() == made
    stale = cloud.rest.post(f"{url}:setIamPolicy", json={"policy": policy | {"bindings": []}})
    assert stale.json()["error"]["status"] == "ABORTED"
    ghost = {
        "role": "roles/run.invoker",
        "members": ["serviceAccount:ghost@vllm-rehearsal.iam.gserviceaccount.com"],
    }
    unknown = cloud.rest.post(f"{url}:setIamPolicy", json={"policy": {"bindings": [ghost]}})
    assert "does not exist" in unknown.json()["error"]["message"]
    permissions = {"permissions": ["run.services.get", "run.services.delete"]}
    with cloud.fault("permission-denied", permission="run.services.delete"):
        held = cloud.rest.post(f"{url}:testIamPermissions", json=permissions).json()
    assert held == {"permissions": ["run.services.get"]}


# ----------------------------------------------------------------------------------- v2


def test_both_apis_show_one_service(cloud: Rehearsal) -> None:
    secret = "https://secretmanager.googleapis.com/v1/projects/vllm-rehearsal/secrets"
    cloud.rest.post(secret, params={"secretId": "hf"}, json={"replication": {"automatic": {}}})
    cloud.rest.post(f"{secret}/hf:addVersion", json={"payload": {"data": "aGY="}})
    cloud.rest.post(
        f"{secret}/hf:setIamPolicy",
        json={
            "policy": {
                "bindings": [
                    {
                        "role": "roles/secretmanager.secretAccessor",
                        "members": [
                            "serviceAccount:424242424242-compute@developer.gserviceaccount.com"
                        ],
                    }
                ]
            }
        },
    )
    reference = {"secretKeyRef": {"name": "hf", "key": "latest"}}
    cloud.deploy(
        "both",
        env=[{"name": "A", "value": "1"}, {"name": "HF_TOKEN", "valueFrom": reference}],
        annotations={
            "autoscaling.knative.dev/minScale": "1",
            "run.googleapis.com/execution-environment": "gen2",
            "run.googleapis.com/network-interfaces": '[{"network":"default","subnetwork":"s"}]',
            "run.googleapis.com/vpc-access-egress": "private-ranges-only",
            "run.googleapis.com/startup-cpu-boost": "True",
        },
        service_annotations={
            "run.googleapis.com/scalingMode": "automatic",
            "run.googleapis.com/ingress": "internal",
            "mine": "kept",
        },
    )
    shown = cloud.rest.get(f"{V2}/{REGION}/services/both").json()
    template = shown["template"]
    assert template["nodeSelector"] == {"accelerator": "nvidia-l4"}
    assert template["gpuZonalRedundancyDisabled"] is True
    assert template["scaling"] == {"minInstanceCount": 1, "maxInstanceCount": 1}
    assert template["maxInstanceRequestConcurrency"] == 4
    assert template["timeout"] == "3600s"
    assert template["executionEnvironment"] == "EXECUTION_ENVIRONMENT_GEN2"
    assert template["vpcAccess"] == {
        "egress": "PRIVATE_RANGES_ONLY",
        "networkInterfaces": [{"network": "default", "subnetwork": "s"}],
    }
    assert template["volumes"] == [{"name": "models", "gcs": {"bucket": BUCKET, "readOnly": True}}]
    container = template["containers"][0]
    assert container["resources"]["cpuIdle"] is False
    assert container["resources"]["startupCpuBoost"] is True
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["args"] == list(ARGS)
    assert container["env"][1]["valueSource"] == {
        "secretKeyRef": {"secret": "hf", "version": "latest"}
    }
    assert container["startupProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert shown["ingress"] == "INGRESS_TRAFFIC_INTERNAL_ONLY"
    assert shown["annotations"] == {"mine": "kept"}
    assert shown["terminalCondition"]["state"] == "CONDITION_SUCCEEDED"
    assert shown["latestReadyRevision"].startswith(f"{shown['name']}/revisions/both-00001-")
    assert shown["trafficStatuses"][0]["percent"] == 100
    assert shown["uri"].endswith("-uk.a.run.app")
    assert len(shown["urls"]) == 2
    # There and back again, nothing is lost.
    kept = cloud.rest.get(f"{KNATIVE}/services/both").json()
    back = service_from_v2(shown, "both", kept)
    assert back["spec"]["template"]["spec"] == kept["spec"]["template"]["spec"]
    for name, value in kept["spec"]["template"]["metadata"]["annotations"].items():
        said = back["spec"]["template"]["metadata"]["annotations"][name]
        assert said.replace(" ", "").lower() == value.replace(" ", "").lower()


def test_v2_creates_changes_and_deletes_by_operations(cloud: Rehearsal) -> None:
    template: Json = {
        "containers": [
            {
                "image": "vllm/vllm-openai:v0.26.0-cu129",
                "args": list(ARGS),
                "ports": [{"containerPort": 8000}],
                "resources": {"limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}},
                "volumeMounts": [{"name": "m", "mountPath": "/mnt/models"}],
                "startupProbe": PROBE | {"periodSeconds": 60, "failureThreshold": 10},
            }
        ],
        "volumes": [{"name": "m", "gcs": {"bucket": BUCKET}}],
        "nodeSelector": {"accelerator": "nvidia-l4"},
        "gpuZonalRedundancyDisabled": True,
        "scaling": {"maxInstanceCount": 1},
    }
    url = f"{V2}/{REGION}/services"
    dry = cloud.rest.post(
        url, params={"serviceId": "two", "validateOnly": "true"}, json={"template": template}
    )
    assert dry.status_code == 200
    assert cloud.rest.get(f"{url}/two").status_code == 404
    began = cloud.rest.post(url, params={"serviceId": "two"}, json={"template": template}).json()
    assert "done" not in began

    def done(operation: Json) -> Json:
        def look() -> Json | None:
            """the operation is done"""
            found = cloud.rest.get(f"https://run.googleapis.com/v2/{operation['name']}").json()
            return dict(found) if found.get("done") else None

        return wait_for(look)

    made = done(began)["response"]
    assert made["generation"] == "1"
    scaled = cloud.rest.patch(
        f"{url}/two",
        params={"updateMask": "scaling.manual_instance_count,scaling.scaling_mode"},
        json={"scaling": {"scalingMode": "MANUAL", "manualInstanceCount": 0}},
    ).json()
    changed = done(scaled)["response"]
    assert changed["scaling"] == {"scalingMode": "MANUAL", "manualInstanceCount": 0}
    assert changed["latestCreatedRevision"] == made["latestCreatedRevision"]
    old = cloud.rest.get(f"{KNATIVE}/services/two").json()["metadata"]["annotations"]
    assert old["run.googleapis.com/scalingMode"] == "manual"
    assert old["run.googleapis.com/manualInstanceCount"] == "0"
    assert cloud.call(changed["uri"]).status_code == 503
    ended = cloud.rest.delete(f"{url}/two").json()
    done(ended)
    assert cloud.rest.get(f"{url}/two").status_code == 404


def test_v2_tells_a_failed_deployment_by_its_operation(cloud: Rehearsal) -> None:
    with cloud.fault("engine-out-of-memory"):
        cloud.rest.post(f"{KNATIVE}/services", json=service("small"))
        cloud.settled("small")
    shown = cloud.rest.get(f"{V2}/{REGION}/services/small").json()
    assert shown["terminalCondition"]["state"] == "CONDITION_FAILED"
    revisions = cloud.rest.get(f"{V2}/{REGION}/services/small/revisions").json()["revisions"]
    failed = {item["type"]: item for item in revisions[0]["conditions"]}["ContainerHealthy"]
    assert failed["revisionReason"] == "HEALTH_CHECK_CONTAINER_ERROR"
    operation = cloud.rest.get(f"{KNATIVE}/services/small").json()["metadata"]["annotations"][
        "run.googleapis.com/operation-id"
    ]
    waited = cloud.rest.post(
        f"https://us-east4-run.googleapis.com/v1/projects/vllm-rehearsal/locations/{REGION}"
        f"/operations/{operation}:wait",
        json={"timeout": "5s"},
    ).json()
    assert waited["done"] is True
    assert "startup probe checks" in waited["error"]["message"]


def test_lists_come_in_pages(cloud: Rehearsal) -> None:
    for name in ("a1", "b1", "c1"):
        body = service(name, gpu="", cpu="1", memory="512Mi", bucket="")
        assert cloud.rest.post(f"{KNATIVE}/services", json=body).status_code == 200
    seen: list[str] = []
    token = ""
    for _ in range(3):
        answer = cloud.rest.get(
            f"{V2}/-/services", params={"pageSize": 1, "pageToken": token}
        ).json()
        seen += [item["name"].rpartition("/")[2] for item in answer["services"]]
        token = answer.get("nextPageToken", "")
    assert seen == ["a1", "b1", "c1"]
    assert not token
    selected = cloud.rest.get(
        f"{KNATIVE}/revisions", params={"labelSelector": "serving.knative.dev/service in (a1, c1)"}
    ).json()["items"]
    assert sorted(item["metadata"]["name"][:2] for item in selected) == ["a1", "c1"]


def test_another_project_is_not_ours(cloud: Rehearsal) -> None:
    answers: list[Any] = [
        cloud.rest.get(f"{KNATIVE.replace('vllm-rehearsal', 'other')}/services"),
        cloud.rest.get(f"{V2.replace('vllm-rehearsal', 'other')}/{REGION}/services"),
        cloud.rest.get("https://cloudresourcemanager.googleapis.com/v1/projects/other"),
    ]
    assert [answer.status_code for answer in answers] == [403] * 3

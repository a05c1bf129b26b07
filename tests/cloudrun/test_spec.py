"""What may be asked of Cloud Run, and what is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from backends.cloudrun.backend import CloudRunL4Backend
from backends.cloudrun.checks import check_room
from backends.cloudrun.spec import probe_of, resolved, scaled
from backends.core.errors import InvalidInputError
from backends.core.settings import Settings
from backends.knowledge.cloudrun import L4, RTX6000, CloudRunProfile
from tests.cloudrun.made import PROJECT, request, service


def _refused(options: dict[str, Any], profile: CloudRunProfile = L4) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        _resolve(options, profile)
    return caught.value


def _resolve(options: dict[str, Any], profile: CloudRunProfile) -> None:
    spec = CloudRunL4Backend.parse_spec({"name": "gemma4"}, options)
    scaled(resolved(spec, profile, Settings(), PROJECT), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"image": "vllm/vllm-openai:latest"}, "options.image"),
        ({"image": "vllm/vllm-openai"}, "options.image"),
        ({"invokers": ["somebody"]}, "options.invokers"),
        ({"invokers": ["allUsers"]}, "options.invokers"),
        ({"invokers": ["user:a@b.c"], "public": True}, "options.invokers"),
        ({"env": ["HF_TOKEN=hf_x"]}, "options.env"),
        ({"extra_args": ["--api-key=hf_x"]}, "options.extra_args"),
        ({"env": ["no equals sign"]}, "options.env"),
        ({"bucket": "Not A Bucket"}, "options.bucket"),
        ({"scaling": 0}, "options.scaling"),
        ({"region": "us-west1"}, "options.region"),
        ({"cpu": 5}, "options.cpu"),
        ({"cpu": 4, "memory_gib": 32}, "options.memory_gib"),
        ({"memory_gib": 64}, "options.memory_gib"),
        ({"min_instances": 3, "max_instances": 2}, "options.min_instances"),
        ({"server": "image", "extra_args": ["--x"]}, "options.extra_args"),
        ({"source": "huggingface", "vpc": True}, "options.vpc"),
        ({"source": "huggingface", "load": "copy"}, "options.load"),
        ({"startup_probe": "periodSeconds=241"}, "options.startup_probe"),
        ({"startup_probe": "initialDelaySeconds=300"}, "options.startup_probe"),
        ({"startup_probe": "timeoutSeconds=61"}, "options.startup_probe"),
        ({"startup_probe": "failureThreshold=31"}, "options.startup_probe"),
        ({"startup_probe": "path=/x"}, "options.startup_probe"),
        ({"service_account": "not-an-email"}, "options.service_account"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, Any], field: str) -> None:
    assert field in _refused(options).field


def test_an_unknown_option_is_refused_with_those_there_are() -> None:
    error = _refused({"gpu": 2})
    assert "max_instances" in error.message


def test_a_secret_in_a_variable_is_not_echoed() -> None:
    assert "hf_x" not in _refused({"env": ["HF_TOKEN=hf_x"]}).message


def test_rtx_needs_20_cpu_and_80_gib() -> None:
    assert "options.memory_gib" in _refused({"memory_gib": 32}, RTX6000).field
    assert "options.cpu" in _refused({"cpu": 8}, RTX6000).field


def test_the_region_that_is_set_counts_where_it_sells_the_gpu() -> None:
    spec = CloudRunL4Backend.parse_spec({"name": "gemma4"}, {})
    there = resolved(
        spec, L4, Settings(google_cloud_location="europe-west4"), PROJECT  # type: ignore[arg-type]
    )  # fmt: skip
    elsewhere = resolved(
        spec, L4, Settings(google_cloud_location="us-west1"), PROJECT  # type: ignore[arg-type]
    )  # fmt: skip
    assert (there.region, elsewhere.region) == ("europe-west4", "us-east4")


def test_a_bucket_folder_may_be_named_as_the_model() -> None:
    full = request(model="gs://weights/gemma/e2b")
    assert full.bucket == "weights"
    assert full.source == "bucket"


def test_two_buckets_contradict_each_other() -> None:
    with pytest.raises(InvalidInputError):
        request(model="gs://weights/e2b", bucket="other")


def test_a_redeploy_keeps_the_numbers_of_instances_it_finds() -> None:
    spec = CloudRunL4Backend.parse_spec({"name": "gemma4"}, {})
    full = resolved(spec, L4, Settings(), PROJECT)  # type: ignore[arg-type]
    kept = scaled(full, service(min_instances=1, max_instances=3))
    assert (kept.min_instances, kept.max_instances) == (1, 3)
    assert (scaled(full, None).min_instances, scaled(full, None).max_instances) == (0, 1)


def test_overrides_of_the_probe_leave_the_rest_as_it_is() -> None:
    probe = probe_of(request(startup_probe="failureThreshold=20"), L4)
    assert (probe.period_s, probe.failure_threshold, probe.initial_delay_s) == (60, 20, 180)


@pytest.mark.parametrize("profile", [L4, RTX6000])
def test_the_reference_deployment_is_within_every_limit(profile: CloudRunProfile) -> None:
    full = request(profile)
    assert probe_of(full, profile).patience_s >= profile.reference.startup_s
    assert full.image == profile.image


def test_a_download_that_the_instance_has_no_room_for_is_refused() -> None:
    check_room(request(source="huggingface"))
    check_room(request(source="huggingface", model="somebody/unheard-of"))
    check_room(request(RTX6000, source="huggingface", model="google/gemma-4-26B-A4B-it"))
    with pytest.raises(InvalidInputError, match=r"no room for 22\.4 GiB") as refused:
        check_room(request(source="huggingface", model="google/gemma-4-12B-it", memory_gib=28))
    assert "stage_model" in refused.value.message

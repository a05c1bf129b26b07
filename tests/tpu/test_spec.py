"""What a TPU deployment may be, and what is refused before anybody is asked."""

from __future__ import annotations

from typing import Any

import pytest

from backends.core.errors import InvalidInputError
from backends.core.settings import Settings
from backends.tpu.backend import TpuBackend
from backends.tpu.fit import check_fit, usual_context
from backends.tpu.models import inspect
from backends.tpu.spec import default_zone
from tests.tpu.made import spec


def test_what_is_not_said_is_taken_from_the_reference() -> None:
    full = spec()
    assert (full.size, full.provisioning, full.control_plane) == ("v6e-1", "flex-start", "tpu")
    assert (full.zone, full.max_run_hours, full.valid_until_hours) == ("us-east5-b", 4, 4)
    assert (full.max_model_len, full.max_num_batched_tokens) == (32_768, 4_096)
    assert full.image == "vllm/vllm-tpu:v0.27.0"
    assert spec(provisioning="spot").max_run_hours is None
    assert spec(zones=["any"]).asked_in[0] == "us-east5-a"
    assert default_zone(Settings(google_cloud_location="europe-west4")) == "europe-west4-a"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"size": "v6e-2"}, "options.size"),
        ({"zone": "us-east5-b", "zones": ["us-east5-a"]}, "options.zone"),
        ({"provisioning": "reservation"}, "options.reservation"),
        ({"reservation": "r", "provisioning": "spot"}, "options.reservation"),
        ({"provisioning": "spot", "max_run_hours": 5}, "options.max_run_hours"),
        ({"control_plane": "compute", "size": "v6e-16"}, "options.control_plane"),
        ({"control_plane": "compute", "runtime_version": "x"}, "options.runtime_version"),
        ({"boot_disk_gib": 300}, "options.boot_disk_gib"),
        ({"public": True}, "options.allow_from"),
        ({"allow_from": ["203.0.113.7"]}, "options.allow_from"),
        ({"public": True, "allow_from": ["203.0.113.7"], "internal_ips": True}, "options.public"),
        ({"internal_ips": True, "ssh": "external"}, "options.ssh"),
        ({"name": "Gemma"}, "name"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        spec(**options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": "vllm/vllm-tpu:latest"}, "pinned"),
        ({"image": "vllm/vllm-tpu"}, "pinned"),
        ({"allow_from": ["0.0.0.0/0"], "public": True}, "the caller's own network"),
        ({"allow_from": ["everybody"], "public": True}, "addresses or networks"),
        ({"env": ["HF_TOKEN=hf_abc"]}, "secrets"),
        ({"extra_args": ["--api-key=abc"]}, "secrets"),
        ({"zones": ["us-east5"]}, "takes zones"),
        ({"zones": ["us-east5-a", "us-east5-a"]}, "twice"),
        ({"kv_cache_dtype": "int8"}, "'auto', 'fp8' or 'bfloat16'"),
        ({"max_run_hours": 169}, "less than or equal to 168"),
        ({"colour": "green"}, "no such option"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        TpuBackend.parse_spec({"name": "gemma4"}, options)
    assert words in str(caught.value)


def test_a_checkpoint_with_one_kv_head_is_told_that_more_chips_copy_its_cache() -> None:
    fit = check_fit(spec(size="v6e-4"))
    assert fit.tensor_parallel_size == 4
    assert any("has 1 KV head: over 4 chips" in warning for warning in fit.warnings)
    idle = check_fit(spec(size="v6e-4", tensor_parallel_size=1))
    assert any("3 of 4 chips are paid for and idle" in warning for warning in idle.warnings)


def test_the_predicted_cache_is_what_the_reference_logged() -> None:
    assert check_fit(spec()).figures["kv_cache_tokens_predicted"] == pytest.approx(
        1_151_744, rel=1e-4
    )


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"model": "google/gemma-4-31B-it"}, "model", "does not fit v6e-1"),
        ({"model": "google/gemma-4-E2B-it-qat-w4a16-ct"}, "model", "issue 3225"),
        ({"size": "v6e-4", "tensor_parallel_size": 3}, "options.tensor_parallel_size", "3 does"),
        ({"tensor_parallel_size": 4}, "options.tensor_parallel_size", "more than the 1"),
        (
            {"size": "v6e-16", "tensor_parallel_size": 4},
            "options.tensor_parallel_size",
            "every chip takes part",
        ),
        ({"model": "google/gemma-4-12B-it", "max_model_len": 65_536}, "max_model_len", "fit"),
    ],
)
def test_what_cannot_be_split_loaded_or_held_is_refused(
    options: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_fit(spec(**options))
    assert caught.value.field == field
    assert words in caught.value.message


def test_the_usual_context_follows_what_was_measured() -> None:
    assert usual_context(spec()) == (32_768, "")
    length, why = usual_context(spec(model="google/gemma-4-12B-it"))
    assert length == 4_096
    assert "infeasible from 8 192" in why


def test_settings_that_are_known_to_mislead_are_warned_about() -> None:
    fit = check_fit(spec(kv_cache_dtype="fp8", gpu_memory_utilization=0.95))
    assert any("stays bf16" in warning for warning in fit.warnings)
    assert any("eleven minutes" in warning for warning in fit.warnings)


def test_inspecting_a_checkpoint_says_how_it_fits_each_size() -> None:
    facts = inspect("google/gemma-4-31B-it")
    assert "does not fit" in str(facts["on v6e-1"])
    assert str(facts["on v6e-8"]).startswith("fits at")

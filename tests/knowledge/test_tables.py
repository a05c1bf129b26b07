"""The tables of accelerators, checkpoints and targets: complete, sourced, and consistent."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator, Mapping

import pytest

from backends.core.errors import NotFoundError
from backends.knowledge.accelerators import ACCELERATORS, find_accelerator
from backends.knowledge.checkpoints import CHECKPOINTS, KIB, Checkpoint, find_checkpoint
from backends.knowledge.facts import Fact
from backends.knowledge.roofline import StepModel, usd_per_million_tokens
from backends.knowledge.targets import PROFILES, TargetProfile, find_profile


def facts(value: object, path: str) -> Iterator[tuple[str, Fact]]:
    if isinstance(value, Fact):
        yield path, value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from facts(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from facts(inner, f"{path}[{key}]")
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from facts(inner, f"{path}[{index}]")


EVERY_FACT = [
    pair
    for table in (ACCELERATORS, CHECKPOINTS, PROFILES)
    for name, entry in table.items()
    for pair in facts(entry, name)
]


def test_every_figure_has_a_source_and_a_date() -> None:
    assert len(EVERY_FACT) > 100
    for path, fact in EVERY_FACT:
        assert len(fact.source) > 5, path
        assert datetime.date.fromisoformat(fact.date) <= datetime.date(2026, 11, 30), path
        assert fact.value > 0, path


@pytest.mark.parametrize("find", [find_accelerator, find_checkpoint, find_profile])
def test_an_unknown_name_is_refused_with_the_known_ones(find: object) -> None:
    assert callable(find)
    with pytest.raises(NotFoundError, match="'nothing-like-it'") as refused:
        find("nothing-like-it")
    assert refused.value.next_action.count(",") >= 2


@pytest.mark.parametrize(
    "name",
    ["gemma-4-E2B-it", "google/gemma-4-E2B-it", "/mnt/models/gemma-4-E2B-it/", "GEMMA-4-e2b-IT"],
)
def test_a_checkpoint_is_found_by_name_id_and_path(name: str) -> None:
    assert find_checkpoint(name).repo_id == "google/gemma-4-E2B-it"


@pytest.mark.parametrize(("name", "kib"), [("gemma-4-E2B-it", 18), ("gemma-4-E4B-it", 56)])
def test_cached_bytes_of_a_token_match_the_published_ones(name: str, kib: int) -> None:
    assert find_checkpoint(name).attention.kv_bytes_per_token() == kib * KIB


@pytest.mark.parametrize("checkpoint", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_checkpoint_is_consistent(checkpoint: Checkpoint) -> None:
    attention = checkpoint.attention
    assert attention.kv_sliding_layers <= attention.sliding_layers < attention.layers
    assert attention.kv_full_layers <= attention.layers - attention.sliding_layers
    assert attention.window_tokens < attention.max_context_tokens
    # A step cannot read more than is resident.
    assert checkpoint.read_gb(10_000) <= checkpoint.resident_gib.value * 1.0737 * 1.02


def test_more_tokens_touch_more_experts_but_never_more_than_there_are() -> None:
    checkpoint = find_checkpoint("gemma-4-26B-A4B-it-qat-w4a16-ct")
    assert checkpoint.expert_gb is not None
    read = [checkpoint.read_gb(tokens) for tokens in (1, 2, 16, 4096)]
    assert read == sorted(read)
    active = checkpoint.read_gb_per_step.value + checkpoint.expert_gb.value * 8 / 128
    assert read[0] == pytest.approx(active)
    whole = checkpoint.read_gb_per_step.value + checkpoint.expert_gb.value
    assert read[-1] == pytest.approx(whole)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_reference_deployment_of_a_target_fits_its_chip(profile: TargetProfile) -> None:
    checkpoint = find_checkpoint(profile.checkpoint)
    fits = {"bf16": {"bf16", "fp16"}}.get(checkpoint.weight_format, {checkpoint.weight_format})
    assert fits & set(profile.accelerator.formats)
    assert profile.max_model_len <= checkpoint.attention.max_context_tokens
    model = StepModel(
        profile.accelerator, checkpoint, profile.chips, kv_cache_dtype=profile.kv_cache_dtype
    )
    tokens = model.kv_capacity_tokens(
        profile.max_model_len,
        memory_utilization=profile.memory_utilization,
        max_num_seqs=profile.max_num_seqs,
        max_num_batched_tokens=profile.max_num_batched_tokens,
    )
    assert tokens >= profile.max_model_len
    assert profile.startup_s == pytest.approx(sum(p.seconds.value for p in profile.startup))


def test_startup_takes_as_long_as_was_published() -> None:
    # FACTS of the articles: SageMaker InService after 9.9 min, T4 cold 531 s, v6e healthy 510 s.
    assert find_profile("sagemaker-l4").startup_s == pytest.approx(9.9 * 60, rel=0.01)
    assert find_profile("gce-t4").startup_s == pytest.approx(531)
    assert find_profile("tpu-v6e").startup_s == pytest.approx(510)


@pytest.mark.parametrize(
    ("target", "tokens_per_s", "usd"),
    [("cloudrun-l4", 49.63, 7.95), ("cloudrun-l4", 188.46, 2.09), ("sagemaker-l4", 619.1, 0.51)],
)
def test_cost_per_million_tokens_is_the_published_one(
    target: str, tokens_per_s: float, usd: float
) -> None:
    cost = usd_per_million_tokens(find_profile(target).usd_per_hour.value, tokens_per_s)
    assert cost == pytest.approx(usd, abs=0.01)


def test_nothing_produced_has_no_cost_per_token() -> None:
    assert usd_per_million_tokens(1.0, 0.0) is None

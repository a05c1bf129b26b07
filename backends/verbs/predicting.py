"""The predicted side of a plan and a benchmark: speed beside price, measured beside predicted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backends.core.errors import DevopsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.base import Backend
    from backends.core.plans import Plan
    from backends.knowledge.checkpoints import Checkpoint
    from backends.serving.choosing import Load
    from backends.serving.predicting import Prediction, Setup
    from backends.serving.runs import BenchmarkRun

_LEVELS = (1, 4, 8, 16, 64)
_READ_S = 5.0
_ONE_PROMPT = 0.5
"""From this share of prefix-cache hits on, prompts are taken to be one and the same."""

Row = dict[str, int | float]


def setup_of(
    target: str, facts: Mapping[str, Any], weights: Checkpoint | None = None
) -> Setup | None:
    """What a deployment with these settings is; None where its hardware or weights are unknown.

    Args:
        target: The target, or the profile a simulator plays.
        facts: Settings by name, as far as they are said.
        weights: The checkpoint, where it is not one of the catalogue.
    """
    from backends.knowledge.targets import PROFILES
    from backends.serving.predicting import Setup

    profile = PROFILES.get(str(facts.get("profile") or target))
    if profile is None or str(facts.get("engine", "")) == "vllm":
        return None
    model = facts.get("checkpoint") or facts.get("model") or profile.checkpoint
    checkpoint = weights or _weights(str(model), str(facts.get("quantization") or ""))
    if checkpoint is None:
        return None
    setup = Setup.of(profile, checkpoint)
    changes: dict[str, Any] = {}
    for field, names in (
        ("max_model_len", ("max_model_len",)),
        ("max_num_seqs", ("max_num_seqs",)),
        ("max_num_batched_tokens", ("max_num_batched_tokens",)),
        ("chips", ("tensor_parallel_size", "chips")),
    ):
        said = next((facts[name] for name in names if facts.get(name)), None)
        if said is not None:
            changes[field] = int(said)
    cap = facts.get("admission_cap", facts.get("concurrency"))
    if setup.admission_cap and cap is not None:
        changes["admission_cap"] = int(cap)
    if facts.get("gpu_memory_utilization"):
        changes["memory_utilization"] = float(facts["gpu_memory_utilization"])
    if facts.get("kv_cache_dtype"):
        changes["kv_cache_dtype"] = str(facts["kv_cache_dtype"])
    return replace(setup, **changes)


def _weights(model: str, quantization: str) -> Checkpoint | None:
    from backends.knowledge.checkpoints import find_checkpoint

    wanted = [f"{model.rstrip('/')}-{quantization}"] if quantization not in {"", "none"} else []
    for name in [*wanted, model]:
        try:
            return find_checkpoint(name)
        except DevopsError:
            continue
    return None


async def of_plan(
    backend: Backend, plan: Plan, load: Load
) -> tuple[list[Row], dict[str, int | float | str]]:
    """Predicted speed at a few levels, and what it makes of the price; empty where unknown."""
    facts = {setting.name: setting.value for setting in plan.settings} | plan.spec
    setup = setup_of(plan.target, facts)
    if setup is None and facts.get("model"):
        weights = await _from_files(backend, str(facts["model"]))
        setup = setup_of(plan.target, facts, weights) if weights is not None else None
    if setup is None:
        return [], {}
    rows = await asyncio.to_thread(_rows, setup, load)
    if not rows:
        return [], {}
    instances = int(facts.get("max_instances") or 1)
    return [_shown(row) for row in rows], _cost(plan, load, rows, instances)


async def _from_files(backend: Backend, model: str) -> Checkpoint | None:
    """A checkpoint that is in no table, as the files that the target reads say."""
    from backends.base import HasModels
    from backends.knowledge.from_config import checkpoint_from

    if not isinstance(backend, HasModels):
        return None
    try:
        async with asyncio.timeout(_READ_S):
            source = await backend.model_source(model)
        if source is None:
            return None
        name = model.rstrip("/").rpartition("/")[2]
        return checkpoint_from(name, source.config, source.weight_bytes, source.source)
    except (TimeoutError, DevopsError):
        return None  # then nothing is predicted; the plan stands by itself


def _rows(setup: Setup, load: Load) -> list[Prediction]:
    from backends.serving.predicting import predictions

    most = setup.max_num_seqs
    levels = sorted({level for level in _LEVELS if level <= most} | {min(most, _LEVELS[-1])})
    try:
        return predictions(
            setup, levels, prompt_tokens=load.prompt_tokens, output_tokens=load.output_tokens
        )
    except DevopsError:
        # The KV cache holds no such request: the memory plan says so, with what to change.
        return []


def _shown(row: Prediction) -> Row:
    return {
        "concurrency": row.concurrency,
        "output_tokens_per_s": row.output_tokens_per_s,
        "ttft_ms": row.ttft_ms,
        "itl_ms": row.itl_ms,
        "bound_output_tokens_per_s": row.bound_tokens_per_s,
    }


def _cost(
    plan: Plan, load: Load, rows: list[Prediction], instances: int
) -> dict[str, int | float | str]:
    from backends.knowledge.cost import Part, age_days, month, offers_of
    from backends.knowledge.facts import Fact
    from backends.knowledge.roofline import usd_per_million_tokens

    price = plan.price
    if price is None or not price.usd_per_hour:
        return {}
    one = price.usd_per_hour / max(instances, 1)
    best = max(rows, key=lambda row: row.output_tokens_per_s)
    found: dict[str, int | float | str] = {}
    per_million = usd_per_million_tokens(one, best.output_tokens_per_s)
    if per_million is not None:
        found["usd_per_million_output_tokens_predicted"] = per_million
        found["at_concurrency"] = float(best.concurrency)
    if price.as_of:
        found["price_age_days"] = float(age_days(price.as_of[:10]))
    offers = offers_of(plan.target)
    if offers:
        fact = Fact(one, price.source or price.basis, (price.as_of or "2026-11-30")[:10])
        chosen = next(
            (item for item in offers if plan.spec.get("scale_to_zero") and item.refuses_asleep),
            offers[0],
        )
        offer = replace(chosen, parts=(Part("one instance", one, fact),))
        cost = month(offer, load.duty)
        found["usd_per_month_predicted"] = round(cost.usd, 2)
        found["of_a_month"] = (
            f"{load.requests_per_hour:g} requests an hour, {load.hours_a_day:g} hours a day, one "
            f"instance: {cost.hours:.0f} h at full price, {cost.idle_usd:.2f} USD while idle"
        )
        after = [f"{what} ({usd:.2f} USD a month)" for what, usd in offer.after_destroy]
        if after:
            found["after_destroy"] = "; ".join(after)
    return found


def of_run(run: BenchmarkRun) -> list[Row]:
    """Measured beside predicted and bound, one row a level; empty where that cannot be said."""
    from backends.knowledge.accelerators import find_accelerator
    from backends.serving.predicting import predict

    spec = run.spec
    model = _weights(spec.checkpoint or run.endpoint.model, "")
    if spec.accelerator is None or model is None:
        return []
    setup = setup_of(spec.target or "", {"model": model.name})
    chip = find_accelerator(spec.accelerator)
    if setup is None or setup.accelerator is not chip:
        from backends.serving.predicting import Setup

        setup = Setup(chip, model)
    setup = replace(setup, chips=spec.chips, kv_cache_dtype=spec.kv_cache_dtype)
    rows: list[Row] = []
    for level in run.levels:
        prompt, output = level.prompt_tokens_mean, level.output_tokens_mean
        rate = level.output_tokens_per_s
        if level.request_rate is not None or not prompt or not output or not rate:
            continue
        setup = replace(setup, max_model_len=max(setup.max_model_len, int(prompt + output) + 1))
        try:
            row = predict(
                setup,
                level.concurrency,
                prompt_tokens=max(1, round(prompt)),
                output_tokens=max(1, round(output)),
                same_prompt=(level.prefix_cache_hit_rate or 0) > _ONE_PROMPT,
            )
        except DevopsError:
            continue
        found: Row = {
            "concurrency": level.concurrency,
            "measured_output_tokens_per_s": rate,
            "predicted_output_tokens_per_s": row.output_tokens_per_s,
            "bound_output_tokens_per_s": row.bound_tokens_per_s,
            "measured_over_predicted": round(rate / row.output_tokens_per_s, 3),
            "predicted_ttft_ms": row.ttft_ms,
            "predicted_itl_ms": row.itl_ms,
        }
        ttft, itl = level.ttft_ms.mean, level.itl_ms.mean
        if ttft is not None:
            found["measured_ttft_ms"] = ttft
        if itl is not None:
            found["measured_itl_ms"] = itl
        rows.append(found)
    return rows

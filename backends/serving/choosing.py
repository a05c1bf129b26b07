"""Which target serves a load cheapest: every offer's fit, predicted speed and monthly cost.

Everything is predicted from the roofline and list prices; nothing is asked or changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from backends.knowledge.checkpoints import Checkpoint
from backends.knowledge.cost import Duty, MonthlyCost, Offer, break_even_hours, month
from backends.knowledge.memory import Host, MemoryPlan, plan_memory
from backends.knowledge.roofline import usd_per_million_tokens
from backends.serving.predicting import Prediction, Setup, predict

_LEVELS = (1, 2, 4, 8, 16, 32, 64)
_HEADROOM = 0.8
"""Share of the predicted throughput that is counted on: arrivals are not even."""
_STILL_RISING = 1.03
"""A level that brings less than this over the one before is the last that is looked at."""
_MIN_LENGTH = 4096
_MOST_INSTANCES = 100
DAY_AND_NIGHT = "if that level went on day and night."


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a deployment.

    Args:
        requests_per_hour: In the hours in which it is used.
        prompt_tokens: Of a request.
        output_tokens: Of its answer.
        hours_a_day: Hours in which requests come.
        ttft_ms: Most a first token may take on average; None: no limit.
        e2e_s: Most a request may take on average; None: no limit.
    """

    requests_per_hour: float = 60.0
    prompt_tokens: int = 512
    output_tokens: int = 256
    hours_a_day: float = 8.0
    ttft_ms: float | None = None
    e2e_s: float | None = None

    @property
    def length(self) -> int:
        """Tokens of a request and its answer."""
        return self.prompt_tokens + self.output_tokens

    @property
    def duty(self) -> Duty:
        """The same as a duty cycle."""
        return Duty(self.hours_a_day, self.requests_per_hour)

    def allows(self, row: Prediction) -> bool:
        """Whether a predicted level keeps the latency that is asked for."""
        return (self.ttft_ms is None or row.ttft_ms <= self.ttft_ms) and (
            self.e2e_s is None or row.e2e_s <= self.e2e_s
        )


@dataclass(frozen=True, slots=True)
class Option:
    """One offer for a load.

    Args:
        offer: The offer.
        setup: What would serve.
        memory: Its memory plan.
        able: Whether it can serve the load.
        row: The predicted level at which one instance is run; None where it cannot.
        instances: Instances of it.
        cost: Of a month.
        usd_per_million: Cost of a million output tokens at this load.
        reasons: What speaks for and against it.
    """

    offer: Offer
    setup: Setup
    memory: MemoryPlan
    able: bool
    row: Prediction | None = None
    instances: int = 1
    cost: MonthlyCost | None = None
    usd_per_million: float | None = None
    reasons: tuple[str, ...] = ()


def options(checkpoint: Checkpoint, load: Load, offers: Sequence[Offer]) -> list[Option]:
    """Every offer for the load, the cheapest that can serve it first.

    Args:
        checkpoint: The weights.
        load: What is asked.
        offers: What there is.
    """
    known: dict[tuple[object, ...], _Level] = {}
    found = [_option(checkpoint, load, offer, known) for offer in offers]
    return sorted(found, key=lambda item: (not item.able, item.cost.usd if item.cost else 0.0))


def best_of_each(ranked: Sequence[Option]) -> list[Option]:
    """The first offer of each target, in their order."""
    best: dict[str, Option] = {}
    for item in ranked:
        best.setdefault(item.offer.target, item)
    return list(best.values())


def break_evens(ranked: Sequence[Option], *, with_cheapest: bool = False) -> list[str]:
    """Hours a day below which an offer that scales to zero beats those that run always.

    Args:
        ranked: What `options` gave.
        with_cheapest: Only the pairs in which the cheapest offer is one of the two.
    """
    said: list[str] = []
    able = [item for item in ranked if item.able]
    # The cheapest offer of each target and kind is enough.
    kinds: dict[tuple[str, bool], Option] = {}
    for item in able:
        kinds.setdefault((item.offer.target, item.offer.scales_to_zero), item)
    best = list(kinds.values())
    for zero in best:
        for other in best:
            same = zero.instances == other.instances
            if not zero.offer.scales_to_zero or other.offer.scales_to_zero or not same:
                continue
            if with_cheapest and able[0] not in (zero, other):
                continue
            hours = break_even_hours(zero.offer, other.offer)
            pair = f"{zero.offer.title} against {other.offer.title} run day and night"
            if hours is None:
                said.append(f"{pair}: never cheaper.")
            elif hours >= 24:
                said.append(f"{pair}: always cheaper.")
            else:
                said.append(f"{pair}: scale to zero wins below {hours:.1f} hours a day.")
    return said


_Level = tuple[Prediction | None, int, str]


def _option(
    checkpoint: Checkpoint, load: Load, offer: Offer, known: dict[tuple[object, ...], _Level]
) -> Option:
    setup = _setup(checkpoint, load, offer)
    memory = plan_memory(
        setup.accelerator,
        checkpoint,
        max_model_len=setup.max_model_len,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        kv_cache_dtype=setup.kv_cache_dtype,
        memory_utilization=setup.memory_utilization,
        chips=setup.chips,
        host=Host(offer.host_memory_gib, offer.host_swap_gib, load=_loader(offer)),
    )
    if load.length > checkpoint.attention.max_context_tokens:
        why = f"{checkpoint.name} takes {checkpoint.attention.max_context_tokens} tokens at most."
        return Option(offer, setup, memory, False, reasons=(why,))
    if memory.verdict == "does not fit":
        change = f" Would fit: {'; '.join(memory.changes[:2])}." if memory.changes else ""
        reasons_against = (*memory.reasons[:-1], f"{memory.reasons[-1]}{change}")
        return Option(offer, setup, memory, False, reasons=reasons_against)
    # Offers of the same hardware differ in price only.
    key = (setup.accelerator.name, setup.chips, setup.max_num_seqs, setup.kv_cache_dtype,
           setup.max_num_batched_tokens, setup.memory_utilization, setup.admission_cap)  # fmt: skip
    if key not in known:
        known[key] = _level(setup, load)
    row, instances, slow = known[key]
    if row is None:
        return Option(offer, setup, memory, False, reasons=(slow,))
    cost = month(offer, load.duty, instances)
    tokens = load.requests_per_hour * load.output_tokens * load.hours_a_day * 365 / 12
    reasons = [*memory.reasons, *_words(offer, load, row, instances, cost)]
    return Option(
        offer,
        setup,
        memory,
        True,
        row,
        instances,
        cost,
        cost.usd / tokens * 1e6 if tokens else None,
        tuple(reasons),
    )


def _loader(offer: Offer) -> Literal["mmap", "stream"]:
    return "stream" if offer.target in {"cloudrun-rtx6000", "tpu-v6e"} else "mmap"


def _setup(checkpoint: Checkpoint, load: Load, offer: Offer) -> Setup:
    """The reference deployment with these weights, long enough, the platform's cap at the batch."""
    setup = Setup.of(offer.profile, checkpoint)
    length = max(_MIN_LENGTH, 1024 * math.ceil(load.length / 1024))
    length = min(max(length, load.length), checkpoint.attention.max_context_tokens)
    cap = setup.max_num_seqs if setup.admission_cap else 0
    return replace(
        setup,
        chips=offer.chips,
        max_model_len=min(setup.max_model_len, length) if load.length < length else length,
        admission_cap=cap,
    )


def _level(setup: Setup, load: Load) -> _Level:
    """The level at which one instance serves its share, and how many instances that takes."""
    wanted = load.requests_per_hour / 3600
    best: Prediction | None = None
    for level in _LEVELS:
        if level > setup.max_num_seqs:
            break
        row = predict(
            setup, level, prompt_tokens=load.prompt_tokens, output_tokens=load.output_tokens
        )
        if not load.allows(row):
            if best is None:
                return None, 0, _too_slow(load, row)
            break
        before = best.requests_per_s if best is not None else 0.0
        best = row if row.requests_per_s > before else best
        if best is not None and best.requests_per_s * _HEADROOM >= wanted:
            return best, 1, ""
        if row.requests_per_s < before * _STILL_RISING:
            break
    assert best is not None  # noqa: S101 (level 1 either returned or set it)
    instances = math.ceil(wanted / (best.requests_per_s * _HEADROOM))
    if instances > _MOST_INSTANCES:
        return None, 0, f"It would take {instances} instances."
    return best, instances, ""


def _too_slow(load: Load, row: Prediction) -> str:
    limits = []
    if load.ttft_ms is not None and row.ttft_ms > load.ttft_ms:
        limits.append(f"the first token after {row.ttft_ms:.0f} ms, above {load.ttft_ms:.0f}")
    if load.e2e_s is not None and row.e2e_s > load.e2e_s:
        limits.append(f"an answer after {row.e2e_s:.1f} s, above {load.e2e_s:.1f}")
    return f"Too slow even for one client (predicted): {' and '.join(limits)}."


def _words(
    offer: Offer, load: Load, row: Prediction, instances: int, cost: MonthlyCost
) -> list[str]:
    said = [
        f"{cost.usd:.0f} USD a month: {instances} x {offer.usd_per_hour:.4g} USD/h for "
        f"{cost.hours:.0f} h"
        + (f", and {cost.idle_usd:.0f} USD while it does not serve" if cost.idle_usd >= 1 else "")
        + "."
    ]
    wait = f"the first request waits about {offer.profile.startup_s / 60:.0f} minutes for a start"
    if offer.refuses_asleep:
        wait = wait.replace("the first request waits", "requests are refused for")
    if offer.scales_to_zero:
        said.append(f"Scales to zero; after {offer.idle_s / 60:.0f} idle minutes {wait}.")
    elif offer.stoppable and load.hours_a_day < 24:
        said.append("Counted as stopped outside the hours of use (stop_serving, start_serving).")
    elif load.hours_a_day < 24:
        said.append("Paid for day and night, since it cannot be stopped without giving it up.")
    if offer.may_end:
        said.append("The cloud may take it away, and may not give it again at once.")
    full = usd_per_million_tokens(offer.usd_per_hour, row.output_tokens_per_s)
    if full is not None:
        said.append(f"{full:.2f} USD a million output tokens {DAY_AND_NIGHT}")
    return said

"""What the engine's own log says about its memory, and what follows for context and load.

The figures are those the engine printed; what is computed from them says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backends.knowledge.false_signals import SIGNATURES as FALSE_SIGNALS
from backends.knowledge.tpu import ACTIVATIONS_GIB
from backends.serving.startup_log import StartupProgress

_STATISTICS = re.compile(
    r"Memory statistics \| total_hbm_limit_gb=([\d.]+)GiB \| total_hbm_limit_cap_gb=([\d.]+)GiB "
    r"\| total_hbm_used_gb=([\d.]+)GiB \| total_hbm_avail_gb=(-?[\d.]+)GiB"
)
_COMPILED = re.compile(r"Compilation of \S+.* finished in ([\d.]+)")
_GIB = 2**30
# Harmless and not misleading either: every TPU log has them.
_PLAIN = frozenset({"tpu_compiles"})


@dataclass(frozen=True)
class Hbm:
    """Memory of each chip, GiB, as the engine logged it.

    Attributes:
        total: What the chip has.
        cap: What weights and KV cache may take together.
        weights: What the weights take.
        kv: What the KV cache takes.
    """

    total: float
    cap: float
    weights: float
    kv: float

    @property
    def free(self) -> float:
        """What is left for activations and compiled programs."""
        return self.total - self.weights - self.kv


def hbm_of(log: str) -> Hbm | None:
    """The memory statistics of a log; None before they are printed."""
    found = _STATISTICS.search(log)
    if found is None:
        return None
    total, cap, used, available = map(float, found.groups())
    return Hbm(total, cap, used, available)


def facts_of(
    log: str, progress: StartupProgress, chips: int
) -> dict[str, str | int | float | bool]:
    """Memory and capacity for a status, from the log alone.

    Args:
        log: The engine's log.
        progress: The same, read.
        chips: Chips of the slice.
    """
    facts: dict[str, str | int | float | bool] = {"chips": chips}
    hbm = hbm_of(log)
    if hbm is not None:
        facts |= {
            "hbm_gib_per_chip": hbm.total,
            "hbm_used_gib_per_chip": round(hbm.weights + hbm.kv, 2),
            "hbm_weights_gib_per_chip": hbm.weights,
            "hbm_kv_gib_per_chip": hbm.kv,
            "hbm_free_gib_per_chip": round(hbm.free, 2),
        }
    said = progress.facts
    if said.kv_tokens is not None:
        facts["kv_tokens"] = said.kv_tokens
    if said.max_concurrency is not None:
        facts["max_concurrency_full_length"] = said.max_concurrency
    if hbm is not None and said.kv_tokens:
        facts["kv_kib_per_token_per_chip"] = round(hbm.kv * _GIB / 1024 / said.kv_tokens, 1)
    times = [float(text) for text in _COMPILED.findall(log)]
    if times:
        facts["compiled_graphs"] = len(times)
    return facts


def context_advice(log: str, progress: StartupProgress, contexts: Sequence[int] = ()) -> list[str]:
    """Whether contexts fit and what is left, in sentences with the engine's figures.

    Args:
        log: The engine's log.
        progress: The same, read.
        contexts: Contexts asked about, in tokens; the usual ones unless given.
    """
    tokens, length = progress.facts.kv_tokens, progress.facts.max_model_len
    advice: list[str] = []
    if tokens:
        fits = [
            f"{context}: {tokens // context}"
            for context in contexts or (8192, 16_384, 32_768, 65_536)
            if context <= tokens
        ]
        advice.append(
            f"The KV cache holds {tokens} tokens (logged). Requests of a full context that fit at "
            f"once: {', '.join(fits)}."
        )
        if length and tokens >= 2 * length:
            advice.append(
                f"max_model_len is {length}; it does not change the size of the KV cache, so a "
                "longer context costs concurrency, not memory."
            )
    hbm = hbm_of(log)
    if hbm is not None:
        advice.append(
            f"Of {hbm.total:g} GiB on each chip weights take {hbm.weights:g} and the KV cache "
            f"{hbm.kv:g} (logged); {hbm.free:.2f} GiB are left for activations and compiled "
            "programs."
        )
        if hbm.free < ACTIVATIONS_GIB.value - 0.1:
            advice.append(
                f"That is less than the {ACTIVATIONS_GIB.value:g} GiB that are usual: long "
                "prompts may end in RESOURCE_EXHAUSTED. Leave gpu_memory_utilization out."
            )
    return advice


def misleading(log: str, tail: str = "") -> list[str]:
    """Lines of the log that look bad, or say what is not so, each with the truth."""
    lines = f"{log}\n{tail}".splitlines()
    found: dict[str, str] = {}
    for line in lines:
        for known in FALSE_SIGNALS:
            if known.id not in {*found, *_PLAIN} and known.pattern.search(line):
                found[known.id] = f"Harmless: {line.strip()[:120]!r}. {known.cause}"
    return list(found.values())

"""Service-level objectives: what latency is good enough, which levels and requests meet it.

Written as people say it, one bound a text: `ttft_p95<=200`, `tpot_p99<=50ms`, `e2e_mean<=4s`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.serving.stats import percentile

if TYPE_CHECKING:
    from backends.serving.loadgen import RequestRecord
    from backends.serving.runs import LevelResult

FORM = "figure_statistic<=limit, like ttft_p95<=200 or e2e_mean<=4s (ms unless it says s)"
MAX_ERROR_SHARE = 0.01
"""A level that fails more of its requests than this meets no objective, however fast the rest."""

_BOUND = re.compile(
    r"(?P<figure>ttft|itl|tpot|e2e)(_ms)?_(?P<statistic>mean|p50|p90|p95|p99)\s*(<=|<|:)\s*"
    r"(?P<limit>\d+(\.\d+)?)\s*(?P<unit>ms|s)?"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound of an objective.

    Args:
        figure: `ttft`, `itl`, `tpot` or `e2e`.
        statistic: `mean`, `p50`, `p90`, `p95` or `p99`.
        limit_ms: The most it may be, milliseconds, above 0.
    """

    figure: str
    statistic: str
    limit_ms: float

    @classmethod
    def parse(cls, text: str) -> Bound:
        """Read one bound.

        Raises:
            ValueError: It is not written as `FORM` says.
        """
        found = _BOUND.fullmatch(text.strip().lower())
        limit = float(found["limit"]) if found else 0.0
        if found is None or limit <= 0:
            raise ValueError(f"{text.strip()[:60]!r} is not {FORM}")
        return cls(
            found["figure"], found["statistic"], limit * (1000 if found["unit"] == "s" else 1)
        )

    def __str__(self) -> str:
        return f"{self.figure.upper()} {self.statistic} <= {self.limit_ms:g} ms"

    def of(self, level: LevelResult) -> float | None:
        """Return what the level measured of it, in milliseconds."""
        value = getattr(getattr(level, f"{self.figure}_ms"), self.statistic)
        return None if value is None else float(value)


def parse_slo(texts: Iterable[str]) -> tuple[Bound, ...]:
    """Read the bounds of an objective.

    Raises:
        ValueError: One of them is not written as `FORM` says, or two bound the same.
    """
    bounds = tuple(Bound.parse(text) for text in texts)
    named = [(bound.figure, bound.statistic) for bound in bounds]
    if len(set(named)) != len(named):
        raise ValueError("the same statistic is bounded twice")
    return bounds


def misses(bounds: Sequence[Bound], level: LevelResult) -> list[str]:
    """Return in what a level misses an objective; empty when it meets it.

    A figure that was not measured is a miss: an objective is met by evidence only.
    """
    out: list[str] = []
    failed = 1 - (level.success_rate or 0.0)
    if failed > MAX_ERROR_SHARE:
        out.append(f"{failed:.1%} of the requests failed or were never sent")
    for bound in bounds:
        value = bound.of(level)
        if value is None:
            out.append(f"{bound}: not measured")
        elif value > bound.limit_ms:
            out.append(f"{bound}: was {value:.1f} ms")
    return out


def good_requests(bounds: Sequence[Bound], records: Iterable[RequestRecord]) -> int:
    """Return how many requests were each within every limit: the numerator of goodput.

    A request has one TTFT, TPOT and E2E; of ITL it has many, and the statistic of its own gaps is
    held against the limit. Whatever the statistic of the level, each request is judged alone, as
    `vllm bench serve --goodput` does.
    """
    return sum(
        record.failure is None and all(_within(bound, record) for bound in bounds)
        for record in records
    )


def _within(bound: Bound, record: RequestRecord) -> bool:
    value = _value_ms(bound, record)
    return value is not None and value <= bound.limit_ms


def _value_ms(bound: Bound, record: RequestRecord) -> float | None:
    times = record.content_ns
    if not times:
        return None
    if bound.figure == "ttft":
        return (times[0] - record.from_ns) / 1e6
    if bound.figure == "e2e":
        return (times[-1] - record.from_ns) / 1e6
    tokens = record.events if record.completion_tokens is None else record.completion_tokens
    mean_ms = (times[-1] - times[0]) / 1e6 / max(1, tokens - 1)
    if bound.figure == "tpot" or bound.statistic == "mean" or record.folded:
        # of a very long level only the first and last time are kept of each request
        return mean_ms
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    return percentile(gaps, float(bound.statistic[1:])) / 1e6 if gaps else 0.0

"""What a sweep measures, one by one: loads, contexts, repetitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backends.serving.engine.schedule import Arrivals, send_times_ns
from backends.serving.spec import BenchmarkSpec


@dataclass(frozen=True, slots=True)
class Cell:
    """One level to be measured.

    Args:
        concurrency: Requests in flight; of an open loop, the most.
        rate: Requests per second of an open loop; None for a closed one.
        context: Prompt tokens asked for, of a grid.
        repetition: From 1.
    """

    concurrency: int
    rate: float | None = None
    context: int | None = None
    repetition: int = 1

    @property
    def words(self) -> str:
        """What it is, as a person says it."""
        words = f"concurrency {self.concurrency}"
        if self.rate is not None:
            words = f"{self.rate:g} requests/s"
        if self.context is not None:
            words += f" x {self.context} tokens"
        return words if self.repetition == 1 else f"{words}, repetition {self.repetition}"

    @property
    def name(self) -> str:
        """What tells it from the other cells of a run, short: goes into the salt of its prompts."""
        load = str(self.concurrency) if self.rate is None else f"r{self.rate:g}"
        return "x".join(
            [load, *([str(self.context)] if self.context else [])]
            + ([f"n{self.repetition}"] if self.repetition > 1 else [])
        )

    def requests(self, spec: BenchmarkSpec) -> int:
        """How many requests are measured."""
        return spec.requests_for(self.concurrency, self.rate)

    def warmups(self, spec: BenchmarkSpec) -> int:
        """How many requests warm up."""
        return spec.warmup_for(self.concurrency, self.rate)

    def send_at_ns(self, spec: BenchmarkSpec) -> list[int] | None:
        """When the requests of an open loop are to be sent; None for a closed loop."""
        if self.rate is None:
            return None
        arrivals = Arrivals(
            self.rate,
            spec.arrivals,
            spec.burstiness,
            spec.ramp_to,
            seed=spec.seed * 1000 + self.repetition,
        )
        return send_times_ns(arrivals, self.requests(spec))


def loads(spec: BenchmarkSpec, *, context: int | None = None) -> Iterator[Cell]:
    """Return every load of a spec, with its repetitions one after the other."""
    if spec.request_rates is None:
        found = [Cell(level, None, context) for level in spec.levels]
    else:
        found = [Cell(spec.max_in_flight, rate, context) for rate in spec.request_rates]
    for cell in found:
        yield from repetitions(cell, spec)


def repetitions(cell: Cell, spec: BenchmarkSpec) -> Iterator[Cell]:
    """Return a cell as often as the spec says."""
    for number in range(1, spec.repetitions + 1):
        yield Cell(cell.concurrency, cell.rate, cell.context, number)


def at_load(load: float, spec: BenchmarkSpec) -> Cell:
    """Return the cell of a load: requests per second where the spec has rates, else streams."""
    if spec.request_rates is None:
        return Cell(round(load))
    return Cell(spec.max_in_flight, load)

"""Measures one level: prompts, load, the engine's own figures around the window, the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from backends.core.errors import EndpointAuthError, EndpointError, EndpointRejectedError
from backends.core.state import stamp
from backends.serving.efficiency import level_efficiency
from backends.serving.levels import level_result
from backends.serving.loadgen import LevelProgress, LevelRaw, LevelSpec
from backends.serving.metrics import MetricsDelta, metrics_delta, parse_metrics
from backends.serving.runs import Current, LevelResult, StopRule

if TYPE_CHECKING:
    from backends.knowledge.roofline import StepModel
    from backends.serving.cells import Cell
    from backends.serving.endpoint import Endpoint, EndpointClient
    from backends.serving.limits import Limits
    from backends.serving.loadgen import LoadEngine
    from backends.serving.prompts import PromptMaker
    from backends.serving.run_record import RunRecord
    from backends.serving.spec import BenchmarkSpec

SCRAPE_TIMEOUT_S = 3.0
MAX_EVENTS_SO_FAR = 100_000
"""Summarising more than this twice a second would take a core from whom it measures."""

CANCELLED = "cancelled"
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

Tell = Callable[[str, float], None]


@dataclass
class _Scrape:
    """Two readings of `/metrics` around a window, parsed only after it."""

    texts: list[str] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)

    def delta(self) -> MetricsDelta | None:
        if len(self.texts) != 2:
            return None
        before, after = (parse_metrics(text) for text in self.texts)
        return metrics_delta(before, after, max(1e-6, self.times_s[1] - self.times_s[0]))


class Measurer:
    """Measures the levels of one run, one after the other.

    Args:
        spec: What to measure.
        endpoint: Whom.
        engine: Makes the load.
        client: Asks the endpoint everything else.
        record: Takes progress and warnings.
        limits: End a level that is under way.
        should_stop: Whether somebody asked for an end.
        tell: Takes a line of progress and the share of the level done.
    """

    def __init__(
        self,
        spec: BenchmarkSpec,
        endpoint: Endpoint,
        engine: LoadEngine,
        client: EndpointClient,
        record: RunRecord,
        limits: Limits,
        should_stop: Callable[[], bool],
        tell: Tell,
    ) -> None:
        self._spec = spec
        self._endpoint = endpoint
        self._engine = engine
        self._client = client
        self._record = record
        self._limits = limits
        self._should_stop = should_stop
        self._tell = tell
        self._scrapes = True
        self.ended_by: tuple[StopRule | Literal["cancelled"], str] | None = None
        """What cut the last level short from outside, and its words."""
        self.maker: PromptMaker | None = None
        self.model: StepModel | None = None

    async def level(self, cell: Cell, *, again: bool = False) -> LevelResult | None:
        """Measure a level, and once more with one more worker if the client was its limit.

        Args:
            cell: Which.
            again: Whether it has been measured before: its prompts must differ.

        Returns:
            The result; None when a wish or a limit ended it before one request had ended.
        """
        attempt = 3 if again else 1
        raw, result = await self._measure(cell, attempt)
        too_slow = result.self_check.limited_the_level and not result.partial
        if too_slow and not self._ends() and self._engine.add_worker():
            self._tell(f"{cell.words}: once more, with one more client process", 0.0)
            first = result
            raw, result = await self._measure(cell, attempt + 1)
            result.repeated = True
            if result.partial:  # cancelled meanwhile: a whole level that is not valid says more
                result = first
        self._record.run.current = None
        return result if raw.records or self.ended_by is None else None

    async def _measure(self, cell: Cell, attempt: int) -> tuple[LevelRaw, LevelResult]:
        spec, started_at, maker = self._spec, stamp(), self.maker
        assert maker is not None, "prompts are made before anything is measured"  # noqa: S101
        scrape = _Scrape()
        level = LevelSpec(
            concurrency=cell.concurrency,
            path=PATHS[spec.endpoint_kind],
            bodies=maker.bodies(
                cell.name, cell.requests(spec), attempt=attempt, context=cell.context
            ),
            warmup_bodies=maker.bodies(
                cell.name, cell.warmups(spec), warmup=True, attempt=attempt, context=cell.context
            ),
            timeout_s=spec.timeout_s,
            max_error_rate=spec.max_error_rate,
            before_window=lambda: self._scrape(scrape),
            after_window=lambda: self._scrape(scrape),
            send_at_ns=cell.send_at_ns(spec),
            turns=spec.turns_in_a_row,
        )
        raw = await self._engine.run_level(
            level,
            self._endpoint,
            lambda progress: self._progress(cell, started_at, progress),
            self._ends,
        )
        self.ended_by = self._from_outside(raw)
        server = self._server_figures(scrape)
        result = level_result(
            raw, spec, cell.concurrency, started_at=started_at, server=server, cell=cell
        )
        result.efficiency = level_efficiency(result, self.model)
        return raw, result

    def _from_outside(self, raw: LevelRaw) -> tuple[StopRule | Literal["cancelled"], str] | None:
        """Say whether a wish or a limit cut a level short, and put it into its words."""
        if raw.cut_short and self._should_stop():
            # whatever the engine saw of it: the signal that asks may have ended its workers first
            raw.cut_short = CANCELLED
            return "cancelled", CANCELLED
        limit = self._limits.reached()
        if raw.cut_short == CANCELLED and limit is not None:
            raw.cut_short = limit[1]
            return limit
        return None

    def _ends(self) -> bool:
        return self._should_stop() or self._limits.reached() is not None

    async def _scrape(self, scrape: _Scrape) -> None:
        if not self._scrapes:
            return
        try:
            text = await self._client.metrics_text(timeout_s=SCRAPE_TIMEOUT_S)
        except EndpointError as error:
            if isinstance(error, EndpointRejectedError | EndpointAuthError):
                self._scrapes = False
            self._record.run.warnings.append(f"no engine figures: {error.message}")
            return
        scrape.texts.append(text)
        scrape.times_s.append(time.perf_counter())

    def _server_figures(self, scrape: _Scrape) -> MetricsDelta | None:
        try:
            return scrape.delta()
        except EndpointError as error:
            self._scrapes = False
            self._record.run.warnings.append(f"no engine figures: {error.message}")
            return None

    def _progress(self, cell: Cell, started_at: str, progress: LevelProgress) -> None:
        raw, spec = progress.raw, self._spec
        events = sum(record.events for record in raw.records)
        so_far = None
        if progress.phase == "measuring" and raw.records and events <= MAX_EVENTS_SO_FAR:
            so_far = level_result(raw, spec, cell.concurrency, started_at=started_at, cell=cell)
            so_far.partial = True
        self._record.run.current = Current(
            phase=progress.phase,
            concurrency=cell.concurrency,
            request_rate=cell.rate,
            context_tokens=cell.context,
            repetition=cell.repetition,
            requests_done=progress.done,
            requests_total=progress.total,
            errors=progress.errors,
            elapsed_s=progress.elapsed_s,
            so_far=so_far,
        )
        done = progress.done
        if progress.phase == "measuring":
            done += cell.warmups(spec)
        rate = f", {rate_words(so_far)}" if so_far else ""
        failed = f", {progress.errors} failed" if progress.errors else ""
        self._tell(
            f"{cell.words} {progress.phase}: {progress.done} of {progress.total} "
            f"requests{failed}{rate}",
            done / max(1, cell.requests(spec) + cell.warmups(spec)),
        )
        self._record.save_soon()


def rate_words(level: LevelResult) -> str:
    """Return a level's throughput and TTFT in a few words."""
    rate, ttft = level.output_tokens_per_s, level.ttft_ms.p50
    if rate is None or ttft is None:
        return "no request has succeeded"
    return f"{rate:.1f} tokens/s, TTFT p50 {ttft:.0f} ms"

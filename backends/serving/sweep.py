"""Runs a benchmark: level after level, a search for the knee, or a grid; written while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backends.core.errors import DevopsError, EndpointError, NotSupportedError
from backends.core.state import new_id, stamp
from backends.serving.beside_server import set_beside
from backends.serving.cells import Cell, at_load, loads, repetitions
from backends.serving.efficiency import step_model
from backends.serving.endpoint import Endpoint, EndpointClient
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.findings import findings, plateau
from backends.serving.grid import filled_cell, planned_cell
from backends.serving.knee import KneeSearch
from backends.serving.limits import Limits
from backends.serving.measure import Measurer, rate_words
from backends.serving.preparing import find_pool, served_model
from backends.serving.prompts import PromptMaker
from backends.serving.repeats import repeated, representatives
from backends.serving.run_record import (
    BenchmarkProgress,
    RunRecord,
    environment,
    levels_csv,
)
from backends.serving.runs import (
    DEFINITIONS,
    RUN_FILE,
    BenchmarkRun,
    BenchmarkSpec,
    EndpointFacts,
    GridCell,
    KneeResult,
    KneeStep,
    LevelResult,
    RunError,
    RunState,
    StopRule,
)

if TYPE_CHECKING:
    from backends.serving.loadgen import LoadEngine

__all__ = ["BenchmarkProgress", "levels_csv", "run_benchmark"]


async def run_benchmark(
    spec: BenchmarkSpec,
    endpoint: Endpoint,
    out_dir: Path,
    on_progress: Callable[[BenchmarkProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    *,
    run_id: str | None = None,
    engine: LoadEngine | None = None,
    file_name: str = RUN_FILE,
) -> BenchmarkRun:
    """Measure an endpoint as a spec says.

    Args:
        spec: What to measure.
        endpoint: Whom; `endpoint.simulated` labels the run.
        out_dir: Where `run.json` and `levels.csv` go; made if missing.
        on_progress: Called about twice a second; must return within milliseconds.
        should_stop: Asked several times a second; once True, the level under way is cut short and
            kept as partial, and the run ends with state `cancelled`.
        run_id: The run's id; None makes one.
        engine: The load engine; None takes the default one.
        file_name: Another name for `run.json`; `x.json` has its levels in `x.levels.csv`.

    Returns:
        The run, with state `completed`, `stopped` (a rule ended it, see `stopped_by`) or
        `cancelled`.

    Raises:
        DevopsError: It could not be measured: unreachable, not authorised, the model is not
            served, the dataset cannot be used, or not one request succeeded. `run.json` says so
            too, with state `failed` and every level measured until then.
    """
    sweep = _Sweep(
        spec,
        endpoint,
        out_dir / file_name,
        on_progress=on_progress or (lambda _: None),
        should_stop=should_stop or (lambda: False),
        engine=engine or _engine(spec),
        run_id=run_id or new_id("bench"),
    )
    try:
        return await sweep.run()
    finally:
        await sweep.close()


def _engine(spec: BenchmarkSpec) -> LoadEngine:
    if spec.runner == "local":
        return EpollEngine()
    if spec.runner == "host":
        raise NotSupportedError(
            "runner=host needs a deployment whose machine we can log in to.",
            next_action="Leave runner out, or measure a deployment by its target and name.",
        )
    from backends.serving.engine.ray_crew import RayNodes

    return EpollEngine(
        workforce=RayNodes(spec.ray_address, spec.ray_resource, spec.ray_nodes),
    )


class _Ended(Exception):  # noqa: N818 - not an error: the run has been ended, with a reason
    """The run ends here."""

    def __init__(self, state: RunState, reason: str, rule: StopRule | None = None) -> None:
        super().__init__(reason)
        self.state, self.reason, self.rule = state, reason, rule


class _Sweep:
    """One run under way."""

    def __init__(
        self,
        spec: BenchmarkSpec,
        endpoint: Endpoint,
        run_file: Path,
        *,
        on_progress: Callable[[BenchmarkProgress], None],
        should_stop: Callable[[], bool],
        engine: LoadEngine,
        run_id: str,
    ) -> None:
        self.spec = spec
        self.endpoint = endpoint
        self.should_stop = should_stop
        self._limits = Limits(spec)
        self._client = EndpointClient(endpoint)
        now = stamp()
        self.run_ = BenchmarkRun(
            id=run_id,
            state="running",
            created_at=now,
            updated_at=now,
            label=spec.label or endpoint.source or run_id,
            simulated=endpoint.simulated,
            endpoint=EndpointFacts(
                base_url=endpoint.base_url,
                model=endpoint.model or "",
                source=endpoint.source,
                simulated=endpoint.simulated,
            ),
            spec=spec,
            environment=environment(engine),
            definitions=DEFINITIONS,
            levels=[],
        )
        self._record = RunRecord(self.run_, run_file, self._limits, on_progress)
        self._measurer = Measurer(
            spec,
            endpoint,
            engine,
            self._client,
            self._record,
            self._limits,
            should_stop,
            self._tell,
        )
        # progress: what is done and what a cell counts, of `_work` in all
        self._done = 0.0
        self._counts = 0.0
        self._work = 1.0

    async def run(self) -> BenchmarkRun:
        await self._record.save()
        try:
            await self._prepare()
            modes = {"levels": self._levels, "knee": self._knee, "grid": self._grid}
            await modes[self.spec.mode]()
            return await self._end("completed", "")
        except _Ended as ended:
            self.run_.stopped_by = ended.rule
            return await self._end(ended.state, ended.reason)
        except DevopsError as error:
            self.run_.error = RunError(
                code=error.code,
                message=error.message,
                words=error.words,
                cause=error.cause,
                next_action=error.next_action,
            )
            await self._end("failed", error.message)
            raise
        except BaseException as error:
            # the process is being ended, or we are wrong: what was measured is kept either way
            await self._end("failed", f"ended by {type(error).__name__}: {error}")
            raise

    async def close(self) -> None:
        await self._client.aclose()
        self._record.close()

    # ---- the three ways ----------------------------------------------------------------------

    async def _levels(self) -> None:
        cells = list(loads(self.spec))
        self._plan(cells)
        for cell in cells:
            await self._step(cell)
            if self.spec.stop_at_saturation:
                self._end_at_saturation(cell)

    async def _knee(self) -> None:
        spec = self.spec
        rates = spec.request_rates is not None
        found: Sequence[float] = spec.request_rates or spec.levels
        low, high = min(found), max(found)
        search = KneeSearch(
            low,
            high,
            whole=not rates,
            tolerance=spec.knee_tolerance,
            max_steps=spec.knee_steps,
        )
        self._work, self._counts = float(spec.knee_steps * spec.repetitions), 1.0
        knee = KneeResult(
            kind="requests_per_s" if rates else "concurrency",
            slo=[str(bound) for bound in spec.bounds],
            load=None,
            first_miss=None,
            searched_from=low,
            searched_to=high,
            settled=False,
        )
        self.run_.knee = knee
        while (load := search.next_load()) is not None:
            holds = []
            for cell in repetitions(at_load(load, spec), spec):
                level = await self._probe(cell)
                holds.append(bool(level.meets_slo))
                knee.steps.append(
                    KneeStep(
                        load=load,
                        meets=bool(level.meets_slo),
                        misses=level.slo_misses,
                        valid=level.valid,
                    )
                )
            search.tell(load, meets=all(holds))
            knee.load, knee.first_miss = search.best, search.miss
            knee.settled = search.settled
            self._add_figures(knee)
            await self._record.save()

    async def _grid(self) -> None:
        spec = self.spec
        rows = [
            [(cell, planned_cell(cell, spec, self.run_.endpoint)) for cell in loads_of]
            for loads_of in (list(loads(spec, context=context)) for context in spec.contexts or ())
        ]
        first = [(cell, planned) for row in rows for cell, planned in row if cell.repetition == 1]
        self.run_.grid = [planned for _, planned in first]
        self._plan(
            [cell for row in rows for cell, planned in row if planned.status != "infeasible"]
        )
        place = {
            (cell.context, cell.concurrency, cell.rate): at for at, (cell, _) in enumerate(first)
        }
        for row in rows:
            failed = ""
            for cell, planned in row:
                at = place[cell.context, cell.concurrency, cell.rate]
                if planned.status == "infeasible":
                    continue
                if failed:
                    self.run_.grid[at].reason = failed
                    continue
                level = await self._step(cell, in_grid=True)
                self._fill(at, planned, cell)
                if level is not None and self.run_.grid[at].status == "failed":
                    failed = f"{cell.words} failed before it"
                await self._record.save()

    def _fill(self, at: int, planned: GridCell, cell: Cell) -> None:
        """Fill a cell from its repetitions' representative."""
        same = [
            level
            for level in self.run_.levels
            if level.context_tokens == cell.context
            and level.concurrency == cell.concurrency
            and level.request_rate == cell.rate
        ]
        found = representatives(same)
        self.run_.grid[at] = filled_cell(planned, found[0] if found else None)

    # ---- one level ---------------------------------------------------------------------------

    async def _step(self, cell: Cell, *, in_grid: bool = False) -> LevelResult | None:
        """Measure one cell and put it on record; ends the run where a rule says so."""
        self._check_before(cell)
        level = await self._measurer.level(cell)
        if level is not None:
            self.run_.levels.append(level)
        await self._settle(cell, level)
        self._check_after(cell)
        if level is not None and self._too_many_errors(level):
            self._end_on_errors(cell, level, go_on=in_grid)
        return level

    async def _probe(self, cell: Cell) -> LevelResult:
        """Measure one load of a search; once more where the client, not the server, missed."""
        self._check_before(cell)
        level = await self._measurer.level(cell)
        missed_by_client = (
            level is not None
            and not level.valid
            and not level.meets_slo
            and not level.errors
            and not level.partial
        )
        if missed_by_client:
            self._tell(f"{cell.words}: once more, the client was disturbed", 0.0)
            second = await self._measurer.level(cell, again=True)
            if second is not None and not second.partial:
                level = second
        if level is not None:
            self.run_.levels.append(level)
        await self._settle(cell, level)
        self._check_after(cell)
        if level is None or not any(one.output_tokens_per_s for one in self.run_.levels):
            self._end_on_errors(cell, level)
        assert level is not None, "an end without a result has been raised"  # noqa: S101
        return level

    async def _settle(self, cell: Cell, level: LevelResult | None) -> None:
        run = self.run_
        set_beside(run.levels)
        run.repeated = repeated(run.levels)
        self._done += self._weight(cell)
        await self._record.save()
        words = rate_words(level) if level is not None else "no result"
        self._tell(f"{cell.words} done: {words}", 0.0)

    def _check_before(self, cell: Cell) -> None:
        self._counts = self._weight(cell)
        if self.should_stop():
            raise _Ended("cancelled", "cancelled before the next level")
        limit = self._limits.reached()
        if limit is not None:
            raise _Ended("stopped", f"{limit[1]} before {cell.words}", limit[0])

    def _check_after(self, cell: Cell) -> None:
        ended = self._measurer.ended_by
        if ended is None:
            return
        rule, words = ended
        if rule == "cancelled":
            raise _Ended("cancelled", f"cancelled at {cell.words}")
        raise _Ended("stopped", f"{words} at {cell.words}", rule)

    def _too_many_errors(self, level: LevelResult) -> bool:
        rate = level.success_rate
        return rate is None or rate == 0 or 1 - rate > self.spec.max_error_rate

    def _end_on_errors(self, cell: Cell, level: LevelResult | None, *, go_on: bool = False) -> None:
        samples = level.error_samples if level is not None else []
        kinds = ", ".join(f"{sample.count} x {sample.kind}" for sample in samples)
        if not kinds and level is not None:  # nothing was refused: the client itself failed
            kinds = "; ".join(level.invalid_reasons)
        first = samples[0] if samples else None
        if level is not None and any(other.output_tokens_per_s for other in self.run_.levels):
            if go_on:
                return
            raise _Ended(
                "stopped",
                f"at {cell.words} {level.errors} of {level.requests} requests failed ({kinds})",
                "errors",
            )
        raise EndpointError(
            f"No request succeeded at {cell.words}: {kinds or 'none was sent'}.",
            status=first.status if first else None,
            words=first.message if first else "",
            cause="The endpoint refuses the requests themselves, or is not ready.",
            next_action="Send one request with query_model to see the whole refusal.",
        )

    def _end_at_saturation(self, cell: Cell) -> None:
        if cell.repetition < self.spec.repetitions:
            return
        valid = [level for level in self.run_.levels if level.valid]
        knee = plateau(representatives(valid))
        if knee is not None and knee.load < cell_load(cell):
            raise _Ended(
                "stopped",
                f"throughput stopped rising at {knee.load_words}; {cell.words} gave less than a "
                "tenth more",
                "saturation",
            )

    def _add_figures(self, knee: KneeResult) -> None:
        """Give the knee the figures of the level it stands for."""
        held = [level for level in self.run_.levels if level.load == knee.load]
        for level in representatives(held):
            knee.output_tokens_per_s = level.output_tokens_per_s
            knee.goodput_requests_per_s = level.goodput_requests_per_s
            knee.usd_per_million_output_tokens = level.usd_per_million_output_tokens

    # ---- before and after --------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Find out whom we talk to before any load, so that a typo fails at once."""
        run, facts = self.run_, self.run_.endpoint
        names = await served_model(self._client, self.endpoint, run)
        facts.model = names[0]
        try:
            facts.version = await self._client.version()
        except EndpointError:
            run.warnings.append("the endpoint does not tell vLLM's version")
        maker = PromptMaker(self.spec, facts.model, run.id)
        await maker.calibrate(self._client)
        run.prompts = maker.description
        self._measurer.maker = maker
        found = (step_model(self.spec, name) for name in names)
        self._measurer.model = next((model for model in found if model is not None), None)
        if self._measurer.model is None and self.spec.accelerator is not None:
            run.warnings.append(
                f"no share of the memory bandwidth: {facts.model} is no checkpoint known here; "
                "name it with checkpoint"
            )
        if self.spec.mode == "grid":
            await find_pool(self._client, run, self._measurer.model)

    def _plan(self, cells: Sequence[Cell]) -> None:
        self._work = sum(self._weight(cell) for cell in cells) or 1.0

    def _weight(self, cell: Cell) -> float:
        if self.spec.mode == "knee":
            return 1.0
        return float(cell.requests(self.spec) + cell.warmups(self.spec))

    def _tell(self, message: str, share: float) -> None:
        self._record.tell(message, (self._done + share * self._counts) / self._work)

    async def _end(self, state: RunState, reason: str) -> BenchmarkRun:
        run = self.run_
        run.state, run.state_reason, run.current = state, reason, None
        run.findings = findings(run)
        run.finished_at = stamp()
        await self._record.save()
        self._record.tell(f"{state}{': ' + reason if reason else ''}", self._end_fraction(state))
        return run

    def _end_fraction(self, state: RunState) -> float:
        return 1.0 if state == "completed" else self._done / self._work


def cell_load(cell: Cell) -> float:
    """Return the load of a cell: requests per second of an open loop, else streams."""
    return float(cell.concurrency) if cell.rate is None else cell.rate

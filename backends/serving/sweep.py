"""Runs a benchmark: level after level, written to disk while it runs.

`run.json` holds everything at any moment: it is replaced atomically after every level and every
second within one, so a run that is killed leaves what it had measured. `levels.csv` beside it has
one row a level.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.core.errors import (
    DevopsError,
    EndpointAuthError,
    EndpointError,
    EndpointRejectedError,
)
from backends.core.state import new_id, stamp, write_text
from backends.serving.endpoint import Endpoint, EndpointClient
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.findings import findings
from backends.serving.levels import level_result
from backends.serving.loadgen import LevelProgress, LevelRaw, LevelSpec
from backends.serving.metrics import MetricsDelta, metrics_delta, parse_metrics
from backends.serving.prompts import PromptMaker
from backends.serving.runs import (
    DEFINITIONS,
    LEVELS_FILE,
    RUN_FILE,
    BenchmarkRun,
    BenchmarkSpec,
    Current,
    EndpointFacts,
    Environment,
    LevelResult,
    RunError,
)

if TYPE_CHECKING:
    from backends.serving.loadgen import LoadEngine

SAVE_EVERY_S = 1.0
SCRAPE_TIMEOUT_S = 3.0
MAX_EVENTS_SO_FAR = 100_000
"""Summarising more than this twice a second would take a core from whom it measures."""

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True)
class BenchmarkProgress:
    """Where a run stands, for a progress line.

    Attributes:
        fraction: 0..1 of all requests of all levels, warm-up included.
        message: One line: level, requests done, tokens per second so far.
        run: The run as it stands; to be read, not kept.
    """

    fraction: float
    message: str
    run: BenchmarkRun


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
    """Measure an endpoint at every level of a spec.

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
        The run, with state `completed`, `stopped` (the error rate ended it) or `cancelled`.

    Raises:
        DevopsError: It could not be measured: unreachable, not authorised, the model is not
            served, or not one request succeeded. `run.json` says so too, with state `failed` and
            every level measured until then.
    """
    sweep = _Sweep(
        spec,
        endpoint,
        out_dir,
        on_progress=on_progress or (lambda _: None),
        should_stop=should_stop or (lambda: False),
        engine=engine or EpollEngine(),
        run_id=run_id or new_id("bench"),
        file_name=file_name,
    )
    try:
        return await sweep.run()
    finally:
        await sweep.close()


def levels_csv(run: BenchmarkRun) -> str:
    """Return the levels as CSV, one row a level, distributions as `ttft_ms_p50` and so on."""
    rows = [_flat(level) for level in run.levels]
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def _flat(level: LevelResult) -> dict[str, object]:
    row: dict[str, object] = {}
    for name, value in level.model_dump(exclude={"server", "error_samples"}).items():
        if isinstance(value, dict):
            row.update({f"{name}_{key}": inner for key, inner in value.items()})
        elif isinstance(value, list):
            row[name] = "; ".join(value)
        else:
            row[name] = value
    return row


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


class _Sweep:
    """One run under way."""

    def __init__(
        self,
        spec: BenchmarkSpec,
        endpoint: Endpoint,
        out_dir: Path,
        *,
        on_progress: Callable[[BenchmarkProgress], None],
        should_stop: Callable[[], bool],
        engine: LoadEngine,
        run_id: str,
        file_name: str,
    ) -> None:
        self.spec = spec
        self.endpoint = endpoint
        self.engine = engine
        self.should_stop = should_stop
        self._on_progress = on_progress
        self._run_file = out_dir / file_name
        self._levels_file = (
            out_dir / LEVELS_FILE
            if file_name == RUN_FILE
            else self._run_file.with_suffix(".levels.csv")
        )
        self._client = EndpointClient(endpoint)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="benchmark-files")
        self._writing: Future[None] | None = None
        self._saved_s = 0.0
        self._requests_before = 0
        self._fraction = 0.0
        self._requests_all = sum(spec.requests_for(c) + spec.warmup_for(c) for c in spec.levels)
        self._scrapes = True
        now = stamp()
        self.record = BenchmarkRun(
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
            environment=_environment(engine),
            definitions=DEFINITIONS,
            levels=[],
        )

    async def run(self) -> BenchmarkRun:
        await self._save()
        try:
            maker = await self._prepare()
            for concurrency in self.spec.levels:
                if self.should_stop():
                    return await self._end("cancelled", "cancelled before the next level")
                raw = await self._level(concurrency, maker)
                if raw.cut_short == "cancelled":
                    return await self._end("cancelled", f"cancelled at concurrency {concurrency}")
                if self._too_many_errors(self.record.levels[-1]):
                    return await self._end_on_errors(concurrency)
            return await self._end("completed", "")
        except DevopsError as error:
            self.record.error = RunError(
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
        self._writer.shutdown(wait=True)

    async def _prepare(self) -> PromptMaker:
        """Find out whom we talk to before any load, so that a typo fails at once."""
        facts = self.record.endpoint
        facts.model = await self._served_model()
        try:
            facts.version = await self._client.version()
        except EndpointError:
            self.record.warnings.append("the endpoint does not tell vLLM's version")
        maker = PromptMaker(self.spec, facts.model, self.record.id)
        await maker.calibrate(self._client)
        self.record.prompts = maker.description
        return maker

    async def _served_model(self) -> str:
        wanted = self.endpoint.model
        try:
            served = await self._client.models()
        except EndpointRejectedError:
            if wanted is None:
                raise
            self.record.warnings.append("the endpoint does not list its models")
            return wanted
        names = [entry.id for entry in served]
        for entry in served:
            if wanted is None or entry.id == wanted:
                self.record.endpoint.max_model_len = entry.max_model_len
                return entry.id
        raise EndpointRejectedError(
            f"{self.endpoint.base_url} does not serve {wanted or 'any model'}.",
            cause=f"It serves: {', '.join(names) or 'nothing'}.",
            next_action=f"Benchmark {names[0]}." if names else "Read get_logs.",
        )

    async def _level(self, concurrency: int, maker: PromptMaker) -> LevelRaw:
        """Measure a level, and once more with one more worker if the client was its limit."""
        raw, result = await self._measure(concurrency, maker, attempt=1)
        too_slow = result.self_check.limited_the_level and not result.partial
        if too_slow and not self.should_stop() and self.engine.add_worker():
            self._tell(f"concurrency {concurrency}: once more, with one more client process", 0)
            first = result
            raw, result = await self._measure(concurrency, maker, attempt=2)
            result.repeated = True
            if result.partial:  # cancelled meanwhile: a whole level that is not valid says more
                result = first
        if raw.records or not raw.cut_short:
            self.record.levels.append(result)
        self.record.current = None
        self._requests_before += self.spec.requests_for(concurrency)
        self._requests_before += self.spec.warmup_for(concurrency)
        await self._save()
        self._tell(f"concurrency {concurrency} done: {_rate_words(result)}", 0)
        return raw

    async def _measure(
        self, concurrency: int, maker: PromptMaker, *, attempt: int
    ) -> tuple[LevelRaw, LevelResult]:
        spec, started_at = self.spec, stamp()
        scrape = _Scrape()
        measured, warmups = spec.requests_for(concurrency), spec.warmup_for(concurrency)
        level = LevelSpec(
            concurrency=concurrency,
            path=PATHS[spec.endpoint_kind],
            bodies=maker.bodies(concurrency, measured, attempt=attempt),
            warmup_bodies=maker.bodies(concurrency, warmups, warmup=True, attempt=attempt),
            timeout_s=spec.timeout_s,
            max_error_rate=spec.max_error_rate,
            before_window=lambda: self._scrape(scrape),
            after_window=lambda: self._scrape(scrape),
        )
        raw = await self.engine.run_level(
            level,
            self.endpoint,
            lambda progress: self._level_progress(concurrency, started_at, progress),
            self.should_stop,
        )
        server = self._server_figures(scrape)
        return raw, level_result(raw, spec, concurrency, started_at=started_at, server=server)

    async def _scrape(self, scrape: _Scrape) -> None:
        if not self._scrapes:
            return
        try:
            text = await self._client.metrics_text(timeout_s=SCRAPE_TIMEOUT_S)
        except EndpointError as error:
            if isinstance(error, EndpointRejectedError | EndpointAuthError):
                self._scrapes = False
            self.record.warnings.append(f"no engine figures: {error.message}")
            return
        scrape.texts.append(text)
        scrape.times_s.append(time.perf_counter())

    def _server_figures(self, scrape: _Scrape) -> MetricsDelta | None:
        try:
            return scrape.delta()
        except EndpointError as error:
            self._scrapes = False
            self.record.warnings.append(f"no engine figures: {error.message}")
            return None

    def _level_progress(self, concurrency: int, started_at: str, progress: LevelProgress) -> None:
        raw = progress.raw
        events = sum(record.events for record in raw.records)
        so_far = None
        if progress.phase == "measuring" and raw.records and events <= MAX_EVENTS_SO_FAR:
            so_far = level_result(raw, self.spec, concurrency, started_at=started_at)
            so_far.partial = True
        self.record.current = Current(
            phase=progress.phase,
            concurrency=concurrency,
            requests_done=progress.done,
            requests_total=progress.total,
            errors=progress.errors,
            elapsed_s=progress.elapsed_s,
            so_far=so_far,
        )
        done = progress.done
        if progress.phase == "measuring":
            done += self.spec.warmup_for(concurrency)
        rate = f", {_rate_words(so_far)}" if so_far else ""
        failed = f", {progress.errors} failed" if progress.errors else ""
        self._tell(
            f"concurrency {concurrency} {progress.phase}: {progress.done} of {progress.total} "
            f"requests{failed}{rate}",
            done,
        )
        now_s = time.perf_counter()
        if now_s - self._saved_s >= SAVE_EVERY_S and (
            self._writing is None or self._writing.done()
        ):
            self._saved_s = now_s
            self._writing = self._writer.submit(self._write, *self._texts())

    def _tell(self, message: str, done: int) -> None:
        fraction = min(1.0, (self._requests_before + done) / self._requests_all)
        self._fraction = max(self._fraction, fraction)  # a level may be measured again
        self._on_progress(BenchmarkProgress(self._fraction, message, self.record))

    def _too_many_errors(self, level: LevelResult) -> bool:
        rate = level.success_rate
        return rate is None or rate == 0 or 1 - rate > self.spec.max_error_rate

    async def _end_on_errors(self, concurrency: int) -> BenchmarkRun:
        level = self.record.levels[-1]
        kinds = ", ".join(f"{s.count} x {s.kind}" for s in level.error_samples)
        first = level.error_samples[0] if level.error_samples else None
        if any(other.output_tokens_per_s for other in self.record.levels):
            return await self._end(
                "stopped",
                f"at concurrency {concurrency} {level.errors} of {level.requests} requests failed "
                f"({kinds})",
            )
        raise EndpointError(
            f"No request succeeded at concurrency {concurrency}: {kinds or 'none was sent'}.",
            status=first.status if first else None,
            words=first.message if first else "",
            cause="The endpoint refuses the requests themselves, or is not ready.",
            next_action="Send one request with query_model to see the whole refusal.",
        )

    async def _end(self, state: Any, reason: str) -> BenchmarkRun:  # noqa: ANN401
        run = self.record
        run.state, run.state_reason, run.current = state, reason, None
        run.findings = findings(run)
        run.finished_at = stamp()
        await self._save()
        self._tell(f"{state}{': ' + reason if reason else ''}", 0)
        return run

    async def _save(self) -> None:
        """Write both files now, after whatever is being written."""
        texts = self._texts()
        await asyncio.shield(asyncio.wrap_future(self._writer.submit(self._write, *texts)))

    def _texts(self) -> tuple[str, str]:
        self.record.updated_at = stamp()
        return self.record.model_dump_json(indent=1), levels_csv(self.record)

    def _write(self, run_json: str, rows: str) -> None:
        write_text(self._run_file, run_json)
        write_text(self._levels_file, rows)


def _rate_words(level: LevelResult) -> str:
    rate, ttft = level.output_tokens_per_s, level.ttft_ms.p50
    if rate is None or ttft is None:
        return "no request has succeeded"
    return f"{rate:.1f} tokens/s, TTFT p50 {ttft:.0f} ms"


def _environment(engine: LoadEngine) -> Environment:
    from importlib.metadata import PackageNotFoundError, version

    try:
        product = version("vllm-devops")
    except PackageNotFoundError:
        product = "not installed as a package"
    return Environment(
        client_cpus=os.cpu_count() or 0,
        client_platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        product_version=product,
        engine=engine.name,
        timestamp_source=engine.timestamp_source,
    )

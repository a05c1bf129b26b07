"""The load engine: a level from its connections to its figures, carried out by workers.

This side plans, relays and puts together; it touches no byte of an answer. It is asyncio like the
rest of the product, and does so little while a level is measured that it disturbs nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from backends.core.errors import EndpointUnreachableError, NotSupportedError
from backends.core.owned import ended
from backends.serving.engine.clock import KERNEL, READER, StampKeeper, now_ns
from backends.serving.engine.crew import Crew, ThisMachine, WorkerLostError, Workforce
from backends.serving.engine.histogram import Histogram
from backends.serving.engine.messages import Authorise, Drive, Go, Open, Part, Report, Stop
from backends.serving.engine.target import Target, find_target
from backends.serving.loadgen import (
    LevelProgress,
    LevelRaw,
    LevelSpec,
    Phase,
    RequestRecord,
    WorkerShare,
)
from backends.serving.refusals import mask

if TYPE_CHECKING:
    from backends.serving.endpoint import Endpoint
    from backends.serving.engine.member import Member

STREAMS_PER_WORKER = 1024
"""A worker has kept 1,024 streams at 50,000 tokens/s on time; half of that rate is its plan."""

LEAD_S = 0.03
"""From the word to go to the common start, for the word to reach every worker."""

PROGRESS_S = 0.5
LAST_WORD_S = 0.3
"""How long workers have to say what they have when a level is cut short."""

HEADER_REFRESH_S = 300.0
"""Identity tokens live an hour; the provider caches, so asking often costs nothing."""

MOST_EVENTS_KEPT = 4_000_000
"""Times of content events kept one by one, 8 bytes each; a level with more has histograms."""


class EpollEngine:
    """Load from worker processes that read raw sockets; see `LoadEngine` for the contract.

    Args:
        workers: How many processes share the streams; None for as many as the streams need.
        workforce: Where they run; None for this machine.
    """

    def __init__(self, workers: int | None = None, workforce: Workforce | None = None) -> None:
        self._workers = workers or 0
        self._workforce = workforce or ThisMachine()
        self.name = " over ".join(filter(None, ["epoll", self._workforce.name]))
        keeper = StampKeeper()
        self.timestamp_source = KERNEL if keeper.works else READER
        keeper.close()

    def add_worker(self) -> bool:
        """Share the levels to come among one more process; False when no core is left for it."""
        wanted = max(self._workforce.least, self._workers) + 1
        if wanted > self._workforce.most:
            return False
        self._workers = wanted
        return True

    async def run_level(
        self,
        spec: LevelSpec,
        endpoint: Endpoint,
        on_progress: Callable[[LevelProgress], None],
        cancel: Callable[[], bool],
    ) -> LevelRaw:
        """Run one level; see `LoadEngine.run_level`."""
        force = self._workforce
        await force.look()
        needed = -(-spec.concurrency // STREAMS_PER_WORKER)
        size = max(self._workers, force.least, min(needed, force.most))
        size = min(spec.concurrency, size)
        force.check(spec.concurrency // size)
        level = _Level(spec, endpoint, on_progress, cancel, size, force)
        await level.run()
        return level.raw


class _Level:
    """One level under way."""

    def __init__(
        self,
        spec: LevelSpec,
        endpoint: Endpoint,
        on_progress: Callable[[LevelProgress], None],
        cancel: Callable[[], bool],
        size: int,
        workforce: Workforce,
    ) -> None:
        self.spec = spec
        self.endpoint = endpoint
        self.raw = LevelRaw(workers=size)
        self._on_progress = on_progress
        self._cancel = cancel
        self._crew = Crew(size, workforce, self._take, self._watch)
        self._secrets: list[str] = []
        self._phase: Phase = "starting"
        self._records: list[RequestRecord] = []
        self._errors = 0
        self._total = 0
        self._began_ns = now_ns()
        self._told_s = 0.0
        self._is_cancelled = False
        self._headers_at_s = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._events_kept = 0
        self._not_folded = 0

    async def run(self) -> None:
        authorise = await self._authorisation()
        self._tell()
        target = await find_target(self.endpoint, self.spec.path, asyncio.get_running_loop())
        try:
            if await self._crew.start(target) and await self._open(target, authorise):
                await self._warm_up_and_measure()
        except WorkerLostError as error:
            self._close_window()
            self._cut(str(error))
            self._is_cancelled = self._is_cancelled or self._cancel()
        finally:
            if self._refreshing is not None:
                await ended([self._refreshing])
            await self._crew.end()
        if self._is_cancelled:
            self._cut("cancelled")

    async def _warm_up_and_measure(self) -> None:
        spec = self.spec
        if spec.warmup_bodies:
            warmed = await self._drive("warm-up", spec.warmup_bodies, None)
            failures = (record.failure for record in self._records)
            self.raw.warmup_failures = [failure for failure in failures if failure is not None]
            if not warmed:
                return
        if spec.before_window is not None:
            await spec.before_window()
        await self._drive("measuring", spec.bodies, spec.send_at_ns)
        self._close_window()
        if spec.after_window is not None and not self._is_cancelled:
            await spec.after_window()

    # ---- the phases -----------------------------------------------------------------------------

    async def _open(self, target: Target, authorise: Authorise) -> bool:
        """Open every connection before anything is sent; only a total failure is an error."""
        spec, run_id = self.spec, secrets.token_hex(4)
        for worker, lanes in zip(
            self._crew.workers, _shares(spec.concurrency, len(self._crew.workers)), strict=True
        ):
            await worker.say(Open(worker.its_target(target), lanes, run_id, spec.timeout_s))
        await self._crew.say(authorise)
        if not await self._crew.until_opened():
            return False
        opened = list(self._crew.opened.values())
        stamped = all(worker.stamped for worker in opened)
        self.raw.timestamp_source = KERNEL if stamped else READER
        failures = [words for worker in opened for words in worker.failures]
        if len(failures) == spec.concurrency:
            raise EndpointUnreachableError(
                f"{self.endpoint.base_url}: no connection.",
                words=mask(failures[0], self._secrets),
                cause="Nothing listens at that address, or TLS could not be agreed on.",
                next_action="Check with get_status whether the deployment runs and at which "
                "address.",
            )
        return True

    async def _drive(
        self, part: Part, bodies: Sequence[bytes], send_at_ns: Sequence[int] | None
    ) -> bool:
        """Send every body and wait for the last answer; False when cancelled or cut short."""
        self._phase, self._total = part, len(bodies)
        self._records = self.raw.records if part == "measuring" else []
        self._errors = self._events_kept = 0
        spec, size = self.spec, len(self._crew.workers)
        turns = spec.turns if part == "measuring" else 1
        shares = [
            [
                place
                for conversation in range(first * turns, len(bodies), size * turns)
                for place in range(conversation, min(conversation + turns, len(bodies)))
            ]
            for first in range(size)
        ]
        await self._crew.drive(
            [
                Drive(
                    part,
                    [(place, bodies[place]) for place in places],
                    None if send_at_ns is None else [send_at_ns[place] for place in places],
                    spec.max_error_rate,
                    max(8, spec.concurrency) // size,
                    turns,
                )
                for places in shares
            ]
        )
        if not await self._crew.until_ready():
            return False
        self._began_ns = now_ns() + int((LEAD_S + self._crew.lead_s) * 1e9)
        self.raw.started_ns = self.raw.ended_ns = self._began_ns
        await self._crew.say(Go(self._began_ns))
        ended = await self._crew.until_ended()
        if not ended:
            await self._crew.say(Stop())
            await self._crew.until_ended(LAST_WORD_S + self._crew.lead_s)
        self._tell()
        return ended and not self.raw.cut_short

    def _close_window(self) -> None:
        records = self.raw.records
        self.raw.started_ns = min((r.from_ns for r in records), default=self.raw.started_ns)
        self.raw.ended_ns = max((r.end_ns for r in records), default=self.raw.started_ns)

    def _cut(self, why: str) -> None:
        self.raw.cut_short = why
        if not self.raw.unfinished and self._phase == "measuring":
            self.raw.unfinished = min(
                self.spec.concurrency, max(0, self._total - len(self.raw.records))
            )

    # ---- what workers say -----------------------------------------------------------------------

    def _take(self, worker: Member, report: Report) -> None:
        for record in report.records:
            if record.failure is not None:
                self._errors += 1
                record.failure.message = mask(record.failure.message, self._secrets)
            self._events_kept += len(record.content_ns)
        self._records += report.records
        if report.part == "measuring":
            if self._events_kept > MOST_EVENTS_KEPT:
                self._fold()
            self._add_account(worker, report)
        now_s = time.monotonic()
        if now_s - self._told_s >= PROGRESS_S:
            self._tell()

    def _add_account(self, worker: Member, report: Report) -> None:
        end, raw = report.end, self.raw
        share = raw.shares.setdefault(worker.number, WorkerShare(worker.place))
        share.requests += len(report.records)
        share.events += sum(record.events for record in report.records)
        if end is None:
            raw.ended_ns = max(raw.ended_ns, now_ns())
            return
        share.stamped, share.lag_ns = self._crew.opened[worker.number].stamped, end.lag_ns
        share.cpu_s, share.run_delay_s = end.cpu_s, end.run_delay_s
        share.clock_error_ns = worker.clock_error_ns
        raw.unfinished += end.unfinished
        if end.cut_short and end.cut_short != "stopped":
            raw.cut_short = end.cut_short
        raw.loop_lag_ns += end.lag_ns
        raw.cpu_s = max(raw.cpu_s or 0.0, end.cpu_s)
        raw.cpu_total_s += end.cpu_with_parsing_s
        raw.peak_memory_mib += end.peak_memory_mib
        if end.run_delay_s is not None:
            raw.run_delay_s = max(raw.run_delay_s or 0.0, end.run_delay_s)
        raw.reads += end.reads
        raw.unstamped_reads += end.unstamped_reads
        raw.clock_step_ns = max(raw.clock_step_ns, end.clock_step_ns)
        raw.reconnects += end.reconnects
        raw.resent += end.resent
        raw.turned_away += end.turned_away
        raw.crowded_parses += end.crowded_parses
        raw.out_of_files += end.out_of_files

    def _fold(self) -> None:
        """Count the gaps of the records so far, and keep only first and last times of each."""
        raw = self.raw
        raw.gaps = raw.gaps or Histogram()
        for record in raw.records[self._not_folded :]:
            times = record.content_ns
            if record.failure is None and len(times) > 2:
                raw.gaps.add(after - before for before, after in itertools.pairwise(times))
                record.folded = len(times) - 2
                record.content_ns = times[:1] + times[-1:]
        self._not_folded = len(raw.records)
        self._events_kept = 0

    def _watch(self) -> bool:
        """Look after what is not the workers' business; True ends whatever is waited for."""
        now_s = time.monotonic()
        if self._cancel():
            self._is_cancelled = True
            return True
        if now_s - self._told_s >= PROGRESS_S:
            self._tell()
        if now_s - self._headers_at_s >= HEADER_REFRESH_S and (
            self._refreshing is None or self._refreshing.done()
        ):
            self._refreshing = asyncio.create_task(self._refresh())
        return self._must_stop()

    def _must_stop(self) -> bool:
        """Whether one worker has cut its part short, so that the others stop as well."""
        return bool(self.raw.cut_short) and self._phase == "measuring"

    def _tell(self) -> None:
        self._told_s = time.monotonic()
        self._on_progress(
            LevelProgress(
                phase=self._phase,
                done=len(self._records),
                total=self._total or len(self.spec.bodies),
                errors=self._errors,
                elapsed_s=max(0, now_ns() - self._began_ns) / 1e9,
                raw=self.raw,
            )
        )

    # ---- authorisation --------------------------------------------------------------------------

    async def _refresh(self) -> None:
        await self._crew.say(await self._authorisation())

    async def _authorisation(self) -> Authorise:
        self._headers_at_s = time.monotonic()
        headers = await self.endpoint.auth_headers()
        for name, value in headers.items():
            if any(sign in name + value for sign in "\r\n\0"):
                raise NotSupportedError(f"The header {name.strip()} holds a line break.")
        parts = [part for v in headers.values() for part in (v, v.removeprefix("Bearer "))]
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
        provide = self.endpoint.credentials
        credentials = None if provide is None else await provide()
        parts += [] if credentials is None else credentials.secrets
        self._secrets = [*self._secrets[-8:], *parts]
        return Authorise(lines, credentials)


def _shares(streams: int, workers: int) -> list[int]:
    """Return how many streams each worker has: as even as they come."""
    each, more = divmod(streams, workers)
    return [each + (number < more) for number in range(workers)]

"""Runs the engine in real time, and lets requests in through the platform's gate."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

from backends.serving.simulator.config import CRASH_AFTER, Failure
from backends.serving.simulator.engine import Engine
from backends.serving.simulator.jobs import Job
from backends.serving.simulator.log import log

LATE_WARNING_S = 0.25
"""Behind its schedule by more than this, the simulator's timing is its own, not the model's."""

MAX_CATCH_UP_S = 30.0
"""A longer gap means the process was suspended: the schedule starts anew."""

STATS_INTERVAL_S = 10.0
"""vLLM's own interval (`VLLM_LOG_STATS_INTERVAL`, 0.32)."""


class Driver:
    """Plays the engine's steps against a clock.

    Each step starts where the last one ended, not where the event loop happened to wake up: late
    wake-ups do not add up, and after a delay the engine catches up.

    Args:
        engine: The engine.
        failure: A failure to play: `stall` or `crash-after`.
        on_crash: Called once when the engine dies.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        failure: Failure | None = None,
        on_crash: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.dead = False
        self._late_s = 0.0
        self._failure = failure
        self._on_crash = on_crash
        self._clock = clock
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._jobs: set[Job] = set()
        self._logged_idle = True

    def start(self) -> None:
        """Begin to play; call from the event loop that serves requests."""
        self._tasks = [
            asyncio.create_task(self._run(), name="engine"),
            asyncio.create_task(self._log_stats(), name="stats"),
        ]

    async def stop(self) -> None:
        """Stop playing."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def submit(self, job: Job) -> None:
        """Hand a request to the engine."""
        now_s = self._clock()
        self._jobs.add(job)
        for sequence in job.sequences:
            self.engine.add(sequence, now_s)
        self._work.set()

    def release(self, job: Job) -> None:
        """Forget a request; what of it still runs is aborted, as when its client leaves."""
        now_s = self._clock()
        self._jobs.discard(job)
        for sequence in job.sequences:
            self.engine.abort(sequence, now_s)

    def abort_all(self) -> None:
        """Abort whatever runs."""
        for job in list(self._jobs):
            self.release(job)

    async def _run(self) -> None:
        engine = self.engine
        if self._failure is not None and self._failure.kind == "stall":
            await asyncio.Event().wait()
        start_s = self._clock()
        while not self.dead:
            if engine.idle:
                self._work.clear()
                await self._work.wait()
                start_s = self._clock()
            step = engine.begin_step(start_s)
            if step is None:
                # Only a request that outgrows the whole cache gets here; admission refuses those.
                await asyncio.sleep(0.01)
                start_s = self._clock()
                continue
            end_s = start_s + step.duration_s
            late_s = self._clock() - end_s
            if late_s > MAX_CATCH_UP_S:
                end_s, late_s = self._clock(), 0.0
            self._late_s = max(self._late_s, late_s)
            await asyncio.sleep(max(-late_s, 0))
            engine.finish_step(step, end_s)
            start_s = end_s
            self._crash_if_due()

    def _crash_if_due(self) -> None:
        failure = self._failure
        if failure is None or failure.kind != CRASH_AFTER:
            return
        finished = self.engine.stats.finished
        if finished["stop"] + finished["length"] >= failure.after_requests:
            self.dead = True
            for job in self._jobs:
                job.delivery.wake()
            if self._on_crash is not None:
                self._on_crash()

    async def _log_stats(self) -> None:
        while True:
            await asyncio.sleep(STATS_INTERVAL_S)
            self.log_stats(STATS_INTERVAL_S)

    def log_stats(self, interval_s: float) -> None:
        """Write vLLM's periodic line for the last `interval_s` seconds, unless nothing happens."""
        engine, stats = self.engine, self.engine.stats
        interval = stats.interval
        prompt, generated = interval.prompt_tokens, interval.generation_tokens
        interval.prompt_tokens = interval.generation_tokens = 0
        idle = engine.idle and not prompt and not generated
        if idle and self._logged_idle:
            return
        self._logged_idle = idle
        log(
            "APIServer",
            "loggers.py:335",
            f"Engine 000: Avg prompt throughput: {prompt / interval_s:.1f} tokens/s, "
            f"Avg generation throughput: {generated / interval_s:.1f} tokens/s, "
            f"Running: {len(engine.running)} reqs, Waiting: {len(engine.waiting)} reqs, "
            f"GPU KV cache usage: {engine.pool.usage * 100:.1f}%, "
            f"Prefix cache hit rate: {stats.recent_hit_rate() * 100:.1f}%",
        )
        if self._late_s > LATE_WARNING_S:
            log(
                "Simulator",
                "driver.py",
                f"This machine was too slow by up to {self._late_s:.2f} s: timings of this "
                "interval are its own, not the simulated accelerator's.",
                logging.WARNING,
            )
        self._late_s = 0.0


class AdmissionGate:
    """The platform's limit in front of vLLM, as Cloud Run's `--concurrency` is.

    Requests beyond it wait here, first come first served, unseen by vLLM's metrics.

    Args:
        cap: Requests let through at once; 0 for no limit.
    """

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.inside = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def enter(self) -> asyncio.Future[None] | None:
        """Ask to be let in: None means at once, else wait for the future and then you are in."""
        if not self.cap or self.inside < self.cap:
            self.inside += 1
            return None
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        return place

    def leave(self) -> None:
        """Make room for the next one."""
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.inside -= 1

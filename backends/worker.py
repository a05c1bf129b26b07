"""The detached worker of one long operation: `python -m backends.worker FOLDER`.

It is given the operation's folder, does what `operation.json` says, and keeps `status.json` there
up to date, so that any server, now or after a restart, can read how far it is.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from backends.app import App
from backends.base import (
    Backend,
    LoadsBesideEngine,
    PreparesHost,
    ProbesColdStart,
    RunsLater,
    RunsPlans,
    SearchesZones,
    StagesModels,
)
from backends.core.errors import DevopsError, NotSupportedError, OperationError
from backends.core.plans import Plan, Step, run_steps
from backends.core.state import read_json, stamp, write_json

# How often progress is written down, in seconds.
_WRITE_EVERY_S = 0.5

_log = logging.getLogger("vllm_devops.worker")


@dataclass
class Job:
    """The operation a worker runs.

    Attributes:
        folder: Its folder.
        kind: What it does.
        target: Where.
        name: On which deployment.
        params: What was asked.
    """

    folder: Path
    kind: str
    target: str
    name: str
    params: dict[str, Any]
    _stop: bool = field(default=False, init=False)
    _written_at: float = field(default=0.0, init=False)
    _cancel_seen_at: float = field(default=0.0, init=False)

    def stop(self) -> None:
        """Wish for an end."""
        self._stop = True

    def should_stop(self) -> bool:
        """Whether somebody asked for an end, by signal or by the `cancel` file."""
        moment = time.monotonic()
        if not self._stop and moment - self._cancel_seen_at > 0.2:
            self._cancel_seen_at = moment
            self._stop = (self.folder / "cancel").exists()
        return self._stop

    def progress(self, done: float, total: float | None, message: str) -> None:
        """Write progress down, at most twice a second."""
        moment = time.monotonic()
        if moment - self._written_at >= _WRITE_EVERY_S:
            self._written_at = moment
            self.write("running", done=done, total=total, message=message)

    def write(self, state: str, **facts: object) -> None:
        """Replace `status.json`."""
        write_json(self.folder / "status.json", {"state": state, "updated_at": stamp(), **facts})


async def benchmark(app: App, job: Job) -> dict[str, Any]:
    """Run a sweep; the result names the run and its files."""
    from backends.serving.runs import BenchmarkSpec
    from backends.serving.sweep import BenchmarkProgress, run_benchmark

    backend = app.backends.get(job.target)
    benchmark_id = str(job.params["benchmark_id"])
    out_dir = app.state.benchmarks / benchmark_id
    spec = BenchmarkSpec.model_validate(job.params["spec"])
    engine = None
    if spec.runner == "host" and isinstance(backend, LoadsBesideEngine):
        from backends.serving.engine.epoll_engine import EpollEngine

        engine = EpollEngine(workforce=await backend.load_workers(job.name))

    def report(progress: BenchmarkProgress) -> None:
        job.progress(progress.fraction, 1.0, progress.message)

    began_s = time.time()
    run = await run_benchmark(
        spec,
        await backend.endpoint(job.name),
        out_dir,
        report,
        job.should_stop,
        run_id=benchmark_id,
        engine=engine,
    )
    invalid = list(dict.fromkeys(lv.load_words for lv in run.levels if not lv.valid))
    result: dict[str, Any] = {
        "benchmark_id": benchmark_id,
        "run_state": run.state,
        "levels_done": len(run.levels),
        "run_json": str(out_dir / "run.json"),
        "levels_csv": str(out_dir / "levels.csv"),
    }
    if invalid:
        result["invalid_levels"] = ", ".join(invalid)
    if run.knee is not None and run.knee.load is not None:
        result["knee"] = run.knee.load
    if run.findings:
        result["findings"] = run.findings
    platform = await _platform(backend, job.name, began_s)
    if platform:
        result["platform"] = platform
    return result


async def _platform(backend: Backend, name: str, began_s: float) -> dict[str, Any]:
    """What the platform says of that time. What was measured does not fail for it."""
    try:
        return await backend.after_benchmark(name, began_s, time.time())
    except DevopsError as error:
        return {"note": f"{error.code}: {error.message}"}


async def cold_start(app: App, job: Job) -> dict[str, Any]:
    """Scale from zero and time each phase."""
    backend = cast("ProbesColdStart", app.backend(job.target, "probe_cold_start"))
    return await backend.cold_start(job.name, job)


async def stage(app: App, job: Job) -> dict[str, Any]:
    """Bring a checkpoint's weights to where the target reads them."""
    backend = cast("StagesModels", app.backend(job.target, "stage_model"))
    return await backend.stage(str(job.params["model"]), job.params.get("destination"), job)


async def prepare_host(app: App, job: Job) -> dict[str, Any]:
    """Make a machine ready to serve, step by step."""
    backend = cast("PreparesHost", app.backend(job.target, "prepare_host"))
    options = backend.HostOptions.model_validate(job.params["options"])
    check_only = bool(job.params["check_only"])
    return await backend.prepare_host(job.name, options, job, check_only=check_only)


async def search(app: App, job: Job) -> dict[str, Any]:
    """Go through zones until one has hardware."""
    backend = app.backends.get(job.target)
    if not isinstance(backend, SearchesZones):
        raise NotSupportedError(f"{job.target} does not search zones.")
    return await backend.search(job.name, job.params, job)


async def deploy(app: App, job: Job) -> dict[str, Any]:
    """Run the steps of a plan, some of which take longer than a call may."""
    plan = Plan.model_validate(job.params["plan"])
    backend = cast("RunsPlans", app.backend(job.target, "deploy"))
    count = len(plan.steps)

    async def on_step(index: int, step: Step) -> None:
        job.write("running", done=float(index), total=float(count), message=step.title)

    async def run(step: Step) -> str:
        if job.should_stop():
            raise OperationError("It was cancelled before this step.")
        if step.background:
            return await backend.run_long_step(plan, step, job)
        return await backend.run_step(plan, step)

    done = await run_steps(plan, run, on_step)
    return {
        "done": " ; ".join(done),
        "next": f"wait_until_ready(target={plan.target!r}, name={plan.name!r})",
    }


async def later(app: App, job: Job) -> dict[str, Any]:
    """Do what a plan left for later."""
    backend = app.backends.get(job.target)
    if not isinstance(backend, RunsLater):
        raise NotSupportedError(f"{job.target} leaves nothing for later.")
    return await backend.run_later(job.kind, job.name, job.params, job)


JOBS: dict[str, Callable[[App, Job], Awaitable[dict[str, Any]]]] = {
    "benchmark": benchmark,
    "deploy": deploy,
    "search": search,
    "cold_start": cold_start,
    "prepare_host": prepare_host,
    "stage_model": stage,
    "deploy_component": later,
    "deploy_fallback": later,
    "destroy_when_settled": later,
    "start_serving": later,
}


async def work(job: Job) -> int:
    """Run the job and write its end down; returns the exit code."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, job.stop)
    job.write("running", done=0.0, total=None, message="starting")
    run = JOBS.get(job.kind)
    if run is None:
        job.write("failed", error=f"This version has no operation of kind {job.kind!r}.")
        return 1
    app = App.from_environment()
    try:
        result = await run(app, job)
    except DevopsError as error:
        words = f" In its own words: {error.words}" if error.words else ""
        cause = f" Likely cause: {error.cause}" if error.cause else ""
        cause += "".join(f" {key}: {value}" for key, value in error.details.items())
        _log.error("%s: %s%s%s", error.code, error.message, words, cause)
        job.write(
            "cancelled" if job.should_stop() else "failed",
            error=f"{error.code}: {error.message}{words}{cause}",
            next_action=error.next_action,
        )
        return 1
    except Exception as error:  # noqa: BLE001 (the edge of the process: it must be written down)
        _log.exception("unexpected")
        job.write(
            "failed",
            error=f"A fault of this server: {type(error).__name__}: "
            f"{traceback.format_exception_only(error)[-1].strip()}; the traceback is in the log.",
        )
        return 1
    finally:
        await app.close()
    state = "cancelled" if job.should_stop() else "succeeded"
    message = "stopped as asked; what was measured is kept" if state == "cancelled" else "done"
    job.write(state, done=1.0, total=1.0, message=message, result=result)
    return 0


def main(argv: list[str]) -> int:
    """Run the operation in the folder named by the one argument."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    # One INFO line a request would make the log the slowest part of a benchmark.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if len(argv) != 2:
        sys.stderr.write("usage: python -m backends.worker FOLDER\n")
        return 2
    folder = Path(argv[1])
    record = read_json(folder / "operation.json")
    if record is None:
        sys.stderr.write(f"{folder} holds no operation\n")
        return 2
    job = Job(
        folder=folder,
        kind=str(record["kind"]),
        target=str(record["target"]),
        name=str(record["name"]),
        params=dict(record["params"]),
    )
    return asyncio.run(work(job))


if __name__ == "__main__":
    sys.exit(main(sys.argv))

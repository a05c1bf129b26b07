"""One instance of a revision: a simulator process, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from backends.core.settings import PROJECT_DIR
from backends.rehearsal.cloud.log_store import (
    STDERR,
    STDOUT,
    SYSTEM,
    LogWriter,
    without_secrets,
)
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.run.container import Plan
    from backends.rehearsal.cloud.run.shape import Shape

_HOST = "127.0.0.1"
_POLL_S = 0.02
_TERM_GRACE_S = 2.0
_MAX_LINE_BYTES = 1 << 20
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1

# Why an instance is started, in the platform's words.
ROLLOUT = (
    "DEPLOYMENT_ROLLOUT - Instance started due to traffic shifting between revisions due to "
    "deployment, traffic split adjustment, or deployment health check."
)
AUTOSCALING = (
    "AUTOSCALING - Instance started due to configured scaling factors (e.g. CPU utilization, "
    "request throughput, etc.) or no existing capacity for current traffic."
)
MANUAL = (
    "MANUAL_OR_CUSTOMER_MIN_INSTANCE - Instance started because of customer-configured "
    "min-instances or manual scaling."
)

_PROBE_FAILED = (
    "The user-provided container failed the configured startup probe checks. Logs for this "
    "revision might contain more information."
)
_PORT_FAILED = (
    "The user-provided container failed to start and listen on the port defined provided by the "
    "PORT={port} environment variable within the allocated timeout. This can happen when the "
    "container port is misconfigured or if the timeout is too short. The health check timeout can "
    "be extended. Logs for this revision might contain more information."
)

# Lines by which the phases of a staging image are told.
_PHASES = (
    (re.compile("SIMULATOR"), "mounting_gcs"),
    (re.compile("Starting to load model"), "staging_tmpfs"),
    (re.compile("Loading weights took"), "loading_vllm_siglip"),
)
_WARM_UP_S = 6.0


class StartFailedError(Exception):
    """An instance did not become ready.

    Args:
        reason: Cloud Run's reason.
        message: Its sentence.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Placement:
    """Where an instance belongs.

    Attributes:
        service: Name of the service.
        revision: Name of the revision.
        resource: Its monitored resource.
        log_url: Where its log is shown.
    """

    service: str
    revision: str
    resource: Json
    log_url: str


class Instance:
    """A container of one revision.

    Args:
        place: Whose it is.
        shape: What the revision asks for.
        plan: How it is played.
        speed: Google's times take this many times less.
        logs: Where its lines go.
        on_end: Told when it has ended by itself.
    """

    def __init__(
        self,
        place: Placement,
        shape: Shape,
        plan: Plan,
        speed: float,
        logs: LogWriter,
        on_end: Callable[[Instance], None],
    ) -> None:
        self.id = "00" + secrets.token_hex(40)
        self.place = place
        self.shape = shape
        self.plan = plan
        self.port = 0
        self.phase = "starting"
        self.inflight = 0
        self.began = time.monotonic()
        self.last_used = self.began
        self._speed = speed
        self._logs = logs
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._first_line = asyncio.Event()
        self._failed: asyncio.Future[StartFailedError] = asyncio.get_running_loop().create_future()
        trouble = plan.trouble
        self._after = re.compile(trouble.after) if trouble and trouble.after else None
        self._staging = "mounting_gcs"
        self._engine_ready_at = 0.0
        self._stopping = False

    # ------------------------------------------------------------------------- life

    async def start(self, why: str) -> None:
        """Start it and wait until it answers its startup probe.

        Args:
            why: Why, in the platform's words.

        Raises:
            StartFailedError: It will not.
        """
        self.system(f"Starting new instance. Reason: {why}", "INFO")
        await self._spawn()
        deadline = asyncio.ensure_future(self._give_up())
        listening = asyncio.ensure_future(self._answers())
        try:
            waited: set[asyncio.Future[Any]] = {listening, deadline, self._failed}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                raise self._failed.result()
            if not listening.done():
                raise self._probe_failed()
            self._probe_succeeded()
            self.phase = "ready"
            self.last_used = time.monotonic()
        except BaseException:
            await self.stop()
            raise
        finally:
            for waiting in (deadline, listening):
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiting

    async def stop(self) -> None:
        """End it: asked first, then killed."""
        self._stopping = True
        self.phase = "stopped"
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
                process.send_signal(signal.SIGCONT)
            try:
                async with asyncio.timeout(_TERM_GRACE_S):
                    await process.wait()
            except TimeoutError:
                self._kill()
                await process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._failed.done():
            self._failed.cancel()

    def kill(self) -> None:
        """Let it die as if the machine had."""
        self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    # ------------------------------------------------------------------------- looking

    @property
    def has_room(self) -> bool:
        """Whether it takes another request now."""
        return self.phase == "ready" and self.inflight < self.shape.concurrency

    @property
    def pid(self) -> int | None:
        """Its process."""
        return self._process.pid if self._process else None

    def shown(self) -> Json:
        """As the control API shows it."""
        return {
            "service": self.place.service,
            "revision": self.place.revision,
            "phase": self.phase,
            "pid": self.pid,
            "port": self.port,
            "inflight": self.inflight,
            "age_s": round(time.monotonic() - self.began, 2),
        }

    def health(self) -> Json:
        """What a staging image answers on /health: always 200, with its phase."""
        now_s = time.monotonic()
        ready = self._engine_ready_at > 0
        warmed_at = self._engine_ready_at + _WARM_UP_S / self._speed
        warmed = ready and now_s >= warmed_at
        staged = self._staging not in {"mounting_gcs", "staging_tmpfs"} or ready
        return {
            "status": "ok",
            "phase": "ready" if ready else self._staging,
            "bytes_staged_gb": 17.53 if staged else 0.0,
            "vllm_ready": ready,
            "warmed": warmed,
            "warmup_s": round(_WARM_UP_S / self._speed, 2) if warmed else None,
        }

    @property
    def engine_ready(self) -> bool:
        """Whether the engine behind a staging image answers."""
        return not self.plan.stages or self._engine_ready_at > 0

    def system(self, text: str, severity: str) -> None:
        """Write what the platform says about it."""
        self._logs.write(
            SYSTEM,
            self.place.resource,
            text,
            severity=severity,
            labels={"instanceId": self.id, "container_name": f"{self.place.service}-1"},
        )

    # ------------------------------------------------------------------------- inside

    async def _spawn(self) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.bind((_HOST, 0))
        self.port = sock.getsockname()[1]
        speed = self._speed / self.plan.startup_factor
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.plan.argv,
                f"--startup-speed={speed:g}",
                f"--fd={sock.fileno()}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=PROJECT_DIR,
                env=_environment(self.plan.env),
                pass_fds=[sock.fileno()],
                limit=_MAX_LINE_BYTES,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        finally:
            sock.close()
        self._tasks = [
            asyncio.create_task(self._follow(self._process.stdout, STDOUT)),
            asyncio.create_task(self._follow(self._process.stderr, STDERR)),
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._begin_in_trouble()),
        ]

    async def _follow(self, stream: asyncio.StreamReader | None, log: str) -> None:
        if stream is None:
            return
        while line := await stream.readline():
            text = line.decode("utf-8", "replace").rstrip("\n")
            self._first_line.set()
            self._logs.write(
                log,
                self.place.resource,
                without_secrets(text),
                labels={
                    "instanceId": self.id,
                    "container_name": f"{self.place.service}-1",
                },
            )
            for pattern, phase in _PHASES:
                if pattern.search(text):
                    self._staging = phase
            if self._after is not None and self._after.search(text):
                self._after = None
                self._run_into_trouble()

    async def _begin_in_trouble(self) -> None:
        await self._first_line.wait()
        if self.plan.trouble is not None and not self.plan.trouble.after:
            self._run_into_trouble()

    def _run_into_trouble(self) -> None:
        trouble = self.plan.trouble
        if trouble is None or trouble.fail:
            return
        for line in trouble.lines:
            self._logs.write(
                STDERR,
                self.place.resource,
                line,
                labels={"instanceId": self.id, "container_name": f"{self.place.service}-1"},
            )
        if trouble.hang:
            # A stopped process says nothing more, and answers nothing.
            self._staging = "staging_tmpfs"
            if self._process is not None:
                self._process.send_signal(signal.SIGSTOP)
            return
        if trouble.exit_code is None and trouble.killed_by is None:
            return
        if trouble.system:
            limit = self.shape.memory // 2**20
            self.system(trouble.system.format(limit=limit, used=limit + 371), "ERROR")
        self._fail_with_exit(trouble.exit_code, trouble.killed_by)
        self._kill()

    def _fail_with_exit(self, code: int | None, killed_by: int | None) -> None:
        if killed_by is not None:
            self.system(f"Container terminated on signal {killed_by}.", "WARNING")
        else:
            self.system(f"Container called exit({code}).", "WARNING")
        self._fail(self._start_failed())

    def _fail(self, error: StartFailedError) -> None:
        if not self._failed.done():
            self._failed.set_result(error)

    async def _watch(self) -> None:
        process = self._process
        if process is None:
            return
        code = await process.wait()
        was_ready = self.phase == "ready" and not self._stopping
        if was_ready:
            # At once: no further request may be sent to it.
            self.phase = "stopped"
            self._on_end(self)
        # What it said last is in the pipes still.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.gather(*self._tasks[:2], return_exceptions=True)
        if self._stopping:
            return
        if not self._failed.done():
            self._fail_with_exit(code if code >= 0 else None, -code if code < 0 else None)

    async def _answers(self) -> None:
        """Return when the container answers its startup probe."""
        if self.plan.stages:
            await self._first_line.wait()
            self._tasks.append(asyncio.create_task(self._engine_answers()))
            return
        if not self.plan.listens:
            await asyncio.Event().wait()
        await self._until_it_connects()

    async def _engine_answers(self) -> None:
        await self._until_it_connects()
        self._engine_ready_at = time.monotonic()

    async def _until_it_connects(self) -> None:
        """Return when something listens on its port, which happens once it is ready."""
        while True:
            try:
                _, writer = await asyncio.open_connection(_HOST, self.port)
            except OSError:
                await asyncio.sleep(_POLL_S)
            else:
                writer.close()
                return

    async def _give_up(self) -> None:
        """Return when the startup probe has failed often enough.

        Whether it will is decided by Google's clock, not by how busy this machine is: the time the
        start takes there against the time the probe gives it.
        """
        await self._first_line.wait()
        trouble = self.plan.trouble
        stuck = (
            not self.plan.listens
            or (trouble is not None and trouble.hang)
            or (trouble is not None and trouble.fail == "stall-startup")
        )
        if self.plan.stages:
            stuck = False
        budget_s = self.shape.probe.budget_s
        if not stuck and (self.plan.stages or self.plan.inside_container_s <= budget_s):
            await asyncio.Event().wait()
        wait_s = (self.plan.before_container_s / self.plan.startup_factor + budget_s) / self._speed
        await asyncio.sleep(wait_s)

    def _probe_text(self) -> str:
        probe = self.shape.probe
        name = f'container "{self.place.service}-1" on port {self.shape.port}'
        if probe.kind == "HTTP":
            name += f' path "{probe.path}"'
        return name

    def _probe_succeeded(self) -> None:
        probe = self.shape.probe
        waited = max(self.plan.inside_container_s - probe.initial_delay_s, 0)
        tries = 1 if self.plan.stages else ceil(waited / max(probe.period_s, 1)) + 1
        default = "" if probe.given else "Default "
        word = "attempt" if tries == 1 else "attempts"
        self.system(
            f"{default}STARTUP {probe.kind} probe succeeded after {tries} {word} for "
            f"{self._probe_text()}.",
            "INFO",
        )

    def _probe_failed(self) -> StartFailedError:
        probe = self.shape.probe
        default = "" if probe.given else "Default "
        word = "time" if probe.threshold == 1 else "times"
        self.system(
            f"{default}STARTUP {probe.kind} probe failed {probe.threshold} {word} consecutively "
            f"for {self._probe_text()}. The instance was not started. Connection failed with "
            "status CANCELLED.",
            "ERROR",
        )
        return self._start_failed()

    def _start_failed(self) -> StartFailedError:
        given = self.shape.probe.given
        text = _PROBE_FAILED if given else _PORT_FAILED.format(port=self.shape.port)
        return StartFailedError(
            "HealthCheckContainerError",
            f"{text}\n\nLogs URL: {self.place.log_url} \nFor more troubleshooting guidance, see "
            "https://cloud.google.com/run/docs/troubleshooting#container-failed-to-start",
        )


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    # A container sees its own variables, none of ours.
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV"}
        or name.startswith(("PYTHON", "TESTS_"))
    }
    return kept | {name: value for name, value in own.items() if value}


def _die_with_parent() -> None:
    """Ask Linux to end this process with the rehearsal cloud, however that ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

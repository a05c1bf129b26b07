"""A load engine on asyncio: one thread, one `Protocol` per stream, times taken at each read.

No HTTP library stands between the socket and the clock: a read is stamped with
`time.perf_counter_ns` before anything else happens to it. The stamp is late by as long as the loop
was busy with other streams; the engine samples that lag so that a level can be marked invalid.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from backends.core.errors import EndpointUnreachableError, NotSupportedError
from backends.serving.asyncio_stream import Stream, Wire
from backends.serving.loadgen import LevelProgress, LevelRaw, LevelSpec, Phase, RequestRecord
from backends.serving.refusals import mask
from backends.serving.wire import Failure

if TYPE_CHECKING:
    import ssl

    from backends.serving.endpoint import Endpoint

CONNECT_TIMEOUT_S = 10.0
CONNECTS_AT_ONCE = 64
TICK_S = 0.005
"""How often the loop's lag is sampled."""

TIMER_GRAIN_NS = 1_000_000
"""asyncio rounds a timer up to the next millisecond; that much of a sample is no lag."""

PROGRESS_S = 0.5
CANCEL_S = 0.1
HEADER_REFRESH_S = 300.0
"""Identity tokens live an hour; the provider caches, so asking often costs nothing."""

PAUSE_AFTER_FAILURE_S = 0.1
"""So that an endpoint that refuses everything is not hammered."""

SPARE_FILES = 64


class AsyncioEngine:
    """The first engine: exact definitions, one core. See `LoadEngine` for the contract."""

    name = "asyncio"
    timestamp_source = "perf_counter_ns at each read, in user space"

    async def run_level(
        self,
        spec: LevelSpec,
        endpoint: Endpoint,
        on_progress: Callable[[LevelProgress], None],
        cancel: Callable[[], bool],
    ) -> LevelRaw:
        """Run one level; see `LoadEngine.run_level`."""
        _refuse_proxy(endpoint)
        _allow_files(spec.concurrency + SPARE_FILES)
        level = _Level(spec, endpoint, on_progress, cancel)
        level.raw.timestamp_source = self.timestamp_source
        try:
            await level.run()
        finally:
            level.close()
        return level.raw


@dataclass(frozen=True)
class _Address:
    host: str
    port: int
    tls: ssl.SSLContext | None
    head: bytes
    path: str

    @classmethod
    def of(cls, endpoint: Endpoint, path: str) -> _Address:
        parts = urlsplit(endpoint.base_url)
        host = parts.hostname or ""
        tls = endpoint.ssl_context()
        port = parts.port or (443 if tls else 80)
        shown = f"[{host}]" if ":" in host else host
        if parts.port:
            shown += f":{parts.port}"
        full = f"{parts.path}{path}"
        head = (
            f"POST {full} HTTP/1.1\r\nhost: {shown}\r\ncontent-type: application/json\r\n"
            "accept: text/event-stream\r\naccept-encoding: identity\r\nuser-agent: vllm-devops\r\n"
        )
        return cls(host, port, tls, head.encode(), full)


class _Level:
    """One level under way: hands bodies to streams and keeps what they bring back."""

    def __init__(
        self,
        spec: LevelSpec,
        endpoint: Endpoint,
        on_progress: Callable[[LevelProgress], None],
        cancel: Callable[[], bool],
    ) -> None:
        self.spec = spec
        self.endpoint = endpoint
        self.raw = LevelRaw()
        self.secrets: list[str] = []
        self._on_progress = on_progress
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._address = _Address.of(endpoint, spec.path)
        self._auth = b""
        self._run_id = secrets.token_hex(4)
        self._streams: list[Stream] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._bodies: Iterator[tuple[int, bytes]] = iter(())
        self._records: list[RequestRecord] = []
        self._phase_total = 0
        self._measuring = False
        self._phase_started_ns = time.perf_counter_ns()
        self._ended: asyncio.Future[None] | None = None
        self._in_flight = 0
        self._errors = 0

    @property
    def timeout_s(self) -> float:
        """Bound of one request."""
        return self.spec.timeout_s

    async def run(self) -> None:
        await self._refresh_headers()
        self._report("starting")
        await self._open()
        if self.spec.warmup_bodies:
            await self._drive(self.spec.warmup_bodies, measuring=False)
            self.raw.warmup_failures = [r.failure for r in self._records if r.failure is not None]
        if not self.raw.cut_short:
            if self.spec.before_window is not None:
                await self.spec.before_window()
            await self._reopen_idle()
            await self._measure()
        if self.spec.after_window is not None:
            await self.spec.after_window()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for stream in self._streams:
            stream.abandon()

    async def _measure(self) -> None:
        reconnects = self.raw.reconnects
        with _no_garbage_collection():
            delay_s, cpu_s = _run_delay_s(), time.thread_time()
            await self._drive(self.spec.bodies, measuring=True)
            self.raw.cpu_s = time.thread_time() - cpu_s
            later_s = _run_delay_s()
        if delay_s is not None and later_s is not None:
            self.raw.run_delay_s = later_s - delay_s
        self.raw.reconnects -= reconnects
        sent = [record.sent_ns for record in self._records]
        self.raw.started_ns = min(sent, default=self._phase_started_ns)
        self.raw.ended_ns = max((r.end_ns for r in self._records), default=self.raw.started_ns)

    async def _drive(self, bodies: Sequence[bytes], *, measuring: bool) -> None:
        """Send every body, `concurrency` at a time, and return when all have ended."""
        self._records = self.raw.records if measuring else []
        self._bodies = iter(enumerate(bodies))
        self._phase_total = len(bodies)
        self._measuring = measuring
        self._in_flight = self._errors = 0
        self._ended = self._loop.create_future()
        self._phase_started_ns = time.perf_counter_ns()
        self.raw.started_ns = self._phase_started_ns
        ticking = self._loop.create_task(self._tick())
        refreshing = self._loop.create_task(self._keep_headers_fresh())
        try:
            for stream in self._streams:
                self.next_request(stream, free_since_ns=None)
            await self._ended
        finally:
            for task in (ticking, refreshing):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self._report_phase()

    def next_request(self, stream: Stream, free_since_ns: int | None) -> None:
        """Give a free stream its next request, or end the phase when none is left."""
        if self._ended is None or self._ended.done():
            return
        upcoming = next(self._bodies, None)
        if upcoming is None:
            if self._in_flight == 0:
                self._ended.set_result(None)
            return
        index, body = upcoming
        self._in_flight += 1
        kind = "m" if self._measuring else "w"
        request_id = f"{self._run_id}-{kind}{index}"
        head = b"%sx-request-id: %s\r\ncontent-length: %d\r\n%s\r\n" % (
            self._address.head,
            request_id.encode(),
            len(body),
            self._auth,
        )
        record = RequestRecord(index=index, request_id=request_id, sent_ns=0)
        if stream.is_open:
            stream.send(record, head + body, free_since_ns)
        else:
            self._spawn(self._send_anew(stream, record, head + body))

    def finished(self, stream: Stream, record: RequestRecord) -> None:
        """Take a finished request and keep its stream busy."""
        self._in_flight -= 1
        if self._ended is None or self._ended.done():
            return
        self._records.append(record)
        if record.failure is None:
            self.next_request(stream, record.end_ns)
            return
        self._errors += 1
        record.failure.message = mask(record.failure.message, self.secrets)
        done = len(self._records)
        enough = done >= max(8, self.spec.concurrency)
        if self._measuring and enough and self._errors > self.spec.max_error_rate * done:
            self._cut_short(
                f"{self._errors} of {done} requests had failed, more than the share of "
                f"{self.spec.max_error_rate:g} that ends a sweep"
            )
            return
        self._loop.call_later(PAUSE_AFTER_FAILURE_S, self.next_request, stream, None)

    def _cut_short(self, why: str) -> None:
        self.raw.cut_short = why
        self.raw.unfinished = self._in_flight
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def _tick(self) -> None:
        due_ns = asked_ns = reported_ns = time.perf_counter_ns()
        while True:
            due_ns += int(TICK_S * 1e9)
            await asyncio.sleep(TICK_S)
            now_ns = time.perf_counter_ns()
            if self._measuring:
                self._note_lag(max(0, now_ns - due_ns - TIMER_GRAIN_NS))
            due_ns = now_ns
            if now_ns - asked_ns >= CANCEL_S * 1e9:
                asked_ns = now_ns
                if self._cancel():
                    self._cut_short("cancelled")
                    return
            if now_ns - reported_ns >= PROGRESS_S * 1e9:
                reported_ns = now_ns
                self._report_phase()

    def _note_lag(self, lag_ns: int) -> None:
        """Keep a sample for every tick that was missed too, or one long halt would count as one."""
        while True:
            self.raw.loop_lag_ns.append(lag_ns)
            lag_ns -= int(TICK_S * 1e9)
            if lag_ns <= 0:
                return

    def _report_phase(self) -> None:
        if self._measuring:
            self.raw.ended_ns = time.perf_counter_ns()
        self._report("measuring" if self._measuring else "warm-up")

    def _report(self, phase: Phase) -> None:
        self._on_progress(
            LevelProgress(
                phase=phase,
                done=len(self._records),
                total=self._phase_total or len(self.spec.bodies),
                errors=self._errors,
                elapsed_s=(time.perf_counter_ns() - self._phase_started_ns) / 1e9,
                raw=self.raw,
            )
        )

    async def _open(self) -> None:
        """Open every connection before anything is sent; only a total failure is an error."""
        self._streams = [Stream(self) for _ in range(self.spec.concurrency)]
        gate = asyncio.Semaphore(CONNECTS_AT_ONCE)
        errors: list[OSError] = []

        async def one(stream: Stream) -> None:
            async with gate:
                try:
                    await self._connect(stream)
                except OSError as error:
                    errors.append(error)

        await asyncio.gather(*(one(stream) for stream in self._streams))
        if errors and len(errors) == len(self._streams):
            raise EndpointUnreachableError(
                f"{self.endpoint.base_url}: no connection.",
                words=str(errors[0]) or type(errors[0]).__name__,
                cause="Nothing listens at that address, or TLS could not be agreed on.",
                next_action="Check with get_status whether the deployment runs and at which "
                "address.",
            )

    async def _reopen_idle(self) -> None:
        """Replace connections the server closed while they were idle (uvicorn does after 5 s)."""
        for stream in self._streams:
            if not stream.is_open:
                with suppress(OSError):
                    await self._connect(stream)

    async def _connect(self, stream: Stream) -> None:
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(
                    lambda: Wire(stream),
                    address.host,
                    address.port,
                    ssl=address.tls,
                    server_hostname=address.host if address.tls else None,
                )
        except TimeoutError:
            raise TimeoutError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None

    async def _send_anew(self, stream: Stream, record: RequestRecord, request: bytes) -> None:
        self.raw.reconnects += 1
        record.sent_ns = time.perf_counter_ns()
        try:
            await self._connect(stream)
        except OSError as error:
            record.end_ns = time.perf_counter_ns()
            record.failure = Failure("connect", str(error) or type(error).__name__)
            self.finished(stream, record)
            return
        if self._ended is not None and not self._ended.done():
            stream.send(record, request, None)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_headers_fresh(self) -> None:
        while True:
            await asyncio.sleep(HEADER_REFRESH_S)
            await self._refresh_headers()

    async def _refresh_headers(self) -> None:
        headers = await self.endpoint.auth_headers()
        for name, value in headers.items():
            if any(sign in name + value for sign in "\r\n\0"):
                raise NotSupportedError(f"The header {name.strip()} holds a line break.")
        self.secrets = [part for v in headers.values() for part in (v, v.removeprefix("Bearer "))]
        self._auth = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


def _refuse_proxy(endpoint: Endpoint) -> None:
    parts = urlsplit(endpoint.base_url)
    proxy = getproxies().get(parts.scheme)
    if proxy and not endpoint.is_loopback and not proxy_bypass(parts.hostname or ""):
        raise NotSupportedError(
            f"A proxy is set for {parts.scheme}, and a load through it would measure the proxy.",
            cause=f"{parts.scheme.upper()}_PROXY is set and NO_PROXY does not name "
            f"{parts.hostname}.",
            next_action=f"Add {parts.hostname} to NO_PROXY, or run the benchmark from a machine "
            "that reaches the endpoint directly.",
        )


def _allow_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise NotSupportedError(
            f"This many streams need {needed} open files; the limit here is {hard}.",
            next_action="Raise it with `ulimit -n`, or ask for less concurrency.",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _run_delay_s() -> float | None:
    """Return how long this thread has waited for a core so far; None where that is not known."""
    try:
        words = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return None
    return int(words[1]) / 1e9 if len(words) > 1 else None


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep collections, which stop the loop for milliseconds, out of the measured window."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()

"""The coordinator's side of the workers: started, talked to, watched, ended and reaped.

Workers share nothing. What one has to say comes as messages; when one dies, or says nothing for
long, that is told as `WorkerLostError` and never waited out.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from backends.core.errors import NotSupportedError
from backends.serving.engine.member import Heard, Member
from backends.serving.engine.messages import Message, Opened, Ready, Report, packed

if TYPE_CHECKING:
    from backends.serving.engine.target import Target

PROJECT_DIR = Path(__file__).resolve().parents[3]
WORKER_MODULE = "backends.serving.engine.worker"
WORKER = ("-m", WORKER_MODULE)
SILENCE_S = 30.0
"""A worker reports four times a second; one that is starved may take long, not this long."""

SPARE_FILES = 64
LAST_WORDS = 2000
READ_BYTES = 1 << 20


class WorkerLostError(Exception):
    """A worker has died or fallen silent; the text says which and how."""


class Workforce(Protocol):
    """Where workers come from."""

    name: str
    """What the record calls it; empty for this machine."""

    async def look(self) -> None:
        """Find out what there is, before the first level.

        Raises:
            NotSupportedError: Nothing can be had there.
        """

    @property
    def least(self) -> int:
        """How many workers a level has at least, its streams permitting."""

    @property
    def most(self) -> int:
        """How many workers there is a core for."""

    def check(self, streams_each: int) -> None:
        """Refuse what a worker could not carry.

        Raises:
            NotSupportedError: With the limit and how to raise it.
        """

    def members(self, size: int, heard: Heard) -> Sequence[Member]:
        """Return workers that are to be started."""


class ThisMachine:
    """Workers on this machine."""

    name = ""
    least = 1

    @property
    def most(self) -> int:
        """The cores this process may use."""
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    async def look(self) -> None:
        """Nothing has to be found out."""

    def check(self, streams_each: int) -> None:
        """See `Workforce.check`."""
        needed = streams_each + SPARE_FILES
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise NotSupportedError(
                f"This many streams need {needed} open files; the limit here is {hard}.",
                next_action="Raise it with `ulimit -n`, or ask for less concurrency.",
            )

    def members(self, size: int, heard: Heard) -> Sequence[Member]:
        """See `Workforce.members`."""
        return [WorkerProcess(number + 1, heard) for number in range(size)]


class WorkerProcess(Member):
    """A worker on this machine."""

    def __init__(self, number: int, heard: Heard) -> None:
        super().__init__(number, heard)
        self.process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self._words: IO[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, target: Target) -> None:
        """Start the process."""
        del target
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._channel = ours
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        path = os.pathsep.join(filter(None, [str(PROJECT_DIR), os.environ.get("PYTHONPATH")]))
        with theirs:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *WORKER,
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=self._words,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._reading = asyncio.create_task(self._read(ours))

    async def say(self, message: Message) -> None:
        """Send a message; a worker that is gone does not hear it."""
        assert self._channel is not None  # noqa: S101 - started before it is talked to
        with suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._channel, packed(message))

    async def end(self) -> None:
        """End the process, at once, and reap it."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        if self._channel is not None:
            self._channel.close()
        process = self.process
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._words is not None:
            self._words.close()

    async def how_it_ended(self) -> str:
        """Return in words how a worker that is gone has come to its end."""
        assert self.process is not None  # noqa: S101 - it was started
        assert self._words is not None  # noqa: S101
        try:
            async with asyncio.timeout(1.0):
                code = await self.process.wait()
        except TimeoutError:
            return "closed its connection"
        if code < 0:
            return f"was killed by signal {-code}"
        self._words.seek(0)
        lines = self._words.read()[-LAST_WORDS:].decode("utf-8", "replace").strip().splitlines()
        return f"ended with code {code}" + (f" ({lines[-1]})" if lines else "")

    async def _read(self, channel: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(channel, READ_BYTES):
                self.take(data)
        except ConnectionError:
            pass
        self.is_gone = True


class Crew:
    """Some workers, spoken to as one.

    Args:
        size: How many, 1 or more.
        workforce: Where they come from.
        on_report: Called with every report, as it comes.
        watch: Called ten times a second while something is waited for; once it returns True the
            wait ends.
    """

    def __init__(
        self,
        size: int,
        workforce: Workforce,
        on_report: Callable[[Member, Report], None],
        watch: Callable[[], bool],
    ) -> None:
        self.workers = workforce.members(size, self._take)
        self.opened: dict[int, Opened] = {}
        self._on_report = on_report
        self._watch = watch
        self._ready = 0
        self._ended = 0
        self._news = asyncio.Event()

    @property
    def lead_s(self) -> float:
        """How long a word may take to reach the last of them, besides what it takes here."""
        return max(worker.lead_s for worker in self.workers)

    async def start(self, target: Target) -> bool:
        """Start every worker; False when the watch ended that.

        Raises:
            DevopsError: One cannot be had, or cannot reach the target.
        """
        starting = asyncio.gather(*(worker.start(target) for worker in self.workers))
        try:
            if await self._until(starting.done, speaking=False):
                await starting
                return True
            return False
        finally:
            if not starting.done():
                starting.cancel()
                with suppress(asyncio.CancelledError):
                    await starting

    async def say(self, message: Message) -> None:
        """Say something to all."""
        await asyncio.gather(*(worker.say(message) for worker in self.workers))

    async def until_opened(self) -> bool:
        """Wait for every worker's connections; False when the watch ended the wait."""
        return await self._until(lambda: len(self.opened) == len(self.workers))

    async def drive(self, parts: Sequence[Message]) -> None:
        """Give every worker its part; one may be ready before the last has heard of its own."""
        self._ready = self._ended = 0
        told = zip(self.workers, parts, strict=True)
        await asyncio.gather(*(worker.say(part) for worker, part in told))

    async def until_ready(self) -> bool:
        """Wait until every worker could start; False when the watch ended the wait."""
        return await self._until(lambda: self._ready == len(self.workers))

    async def until_ended(self, patience_s: float | None = None) -> bool:
        """Wait for the end of a part; False when the watch, or the patience, came to its end."""
        return await self._until(lambda: self._ended == len(self.workers), patience_s)

    async def end(self) -> None:
        """End and reap every worker."""
        await asyncio.gather(*(worker.end() for worker in self.workers))

    def _take(self, worker: Member, message: Message) -> None:
        if isinstance(message, Opened):
            self.opened[worker.number] = message
        elif isinstance(message, Ready):
            self._ready += 1
        elif isinstance(message, Report):
            self._on_report(worker, message)
            self._ended += message.is_last
        self._news.set()

    async def _until(
        self,
        done: Callable[[], bool],
        patience_s: float | None = None,
        *,
        speaking: bool = True,
    ) -> bool:
        """Wait for something.

        Raises:
            WorkerLostError: A worker that should be speaking is gone, or silent for `SILENCE_S`.
        """
        for worker in self.workers:
            worker.heard_at_s = time.monotonic()
        deadline_s = None if patience_s is None else time.monotonic() + patience_s
        while not done():
            if speaking:
                await self._look_for_losses()
            if deadline_s is None and self._watch():
                return False
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return False
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1 if deadline_s is None else 0.02):
                    await self._news.wait()
        return True

    async def _look_for_losses(self) -> None:
        for worker in self.workers:
            silence_s = time.monotonic() - worker.heard_at_s
            if worker.is_gone:
                how = await worker.how_it_ended()
            elif silence_s > SILENCE_S:
                how = f"has said nothing for {silence_s:.0f} s"
            else:
                continue
            place = f" on {worker.place}" if worker.place else ""
            raise WorkerLostError(f"worker {worker.number} of {len(self.workers)}{place} {how}")

"""The coordinator's side of the workers: started, talked to, watched, ended and reaped.

Workers share nothing. What one has to say comes as messages; when one dies, or says nothing for
long, that is told as `WorkerLostError` and never waited out.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from backends.serving.engine.messages import Message, Opened, Ready, Report, Unpacker, packed

PROJECT_DIR = Path(__file__).resolve().parents[3]
WORKER = ("-m", "backends.serving.engine.worker")
SILENCE_S = 30.0
"""A worker reports four times a second; one that is starved may take long, not this long."""

LAST_WORDS = 2000
READ_BYTES = 1 << 20


class WorkerLostError(Exception):
    """A worker has died or fallen silent; the text says which and how."""


class WorkerProcess:
    """One worker.

    Args:
        number: Its place in the crew, from 1.
        heard: Called with every message that comes.
    """

    def __init__(self, number: int, heard: Callable[[WorkerProcess, Message], None]) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.is_gone = False
        self.heard_at_s = time.monotonic()
        self._heard = heard
        self._channel: socket.socket | None = None
        self._unpacker = Unpacker()
        self._words: IO[bytes] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process."""
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
                self.heard_at_s = time.monotonic()
                for message in self._unpacker.feed(data):
                    self._heard(self, message)
        except ConnectionError:
            pass
        self.is_gone = True


class Crew:
    """Some workers, spoken to as one.

    Args:
        size: How many, 1 or more.
        on_report: Called with every report, as it comes.
        watch: Called ten times a second while something is waited for; once it returns True the
            wait ends.
    """

    def __init__(
        self, size: int, on_report: Callable[[Report], None], watch: Callable[[], bool]
    ) -> None:
        self.workers = [WorkerProcess(number + 1, self._take) for number in range(size)]
        self.opened: list[Opened] = []
        self._on_report = on_report
        self._watch = watch
        self._ready = 0
        self._ended = 0
        self._news = asyncio.Event()

    async def start(self) -> None:
        """Start every process."""
        await asyncio.gather(*(worker.start() for worker in self.workers))

    async def say(self, message: Message) -> None:
        """Say something to all."""
        await asyncio.gather(*(worker.say(message) for worker in self.workers))

    async def until_opened(self) -> bool:
        """Wait for every worker's connections; False when the watch ended the wait."""
        return await self._until(lambda: len(self.opened) == len(self.workers))

    async def until_ready(self) -> bool:
        """Wait until every worker could start; False when the watch ended the wait."""
        self._ready = self._ended = 0
        return await self._until(lambda: self._ready == len(self.workers))

    async def until_ended(self, patience_s: float | None = None) -> bool:
        """Wait for the end of a part; False when the watch, or the patience, came to its end."""
        return await self._until(lambda: self._ended == len(self.workers), patience_s)

    async def end(self) -> None:
        """End and reap every process."""
        await asyncio.gather(*(worker.end() for worker in self.workers))

    def _take(self, worker: WorkerProcess, message: Message) -> None:
        del worker
        if isinstance(message, Opened):
            self.opened.append(message)
        elif isinstance(message, Ready):
            self._ready += 1
        elif isinstance(message, Report):
            self._on_report(message)
            self._ended += message.is_last
        self._news.set()

    async def _until(self, done: Callable[[], bool], patience_s: float | None = None) -> bool:
        """Wait for something.

        Raises:
            WorkerLostError: A worker is gone, or has said nothing for `SILENCE_S`.
        """
        for worker in self.workers:
            worker.heard_at_s = time.monotonic()
        deadline_s = None if patience_s is None else time.monotonic() + patience_s
        while not done():
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
            raise WorkerLostError(f"worker {worker.number} of {len(self.workers)} {how}")

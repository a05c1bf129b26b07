"""The one process runner: argv lists only, a deadline, bounded output, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backends.clouds.rules import command_of
from backends.core.deadline import part_s
from backends.core.errors import CliMissingError, CloudError, OutcomeUnknownError

MASK = "***"
_MAX_OUTPUT_BYTES = 8 * 1024 * 1024
_KILL_GRACE_S = 2.0

# Children of this server that are running now, so that a signal can end them all.
_running: set[int] = set()

# Commands that are being started: the program may run already, while its id is not yet known here.
# Then this process's children are asked for the mark, which nothing else we start carries.
_starting: set[object] = set()
_MARK = "VLLM_DEVOPS_COMMAND_OF"
_MARKED = f"{os.getpid()}-{os.urandom(6).hex()}"


class Secret:
    """A value that only the running process sees: `str`, `repr` and formatting show `***`.

    An argument may be made of it (`Secret("token")`), though standard input is the better way:
    other users of a machine can see a process's arguments.

    Args:
        value: What is hidden.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __str__(self) -> str:
        return MASK

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def reveal(self) -> str:
        """The value itself; for the runner alone."""
        return self._value


Argument = str | Secret


@dataclass(frozen=True)
class Finished:
    """A process that ended by itself.

    Attributes:
        argv: What was run, secrets masked.
        code: Its exit code; negative when a signal ended it.
        stdout: Its output, cut at 8 MiB, secrets masked.
        stderr: Its error output, cut at 8 MiB, secrets masked.
        cut: Whether something was cut.
    """

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    cut: bool


@dataclass(frozen=True)
class Cli:
    """A cloud's command-line program: what all of its commands are run with.

    Attributes:
        quiet: Variables that keep it from asking, paging and colouring.
        least_s: Seconds a command needs at least; with less left of a call it is not begun.
        missing: What to say where it is not installed.
        install: What the person is then asked to do: "install … and to run: …".
    """

    quiet: Mapping[str, str]
    least_s: float
    missing: str
    install: str

    async def run(
        self,
        argv: Sequence[Argument],
        env: Mapping[str, str],
        *,
        timeout_s: float,
        stdin: bytes | Secret | None = None,
        ends_at: re.Pattern[bytes] | None = None,
    ) -> Finished:
        """Run a whole command once and return it, not yet judged.

        Args:
            argv: The command.
            env: Variables added to `quiet` and to this process's own.
            timeout_s: Bound of this command; less where the call it belongs to has less left.
            stdin: What it is given on standard input.
            ends_at: See `run`.

        Raises:
            CliMissingError: The program is not installed.
            OutcomeUnknownError: It did not end in time.
            UnavailableError: The call has no time left for it; it was not started.
        """
        bound_s = part_s(_command(argv), timeout_s, least_s=self.least_s)
        try:
            return await run(
                argv, timeout_s=bound_s, stdin=stdin, env={**self.quiet, **env}, ends_at=ends_at
            )
        except CliMissingError as error:
            raise CliMissingError(
                self.missing,
                words=error.words,
                next_action=f"Ask the person to {self.install}. Everything on target local works "
                "without it.",
            ) from None


def printed_json(argv: Sequence[Argument], text: str, *, nothing: object) -> Any:  # noqa: ANN401
    """What a command printed, as JSON.

    Args:
        argv: The command.
        text: Its output.
        nothing: What it means when it printed nothing.

    Raises:
        CloudError: It printed something else.
    """
    try:
        return json.loads(text) if text.strip() else nothing
    except ValueError:
        raise CloudError(f"{_command(argv)} did not print JSON.", words=text[:500]) from None


def _command(argv: Sequence[Argument]) -> str:
    return command_of(tuple(map(str, argv)))


async def run(
    argv: Sequence[Argument],
    *,
    timeout_s: float,
    stdin: bytes | Secret | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    ends_at: re.Pattern[bytes] | None = None,
) -> Finished:
    """Run a command and wait for it.

    Args:
        argv: The program and its arguments; never a shell line. Secrets in it are masked in all
            that comes back.
        timeout_s: Seconds until it is ended, with all it started.
        stdin: What it is given on standard input (the way for secrets).
        env: Variables added to this process's own.
        cwd: The folder it runs in; this process's own unless given.
        ends_at: What it says on standard error when all it does from there on is in vain: it is
            ended then, and returned as it is.

    Raises:
        CliMissingError: The program is not installed.
        OutcomeUnknownError: It did not end in time; it may have done its work.
    """
    shown = tuple(map(str, argv))
    hidden = [item.reveal() for item in (*argv, stdin) if isinstance(item, Secret)]
    given = stdin.reveal().encode() if isinstance(stdin, Secret) else stdin
    start = object()
    _starting.add(start)
    try:
        process = await asyncio.create_subprocess_exec(
            *(item.reveal() if isinstance(item, Secret) else item for item in argv),
            stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TERM": "dumb", **(env or {}), _MARK: _MARKED},
            start_new_session=True,
            cwd=cwd,
        )
    except FileNotFoundError as error:
        raise CliMissingError(
            f"{shown[0]} is not installed.",
            words=str(error),
            next_action=f"Install {shown[0]}, or put it on PATH, and call again.",
        ) from error
    else:
        _running.add(process.pid)
    finally:
        _starting.discard(start)
    out: list[bytes] = []
    err: list[bytes] = []
    try:
        async with asyncio.timeout(timeout_s):
            cut = await asyncio.gather(
                _drain(process.stdout, out),
                _drain(process.stderr, err, lambda: _ends(process, err, ends_at)),
                _feed(process, given),
            )
            code = await process.wait()
    except TimeoutError:
        await _end(process)
        raise OutcomeUnknownError(
            f"{shown[0]} did not finish within {timeout_s:.0f} s and was ended.",
            words=_text(err, hidden)[-2000:],
            cause="The other side was slow. What it was asked to do may have happened.",
            next_action="Call get_status or list_deployments before trying again.",
        ) from None
    except asyncio.CancelledError:
        await asyncio.shield(_end(process))
        raise
    finally:
        _running.discard(process.pid)
    return Finished(
        shown,
        code,
        _text(out, hidden),
        _text(err, hidden),
        any(cut),
    )


def end_all(grace_s: float = 0.3) -> None:
    """End every running child with all it started, and reap it. For signal handlers."""
    if _starting:
        _running.update(_just_started())
    for pid in list(_running):
        _kill_group(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _running and time.monotonic() < deadline:
        for pid in list(_running):
            if _reaped(pid):
                _running.discard(pid)
        time.sleep(0.01)
    for pid in list(_running):
        _kill_group(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        _running.discard(pid)


def _text(chunks: Sequence[bytes], hidden: Sequence[str]) -> str:
    text = b"".join(chunks).decode("utf-8", "replace")
    for value in hidden:
        if value:
            text = text.replace(value, MASK)
    return text


def _just_started() -> list[int]:
    """Children that carry our mark, known to `run` or not yet."""
    import psutil

    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.environ().get(_MARK) == _MARKED:
                found.append(child.pid)
    return found


def _reaped(pid: int) -> bool:
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return done == pid


def _kill_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def _end(process: asyncio.subprocess.Process) -> None:
    _kill_group(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_KILL_GRACE_S):
            await process.wait()
    except TimeoutError:
        _kill_group(process.pid, signal.SIGKILL)
        await process.wait()
    # Whatever outlived its leader in the group goes too.
    _kill_group(process.pid, signal.SIGKILL)
    # Waiting ends with the process; its pipes would close a little later, maybe after the loop.
    process._transport.close()  # type: ignore[attr-defined]
    await asyncio.sleep(0)


def _ends(
    process: asyncio.subprocess.Process, said: Sequence[bytes], at: re.Pattern[bytes] | None
) -> None:
    if at is not None and at.search(b"".join(said)):
        _kill_group(process.pid, signal.SIGTERM)


async def _drain(
    stream: asyncio.StreamReader | None,
    into: list[bytes],
    heard: Callable[[], None] | None = None,
) -> bool:
    if stream is None:
        return False
    size = 0
    cut = False
    while chunk := await stream.read(65536):
        if size < _MAX_OUTPUT_BYTES:
            into.append(chunk[: _MAX_OUTPUT_BYTES - size])
            if heard is not None:
                heard()
        cut = cut or size + len(chunk) > _MAX_OUTPUT_BYTES
        size += len(chunk)
    return cut


async def _feed(process: asyncio.subprocess.Process, data: bytes | None) -> bool:
    if process.stdin is None or data is None:
        return False
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
    return False

"""What can be done on a host, whatever the way to it: one primitive, `run`, and what it carries.

A file is put, read and followed, and a job is started and looked at, by small POSIX scripts that
are safe to repeat; so a dropped connection costs a repetition and never a half-written file or a
second job.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from backends.core.errors import HostError, InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from backends.clouds.hosts.tunnel import Tunnel

STATE_FOLDER = ".vllm-devops"
"""Our folder on every host, below the login's home."""

_JOBS = f"{STATE_FOLDER}/jobs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NO_SUCH_FILE = 44
_WORDS = 2000
_LOG_TAIL = 16_384
_LOG_SINCE = 256 * 1024

JobState = Literal["absent", "running", "exited", "lost"]


def quote(*words: str) -> str:
    """Words as one shell command in which each of them is exactly one word.

    The only way in which text of others (names, prompts, paths) reaches a shell of a host.

    Raises:
        InvalidInputError: A word holds a NUL, which no argument can.
    """
    if any("\0" in word for word in words):
        raise InvalidInputError("argument", "must not hold a NUL character.")
    return shlex.join(words)


@dataclass(frozen=True)
class HostResult:
    """A command that ended on a host.

    Attributes:
        exit_code: Its own exit code.
        stdout: Its output, cut at 8 MiB.
        stderr: Its error output, without the connection's own words.
    """

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class HostJob:
    """Something started with `start_detached`.

    Attributes:
        name: Its name.
        state: `absent` (never started), `running`, `exited`, or `lost` (killed, or the host
            restarted, before it could write its exit code).
        exit_code: Of one that exited.
        pid: On the host.
        started_at: Seconds since the epoch, by the host's clock.
        log: The end of what it wrote, at most 16 KiB.
        since: What it wrote from the asked offset on, at most 256 KiB.
        log_size: Bytes it wrote in all; `read` takes them from `log_path`.
    """

    name: str
    state: JobState
    exit_code: int | None = None
    pid: int | None = None
    started_at: float | None = None
    log: str = ""
    since: bytes = b""
    log_size: int = 0

    @property
    def log_path(self) -> str:
        """Where its output is on the host."""
        return f"{_JOBS}/{self.name}/log"


class Host(abc.ABC):
    """A machine to run commands on.

    Attributes:
        label: How it is called in messages: `gce-t4/NAME (us-west2-b)`.
    """

    label: str

    @abc.abstractmethod
    async def run(
        self,
        script: str | Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        check: bool = True,
        repeatable: bool = False,
    ) -> HostResult:
        """Run a command and wait for it.

        Args:
            script: A line for bash, or words (then each is exactly one word).
            timeout_s: Seconds until it is ended, on the host too.
            stdin: Its standard input; the way for secrets.
            check: Whether a non-zero exit code is an error.
            repeatable: Whether it may run twice, should the connection drop half-way.

        Raises:
            HostError: `check`, and it failed; the words are its own.
            HostUnreachableError: No connection, or it dropped (`begun`: after the start).
            HostKeyError: The host is not the one it was.
            OutcomeUnknownError: It did not end in time.
        """

    @abc.abstractmethod
    async def attach(self, words: Sequence[str]) -> asyncio.subprocess.Process:
        """Start a command there and talk to it over pipes; it ends when its input closes.

        Raises:
            HostUnreachableError: There is no way to the host.
        """

    @abc.abstractmethod
    async def forward(self, remote_port: int, *, remote_host: str = "127.0.0.1") -> Tunnel:
        """Open a port of this machine that leads to one the host can reach.

        Raises:
            HostUnreachableError: There is no way to the host.
        """

    async def put(
        self, data: bytes, path: str, *, mode: int = 0o644, timeout_s: float = 60
    ) -> None:
        """Write a file, whole or not at all; its folder is made.

        Args:
            data: Its bytes.
            path: Where; relative to the home folder, or absolute.
            mode: Its permissions.
            timeout_s: Bound of the call.

        Raises:
            HostError: It could not be written (no space, no permission).
        """
        script = (
            "set -eu; umask 077; path=$1; want=$2\n"
            'mkdir -p -- "$(dirname -- "$path")"\n'
            'new=$(mktemp -- "$path.XXXXXX"); trap \'rm -f -- "$new"\' EXIT\n'
            'cat > "$new"\n'
            # A connection that drops half-way looks like the end of the file.
            'got=$(sha256sum < "$new"); [ "${got%% *}" = "$want" ] || exit 45\n'
            'chmod "$3" -- "$new"; mv -f -- "$new" "$path"\n'
        )
        digest = hashlib.sha256(data).hexdigest()
        await self.run(
            ["bash", "-c", script, "put", path, digest, f"{mode:o}"],
            timeout_s=timeout_s,
            stdin=data,
            repeatable=True,
        )

    async def read(
        self, path: str, *, offset: int = 0, limit: int = 1 << 20, timeout_s: float = 30
    ) -> bytes:
        """Bytes of a file from `offset` on, at most `limit`; following it is asking again.

        Raises:
            NotFoundError: There is no such file.
        """
        script = (
            f'[ -f "$1" ] || exit {_NO_SUCH_FILE}; '
            'tail -c "+$2" -- "$1" | head -c "$3" | base64 -w0'
        )
        result = await self.run(
            ["bash", "-c", script, "read", path, str(offset + 1), str(limit)],
            timeout_s=timeout_s,
            check=False,
            repeatable=True,
        )
        if result.exit_code == _NO_SUCH_FILE:
            raise NotFoundError(f"{self.label} has no file {path}.")
        if result.exit_code != 0:
            raise failed(self.label, f"read {path}", result)
        return base64.b64decode(result.stdout)

    async def start_detached(self, script: str, *, name: str, timeout_s: float = 60) -> None:
        """Start a bash script that outlives the connection, unless that job runs already.

        Its pid, output and exit code are kept in a folder on the host, where `job` finds them.

        Args:
            script: For bash, run in the home folder.
            name: Its name: letters, digits, `.`, `_`, `-`.
            timeout_s: Bound of the start.

        Raises:
            InvalidInputError: That is no name.
            HostError: It could not be started.
        """
        starter = (
            _RUNNING + 'set -eu; umask 077; d=$1; mkdir -p -- "$d"; cat > "$d/script.new"\n'
            'if running "$d"; then rm -f -- "$d/script.new"; exit 0; fi\n'
            'mv -f -- "$d/script.new" "$d/script"; rm -f -- "$d/exit" "$d/pid"; : > "$d/log"\n'
            "setsid nohup bash -c "
            + quote(
                _RUNNING + 'echo "$$ $(born $$) $(date +%s)" > "$1/pid.new"; '
                'mv -f -- "$1/pid.new" "$1/pid"; '
                'bash -- "$1/script" >> "$1/log" 2>&1 < /dev/null; '
                'echo $? > "$1/exit.new"; mv -f -- "$1/exit.new" "$1/exit"'
            )
            + ' job "$d" > /dev/null 2>&1 < /dev/null &\n'
            'for _ in $(seq 100); do [ -s "$d/pid" ] && exit 0; sleep 0.05; done; exit 46\n'
        )
        await self.run(
            ["bash", "-c", starter, "start", self._job_folder(name)],
            timeout_s=timeout_s,
            stdin=script.encode(),
            repeatable=True,
        )

    async def job(self, name: str, *, offset: int | None = None, timeout_s: float = 30) -> HostJob:
        """How a job is: running, exited, lost or never started; and the end of its output.

        Args:
            name: Its name.
            offset: Bytes of its output that are known; what follows is in `since`, and `log`
                is empty.
            timeout_s: Bound of the call.
        """
        start = f"+{offset + 1}" if offset is not None else str(_LOG_TAIL)
        script = (
            _RUNNING + 'd=$1; [ -s "$d/pid" ] || { echo absent; exit 0; }\n'
            'read -r pid born at < "$d/pid"\n'
            # Looked at before the exit code: it is written before the process ends.
            'if running "$d"; then state=running; else state=lost; fi\n'
            'code=; [ -s "$d/exit" ] && { state=exited; code=$(cat "$d/exit"); }\n'
            'echo "$state $pid $at $(stat -c %s "$d/log") $code"\n'
            f'tail -c "$2" -- "$d/log" | head -c {_LOG_SINCE} | base64 -w0\n'
        )
        result = await self.run(
            ["bash", "-c", script, "job", self._job_folder(name), start],
            timeout_s=timeout_s,
            repeatable=True,
        )
        head, _, log = result.stdout.partition("\n")
        state, *facts = head.split()
        if state == "absent":
            return HostJob(name, "absent")
        if state not in ("running", "lost", "exited"):
            raise failed(self.label, f"look at {name}", result)
        return HostJob(
            name,
            state,  # type: ignore[arg-type]  # one of the three
            exit_code=int(facts[3]) if len(facts) > 3 else None,
            pid=int(facts[0]),
            started_at=float(facts[1]),
            log=base64.b64decode(log).decode("utf-8", "replace") if offset is None else "",
            since=base64.b64decode(log) if offset is not None else b"",
            log_size=int(facts[2]),
        )

    async def end_job(self, name: str, *, patience_s: float = 10, timeout_s: float = 40) -> None:
        """End a job with all it started: asked first, then killed. Nothing where none runs."""
        script = (
            _RUNNING + 'd=$1; running "$d" || exit 0\n'
            'read -r pid rest < "$d/pid"; kill -TERM -- "-$pid" 2> /dev/null\n'
            'for _ in $(seq "$2"); do running "$d" || exit 0; sleep 0.1; done\n'
            'kill -KILL -- "-$pid" 2> /dev/null; exit 0\n'
        )
        await self.run(
            ["bash", "-c", script, "end", self._job_folder(name), str(int(patience_s * 10))],
            timeout_s=timeout_s,
            repeatable=True,
        )

    async def close(self) -> None:  # noqa: B027 (nothing to let go of is a way to do it)
        """Let go of connections. The host goes on; a later call connects again."""

    @staticmethod
    def _job_folder(name: str) -> str:
        if not _NAME.fullmatch(name):
            raise InvalidInputError("name", "is no name of a job.", allowed="A-Z a-z 0-9 . _ -")
        return f"{_JOBS}/{name}"


# Field 22 of /proc/PID/stat: with it a later process of the same number is not mistaken for ours.
_RUNNING = (
    'born() { local s; s=$(cat "/proc/$1/stat" 2> /dev/null) || return 1; '
    'set -- ${s##*)}; [ "$1" != Z ] || return 1; echo "${20}"; }\n'
    'running() { local p b r; [ -s "$1/pid" ] || return 1; read -r p b r < "$1/pid"; '
    '[ "$(born "$p")" = "$b" ]; }\n'
)


def failed(label: str, what: str, result: HostResult) -> HostError:
    """The error for a command that failed on a host."""
    return HostError(
        f"{label}: {what} failed with exit code {result.exit_code}.",
        words=(result.stderr.strip() or result.stdout.strip())[-_WORDS:],
        exit_code=result.exit_code,
    )


def shown(script: str | Sequence[str]) -> str:
    """A command in a few words, for messages."""
    text = script if isinstance(script, str) else " ".join(script[:1])
    return " ".join(text.split())[:80] or "the command"

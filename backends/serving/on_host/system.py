"""The machine as the steps see it: paths, commands, files of root, and what is reported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# A sandbox's stand-ins for `/` and 127.0.0.1; on a real machine neither is set.
_ROOT = os.environ.get("VLLM_DEVOPS_HOST_ROOT", "")
LOOPBACK = os.environ.get("VLLM_DEVOPS_HOST_LOOPBACK", "127.0.0.1")

HOME_FOLDER = Path.home() / ".vllm-devops"
PROGRAM = "vllm-devops.pyz"
_TAIL_CHARS = 4_000


# The command that runs now: it has a session of its own, so that it can be ended with its children.
_running: list[subprocess.Popen[bytes]] = []


def end_with_children() -> None:
    """Let SIGTERM end the command that runs now as well."""

    def end(number: int, frame: object) -> None:
        del frame
        for process in _running:
            _kill(process)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


class StepError(Exception):
    """A step cannot be done.

    Args:
        message: What failed.
        words: The command's own words.
        cause: The likely reason.
        next_action: What mends it.
        kind: A word for programs, e.g. `no_space`.
    """

    def __init__(
        self,
        message: str,
        *,
        words: str = "",
        cause: str = "",
        next_action: str = "",
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.words = words.strip()[-_TAIL_CHARS:]
        self.cause = cause
        self.next_action = next_action
        self.kind = kind

    def facts(self) -> Json:
        """What is reported of it."""
        found = {
            "error": self.message,
            "words": self.words,
            "cause": self.cause,
            "next_action": self.next_action,
            "kind": self.kind,
        }
        return {key: value for key, value in found.items() if value}


class Ran:
    """A command that ended.

    Attributes:
        code: Its exit code; 127 where there is no such program, 124 where it took too long.
        out: Its output.
        err: Its error output.
    """

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def words(self) -> str:
        """What it said."""
        return (self.err.strip() or self.out.strip())[-_TAIL_CHARS:]


def at(path: str | Path) -> Path:
    """Where a path of the machine is."""
    text = str(path)
    if _ROOT and text.startswith("/") and not text.startswith(_ROOT):
        return Path(_ROOT + text)
    return Path(text)


def report(**facts: Any) -> None:  # noqa: ANN401 (JSON)
    """Print one JSON object on a line of its own."""
    sys.stdout.write(json.dumps({"at": round(time.time(), 2), **facts}, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Print what a command printed, told apart from what we report."""
    for line in text.splitlines():
        if line.strip():
            sys.stdout.write("| " + line.rstrip()[-500:] + "\n")
    sys.stdout.flush()


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = 60.0,
    env: dict[str, str] | None = None,
    root: bool = False,
    stdin: str = "",
    show: bool = False,
) -> Ran:
    """Run a command to its end; no shell, no questions.

    Args:
        argv: The command.
        timeout_s: Seconds until it is ended with all it started.
        env: Variables added to our own.
        root: Whether it needs root.
        stdin: Its standard input.
        show: Whether its output goes to the log as it comes.
    """
    words = [str(item) for item in argv]
    if root and os.geteuid() != 0:
        words = ["sudo", "-n", *words]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if show else subprocess.PIPE,
            env={
                **os.environ,
                "LC_ALL": "C.UTF-8",
                "DEBIAN_FRONTEND": "noninteractive",
                **(env or {}),
            },
            start_new_session=True,
        )
    except FileNotFoundError:
        return Ran(127, "", words[0] + ": command not found")
    _running.append(process)
    try:
        return _shown(process, timeout_s) if show else _quiet(process, timeout_s, stdin)
    finally:
        _running.remove(process)


def _quiet(process: subprocess.Popen[bytes], timeout_s: float, stdin: str) -> Ran:
    try:
        out, err = process.communicate(stdin.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        out, err = process.communicate()
        return Ran(124, _text(out), _text(err) + f"\nended after {timeout_s:.0f} s")
    return Ran(process.returncode, _text(out), _text(err))


def _shown(process: subprocess.Popen[bytes], timeout_s: float) -> Ran:
    late = threading.Event()

    def end() -> None:
        late.set()
        _kill(process)

    timer = threading.Timer(timeout_s, end)
    timer.start()
    kept: list[str] = []
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
    process.stdin.close()
    try:
        for raw in process.stdout:
            line = _text(raw)
            note(line)
            kept = [*kept[-80:], line]
        code = process.wait()
    finally:
        timer.cancel()
    words = "".join(kept)
    return Ran(124 if late.is_set() else code, words, words)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")


def must(argv: Sequence[str | Path], what: str, **options: Any) -> Ran:  # noqa: ANN401
    """Run a command that has to succeed.

    Raises:
        StepError: It did not.
    """
    done = run(argv, **options)
    if done.code == 0:
        return done
    words = done.words
    if "No space left on device" in words or "Errno 28" in words:
        raise StepError(
            what + " ran out of space.",
            words=words,
            cause="A disk is full: " + "; ".join(free_words([Path("/"), Path("/tmp")])),  # noqa: S108
            next_action="Give the machine a data disk or a larger one, then prepare again.",
            kind="no_space",
        )
    if "a password is required" in words or "sudo: command not found" in words:
        raise StepError(
            what + " needs root.",
            words=words,
            cause="The login may not use sudo without a password.",
            next_action="Log in as a user with passwordless sudo (OS Login: roles/"
            "compute.osAdminLogin).",
            kind="no_root",
        )
    raise StepError(
        f"{what} failed with exit code {done.code}.", words=words, kind="command_failed"
    )


def write_root(path: str | Path, text: str) -> None:
    """Write a file that belongs to root, whole or not at all.

    Raises:
        StepError: It could not be written.
    """
    target = at(path)
    with tempfile.NamedTemporaryFile("w", delete=False, encoding="utf-8") as file:
        file.write(text)
    try:
        must(
            ["install", "-m", "0644", file.name, str(target) + ".new"],
            "Writing " + str(path),
            root=True,
        )
        must(["mv", "-f", str(target) + ".new", target], "Writing " + str(path), root=True)
    finally:
        Path(file.name).unlink()


def write_json(path: Path, value: Json) -> None:
    """Write a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value), encoding="utf-8")
    new.replace(path)


def read_json(path: Path) -> Json:
    """A JSON file's object; empty where there is none, or a torn one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def boot_id() -> str:
    """What changes with every boot."""
    try:
        return at("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def born(pid: int) -> str:
    """Tells a process from a later one of its number; empty where it is gone (or a zombie)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if not fields or fields[0] == "Z" else fields[19]


def free_gib(path: str | Path) -> float | None:
    """Free space where a path is (or will be), in GiB; None where it cannot be measured."""
    place = at(path)
    while not place.exists() and place != place.parent:
        place = place.parent
    done = run(["df", "-Pk", place])
    try:
        return int(done.out.splitlines()[-1].split()[3]) / 2**20
    except (IndexError, ValueError):
        return None


def free_words(paths: Sequence[Path]) -> list[str]:
    """Free space of paths, for people."""
    found = []
    for path in paths:
        free = free_gib(path)
        found.append(
            "{} has {} free".format(path, "unknown" if free is None else f"{free:.1f} GiB")
        )
    return found


def kernel_log(since: str = "") -> list[str]:
    """The kernel's log; empty where it may not be read."""
    del since
    done = run(["dmesg"], root=True, timeout_s=15)
    return done.out.splitlines() if done.code == 0 else []

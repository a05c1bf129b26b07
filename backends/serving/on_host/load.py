"""Runs one worker of the load engine beside the engine, and carries its words both ways.

The other side says, a line each: `clock` (it is told the monotonic clock) any number of times, and
then `start`. From there on every byte goes to the worker and from it. The worker ends when the
other side is gone.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from .system import LOOPBACK

_READ_BYTES = 1 << 16
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def load(archive: str, module: str) -> int:
    """Say who we are, tell the time, start the worker, and carry its words.

    The worker needs nothing but Python's own library, so what else runs on the host (an engine in
    its packages, or in a container) does not matter.
    """
    about = {
        "boot_id": _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else "",
        "python": list(sys.version_info[:3]),
        "loopback": LOOPBACK,
    }
    _say(json.dumps(about))
    while True:
        word = sys.stdin.buffer.raw.readline().strip()  # type: ignore[union-attr]
        if word == b"clock":
            _say(str(time.perf_counter_ns()))
        elif word == b"start":
            break
        else:
            return 0
    ours, theirs = socket.socketpair()
    archive = str(Path(archive).resolve())
    with theirs:
        worker = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            cwd=str(Path(archive).parent),
            env={**os.environ, "PYTHONPATH": archive},
        )
    threading.Thread(target=_carry_in, args=(ours,), daemon=True).start()
    with suppress(OSError):
        while True:
            data = ours.recv(_READ_BYTES)
            if not data:
                break
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    worker.kill()
    return worker.wait()


def _carry_in(channel: socket.socket) -> None:
    """From the other side to the worker; its end is the worker's."""
    with suppress(OSError):
        while True:
            data = os.read(0, _READ_BYTES)
            if not data:
                break
            channel.sendall(data)
        channel.shutdown(socket.SHUT_RDWR)


def _say(text: str) -> None:
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()

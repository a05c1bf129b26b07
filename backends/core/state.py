"""Files under the one state directory: written atomically, readable at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backends.core.errors import DevopsError, SettingsError
from backends.core.names import TTL_LABEL


def now() -> datetime:
    """The current time, UTC. The one clock for everything written down."""
    return datetime.now(UTC)


def stamp(moment: datetime | None = None) -> str:
    """ISO 8601 in UTC, to the millisecond, e.g. `2026-11-30T18:49:31.123Z`."""
    text = (moment or now()).astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def new_id(prefix: str) -> str:
    """A short id that sorts by time, e.g. `op-20261130-184931-3f9a`."""
    return f"{prefix}-{now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401 (any JSON value)
    """Write `value` so that a reader, or a crash, sees the old file or the new one, never half."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    # Half a surrogate pair (a file name may hold one) is no UTF-8; escaped, it is still JSON.
    write_text(path, text.encode("utf-8", "backslashreplace").decode())


def write_text(path: Path, text: str) -> None:
    """Atomic like `write_json`. Creates the folder; the file is readable by its owner only.

    Raises:
        SettingsError: The folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}")
    with writing(path):
        private_folder(path.parent)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def private_folder(path: Path) -> None:
    """Make a folder and those above it, each readable by its owner only where it is new.

    Raises:
        OSError: It cannot be made.
    """
    # mkdir(parents=True) would give the mode to the last one alone.
    for folder in [*reversed(path.parents), path]:
        if not folder.exists():
            folder.mkdir(exist_ok=True, mode=0o700)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write below the state directory into what the operator can do about it.

    Raises:
        SettingsError: Something in the block could not be written.
    """
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written.",
            words=str(error),
            next_action="Set VLLM_DEVOPS_STATE_DIR to a folder you own, on a disk with room.",
        ) from error


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None where there is no such file.

    Raises:
        DevopsError: The file is there but cannot be read as a JSON object (damaged or foreign).
    """
    look = f"Look at {path}; move it away if it is of no use."
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DevopsError(
            f"{path} cannot be read.", words=error.strerror or str(error), next_action=look
        ) from error
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DevopsError(
            f"{path} is not readable as JSON.",
            words=str(error),
            cause="It was damaged or edited by hand.",
            next_action=look,
        ) from error
    if not isinstance(value, dict):
        raise DevopsError(f"{path} does not hold a JSON object.", next_action=look)
    return value


class StateDir:
    """The state directory and the places in it.

    Args:
        root: Its path; made on first write, readable by its owner only.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser()

    @property
    def plans(self) -> Path:
        """One file a plan."""
        return self.root / "plans"

    @property
    def operations(self) -> Path:
        """One folder an operation."""
        return self.root / "operations"

    @property
    def benchmarks(self) -> Path:
        """One folder a benchmark run."""
        return self.root / "benchmarks"

    @property
    def audit_log(self) -> Path:
        """Append-only JSON lines."""
        return self.root / "audit.jsonl"

    @property
    def server_log(self) -> Path:
        """Tracebacks of unexpected errors, by error id."""
        return self.root / "server.log"

    def identity(self) -> str:
        """What tells the servers of this directory from those of others: 8 hex digits, kept here.

        Raises:
            SettingsError: It cannot be written.
        """
        path = self.root / "identity"
        if not path.exists():
            new = self.root / f".identity.{secrets.token_hex(4)}"
            write_text(new, secrets.token_hex(4))
            with writing(path):
                # Of two servers that begin together, one names both.
                with contextlib.suppress(FileExistsError):
                    path.hardlink_to(new)
                new.unlink()
        return path.read_text(encoding="utf-8")

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[bool]:
        """Whether this is the only one that does something, among all servers of this directory.

        Nobody waits: who comes second is told so. It ends with the block, or with the process.

        Args:
            what: What is done, as part of a file's name.

        Raises:
            SettingsError: The directory cannot be written.
        """
        path = self.root / "locks" / what
        with writing(path):
            private_folder(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def deployments(self, target: str) -> Path:
        """Records of what a target without a control plane of its own runs."""
        return self.root / "deployments" / target

    def ensure(self) -> Path:
        """Make the directory and return it.

        Raises:
            SettingsError: It cannot be made or written.
        """
        with writing(self.root):
            private_folder(self.root)
            probe = self.root / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        return self.root


def ends_at(began_s: float, labels: Mapping[str, str]) -> str | None:
    """When a deployment is no longer wanted, by its label; None where it has no end.

    Args:
        began_s: Unix seconds; 0: unknown, or it does not run.
        labels: Its labels or tags.
    """
    minutes = labels.get(TTL_LABEL, "")
    if not began_s or not minutes.isdecimal():
        return None
    return stamp(datetime.fromtimestamp(began_s + 60 * int(minutes), UTC))

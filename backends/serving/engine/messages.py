"""What the coordinator and its workers say to each other, and how it travels.

A message is a pickled object with its length in front, on a socket that both ends own alone: a
pair made before the worker is started. Workers run on the coordinator's word and end when that
socket closes, however the coordinator came to its end.
"""

from __future__ import annotations

import io
import pickle  # between a process and the children it has started, on a socket of their own
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import socket

    from backends.serving.engine.signing import AwsCredentials
    from backends.serving.engine.target import Target
    from backends.serving.loadgen import RequestRecord

_LENGTH = struct.Struct("!Q")

Part = Literal["warm-up", "measuring"]


# ---- to a worker --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """Open the connections, and say `Opened` when each stands or has failed."""

    target: Target
    lanes: int
    run_id: str
    timeout_s: float


@dataclass(frozen=True)
class Authorise:
    """Send these headers with every request from now on, or sign with these credentials."""

    headers: bytes = b""
    credentials: AwsCredentials | None = None


@dataclass(frozen=True)
class Drive:
    """Make ready to send requests until all have ended, say `Ready`, and wait for `Go`.

    Attributes:
        part: What they are for.
        requests: (index, body) of each, in the order they are sent.
        send_at_ns: When each is to be sent, counted from the start; None for a closed loop.
        max_error_rate: As in `LevelSpec`, for this worker's own requests.
        error_floor: How many requests must have ended before that is asked.
        turns: So many requests in a row make a conversation; see `turns.Conversations`.
    """

    part: Part
    requests: list[tuple[int, bytes]]
    send_at_ns: list[int] | None
    max_error_rate: float
    error_floor: int
    turns: int = 1


@dataclass(frozen=True)
class Go:
    """Start at this instant of the monotonic clock, as every worker does."""

    start_ns: int


@dataclass(frozen=True)
class Stop:
    """Stop sending, say what there is, and end the part."""


# ---- from a worker ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """The connections stand, or do not."""

    stamped: bool
    failures: list[str]


@dataclass(frozen=True)
class Ready:
    """The connections stand again, and the requests are here."""


@dataclass
class Report:
    """What a worker has to say about the part under way.

    Attributes:
        part: Which part.
        records: Requests that ended since the last report.
        done: Requests that have ended so far.
        is_last: Whether the part has ended, with `end` filled in.
        end: What is known at the end of a part.
    """

    part: Part
    records: list[RequestRecord]
    done: int
    is_last: bool = False
    end: PartEnd | None = None


@dataclass
class PartEnd:
    """A worker's account of a part: its own times and troubles. See `LevelRaw` for the meanings."""

    unfinished: int = 0
    cut_short: str = ""
    lag_ns: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    cpu_with_parsing_s: float = 0.0
    peak_memory_mib: float = 0.0
    run_delay_s: float | None = None
    reads: int = 0
    unstamped_reads: int = 0
    clock_step_ns: int = 0
    reconnects: int = 0
    resent: int = 0
    turned_away: int = 0
    crowded_parses: int = 0
    out_of_files: int = 0


Message = Open | Authorise | Drive | Go | Stop | Opened | Ready | Report


def packed(message: Message) -> bytes:
    """Return a message as it travels."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def receive_first(channel: socket.socket) -> Message | None:
    """Wait for one message on a blocking socket and take not a byte more; None when it closes."""
    head = _exactly(channel, _LENGTH.size)
    body = _exactly(channel, _LENGTH.unpack(head)[0]) if head else b""
    return pickle.loads(body) if body else None  # noqa: S301 - see the module's docstring


def _exactly(channel: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = channel.recv(size - len(got))
        if not part:
            return b""
        got += part
    return got


class _Reader(pickle.Unpickler):
    """Makes what messages are made of, and nothing else: a worker may be on another machine."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 (a class)
        """Refuse whatever is no part of a message.

        Raises:
            UnpicklingError: It is not.
        """
        if module in _MODULES or (module, name) in _OTHERS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a message")


_MODULES = frozenset(
    {
        "backends.serving.engine.messages",
        "backends.serving.engine.signing",
        "backends.serving.engine.target",
        "backends.serving.loadgen",
        "backends.serving.wire",
    }
)
_OTHERS = frozenset({("array", "array"), ("array", "_array_reconstructor")})


class Unpacker:
    """Puts messages together from whatever parts they arrive in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes and return the messages they complete."""
        self._buffer += data
        out: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
            del self._buffer[:end]
            out.append(_Reader(io.BytesIO(body)).load())
        return out

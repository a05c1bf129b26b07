"""A lane: one connection after the other, one request at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.serving.engine.answer import AnswerReader
    from backends.serving.engine.link import Link


class Lane:
    """Carries one request at a time.

    Attributes:
        number: Its place among the worker's lanes.
        link: Its connection; None while there is none.
        receive: The socket's own `recvmsg`, of the connection that stands.
        hot: Whether reads of the socket may be kept without looking at them: a stream is under
            way, not encrypted, with nothing left to send.
        streaming: Whether the answer under way is a stream that ends with its last chunk.
        reads: What has come of the answer and is not handed in yet.
        stamps: When, one for each read.
        seen: How many reads there were at the last look.
        reader: Of the answer under way.
        request: The bytes of the request under way; empty when the lane is free.
        deadline_ns: When the request is given up.
        used: Requests its connection has carried.
        idle_since_ns: Since when it has been free.
        is_resend: Whether the request has been sent before, on a connection that was gone.
        opened_ns: When its connection was begun.
    """

    __slots__ = (
        "deadline_ns",
        "hot",
        "idle_since_ns",
        "is_resend",
        "link",
        "number",
        "opened_ns",
        "reader",
        "reads",
        "receive",
        "request",
        "seen",
        "stamps",
        "streaming",
        "used",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.link: Link | None = None
        self.receive: Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, object]]
        self.hot = False
        self.streaming = False
        self.reads: list[bytes] = []
        self.stamps: list[bytes] = []
        self.seen = 0
        self.reader: AnswerReader | None = None
        self.request = b""
        self.deadline_ns = 0
        self.used = 0
        self.idle_since_ns = 0
        self.is_resend = False
        self.opened_ns = 0

    @property
    def is_free(self) -> bool:
        """Whether it carries no request."""
        return self.reader is None

    @property
    def is_up(self) -> bool:
        """Whether its connection stands."""
        return self.link is not None and self.link.is_up

    def take(self, reader: AnswerReader, request: bytes) -> None:
        """Begin with a request."""
        self.reader, self.request = reader, request
        self.reads, self.stamps = [], []
        self.seen = 0
        self.hot = self.streaming = self.is_resend = False

    def hand_in(self) -> tuple[list[bytes], list[bytes]]:
        """Give away what has come, with its stamps, and begin anew."""
        handed = self.reads, self.stamps
        self.reads, self.stamps, self.seen = [], [], 0
        return handed

    def release(self, at_ns: int) -> None:
        """Be done with the request."""
        self.used += 1
        self.reader, self.request = None, b""
        self.reads, self.stamps = [], []
        self.hot = self.streaming = False
        self.idle_since_ns = at_ns


def is_endless_stream(first_read: bytes) -> bool:
    """Whether the first read of an answer begins a chunked one of status 200 that stays open.

    Such an answer ends with its last chunk, which can be seen from the bytes of a read alone;
    every other answer is read in full as it comes.
    """
    head, blank, _ = first_read.partition(b"\r\n\r\n")
    if not blank or not head.startswith(b"HTTP/1.1 200"):
        return False
    lowered = head.lower()
    return b"\r\ntransfer-encoding: chunked" in lowered and b"\r\nconnection: close" not in lowered

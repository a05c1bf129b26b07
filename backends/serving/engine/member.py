"""One worker as the coordinator sees it, wherever it runs: spoken to, heard, ended.

A worker reads the monotonic clock of its own machine. Where that is another than ours, what is said
to it and what it says is put from one clock onto the other here, so that everything above lives on
one clock; what lies between two of a worker's times is untouched by that.
"""

from __future__ import annotations

import abc
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from backends.serving.engine.messages import Go, Message, Report, Unpacker

if TYPE_CHECKING:
    from backends.serving.engine.target import Target
    from backends.serving.loadgen import RequestRecord

Heard = Callable[["Member", Message], None]


class Member(abc.ABC):
    """One worker of a crew.

    Args:
        number: Its place in the crew, from 1.
        heard: Called with every message that comes.

    Attributes:
        place: Where it runs, in words; empty for this machine.
        is_gone: Whether it has closed its end.
        heard_at_s: When it said something last.
        lead_s: How long a word may take to reach it, besides what it takes on this machine.
        ahead_ns: How far its clock is ahead of ours.
        clock_error_ns: How far off `ahead_ns` may be.
    """

    def __init__(self, number: int, heard: Heard) -> None:
        self.number = number
        self.place = ""
        self.is_gone = False
        self.heard_at_s = time.monotonic()
        self.lead_s = 0.0
        self.ahead_ns = 0
        self.clock_error_ns = 0
        self._heard = heard
        self._unpacker = Unpacker()

    @abc.abstractmethod
    async def start(self, target: Target) -> None:
        """Start the worker, where `target` can be reached from."""

    @abc.abstractmethod
    async def say(self, message: Message) -> None:
        """Send a message; a worker that is gone does not hear it."""

    @abc.abstractmethod
    async def end(self) -> None:
        """End the worker, at once, and leave nothing of it."""

    @abc.abstractmethod
    async def how_it_ended(self) -> str:
        """Return in words how a worker that is gone has come to its end."""

    def its_target(self, target: Target) -> Target:
        """Return the target as this worker reaches it."""
        return target

    def on_its_clock(self, message: Message) -> Message:
        """Return what we say, in its time."""
        if isinstance(message, Go) and self.ahead_ns:
            return replace(message, start_ns=message.start_ns + self.ahead_ns)
        return message

    def take(self, data: bytes) -> None:
        """Take bytes that it has sent, and pass on the messages they complete, in our time."""
        self.heard_at_s = time.monotonic()
        for message in self._unpacker.feed(data):
            if isinstance(message, Report) and self.ahead_ns:
                for record in message.records:
                    put_back(record, self.ahead_ns)
            self._heard(self, message)


def put_back(record: RequestRecord, ahead_ns: int) -> None:
    """Put a record from a clock that is ahead onto the one it is ahead of."""
    record.sent_ns -= ahead_ns
    record.end_ns -= ahead_ns
    if record.first_byte_ns:
        record.first_byte_ns -= ahead_ns
    if record.intended_ns is not None:
        record.intended_ns -= ahead_ns
    if record.first_answer_ns is not None:
        record.first_answer_ns -= ahead_ns
    record.content_ns = array("q", [at_ns - ahead_ns for at_ns in record.content_ns])

"""What has been received and not been read yet: parsing, put off to when nothing else is to do.

Reading sockets on time matters, parsing does not: the times are in the stamps. A thousand streams
that end in the same step would otherwise hold up the next ones' first tokens by the time it takes
to parse a thousand answers (80 ms where it was measured).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from backends.serving.engine.clock import stamps_ns

if TYPE_CHECKING:
    from backends.serving.engine.answer import AnswerReader

MOST_READS = 200_000
"""Some 70 MB of events. Beyond it parsing goes first, and the level says so."""


class Backlog:
    """Parts of answers waiting to be read, first come first read.

    Args:
        offset_ns: What turns stamps into the monotonic clock.
        on_end: Told of an answer that has been read to its end.
        on_part: Told of an answer that has been read so far.
    """

    def __init__(
        self,
        offset_ns: int,
        on_end: Callable[[AnswerReader], None],
        on_part: Callable[[AnswerReader], None],
    ) -> None:
        self.reads = 0
        self._offset_ns = offset_ns
        self._on_end = on_end
        self._on_part = on_part
        self._parts: deque[tuple[AnswerReader, list[bytes], list[bytes], bool]] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(
        self, reader: AnswerReader, reads: list[bytes], stamps: list[bytes], *, is_end: bool
    ) -> None:
        """Leave a part of an answer to be read later."""
        reader.waiting += 1
        self.reads += len(reads)
        self._parts.append((reader, reads, stamps, is_end))

    def read_one(self) -> None:
        """Read the part that has waited longest."""
        reader, reads, stamps, is_end = self._parts.popleft()
        self.reads -= len(reads)
        reader.waiting -= 1
        times_ns = stamps_ns(stamps, self._offset_ns)
        reader.feed(reads, times_ns)
        if not is_end:
            self._on_part(reader)
            return
        if times_ns:
            reader.record.end_ns = times_ns[-1]
        self._on_end(reader)

    def read_now(self, reader: AnswerReader, reads: list[bytes], stamps: list[bytes]) -> None:
        """Read a part at once, after whatever of the same answer is still waiting."""
        while reader.waiting:
            self.read_one()
        reader.feed(reads, stamps_ns(stamps, self._offset_ns))

    def read_all(self, until_ns: int, now_ns: Callable[[], int]) -> None:
        """Read everything that waits, or as much as there is time for."""
        while self._parts and now_ns() < until_ns:
            self.read_one()

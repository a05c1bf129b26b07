"""How much time the call that is being answered has left, for whatever it goes through.

Each part of a call has its own bound, but a call that meets several slow ones in a row must end in
time too, and say what was done, before it is cut off from outside.
"""

from __future__ import annotations

import time
from contextvars import ContextVar

from backends.core.errors import UnavailableError

_ends_at: ContextVar[float | None] = ContextVar("call_ends_at", default=None)


def begin_call(seconds: float) -> None:
    """The call that is answered from here on may take so many seconds."""
    _ends_at.set(time.monotonic() + seconds)


def left_s(at_most: float) -> float:
    """Seconds that one part of this call may take; never below 0.

    Args:
        at_most: What it may take by itself. A worker has no call to end, and gets all of it.
    """
    ends_at = _ends_at.get()
    if ends_at is None:
        return at_most
    return max(0.0, min(at_most, ends_at - time.monotonic()))


def part_s(what: str, at_most: float, *, least_s: float) -> float:
    """Seconds for one part of this call.

    Args:
        what: What is about to begin, for the message.
        at_most: What it may take by itself.
        least_s: With less than that it is not begun.

    Raises:
        UnavailableError: The call has no time left for it; it was not begun.
    """
    seconds = left_s(at_most)
    if seconds < least_s:
        raise UnavailableError(
            f"No time was left for {what}; it was not started.",
            cause="What came before it in this call was slow.",
            next_action="Call again: what is done already is found and not done twice.",
        )
    return seconds

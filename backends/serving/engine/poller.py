"""Waiting for sockets: epoll where there is one, poll elsewhere (macOS), behind the same calls."""

from __future__ import annotations

import math
import select

_MOST_AT_ONCE = 4096
FINE_S = 0.002


class Poller:
    """Waits for what file descriptors are registered for."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._poll = None if self._epoll is not None else select.poll()
        at_hand = self._epoll or self._poll
        assert at_hand is not None  # noqa: S101 - one of the two was made
        self.register = at_hand.register
        self.modify = at_hand.modify
        self.unregister = at_hand.unregister

    def wait(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return (descriptor, events) of all that is ready within a time, maybe none.

        epoll counts in milliseconds; the last two of a wait go through select, which counts in
        microseconds (the epoll itself is a descriptor that becomes readable), so that a send of an
        open loop leaves at its time without spinning. poll rounds up to a millisecond.
        """
        if self._epoll is None:
            assert self._poll is not None  # noqa: S101 - one of the two was made
            return self._poll.poll(math.ceil(timeout_s * 1000))
        if timeout_s >= FINE_S:
            return self._epoll.poll(timeout_s - FINE_S / 2, _MOST_AT_ONCE)
        if timeout_s > 0:
            select.select((self._epoll,), (), (), timeout_s)
        return self._epoll.poll(0, _MOST_AT_ONCE)

    def close(self) -> None:
        """Let go of it."""
        if self._epoll is not None:
            self._epoll.close()

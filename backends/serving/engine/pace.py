"""When to sleep between reads: with stamps from the kernel, reading seldom costs no exactness.

Waking up is what a reader of few bytes pays for most (20 to 100 microseconds of CPU in a virtual
machine, against 8 for a read). Where the kernel stamps, several tokens of different streams can
wait for one wake-up; only two tokens of the same stream must not, so the nap is a fraction of the
ITL. It is also a fraction of a whole answer's time, because a stream that has ended stays empty
until it is noticed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

LONGEST_NAP_NS = 2_000_000
SHORTEST_NAP_NS = 200_000
"""Below it a nap saves nothing."""

NAP_SHARE_OF_ITL = 5
NAP_SHARE_OF_ANSWER = 200
FEWEST_READS_A_NAP = 2.0
"""With fewer reads than this to share a wake-up, waiting for each is cheaper."""


class Pace:
    """Decides how long to nap from what the answers so far have shown.

    Args:
        stamped: Whether the kernel stamps what it receives; without that, every nap is an error.

    Attributes:
        nap_ns: How long to sleep before looking for reads; 0 to wait for each.
    """

    def __init__(self, *, stamped: bool) -> None:
        self.nap_ns = 0
        self._stamped = stamped
        self._itl_ns = 0.0
        self._answer_ns = 0.0

    def saw(self, content_ns: Sequence[int], sent_ns: int) -> None:
        """Learn from an answer: fast ones count at once, slow ones by and by."""
        if len(content_ns) < 2:
            if content_ns:
                self._answer_ns = _lean(self._answer_ns, content_ns[-1] - sent_ns)
            return
        recent = content_ns[-64:]
        gaps = sorted(after - before for before, after in itertools.pairwise(recent))
        self._itl_ns = _lean(self._itl_ns, gaps[len(gaps) // 10])
        self._answer_ns = _lean(self._answer_ns, content_ns[-1] - sent_ns)

    def settle(self, reads_per_s: float) -> None:
        """Decide anew, for a rate of reads."""
        nap_ns = 0.0
        if self._stamped and self._answer_ns:
            itl_ns = self._itl_ns or self._answer_ns
            nap_ns = min(
                LONGEST_NAP_NS, itl_ns / NAP_SHARE_OF_ITL, self._answer_ns / NAP_SHARE_OF_ANSWER
            )
        worth_it = nap_ns >= SHORTEST_NAP_NS and reads_per_s * nap_ns / 1e9 >= FEWEST_READS_A_NAP
        self.nap_ns = int(nap_ns) if worth_it else 0


def _lean(known: float, seen: float) -> float:
    return seen if not known or seen < known else known + (seen - known) / 16

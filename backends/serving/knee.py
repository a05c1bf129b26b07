"""The search for the knee: the highest load that still meets an objective, in few steps.

Load is doubled from the lowest until one misses, then the gap between the last that met and the
first that missed is halved. Nothing here measures; it says what to measure next.
"""

from __future__ import annotations

DOUBLE = 2.0


class KneeSearch:
    """Asks for loads and is told whether they met the objective.

    Args:
        low: The first load tried, above 0.
        high: The highest load tried, not below `low`.
        whole: Whether loads are whole numbers (concurrency) or not (requests per second).
        tolerance: Where not whole: the search ends once the first miss is at most this share above
            the best, above 0.
        max_steps: Most loads tried, 1 or more.

    Raises:
        ValueError: The bounds make no sense.
    """

    def __init__(
        self, low: float, high: float, *, whole: bool, tolerance: float = 0.05, max_steps: int = 12
    ) -> None:
        if not 0 < low <= high:
            raise ValueError("a search needs 0 < low <= high")
        if tolerance <= 0 or max_steps < 1:
            raise ValueError("a search needs a tolerance above 0 and at least one step")
        self._low, self._high = low, high
        self._whole = whole
        self._tolerance = tolerance
        self._left = max_steps
        self.best: float | None = None
        self.miss: float | None = None
        self.ended_early = False

    def next_load(self) -> float | None:
        """Return the load to try next, or None when the search is over."""
        if self.settled:
            return None
        if self._left == 0:
            self.ended_early = True
            return None
        self._left -= 1
        if self.best is None:
            return self._low
        if self.miss is None:
            return min(self._high, self.best * DOUBLE)
        middle = (self.best + self.miss) / 2
        return float(int(middle)) if self._whole else middle

    def tell(self, load: float, *, meets: bool) -> None:
        """Take in what a load that was asked for showed."""
        if meets:
            self.best = load if self.best is None else max(self.best, load)
        else:
            self.miss = load if self.miss is None else min(self.miss, load)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to learn: no load met, the highest did, or the gap is small."""
        if self.miss is None:
            return self.best is not None and self.best >= self._high
        if self.best is None:
            return True
        if self._whole:
            return self.miss - self.best <= 1
        return self.miss <= self.best * (1 + self._tolerance)

    def most_steps(self) -> int:
        """Return how many more loads may be asked for at most."""
        return self._left

"""What the last look at all deployments showed nobody to use: every answer says so."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class UsageWatch:
    """What the last look at all deployments showed, for the idle rule.

    Attributes:
        looked_at: When, monotonic seconds; 0: never.
        idle: What nobody uses and costs money, in words.
    """

    looked_at: float = 0.0
    idle: list[str] = field(default_factory=list)

    def forget(self, where: str) -> None:
        """Leave out a deployment that was changed since: the look no longer holds for it.

        Args:
            where: `target/name`.
        """
        self.idle = [said for said in self.idle if not said.startswith(f"{where},")]

    def warnings(self) -> list[str]:
        """One warning where the last look found something that nobody uses."""
        if not self.idle:
            return []
        ago = (time.monotonic() - self.looked_at) / 60
        when = "now" if ago < 1 else f"{ago:.0f} min ago"
        return [f"Costs money and nobody uses it (looked {when}): {'; '.join(self.idle)}."]

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

    def warnings(self) -> list[str]:
        """One warning where the last look found something that nobody uses."""
        if not self.idle:
            return []
        ago = (time.monotonic() - self.looked_at) / 60
        when = "now" if ago < 1 else f"{ago:.0f} min ago"
        return [f"Costs money and nobody uses it (looked {when}): {'; '.join(self.idle)}."]

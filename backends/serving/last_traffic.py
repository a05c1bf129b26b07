"""When an engine last had work, from its own log.

vLLM writes its averages every ten seconds, and nothing while it is idle (LoggingStatLogger in
v1/metrics/loggers.py, 0.32.0, 2026-11-30): its newest such line that names any work is the last
traffic, to ten seconds. Health checks and reads of metrics make none; chat requests of ours do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

_AVERAGES = re.compile(
    r"(?P<at>\d\d-\d\d \d\d:\d\d:\d\d) .*Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
    r"Avg generation throughput: (?P<generation>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs"
)
# Enough for a day of averages of an engine that nobody polls.
READ_LINES = 2000
# Clocks of two machines differ a little.
_AHEAD = timedelta(hours=1)


def last_traffic_at(lines: Sequence[str], now: datetime) -> float | None:
    """When the engine last worked, by the newest lines of its log.

    Args:
        lines: Of vLLM's log, oldest first; its times are UTC and name no year.
        now: The present.

    Returns:
        Unix seconds, at most `now`; None where these lines do not tell.
    """
    for line in reversed(lines):
        found = _AVERAGES.search(line)
        if found is None or not any(
            float(found[figure]) for figure in ("prompt", "generation", "running")
        ):
            continue
        for year in (now.year, now.year - 1):
            try:
                at = datetime.strptime(f"{year}-{found['at']}", "%Y-%m-%d %H:%M:%S")
            except ValueError:  # 29 February of another year
                continue
            at = at.replace(tzinfo=UTC)
            if at <= now + _AHEAD:
                return min(at, now).timestamp()
    return None

"""When an engine last had work, as its log tells."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from backends.serving.last_traffic import last_traffic_at

NOW = datetime(2027, 1, 1, 0, 30, tzinfo=UTC)


def averages(at: str, prompt: float = 0.0, generation: float = 0.0, running: int = 0) -> str:
    return (
        f"(APIServer pid=7) INFO {at} [loggers.py:335] Engine 000: Avg prompt throughput: "
        f"{prompt} tokens/s, Avg generation throughput: {generation} tokens/s, Running: {running} "
        "reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 9.4%"
    )


ACCESS = 'INFO:     127.0.0.1:4 - "GET /metrics HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    ("lines", "then"),
    [
        ([averages("01-01 00:10:00", 17.1), ACCESS], datetime(2027, 1, 1, 0, 10, tzinfo=UTC)),
        ([averages("12-31 23:50:00", running=2)], datetime(2026, 12, 31, 23, 50, tzinfo=UTC)),
        (
            [averages("01-01 00:10:00", 1.0, 9.0), averages("01-01 00:20:00"), ACCESS],
            datetime(2027, 1, 1, 0, 10, tzinfo=UTC),
        ),
        ([averages("01-01 00:30:05", 1.0)], NOW),
        ([averages("02-29 10:00:00", 1.0)], None),
        ([ACCESS, averages("01-01 00:20:00")], None),
        ([], None),
    ],
    ids=["this year", "last year", "idle averages", "a clock ahead", "no day", "only idle", "none"],
)
def test_the_newest_averages_that_name_work_are_the_last_traffic(
    lines: list[str], then: datetime | None
) -> None:
    """Checks of health and averages of nothing are none; what is not told is unknown."""
    assert last_traffic_at(lines, NOW) == (then.timestamp() if then else None)

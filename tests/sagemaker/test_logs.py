"""Logs by pages: from the end for people, from the beginning and once for a start."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from backends.clouds.aws import Aws
from backends.core.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from backends.sagemaker.logs import LogReader
from backends.serving.startup_log import Phase
from tests.sagemaker.made import READY, STARTING

BEGAN = 1000.0
STREAM = "v-1/i-new"


class FakeLogs:
    """CloudWatch Logs of one group, three events a page, as it pages."""

    def __init__(self) -> None:
        self.streams: dict[str, list[tuple[float, str]]] = {}
        self.reads = 0
        self.error: Exception | None = None

    def write(self, *lines: str, at: float = BEGAN + 1, stream: str = STREAM) -> None:
        entries = self.streams.setdefault(stream, [])
        entries += [(at + index, line) for index, line in enumerate(lines)]

    async def call(self, service: str, operation: str, region: str, **p: Any) -> dict[str, Any]:
        assert (service, region) == ("logs", "us-east-2")
        await asyncio.sleep(0)  # somebody else's turn, as with a real request
        self.reads += 1
        if self.error is not None:
            raise self.error
        if operation == "describe_log_streams":
            if not self.streams:
                raise NotFoundError("The specified log group does not exist.")
            return {
                "logStreams": [
                    {
                        "logStreamName": name,
                        "creationTime": int(entries[0][0] * 1000),
                        "lastEventTimestamp": int(entries[-1][0] * 1000),
                    }
                    for name, entries in self.streams.items()
                ]
            }
        entries = [
            {"timestamp": int(at * 1000), "message": text}
            for at, text in self.streams[p["logStreamName"]]
            if at * 1000 >= p["startTime"]
        ]
        size = min(p["limit"], 3)
        if p["startFromHead"]:
            at = int(p.get("nextToken", "f0")[1:])
            page = entries[at : at + size]
            return {"events": page, "nextForwardToken": f"f{at + len(page)}"}
        end = int(p.get("nextToken", f"b{len(entries)}")[1:])
        start = max(0, end - size)
        return {"events": entries[start:end], "nextBackwardToken": f"b{start}"}


@pytest.fixture
def logs() -> FakeLogs:
    return FakeLogs()


@pytest.fixture
def reader(logs: FakeLogs) -> LogReader:
    return LogReader(cast("Aws", logs))


async def test_the_newest_lines_are_read_from_the_end_page_by_page(
    logs: FakeLogs, reader: LogReader
) -> None:
    logs.write(*(f"line {number}" for number in range(20)))
    entries, _ = await reader.lines("us-east-2", "g", "container", 7, BEGAN)
    assert [entry.text for entry in entries] == [f"line {number}" for number in range(13, 20)]
    assert logs.reads == 4


async def test_what_an_earlier_endpoint_of_the_name_said_is_not_this_ones(
    logs: FakeLogs, reader: LogReader
) -> None:
    logs.write("RuntimeError: CUDA out of memory", at=100.0, stream="v-0/i-old")
    assert (await reader.sight("us-east-2", "g", BEGAN)).stream == ""
    logs.write(*STARTING)
    sight = await reader.sight("us-east-2", "g", BEGAN, fresh=True)
    assert sight.stream == STREAM
    assert sight.progress.failure is None


async def test_a_start_is_read_once_and_then_only_what_is_new(
    logs: FakeLogs, reader: LogReader
) -> None:
    logs.write(*STARTING)
    first = await reader.sight("us-east-2", "g", BEGAN)
    assert first.progress.phase is Phase.LOADING_WEIGHTS
    again = await reader.sight("us-east-2", "g", BEGAN)
    assert again == first
    logs.write(READY[-1], at=BEGAN + 60)
    after = await reader.sight("us-east-2", "g", BEGAN, fresh=True)
    assert after.progress.phase is Phase.READY
    assert after.progress.lines == len(READY)


async def test_two_looks_at_once_read_no_line_twice(logs: FakeLogs, reader: LogReader) -> None:
    logs.write(*STARTING)
    looks = (reader.sight("us-east-2", "g", BEGAN, fresh=True) for _ in range(4))
    assert {sight.progress.lines for sight in await asyncio.gather(*looks)} == {len(STARTING)}


async def test_no_log_group_is_no_container_and_no_error(logs: FakeLogs, reader: LogReader) -> None:
    sight = await reader.sight("us-east-2", "g", BEGAN)
    assert (sight.stream, sight.problem) == ("", "")
    with pytest.raises(NotFoundError):
        await reader.lines("us-east-2", "g", "container", 10, BEGAN)


async def test_logs_that_may_not_be_read_are_a_problem_not_silence(
    logs: FakeLogs, reader: LogReader
) -> None:
    logs.error = PermissionDeniedError("not allowed")
    assert "permission_denied" in (await reader.sight("us-east-2", "g", BEGAN)).problem


async def test_instances_are_mixed_in_time_order_on_request(
    logs: FakeLogs, reader: LogReader
) -> None:
    logs.write("a1", "a2", at=BEGAN + 1, stream="v/a")
    logs.write("b1", at=BEGAN + 1.5, stream="v/b")
    entries, streams = await reader.lines("us-east-2", "g", "all", 10, BEGAN)
    assert [entry.text for entry in entries] == ["a1", "b1", "a2"]
    assert streams == 2
    assert "[a] a1" in entries[0].shown(of_several=True)
    with pytest.raises(InvalidInputError, match="container, all"):
        await reader.lines("us-east-2", "g", "gpu", 10, BEGAN)

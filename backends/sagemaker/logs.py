"""CloudWatch Logs: what an endpoint's containers said, and how a start goes.

The log group of an endpoint's name outlives the endpoint, so what was said before the present one
was made is never taken for its own. Streams are read from their end, a page at a time; only a
start is read from its beginning, and only what is new of it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from backends.core.errors import DevopsError, InvalidInputError, NotFoundError
from backends.core.owned import together
from backends.serving.startup_log import StartupLog, StartupProgress

if TYPE_CHECKING:
    from backends.clouds.aws import Aws

SOURCES = ("container", "all")
"""What `source` may be: the newest container's log, or those of all instances together."""

_LOOK_EVERY_S = 2.0
_PAGE = 1000
_MAX_LINES = 2000
_MAX_PAGES = 20
_MAX_STREAMS = 10
# Clocks of the endpoint's record and of its containers differ by a little. A stream is an
# instance's, and an instance comes after its endpoint.
SLACK_S = 1.0


@dataclass(frozen=True)
class Entry:
    """One line: when, of which instance, and what."""

    at: float
    stream: str
    text: str

    def shown(self, *, of_several: bool) -> str:
        """The line with its time, and its instance where several are mixed."""
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        who = f" [{self.stream.rpartition('/')[2]}]" if of_several else ""
        return f"{when}Z{who} {self.text}"


@dataclass(frozen=True)
class Sight:
    """What the logs tell of an endpoint's newest container.

    Attributes:
        progress: How its start went.
        began_at: When it was first heard of, Unix seconds; 0: never.
        last_at: When it was last heard of; 0: never.
        stream: Its log stream; empty: there is none, so no container was ever started.
        problem: Why the logs could not be read; empty if they could.
    """

    progress: StartupProgress = field(default_factory=StartupProgress)
    began_at: float = 0.0
    last_at: float = 0.0
    stream: str = ""
    problem: str = ""


@dataclass
class _Following:
    """A start that is being read: what has been read of it, and where to go on."""

    stream: str
    log: StartupLog = field(default_factory=StartupLog)
    token: str | None = None
    began_at: float = 0.0
    last_at: float = 0.0


class LogReader:
    """Reads the logs of endpoints.

    Args:
        aws: The account.
        slack_s: How much earlier than what it belongs to a stream may seem to be, in seconds.
    """

    def __init__(self, aws: Aws, slack_s: float = SLACK_S) -> None:
        self._aws = aws
        self._slack_s = slack_s
        self._followed: dict[tuple[str, str], _Following] = {}
        self._sights: dict[tuple[str, str], tuple[float, float, Sight]] = {}
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}

    async def streams(self, region: str, group: str, since: float) -> list[str]:
        """The log streams that were made since then, newest first.

        Raises:
            NotFoundError: There is no such log group: no container was ever started.
        """
        answer = await self._aws.call(
            "logs",
            "describe_log_streams",
            region,
            logGroupName=group,
            orderBy="LastEventTime",
            descending=True,
            limit=50,
        )
        found = [
            item
            for item in answer.get("logStreams", ())
            if (item.get("creationTime") or 0) >= (since - self._slack_s) * 1000
        ]
        found.sort(
            key=lambda item: (item.get("creationTime") or 0, item["logStreamName"]), reverse=True
        )
        return [str(item["logStreamName"]) for item in found]

    async def lines(
        self, region: str, group: str, source: str, lines: int, since: float
    ) -> tuple[list[Entry], int]:
        """The newest lines of one source, oldest first, and how many streams they come from.

        Args:
            region: Where.
            group: Its log group.
            source: One of `SOURCES`.
            lines: At most so many, up to 2,000.
            since: Not older than the endpoint, Unix seconds.

        Raises:
            InvalidInputError: There is no such source.
            NotFoundError: There is no log yet.
        """
        if source not in SOURCES:
            raise InvalidInputError("source", "is unknown.", allowed=", ".join(SOURCES))
        streams = await self.streams(region, group, since)
        chosen = streams[: 1 if source == "container" else _MAX_STREAMS]
        wanted = min(lines, _MAX_LINES)
        parts = await together(
            *(self._tail(region, group, stream, wanted, since) for stream in chosen)
        )
        merged = sorted((entry for part in parts for entry in part), key=lambda entry: entry.at)
        return merged[-wanted:], len(chosen)

    async def sight(self, region: str, group: str, since: float, *, fresh: bool = False) -> Sight:
        """How the newest container is doing, from at most one look in two seconds.

        Never raises for logs that cannot be read: `problem` says why, and what was seen stays.

        Args:
            region: Where.
            group: Its log group.
            since: When the endpoint, or its last update, was begun, Unix seconds.
            fresh: Look now, whatever was seen a moment ago.
        """
        key = (region, group)
        # Two who read on from the same place would each feed the same lines.
        async with self._turns.setdefault(key, asyncio.Lock()):
            return await self._sight(key, since, fresh=fresh)

    async def _sight(self, key: tuple[str, str], since: float, *, fresh: bool) -> Sight:
        region, group = key
        until, began, kept = self._sights.get(key, (0.0, 0.0, Sight()))
        if began != since:
            kept = Sight()
        elif not fresh and time.monotonic() < until:
            return kept
        try:
            sight = await self._look(region, group, since)
        except NotFoundError:
            sight = Sight()
        except DevopsError as error:
            return Sight(
                kept.progress, kept.began_at, kept.last_at, kept.stream,
                problem=f"{error.code}: {error.message}",
            )  # fmt: skip
        self._sights[key] = (time.monotonic() + _LOOK_EVERY_S, since, sight)
        return sight

    async def _look(self, region: str, group: str, since: float) -> Sight:
        streams = await self.streams(region, group, since)
        if not streams:
            return Sight()
        key = (region, group)
        following = self._followed.get(key)
        if following is None or following.stream != streams[0]:
            following = self._followed[key] = _Following(streams[0])
        for _ in range(_MAX_PAGES):
            answer = await self._events(
                region, group, following.stream, since,
                forward=True, token=following.token, limit=_PAGE,
            )  # fmt: skip
            token = answer.get("nextForwardToken")
            for event in answer.get("events", ()):
                at = event["timestamp"] / 1000
                following.began_at = following.began_at or at
                following.last_at = at
                following.log.feed_line(str(event["message"]), at_s=at)
            # CloudWatch gives the same token again at a stream's end; pages before it may be empty.
            if token is None or token == following.token:
                break
            following.token = token
            if not answer.get("events"):
                break
        return Sight(
            following.log.progress, following.began_at, following.last_at, following.stream
        )

    async def _tail(
        self, region: str, group: str, stream: str, wanted: int, since: float
    ) -> list[Entry]:
        """The last lines of a stream, page by page towards its beginning."""
        entries: list[Entry] = []
        token: str | None = None
        for _ in range(_MAX_PAGES):
            answer = await self._events(
                region, group, stream, since,
                forward=False, token=token, limit=min(wanted - len(entries), _PAGE),
            )  # fmt: skip
            page = [
                Entry(event["timestamp"] / 1000, stream, str(event["message"]).rstrip())
                for event in answer.get("events", ())
            ]
            entries = [*page, *entries]
            before = answer.get("nextBackwardToken")
            if len(entries) >= wanted or before is None or before == token or not page:
                break
            token = before
        return entries[-wanted:]

    async def _events(
        self,
        region: str,
        group: str,
        stream: str,
        since: float,
        *,
        forward: bool,
        token: str | None,
        limit: int,
    ) -> dict[str, Any]:
        params: dict[str, Any] = {"nextToken": token} if token else {}
        return await self._aws.call(
            "logs",
            "get_log_events",
            region,
            logGroupName=group,
            logStreamName=stream,
            startTime=int((since - self._slack_s) * 1000),
            startFromHead=forward,
            limit=limit,
            **params,
        )

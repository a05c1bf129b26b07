"""CloudWatch Logs: groups, streams and events, written by whatever runs, read page by page."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable

from backends.rehearsal.cloud.aws.account import Account
from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service, page
from backends.rehearsal.cloud.web import Json

_MAX_EVENTS = 20_000
_PAGE = 50
_EVENTS_PAGE = 10_000


class CloudWatchLogs:
    """The log events of the account; in memory, newest last.

    Args:
        account: For ARNs.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._groups: dict[tuple[str, str], Json] = {}
        self._numbers = itertools.count(1)

    def service(self) -> Service:
        """The service's handlers."""
        return Service("logs", "json", "logs").on(
            DescribeLogGroups=self._describe_groups,
            DescribeLogStreams=self._describe_streams,
            GetLogEvents=self._get,
            FilterLogEvents=self._filter,
            DeleteLogGroup=self._delete,
            PutRetentionPolicy=self._retain,
        )

    def write(self, region: str, group: str, stream: str, lines: Iterable[str]) -> None:
        """Write lines, making group and stream with the first."""
        moment = int(time.time() * 1000)
        known = self._groups.get((region, group))
        if known is None:
            arn = self._account.arn("logs", region, f"log-group:{group}")
            known = self._groups[region, group] = {
                "shown": {
                    "logGroupName": group,
                    "creationTime": moment,
                    "metricFilterCount": 0,
                    "arn": f"{arn}:*",
                    "storedBytes": 0,
                    "logGroupArn": arn,
                    "logGroupClass": "STANDARD",
                },
                "streams": {},
            }
        events = known["streams"].setdefault(stream, [])
        for line in lines:
            for text in line.split("\n"):
                events.append(
                    {
                        "timestamp": moment,
                        "message": text,
                        "ingestionTime": moment,
                        "eventId": f"{next(self._numbers):056d}",
                    }
                )
        del events[:-_MAX_EVENTS]

    def clear(self) -> None:
        """Forget everything."""
        self._groups.clear()

    # ------------------------------------------------------------------------- inside

    def _group(self, call: Call) -> Json:
        name = call.text("logGroupName") or call.text("logGroupIdentifier").rpartition(":")[2]
        group = self._groups.get((call.region, name))
        if group is None:
            raise AwsError("ResourceNotFoundException", "The specified log group does not exist.")
        return group

    def _describe_groups(self, call: Call) -> Json:
        prefix, pattern = call.text("logGroupNamePrefix"), call.text("logGroupNamePattern")
        found = [
            group["shown"]
            for (region, name), group in sorted(self._groups.items())
            if region == call.region and name.startswith(prefix) and pattern in name
        ]
        return page(call, found, "logGroups", _PAGE, next_name="nextToken")

    def _describe_streams(self, call: Call) -> Json:
        group = self._group(call)
        name = group["shown"]["logGroupName"]
        found = [
            {
                "logStreamName": stream,
                "creationTime": events[0]["timestamp"],
                "firstEventTimestamp": events[0]["timestamp"],
                "lastEventTimestamp": events[-1]["timestamp"],
                "lastIngestionTime": events[-1]["ingestionTime"],
                "arn": self._account.arn(
                    "logs", call.region, f"log-group:{name}:log-stream:{stream}"
                ),
                "storedBytes": 0,
            }
            for stream, events in sorted(group["streams"].items())
            if stream.startswith(call.text("logStreamNamePrefix"))
        ]
        if call.text("orderBy") == "LastEventTime":
            found.sort(key=lambda item: int(item["lastEventTimestamp"]))
        if call.params.get("descending"):
            found.reverse()
        return page(call, found, "logStreams", _PAGE, next_name="nextToken")

    def _get(self, call: Call) -> Json:
        group = self._group(call)
        events = group["streams"].get(call.text("logStreamName"))
        if events is None:
            raise AwsError("ResourceNotFoundException", "The specified log stream does not exist.")
        events = [item for item in events if _within(call, item)]
        size = min(call.number("limit", _EVENTS_PAGE), _EVENTS_PAGE)
        token = call.text("nextToken")
        # A token says a direction and the event it stands before or after.
        if token.startswith("f/"):
            start = _after(events, token[2:])
        elif token.startswith("b/"):
            start = max(_before(events, token[2:]) - size, 0)
            size = min(size, _before(events, token[2:]))
        else:
            start = 0 if call.params.get("startFromHead") else max(len(events) - size, 0)
        found = events[start : start + size]
        first = found[0]["eventId"] if found else token[2:] or "0"
        last = found[-1]["eventId"] if found else token[2:] or "0"
        return {
            "events": [_plain(item) for item in found],
            "nextForwardToken": f"f/{last}",
            "nextBackwardToken": f"b/{first}",
        }

    def _filter(self, call: Call) -> Json:
        group = self._group(call)
        names = call.params.get("logStreamNames")
        prefix = call.text("logStreamNamePrefix")
        wanted = _pattern(call.text("filterPattern"))
        found = [
            {"logStreamName": stream, **item}
            for stream, events in group["streams"].items()
            if (not names or stream in names) and stream.startswith(prefix)
            for item in events
            if _within(call, item) and wanted(item["message"])
        ]
        found.sort(key=lambda item: (item["timestamp"], item["eventId"]))
        size = min(call.number("limit", _EVENTS_PAGE), _EVENTS_PAGE)
        token = call.text("nextToken")
        if call.params.get("startFromHead") is False:
            found.reverse()
        start = _after(found, token) if token else 0
        shown = found[start : start + size]
        result: Json = {"events": shown, "searchedLogStreams": []}
        if start + size < len(found):
            result["nextToken"] = shown[-1]["eventId"]
        return result

    def _delete(self, call: Call) -> Json:
        group = self._group(call)
        del self._groups[call.region, group["shown"]["logGroupName"]]
        return {}

    def _retain(self, call: Call) -> Json:
        self._group(call)["shown"]["retentionInDays"] = call.number("retentionInDays", 7)
        return {}


def _within(call: Call, event: Json) -> bool:
    moment = event["timestamp"]
    return bool(
        int(call.params.get("startTime") or 0)
        <= moment
        < int(call.params.get("endTime") or moment + 1)
    )


def _after(events: list[Json], event_id: str) -> int:
    for index, item in enumerate(events):
        if item["eventId"] == event_id:
            return index + 1
    return 0 if event_id == "0" else len(events)


def _before(events: list[Json], event_id: str) -> int:
    for index, item in enumerate(events):
        if item["eventId"] == event_id:
            return index
    return 0


def _plain(event: Json) -> Json:
    return {key: value for key, value in event.items() if key != "eventId"}


class _Terms:
    def __init__(self, text: str) -> None:
        words = [a or b for a, b in re.findall(r'"([^"]+)"|(\S+)', text)]
        self._all = [word for word in words if not word.startswith(("-", "?"))]
        self._any = [word[1:] for word in words if word.startswith("?")]
        self._none = [word[1:] for word in words if word.startswith("-")]

    def __call__(self, message: str) -> bool:
        return (
            all(word in message for word in self._all)
            and not any(word in message for word in self._none)
            and (not self._any or any(word in message for word in self._any))
        )


def _pattern(text: str) -> _Terms:
    """A filter pattern of terms: all of them, `-none`, `?any`. JSON patterns are not played."""
    if text.startswith(("{", "[")):
        raise AwsError("InvalidParameterException", "Invalid filter pattern")
    return _Terms(text)

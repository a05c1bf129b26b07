"""CloudWatch: what endpoints measured, and alarms on it."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account

INVOCATIONS = "AWS/SageMaker"
USAGE = "/aws/sagemaker/Endpoints"
COPY_USAGE = "/aws/sagemaker/InferenceComponents"

_KEPT = 20_000
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)$")

_Dimensions = tuple[tuple[str, str], ...]
_Series = tuple[str, str, str, _Dimensions]
_Point = tuple[float, float, str]


class Metrics:
    """Data points by region, namespace, name and dimensions; in memory.

    Args:
        account: Where alarms are kept.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._points: dict[_Series, deque[_Point]] = {}
        self._busy_s: dict[tuple[str, str, str], float] = {}
        self._sampled: dict[tuple[str, str, str], float] = {}

    def service(self) -> Service:
        """The service's handlers."""
        return Service("monitoring", "json", "cloudwatch").on(
            GetMetricData=self._data,
            GetMetricStatistics=self._statistics,
            ListMetrics=self._list,
            PutMetricData=self._put,
            PutMetricAlarm=self._put_alarm,
            DescribeAlarms=self._describe_alarms,
            DeleteAlarms=self._delete_alarms,
            SetAlarmState=self._set_alarm,
        )

    # ------------------------------------------------------------------------- writing

    def invoked(
        self, region: str, endpoint: str, variant: str, component: str = "", **values: float
    ) -> None:
        """Write down an invocation: latencies in microseconds, counts as they are.

        Args:
            region: Where.
            endpoint: The endpoint.
            variant: Its variant.
            component: The inference component that was asked for; empty: none.
            values: What was measured, by CloudWatch's names.
        """
        for name, value in values.items():
            unit = "Microseconds" if name.endswith("Latency") else "None"
            self._add(region, INVOCATIONS, name, _of(endpoint, variant), value, unit)
            if component:
                self._add(region, INVOCATIONS, name, of_component(component), value, unit)
        place = (region, endpoint, variant)
        self._busy_s[place] = self._busy_s.get(place, 0) + values.get("ModelLatency", 0) / 1e6

    def without_capacity(self, region: str, component: str) -> None:
        """Write down that a component was invoked that had no copy."""
        name = "NoCapacityInvocationFailures"
        self._add(region, INVOCATIONS, name, of_component(component), 1.0, "Count")

    def since(self, region: str, name: str, dimensions: _Dimensions, began: float) -> float:
        """The sum of what was written of a metric of `AWS/SageMaker` since then, Unix seconds."""
        points = self._points.get((region, INVOCATIONS, name, dimensions), ())
        return sum(value for at, value, _ in points if at >= began)

    def sample(
        self,
        region: str,
        endpoint: str,
        variant: str,
        *,
        gpu_memory_share: float,
        component: str = "",
    ) -> None:
        """Write down what a variant's instances, or a component's copies, use since last time."""
        place = (region, endpoint, variant)
        now = time.monotonic()
        passed = max(now - self._sampled.get(place, now - 1), 1e-3)
        self._sampled[place] = now
        busy = min(self._busy_s.pop(place, 0.0) / passed, 1.0)
        for name, value in {
            "CPUUtilization": 4 + 90 * busy * random.uniform(0.9, 1.0),
            "MemoryUtilization": random.uniform(37, 39),
            "GPUUtilization": 100 * busy,
            "GPUMemoryUtilization": 100 * gpu_memory_share + random.uniform(0.5, 1.5),
            "DiskUtilization": random.uniform(21, 22),
        }.items():
            self._add(region, USAGE, name, _of(endpoint, variant), round(value, 3), "Percent")
            if component and name != "DiskUtilization":
                part = f"{name}Normalized"
                self._add(
                    region, COPY_USAGE, part, of_component(component), round(value, 3), "Percent"
                )

    def alarm_state(self, region: str, name: str) -> str:
        """An alarm's state; `INSUFFICIENT_DATA` where there is no such alarm."""
        alarm = self._account.region(region)["alarms"].get(name)
        return str(alarm["StateValue"]) if alarm else "INSUFFICIENT_DATA"

    def clear(self) -> None:
        """Forget all data points."""
        self._points.clear()
        self._busy_s.clear()
        self._sampled.clear()

    def _add(
        self,
        region: str,
        namespace: str,
        name: str,
        dimensions: _Dimensions,
        value: float,
        unit: str,
    ) -> None:
        series = self._points.setdefault((region, namespace, name, dimensions), deque(maxlen=_KEPT))
        series.append((time.time(), value, unit))

    # ------------------------------------------------------------------------- reading

    def _found(self, call: Call, metric: Json) -> list[_Point]:
        dimensions = tuple(
            sorted((item["Name"], item["Value"]) for item in metric.get("Dimensions") or [])
        )
        key = (call.region, str(metric["Namespace"]), str(metric["MetricName"]), dimensions)
        return list(self._points.get(key, ()))

    def _data(self, call: Call) -> Json:
        begin, end = float(call.params["StartTime"]), float(call.params["EndTime"])
        results = []
        for query in call.params.get("MetricDataQueries") or []:
            stat = query.get("MetricStat")
            if stat is None:
                raise AwsError(
                    "ValidationError", "Expressions are not part of the rehearsal; use MetricStat."
                )
            if query.get("ReturnData") is False:
                continue
            points = _by_period(
                self._found(call, stat["Metric"]), begin, end, int(stat.get("Period") or 60)
            )
            values = [(at, _stat(stat["Stat"], found)) for at, found in points.items()]
            ascending = call.params.get("ScanBy") == "TimestampAscending"
            values.sort(reverse=not ascending)
            results.append(
                {
                    "Id": query["Id"],
                    "Label": query.get("Label") or stat["Metric"]["MetricName"],
                    "Timestamps": [at for at, _ in values],
                    "Values": [value for _, value in values],
                    "StatusCode": "Complete",
                }
            )
        return {"MetricDataResults": results, "Messages": []}

    def _statistics(self, call: Call) -> Json:
        points = self._found(call, call.params)
        wanted = [*(call.params.get("Statistics") or [])]
        extended = [*(call.params.get("ExtendedStatistics") or [])]
        shown = []
        period = int(call.params.get("Period") or 60)
        begin, end = float(call.params["StartTime"]), float(call.params["EndTime"])
        unit = points[0][2] if points else "None"
        for at, found in _by_period(points, begin, end, period).items():
            entry: Json = {"Timestamp": at, "Unit": unit}
            entry |= {name: _stat(name, found) for name in wanted}
            if extended:
                entry["ExtendedStatistics"] = {name: _stat(name, found) for name in extended}
            shown.append(entry)
        # The real service promises no order.
        random.shuffle(shown)
        return {"Label": call.text("MetricName"), "Datapoints": shown}

    def _list(self, call: Call) -> Json:
        wanted = {item["Name"]: item.get("Value") for item in call.params.get("Dimensions") or []}
        metrics = []
        for region, namespace, name, dimensions in self._points:
            have = dict(dimensions)
            if (
                region == call.region
                and call.text("Namespace") in {"", namespace}
                and call.text("MetricName") in {"", name}
                and all(key in have and value in {None, have[key]} for key, value in wanted.items())
            ):
                metrics.append(
                    {
                        "Namespace": namespace,
                        "MetricName": name,
                        "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions],
                    }
                )
        return {"Metrics": metrics}

    def _put(self, call: Call) -> Json:
        for item in call.params.get("MetricData") or []:
            dimensions = tuple(
                sorted((pair["Name"], pair["Value"]) for pair in item.get("Dimensions") or [])
            )
            series = self._points.setdefault(
                (call.region, call.text("Namespace"), str(item["MetricName"]), dimensions),
                deque(maxlen=_KEPT),
            )
            series.append((time.time(), float(item.get("Value") or 0), item.get("Unit") or "None"))
        return {}

    # ------------------------------------------------------------------------- alarms

    def _put_alarm(self, call: Call) -> Json:
        alarms = self._account.region(call.region)["alarms"]
        name = call.text("AlarmName")
        before = alarms.get(name, {})
        alarms[name] = {
            **call.params,
            "AlarmArn": self._account.arn("cloudwatch", call.region, f"alarm:{name}"),
            "StateValue": before.get("StateValue", "INSUFFICIENT_DATA"),
            "StateReason": before.get("StateReason", "Unchecked: Initial alarm creation"),
            "StateUpdatedTimestamp": self._account.seconds(),
        }
        alarms[name].pop("Tags", None)
        self._account.changed()
        return {}

    def _describe_alarms(self, call: Call) -> Json:
        alarms = self._account.region(call.region)["alarms"]
        names = call.params.get("AlarmNames")
        prefix, state = call.text("AlarmNamePrefix"), call.text("StateValue")
        found = [
            alarm
            for name, alarm in sorted(alarms.items())
            if (not names or name in names)
            and name.startswith(prefix)
            and state in {"", alarm["StateValue"]}
        ]
        return {"MetricAlarms": found, "CompositeAlarms": []}

    def _delete_alarms(self, call: Call) -> Json:
        alarms = self._account.region(call.region)["alarms"]
        for name in call.params.get("AlarmNames") or []:
            alarms.pop(name, None)
        self._account.changed()
        return {}

    def _set_alarm(self, call: Call) -> Json:
        alarm = self._account.region(call.region)["alarms"].get(call.text("AlarmName"))
        if alarm is None:
            raise AwsError("ResourceNotFound", "The named alarm does not exist.", 404)
        alarm["StateValue"] = call.text("StateValue")
        alarm["StateReason"] = call.text("StateReason")
        self._account.changed()
        return {}


def of_component(name: str) -> _Dimensions:
    """The dimensions of what is measured of an inference component."""
    return (("InferenceComponentName", name),)


def _of(endpoint: str, variant: str) -> _Dimensions:
    return (("EndpointName", endpoint), ("VariantName", variant))


def _by_period(
    points: list[_Point], begin: float, end: float, period: int
) -> dict[float, list[float]]:
    """Values by the period they fall into, which begins at whole minutes."""
    found: dict[float, list[float]] = {}
    for at, value, _ in points:
        if begin <= at < end:
            found.setdefault(at // period * period, []).append(value)
    return found


def _stat(name: str, values: list[float]) -> float:
    match name:
        case "Average":
            return statistics.fmean(values)
        case "Sum":
            return sum(values)
        case "Minimum":
            return min(values)
        case "Maximum":
            return max(values)
        case "SampleCount":
            return float(len(values))
    percentile = _PERCENTILE.match(name)
    if percentile is None:
        raise AwsError("ValidationError", f"The value {name} for parameter Stat is not supported.")
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * float(percentile[1]) / 100), len(ordered) - 1)]

"""Application Auto Scaling of inference components, acted on: to zero, from zero, and between.

Target tracking takes copies away after fifteen minutes without load (90 datapoints of ten seconds)
and adds some within half a minute of too much of it; an alarm on `NoCapacityInvocationFailures`
with a step policy is the only way out of zero (AWS's guide "Scale an endpoint to zero instances"
and its sample notebook; the delay of the alarm was measured as 67 s in July 2026).
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
import traceback
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.metrics import of_component
from backends.rehearsal.cloud.aws.wire import AwsError
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account
    from backends.rehearsal.cloud.aws.components import Components
    from backends.rehearsal.cloud.aws.metrics import Metrics
    from backends.rehearsal.cloud.cloud import Cloud

DIMENSION = "sagemaker:inference-component:DesiredCopyCount"
PREFIX = "inference-component/"

_IDLE_S = 900.0
# Whoever looks on, with a CLI that takes a second for each word, must have time to do so.
_LEAST_IDLE_S = 12.0
_TOO_MUCH_S = 30.0
_ALARM_S = 67.0
_EVERY_S = 10.0
_LEAST_EVERY_S = 0.05


class ComponentScaling:
    """Looks at every scalable target of a component, again and again, and acts.

    Args:
        account: Targets, policies and alarms.
        cloud: Speed.
        components: What is scaled.
        metrics: What alarms look at.
    """

    def __init__(
        self, account: Account, cloud: Cloud, components: Components, metrics: Metrics
    ) -> None:
        self._account = account
        self._cloud = cloud
        self._components = components
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None
        self._began: dict[tuple[str, str], float] = {}
        self._busy_since: dict[tuple[str, str], float] = {}
        self._looked: dict[tuple[str, str], float] = {}
        self._rung: dict[tuple[str, str], float] = {}

    def check(self, region: str, resource: str, least: int) -> None:
        """Check a component that is to be registered.

        Raises:
            AwsError: There is none, or it may not have so few copies.
        """
        name = resource.removeprefix(PREFIX)
        if self._components.find(region, name) is None:
            raise AwsError(
                "ValidationException", f"SageMaker inference component not found: {name}"
            )
        if least < 0:
            raise AwsError("ValidationException", "Minimum capacity must not be negative.")

    def registered(self, region: str, resource: str) -> None:
        """Begin to look at a target: what happened before does not count."""
        self._began[region, resource] = time.monotonic()
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name="component scaling")

    def resume(self) -> None:
        """Take up what was registered before the rehearsal was started again."""
        for region in self._account.known_regions():
            for resource in self._account.region(region)["targets"]:
                if resource.startswith(PREFIX):
                    self.registered(region, resource)

    async def clear(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._began.clear()
        self._busy_since.clear()
        self._looked.clear()
        self._rung.clear()

    # ------------------------------------------------------------------------- inside

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(max(self._cloud.after(_EVERY_S), _LEAST_EVERY_S))
            try:
                for region in self._account.known_regions():
                    kept = self._account.region(region)
                    self._ring(region, kept)
                    for resource, target in list(kept["targets"].items()):
                        if resource.startswith(PREFIX):
                            self._track(region, resource, target, kept)
            except Exception:  # noqa: BLE001 (a fault of the rehearsal must show as one)
                traceback.print_exc(file=sys.stderr)

    def _ring(self, region: str, kept: Json) -> None:
        """Alarms whose action is a step policy: on after their delay, off when it is quiet."""
        policies = {str(item["PolicyARN"]): item for item in kept["policies"].values()}
        for name, alarm in list(kept["alarms"].items()):
            actions = [policies[arn] for arn in alarm.get("AlarmActions") or () if arn in policies]
            wanted = {item["Name"]: item["Value"] for item in alarm.get("Dimensions") or ()}
            component = wanted.get("InferenceComponentName")
            if not actions or component is None:
                continue
            key, now = (region, name), time.time()
            count = self._metrics.since(
                region,
                str(alarm["MetricName"]),
                of_component(component),
                self._looked.get(key, now - self._cloud.after(float(alarm.get("Period") or 60))),
            )
            self._looked[key] = now
            threshold = float(alarm.get("Threshold") or 0)
            above = str(alarm.get("ComparisonOperator")) == "GreaterThanThreshold"
            if count > threshold if above else count >= threshold:
                self._rung.setdefault(key, now)
            elif key not in self._rung:
                alarm["StateValue"] = "OK"
            if now - self._rung.get(key, now) >= self._cloud.after(_ALARM_S):
                del self._rung[key]
                alarm["StateValue"] = "ALARM"
                for policy in actions:
                    self._step(region, policy, kept)
                self._account.changed()

    def _step(self, region: str, policy: Json, kept: Json) -> None:
        resource = str(policy["ResourceId"])
        target = kept["targets"].get(resource)
        steps = (policy.get("StepScalingPolicyConfiguration") or {}).get("StepAdjustments") or []
        component = self._components.find(region, resource.removeprefix(PREFIX))
        if target is None or component is None or not steps:
            return
        now = int(component["RuntimeConfig"]["DesiredCopyCount"])
        self._to(region, resource, now + int(steps[0]["ScalingAdjustment"]), target)

    def _track(self, region: str, resource: str, target: Json, kept: Json) -> None:
        name = resource.removeprefix(PREFIX)
        component = self._components.find(region, name)
        if component is None:
            return
        desired = int(component["RuntimeConfig"]["DesiredCopyCount"])
        if desired < int(target["MinCapacity"]):
            self._to(region, resource, int(target["MinCapacity"]), target)
            return
        policy = next(
            (
                item["TargetTrackingScalingPolicyConfiguration"]
                for item in kept["policies"].values()
                if item["ResourceId"] == resource
                and item.get("TargetTrackingScalingPolicyConfiguration")
            ),
            None,
        )
        if policy is None or not desired:
            return
        key = (region, resource)
        inflight = self._components.inflight(region, name)
        wanted = math.ceil(inflight / float(policy["TargetValue"]))
        now = time.monotonic()
        if wanted > desired:
            since = self._busy_since.setdefault(key, now)
            if now - since >= self._cloud.after(_TOO_MUCH_S):
                self._to(region, resource, wanted, target)
            return
        self._busy_since.pop(key, None)
        asked = self._components.last_asked.get((region, name), 0.0)
        quiet_s = now - max(asked, self._began.get(key, now))
        # A copy that has just come up is not taken away for the quiet before it.
        up_s = time.time() - float(component["LastModifiedTime"])
        idle_s = max(self._cloud.after(_IDLE_S), _LEAST_IDLE_S)
        if not inflight and min(quiet_s, up_s) >= idle_s:
            self._to(region, resource, 0, target)

    def _to(self, region: str, resource: str, count: int, target: Json) -> None:
        """Set the number of copies within a target's bounds; what is busy is left for later."""
        bounded = min(max(count, int(target["MinCapacity"])), int(target["MaxCapacity"]))
        try:
            self._components.set_copies(region, resource.removeprefix(PREFIX), bounded)
        except AwsError:
            return

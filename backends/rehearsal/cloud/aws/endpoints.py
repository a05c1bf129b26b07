"""What becomes of an endpoint: Creating, InService, Updating, RollingBack, Failed, Deleting."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from backends.rehearsal.cloud.aws.catalogue import quota_name
from backends.rehearsal.cloud.aws.changes import Changes, Key
from backends.rehearsal.cloud.aws.endpoint_configs import held_of, hosts_components, types_of
from backends.rehearsal.cloud.aws.fleets import Fleets, Place
from backends.rehearsal.cloud.aws.hosting import Group, Hosting, HostingError
from backends.rehearsal.cloud.aws.wire import AwsError
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account
    from backends.rehearsal.cloud.aws.metrics import Metrics
    from backends.rehearsal.cloud.cloud import Cloud

_BUSY = {"Creating", "Updating", "RollingBack", "Deleting", "SystemUpdating"}
_HOLDS = _BUSY | {"InService"}
_DELETING_S = 30.0
_ROLLING_BACK_S = 60.0
_SAMPLE_S = 60.0
_LEAST_SAMPLE_S = 0.2
_POLL_S = 0.05


class Endpoints:
    """Endpoints, and the tasks in which they change.

    Args:
        account: Where they are kept.
        cloud: Speed.
        hosting: Their instances.
        metrics: Where their figures go.

    Attributes:
        fleets: Machines of variants that host inference components.
        sampled: Called whenever usage is written down, for what has usage of its own.
    """

    def __init__(self, account: Account, cloud: Cloud, hosting: Hosting, metrics: Metrics) -> None:
        self._account = account
        self._cloud = cloud
        self._hosting = hosting
        self._metrics = metrics
        self._groups: dict[Key, dict[str, Group]] = {}
        self._changes = Changes(account, "endpoint")
        self._sampler: asyncio.Task[None] | None = None
        self.sampled: Callable[[], None] = lambda: None
        self.fleets = Fleets(cloud, hosting, self._counted, self._check_quota)

    # ------------------------------------------------------------------------- requests

    def create(self, region: str, name: str, config: Json) -> Json:
        """Begin to create an endpoint.

        Raises:
            AwsError: Its quota is used up.
        """
        variants = config["ProductionVariants"]
        self._check_quota(region, held_of(variants))
        now = self._account.seconds()
        endpoint: Json = {
            "EndpointName": name,
            "EndpointArn": self._account.arn("sagemaker", region, f"endpoint/{name}"),
            "EndpointConfigName": config["EndpointConfigName"],
            "EndpointStatus": "Creating",
            "CreationTime": now,
            "LastModifiedTime": now,
            "ProductionVariants": [_new_variant(variant, now) for variant in variants],
            "_config": config,
        }
        self._account.region(region)["endpoints"][name] = endpoint
        self._begin((region, name), self._create((region, name)))
        return endpoint

    def update(
        self, region: str, name: str, config: Json, *, deployment: Json, retain: bool
    ) -> None:
        """Begin to replace an endpoint's configuration, blue by green.

        Raises:
            AwsError: It is busy, or the quota does not allow both at once.
        """
        endpoint = self.find(region, name)
        self._check_settled(endpoint)
        self._check_quota(region, held_of(config["ProductionVariants"]))
        self._set(endpoint, "Updating")
        self._begin((region, name), self._update((region, name), config, deployment, retain))

    def weigh(self, region: str, name: str, wanted: list[Json]) -> None:
        """Begin to change weights and numbers of instances.

        Raises:
            AwsError: It is busy, a variant is unknown, or the quota does not allow it.
        """
        endpoint = self.find(region, name)
        self._check_settled(endpoint, failed=False)
        variants = {item["VariantName"]: item for item in endpoint["ProductionVariants"]}
        more: dict[str, int] = {}
        for item in wanted:
            variant = variants.get(item["VariantName"])
            if variant is None:
                raise AwsError(
                    "ValidationException",
                    f"The requested variants [{item['VariantName']}] could not be found.",
                )
            count = item.get("DesiredInstanceCount")
            if count is not None:
                if int(count) < 1:
                    raise AwsError(
                        "ValidationException",
                        f"Desired instance count of variant {item['VariantName']} must be at "
                        "least 1.",
                    )
                rise = int(count) - int(variant["CurrentInstanceCount"])
                own = self._config_variant(endpoint, item["VariantName"])
                for kind in types_of(own) if rise > 0 else []:
                    more[kind] = more.get(kind, 0) + rise
        self._check_quota(region, more)
        for item in wanted:
            variant = variants[item["VariantName"]]
            if item.get("DesiredWeight") is not None:
                variant["DesiredWeight"] = float(item["DesiredWeight"])
            if item.get("DesiredInstanceCount") is not None:
                variant["DesiredInstanceCount"] = int(item["DesiredInstanceCount"])
        self._set(endpoint, "Updating")
        self._begin((region, name), self._weigh((region, name)))

    def delete(self, region: str, name: str) -> None:
        """Begin to delete an endpoint.

        Raises:
            AwsError: It is being created or changed.
        """
        endpoint = self.find(region, name)
        self._check_settled(endpoint)
        self._set(endpoint, "Deleting")
        self._begin((region, name), self._delete((region, name)))

    def find(self, region: str, name: str) -> Json:
        """An endpoint.

        Raises:
            AwsError: There is none of that name.
        """
        found: Json | None = self._account.region(region)["endpoints"].get(name)
        if found is None:
            arn = self._account.arn("sagemaker", region, f"endpoint/{name}")
            raise AwsError("ValidationException", f'Could not find endpoint "{arn}".')
        return found

    def groups(self, region: str, name: str) -> dict[str, Group]:
        """Its variants' instances, by variant."""
        return self._groups.get((region, name), {})

    def held(self, region: str) -> dict[str, int]:
        """Instances for which quota is held, by type."""
        held: dict[str, int] = {}
        for endpoint in self._account.region(region)["endpoints"].values():
            if endpoint["EndpointStatus"] not in _HOLDS:
                continue
            for variant in endpoint["_config"]["ProductionVariants"]:
                shown = _by_name(endpoint, variant["VariantName"])
                for kind in types_of(variant):
                    held[kind] = held.get(kind, 0) + int(shown["DesiredInstanceCount"])
        return held

    def pick(self, region: str, name: str, variant: str) -> tuple[str, Group] | None:
        """The variant that answers, by weight unless one is named; None where none can."""
        endpoint = self.find(region, name)
        groups = self.groups(region, name)
        if variant:
            return (variant, groups[variant]) if variant in groups else None
        weighed = [
            (item["VariantName"], float(item.get("CurrentWeight") or 0))
            for item in endpoint["ProductionVariants"]
            if item["VariantName"] in groups
        ]
        if not any(weight for _, weight in weighed):
            return None
        chosen = random.choices([item for item, _ in weighed], [weight for _, weight in weighed])[0]
        return chosen, groups[chosen]

    # ------------------------------------------------------------------------- the process

    def resume(self) -> None:
        """Take up what was there before the rehearsal was started again."""
        for region in self._account.known_regions():
            for name, endpoint in self._account.region(region)["endpoints"].items():
                key = (region, name)
                match endpoint["EndpointStatus"]:
                    case "Failed":
                        continue
                    case "Creating":
                        self._begin(key, self._create(key))
                    case "Deleting":
                        self._begin(key, self._delete(key))
                    case _:
                        self._begin(key, self._create(key, again=True))

    async def clear(self) -> None:
        """Stop everything at once; nothing is left to delete."""
        if self._sampler is not None:
            self._sampler.cancel()
            await asyncio.gather(self._sampler, return_exceptions=True)
            self._sampler = None
        await self._changes.stop()
        self._groups.clear()
        await self.fleets.clear()
        await self._hosting.stop_all()

    # ------------------------------------------------------------------------- changes

    def _begin(self, key: Key, work: Coroutine[Any, Any, None]) -> None:
        self._changes.begin(key, work)
        if self._sampler is None:
            self._sampler = asyncio.create_task(self._sample(), name="endpoint metrics")

    async def _create(self, key: Key, *, again: bool = False) -> None:
        endpoint = self.find(*key)
        config = endpoint["_config"]
        if not again:
            self._show(endpoint, config)
        try:
            self._groups[key] = await self._start(key, config, endpoint, again=again)
        except HostingError as error:
            endpoint["FailureReason"] = str(error)
            self._show(endpoint, config)
            self._set(endpoint, "Failed")
            return
        self._in_service(endpoint, config)

    async def _start(
        self, key: Key, config: Json, endpoint: Json, *, again: bool = False
    ) -> dict[str, Group]:
        """Start every variant of a configuration.

        Raises:
            HostingError: One did not come up; then none of them stays.
        """
        region, name = key
        variants = config["ProductionVariants"]

        def placed(variant: Json, kind: str) -> None:
            with contextlib.suppress(KeyError):
                _by_name(endpoint, variant["VariantName"])["_placed"] = kind

        tasks = [
            asyncio.ensure_future(
                self._hosting.start(
                    region,
                    name,
                    variant,
                    variant["_model"],
                    int(variant.get("InitialInstanceCount") or 1),
                    placed=functools.partial(placed, variant),
                    again=again,
                )
            )
            for variant in variants
            if not hosts_components(variant)
        ]
        empty = [
            asyncio.ensure_future(
                self.fleets.open((region, name, variant["VariantName"]), variant, again=again)
            )
            for variant in variants
            if hosts_components(variant)
        ]
        try:
            await asyncio.gather(*empty)
            groups = await asyncio.gather(*tasks)
        except BaseException:
            for task in (*tasks, *empty):
                task.cancel()
            await asyncio.gather(*empty, return_exceptions=True)
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Group):
                    await self._hosting.shrink(outcome, 0)
            raise
        return {group.variant["VariantName"]: group for group in groups}

    async def _update(self, key: Key, config: Json, deployment: Json, retain: bool) -> None:
        endpoint = self.find(*key)
        before = endpoint["_config"]
        shown = {item["VariantName"]: item for item in endpoint["ProductionVariants"]}
        if retain:
            for variant in config["ProductionVariants"]:
                old = shown.get(variant["VariantName"])
                if old is not None:
                    variant["InitialInstanceCount"] = old["DesiredInstanceCount"]
                    variant["InitialVariantWeight"] = old["DesiredWeight"]
        endpoint["PendingDeploymentSummary"] = {
            "EndpointConfigName": config["EndpointConfigName"],
            "StartTime": self._account.seconds(),
            "ProductionVariants": [
                _pending(variant, self._account.seconds())
                for variant in config["ProductionVariants"]
            ],
        }
        try:
            green = await self._start(key, config, {"ProductionVariants": []})
        except HostingError as error:
            await self._roll_back(endpoint, before, str(error))
            return
        alarm = await self._bake(key[0], deployment)
        if alarm:
            for group in green.values():
                await self._hosting.shrink(group, 0)
            await self._roll_back(
                endpoint, before, f"One or more configured alarm(s) breached: [{alarm}]. "
            )
            return
        blue = self._groups.get(key, {})
        self._groups[key] = green
        endpoint["_config"] = config
        endpoint["EndpointConfigName"] = config["EndpointConfigName"]
        endpoint.pop("FailureReason", None)
        if deployment:
            endpoint["LastDeploymentConfig"] = deployment
        self._in_service(endpoint, config)
        for group in blue.values():
            await self._hosting.shrink(group, 0)

    async def _bake(self, region: str, deployment: Json) -> str:
        """Watch the alarms for as long as both fleets stand; the one that went off, if any."""
        policy = deployment.get("BlueGreenUpdatePolicy") or {}
        routing = policy.get("TrafficRoutingConfiguration") or {}
        wait_s = float(policy.get("TerminationWaitInSeconds") or 0)
        if routing.get("Type") in {"CANARY", "LINEAR"}:
            wait_s += float(routing.get("WaitIntervalInSeconds") or 0)
        names = [
            str(item.get("AlarmName"))
            for item in (deployment.get("AutoRollbackConfiguration") or {}).get("Alarms") or []
        ]
        until = time.monotonic() + self._cloud.after(wait_s)
        while True:
            for name in names:
                if self._metrics.alarm_state(region, name) == "ALARM":
                    return name
            if time.monotonic() >= until:
                return ""
            await asyncio.sleep(_POLL_S)

    async def _roll_back(self, endpoint: Json, config: Json, reason: str) -> None:
        endpoint["FailureReason"] = reason
        self._set(endpoint, "RollingBack")
        await asyncio.sleep(self._cloud.after(_ROLLING_BACK_S))
        endpoint.pop("PendingDeploymentSummary", None)
        del config
        self._set(endpoint, "InService")

    async def _weigh(self, key: Key) -> None:
        endpoint = self.find(*key)
        groups = self._groups.get(key, {})
        for shown in endpoint["ProductionVariants"]:
            group = groups.get(shown["VariantName"])
            wanted = int(shown["DesiredInstanceCount"])
            if group is not None and wanted > len(group.instances):
                try:
                    await self._grow(key, shown, group, wanted)
                except HostingError as error:
                    shown["DesiredInstanceCount"] = shown["CurrentInstanceCount"]
                    await self._roll_back(endpoint, endpoint["_config"], str(error))
                    return
            elif group is not None:
                await self._hosting.shrink(group, wanted)
            shown["CurrentInstanceCount"] = wanted
            shown["CurrentWeight"] = shown["DesiredWeight"]
        self._count(endpoint)
        endpoint.pop("FailureReason", None)
        self._set(endpoint, "InService")

    async def _grow(self, key: Key, shown: Json, group: Group, wanted: int) -> None:
        """Start further instances of a variant.

        Raises:
            HostingError: They did not come up.
        """
        model = group.variant["_model"]
        del shown
        more = await self._hosting.start(
            *key,
            group.variant,
            model,
            wanted - len(group.instances),
            placed=lambda _: None,
        )
        group.instances += more.instances

    async def _delete(self, key: Key) -> None:
        for group in self._groups.pop(key, {}).values():
            await self._hosting.shrink(group, 0)
        for variant in self.find(*key)["_config"]["ProductionVariants"]:
            self.fleets.close((*key, variant["VariantName"]))
        await asyncio.sleep(self._cloud.after(_DELETING_S))
        self._account.region(key[0])["endpoints"].pop(key[1], None)

    # ------------------------------------------------------------------------- what is shown

    def _in_service(self, endpoint: Json, config: Json) -> None:
        endpoint.pop("PendingDeploymentSummary", None)
        groups = self._groups[_key(endpoint)]
        now = self._account.seconds()
        made = []
        for variant in config["ProductionVariants"]:
            shown = _new_variant(variant, now)
            if hosts_components(variant):
                made.append(shown)
                continue
            group = groups[variant["VariantName"]]
            shown["_placed"] = group.instance_type
            shown["CurrentInstanceCount"] = len(group.instances)
            shown["CurrentWeight"] = shown["DesiredWeight"]
            del shown["VariantStatus"]
            made.append(shown)
        endpoint["ProductionVariants"] = made
        self._count(endpoint)
        region, name = _key(endpoint)
        for shown in made:
            fleet = self.fleets.find((region, name, shown["VariantName"]))
            if fleet is not None:
                shown["CurrentWeight"] = shown["DesiredWeight"]
                del shown["VariantStatus"]
                count = len(fleet.machines)
                self._counted((region, name, shown["VariantName"]), count, count)
        self._set(endpoint, "InService")

    def _counted(self, place: Place, now: int, later: int) -> None:
        """Show how many machines a variant has that hosts inference components."""
        region, name, variant = place
        endpoint, fleet = self.find(region, name), self.fleets.find(place)
        shown = _by_name(endpoint, variant)
        shown["CurrentInstanceCount"], shown["DesiredInstanceCount"] = now, later
        types = [machine.type for machine in fleet.machines] if fleet else []
        for pool in shown.get("InstancePools") or []:
            pool["CurrentInstanceCount"] = types.count(pool["InstanceType"])
        self._account.changed()

    @staticmethod
    def _show(endpoint: Json, config: Json) -> None:
        for variant in config["ProductionVariants"]:
            shown = _by_name(endpoint, variant["VariantName"])
            shown["CurrentInstanceCount"] = 0

    @staticmethod
    def _count(endpoint: Json) -> None:
        """Which of the listed types the instances are of."""
        for shown in endpoint["ProductionVariants"]:
            for pool in shown.get("InstancePools") or []:
                here = pool["InstanceType"] == shown.get("_placed")
                pool["CurrentInstanceCount"] = shown["CurrentInstanceCount"] if here else 0

    def _set(self, endpoint: Json, status: str) -> None:
        endpoint["EndpointStatus"] = status
        endpoint["LastModifiedTime"] = self._account.seconds()
        self._account.changed()

    def _config_variant(self, endpoint: Json, name: str) -> Json:
        variants: list[Json] = endpoint["_config"]["ProductionVariants"]
        return next(item for item in variants if item["VariantName"] == name)

    @staticmethod
    def _check_settled(endpoint: Json, *, failed: bool = True) -> None:
        status = endpoint["EndpointStatus"]
        if status in _BUSY:
            raise AwsError(
                "ValidationException",
                f'Cannot update in-progress endpoint "{endpoint["EndpointArn"]}".',
            )
        if status == "Failed" and not failed:
            raise AwsError(
                "ValidationException",
                f'Cannot update endpoint "{endpoint["EndpointArn"]}" in Failed state.',
            )

    def _check_quota(self, region: str, more: dict[str, int]) -> None:
        held = self.held(region)
        quotas = self._account.region(region)["quotas"]
        for kind, count in more.items():
            name = quota_name(kind)
            limit, used = int(quotas.get(name, 0)), held.get(kind, 0)
            if used + count > limit:
                raise AwsError(
                    "ResourceLimitExceeded",
                    f"The account-level service limit '{name}' is {limit} Instances, with current "
                    f"utilization of {used} Instances and a request delta of {count} Instances. "
                    "Please use AWS Service Quotas to request an increase for this quota. If AWS "
                    "Service Quotas is not available, contact AWS support to request an increase "
                    "for this quota.",
                )

    # ------------------------------------------------------------------------- figures

    async def _sample(self) -> None:
        """Write down what instances use, once a minute of AWS's time."""
        while True:
            await asyncio.sleep(max(self._cloud.after(_SAMPLE_S), _LEAST_SAMPLE_S))
            self.sampled()
            for (region, name), groups in self._groups.items():
                for variant, group in groups.items():
                    if any(item.phase == "ready" for item in group.instances):
                        env = group.container.get("Environment") or {}
                        share = float(env.get("SM_VLLM_GPU_MEMORY_UTILIZATION") or 0.9)
                        self._metrics.sample(region, name, variant, gpu_memory_share=share)


def public(value: Any) -> Any:  # noqa: ANN401 (JSON)
    """What is shown of it: without what is only ours, which begins with an underscore."""
    if isinstance(value, dict):
        return {key: public(item) for key, item in value.items() if not key.startswith("_")}
    if isinstance(value, list):
        return [public(item) for item in value]
    return value


def _key(endpoint: Json) -> Key:
    return str(endpoint["EndpointArn"]).split(":")[3], str(endpoint["EndpointName"])


def _by_name(endpoint: Json, name: str) -> Json:
    for item in endpoint["ProductionVariants"]:
        if item["VariantName"] == name:
            found: Json = item
            return found
    raise KeyError(name)


def _new_variant(variant: Json, now: float) -> Json:
    shown: Json = {
        "VariantName": variant["VariantName"],
        "CurrentWeight": 0.0,
        "DesiredWeight": float(variant.get("InitialVariantWeight") or 1.0),
        "CurrentInstanceCount": 0,
        "DesiredInstanceCount": int(variant.get("InitialInstanceCount") or 1),
        "VariantStatus": [{"Status": "Creating", "StartTime": now}],
    }
    if hosts_components(variant):
        shown |= {
            key: variant[key]
            for key in ("ManagedInstanceScaling", "RoutingConfig")
            if key in variant
        }
    else:
        image = variant["_model"]["PrimaryContainer"]["Image"]
        shown["DeployedImages"] = [
            {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": now}
        ]
    if variant.get("InstancePools"):
        shown["InstancePools"] = [
            {"InstanceType": pool["InstanceType"], "CurrentInstanceCount": 0}
            for pool in variant["InstancePools"]
        ]
    return shown


def _pending(variant: Json, now: float) -> Json:
    kinds = types_of(variant)
    return {
        "VariantName": variant["VariantName"],
        "DesiredInstanceCount": int(variant.get("InitialInstanceCount") or 1),
        "DesiredWeight": float(variant.get("InitialVariantWeight") or 1.0),
        "VariantStatus": [{"Status": "Creating", "StartTime": now}],
        **({"InstanceType": kinds[0]} if kinds and not variant.get("InstancePools") else {}),
    }

"""The instances behind endpoints: where they are placed, how they start, and what they write."""

from __future__ import annotations

import asyncio
import fnmatch
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.rehearsal.cloud.aws.catalogue import INSTANCE_TYPES, offered
from backends.rehearsal.cloud.aws.container import Launch, launch
from backends.rehearsal.cloud.aws.endpoint_configs import types_of
from backends.rehearsal.cloud.log_store import SYSTEM
from backends.rehearsal.cloud.run.instance import Instance, Placement, StartFailedError
from backends.rehearsal.cloud.run.shape import Probe, Shape
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account
    from backends.rehearsal.cloud.aws.identity import Iam
    from backends.rehearsal.cloud.aws.logs import CloudWatchLogs
    from backends.rehearsal.cloud.cloud import Cloud

# About half an hour passes until SageMaker gives up on capacity (reference repository).
PROVISION_S = 1800.0
# What passes until a container that cannot be started has been tried often enough.
_CANNOT_START_S = 240.0
_HEALTH_S = 600.0
_POLL_S = 0.05
# After a restart of the rehearsal what was in service is so again at once.
_AT_ONCE = 1e6

NO_CAPACITY = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)
_PING = (
    "The primary container for production variant {variant} did not pass the ping health check. "
    "Please check CloudWatch logs for this endpoint."
)
_NO_PULL = (
    "The role '{role}' does not have permission to pull the image '{image}': "
    "ecr:GetAuthorizationToken, ecr:BatchGetImage and ecr:GetDownloadUrlForLayer are needed."
)


class HostingError(Exception):
    """A variant did not come up; the text is the endpoint's `FailureReason`."""


@dataclass
class Group:
    """The instances of one variant.

    Attributes:
        variant: As the configuration has it.
        container: The model's primary container.
        instance_type: Where it was placed.
        instances: Those that run.
        ended: Whether nothing is replaced any more.
        log_group: Where its containers write; empty: the endpoint's own group.
    """

    variant: Json
    container: Json
    instance_type: str
    instances: list[Instance] = field(default_factory=list)
    ended: bool = False
    log_group: str = ""

    def pick(self) -> Instance | None:
        """The instance with the fewest requests."""
        ready = [item for item in self.instances if item.phase == "ready"]
        return min(ready, key=lambda item: item.inflight, default=None)


class Hosting:
    """Places and starts instances.

    Args:
        account: What can be had.
        cloud: Speed and faults.
        iam: What roles may.
        logs: Where containers write.
    """

    def __init__(self, account: Account, cloud: Cloud, iam: Iam, logs: CloudWatchLogs) -> None:
        self._account = account
        self._cloud = cloud
        self._iam = iam
        self._logs = logs
        self._living: set[Instance] = set()
        self._replacing: set[asyncio.Task[None]] = set()

    async def start(
        self,
        region: str,
        endpoint: str,
        variant: Json,
        model: Json,
        count: int,
        *,
        placed: Callable[[str], None],
        again: bool = False,
        on: str = "",
        log_group: str = "",
    ) -> Group:
        """Start a variant.

        Args:
            region: Where.
            endpoint: Its endpoint's name.
            variant: As the configuration has it.
            model: What it serves.
            count: How many instances.
            placed: Told the type as soon as there is capacity.
            again: It was in service already, before the rehearsal was started again.
            on: The type of a machine that is there already; without it one is waited for.
            log_group: Where its containers write; empty: the endpoint's own group.

        Raises:
            HostingError: It did not come up.
        """
        began = time.monotonic()
        kind = on or await self.place(region, variant)
        group = Group(variant, model["PrimaryContainer"], kind, log_group=log_group)
        placed(group.instance_type)
        role = model["ExecutionRoleArn"]
        if not self._iam.may(role, "ecr:BatchGetImage"):
            await self._until(began, _CANNOT_START_S)
            raise HostingError(_NO_PULL.format(role=role, image=group.container["Image"]))
        await self.grow(region, endpoint, group, model, count, again=again)
        return group

    async def grow(
        self,
        region: str,
        endpoint: str,
        group: Group,
        model: Json,
        count: int,
        *,
        again: bool = False,
    ) -> None:
        """Start further instances of a group until it has `count`.

        Raises:
            HostingError: One did not come up; then none of the further ones stays.
        """
        missing = count - len(group.instances)
        tasks = [
            asyncio.ensure_future(self._instance(region, endpoint, group, model, again))
            for _ in range(missing)
        ]
        try:
            group.instances += await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Instance):
                    await self._stop(outcome)
            raise

    async def shrink(self, group: Group, count: int) -> None:
        """Stop instances of a group until it has `count`; with none, it is at its end."""
        group.ended = group.ended or count == 0
        while len(group.instances) > count:
            await self._stop(group.instances.pop())

    async def stop_all(self) -> None:
        """Stop every instance; none is replaced."""
        for task in list(self._replacing):
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        await asyncio.gather(*(self._stop(item) for item in list(self._living)))

    def shown(self) -> list[Json]:
        """Every instance, as the control API shows it."""
        return [item.shown() for item in self._living]

    async def place(self, region: str, variant: Json) -> str:
        """Wait for capacity; the type it was found of.

        Raises:
            HostingError: None came free.
        """
        wait_s = float(variant.get("VariantInstanceProvisionTimeoutInSeconds") or PROVISION_S)
        began = time.monotonic()
        while True:
            for name in types_of(variant):
                if self._free(region, name):
                    return name
            if time.monotonic() - began >= self._cloud.after(wait_s):
                raise HostingError(NO_CAPACITY)
            await asyncio.sleep(_POLL_S)

    # ------------------------------------------------------------------------- inside

    def _free(self, region: str, name: str) -> bool:
        return offered(region, name) and not any(
            fnmatch.fnmatchcase(f"{region}/{name}", pattern)
            for pattern in self._account.now.no_capacity
        )

    async def _instance(
        self, region: str, endpoint: str, group: Group, model: Json, again: bool
    ) -> Instance:
        """One instance, ready.

        Raises:
            HostingError: It did not become so.
        """
        began = time.monotonic()
        variant = group.variant
        troubles = [] if again else self._cloud.faults.trouble_for(endpoint)
        how = launch(endpoint, variant, group.container, group.instance_type, troubles)
        if how.plan is None:
            await self._until(began, _CANNOT_START_S)
            raise HostingError(how.refused)
        window_s = float(variant.get("ContainerStartupHealthCheckTimeoutInSeconds") or _HEALTH_S)
        instance = self._made(region, endpoint, group, model, how, window_s, again)
        self._living.add(instance)
        before_s = how.plan.before_container_s
        try:
            await instance.start("")
        except StartFailedError:
            self._living.discard(instance)
            # The container is tried again and again; SageMaker says so only when the window ends.
            await self._until(began, before_s + window_s)
            raise HostingError(_PING.format(variant=variant["VariantName"])) from None
        except BaseException:
            self._living.discard(instance)
            raise
        return instance

    def _made(
        self,
        region: str,
        endpoint: str,
        group: Group,
        model: Json,
        how: Launch,
        window_s: float,
        again: bool,
    ) -> Instance:
        assert how.plan is not None  # noqa: S101 (asked before)
        machine = INSTANCE_TYPES[group.instance_type]
        stream = f"{group.variant['VariantName']}/i-{secrets.token_hex(8)}"
        may_log = self._iam.may(model["ExecutionRoleArn"], "logs:PutLogEvents")
        written_to = group.log_group or f"/aws/sagemaker/Endpoints/{endpoint}"
        lines = _Lines(self._logs, region, written_to, stream, may_log)

        def ended(instance: Instance) -> None:
            self._living.discard(instance)
            if instance in group.instances:
                group.instances.remove(instance)
                if not group.ended:
                    again = asyncio.create_task(self._replace(region, endpoint, group, model))
                    self._replacing.add(again)
                    again.add_done_callback(self._replacing.discard)

        return Instance(
            Placement(endpoint, stream, {}, ""),
            Shape(
                image=str(group.container["Image"]),
                memory=machine.memory_gib * 2**30,
                gpus=machine.gpus,
                concurrency=1 << 20,
                port=8000,
                probe=Probe(period_s=window_s, threshold=1, kind="HTTP", path="/ping", given=True),
            ),
            how.plan,
            _AT_ONCE if again else self._cloud.speed,
            lines,
            ended,
        )

    async def _replace(self, region: str, endpoint: str, group: Group, model: Json) -> None:
        """Start a container anew in place of one that died; the endpoint stays InService."""
        while not group.ended:
            try:
                made = await self._instance(region, endpoint, group, model, again=False)
            except HostingError:
                continue
            if group.ended:
                await self._stop(made)
                return
            group.instances.append(made)
            return

    async def _stop(self, instance: Instance) -> None:
        self._living.discard(instance)
        await instance.stop()

    async def _until(self, began: float, seconds: float) -> None:
        """Wait until so much has passed at AWS since `began`."""
        await asyncio.sleep(max(began + self._cloud.after(seconds) - time.monotonic(), 0))


class _Lines:
    """Takes a container's lines to its log stream, which exists once the container has begun.

    The simulator says at once what it is, while the machine and the image are still on their way;
    that line is held back until the next one comes.
    """

    def __init__(
        self, logs: CloudWatchLogs, region: str, group: str, stream: str, allowed: bool
    ) -> None:
        self._logs = logs
        self._where = (region, group, stream)
        self._allowed = allowed
        self._held: list[str] | None = []

    def write(
        self,
        log: str,
        resource: Json,
        payload: str | Json,
        *,
        severity: str = "DEFAULT",
        labels: dict[str, str] | None = None,
        **fields: Any,  # noqa: ANN401 (as every log has it)
    ) -> None:
        """Write a line; what the platform says about an instance is not shown on SageMaker."""
        del resource, severity, labels, fields
        if log == SYSTEM or not self._allowed:
            return
        text = str(payload)
        if self._held is None:
            self._logs.write(*self._where, [text])
            return
        self._held.append(text)
        if len(self._held) > 1:
            lines, self._held = self._held, None
            self._logs.write(*self._where, lines)

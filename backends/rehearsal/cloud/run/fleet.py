"""The instances of all revisions: started for a deployment or on demand, stopped when idle."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import sys
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.rehearsal.cloud.log_store import run_resource
from backends.rehearsal.cloud.run.instance import (
    AUTOSCALING,
    MANUAL,
    ROLLOUT,
    Instance,
    Placement,
    StartFailedError,
)
from backends.rehearsal.cloud.run.names import Key
from backends.rehearsal.cloud.run.shape import Shape, read_scaling, read_shape
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.run.container import Containers
    from backends.rehearsal.cloud.run.services import Services

_REAP_EVERY_S = 0.2
_CAPACITY_POLL_S = 0.1

# A request waits for an instance this long, or 3.5 times what the last start took (Cloud Run's
# documented rule), whichever is more.
_LEAST_WAIT_S = 10.0
_STARTS_TO_WAIT = 3.5

NO_CAPACITY = (
    "GpuCapacityUnavailable",
    "The region has no GPU capacity for this revision at the moment. Cloud Run keeps trying.",
)


class NoInstanceError(Exception):
    """No instance came free in time (429), or none could be started (503).

    Args:
        started: Whether one was tried and failed.
    """

    def __init__(self, *, started: bool) -> None:
        super().__init__("no instance")
        self.started = started


@dataclass
class Pool:
    """Instances of one revision.

    Attributes:
        key: The revision.
        service: Its service.
        shape: What it asks for.
        instances: Those that start or run.
        waiting: Requests without an instance yet.
        least: Instances that must be up.
        most: Instances that may be.
        retired: Whether it gets no traffic any more.
        last_start_s: Seconds the last start took, in real time.
    """

    key: Key
    service: Key
    shape: Shape
    instances: list[Instance] = field(default_factory=list)
    waiting: deque[asyncio.Future[Instance]] = field(default_factory=deque)
    least: int = 0
    most: int = 1
    manual: bool = False
    retired: bool = False
    deploying: bool = False
    last_start_s: float = 0.0

    @property
    def starting(self) -> int:
        """Instances on their way."""
        return sum(instance.phase == "starting" for instance in self.instances)

    def hand_out(self) -> None:
        """Give free instances to requests that wait, first come first served."""
        while self.waiting:
            free = next((item for item in self.instances if item.has_room), None)
            if free is None:
                return
            request = self.waiting.popleft()
            if not request.done():
                free.inflight += 1
                free.last_used = time.monotonic()
                request.set_result(free)


class Fleet:
    """Starts and stops instances.

    Args:
        cloud: The parts of the cloud.
        containers: How containers are played.
    """

    def __init__(self, cloud: Cloud, containers: Containers) -> None:
        self._cloud = cloud
        self._containers = containers
        self._pools: dict[str, Pool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.services: Services

    # ------------------------------------------------------------------------- deployment

    def deploy(self, revision: Key, service: Key) -> None:
        """Bring a new revision up: start its first instance and tell how it went."""
        pool = self._pool(revision, service)
        pool.deploying = True
        self._spawn(self._deploy(pool))

    def resume(self) -> None:
        """After a restart of the cloud: go on with what was being deployed, and keep minimums."""
        for text, revision in list(self._cloud.world.revisions.items()):
            key = Key.parse(text)
            ready = next(
                item for item in revision["status"]["conditions"] if item["type"] == "Ready"
            )
            if ready["status"] == "Unknown":
                self.deploy(key, self.services.service_of(key.region, revision))
        for text in list(self._cloud.world.services):
            self.sync(Key.parse(text))
        self.services.resume()

    def sync(self, service: Key) -> None:
        """Fit the instances of a service to its traffic and scaling."""
        record = self._cloud.world.services.get(str(service))
        if record is None:
            return
        scaling = read_scaling(record)
        shares = self.services.serving(record)
        for name, revision in self._cloud.world.revisions.items():
            key = Key.parse(name)
            if key.region != service.region:
                continue
            if self.services.service_of(key.region, revision) != service:
                continue
            pool = self._pool(key, service)
            share = shares.get(key.name)
            pool.retired = share is None and not pool.deploying
            pool.manual = scaling.manual is not None
            if scaling.manual is not None:
                # Shared by traffic; a revision with only a tag has one, if there are any.
                count = round(scaling.manual * (share or 0) / 100)
                pool.least = pool.most = max(count, 1 if share and scaling.manual else 0)
                if share == 0 and scaling.manual:
                    pool.least, pool.most = 0, 1
            else:
                shape = read_shape(revision)
                pool.most = shape.max_instances or 1
                if scaling.most is not None:
                    pool.most = min(pool.most, scaling.most)
                pool.least = shape.min_instances if share is not None else 0
                if share:
                    pool.least = max(pool.least, round(scaling.least * share / 100))
                pool.least = min(pool.least, pool.most)
        self._keep_up()

    async def remove(self, service: Key) -> None:
        """Stop everything of a service that is gone."""
        for text, pool in list(self._pools.items()):
            if pool.service == service:
                del self._pools[text]
                await self._empty(pool)

    async def stop_all(self) -> None:
        """Stop everything, and forget it."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        pools, self._pools = list(self._pools.values()), {}
        await asyncio.gather(*(self._empty(pool) for pool in pools))

    def kill_instances(self, service: str) -> int:
        """Let running instances of matching services die; returns how many."""
        killed = 0
        for pool in self._pools.values():
            if fnmatch.fnmatchcase(pool.service.name, service):
                for instance in pool.instances:
                    if instance.phase == "ready":
                        instance.kill()
                        killed += 1
        return killed

    async def reap(self) -> None:
        """Stop instances that are idle or not wanted; runs until cancelled."""
        while True:
            await asyncio.sleep(_REAP_EVERY_S)
            now_s = time.monotonic()
            for pool in list(self._pools.values()):
                for instance in self._surplus(pool, now_s):
                    pool.instances.remove(instance)
                    self._spawn(instance.stop())

    # ------------------------------------------------------------------------- requests

    async def acquire(self, revision: Key) -> Instance:
        """An instance with room for one request, started if need be. Give it back with `release`.

        Raises:
            NoInstanceError: None in time.
        """
        pool = self._pools.get(str(revision))
        if pool is None:
            raise NoInstanceError(started=False)
        request: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()
        pool.waiting.append(request)
        pool.hand_out()
        if not request.done():
            self._scale_out(pool)
        wait_s = max(_LEAST_WAIT_S, _STARTS_TO_WAIT * pool.last_start_s)
        if pool.starting:
            # A start takes as long as it takes; the rule counts from what starts usually take.
            wait_s = max(wait_s, 3600.0)
        try:
            async with asyncio.timeout(wait_s):
                return await request
        except BaseException as error:
            with contextlib.suppress(ValueError):
                pool.waiting.remove(request)
            if request.done() and not request.cancelled() and request.exception() is None:
                # It came free at the very moment nobody waited any more.
                self.release(revision, request.result())
            if isinstance(error, TimeoutError):
                raise NoInstanceError(started=False) from None
            raise

    def release(self, revision: Key, instance: Instance) -> None:
        """Give an instance back."""
        instance.inflight -= 1
        instance.last_used = time.monotonic()
        pool = self._pools.get(str(revision))
        if pool is not None:
            pool.hand_out()

    def instances(self) -> list[Instance]:
        """All instances of all revisions."""
        return [instance for pool in self._pools.values() for instance in pool.instances]

    def shown(self) -> list[Json]:
        """All instances, for the control API."""
        return [instance.shown() for instance in self.instances()]

    # ------------------------------------------------------------------------- inside

    def _pool(self, revision: Key, service: Key) -> Pool:
        pool = self._pools.get(str(revision))
        if pool is None:
            shape = read_shape(self._cloud.world.revisions[str(revision)])
            pool = Pool(revision, service, shape, most=max(shape.max_instances or 1, 1))
            self._pools[str(revision)] = pool
        return pool

    def _spawn(self, work: Any) -> None:  # noqa: ANN401 (a coroutine)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error, file=sys.stderr)

    async def _deploy(self, pool: Pool) -> None:
        began = time.monotonic()
        reason, message = self._containers.refused(pool.shape)
        if reason:
            # Google takes some seconds to look.
            await asyncio.sleep(self._cloud.after(5))
            pool.deploying = False
            self.services.revision_failed(pool.key, reason, message)
            return
        while self._no_capacity(pool):
            self.services.revision_waits(pool.key, *NO_CAPACITY)
            await asyncio.sleep(_CAPACITY_POLL_S)
        instance = self._make(pool)
        try:
            await instance.start(ROLLOUT)
        except StartFailedError as error:
            pool.deploying = False
            pool.instances.remove(instance)
            self.services.revision_failed(pool.key, error.reason, error.message)
            return
        took_s = time.monotonic() - began
        pool.deploying = False
        pool.last_start_s = took_s
        self.services.revision_ready(pool.key, took_s)
        pool.hand_out()

    def _no_capacity(self, pool: Pool) -> bool:
        return bool(pool.shape.gpus) and any(
            fnmatch.fnmatchcase(pool.key.region, region)
            for region in self._cloud.world.knobs.no_capacity
        )

    def _make(self, pool: Pool) -> Instance:
        world = self._cloud.world
        troubles = self._cloud.faults.trouble_for(pool.service.name)
        plan = self._containers.plan(pool.service.name, pool.shape, troubles)
        revision = world.revisions[str(pool.key)]
        place = Placement(
            pool.service.name,
            pool.key.name,
            run_resource(world, pool.key.region, pool.service.name, pool.key.name),
            revision["status"]["logUrl"],
        )

        def ended(instance: Instance) -> None:
            if instance in pool.instances:
                pool.instances.remove(instance)
            self._keep_up()
            if pool.waiting:
                self._scale_out(pool)

        instance = Instance(place, pool.shape, plan, self._cloud.speed, self._cloud.logs, ended)
        pool.instances.append(instance)
        return instance

    def _scale_out(self, pool: Pool) -> None:
        """Start further instances for what waits, up to the most."""
        while (
            len(pool.instances) < pool.most
            and len(pool.waiting) > pool.starting * pool.shape.concurrency
            and not self._no_capacity(pool)
        ):
            self._spawn(self._start(pool, self._make(pool), MANUAL if pool.manual else AUTOSCALING))

    async def _start(self, pool: Pool, instance: Instance, why: str) -> None:
        began = time.monotonic()
        try:
            await instance.start(why)
        except StartFailedError:
            if instance in pool.instances:
                pool.instances.remove(instance)
            while pool.waiting and not pool.instances:
                request = pool.waiting.popleft()
                if not request.done():
                    request.set_exception(NoInstanceError(started=True))
            return
        pool.last_start_s = time.monotonic() - began
        pool.hand_out()

    def _keep_up(self) -> None:
        for pool in self._pools.values():
            if pool.retired or pool.deploying or not self._is_ready(pool):
                continue
            while len(pool.instances) < pool.least and not self._no_capacity(pool):
                self._spawn(self._start(pool, self._make(pool), MANUAL))

    def _is_ready(self, pool: Pool) -> bool:
        revision = self._cloud.world.revisions.get(str(pool.key))
        return revision is not None and any(
            item["type"] == "Ready" and item["status"] == "True"
            for item in revision["status"]["conditions"]
        )

    def _surplus(self, pool: Pool, now_s: float) -> list[Instance]:
        if pool.deploying:
            return []
        idle = [item for item in pool.instances if item.phase == "ready" and not item.inflight]
        if pool.retired:
            return idle
        limit_s = 0.0 if pool.manual else self._cloud.idle_s
        old = [item for item in idle if now_s - item.last_used > limit_s]
        spare = len(pool.instances) - pool.least
        too_many = max(len(pool.instances) - pool.most, 0)
        if pool.manual:
            return old[:too_many]
        return sorted(old, key=lambda item: item.last_used)[: max(spare, 0)]

    @staticmethod
    async def _empty(pool: Pool) -> None:
        pool.retired = True
        while pool.waiting:
            request = pool.waiting.popleft()
            if not request.done():
                request.set_exception(NoInstanceError(started=False))
        instances, pool.instances = list(pool.instances), []
        await asyncio.gather(*(instance.stop() for instance in instances))

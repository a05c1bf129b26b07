"""Workers on the nodes of a Ray cluster that is there already; the `ray` package is optional.

Each worker runs beside an actor of its own on its node (`ray_node`), which carries the same
messages as the socket pair of a local worker. Times are taken on the node, by the kernel there. The
node's clock is compared with ours over the quickest of some calls, so that all start together and
the records of all stand on one clock; half of that call's time is how far off that may be.

Read 2026-11-30: docs.ray.io 2.60, "Ray Core", "Scheduling" (`NodeAffinitySchedulingStrategy`),
`ray.init`, `ray.exceptions`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from backends.core.errors import EndpointUnreachableError, NotFoundError, NotSupportedError
from backends.serving.engine.crew import WORKER_MODULE
from backends.serving.engine.member import Heard, Member
from backends.serving.engine.messages import Message, packed
from backends.serving.engine.packing import worker_source

if TYPE_CHECKING:
    from backends.serving.engine.target import Target

START_TIMEOUT_S = 60.0
"""For a node to give the actor a core and start it; a second or two when it is idle."""

CONNECT_TIMEOUT_S = 60.0
KNOCK_TIMEOUT_S = 5.0
HEAR_S = 1.0
CLOCK_CALLS = 15


def check_ray() -> None:
    """Refuse where the `ray` package is not installed.

    Raises:
        NotSupportedError: With how to install it.
    """
    if importlib.util.find_spec("ray") is None:
        raise NotSupportedError(
            "runner=ray needs the ray package, which is not installed here.",
            next_action="Run `pip install -r requirements-ray.txt`, in the version that the "
            "cluster runs, or leave runner out to make the load on this machine.",
        )


class RayNodes:
    """The nodes of a Ray cluster as a workforce; see `crew.Workforce`.

    Args:
        address: Of the cluster: `auto` for the one this machine belongs to, `host:port`, or
            `ray://host:port` for Ray's client.
        resource: A custom resource that a node must have to be used; None takes every node that
            has CPUs.
        nodes: At most so many nodes, those with the most CPUs; None for all.
    """

    name = "ray"

    def __init__(
        self, address: str = "auto", resource: str | None = None, nodes: int | None = None
    ) -> None:
        self._address = address
        self._resource = resource
        self._limit = nodes
        self._nodes: list[dict[str, Any]] = []
        self._source = b""

    async def look(self) -> None:
        """Connect to the cluster and see which nodes it has.

        Raises:
            NotSupportedError: The ray package is missing, or the cluster cannot be reached.
            NotFoundError: No node has what is asked for.
        """
        check_ray()
        await self._connect()
        self._nodes = self._find()
        if not self._source:
            self._source = worker_source()

    @property
    def least(self) -> int:
        """A worker on every node."""
        return len(self._nodes)

    @property
    def most(self) -> int:
        """The CPUs of the nodes, as Ray counts them."""
        return sum(int(node["Resources"]["CPU"]) for node in self._nodes)

    def check(self, streams_each: int) -> None:
        """Nothing can be told from here; a worker that may not open so many files says so."""

    def members(self, size: int, heard: Heard) -> Sequence[Member]:
        """Return workers that are to be started, spread over the nodes in turn."""
        used = [self._nodes[number % len(self._nodes)] for number in range(size)]
        return [
            NodeMember(number, heard, node, self._source) for number, node in enumerate(used, 1)
        ]

    async def _connect(self) -> None:
        import ray

        if ray.is_initialized():
            return
        # it warns that it leaves our own handling of signals alone, which is as wanted
        logging.getLogger("ray").setLevel(logging.ERROR)

        def connect() -> None:
            _knock(self._address)  # ray itself would go on trying for minutes
            ray.init(
                address=self._address,
                namespace="vllm-devops",
                log_to_driver=False,
                configure_logging=False,
            )

        try:
            await _in_thread(connect, CONNECT_TIMEOUT_S)
        except (OSError, RuntimeError, ValueError) as error:
            raise NotSupportedError(
                f"No Ray cluster could be reached at {self._address}.",
                words=str(error).strip()[:500],
                cause="No cluster runs there, its Ray or Python version is another, or this "
                "machine does not belong to it.",
                next_action="Run it on a machine of the cluster, or name the cluster with "
                "ray_address (ray://HOST:10001 from outside).",
            ) from None

    def _find(self) -> list[dict[str, Any]]:
        import ray

        found = [node for node in ray.nodes() if node["Alive"] and self._fits(node["Resources"])]
        if not found:
            what = f" with the resource {self._resource}" if self._resource else ""
            raise NotFoundError(
                f"The Ray cluster has no living node{what} that offers a CPU.",
                next_action="Look at `ray status`, or ask for another ray_resource.",
            )
        found.sort(key=lambda node: (-node["Resources"]["CPU"], node["NodeID"]))
        return found[: self._limit]

    def _fits(self, resources: dict[str, float]) -> bool:
        has_cpu = resources.get("CPU", 0) >= 1
        return has_cpu and (self._resource is None or resources.get(self._resource, 0) > 0)


class NodeMember(Member):
    """A worker on a node of a Ray cluster."""

    def __init__(self, number: int, heard: Heard, node: dict[str, Any], source: bytes) -> None:
        super().__init__(number, heard)
        self.place = f"node {node['NodeManagerAddress']} ({node['NodeID'][:8]})"
        self._node_id: str = node["NodeID"]
        self._source = source
        self._actor: Any = None
        self._about: dict[str, Any] = {}
        self._how = "has stopped speaking"
        self._reading: asyncio.Task[None] | None = None

    async def start(self, target: Target) -> None:
        """Start an actor on the node, and the worker beside it.

        Raises:
            NotSupportedError: The node has no free CPU, lacks a package, or is not the machine
                that a loopback address belongs to.
            EndpointUnreachableError: The node does not reach the endpoint.
        """
        self._actor = _actor(self._node_id, self._source)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                about = await self._actor.about.remote(_needed(target), target.where)
                self._check(about, target)
                self._about = about
                await self._compare_clocks()
                await self._actor.start.remote()
        except TimeoutError:
            raise NotSupportedError(
                f"{self.place} did not start a worker within {START_TIMEOUT_S:g} s.",
                cause="It has no CPU that other work has not reserved, or it has just died.",
                next_action="Look at `ray status`; free a CPU, or name other nodes with "
                "ray_resource.",
            ) from None
        except _ray_errors() as error:
            raise NotSupportedError(
                f"{self.place} was lost while its worker was started.",
                words=_first_line(error),
                next_action="Look at `ray status`, then try again.",
            ) from None
        self._reading = asyncio.create_task(self._read())

    async def say(self, message: Message) -> None:
        """Send a message; a worker that is gone does not hear it."""
        with suppress(*_ray_errors()):
            await self._actor.say.remote(packed(self.on_its_clock(message)))

    async def end(self) -> None:
        """End the worker and its actor."""
        import ray

        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        if self._actor is None:
            return
        if self._reading is not None:
            with suppress(TimeoutError, *_ray_errors()):
                async with asyncio.timeout(2.0):
                    await self._actor.end.remote()
        with suppress(*_ray_errors()):
            ray.kill(self._actor)

    async def how_it_ended(self) -> str:
        """Return in words how a worker that is gone has come to its end."""
        return self._how

    def its_target(self, target: Target) -> Target:
        """Return the target with the address that the node itself resolved."""
        about = self._about
        return dataclasses.replace(target, family=about["family"], address=tuple(about["address"]))

    def _check(self, about: dict[str, Any], target: Target) -> None:
        from backends.serving.engine.ray_node import boot_id

        if about["missing"]:
            names = ", ".join(about["missing"])
            raise NotSupportedError(
                f"{self.place} lacks what a worker needs: {names}.",
                next_action=f"Install it on the nodes: pip install "
                f"{names.replace('_', '-').replace(',', '')}.",
            )
        elsewhere = about["boot_id"] != boot_id()
        if target.is_loopback and elsewhere:
            raise NotSupportedError(
                f"{target.where[0]} is this machine alone; {self.place} is another.",
                next_action="Name the endpoint by an address that the nodes reach.",
            )
        if "unreachable" in about:
            raise EndpointUnreachableError(
                f"{self.place} does not reach {target.where[0]}:{target.where[1]}.",
                words=about["unreachable"],
                cause="The node has no route to it, or a firewall stands between.",
                next_action="Open the way, or name other nodes with ray_resource.",
            )

    async def _compare_clocks(self) -> None:
        from backends.serving.engine.clock import now_ns
        from backends.serving.engine.ray_node import boot_id

        calls = []
        for _ in range(CLOCK_CALLS):
            before = now_ns()
            there = await self._actor.clock.remote()
            after = now_ns()
            calls.append((after - before, there - (before + after) // 2))
        took_ns, ahead_ns = min(calls)
        slowest_ns = max(calls)[0]
        self.lead_s = 2 * slowest_ns / 1e9
        if self._about["boot_id"] and self._about["boot_id"] == boot_id():
            return  # the same machine has the same clock
        self.ahead_ns, self.clock_error_ns = ahead_ns, took_ns // 2

    async def _read(self) -> None:
        how = ""
        try:
            while not how:
                data, how = await self._actor.hear.remote(HEAR_S)
                if data:
                    self.take(data)
            self._how = how
        except _ray_errors() as error:
            self._how = f"was lost with its node: {_first_line(error)}"
        finally:
            self.is_gone = True


def _knock(address: str) -> None:
    """See whether anything listens at `host:port` or `ray://host:port`.

    Raises:
        OSError: Nothing does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_TIMEOUT_S).close()


async def _in_thread(work: Callable[[], None], timeout_s: float) -> None:
    """Run what blocks in a thread that is left behind when it takes too long.

    Raises:
        TimeoutError: It did.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: Exception | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - handed to the one who waits
            failure = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, failure)

    threading.Thread(target=run, daemon=True, name="ray-init").start()
    try:
        async with asyncio.timeout(timeout_s):
            await done
    except TimeoutError:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None


def _actor(node_id: str, source: bytes) -> Any:  # noqa: ANN401 - ray has no types of its own
    import ray
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from backends.serving.engine import ray_node

    cloudpickle.register_pickle_by_value(ray_node)
    return (
        ray.remote(ray_node.NodeWorker)
        .options(
            num_cpus=1,
            max_restarts=0,
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote(source, WORKER_MODULE)
    )


def _needed(target: Target) -> list[str]:
    """Return the modules that a worker imports and Python does not bring."""
    return [
        *(["certifi"] if target.tls is not None else []),
        *(["botocore"] if target.wire is not None else []),
    ]


def _ray_errors() -> tuple[type[Exception], ...]:
    from ray.exceptions import RayError

    return (RayError,)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

"""How a deployment's machines are reached: connections that are kept, and looks through them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from backends.base import Services
from backends.core.errors import (
    DevopsError,
)
from backends.tpu.finding import TpuFinding
from backends.tpu.records import TpuRequest

if TYPE_CHECKING:
    from backends.clouds.hosts import SshHost
    from backends.tpu.sight import Machine

# A look over ssh costs a session; a status that is asked for again and again is answered from it.
_SIGHT_KEPT_S = 2.0
_CONNECT_S = 4.0


class TpuReaching(TpuFinding):
    """Keeps connections to machines, and what was seen through them a moment ago."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._sights: dict[str, Machine] = {}
        self._hosts: dict[tuple[str, int], SshHost] = {}
        self.tunnels: dict[str, set[str]] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}

    async def host(self, request: TpuRequest, worker: int = 0) -> SshHost:
        """A machine of a deployment."""
        from backends.clouds.hosts import GceHost, TpuHost

        key = (f"{request.plane}:{request.key}:{request.created_at:.0f}", worker)
        if key not in self._hosts:
            project = await self.cloud.project()
            via = "iap" if request.settings.get("ssh") == "iap" else "external"
            label = f"{self.at(request.name)} worker {worker} ({request.zone})"
            self._hosts[key] = (
                GceHost(
                    self.cloud,
                    project=project,
                    zone=request.zone,
                    instance=request.name,
                    via="iap" if via == "iap" else "external",
                    label=label,
                )
                if request.plane == "compute"
                else TpuHost(
                    self.cloud,
                    project=project,
                    zone=request.zone,
                    node=request.node_id,
                    worker=worker,
                    via="iap" if via == "iap" else "external",
                    queued_resource=request.name,
                    label=label,
                )
            )
        return self._hosts[key]

    async def sight(
        self, request: TpuRequest, *, detail: bool = False, fresh: bool = False
    ) -> Machine | None:
        """A look at the first machine of an active deployment; None for any other."""
        from backends.tpu.sight import Machine, look

        node = request.node if request.stage == "active" else None
        # Without settings it is not one of ours: nobody said that we may log in.
        if node is None or not request.settings:
            return None
        if request.plane == "tpu" and node.state != "READY":
            return None
        known = self._sights.get(request.key)
        if known and not detail and not fresh and time.time() - known.seen_at < _SIGHT_KEPT_S:
            return known
        try:
            if (
                request.plane == "tpu"
                and (known is None or known.problem)
                and not await self.api.has_booted(request.zone, request.node_id)
            ):
                return None
        except DevopsError as error:
            return Machine.unseen(error)
        host = await self.host(request)
        opened = await self._opened(request.key, host, sure=fresh)
        machine = opened or await look(host, detail=detail)
        self._sights[request.key] = machine
        return machine

    async def _opened(self, key: str, host: SshHost, *, sure: bool) -> Machine | None:
        """Open the connection; what to say instead of a look while that takes long.

        gcloud takes seconds, and tries for half a minute while a machine is starting. It goes on
        beside the calls that ask how things are.
        """
        from backends.tpu.sight import Machine

        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = self.services.owned.task(host.connect(sure=sure))
        done, _ = await asyncio.wait({opening}, timeout=_CONNECT_S)
        if not done:
            return Machine(problem="gcloud is connecting", unreachable=True, seen_at=time.time())
        self._opening.pop(key, None)
        try:
            opening.result()
        except DevopsError as error:
            return Machine.unseen(error)
        return None

    async def let_go(self, key: str) -> None:
        """Close what leads to a machine that is gone.

        Args:
            key: `NAME@ZONE`.
        """
        self._sights.pop(key, None)
        for tunnel in self.tunnels.pop(key, set()):
            await self.cloud.tunnels.close(tunnel)
        for which in [item for item in self._hosts if f":{key}:" in item[0]]:
            # The other side is gone: that it cannot be told so is no failure.
            with contextlib.suppress(DevopsError):
                await self._hosts.pop(which).close()

    def forget(self, request: TpuRequest) -> None:
        """Look at a deployment's machine afresh next time."""
        self._sights.pop(request.key, None)

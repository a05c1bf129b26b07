"""Ports of this machine that lead to a host, and who keeps them open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.clouds.hosts.host import Host

_CLOSE_S = 5.0


class Tunnel:
    """An open way to a port of a host.

    Args:
        local_port: The port on 127.0.0.1 that leads there.
        holder: The process whose life is the tunnel's; none where nothing lies between. It ends
            by itself when its standard input closes, so also when this process is killed.
        closing: Called when it is closed, to let go of the port.
    """

    def __init__(
        self,
        local_port: int,
        holder: asyncio.subprocess.Process | None = None,
        closing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.local_port = local_port
        self._holder = holder
        self._closing = closing
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether it still leads there, as far as this side can tell."""
        return not self._closed and (self._holder is None or self._holder.returncode is None)

    async def close(self) -> None:
        """Close it and reap its process; more than once is harmless."""
        if self._closed:
            return
        self._closed = True
        if self._closing is not None and self._holder is not None and not self._holder.returncode:
            await self._closing()
        await reap(self._holder)


async def reap(process: asyncio.subprocess.Process | None) -> None:
    """End a process whose standard input we hold, and wait for it."""
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_CLOSE_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class TunnelKeeper:
    """One tunnel a deployment and port: opened when asked for, again when dead, closed at the end.

    Belongs to the event loop it is first used in.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], Tunnel] = {}
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}

    async def get(
        self, key: str, host: Host, port: int, *, remote_host: str = "127.0.0.1"
    ) -> Tunnel:
        """The tunnel to a port of a deployment.

        Args:
            key: Which deployment, e.g. `gce-t4/NAME/INSTANCE_ID`.
            host: The way there, should it have to be opened.
            port: The port on the host.
            remote_host: The address as the host sees it.

        Raises:
            HostUnreachableError: There is no way to the host.
        """
        which = (key, port)
        async with self._locks.setdefault(which, asyncio.Lock()):
            found = self._open.get(which)
            if found is not None and found.alive:
                return found
            if found is not None:
                await found.close()
            opened = self._open[which] = await host.forward(port, remote_host=remote_host)
            return opened

    async def close(self, key: str | None = None) -> None:
        """Close the tunnels of a deployment, or all."""
        for which in [item for item in self._open if key is None or item[0] == key]:
            await self._open.pop(which).close()

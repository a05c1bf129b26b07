"""What a server or a worker has open between calls, ended in one place.

Tasks that go on beside calls, HTTP clients, tunnels: whoever opens one says so here, so that
nothing is in the air when the event loop ends. What is closed may be used again and opens anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

CLOSE_S = 1.5
"""Seconds for all of it: a client waits no longer for a server that it leaves (SDK 2.3.0: 2 s)."""

_LEAST_S = 0.5

_log = logging.getLogger("vllm_devops.owned")


class Owned:
    """Tasks and things to close, of one application."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []

    def task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start what goes on beside the calls; it is cancelled when the application closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have something closed at the end. It must bear being closed twice, and used again."""
        self._closers.append(close)

    async def close(self) -> None:
        """Cancel the tasks and wait for them, then close the rest, in at most `CLOSE_S`.

        What fails at this is logged and keeps nothing else from being closed.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_S
        await ended([task for task in self._tasks if task.get_loop() is loop], CLOSE_S)
        for close in reversed(self._closers):
            try:
                # However late it is, a client gets the moment that it takes to close.
                async with asyncio.timeout_at(max(until, loop.time() + _LEAST_S)):
                    await close()
            except Exception:  # noqa: BLE001 (the rest is to be closed all the same)
                _log.exception("could not be closed")


async def ended(tasks: Collection[asyncio.Task[Any]], timeout_s: float | None = None) -> None:
    """Cancel tasks and wait until they have ended, however they end.

    Args:
        tasks: Of this event loop; the one that asks is left alone.
        timeout_s: Seconds to wait at most; None: for as long as it takes.
    """
    others = {task for task in tasks if task is not asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return
    done, late = await asyncio.wait(others, timeout=timeout_s)
    for task in done:
        # Asked for, so that it is not complained of: nobody waits for what it had to say.
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.info("ended with %s: %s", type(error).__name__, error)
    if late:
        _log.warning("%d tasks did not end within %.0f s", len(late), timeout_s or 0)


if TYPE_CHECKING:
    # With gather's own types, which tell what each of several returns.
    from asyncio import gather

    together = gather
else:

    async def together(*work: Awaitable[Any]) -> list[Any]:
        """Do several things at once; the first that fails ends the others, and is raised.

        `asyncio.gather` would leave the others running, with nobody to wait for them.

        Args:
            *work: Coroutines.

        Returns:
            What each returned, in order.
        """
        tasks = [asyncio.ensure_future(item) for item in work]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            await ended(tasks)
            raise

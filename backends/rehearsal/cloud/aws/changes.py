"""Changes that take their time: one task for each thing; a fault of the rehearsal shows as one."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.account import Account

Key = tuple[str, str]
"""Region and name."""


class Changes:
    """What is being changed.

    Args:
        account: Saved when a change begins and when it ends.
        kind: Of what, for the tasks' names.
    """

    def __init__(self, account: Account, kind: str) -> None:
        self._account = account
        self._kind = kind
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def begin(self, key: Key, work: Coroutine[Any, Any, None]) -> None:
        """Begin to change a thing."""
        self._account.changed()

        async def run() -> None:
            try:
                await work
            except Exception:  # noqa: BLE001 (a fault of the rehearsal must show as one)
                traceback.print_exc(file=sys.stderr)
            finally:
                if self._tasks.get(key) is asyncio.current_task():
                    del self._tasks[key]
                self._account.changed()

        self._tasks[key] = asyncio.create_task(run(), name=f"{self._kind} {key}")

    def going_on(self, key: Key) -> bool:
        """Whether a thing is being changed."""
        return key in self._tasks

    async def stop(self) -> None:
        """Stop every change where it stands."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

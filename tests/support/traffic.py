"""Waiting until a list of deployments says when one was last used."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import anyio

from tests.support.clients import Caller

# An engine writes its averages every ten seconds.
_WITHIN_S = 25.0


async def seen_in_use(caller: Caller, target: str) -> None:
    """The only deployment of a target is told to have been used just now, within a bound."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        listed = await caller.tool("list_deployments", target=target)
        (item,) = listed.ok["items"]
        if "last_request_at" in item:
            used = datetime.fromisoformat(item["last_request_at"])
            assert datetime.now(UTC) - used < timedelta(minutes=10), item
            return
        assert time.monotonic() < deadline, listed.text
        await anyio.sleep(0.5)

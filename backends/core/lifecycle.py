"""How the server starts and ends: signals end it within a second, with no child left behind.

Measured on SDK 2.3.0 (2026-11-30): SIGTERM killed a server at once and orphaned its children, and
SIGINT on an idle server did nothing at all, because a thread waits in read() on stdin. Claude Code
sends SIGINT, then SIGTERM 100 ms later; Gemini CLI sends SIGTERM; others close stdin.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from types import FrameType
from typing import Any, NoReturn, Protocol

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server

from backends.clouds.process import end_all
from backends.core.last_answers import Incoming, Outgoing, Outstanding

_log = logging.getLogger("vllm_devops")


class Closes(Protocol):
    """What has things open."""

    async def close(self) -> None:
        """Let go of them."""


def closing(app: Closes) -> Callable[[MCPServer[Any]], AbstractAsyncContextManager[None]]:
    """Let go of what an application has open when the last client of its server has left.

    Args:
        app: The application.
    """
    clients = 0

    @contextlib.asynccontextmanager
    async def lifespan(server: MCPServer[Any]) -> AsyncIterator[None]:
        nonlocal clients
        del server
        clients += 1
        try:
            yield
        finally:
            clients -= 1
            if not clients:
                # A client that has gone cancels what serves it; letting go is bounded by itself.
                with anyio.CancelScope(shield=True):
                    await app.close()

    return lifespan


def serve(server: MCPServer[Any]) -> int:
    """Serve on stdin and stdout until the client leaves or a signal comes; returns an exit code.

    Long operations and local engines are processes of their own and go on.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        anyio.run(_session, server)
    except (BrokenPipeError, ConnectionResetError):
        _log.info("the client is gone")
    finally:
        end_all()
    return 0


async def _session(server: MCPServer[Any]) -> None:
    outstanding = Outstanding()
    # `run_stdio_async`, with our own streams around its own; the SDK has no public way for that.
    lowlevel = server._lowlevel_server
    async with stdio_server() as (incoming, outgoing):
        await lowlevel.run(
            Incoming(incoming, outstanding),
            Outgoing(outgoing, outstanding),
            lowlevel.create_initialization_options(),
        )
    _log.info("the client has left")
    # The event loop would wait for every thread of a call, be it a stop with all its patience.
    _exit()


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    _log.info("signal %d: leaving", number)
    # The reader thread sits in read() on stdin and cannot be woken: leave without it.
    _exit()


def _exit() -> NoReturn:
    """Leave now: everything that must be kept was written when it happened."""
    end_all()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(0)

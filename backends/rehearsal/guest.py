"""A guest of the server: a real MCP client that shows what it asks and what it is told.

`connect` starts server.py as any client would. Whatever that starts carries a mark in its
environment, so that the walk can make sure that nothing is left running.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.types import (
    CallToolResult,
    ElicitRequestFormParams,
    ElicitResult,
    ErrorData,
    Implementation,
    TextContent,
)

from backends.core.names import SERVER_NAME, VERSION
from backends.core.settings import variable_of
from backends.rehearsal.launch import server_parameters
from backends.rehearsal.terminal import Terminal

# Every process that a walk's server starts inherits it, so that none can be missed.
MARK = "VLLM_DEVOPS_DEMO"

_CALL_TIMEOUT_S = 60.0
_CLEAN_UP_TIMEOUT_S = 60.0
_END_PATIENCE_S = 10.0

Json = dict[str, Any]


class WalkError(Exception):
    """The walk cannot go on; the text says at which call and why."""


class RefusedError(WalkError):
    """A tool answered with an error.

    Attributes:
        error: Its structured part: code, message, cause, next_action.
    """

    def __init__(self, tool: str, result: CallToolResult) -> None:
        super().__init__(f"{tool} answered with an error.\n{text_of(result)}")
        self.error: Json = dict((result.structured_content or {}).get("error", {}))


class Guest:
    """An MCP client that shows what it asks and what it is told.

    Args:
        client: A connected client.
        terminal: Where it is shown.
    """

    def __init__(self, client: Client, terminal: Terminal) -> None:
        self.client = client
        self.terminal = terminal
        self._warned: set[str] = set()

    async def call(self, tool: str, **arguments: Any) -> CallToolResult:  # noqa: ANN401 (JSON)
        """Call a tool; progress notifications become the live line.

        Raises:
            WalkError: The tool answered with an error, or not at all.
        """
        self.terminal.call(tool, arguments)

        async def show(progress: float, total: float | None, message: str | None) -> None:
            self.terminal.progress(progress / total if total else None, message or "")

        with anyio.move_on_after(_CALL_TIMEOUT_S):
            result = await self.client.call_tool(tool, arguments, progress_callback=show)
            if result.is_error:
                raise RefusedError(tool, result)
            answer = structured(result)
            self.terminal.say(str(answer["summary"]))
            for warning in answer.get("warnings", []):
                # What every answer says is shown once.
                if warning not in self._warned:
                    self._warned.add(warning)
                    self.terminal.warn(str(warning))
            return result
        raise WalkError(f"{tool} did not answer within {_CALL_TIMEOUT_S:.0f} s.")

    async def ask(self, tool: str, **arguments: Any) -> Json:  # noqa: ANN401 (JSON)
        """Call a tool; returns the structured part of its answer."""
        return structured(await self.call(tool, **arguments))


@contextlib.asynccontextmanager
async def connect(
    environment: Mapping[str, str], errors: Path, terminal: Terminal, *, legacy: bool
) -> AsyncIterator[Guest]:
    """Start server.py and connect to it over its stdin and stdout, as any client does.

    Args:
        environment: Settings of this server; those of the caller do not count.
        errors: File for the server's stderr.
        terminal: Where the conversation is shown.
        legacy: Speak the `initialize` handshake instead of protocol 2026-07-28.
    """

    async def person(context: object, params: object) -> ElicitResult | ErrorData:
        """The server asks; the person at this walk says yes."""
        del context
        if not isinstance(params, ElicitRequestFormParams):
            return ElicitResult(action="decline")
        terminal.ask(params.message, "yes")
        return ElicitResult(action="accept", content={"approve": True})

    with errors.open("w", encoding="utf-8") as errlog:
        client = Client(
            stdio_client(server_parameters(environment), errlog=errlog),
            mode="legacy" if legacy else "auto",
            client_info=Implementation(name=f"{SERVER_NAME}-guest", version=VERSION),
            elicitation_callback=person,
        )
        async with client:
            tools = (await client.list_tools()).tools
            server = client.server_info
            named = f"{server.name} {server.version}" if server else "a server without a name"
            terminal.heading(
                f"Connected to {named} over stdio, protocol {client.protocol_version}: "
                f"{len(tools)} tools"
            )
            yield Guest(client, terminal)


async def clean_up(guest: Guest, here: Json) -> None:
    """After a failure: destroy what the walk deployed, through the tools as far as they answer.

    Args:
        guest: The client.
        here: Target and name of the deployment.
    """
    guest.terminal.heading("Cleaning up")
    with anyio.CancelScope(shield=True), anyio.move_on_after(_CLEAN_UP_TIMEOUT_S):
        try:
            running = structured(await guest.client.call_tool("get_operation", {}))
            for operation in running["items"]:
                if operation["name"] == here["name"] and operation["state"] == "running":
                    await guest.ask("cancel_operation", operation_id=operation["operation_id"])
            left = structured(await guest.client.call_tool("list_deployments", {}))
            if any(
                (item["target"], item["name"]) == (here["target"], here["name"])
                for item in left["items"]
            ):
                plan = await guest.ask("destroy", **here)
                await guest.ask("destroy", **here, plan_id=plan["plan_id"])
        except Exception as error:  # noqa: BLE001 (the first failure matters; this one is shown)
            guest.terminal.warn(f"Cleaning up through the tools failed: {error}")


def processes_of(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark in their environment: what this walk started."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        # Other people's processes do not show their environment; ours do.
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_processes(mark: str) -> list[str]:
    """End what still carries the mark; returns their command lines."""
    left = processes_of(mark)
    named: list[str] = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            named.append(f"pid {process.pid}: {' '.join(process.cmdline())[:80]}")
            process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=_END_PATIENCE_S)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(stubborn, timeout=_END_PATIENCE_S)
    return named


def structured(result: CallToolResult) -> Json:
    """The structured part of an answer."""
    if result.structured_content is None:
        raise WalkError(f"An answer has no structured content: {text_of(result)[:200]}")
    return dict(result.structured_content)


def text_of(result: CallToolResult) -> str:
    """The text of an answer."""
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def causes(error: BaseException) -> list[str]:
    """The failures in a group of them, as the transport's task groups wrap what they pass on."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for part in error.exceptions for cause in causes(part)]
    name = "" if isinstance(error, WalkError) else f"{type(error).__name__}: "
    return [f"{name}{error}"]


def run_walk(
    walk: Callable[[Guest], Awaitable[None]],
    here: Json,
    environment: Mapping[str, str],
    terminal: Terminal,
    *,
    what: str,
    state_dir: Path | None = None,
    legacy: bool = False,
    prepare: Callable[[Path], None] = lambda _: None,
    close: Callable[[Path], None] = lambda _: None,
) -> int:
    """Connect a guest, have it walk, and leave nothing running, however that ended.

    Args:
        walk: What the guest does.
        here: Target and name of what it deploys: destroyed after a failure.
        environment: Settings of the server.
        terminal: Where the walk is shown.
        what: What to call the walk.
        state_dir: Keep the state there; None: in a folder that is removed at the end.
        legacy: Speak the `initialize` handshake instead of protocol 2026-07-28.
        prepare: Puts what the walk needs into the state directory.
        close: Ends what outlives the server by design; given the state directory.

    Returns:
        0 if all of it worked and nothing was left running, else 1.
    """
    mark = secrets.token_hex(8)
    began = time.monotonic()
    failure = ""
    with contextlib.ExitStack() as stack:
        if state_dir is None:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="vllm-devops-"))
            folder = Path(made)
        else:
            folder = state_dir.absolute()
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = dict(environment) | {variable_of("state_dir"): str(folder), MARK: mark}
        prepare(folder)
        # A shell that starts jobs in the background has them ignore interrupts; this one cleans up.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            asyncio.run(_walk(walk, here, settings, terminal, folder, legacy=legacy))
        except (KeyboardInterrupt, asyncio.CancelledError):
            failure = "Interrupted."
        except BaseException as error:  # noqa: BLE001 (the edge: shown, cleaned up after, exit 1)
            failure = "\n".join(causes(error))
        close(folder)
        left = end_processes(mark)
    if left and not failure:
        failure = "Was left running and had to be ended:\n" + "\n".join(left)
    if failure:
        terminal.heading(f"The {what} failed")
        terminal.bad(failure)
        terminal.say("What it had started was ended.")
        return 1
    terminal.good(f"nothing left running: no process of this {what} is alive")
    terminal.good(f"done in {time.monotonic() - began:.0f} s")
    return 0


async def _walk(
    walk: Callable[[Guest], Awaitable[None]],
    here: Json,
    settings: Mapping[str, str],
    terminal: Terminal,
    folder: Path,
    *,
    legacy: bool,
) -> None:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    errors = folder / "server-stderr.log"
    try:
        async with connect(settings, errors, terminal, legacy=legacy) as guest:
            try:
                await walk(guest)
            except BaseException:
                await clean_up(guest, here)
                raise
    except BaseException:
        if said := errors.read_text(encoding="utf-8", errors="replace") if errors.exists() else "":
            terminal.bad("The server's stderr:\n" + "\n".join(said.splitlines()[-10:]))
        raise

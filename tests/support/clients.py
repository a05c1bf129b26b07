"""Applications of a test's own, and the SDK's client connected to them in memory, in both eras."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.types import ElicitRequestParams, ElicitResult

from backends.app import App
from backends.core.settings import LoadedSettings, Settings
from server import create_server
from tests.support.probe import ACCEPT, Era
from tests.support.reply import Reply

_MODES: dict[Era, str] = {"legacy": "legacy", "modern": "auto"}


def make_app(state_dir: Path, **settings: object) -> App:
    """An application with these settings (by field name), the defaults otherwise."""
    values: dict[str, Any] = {"state_dir": state_dir, **settings}
    return App.from_settings(LoadedSettings(Settings(**values), ()))


class Caller:
    """Calls tools through the SDK's client.

    Attributes:
        client: The connected client.
        questions: What the server asked a person so far.
    """

    def __init__(self) -> None:
        self.client: Client
        self.questions: list[str] = []

    async def tool(self, tool: str, /, **arguments: object) -> Reply:
        """Call a tool."""
        result = await self.client.call_tool(tool, arguments)
        return Reply.of(result.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def plan(self, name: str, **options: object) -> str:
        """Plan a deployment on the simulator; returns the plan id."""
        planned = await self.tool(
            "plan_deployment", target="local", name=name, options=FAST | options
        )
        return planned.plan_id

    async def deploy(self, name: str, **options: object) -> Reply:
        """Plan and deploy on the simulator."""
        return await self.tool("deploy", target="local", plan_id=await self.plan(name, **options))

    async def destroy(self, name: str) -> Reply:
        """Plan and destroy."""
        planned = await self.tool("destroy", target="local", name=name)
        return await self.tool("destroy", target="local", name=name, plan_id=planned.plan_id)


# Options of a deployment that is ready almost at once.
FAST: dict[str, object] = {"startup_speed": 1000}


@asynccontextmanager
async def connected(
    app: App,
    era: Era = "modern",
    *,
    answer: dict[str, Any] | None = ACCEPT,
    on_question: Callable[[str], None] | None = None,
) -> AsyncIterator[Caller]:
    """A client of a server in this process.

    Args:
        app: The application behind the server.
        era: The protocol era to speak.
        answer: What the person answers when asked; None: the client cannot ask anybody.
        on_question: Told each question when it is asked.
    """
    caller = Caller()

    async def ask(context: object, params: ElicitRequestParams) -> ElicitResult:
        del context
        caller.questions.append(params.message)
        if on_question is not None:
            on_question(params.message)
        return ElicitResult.model_validate(answer)

    callback = ask if answer is not None else None
    server = create_server(app)
    async with Client(server, mode=_MODES[era], elicitation_callback=callback) as client:
        caller.client = client
        yield caller

"""The one place that makes a tool: kind, strict arguments, slim schema, errors, audit, deadline.

Why not `@mcp.tool()` as it is (measured on SDK 2.3.0, 2026-11-30): it ignores unknown arguments,
sends docstrings with their indentation, echoes rejected values into the transcript, and turns every
exception but `ToolError` into a bare "Error executing tool".
"""

from __future__ import annotations

import functools
import inspect
import logging
import secrets
import traceback
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, cast

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import (
    ResourceError,
    ResourceNotFoundError,
    ToolError,
    UnexpectedResourceError,
)
from mcp.server.mcpserver.tools import Tool
from mcp.types import (
    INVALID_PARAMS,
    CallToolResult,
    ContentBlock,
    ImageContent,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel, ValidationError

from backends.core.answers import Answer
from backends.core.audit import AuditLog
from backends.core.deadline import begin_call
from backends.core.errors import (
    ConfirmationError,
    DevopsError,
    InvalidInputError,
    NotFoundError,
)
from backends.core.names import VERSION
from backends.core.render import to_markdown, to_tree
from backends.core.settings import Mode
from backends.core.state import private_folder, stamp

# Clients cut a call off at 60 s (Claude Desktop, Copilot CLI) and progress does not extend that.
CALL_LIMIT_S = 45.0

# A step that is cut off leaves so many seconds to look what came of it and to say so.
_LOOK_AFTER_S = 8.0

# Our longest address names a target, or a benchmark, and a deployment.
_MAX_URI_CHARS = 512

# The id and the client of the call being answered, so that audit lines of one call belong together.
current_call: ContextVar[str] = ContextVar("current_call", default="")
current_client: ContextVar[str] = ContextVar("current_client", default="unknown")

_log = logging.getLogger("vllm_devops")

ToolFunction = Callable[..., Awaitable[Answer]]


class Kind(StrEnum):
    """What a tool may do; clients gate, hide and parallelise by it."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"


_ANNOTATIONS = {
    Kind.READ: {"read_only_hint": True, "idempotent_hint": True},
    Kind.WRITE: {"read_only_hint": False, "destructive_hint": False},
    Kind.DESTRUCTIVE: {"read_only_hint": False, "destructive_hint": True},
}

_ALLOWED = {
    Mode.READ_ONLY: {Kind.READ},
    Mode.NO_DESTROY: {Kind.READ, Kind.WRITE},
    Mode.FULL: set(Kind),
}


@dataclass(frozen=True)
class ToolSpec:
    """A tool before it is bound to a server."""

    fn: ToolFunction
    kind: Kind
    title: str
    ability: str | None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name on the wire."""
        return self.fn.__name__

    @property
    def description(self) -> str:
        """The docstring, dedented, and the same text whatever the Python version."""
        return inspect.cleandoc(self.fn.__doc__ or "")


class App(Protocol):
    """What the tool maker needs of the application."""

    @property
    def audit(self) -> AuditLog:
        """The audit log."""

    @property
    def server_log(self) -> Path:
        """Where tracebacks go."""

    @property
    def mode(self) -> Mode:
        """Which kinds of tool are listed."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets on offer."""

    def ambient_warnings(self) -> list[str]:
        """What every answer must say (wrong settings, rehearsal)."""


class ToolBox:
    """Collects tools in the order they are written."""

    def __init__(self) -> None:
        self.specs: list[ToolSpec] = []

    def add(
        self, kind: Kind, title: str, *, ability: str | None = None, **meta: object
    ) -> Callable[[ToolFunction], ToolFunction]:
        """Register the decorated coroutine function as a tool.

        Args:
            kind: read, write or destructive.
            title: What a person sees in the client.
            ability: The backend ability it needs; it is listed only if an offered target has it.
            meta: Further `_meta` entries, `__` standing for `/` (`anthropic__searchHint`).
        """

        def register(fn: ToolFunction) -> ToolFunction:
            entries = {key.replace("__", "/"): value for key, value in meta.items()}
            if kind is Kind.DESTRUCTIVE:
                # Claude Code then asks a person even under an allow rule (measured, 2.1.332).
                entries["anthropic/requiresUserInteraction"] = True
            self.specs.append(ToolSpec(fn, kind, title, ability, entries))
            return fn

        return register


class StrictServer(MCPServer[None]):
    """`MCPServer` whose tools refuse unknown arguments and explain themselves.

    Args:
        app: The application behind the tools; tools find it as `ctx.mcp_server.app`.
        specs: All tools; those the mode or the targets exclude are left out of the list.
        abilities: The abilities some offered target has.
        options: Passed on to `MCPServer`.
    """

    def __init__(
        self,
        app: App,
        specs: Iterable[ToolSpec],
        abilities: set[str],
        **options: Any,  # noqa: ANN401 (the SDK's own constructor arguments)
    ) -> None:
        self.app = app
        self._hidden: dict[str, str] = {}
        tools: list[Tool] = []
        for spec in specs:
            if spec.kind not in _ALLOWED[app.mode]:
                self._hidden[spec.name] = f"VLLM_DEVOPS_MODE={app.mode.value} leaves it out"
            elif spec.ability is not None and spec.ability not in abilities:
                self._hidden[spec.name] = "no target on offer can do it"
            else:
                tools.append(_make(spec, app))
        super().__init__(tools=tools, **options)
        self._arguments = {tool.name: sorted(tool.parameters["properties"]) for tool in tools}

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> Any:  # noqa: ANN401 (the SDK's own union)
        """Call a tool; refusals come back as tool errors that never echo a value."""
        if name not in self._arguments:
            return _error_result(self._unknown(name))
        unknown = sorted(set(arguments) - set(self._arguments[name]))
        if unknown:
            return _error_result(_not_arguments(name, unknown, self._arguments[name]))
        empty = sorted(key for key, value in arguments.items() if value == "")
        if empty:
            return _error_result(_empty(name, empty))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                return _error_result(_invalid(name, error.__cause__, self._arguments[name]))
            if str(error.__cause__).startswith("Resolver "):
                # The SDK's resolver of questions names our functions; nobody has been asked well.
                return _error_result(_no_clear_answer(name))
            raise

    async def read_resource(self, uri: Any, context: Context[Any, Any] | None = None) -> Any:  # noqa: ANN401 (the SDK's own types)
        """Read a resource; a refusal reaches the client whole, as that of a tool does."""
        if len(str(uri)) > _MAX_URI_CHARS:
            # The SDK would repeat it whole in its refusal.
            raise ResourceNotFoundError(
                f"There is no such resource: no address here is longer than {_MAX_URI_CHARS} "
                f"characters, and this one has {len(str(uri))}."
            )
        try:
            return await super().read_resource(uri, context)
        except UnexpectedResourceError as error:
            cause = error.__cause__
            if not isinstance(cause, DevopsError):
                raise
            missing = isinstance(cause, NotFoundError | InvalidInputError)
            refusal = ResourceNotFoundError if missing else ResourceError
            raise refusal(_error_text(cause)) from cause

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        context: Context[Any, Any] | None = None,
    ) -> Any:  # noqa: ANN401 (the SDK's own union)
        """A prompt's text; refuses by name what the SDK would call an internal error."""
        known = {
            prompt.name: [argument.name for argument in prompt.arguments or []]
            for prompt in await self.list_prompts()
        }
        if name not in known:
            raise MCPError(INVALID_PARAMS, f"There is no such prompt. Allowed: {', '.join(known)}.")
        unknown = sorted(set(arguments or {}) - set(known[name]))
        if unknown:
            raise MCPError(INVALID_PARAMS, _not_arguments(name, unknown, known[name]).message)
        return await super().get_prompt(name, arguments, context)

    def _unknown(self, name: str) -> DevopsError:
        if name in self._hidden:
            return DevopsError(
                f"{name} is not available: {self._hidden[name]}.",
                next_action="Call get_help to see what this server offers and why.",
            )
        close = [tool for tool in self._arguments if name and (name in tool or tool in name)]
        return InvalidInputError(
            "name",
            f"there is no tool {name[:64]!r}.",
            allowed=", ".join(close or self._arguments),
        )


def app_of(ctx: Context[Any, Any]) -> Any:  # noqa: ANN401 (the caller knows its application's type)
    """The application behind the server that is answering this request."""
    return cast("StrictServer", ctx.mcp_server).app


def client_of(ctx: Context[Any, Any]) -> str:
    """The calling client as `name version`, for the audit log."""
    info = getattr(ctx.request_context.session, "client_params", None)
    client = getattr(info, "client_info", None)
    if client is None:
        meta = getattr(ctx.request_context, "meta", None) or {}
        raw = meta.get("io.modelcontextprotocol/clientInfo") if isinstance(meta, dict) else None
        if isinstance(raw, dict):
            return f"{raw.get('name', 'unknown')} {raw.get('version', '')}".strip()
        return "unknown"
    return f"{client.name} {client.version}".strip()


def _make(spec: ToolSpec, app: App) -> Tool:
    tool = Tool.from_function(
        _wrap(spec, app),
        name=spec.name,
        description=spec.description,
        annotations=ToolAnnotations(title=spec.title, **_ANNOTATIONS[spec.kind]),
        meta=spec.meta or None,
        structured_output=False,
    )
    schema = _slim(tool.parameters)
    # Unknown arguments are refused by `StrictServer.call_tool`; rebuilding every model with
    # `extra="forbid"` would say the same and cost a tenth of the time to start.
    schema["additionalProperties"] = False
    target = schema.get("properties", {}).get("target")
    if target is not None:
        _narrow(target, app.targets)
    schema.setdefault("properties", {})
    tool.parameters = schema
    return tool


def _wrap(spec: ToolSpec, app: App) -> Callable[..., Awaitable[CallToolResult]]:
    @functools.wraps(spec.fn)
    async def call(**arguments: Any) -> CallToolResult:  # noqa: ANN401
        ctx = next((v for v in arguments.values() if isinstance(v, Context)), None)
        call_id = secrets.token_hex(4)
        current_call.set(call_id)
        current_client.set(client_of(ctx) if ctx is not None else "unknown")
        audited = spec.kind is not Kind.READ

        def record(event: str, outcome: str) -> None:
            if not audited:
                return
            said = {
                key: value
                for key, value in arguments.items()
                if not isinstance(value, Context | BaseModel)
            }
            try:
                app.audit.record(
                    event=event,
                    call_id=call_id,
                    tool=spec.name,
                    client=current_client.get(),
                    arguments=said,
                    outcome=outcome,
                )
            except DevopsError as error:
                if event == "started" and spec.kind is not Kind.DESTRUCTIVE:
                    # Nothing is changed without a trace. But to end what costs money matters more
                    # than the line that says so.
                    raise
                unwritten.append(
                    f"Not in the audit log ({event}): {error.message} {error.words}".strip()
                )
                _log.error("call %s: %s is not in the audit log: %s", call_id, event, error.words)

        unwritten: list[str] = []
        begin_call(CALL_LIMIT_S - _LOOK_AFTER_S)
        try:
            record("started", "")
            _check_target(arguments.get("target"), app.targets)
            with anyio.move_on_after(CALL_LIMIT_S) as limit:
                answer = await spec.fn(**arguments)
            if limit.cancelled_caught:
                record("timed out", f"after {CALL_LIMIT_S:.0f} s")
                return _error_result(_too_slow(spec.name))
            record("finished", answer.summary)
            return _result(answer, [*app.ambient_warnings(), *unwritten[:1]])
        except DevopsError as error:
            record("refused", f"{error.code}: {error.message}")
            return _error_result(error)
        except (ToolError, anyio.get_cancelled_exc_class()):
            record("cancelled", "")
            raise
        except Exception as error:  # noqa: BLE001 (the edge: nothing unexpected may pass unnamed)
            record("crashed", type(error).__name__)
            return _error_result(_unexpected(spec.name, call_id, error, app.server_log))

    return call


def _too_slow(tool: str) -> DevopsError:
    return DevopsError(
        f"{tool} took longer than {CALL_LIMIT_S:.0f} s and was stopped.",
        cause="Something it asked did not answer. What it had begun may have happened.",
        next_action="Call get_status or list_deployments to see what is there.",
    )


def _check_target(target: object, targets: tuple[str, ...]) -> None:
    if target is not None and target not in targets:
        raise InvalidInputError("target", "is not on offer here.", allowed=", ".join(targets))


def _result(answer: Answer, ambient: list[str]) -> CallToolResult:
    tree = to_tree(answer)
    if ambient:
        tree["warnings"] = [*ambient, *tree.get("warnings", [])]
    content: list[ContentBlock] = [TextContent(type="text", text=to_markdown(tree))]
    content += [
        ImageContent(type="image", data=image.data, mime_type=image.mime_type)
        for image in answer.images
    ]
    return CallToolResult(content=content, structured_content=tree)


def _error_result(error: DevopsError) -> CallToolResult:
    """A tool error, whole in the text: Claude Code drops the structured part of an error."""
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.words:
        fields["words"] = error.words
    if error.cause:
        fields["cause"] = error.cause
    if error.retry_after_s is not None:
        fields["retry_after_s"] = error.retry_after_s
    fields |= error.details
    if error.next_action:
        fields["next_action"] = error.next_action
    return CallToolResult(
        content=[TextContent(type="text", text=_error_text(error))],
        structured_content={"error": fields},
        is_error=True,
    )


def _error_text(error: DevopsError) -> str:
    lines = [f"Error ({error.code}): {error.message}"]
    if error.words:
        lines.append(f"In its own words:\n```\n{error.words.strip()}\n```")
    if error.cause:
        lines.append(f"Likely cause: {error.cause}")
    if error.retry_after_s is not None:
        lines.append(f"retry_after_s: {error.retry_after_s}")
    lines += [f"{key}: {value}" for key, value in error.details.items()]
    if error.next_action:
        lines.append(f"Next: {error.next_action}")
    return "\n".join(lines)


def _no_clear_answer(tool: str) -> DevopsError:
    return ConfirmationError(
        f"The answer to whether {tool} may run was not in the form asked for. Nothing was done.",
        cause="The client sent something else than {action, content: {approve: true or false}}.",
        next_action=f"Call {tool} again with the same plan_id to ask once more.",
    )


def _not_arguments(tool: str, unknown: list[str], arguments: list[str]) -> DevopsError:
    names = ", ".join(name[:64] for name in unknown)
    return InvalidInputError(
        names,
        f"{tool} has no such argument; nothing was done.",
        allowed=", ".join(arguments) or "none",
    )


def _empty(tool: str, empty: list[str]) -> DevopsError:
    return InvalidInputError(
        ", ".join(empty),
        f"{tool} was not called: an empty text says nothing.",
        next_action=f"Leave out {', '.join(empty)} for the default, or give a value.",
    )


def _invalid(tool: str, error: ValidationError, arguments: list[str]) -> DevopsError:
    problems: list[str] = []
    fields: list[str] = []
    for item in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in item["loc"]) or "(arguments)"
        fields.append(where)
        if item["type"] == "missing":
            problems.append(f"{where}: is required")
        else:
            problems.append(f"{where}: {item['msg'].removeprefix('Value error, ')}")
    return InvalidInputError(
        ", ".join(dict.fromkeys(fields)),
        f"{tool} was not called: {'; '.join(problems)}.",
        next_action=f"Call {tool} again; its arguments: {', '.join(arguments) or 'none'}.",
    )


def _unexpected(tool: str, call_id: str, error: Exception, log: Path) -> DevopsError:
    report = "".join(traceback.format_exception(error))
    _log.error("unexpected error %s in %s\n%s", call_id, tool, report)
    try:
        private_folder(log.parent)
        with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{stamp()} error {call_id} in {tool}\n{report}\n")
        where = f"The traceback is in {log} under that id."
    except OSError as problem:
        where = f"The traceback went to the server's stderr ({log} cannot be written: {problem})."
    return DevopsError(
        f"Internal error {call_id} in {tool}: {type(error).__name__}.",
        cause=f"A fault of this server (version {VERSION}). {where}",
        next_action="Call get_status to see what is there; report the traceback.",
    )


def _narrow(schema: dict[str, Any], targets: tuple[str, ...]) -> None:
    """Put the offered targets into the schema of a `target` argument."""
    if "anyOf" in schema:
        schema.pop("anyOf")
    schema["type"] = "string"
    schema["enum"] = list(targets)
    if schema.get("default", "") is None:
        schema.pop("default")


# Checked all the same; a model does not choose its arguments by them.
_NOT_PUBLISHED = frozenset({"title", "maxLength", "minLength", "maxItems", "minItems"})


def _slim(schema: Any) -> Any:  # noqa: ANN401 (any JSON schema node)
    """The schema without pydantic's titles, length bounds and null alternatives."""
    if isinstance(schema, list):
        return [_slim(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    slim: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NOT_PUBLISHED and not isinstance(value, dict):
            continue
        if key in {"properties", "$defs"}:
            slim[key] = {name: _slim(item) for name, item in value.items()}
        else:
            slim[key] = _slim(value)
    options = slim.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        # Left out is how an argument is null: clients that send null are still accepted.
        kept = [option for option in options if option != {"type": "null"}]
        if len(kept) == 1:
            slim.pop("anyOf")
            slim = kept[0] | slim
    if slim.get("default", "") is None:
        slim.pop("default")
    return slim

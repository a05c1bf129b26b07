"""What "healthy" means for a vLLM endpoint, check by check.

A process that answers `/health` may still serve the wrong model, answer nothing, or count no
tokens. So health is a list of named checks: the required ones decide, the others say what the
deployment can do. A failed check is a finding with its next action, never an exception.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ConfigDict, Field

from backends.core.errors import DevopsError, EndpointRejectedError, EndpointUnreachableError
from backends.serving.answers import ChatResult, ServedModel
from backends.serving.endpoint import EndpointClient
from backends.serving.refusals import context_limit_named

CHAT_MAX_TOKENS = 64
"""Room enough that a reasoning parser, which may hold back the first tokens, leaves an answer."""

_PROMPT = "Answer with one short sentence: what is the capital of France?"
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class HealthCheck(BaseModel):
    """One check. Only failed checks that are `required` make an endpoint unhealthy."""

    model_config = ConfigDict(extra="forbid")

    name: str
    ok: bool
    required: bool
    detail: str
    duration_ms: float
    next_action: str = ""


class HealthReport(BaseModel):
    """The verdict and what it rests on."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    healthy: bool
    summary: str
    model: str | None = None
    served_models: list[str] = Field(default_factory=list)
    max_model_len: int | None = None
    version: str | None = None
    checks: list[HealthCheck]
    chat: ChatResult | None = None
    simulated: bool


class _Examination:
    """Runs checks one after the other and keeps what they found."""

    def __init__(self, client: EndpointClient) -> None:
        self.client = client
        self.checks: list[HealthCheck] = []
        self.served: list[ServedModel] = []
        self.version: str | None = None
        self.chat: ChatResult | None = None

    async def run(
        self, name: str, check: Callable[[], Awaitable[str]], *, required: bool = True
    ) -> bool:
        """Run one check; it returns its detail, or raises `_Failed` or a DevopsError."""
        started = time.perf_counter()
        ok, next_action = True, ""
        try:
            detail = await check()
        except _Failed as failed:
            ok, detail, next_action = False, str(failed), failed.next_action
        except DevopsError as error:
            words = f" It said: {error.words}" if error.words else ""
            cause = f" {error.cause}" if error.cause else ""
            ok, detail, next_action = False, f"{error.message}{words}{cause}", error.next_action
        self.checks.append(
            HealthCheck(
                name=name,
                ok=ok,
                required=required,
                detail=detail,
                duration_ms=(time.perf_counter() - started) * 1000,
                next_action=next_action,
            )
        )
        return ok

    def model(self) -> ServedModel | None:
        """The entry of the model that is asked for."""
        wanted = self.client.endpoint.model
        for entry in self.served:
            if wanted is None or entry.id == wanted:
                return entry
        return None


class _Failed(Exception):  # noqa: N818 - a finding, not an error of ours
    def __init__(self, detail: str, next_action: str) -> None:
        super().__init__(detail)
        self.next_action = next_action


async def check_health(
    client: EndpointClient, *, chat: bool = True, deep: bool = False, timeout_s: float = 35.0
) -> HealthReport:
    """Examine an endpoint.

    Always: `/health` answers, `/v1/models` lists the model. With `chat`: one real chat request is
    answered by the right model with content. With `deep` as well: the answer streams, the server
    counts tokens, a request past the context limit is refused with the limit named, and a tool
    call works (the last is a capability and does not make an endpoint unhealthy). Through
    SageMaker neither health nor models can be asked: the chat request is always sent, and decides.

    Args:
        client: The endpoint's client; its `endpoint.model`, where given, is the expected model.
        chat: Whether to send a chat request.
        deep: Whether to examine streaming, usage, limits and tools too; implies `chat`.
        timeout_s: Bound of each chat request, in seconds.

    Returns:
        The report; nothing is raised for an endpoint that is down.
    """
    found = _Examination(client)
    if client.endpoint.wire is not None:
        await found.run("chat", lambda: _chats_unseen(found, timeout_s))
    else:
        alive = await found.run("answers", lambda: _answers(found))
        listed = await found.run("model", lambda: _lists_model(found)) if alive else False
        if listed and (chat or deep):
            await found.run("chat", lambda: _chats(found, timeout_s))
    if deep and found.chat is not None:
        answer = found.chat
        await found.run("streaming", lambda: _streams(answer))
        await found.run("usage", lambda: _counts(answer))
        await found.run("context_limit", lambda: _limits(found, timeout_s))
        await found.run("tool_call", lambda: _calls_tool(found, timeout_s), required=False)
    failed = [check for check in found.checks if check.required and not check.ok]
    entry = found.model()
    return HealthReport(
        healthy=not failed,
        summary=_summary(found, failed),
        model=entry.id if entry else None,
        served_models=[model.id for model in found.served],
        max_model_len=entry.max_model_len if entry else None,
        version=found.version,
        checks=found.checks,
        chat=found.chat,
        simulated=client.endpoint.simulated,
    )


async def _answers(found: _Examination) -> str:
    latency_ms = await found.client.health()
    return f"/health answered 200 in {latency_ms:.0f} ms"


async def _lists_model(found: _Examination) -> str:
    found.served = await found.client.models()
    wanted = found.client.endpoint.model
    names = ", ".join(entry.id for entry in found.served) or "none"
    entry = found.model()
    if entry is None:
        asked = wanted or "any model"
        raise _Failed(
            f"/v1/models lists {names}, not {asked}",
            f"Ask for {found.served[0].id}, or deploy {asked} under that name."
            if found.served
            else "Read get_logs for why no model was loaded.",
        )
    limit = f", context {entry.max_model_len} tokens" if entry.max_model_len else ""
    try:
        found.version = await found.client.version()
    except DevopsError:
        # not part of the OpenAI API: a gateway in front may hide it, which is no fault
        return f"serves {entry.id}{limit} (all: {names})"
    return f"serves {entry.id}{limit} with vLLM {found.version} (all: {names})"


async def _chats(found: _Examination, timeout_s: float) -> str:
    entry = found.model()
    asked = entry.id if entry else None
    answer = await found.client.chat(
        _PROMPT, model=asked, max_tokens=CHAT_MAX_TOKENS, temperature=0.0, timeout_s=timeout_s
    )
    found.chat = answer
    if answer.model and answer.model != asked:
        raise _Failed(
            f"asked for {asked}, answered by {answer.model}",
            "Check which deployment this address leads to.",
        )
    if not (answer.text.strip() or answer.reasoning.strip() or answer.tool_calls):
        raise _Failed(
            f"the answer was empty (finish_reason={answer.finish_reason})",
            "Check the chat template and the checkpoint: an instruction-tuned one is needed.",
        )
    ttft = "" if answer.ttft_ms is None else f", first token after {answer.ttft_ms:.0f} ms"
    count = answer.usage.completion_tokens
    tokens = "" if count is None else f"{count} tokens, "
    kind = "content" if answer.text.strip() else "reasoning only"
    return f"answered with {kind}: {tokens}{answer.e2e_ms:.0f} ms in all{ttft}"


async def _chats_unseen(found: _Examination, timeout_s: float) -> str:
    """Chat with a model that cannot be listed; what answered under its name is what is served."""
    endpoint = found.client.endpoint
    assert endpoint.model is not None  # noqa: S101 - an endpoint with a wire names its model
    known = ServedModel(id=endpoint.model, max_model_len=endpoint.max_model_len)
    found.served = [known]
    try:
        return await _chats(found, timeout_s)
    finally:
        if found.chat is None:
            found.served = []


async def _streams(answer: ChatResult) -> str:
    if not answer.streamed:
        raise _Failed(
            "the answer came whole although a stream was asked for",
            "Check for a buffering proxy or gateway in front of the server.",
        )
    return "the answer came as an event stream that ended with [DONE]"


async def _counts(answer: ChatResult) -> str:
    usage = answer.usage
    if not usage.prompt_tokens or not usage.completion_tokens:
        raise _Failed(
            "the server sent no usage although stream_options.include_usage was set",
            "Token counts and cost cannot be trusted here; check what stands in front of vLLM.",
        )
    return f"{usage.prompt_tokens} prompt and {usage.completion_tokens} output tokens counted"


async def _limits(found: _Examination, timeout_s: float) -> str:
    entry = found.model()
    limit = entry.max_model_len if entry else None
    if entry is None or limit is None:
        if found.client.endpoint.wire is not None:
            return "not examined: the context it was deployed with is not known"
        raise _Failed("/v1/models names no max_model_len", "Check that this is vLLM.")
    try:
        # asks for more output than the context holds: refused before anything is generated
        await found.client.chat(
            "Hi", model=entry.id, max_tokens=limit + 1, timeout_s=min(timeout_s, 10.0)
        )
    except EndpointRejectedError as error:
        if error.status == 400 and context_limit_named(error.words) == limit:
            return f"a request past {limit} tokens was refused with 400 and the limit named"
        raise _Failed(
            f"refused with {error.status}, but the limit {limit} is not named: {error.words}",
            "Check what stands in front of vLLM.",
        ) from None
    except EndpointUnreachableError as error:
        raise _Failed(
            f"a request for {limit + 1} output tokens was not refused: {error.message}",
            "Check what stands in front of vLLM.",
        ) from None
    raise _Failed(
        f"a request for {limit + 1} output tokens was accepted",
        "Check that max_model_len is what you deployed.",
    )


async def _calls_tool(found: _Examination, timeout_s: float) -> str:
    entry = found.model()
    answer = await found.client.chat(
        "What is the weather in Paris? Use the tool.",
        model=entry.id if entry else None,
        max_tokens=256,
        temperature=0.0,
        tools=[_TOOL],
        tool_choice="auto",
        timeout_s=timeout_s,
    )
    for call in answer.tool_calls:
        if call.name == "get_weather":
            try:
                arguments = json.loads(call.arguments)
            except ValueError:
                raise _Failed(
                    f"the call's arguments are not JSON: {call.arguments[:100]}",
                    "Check that --tool-call-parser fits the model.",
                ) from None
            return f"called get_weather with {json.dumps(arguments)}"
    raise _Failed(
        f"no tool call came, but text: {answer.text[:100]!r}",
        "Tools need --enable-auto-tool-choice, --tool-call-parser and a model that was trained "
        "for them.",
    )


def _summary(found: _Examination, failed: list[HealthCheck]) -> str:
    who = found.client.endpoint.source or found.client.endpoint.base_url
    if failed:
        return f"{who} is not healthy: {failed[0].name}: {failed[0].detail}"
    lacking = [check.name for check in found.checks if not check.ok]
    passed = len(found.checks) - len(lacking)
    also = f"; not available: {', '.join(lacking)}" if lacking else ""
    return f"{who} is healthy: {passed} of {len(found.checks)} checks passed{also}."

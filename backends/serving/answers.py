"""What an endpoint answered, as values: served models, token counts, a finished chat completion."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from backends.serving.stats import Distribution, distribution
from backends.serving.wire import StreamTally


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ServedModel(_Shape):
    """One entry of `/v1/models`."""

    id: str
    max_model_len: int | None = Field(None, description="context length in tokens")
    root: str | None = Field(None, description="where the weights were loaded from")


class Tokens(_Shape):
    """The answer of `/tokenize`."""

    count: int
    max_model_len: int | None = None


class Usage(_Shape):
    """Tokens as the server counted them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    reasoning_tokens: int | None = None


class ToolCall(_Shape):
    """A tool call the model made; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class ChatResult(_Shape):
    """A finished chat completion, with what it cost in time.

    Definitions: TTFT runs from sending the request (after the connection stands) to the first
    event with non-empty text, reasoning or tool call; E2E to the last such event; ITL is the gap
    between content events; decode tokens/s = (tokens - 1) / (last - first content event).
    """

    text: str
    reasoning: str
    tool_calls: list[ToolCall]
    finish_reason: str
    model: str
    request_id: str
    usage: Usage
    token_count_source: Literal["server usage", "content events (a lower bound)"]
    ttft_ms: float | None
    e2e_ms: float
    itl_ms: Distribution
    output_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    connect_ms: float | None = Field(None, description="TCP and TLS set-up, not part of TTFT")
    streamed: bool
    simulated: bool


def chat_result(
    tally: StreamTally,
    *,
    sent_ns: int,
    end_ns: int,
    connect_ms: float | None,
    streamed: bool,
    simulated: bool,
) -> ChatResult:
    """Turn what a stream was into the result of a query.

    Args:
        tally: The stream, which ended well.
        sent_ns: When the request left, on the clock the tally was stamped with.
        end_ns: When the last byte came.
        connect_ms: What setting up the connection took, or None when one stood already.
        streamed: False when the server answered whole; there is no TTFT then.
        simulated: Whether a simulator answered.
    """
    times = tally.content_ns
    last_ns = times[-1] if times else end_ns
    e2e_s = (last_ns - sent_ns) / 1e9
    prompt, completion = tally.prompt_tokens, tally.completion_tokens
    tokens = len(times) if completion is None else completion
    decode_s = (last_ns - times[0]) / 1e9 if len(times) > 1 else 0.0
    return ChatResult(
        text="".join(tally.text),
        reasoning="".join(tally.reasoning),
        tool_calls=[ToolCall(**call) for _, call in sorted(tally.tool_calls.items())],
        finish_reason=tally.finish_reason or "",
        model=tally.model,
        request_id=tally.request_id,
        usage=Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=None if prompt is None or completion is None else prompt + completion,
            cached_prompt_tokens=tally.cached_tokens,
            reasoning_tokens=tally.reasoning_tokens,
        ),
        token_count_source="content events (a lower bound)"
        if completion is None
        else "server usage",
        ttft_ms=(times[0] - sent_ns) / 1e6 if times and streamed else None,
        e2e_ms=e2e_s * 1000,
        itl_ms=distribution([(after - before) / 1e6 for before, after in pairwise(times)]),
        output_tokens_per_s=tokens / e2e_s if e2e_s > 0 else None,
        decode_tokens_per_s=(tokens - 1) / decode_s if decode_s > 0 and tokens > 1 else None,
        connect_ms=connect_ms,
        streamed=streamed,
        simulated=simulated,
    )

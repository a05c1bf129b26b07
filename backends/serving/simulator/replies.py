"""What the simulated model answers: prose, reasoning, tool calls, or JSON of a wanted shape.

A reply is known in full before its first token is due; the engine only decides when each token
comes. At temperature 0, or with a seed, it depends on the prompt alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

from backends.serving.simulator.text import fingerprint, split, write

MIN_NATURAL_TOKENS = 150
MAX_NATURAL_TOKENS = 350
REASONING_TOKENS = 40
_MAX_SCHEMA_DEPTH = 8


class Kind(Enum):
    """Which part of the message a token belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"
    HIDDEN = "hidden"


class Delta(NamedTuple):
    """One token: the part it belongs to and its text."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What of a request shapes its reply.

    Args:
        max_tokens: Most tokens to generate, at least 1.
        min_tokens: Fewest tokens before the model may stop by itself.
        ignore_eos: Whether to go on to `max_tokens` whatever is said.
        stop: Strings that end the text.
        thinking: Whether to reason first.
        tool: Name and JSON schema of the arguments of the tool to call, if one is to be called.
        tool_finish_reason: Finish reason of a tool call: `tool_calls`, or `stop` for a named one.
        json_schema: Schema the content must satisfy; None for prose.
    """

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    thinking: bool = False
    tool: tuple[str, Mapping[str, Any]] | None = None
    tool_finish_reason: str = "tool_calls"
    json_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply.

    Args:
        deltas: Its tokens.
        finish_reason: `stop`, `length` or `tool_calls`.
        stop_reason: The stop string that ended it, if one did.
        engine_reason: Finish reason in the engine's own count: `stop` or `length`.
    """

    deltas: list[Delta]
    finish_reason: str
    stop_reason: str | None
    engine_reason: str

    def text(self, kind: Kind) -> str:
        """All text of one kind."""
        return "".join(delta.text for delta in self.deltas if delta.kind is kind)

    def count(self, kind: Kind) -> int:
        """Tokens of one kind."""
        return sum(1 for delta in self.deltas if delta.kind is kind)


def plan_reply(wish: Wish, prompt: Sequence[str | int], salt: object) -> Reply:
    """Write the reply to a prompt.

    Args:
        wish: What the request asks for.
        prompt: Tokens of the prompt.
        salt: Equal for replies that should be equal.
    """
    seed = fingerprint(prompt, salt)
    script = _script(wish, seed)
    finish = "stop" if wish.tool is None else wish.tool_finish_reason
    if wish.ignore_eos or len(script) < wish.min_tokens:
        wanted = wish.max_tokens if wish.ignore_eos else min(wish.min_tokens, wish.max_tokens)
        prose = write(seed + 1)
        missing = max(0, wanted - len(script))
        script += [Delta(Kind.CONTENT, piece) for piece in islice(prose, missing)]
    if len(script) > wish.max_tokens or (wish.ignore_eos and not wish.stop):
        reply = Reply(script[: wish.max_tokens], "length", None, "length")
    else:
        reply = Reply(script, finish, None, "stop")
    return _cut_at_stop(reply, wish.stop) if wish.stop else reply


def _script(wish: Wish, seed: int) -> list[Delta]:
    deltas: list[Delta] = []
    if wish.thinking:
        deltas.append(Delta(Kind.HIDDEN, "<|channel>"))
        thought = islice(write(seed + 2), REASONING_TOKENS)
        deltas += [Delta(Kind.REASONING, piece) for piece in thought]
        deltas.append(Delta(Kind.HIDDEN, "<channel|>"))
    if wish.tool is not None:
        name, schema = wish.tool
        arguments = json.dumps(example(schema, seed), ensure_ascii=False)
        deltas += [Delta(Kind.HIDDEN, "<|tool_call>"), Delta(Kind.TOOL_NAME, name)]
        deltas += [Delta(Kind.TOOL_ARGUMENTS, piece) for piece in split(arguments)]
        deltas.append(Delta(Kind.HIDDEN, "<tool_call|>"))
        return deltas
    if wish.json_schema is not None:
        content = json.dumps(example(wish.json_schema, seed), ensure_ascii=False)
        return deltas + [Delta(Kind.CONTENT, piece) for piece in split(content)]
    span = MAX_NATURAL_TOKENS - MIN_NATURAL_TOKENS
    natural = MIN_NATURAL_TOKENS + seed % (span + 1)
    # One token past the limit is enough to know that the limit was what ended it.
    wanted = max(min(natural, wish.max_tokens + 1 - len(deltas)), 0)
    return deltas + [Delta(Kind.CONTENT, piece) for piece in islice(write(seed), wanted)]


def _cut_at_stop(reply: Reply, stops: Sequence[str]) -> Reply:
    text = reply.text(Kind.CONTENT)
    hits = [(text.find(stop), stop) for stop in stops if stop and stop in text]
    if not hits:
        return reply
    start, stop = min(hits)
    kept: list[Delta] = []
    position = 0
    for delta in reply.deltas:
        if delta.kind is Kind.CONTENT:
            kept.append(Delta(Kind.CONTENT, delta.text[: max(start - position, 0)]))
            position += len(delta.text)
            if position >= start + len(stop):
                break
        else:
            kept.append(delta)
    return Reply(kept, "stop", stop, "stop")


def example(schema: Mapping[str, Any], seed: int, depth: int = 0) -> object:
    """A value that satisfies a JSON schema of the usual keywords.

    Args:
        schema: `type`, `enum`, `const`, `default`, `properties`, `required`, `items`, `anyOf`, ...
        seed: Chooses among what is allowed.
        depth: How deep the call is nested; deeper than 8 gives nulls.
    """
    fixed = [schema[keyword] for keyword in ("const", "default") if keyword in schema]
    options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    value: object = None
    if depth > _MAX_SCHEMA_DEPTH:
        pass
    elif fixed:
        value = fixed[0]
    elif schema.get("enum"):
        value = schema["enum"][seed % len(schema["enum"])]
    elif options:
        value = example(options[0], seed, depth + 1)
    elif kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        required = schema.get("required") or list(properties)
        value = {
            name: example(properties.get(name, {}), seed + index, depth + 1)
            for index, name in enumerate(required)
        }
    elif kind == "array":
        count = max(1, schema.get("minItems", 1))
        value = [example(schema.get("items", {}), seed + n, depth + 1) for n in range(count)]
    else:
        value = _example_scalar(kind, schema, seed)
    return value


def _example_scalar(kind: object, schema: Mapping[str, Any], seed: int) -> object:
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        value: float = min(low + seed % 7, schema.get("maximum", low + 7))
        return value
    if kind == "boolean":
        return seed % 2 == 0
    if kind == "null":
        return None
    text = "simulated " + "".join(islice(write(seed), 9, 11)).strip()
    return text[: schema.get("maxLength", len(text))].ljust(schema.get("minLength", 0), "x")

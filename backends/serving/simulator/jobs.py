"""From a request to sequences for the engine: templates, limits, tool choice, the planned reply."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backends.serving.simulator.config import SimulatorConfig
from backends.serving.simulator.engine import Group, SequenceState
from backends.serving.simulator.kv_pool import BLOCK_TOKENS, hash_blocks
from backends.serving.simulator.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    RefusalError,
    parameter_refusal,
    too_long_refusal,
)
from backends.serving.simulator.replies import Delta, Kind, Reply, Wish, plan_reply
from backends.serving.simulator.text import is_media, render_chat, split

Token = str | int


class Delivery:
    """Wakes the one coroutine that sends a request's tokens.

    `gone` is set once the client has left. With `whole` set, tokens alone wake nobody: only the
    end of all sequences does.
    """

    def __init__(self) -> None:
        self.gone = False
        self.whole = False
        self.unfinished = 0
        self._waiter: asyncio.Future[None] | None = None

    def token(self) -> None:
        """A sequence has a new token."""
        if not self.whole:
            self.wake()

    def end(self) -> None:
        """A sequence has ended."""
        self.unfinished -= 1
        if not self.whole or self.unfinished <= 0:
            self.wake()

    def wake(self) -> None:
        """Look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def leave(self) -> None:
        """The client has left."""
        self.gone = True
        self.wake()

    async def wait(self) -> None:
        """Wait for something new; several notices before this are not kept, so look first."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter


@dataclass(slots=True)
class Choice:
    """One answer of a request.

    Args:
        index: Its place among `choices`.
        sequence: Its sequence in the engine.
        reply: What it will say.
        echo: Text to send before the reply (`echo` of plain completions).
    """

    index: int
    sequence: SequenceState
    reply: Reply
    echo: str = ""


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the engine.

    Args:
        request_id: `chatcmpl-...` or `cmpl-...`.
        created: Unix time.
        model: Served name used in answers.
        chat: Chat completion, or plain completion.
        prompt_tokens: Tokens of all prompts together.
        choices: The answers.
        delivery: Wakes the sender.
    """

    request_id: str
    created: int
    model: str
    chat: bool
    prompt_tokens: int
    choices: list[Choice]
    delivery: Delivery

    @property
    def sequences(self) -> list[SequenceState]:
        """The engine's side of the choices."""
        return [choice.sequence for choice in self.choices]

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""
        return max(choice.sequence.cached_tokens for choice in self.choices)


class JobBuilder:
    """Builds jobs.

    Args:
        config: Limits, parsers and seed.
    """

    def __init__(self, config: SimulatorConfig) -> None:
        self._config = config

    def chat(self, request: ChatRequest, delivery: Delivery) -> Job:
        """Job of a chat completion.

        Raises:
            RefusalError: vLLM would refuse it too, or the simulator cannot do it (logprobs).
        """
        _refuse_logprobs(wanted=bool(request.logprobs))
        if not request.messages:
            raise RefusalError(
                400,
                "Cannot apply chat template to an empty conversation. Provide at least one "
                "message.",
            )
        if self._config.language_model_only and _has_media(request.messages):
            name = self._config.served_model_names[0]
            raise RefusalError(400, f"{name} is not a multimodal model")
        tool = self._chosen_tool(request)
        prompt = self.chat_prompt(request.messages, request.tools)
        template = request.chat_template_kwargs or {}
        wanted = request.max_tokens
        if request.max_completion_tokens is not None:
            wanted = request.max_completion_tokens
        wish = Wish(
            max_tokens=self._output_limit(len(prompt), wanted),
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop=request.stop_strings,
            thinking=bool(template.get("enable_thinking")),
            tool=tool,
            tool_finish_reason="stop" if request.named_function else "tool_calls",
            json_schema=_wanted_schema(request.response_format),
        )
        return self._job("chatcmpl", [(prompt, "")], request, wish, delivery)

    def completion(self, request: CompletionRequest, delivery: Delivery) -> Job:
        """Job of a plain completion.

        Raises:
            RefusalError: As for `chat`.
        """
        _refuse_logprobs(wanted=request.logprobs is not None)
        prompts: list[tuple[Sequence[Token], str]] = []
        for prompt in _prompts(request.prompt):
            text = prompt if isinstance(prompt, str) else ""
            tokens: Sequence[Token] = split(prompt) if isinstance(prompt, str) else prompt
            prompts.append((tokens or ["<bos>"], text if request.echo else ""))
        if not prompts:
            raise RefusalError(400, "You must pass at least one prompt")
        wanted = 16 if request.max_tokens is None else request.max_tokens
        wish = Wish(
            max_tokens=min(self._output_limit(len(tokens), wanted) for tokens, _ in prompts),
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop=request.stop_strings,
        )
        return self._job("cmpl", prompts, request, wish, delivery)

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool = True,
    ) -> list[str]:
        """The prompt a chat becomes, as pieces."""
        tools_text = json.dumps(tools, separators=(",", ":")) if tools else ""
        return render_chat(
            messages,
            tools_text,
            image_tokens=self._config.checkpoint.image_tokens,
            add_generation_prompt=add_generation_prompt,
        )

    def _output_limit(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """Tokens a prompt leaves room for; like vLLM, more than that is cut, not refused."""
        limit = self._config.max_model_len
        if max_tokens is not None and max_tokens > limit:
            raise parameter_refusal(
                f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}. "
                "Please request fewer output tokens.",
                "max_tokens",
                max_tokens,
            )
        if prompt_tokens > limit:
            raise too_long_refusal(limit)
        room = limit - prompt_tokens
        wanted = room if max_tokens is None else min(max_tokens, room)
        if wanted < 1:
            message = f"max_tokens must be at least 1, got {wanted}."
            raise parameter_refusal(message, "max_tokens", wanted)
        return wanted

    def _chosen_tool(self, request: ChatRequest) -> tuple[str, Mapping[str, Any]] | None:
        functions, choice = request.functions, request.tool_choice
        if not functions or choice == "none":
            return None
        function: Mapping[str, Any] | None = request.named_function
        if choice is None or choice == "auto":
            if not self._config.tool_call_parser:
                raise RefusalError(
                    400,
                    '"auto" tool choice requires --enable-auto-tool-choice and '
                    "--tool-call-parser to be set",
                )
            # A model that has just been given a tool's result answers in words.
            last = request.messages[-1]
            if last.get("role") != "user":
                return None
            function = _best_match(functions, str(last.get("content", "")))
        elif function is None:
            function = functions[0]
        return str(function.get("name", "")), function.get("parameters") or {}

    def _job(
        self,
        prefix: str,
        prompts: Sequence[tuple[Sequence[Token], str]],
        request: GenerationRequest,
        wish: Wish,
        delivery: Delivery,
    ) -> Job:
        request.check_sampling(wish.max_tokens)
        n = request.n or 1
        names = self._config.served_model_names
        job = Job(
            request_id=f"{prefix}-{secrets.token_hex(8)}",
            created=int(time.time()),
            model=request.model if request.model in names else names[0],
            chat=prefix == "chatcmpl",
            prompt_tokens=sum(len(tokens) for tokens, _ in prompts),
            choices=[],
            delivery=delivery,
        )
        greedy = request.temperature == 0
        for tokens, echo in prompts:
            group = Group(n, n)
            hashes = hash_blocks(tokens)
            for index in range(n):
                salt: tuple[object, ...] = (self._config.seed,)
                if not greedy:
                    seed = request.seed if request.seed is not None else secrets.token_hex(8)
                    salt = (self._config.seed, seed, index)
                reply = plan_reply(wish, tokens, salt)
                if wish.thinking and not self._config.reasoning_parser:
                    reply = _unparsed(reply)
                sequence = SequenceState(
                    prompt_tokens=len(tokens),
                    block_hashes=hashes,
                    target_tokens=len(reply.deltas),
                    ends_with=reply.engine_reason,
                    max_tokens=wish.max_tokens,
                    group=group,
                    listener=delivery,
                    output_hashes=_OutputHashes(tokens, hashes, reply.deltas),
                )
                job.choices.append(Choice(len(job.choices), sequence, reply, echo))
        delivery.unfinished = len(job.choices)
        return job


@dataclass(slots=True)
class _OutputHashes:
    """Hashes of the blocks after a prompt's full ones, computed only when the sequence ends."""

    prompt: Sequence[Token]
    hashes: Sequence[int]
    deltas: Sequence[Delta]

    def __call__(self, blocks: int) -> list[int]:
        start = len(self.hashes) * BLOCK_TOKENS
        tokens: list[Token] = [*self.prompt[start:], *(delta.text for delta in self.deltas)]
        parent = self.hashes[-1] if self.hashes else 0
        return hash_blocks(tokens[: blocks * BLOCK_TOKENS], parent)


def _refuse_logprobs(*, wanted: bool) -> None:
    if wanted:
        raise parameter_refusal(
            "The simulator has no probabilities: logprobs are not supported.",
            "logprobs",
            value=True,
        )


def _prompts(
    prompt: list[int] | list[list[int]] | str | list[str] | None,
) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        return []
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [part for part in prompt if not isinstance(part, int)]


def _unparsed(reply: Reply) -> Reply:
    """The reply as it looks when no reasoning parser takes the thoughts out of the content."""
    deltas = [
        Delta(Kind.CONTENT, delta.text) if delta.kind is Kind.REASONING else delta
        for delta in reply.deltas
    ]
    return replace(reply, deltas=deltas)


def _has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(
        isinstance(part, Mapping) and is_media(part)
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def _wanted_schema(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    kind = (response_format or {}).get("type")
    if response_format is None or kind in (None, "text"):
        return None
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
        return schema if isinstance(schema, Mapping) else {"type": "object"}
    return {"type": "object", "properties": {"simulated": {"const": True}}}


def _best_match(functions: Sequence[Mapping[str, Any]], text: str) -> Mapping[str, Any]:
    """The function whose name shares most words with the text; the first one if none does."""
    words = set(text.lower().replace("?", " ").replace(".", " ").split())

    def shared(function: Mapping[str, Any]) -> int:
        return len(words & set(str(function.get("name", "")).lower().split("_")))

    return max(functions, key=shared)

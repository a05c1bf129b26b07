"""The bodies of completions: whole ones, and event streams chunk by chunk."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from backends.serving.simulator.jobs import Choice, Job
from backends.serving.simulator.protocol import SYSTEM_FINGERPRINT
from backends.serving.simulator.replies import Delta, Kind

DONE = b"data: [DONE]\n\n"


def dump(data: object) -> str:
    """Compact JSON as vLLM writes it: no spaces, characters as they are."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def event(text: str) -> bytes:
    """One server-sent event."""
    return f"data: {text}\n\n".encode("utf-8", "replace")


class UsageStyle:
    """Which details `usage` carries; set by the server's flags.

    Args:
        cached: `--enable-prompt-tokens-details`.
        reasoning: A reasoning parser is set.
    """

    def __init__(self, *, cached: bool, reasoning: bool) -> None:
        self.cached = cached
        self.reasoning = reasoning

    def whole(self, job: Job) -> dict[str, Any]:
        """`usage` of a whole answer."""
        usage = self._counts(job.prompt_tokens, sum(s.generated for s in job.sequences))
        usage["prompt_tokens_details"] = (
            self._cached(job) | {"multimodal_tokens": None} if self.cached else None
        )
        details = self.reasoning and job.chat
        usage["completion_tokens_details"] = self._reasoning(job) if details else None
        return usage

    def last_event(self, job: Job) -> dict[str, Any]:
        """`usage` of the last event of a stream."""
        usage = self._counts(job.prompt_tokens, sum(s.generated for s in job.sequences))
        if self.cached:
            usage["prompt_tokens_details"] = self._cached(job)
        if self.reasoning and job.chat:
            usage["completion_tokens_details"] = self._reasoning(job)
        return usage

    def running(self, job: Job, choice: Choice, sent: int) -> dict[str, Any]:
        """`usage` of an event in the middle of a stream."""
        usage = self._counts(choice.sequence.prompt_tokens, sent)
        if not job.chat:
            return usage
        thought = sum(1 for d in choice.reply.deltas[:sent] if d.kind is Kind.REASONING)
        usage["completion_tokens_details"] = (
            {"reasoning_tokens": thought} if self.reasoning else None
        )
        return usage

    @staticmethod
    def _counts(prompt: int, completion: int) -> dict[str, Any]:
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }

    @staticmethod
    def _cached(job: Job) -> dict[str, Any]:
        return {"cached_tokens": job.cached_tokens, "created_cache_tokens": 0}

    @staticmethod
    def _reasoning(job: Job) -> dict[str, Any]:
        return {"reasoning_tokens": sum(c.reply.count(Kind.REASONING) for c in job.choices)}


def chat_body(job: Job, usage: dict[str, Any]) -> dict[str, Any]:
    """Body of a whole chat completion."""
    return {
        "id": job.request_id,
        "object": "chat.completion",
        "created": job.created,
        "model": job.model,
        "choices": [_chat_choice(choice) for choice in job.choices],
        "service_tier": None,
        "system_fingerprint": SYSTEM_FINGERPRINT,
        "usage": usage,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _chat_choice(choice: Choice) -> dict[str, Any]:
    reply = choice.reply
    content = reply.text(Kind.CONTENT)
    name = reply.text(Kind.TOOL_NAME)
    # vLLM's parsers turn an empty text into null.
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content or None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if name:
        arguments = reply.text(Kind.TOOL_ARGUMENTS)
        function = {"name": name, "arguments": arguments}
        message["tool_calls"] = [{"id": _tool_call_id(), "type": "function", "function": function}]
    message["reasoning"] = reply.text(Kind.REASONING) or None
    return {
        "index": choice.index,
        "message": message,
        "logprobs": None,
        "finish_reason": reply.finish_reason,
        "stop_reason": reply.stop_reason,
        "token_ids": None,
        "routed_experts": None,
    }


def completion_body(job: Job, usage: dict[str, Any]) -> dict[str, Any]:
    """Body of a whole plain completion."""
    return {
        "id": job.request_id,
        "object": "text_completion",
        "created": job.created,
        "model": job.model,
        "choices": [
            {
                "index": choice.index,
                "text": choice.echo + choice.reply.text(Kind.CONTENT),
                "logprobs": None,
                "finish_reason": choice.reply.finish_reason,
                "stop_reason": choice.reply.stop_reason,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for choice in job.choices
        ],
        "service_tier": None,
        "system_fingerprint": SYSTEM_FINGERPRINT,
        "usage": usage,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _tool_call_id() -> str:
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


class EventWriter:
    """Writes the events of one stream.

    Args:
        job: The request.
        usage: Details of `usage`.
        include_usage: Whether a last event carries `usage`.
        continuous: Whether every event does.
    """

    def __init__(
        self, job: Job, usage: UsageStyle, *, include_usage: bool, continuous: bool
    ) -> None:
        self._job = job
        self._usage = usage
        self._include_usage = include_usage
        self._continuous = include_usage and continuous
        kind = "chat.completion.chunk" if job.chat else "text_completion"
        self._head = (
            f'{{"id":"{job.request_id}","object":"{kind}","created":{job.created},'
            f'"model":{dump(job.model)},"choices":'
        )
        self._system = f',"system_fingerprint":{dump(SYSTEM_FINGERPRINT)}'

    def openings(self) -> list[bytes]:
        """The events before the first token: the role of each choice, in chat."""
        if not self._job.chat:
            return []
        delta = '{"role":"assistant","content":""}'
        return [
            event(
                f'{self._head}[{{"index":{choice.index},"delta":{delta},"logprobs":null,'
                f'"finish_reason":null}}]{self._running_usage(choice, 0)},'
                '"prompt_token_ids":null,"prompt_text":null}'
            )
            for choice in self._job.choices
        ]

    def tokens(self, choice: Choice, start: int, end: int) -> Iterator[bytes]:
        """Events of the tokens from `start` to `end`; the last one of a choice says why it ended.

        Tokens that came while the client was not keeping up share an event, as in vLLM.
        """
        deltas = choice.reply.deltas[start:end]
        last = end >= len(choice.reply.deltas)
        if not self._job.chat:
            text = "".join(delta.text for delta in deltas if delta.kind is Kind.CONTENT)
            if start == 0:
                text = choice.echo + text
            yield self._event(choice, f'"text":{dump(text)}', end, last=last)
            return
        parts = list(self._chat_parts(deltas))
        if last and not parts:
            parts = ['{"content":""}']
        for number, part in enumerate(parts, 1):
            ends = last and number == len(parts)
            yield self._event(choice, f'"delta":{part}', end, last=ends)

    def closing(self) -> list[bytes]:
        """The events after the last token."""
        events = []
        if self._include_usage:
            usage = dump(self._usage.last_event(self._job))
            events.append(event(f'{self._head}[],"usage":{usage}{self._system}}}'))
        events.append(DONE)
        return events

    def _chat_parts(self, deltas: Sequence[Delta]) -> Iterator[str]:
        for kind, group in groupby(deltas, key=lambda delta: delta.kind):
            text = "".join(delta.text for delta in group)
            if kind is Kind.CONTENT:
                yield f'{{"content":{dump(text)}}}'
            elif kind is Kind.REASONING:
                yield f'{{"reasoning":{dump(text)}}}'
            elif kind is Kind.TOOL_NAME:
                function = {"name": text, "arguments": ""}
                call = {"id": _tool_call_id(), "type": "function", "index": 0}
                yield dump({"tool_calls": [call | {"function": function}]})
            elif kind is Kind.TOOL_ARGUMENTS:
                yield dump({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})

    def _event(self, choice: Choice, part: str, sent: int, *, last: bool) -> bytes:
        finish, stop_reason = "null", ""
        system = ""
        if last:
            finish = dump(choice.reply.finish_reason)
            system = "" if self._include_usage else self._system
        if not self._job.chat:
            reason = dump(choice.reply.stop_reason) if last else "null"
            stop_reason = f',"stop_reason":{reason},"prompt_token_ids":null'
        elif last:
            stop_reason = f',"stop_reason":{dump(choice.reply.stop_reason)}'
        usage = self._running_usage(choice, sent)
        return event(
            f'{self._head}[{{"index":{choice.index},{part},"logprobs":null,'
            f'"finish_reason":{finish}{stop_reason},"token_ids":null}}]{usage}{system}}}'
        )

    def _running_usage(self, choice: Choice, sent: int) -> str:
        if not self._continuous:
            return ""
        return f',"usage":{dump(self._usage.running(self._job, choice, sent))}'

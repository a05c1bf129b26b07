"""vLLM's HTTP contract: what requests may hold, and the bodies of its answers and refusals.

Shapes as recorded from vLLM 0.32.0 (2026-11-30): key order, nulls and wording included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

VLLM_VERSION = "0.32.0"
SIMULATED_VERSION = f"{VLLM_VERSION}+simulated"
SYSTEM_FINGERPRINT = f"vllm-{SIMULATED_VERSION}"

ModelT = TypeVar("ModelT", bound=BaseModel)


class RefusalError(Exception):
    """An answer that is an error. Its body is ready to send.

    Args:
        status: HTTP status.
        message: vLLM's wording.
        kind: `BadRequestError`, `NotFoundError`, ...
        param: The field at fault.
    """

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


class EngineDeadError(RefusalError):
    """The engine has died; vLLM answers 500 with these words."""

    def __init__(self) -> None:
        super().__init__(
            500,
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "InternalServerError",
        )


class StreamOptions(BaseModel):
    """`stream_options` of a request."""

    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class GenerationRequest(BaseModel):
    """The fields chat and plain completions share; unknown ones are let through, as vLLM does."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    n: int | None = 1
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    user: str | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def check_sampling(self) -> None:
        """Refuse sampling parameters vLLM refuses.

        Raises:
            RefusalError: 400, naming the parameter.
        """
        checks: Sequence[tuple[str, float | None, bool, str]] = (
            (
                "temperature",
                self.temperature,
                self.temperature is None or self.temperature >= 0,
                "temperature must be non-negative, got {}.",
            ),
            (
                "top_p",
                self.top_p,
                self.top_p is None or 0 < self.top_p <= 1,
                "top_p must be in (0, 1], got {}.",
            ),
            (
                "top_k",
                self.top_k,
                self.top_k is None or self.top_k >= -1,
                "top_k must be 0 (disable), or at least 1, got {}.",
            ),
            ("n", self.n, self.n is None or self.n >= 1, "n must be at least 1, got {}."),
            (
                "max_tokens",
                self.max_tokens,
                self.max_tokens is None or self.max_tokens >= 1,
                "max_tokens must be at least 1, got {}.",
            ),
            (
                "min_tokens",
                self.min_tokens,
                self.min_tokens >= 0,
                "min_tokens must be greater than or equal to 0, got {}.",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                self.presence_penalty is None or -2 <= self.presence_penalty <= 2,
                "presence_penalty must be in [-2, 2], got {}.",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                self.frequency_penalty is None or -2 <= self.frequency_penalty <= 2,
                "frequency_penalty must be in [-2, 2], got {}.",
            ),
        )
        for name, value, fine, message in checks:
            if not fine:
                raise parameter_refusal(message.format(value), name, value)


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = 16
    echo: bool | None = False
    logprobs: int | None = None


class TokenizeRequest(BaseModel):
    """Body of `/tokenize`: a prompt or messages."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class DetokenizeRequest(BaseModel):
    """Body of `/detokenize`."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    tokens: list[int]


def parameter_refusal(message: str, name: str, value: object) -> RefusalError:
    """A 400 in the words of vLLM's parameter checks."""
    return RefusalError(400, f"{message} (parameter={name}, value={value})", param=name)


def parse_json(body: bytes) -> object:
    """The JSON of a request.

    Raises:
        RefusalError: 400, in the words of vLLM's validation handler.
    """
    try:
        data: object = json.loads(body)
    except UnicodeDecodeError:
        position, reason = 0, "Expecting value"
    except json.JSONDecodeError as error:
        position, reason = error.pos, error.msg
    else:
        return data
    problem = {
        "type": "json_invalid",
        "loc": f"body.{position}",
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": reason},
    }
    raise validation_refusal([problem])


def parse_request(kind: type[ModelT], data: object) -> ModelT:
    """Check a request's fields.

    Raises:
        RefusalError: 400, in the words of vLLM's validation handler.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problems = []
        for found in error.errors(include_url=False):
            problem: dict[str, Any] = {
                "type": found["type"],
                "loc": ".".join(("body", *map(str, found["loc"]))),
                "msg": found["msg"],
                "input": _describe(found["input"]),
            }
            if "ctx" in found:
                problem["ctx"] = {key: str(value) for key, value in found["ctx"].items()}
            problems.append(problem)
        raise validation_refusal(problems) from None


def validation_refusal(problems: Sequence[Mapping[str, Any]]) -> RefusalError:
    """The 400 of a body that is not what the route expects."""
    plural = "s" if len(problems) > 1 else ""
    lines = "".join(f"\n  {dict(problem)}" for problem in problems)
    return RefusalError(
        400,
        f"{len(problems)} validation error{plural}:{lines}",
        "Bad Request",
        str(problems[0]["loc"]),
    )


def _describe(value: object) -> object:
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    return value


def too_long_refusal(max_model_len: int, prompt_tokens: int, output_tokens: int) -> RefusalError:
    """The 400 of a prompt, or prompt and output, over the context limit."""
    if prompt_tokens > max_model_len:
        # vLLM stops counting one token past the limit.
        seen = max_model_len + 1
        message = (
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains at least {seen} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt."
        )
        return parameter_refusal(message, "input_tokens", seen)
    message = (
        f"This model's maximum context length is {max_model_len} tokens. However, you requested "
        f"{output_tokens} output tokens and your prompt contains at least {prompt_tokens} input "
        f"tokens, for a total of at least {prompt_tokens + output_tokens} tokens. Please reduce "
        "the length of the input prompt or the number of requested output tokens."
    )
    return parameter_refusal(message, "input_tokens", prompt_tokens)


def model_card(name: str, root: str, max_model_len: int, created: int) -> dict[str, Any]:
    """One entry of `/v1/models`."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [
            {
                "id": f"modelperm-{abs(hash(name)):016x}"[:26],
                "object": "model_permission",
                "created": created,
                "allow_create_engine": False,
                "allow_sampling": True,
                "allow_logprobs": True,
                "allow_search_indices": False,
                "allow_view": True,
                "allow_fine_tuning": False,
                "organization": "*",
                "group": None,
                "is_blocking": False,
            }
        ],
    }

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


class UnreadableBodyError(Exception):
    """The body is not text; FastAPI answers 400 by itself."""


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

    def check_fields(self) -> None:
        """Refuse what vLLM's request validators refuse, before it looks at the model's name.

        Raises:
            RefusalError: 400, naming the field.
        """
        if self.stream_options is not None and not self.stream:
            raise field_refusal(
                "Stream options can only be defined when `stream=True`.", "stream_options"
            )

    def check_sampling(self, max_tokens: int) -> None:
        """Refuse sampling parameters vLLM refuses.

        Args:
            max_tokens: The limit of the output, after the context's own.

        Raises:
            RefusalError: 400.
        """
        n, top_k = self.n, self.top_k
        if n is not None and n < 1:
            raise RefusalError(400, f"n must be at least 1, got {n}.")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if value is not None and not -2 <= value <= 2:
                raise RefusalError(400, f"{name} must be in [-2, 2], got {value}.")
        if self.temperature is not None and self.temperature < 0:
            message = f"temperature must be non-negative, got {self.temperature}."
            raise parameter_refusal(message, "temperature", self.temperature)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            message = f"top_p must be in (0, 1], got {self.top_p}."
            raise parameter_refusal(message, "top_p", self.top_p)
        if top_k is not None and top_k < -1:
            raise RefusalError(400, f"top_k must be 0 (disable), or at least 1, got {top_k}.")
        if self.min_tokens < 0:
            raise RefusalError(
                400, f"min_tokens must be greater than or equal to 0, got {self.min_tokens}."
            )
        if self.min_tokens > max_tokens:
            raise RefusalError(
                400,
                f"min_tokens must be less than or equal to max_tokens={max_tokens}, "
                f"got {self.min_tokens}.",
            )
        if self.temperature == 0 and n is not None and n > 1:
            raise RefusalError(400, f"n must be 1 when using greedy sampling, got {n}.")


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

    def check_fields(self) -> None:
        """As for all requests, and `tools` with `tool_choice`."""
        super().check_fields()
        tools, choice = self.tools, self.tool_choice
        if tools is not None and not tools:
            raise field_refusal(
                "`tools` must not be an empty array. Either provide at least one tool or omit the "
                "field entirely.",
                "tools",
            )
        if choice is None or choice == "none":
            return
        if tools is None:
            raise field_refusal("When using `tool_choice`, `tools` must be set.", "tool_choice")
        if isinstance(choice, str) and choice not in ("auto", "required"):
            raise field_refusal(
                f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" '
                'or "required" are supported.',
                "tool_choice",
            )
        if isinstance(choice, dict) and self.named_function is None:
            raise field_refusal(
                "The tool specified in `tool_choice` does not match any of the specified `tools`",
                "tool_choice",
            )

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The functions among the tools."""
        return [tool.get("function") or {} for tool in self.tools or ()]

    @property
    def named_function(self) -> dict[str, Any] | None:
        """The function that `tool_choice` names, if it names one of the tools."""
        if not isinstance(self.tool_choice, dict):
            return None
        name = (self.tool_choice.get("function") or {}).get("name")
        return next((f for f in self.functions if f.get("name") == name), None)


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`."""

    prompt: list[int] | list[list[int]] | str | list[str] | None = None
    max_tokens: int | None = 16
    echo: bool | None = False
    logprobs: int | None = None

    def check_fields(self) -> None:
        """As for all requests, and that there is a prompt."""
        super().check_fields()
        if self.prompt is None or self.prompt == "":
            raise field_refusal(
                "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"
            )


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


def field_refusal(message: str, name: str) -> RefusalError:
    """A 400 in the words of vLLM's request validators."""
    return RefusalError(400, f"{message} (parameter={name})", param=name)


def parse_json(body: bytes, content_type: bytes) -> object:
    """The JSON of a request.

    Args:
        body: The body.
        content_type: The header; anything but JSON is refused.

    Raises:
        RefusalError: 400, in the words of vLLM's validation handler.
        UnreadableBodyError: The body is not text.
    """
    if content_type.split(b";")[0].strip().lower() != b"application/json":
        raise RefusalError(
            400,
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            "Bad Request",
        )
    if not body:
        raise validation_refusal([_problem("missing", "body", "Field required", None)])
    try:
        data: object = json.loads(body)
    except UnicodeDecodeError:
        raise UnreadableBodyError from None
    except json.JSONDecodeError as error:
        problem = _problem("json_invalid", f"body.{error.pos}", "JSON decode error", {})
        raise validation_refusal([problem | {"ctx": {"error": error.msg}}]) from None
    return data


def parse_request(kind: type[ModelT], data: object) -> ModelT:
    """Check a request's fields.

    Raises:
        RefusalError: 400, in the words of vLLM's validation handler.
    """
    if not isinstance(data, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise validation_refusal([_problem("model_attributes_type", "body", message, data)])
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problems = []
        for found in error.errors(include_url=False):
            # Which member of the union was tried is not part of vLLM's location.
            steps = found["loc"][:1] if found["loc"][:1] == ("prompt",) else found["loc"]
            location = ".".join(("body", *map(str, steps)))
            problem = _problem(found["type"], location, found["msg"], found["input"])
            if "ctx" in found:
                problem["ctx"] = {key: str(value) for key, value in found["ctx"].items()}
            problems.append(problem)
        raise validation_refusal(problems) from None


def missing_refusal(data: dict[str, Any], *names: str) -> RefusalError:
    """The 400 of a body that has none of the fields it needs one of."""
    return validation_refusal(
        [_problem("missing", f"body.{name}", "Field required", data) for name in names]
    )


def _problem(kind: str, location: str, message: str, value: object) -> dict[str, Any]:
    shown = str(value)
    if isinstance(value, dict | list):
        shown = f"<{type(value).__name__} of {len(value)} items>"
    return {"type": kind, "loc": location, "msg": message, "input": shown}


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


def too_long_refusal(max_model_len: int) -> RefusalError:
    """The 400 of a prompt over the context limit; vLLM stops counting one token past it."""
    seen = max_model_len + 1
    message = (
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
        f"contains at least {seen} input tokens, which exceeds this limit even without any "
        "output tokens. Please reduce the length of the input prompt."
    )
    return parameter_refusal(message, "input_tokens", seen)


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

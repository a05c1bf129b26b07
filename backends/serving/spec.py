"""What a benchmark is asked to measure: loads, prompts, objective, when to stop.

Every field has a name that is the same here, in the options of `run_benchmark` and, with dashes, on
the command line; its description is the documentation of all three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from backends.core.masking import mask
from backends.serving.slo import FORM, Bound, parse_slo

MAX_CONCURRENCY = 4096
MAX_REQUESTS = 100_000
RATE_WINDOW_S = 10.0
"""How long a level of an open loop sends unless told how much."""

Mode = Literal["levels", "knee", "grid"]
PromptSource = Literal["fixed", "generated", "shared_prefix", "multi_turn", "builtin", "file"]
MADE_TO_LENGTH: tuple[PromptSource, ...] = ("generated", "shared_prefix", "multi_turn")


class BenchmarkSpec(BaseModel):
    """What to measure. Every default is what a first look at a deployment wants.

    Each level sends `requests_for(concurrency)` requests, `concurrency` of them in flight at any
    time (a closed loop), after a warm-up at the same concurrency that is thrown away. With
    `request_rates` the levels are rates instead, and requests are sent at their time whatever the
    answers do (an open loop).
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    mode: Mode = Field(
        "levels",
        description="levels: measure every load; knee: search the highest load between the lowest "
        "and the highest one that meets slo; grid: every load at every context of contexts",
    )
    levels: list[int] = Field(
        [1, 2, 4, 8], min_length=1, max_length=32, description="concurrencies, a closed loop"
    )
    request_rates: list[float] | None = Field(
        None, min_length=1, max_length=32, description="requests per second, an open loop, instead"
    )
    arrivals: Literal["constant", "poisson", "gamma"] = Field(
        "poisson", description="how requests of an open loop are spaced"
    )
    burstiness: float = Field(
        1.0, gt=0.0, le=100.0, description="shape of arrivals=gamma: 1 is Poisson, below burstier"
    )
    ramp_to: float | None = Field(
        None, gt=0.0, description="requests per second every open-loop level rises or falls to"
    )
    max_in_flight: int = Field(
        256,
        ge=1,
        le=MAX_CONCURRENCY,
        description="of an open loop; what would exceed it is not sent, counted, and makes the "
        "level invalid above 1 %",
    )
    requests_per_level: int | None = Field(
        None,
        ge=1,
        le=MAX_REQUESTS,
        description="None: twice the concurrency, at least 4, so that every stream is used twice; "
        "of a rate, ten seconds, at least 20",
    )
    repetitions: int = Field(
        1, ge=1, le=20, description="of every level; reported with their spread"
    )
    warmup_requests: int | None = Field(
        None, ge=0, le=MAX_REQUESTS, description="None: one per stream; 0: no warm-up"
    )
    max_tokens: int = Field(128, ge=1, le=1_000_000, description="output tokens a request")
    warmup_max_tokens: int = Field(16, ge=1, le=1_000_000)
    prompt_source: PromptSource = Field(
        "fixed",
        description="fixed: one prompt; generated: random words of prompt_tokens; shared_prefix: "
        "the same with prefix_tokens in common; multi_turn: conversations of turns; builtin: 24 "
        "tasks; file: dataset_path",
    )
    prompt: str | None = Field(
        None,
        min_length=1,
        description="the fixed prompt; None: a built-in one of about 60 tokens. It is kept with "
        "the run, so what looks like a credential in it is masked, and sent so",
    )
    prompt_tokens: int = Field(
        256,
        ge=1,
        le=1_000_000,
        description="length of made prompts, chat template included; of multi_turn, each turn adds",
    )
    prefix_tokens: int = Field(
        1024, ge=1, le=1_000_000, description="shared_prefix: tokens in common, besides"
    )
    prefixes: int = Field(
        1, ge=1, le=1000, description="shared_prefix: how many different ones, in turn"
    )
    turns: int = Field(4, ge=1, le=64, description="multi_turn: requests a conversation")
    turn_answers: Literal["made", "own"] = Field(
        "made",
        description="multi_turn: what was answered before, in a later turn: words made up "
        "beforehand, or what the model itself said (a closed loop, a conversation a stream)",
    )
    dataset_path: Path | None = Field(
        None, description="file: JSONL or CSV, fields as docs/BENCHMARKING.md says"
    )
    salt: bool | None = Field(
        None,
        description="whether every prompt begins with a number no other has, against the prefix "
        "cache; None: yes, but for file. shared_prefix and multi_turn salt what they share",
    )
    contexts: list[int] | None = Field(
        None, min_length=1, max_length=16, description="grid: prompt tokens of each row"
    )
    seed: int = Field(
        0, ge=0, description="of words, order and arrivals; the salt differs every run"
    )
    ignore_eos: bool = Field(True, description="generate exactly max_tokens")
    temperature: float = Field(0.0, ge=0.0, le=2.0)
    timeout_s: float = Field(120.0, gt=0.0, le=3600.0, description="bound of one request")
    slo: list[str] = Field(
        [], max_length=16, description=f"the objective, each {FORM}; figures ttft, itl, tpot, e2e"
    )
    knee_steps: int = Field(12, ge=1, le=40, description="knee: most loads tried")
    knee_tolerance: float = Field(
        0.05, ge=0.005, le=1.0, description="knee: how near to the first miss a rate must come"
    )
    max_error_rate: float = Field(
        0.5, ge=0.0, le=1.0, description="a level with a larger share of errors ends the sweep"
    )
    stop_at_saturation: bool = Field(
        False, description="end once 1.5 times the load gave less than a tenth more"
    )
    max_duration_s: float | None = Field(
        None, gt=0.0, le=86_400.0, description="end the whole run then, in a level too"
    )
    max_usd: float | None = Field(
        None, gt=0.0, description="end once time x usd_per_hour has come to it"
    )
    runner: Literal["local", "ray", "host"] = Field(
        "local",
        description="where the load is made: this machine, the nodes of a Ray cluster, or the "
        "machine the engine runs on",
    )
    ray_address: str = Field(
        "auto", description="of the cluster: auto (this machine's), host:port or ray://host:port"
    )
    ray_resource: str | None = Field(
        None, description="use only nodes that have this custom resource; None: all with a CPU"
    )
    ray_nodes: int | None = Field(None, ge=1, le=1000, description="use at most so many nodes")
    endpoint_kind: Literal["chat", "completions"] = "chat"
    usd_per_hour: float | None = Field(None, gt=0.0, description="None: no cost is computed")
    label: str = Field("", max_length=120, description="a name for charts and comparisons")
    target: str | None = None
    deployment: str | None = None
    accelerator: str | None = Field(
        None, description="l4, t4, rtx-pro-6000, v6e: for the share of its memory bandwidth"
    )
    checkpoint: str | None = Field(
        None, description="for the same, where the served model's name is not a known checkpoint"
    )
    chips: int = Field(1, ge=1, le=256, description="accelerators the model is spread over")
    kv_cache_dtype: str = Field("auto", description="auto or fp8: bytes read of the KV cache")

    @field_validator("levels")
    @classmethod
    def _levels_fit(cls, levels: list[int]) -> list[int]:
        if any(level < 1 or level > MAX_CONCURRENCY for level in levels):
            raise ValueError(f"each level is a concurrency from 1 to {MAX_CONCURRENCY}")
        if len(set(levels)) != len(levels):
            raise ValueError("a level may appear only once")
        return levels

    @field_validator("request_rates")
    @classmethod
    def _rates_fit(cls, rates: list[float] | None) -> list[float] | None:
        if any(not (math.isfinite(rate) and 0 < rate <= 100_000) for rate in rates or ()):
            raise ValueError("each rate is above 0 and at most 100000 requests/s")
        if len(set(rates or ())) != len(rates or ()):
            raise ValueError("a rate may appear only once")
        return rates

    @field_validator("contexts")
    @classmethod
    def _contexts_fit(cls, contexts: list[int] | None) -> list[int] | None:
        if any(context < 1 or context > 1_000_000 for context in contexts or ()):
            raise ValueError("each context is 1 to 1000000 prompt tokens")
        if len(set(contexts or ())) != len(contexts or ()):
            raise ValueError("a context may appear only once")
        return contexts

    @field_validator("prompt")
    @classmethod
    def _prompt_holds_no_credential(cls, prompt: str | None) -> str | None:
        return prompt and mask(prompt)

    @field_validator("slo", mode="before")
    @classmethod
    def _slo_as_list(cls, slo: object) -> object:
        return [part for part in slo.split(",") if part.strip()] if isinstance(slo, str) else slo

    @field_validator("slo")
    @classmethod
    def _slo_is_readable(cls, slo: list[str]) -> list[str]:
        parse_slo(slo)
        return slo

    @field_validator("accelerator")
    @classmethod
    def _accelerator_is_known(cls, name: str | None) -> str | None:
        from backends.knowledge.accelerators import ACCELERATORS

        if name is not None and name.lower() not in ACCELERATORS:
            raise ValueError(f"not a known accelerator; known: {', '.join(ACCELERATORS)}")
        return name

    @field_validator("checkpoint")
    @classmethod
    def _checkpoint_is_known(cls, name: str | None) -> str | None:
        from backends.core.errors import NotFoundError
        from backends.knowledge.checkpoints import CHECKPOINTS, find_checkpoint

        try:
            return name and find_checkpoint(name).name
        except NotFoundError:
            raise ValueError(f"not a known checkpoint; known: {', '.join(CHECKPOINTS)}") from None

    @field_validator("kv_cache_dtype")
    @classmethod
    def _kv_cache_dtype_is_known(cls, name: str) -> str:
        from backends.knowledge.roofline import KV_BYTE_SIZE

        if name not in KV_BYTE_SIZE:
            raise ValueError(f"not a known dtype; known: {', '.join(KV_BYTE_SIZE)}")
        return name

    @model_validator(mode="after")
    def _parts_fit_together(self) -> BenchmarkSpec:
        for wrong, what in (
            (
                self.prompt is not None and self.prompt_source != "fixed",
                "prompt goes with prompt_source=fixed only",
            ),
            (
                (self.dataset_path is not None) != (self.prompt_source == "file"),
                "dataset_path and prompt_source=file go together",
            ),
            (
                self.prompt_source == "multi_turn" and self.endpoint_kind != "chat",
                "multi_turn needs endpoint_kind=chat",
            ),
            (
                self.turn_answers == "own"
                and (self.source != "multi_turn" or self.request_rates is not None),
                "turn_answers=own goes with multi_turn and a closed loop",
            ),
            (self.mode == "knee" and not self.slo, "mode=knee needs slo: what is to be met"),
            (
                (self.contexts is not None) != (self.mode == "grid"),
                "contexts and mode=grid go together",
            ),
            (
                self.mode == "grid" and self.prompt_source not in ("fixed", *MADE_TO_LENGTH),
                "mode=grid makes its prompts: prompt_source generated, shared_prefix or multi_turn",
            ),
            (
                self.mode == "grid" and self.prompt is not None,
                "mode=grid makes its prompts: leave prompt out",
            ),
            (
                self.request_rates is None and self.ramp_to is not None,
                "ramp_to goes with request_rates only",
            ),
            (
                self.mode == "knee" and self.ramp_to is not None,
                "mode=knee searches one rate: leave ramp_to out",
            ),
            (
                self.runner != "ray"
                and (self.ray_address, self.ray_resource, self.ray_nodes) != ("auto", None, None),
                "ray_address, ray_resource and ray_nodes go with runner=ray",
            ),
            (
                self.max_usd is not None and self.usd_per_hour is None,
                "max_usd needs usd_per_hour: no price is known",
            ),
        ):
            if wrong:
                raise ValueError(what)
        return self

    @classmethod
    def asked(cls, given: Mapping[str, object]) -> BenchmarkSpec:
        """Make a spec of what somebody gave, taking from it what it says of the rest.

        Contexts make a grid, a dataset a file source, turns conversations, a prefix a shared one,
        prompt_tokens made prompts: unless mode or prompt_source say otherwise.

        Args:
            given: Fields by name; None is "not given".

        Raises:
            ValidationError: A field is unknown or wrong, or they do not fit together.
        """
        fields = {name: value for name, value in given.items() if value is not None}
        if "contexts" in fields:
            fields.setdefault("mode", "grid")
        for names, source in (
            (("dataset_path",), "file"),
            (("turns", "turn_answers"), "multi_turn"),
            (("prefix_tokens", "prefixes"), "shared_prefix"),
            (("prompt_tokens",), "generated"),
        ):
            if any(name in fields for name in names):
                fields.setdefault("prompt_source", source)
        return cls.model_validate(fields)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The objective, read."""
        return parse_slo(self.slo)

    @property
    def source(self) -> PromptSource:
        """Where prompts come from; a grid needs lengths, so its fixed prompt is a generated one."""
        if self.mode == "grid" and self.prompt_source == "fixed":
            return "generated"
        return self.prompt_source

    @property
    def salted(self) -> bool:
        """Whether prompts are told apart by a salt."""
        return self.source != "file" if self.salt is None else self.salt

    @property
    def turns_in_a_row(self) -> int:
        """How many requests in a row are a conversation that holds the model's own answers."""
        return self.turns if self.turn_answers == "own" else 1

    def requests_for(self, concurrency: int, rate: float | None = None) -> int:
        """Return how many requests are measured at a level; every stream has at least one.

        Args:
            concurrency: Streams of a closed loop.
            rate: Requests per second of an open loop; then `concurrency` does not count.
        """
        if rate is not None:
            concurrency = 1
            count = self.requests_per_level or max(20, math.ceil(rate * RATE_WINDOW_S))
        elif self.requests_per_level is not None:
            count = max(self.requests_per_level, concurrency)
        else:
            count = max(4, 2 * concurrency)
        count = min(count, MAX_REQUESTS)
        if self.source != "multi_turn":
            return count
        # a conversation a stream at least: a turn is then sent after the one before it was answered
        return max(concurrency, -(-count // self.turns)) * self.turns

    def warmup_for(self, concurrency: int, rate: float | None = None) -> int:
        """Return how many requests warm a level up; of a rate a second's worth, at most 32."""
        if self.warmup_requests is not None:
            return self.warmup_requests
        return concurrency if rate is None else min(32, self.max_in_flight, max(1, round(rate)))


OPTION_NAMES: tuple[str, ...] = tuple(
    name
    for name in BenchmarkSpec.model_fields
    if name not in {"levels", "requests_per_level", "max_tokens", "label", "target", "deployment"}
)
"""Fields that `run_benchmark` takes in `options`: those that are no argument of their own."""

"""The shapes of a benchmark: what was asked for, what one level measured, what a run is on disk.

`run.json` is a `BenchmarkRun`. Its `schema_version` grows when a field changes its meaning or goes
away; new fields do not change it. Readers must pass over fields they do not know.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from backends.serving.loadgen import Phase
from backends.serving.metrics import MetricsDelta
from backends.serving.stats import Distribution

SCHEMA_VERSION = 1
RUN_FILE = "run.json"
LEVELS_FILE = "levels.csv"
MAX_CONCURRENCY = 4096
MAX_REQUESTS = 100_000

RunState = Literal["running", "completed", "stopped", "cancelled", "failed"]

DEFINITIONS: dict[str, str] = {
    "content event": "a streamed chunk with non-empty text, reasoning or tool-call delta; the "
    "first chunk that carries only the role is none",
    "ttft_ms": "from handing the request to the socket (on a connection that stands) to the first "
    "content event",
    "itl_ms": "gap between two content events of one request, one sample per gap; a chunk with "
    "several tokens is one event",
    "tpot_ms": "(last content event - first content event) / (output tokens - 1), per request",
    "e2e_ms": "from handing the request to the socket to the last content event",
    "output tokens": "completion_tokens of the server's usage",
    "duration_s": "from the first request's send to the end of the last one, ramp-up and drain "
    "included, warm-up not",
    "requests_per_s": "requests that succeeded / duration_s",
    "output_tokens_per_s": "output tokens of requests that succeeded / duration_s",
    "error": "a request that was refused, broke off, timed out, carried an error in its stream, "
    "or ended without [DONE], without finish_reason or without content; it counts in requests and "
    "errors, its time counts in duration_s, and none of its latencies or tokens count",
    "usd_per_million_output_tokens": "usd_per_hour / (output_tokens_per_s * 3600) * 1e6",
}


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class BenchmarkSpec(_Shape):
    """What to measure. Every default is what a first look at a deployment wants.

    Each level sends `requests_for(concurrency)` requests, `concurrency` of them in flight at any
    time (a closed loop), after a warm-up at the same concurrency that is thrown away.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    levels: list[int] = Field([1, 2, 4, 8], min_length=1, max_length=32)
    requests_per_level: int | None = Field(
        None,
        ge=1,
        le=MAX_REQUESTS,
        description="None: twice the concurrency, at least 4, so that every stream is used twice",
    )
    warmup_requests: int | None = Field(
        None, ge=0, le=MAX_REQUESTS, description="None: one per stream; 0: no warm-up"
    )
    max_tokens: int = Field(128, ge=1, le=1_000_000)
    warmup_max_tokens: int = Field(16, ge=1, le=1_000_000)
    prompt_source: Literal["fixed", "generated"] = "fixed"
    prompt: str | None = Field(
        None, min_length=1, description="the fixed prompt; None: a built-in one of about 60 tokens"
    )
    prompt_tokens: int = Field(
        256, ge=1, le=1_000_000, description="aim of generated prompts, in tokens"
    )
    seed: int = Field(0, ge=0, description="of the generated words; the salt differs every run")
    ignore_eos: bool = Field(True, description="generate exactly max_tokens")
    temperature: float = Field(0.0, ge=0.0, le=2.0)
    timeout_s: float = Field(120.0, gt=0.0, le=3600.0, description="bound of one request")
    max_error_rate: float = Field(
        0.5, ge=0.0, le=1.0, description="a level with a larger share of errors ends the sweep"
    )
    endpoint_kind: Literal["chat", "completions"] = "chat"
    usd_per_hour: float | None = Field(None, gt=0.0, description="None: no cost is computed")
    label: str = Field("", max_length=120, description="a name for charts and comparisons")
    target: str | None = None
    deployment: str | None = None
    accelerator: str | None = None

    @field_validator("levels")
    @classmethod
    def _levels_fit(cls, levels: list[int]) -> list[int]:
        if any(level < 1 or level > MAX_CONCURRENCY for level in levels):
            raise ValueError(f"each level is a concurrency from 1 to {MAX_CONCURRENCY}")
        if len(set(levels)) != len(levels):
            raise ValueError("a level may appear only once")
        return levels

    @model_validator(mode="after")
    def _prompt_fits_its_source(self) -> BenchmarkSpec:
        if self.prompt is not None and self.prompt_source == "generated":
            raise ValueError("prompt goes with prompt_source=fixed only")
        return self

    def requests_for(self, concurrency: int) -> int:
        """Return how many requests are measured at a level; every stream has at least one."""
        if self.requests_per_level is not None:
            return max(self.requests_per_level, concurrency)
        return max(4, 2 * concurrency)

    def warmup_for(self, concurrency: int) -> int:
        """Return how many requests warm a level up."""
        return concurrency if self.warmup_requests is None else self.warmup_requests


class ErrorSample(_Shape):
    """Failed requests of one kind, with the first one's words."""

    kind: str
    count: int
    message: str
    status: int | None = None


class SelfCheck(_Shape):
    """How far the measuring client itself can be trusted in this level."""

    loop_lag_p99_ms: float | None = Field(None, description="how late the client came to read")
    loop_lag_max_ms: float | None = None
    send_lag_p99_ms: float | None = Field(
        None, description="from a stream becoming free to its next request"
    )
    cpu_share: float | None = Field(None, description="of one core, 0..1")
    run_delay_share: float | None = Field(
        None, description="share of the level in which the client waited for a core; Linux only"
    )
    coalesced_share: float = Field(
        0.0, description="content events that came in one read with the one before: ITL lost"
    )
    reconnects: int = 0


class LevelResult(_Shape):
    """What one level measured. See `DEFINITIONS` for the meaning of every figure."""

    concurrency: int
    requests: int = Field(description="finished, failed ones included")
    errors: int
    success_rate: float | None
    duration_s: float
    requests_per_s: float | None
    output_tokens_per_s: float | None
    ttft_ms: Distribution
    itl_ms: Distribution
    tpot_ms: Distribution
    e2e_ms: Distribution
    first_answer_ms: Distribution = Field(
        description="to the first event that is not reasoning; equals TTFT without reasoning"
    )
    valid: bool
    invalid_reasons: list[str]
    warnings: list[str]
    timestamp_source: str
    partial: bool = Field(False, description="cut short; what had been measured until then")
    requests_planned: int
    unfinished: int = Field(0, description="requests in flight when the level was cut short")
    prompt_tokens_mean: float | None
    output_tokens_mean: float | None
    output_tokens_total: int
    token_count_source: Literal["server usage", "content events (a lower bound)"] | None
    tokens_per_event: float | None
    error_samples: list[ErrorSample]
    usd_per_million_output_tokens: float | None
    prefix_cache_hit_rate: float | None
    server: MetricsDelta | None = Field(description="the engine's own figures for this level")
    self_check: SelfCheck
    started_at: str


class EndpointFacts(_Shape):
    """Whom was measured."""

    base_url: str
    model: str
    source: str
    simulated: bool
    version: str | None = None
    max_model_len: int | None = None


class Environment(_Shape):
    """Where the client ran, for whoever compares runs."""

    client_cpus: int
    client_platform: str
    python: str
    product_version: str
    engine: str
    timestamp_source: str


class Current(_Shape):
    """The level under way."""

    phase: Phase
    concurrency: int
    requests_done: int
    requests_total: int
    errors: int
    elapsed_s: float
    so_far: LevelResult | None = Field(None, description="its figures until now")


class RunError(_Shape):
    """Why a run failed, whole."""

    code: str
    message: str
    words: str = ""
    cause: str = ""
    next_action: str = ""


class BenchmarkRun(_Shape):
    """One sweep: how it was made, what it measured, what that means."""

    kind: Literal["vllm-devops-benchmark"] = "vllm-devops-benchmark"
    schema_version: int = SCHEMA_VERSION
    id: str
    state: RunState
    state_reason: str = ""
    created_at: str
    updated_at: str
    finished_at: str | None = None
    label: str
    simulated: bool
    endpoint: EndpointFacts
    spec: BenchmarkSpec
    prompts: str = Field("", description="how the prompts were made, in words")
    environment: Environment
    definitions: dict[str, str]
    levels: list[LevelResult]
    current: Current | None = None
    warnings: list[str] = Field(default_factory=list)
    findings: list[str] = Field(default_factory=list)
    error: RunError | None = None

    @field_validator("spec", mode="before")
    @classmethod
    def _pass_over_newer_fields(cls, spec: object) -> object:
        if isinstance(spec, dict):
            return {key: value for key, value in spec.items() if key in BenchmarkSpec.model_fields}
        return spec

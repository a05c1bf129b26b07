"""The shapes of a benchmark: what was asked for, what one level measured, what a run is on disk.

`run.json` is a `BenchmarkRun`. Its `schema_version` grows when a field changes its meaning or goes
away; new fields do not change it. Readers must pass over fields they do not know.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from backends.serving.loadgen import Phase
from backends.serving.metrics import MetricsDelta
from backends.serving.spec import BenchmarkSpec
from backends.serving.stats import Distribution

__all__ = [
    "DEFINITIONS",
    "LEVELS_FILE",
    "RUN_FILE",
    "SCHEMA_VERSION",
    "BenchmarkRun",
    "BenchmarkSpec",
    "BesideServer",
    "Current",
    "Efficiency",
    "EndpointFacts",
    "Environment",
    "ErrorSample",
    "GridCell",
    "KneeResult",
    "LevelResult",
    "RepeatedLevel",
    "RunError",
    "RunState",
    "SelfCheck",
    "Spread",
    "SteadyPart",
    "StopRule",
]

SCHEMA_VERSION = 1
RUN_FILE = "run.json"
LEVELS_FILE = "levels.csv"

RunState = Literal["running", "completed", "stopped", "cancelled", "failed"]
StopRule = Literal["errors", "saturation", "time", "money"]

DEFINITIONS: dict[str, str] = {
    "content event": "a streamed chunk with non-empty text, reasoning or tool-call delta; the "
    "first chunk that carries only the role is none",
    "ttft_ms": "from handing the request to the socket (on a connection that stands) to the first "
    "content event; in an open loop, from when the request was to be sent",
    "itl_ms": "gap between two content events of one request, one sample per gap; a chunk with "
    "several tokens is one event",
    "tpot_ms": "(last content event - first content event) / (output tokens - 1), per request",
    "e2e_ms": "from where ttft_ms begins to the last content event",
    "output tokens": "completion_tokens of the server's usage",
    "duration_s": "from the first request's send to the end of the last one, ramp-up and drain "
    "included, warm-up not",
    "requests_per_s": "requests that succeeded / duration_s",
    "output_tokens_per_s": "output tokens of requests that succeeded / duration_s",
    "error": "a request that was refused, broke off, timed out, carried an error in its stream, "
    "or ended without [DONE], without finish_reason or without content; it counts in requests and "
    "errors, its time counts in duration_s, and none of its latencies or tokens count",
    "usd_per_million_output_tokens": "usd_per_hour / (output_tokens_per_s * 3600) * 1e6",
    "steady": "the part of a closed loop between the first and the last moment with at least 95 % "
    "of its streams in flight: neither ramp-up nor drain",
    "goodput": "requests per second that each kept every limit of the objective by itself; failed "
    "ones and ones never sent are in the denominator of slo_attainment",
    "meets_slo": "every bound of the objective holds for the level's own statistics and at most "
    "1 % of its requests failed",
    "knee": "the highest load that met the objective, by bisection",
    "bound": "what the accelerator's data-sheet memory bandwidth allows for reading weights and KV "
    "cache once a step; predicted: the same at the efficiency fitted for that accelerator, with "
    "its overheads",
}


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


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
        None,
        description="from a stream becoming free to its next request; in an open loop, from the "
        "intended send to the send",
    )
    idle_share: float | None = Field(
        None, description="of the time of a closed loop's streams, spent between two requests"
    )
    idle_mean_ms: float | None = Field(None, description="the same, a request on average")
    cpu_share: float | None = Field(None, description="of one core, 0..1; the busiest worker's")
    run_delay_share: float | None = Field(
        None, description="share of the level in which the client waited for a core; Linux only"
    )
    coalesced_share: float = Field(
        0.0, description="content events that came in one read with the one before: ITL lost"
    )
    unstamped_share: float = Field(
        0.0, description="reads without the kernel's receive time, where the kernel gives it"
    )
    clock_step_ms: float = Field(0.0, description="by which the clock was set meanwhile")
    reconnects: int = 0
    resent: int = Field(0, description="requests sent again: their connection was closed before")
    crowded_parses: int = Field(0, description="times that memory made parsing go before reading")
    out_of_files: int = Field(0, description="connections not made for want of files or ports")
    limited_the_level: bool = Field(
        False, description="the client was too slow for the level; one more worker may cure that"
    )


class NodeShare(_Shape):
    """What a worker on another node had of a level, by its own clock and its own check."""

    node: str
    requests: int = Field(description="that it finished, failed ones included")
    events: int = Field(description="content events it received")
    timestamp_source: str
    loop_lag_p99_ms: float | None = Field(None, description="how late it came to read")
    cpu_share: float | None = Field(None, description="of one core, 0..1")
    run_delay_share: float | None = Field(None, description="share it waited for a core")
    clock_error_ms: float = Field(
        0.0,
        description="how far off its times may be beside other nodes'; what it measured itself is "
        "untouched by that",
    )


class SteadyPart(_Shape):
    """The part of a level without ramp-up and drain; see `DEFINITIONS`."""

    begins_at_s: float = Field(description="seconds into the level")
    duration_s: float
    share: float = Field(description="of the level's time, 0..1")
    requests: int = Field(description="that ended in it and succeeded")
    requests_per_s: float
    output_tokens_per_s: float
    ttft_ms: Distribution = Field(description="of requests sent in it")
    e2e_ms: Distribution = Field(description="of requests that ended in it")
    usd_per_million_output_tokens: float | None = None


class Efficiency(_Shape):
    """Throughput beside what accelerator and checkpoint allow: measured, bound and predicted."""

    accelerator: str
    checkpoint: str
    chips: int
    batch: float = Field(description="sequences decoded together, taken as below")
    batch_source: Literal["engine: mean running", "client: requests in flight"]
    context_tokens: int = Field(description="in the KV cache on average while decoding")
    bound_output_tokens_per_s: float = Field(
        description="memory bandwidth of the data sheet, decode only"
    )
    share_of_bound: float = Field(description="measured output tokens/s over the bound, 0..1")
    bound_tpot_ms: float
    predicted_output_tokens_per_s: float = Field(
        description="with the efficiency fitted for the accelerator; a prediction"
    )
    measured_over_predicted: float


class BesideServer(_Shape):
    """One figure as the client and as the engine itself have it, and what lies between."""

    figure: Literal["ttft", "itl", "e2e", "output tokens/s"]
    client: float = Field(description="mean, ms; or output tokens/s")
    server: float = Field(description="the engine's own")
    difference: float = Field(description="client - server")
    agrees: bool
    where: list[Literal["network", "admission queue", "client", "other traffic", "unknown"]] = (
        Field(default_factory=list)
    )
    explanation: str = ""


class Spread(_Shape):
    """One figure over repetitions."""

    mean: float
    min: float
    max: float
    stdev: float | None = Field(None, description="of the sample; None below two")


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
    turned_away: int = Field(
        0, description="requests of an open loop not sent because concurrency were in flight"
    )
    offered_requests_per_s: float | None = Field(
        None, description="the rate an open loop meant to send at; None for a closed loop"
    )
    workers: int = Field(1, description="client processes that shared the streams")
    repeated: bool = Field(
        False, description="measured again with one more worker because the client was the limit"
    )
    prompt_tokens_mean: float | None
    output_tokens_mean: float | None
    output_tokens_total: int
    token_count_source: Literal["server usage", "content events (a lower bound)"] | None
    tokens_per_event: float | None
    prompt_tokens_min: int | None = Field(None, description="as the server counted")
    prompt_tokens_max: int | None = None
    error_samples: list[ErrorSample]
    usd_per_million_output_tokens: float | None
    prefix_cache_hit_rate: float | None
    server: MetricsDelta | None = Field(description="the engine's own figures for this level")
    self_check: SelfCheck
    nodes: list[NodeShare] = Field(
        default_factory=list, description="of runner=ray: a row a worker; empty for this machine"
    )
    started_at: str
    request_rate: float | None = Field(
        None, description="requests/s asked for; then concurrency is the most in flight"
    )
    context_tokens: int | None = Field(None, description="prompt tokens asked for, of a grid")
    repetition: int = 1
    steady: SteadyPart | None = None
    meets_slo: bool | None = Field(None, description="None: no objective was given")
    slo_misses: list[str] = Field(default_factory=list)
    goodput_requests_per_s: float | None = None
    slo_attainment: float | None = Field(None, description="good requests over those offered")
    efficiency: Efficiency | None = None
    beside_server: list[BesideServer] = Field(default_factory=list)

    @property
    def load(self) -> float:
        """The load: requests per second of an open loop, else requests in flight."""
        return float(self.concurrency) if self.request_rate is None else self.request_rate

    @property
    def load_words(self) -> str:
        """The load as a person says it."""
        if self.request_rate is None:
            words = f"concurrency {self.concurrency}"
        else:
            words = f"{self.request_rate:g} requests/s"
        return words if self.context_tokens is None else f"{words} x {self.context_tokens} tokens"

    @property
    def best_output_tokens_per_s(self) -> float | None:
        """Throughput of the steady part where there is one, else of the whole level."""
        return self.steady.output_tokens_per_s if self.steady else self.output_tokens_per_s


class RepeatedLevel(_Shape):
    """One load over its repetitions: only valid ones count in the spreads."""

    concurrency: int
    request_rate: float | None = None
    context_tokens: int | None = None
    repetitions: int
    valid: int
    output_tokens_per_s: Spread | None = None
    requests_per_s: Spread | None = None
    ttft_ms_p50: Spread | None = None
    itl_ms_p50: Spread | None = None
    tpot_ms_p50: Spread | None = None
    e2e_ms_p50: Spread | None = None


class KneeStep(_Shape):
    """One load the search tried."""

    load: float
    meets: bool
    misses: list[str]
    valid: bool


class KneeResult(_Shape):
    """What the search for the highest load within the objective found."""

    kind: Literal["concurrency", "requests_per_s"]
    slo: list[str]
    load: float | None = Field(description="the knee; None: not even the lowest load met it")
    first_miss: float | None = Field(description="the lowest load that missed; None: none did")
    searched_from: float
    searched_to: float
    settled: bool = Field(description="False: steps, time or money ended the search before")
    steps: list[KneeStep] = Field(default_factory=list)
    output_tokens_per_s: float | None = None
    goodput_requests_per_s: float | None = None
    usd_per_million_output_tokens: float | None = None


class GridCell(_Shape):
    """One cell of a grid of contexts and loads."""

    context_tokens: int
    concurrency: int
    request_rate: float | None = None
    status: Literal["ok", "infeasible", "failed", "not run"]
    reason: str = ""
    valid: bool | None = Field(None, description="whether its figures can be relied on")
    output_tokens_per_s: float | None = None
    ttft_ms_p50: float | None = None
    needed_kv_tokens: int | None = Field(
        None, description="all sequences at full length, of a closed loop"
    )


class EndpointFacts(_Shape):
    """Whom was measured."""

    base_url: str
    model: str
    source: str
    simulated: bool
    version: str | None = None
    max_model_len: int | None = None
    kv_cache_tokens: int | None = Field(None, description="size of the KV cache")
    kv_cache_source: Literal["engine", "memory plan"] | None = None


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
    request_rate: float | None = None
    context_tokens: int | None = None
    repetition: int = 1
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
    repeated: list[RepeatedLevel] = Field(default_factory=list)
    knee: KneeResult | None = None
    grid: list[GridCell] = Field(default_factory=list)
    stopped_by: StopRule | None = None
    spent_s: float | None = Field(None, description="of the whole run, warm-up included")
    spent_usd: float | None = Field(None, description="spent_s at usd_per_hour")
    imported_from: str | None = Field(None, description="file, when another program measured it")
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

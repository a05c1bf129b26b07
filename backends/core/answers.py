"""What tools answer with: one shape a verb, the same for every target.

A field that is absent is not known or does not apply; it never means zero. Every answer says what
is (`summary`), and what to do next (`next_steps`: exact tool calls).
"""

from __future__ import annotations

import base64
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# How a figure came about. Never mixed without a label.
Basis = Literal["measured", "simulated", "predicted"]

State = Literal[
    "creating",
    "starting",
    "ready",
    "degraded",
    "scaled_to_zero",
    "stopping",
    "stopped",
    "failed",
    "unknown",
]


class Part(BaseModel):
    """Base of what answers are made of; built on first use, so that starting stays quick."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class Picture(Part):
    """An image that rides along with an answer.

    Attributes:
        data: The file's bytes, base64.
        mime_type: e.g. `image/png`.
    """

    data: str
    mime_type: str = "image/png"

    @classmethod
    def png(cls, content: bytes) -> Picture:
        """From a PNG file's bytes."""
        return cls(data=base64.b64encode(content).decode("ascii"))


class Answer(Part):
    """Base of every tool's answer."""

    summary: str
    warnings: list[str] = Field(default_factory=list)
    next_steps: list[str] = Field(default_factory=list)
    images: list[Picture] = Field(default_factory=list, exclude=True)


class Price(Part):
    """A price per hour and where it comes from. No rate, no number."""

    usd_per_hour: float | None = None
    basis: str
    source: str | None = None
    as_of: str | None = None


class Deployment(Part):
    """One deployment in a list."""

    target: str
    name: str
    state: State
    engine: str | None = None
    model: str | None = None
    url: str | None = None
    managed: bool = True
    simulated: bool = False
    usd_per_hour: float | None = None
    usd_since_start_at_most: float | None = None
    created_at: str | None = None
    last_request_at: str | None = None
    no_request_for_h: float | None = None
    ends_at: str | None = None
    overdue_h: float | None = None
    end_options: dict[str, bool] = Field(default_factory=dict, exclude=True)
    """What destroy has to be told besides, to end what is left of it."""
    note: str | None = None


class Saving(Part):
    """Something that costs money and that nobody seems to need."""

    target: str
    name: str
    usd_per_hour: float
    why: str
    call: str


class NotAsked(Part):
    """A place that could not be asked, so the list may be incomplete."""

    target: str
    error: str


class DeploymentList(Answer):
    """Everything that exists on the targets asked."""

    items: list[Deployment]
    total: int
    next_cursor: str | None = None
    complete: bool
    not_answering: list[NotAsked] = Field(default_factory=list)
    not_set_up: list[NotAsked] = Field(default_factory=list)
    usd_per_hour_now: float | None = None
    left_over: list[str] = Field(default_factory=list)
    could_save: list[Saving] = Field(default_factory=list)


class StepView(Part):
    """One step of a plan as it will be run."""

    title: str
    command: str
    creates: list[str] = Field(default_factory=list)
    undo: str | None = None


class Setting(Part):
    """A resolved setting of a plan."""

    name: str
    value: str
    meaning: str | None = None


class PlanAnswer(Answer):
    """A plan: what would be done, at what price, and the id that runs exactly this."""

    verb: str
    target: str
    name: str
    plan_id: str
    plan_hash: str
    expires_at: str
    price: Price | None = None
    settings: list[Setting] = Field(default_factory=list)
    steps: list[StepView]
    notes: list[str] = Field(default_factory=list)
    depends_on: dict[str, str] = Field(default_factory=dict)
    keeps_billing: list[str] = Field(default_factory=list)
    stays: list[str] = Field(default_factory=list)
    predicted: list[dict[str, int | float]] = Field(default_factory=list)
    cost: dict[str, int | float | str] = Field(default_factory=dict)
    document: str | None = None


class TargetOption(Part):
    """One way to serve a load; figures are predicted."""

    rank: int | None = None
    target: str
    variant: str | None = None
    place: str | None = None
    verdict: Literal["can serve", "cannot"]
    usd_per_month: float | None = None
    usd_per_hour: float | None = None
    usd_per_million_output_tokens: float | None = None
    instances: int | None = None
    concurrency: int | None = None
    output_tokens_per_s: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    memory_fit: str
    start_s: float | None = None
    scales_to_zero: bool | None = None
    keeps_billing: list[str] = Field(default_factory=list)
    prices: list[str] = Field(default_factory=list)
    reasons: list[str] = Field(default_factory=list)


class Comparison(Answer):
    """Targets ranked for a checkpoint and a load, the cheapest that can serve it first."""

    basis: Basis
    model: str
    load: dict[str, float]
    items: list[TargetOption]
    dearer_offers: list[str] = Field(default_factory=list)
    break_even: list[str] = Field(default_factory=list)
    assumptions: list[str] = Field(default_factory=list)


class Changed(Answer):
    """What a change did."""

    target: str
    name: str
    state: State
    url: str | None = None
    plan_hash: str | None = None
    operation_id: str | None = None
    done: list[str] = Field(default_factory=list)
    usd_per_hour: float | None = None
    keeps_billing: list[str] = Field(default_factory=list)
    stays: list[str] = Field(default_factory=list)


class Phase(Part):
    """One phase of becoming ready: how long it took or has taken, beside what is usual."""

    name: str
    state: Literal["done", "running", "pending", "failed"]
    seconds: float | None = None
    expected_s: float | None = None


class Check(Part):
    """One thing looked at: what was found.

    `ok` is absent where there is nothing to judge: then `state` says why.
    """

    name: str
    ok: bool | None = None
    state: Literal["not set up"] | None = None
    detail: str
    duration_ms: float | None = None


class Status(Answer):
    """Infrastructure, engine health, endpoint, model and the next step of one deployment."""

    target: str
    name: str
    state: State
    ready: bool
    engine: str | None = None
    managed: bool = True
    simulated: bool = False
    url: str | None = None
    models: list[str] = Field(default_factory=list)
    max_model_len: int | None = None
    version: str | None = None
    phase: str | None = None
    phases: list[Phase] = Field(default_factory=list)
    elapsed_s: float | None = None
    expected_s: float | None = None
    usd_per_hour: float | None = None
    created_at: str | None = None
    ends_at: str | None = None
    checks: list[Check] = Field(default_factory=list)
    host: dict[str, str | int | float | bool] = Field(default_factory=dict)
    facts: dict[str, str | int | float | bool] = Field(default_factory=dict)
    error: str | None = None
    error_cause: str | None = None


class Waited(Status):
    """Status after waiting, with how long was waited in this call."""

    waited_s: float


class Health(Answer):
    """Whether a real request is answered well."""

    target: str
    name: str
    healthy: bool
    model: str | None = None
    max_model_len: int | None = None
    version: str | None = None
    checks: list[Check]
    ttft_ms: float | None = None
    output_tokens_per_s: float | None = None
    basis: Basis


class Usage(Part):
    """Tokens as the server counted them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


class ChatAnswer(Answer):
    """The model's reply and how fast it came."""

    target: str
    name: str
    model: str
    text: str
    reasoning: str | None = None
    tool_calls: list[dict[str, str]] = Field(default_factory=list)
    finish_reason: str | None = None
    ttft_ms: float | None = None
    e2e_ms: float
    itl_ms_mean: float | None = None
    output_tokens_per_s: float | None = None
    usage: Usage
    token_count_source: str
    basis: Basis


class MetricsAnswer(Answer):
    """The engine's own statistics."""

    target: str
    name: str
    basis: Basis
    interval_s: float | None = None
    now: dict[str, Any]
    rates: dict[str, Any] = Field(default_factory=dict)
    latency_ms: list[dict[str, Any]] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    raw: str | None = None


class LogsAnswer(Answer):
    """Log lines, newest last."""

    target: str
    name: str
    source: str
    sources: list[str]
    lines: int
    probe_lines_left_out: int | None = None
    text: str
    cut_chars: int = 0


class Finding(Part):
    """One reason, symptom or false alarm: its lines, what they mean, and what mends it."""

    id: str
    kind: Literal["cause", "symptom", "harmless"]
    cause: str
    fix: str
    evidence: str
    where: str
    times: int = 1
    known_from: str | None = None
    as_of: str | None = None


class Looked(Part):
    """One source that was read, or why it could not be."""

    source: str
    lines: int
    problem: str | None = None


class Diagnosis(Answer):
    """What is wrong, as far as it is known. `opinion` is the deployed model's, if it was asked."""

    target: str | None = None
    name: str | None = None
    state: State | None = None
    verdict: Literal["known", "unknown", "nothing found"]
    causes: list[Finding] = Field(default_factory=list)
    earlier: list[Finding] = Field(default_factory=list)
    harmless: list[Finding] = Field(default_factory=list)
    telling_lines: list[str] = Field(default_factory=list)
    looked_at: list[Looked] = Field(default_factory=list)
    opinion: str | None = None
    opinion_by: str | None = None


class ModelEntry(Part):
    """A checkpoint somewhere."""

    id: str
    where: str
    kind: str | None = None
    encoding: str | None = None
    weights_gib: float | None = None
    note: str | None = None


class ModelList(Answer):
    """Checkpoints known, found on disk, or being served."""

    items: list[ModelEntry]
    total: int
    next_cursor: str | None = None
    not_answering: list[NotAsked] = Field(default_factory=list)
    not_set_up: list[NotAsked] = Field(default_factory=list)


class Fit(Part):
    """Whether a checkpoint fits one target at its reference settings; predicted."""

    target: str
    verdict: Literal["fits", "tight", "does not fit"]
    kv_cache_tokens: int | None = None
    longest_context: int | None = None
    reasons: list[str] = Field(default_factory=list)
    would_fit: list[str] = Field(default_factory=list)


class ModelFacts(Answer):
    """What a checkpoint's own files say it is, where it fits (predicted), what vLLM needs."""

    id: str
    facts: dict[str, str | int | float | bool]
    needs_arguments: str | None = None
    fits: list[Fit] = Field(default_factory=list)


class Started(Answer):
    """A long operation was started; it goes on when this server does not."""

    operation_id: str
    kind: str
    target: str
    name: str
    benchmark_id: str | None = None


class OperationEntry(Part):
    """One operation in a list."""

    operation_id: str
    kind: str
    target: str
    name: str
    state: str
    progress: str | None = None
    started_at: str
    updated_at: str | None = None


class OperationList(Answer):
    """Operations, newest first."""

    items: list[OperationEntry]
    total: int
    next_cursor: str | None = None


class OperationAnswer(Answer):
    """One operation: state, progress, the end of its log, and what it has produced so far."""

    operation_id: str
    kind: str
    target: str
    name: str
    state: str
    finished: bool
    done: float | None = None
    total: float | None = None
    progress: str | None = None
    started_at: str
    updated_at: str | None = None
    elapsed_s: float | None = None
    waited_s: float | None = None
    result: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None
    log_tail: str | None = None


class BenchmarkEntry(Part):
    """One benchmark run in a list."""

    benchmark_id: str
    target: str | None = None
    name: str | None = None
    model: str | None = None
    state: str
    started_at: str | None = None
    mode: str | None = None
    levels: str | None = None
    best_output_tokens_per_s: float | None = None
    best_concurrency: int | None = None
    best_request_rate: float | None = None
    knee: float | None = None
    usd_per_million_output_tokens: float | None = None
    basis: str | None = None


class BenchmarkList(Answer):
    """Benchmark runs, newest first."""

    items: list[BenchmarkEntry]
    total: int
    next_cursor: str | None = None
    unreadable: list[str] = Field(default_factory=list)


class BenchmarkAnswer(Answer):
    """One run, or several side by side."""

    benchmark_ids: list[str]
    basis: list[str] = Field(default_factory=list)
    levels: list[dict[str, Any]] = Field(default_factory=list)
    knee: dict[str, Any] = Field(default_factory=dict)
    predicted: list[dict[str, int | float]] = Field(default_factory=list)
    grid: list[dict[str, Any]] = Field(default_factory=list)
    repeated: list[dict[str, Any]] = Field(default_factory=list)
    comparison: list[dict[str, Any]] = Field(default_factory=list)
    findings: list[str] = Field(default_factory=list)
    definitions: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)


class Help(Answer):
    """What this server is set to, can do, and needs."""

    version: str
    order_of_work: list[str] = Field(default_factory=list)
    settings: list[dict[str, str]] = Field(default_factory=list)
    targets: list[dict[str, str]] = Field(default_factory=list)
    options: list[dict[str, str]] = Field(default_factory=list)
    doctor: list[Check] = Field(default_factory=list)
    error_codes: list[dict[str, str]] = Field(default_factory=list)


class Place(Part):
    """One region or zone: whether the target can run there, and what stands in the way."""

    place: str
    verdict: Literal["can run", "short of quota", "not sold here", "no capacity lately", "unknown"]
    usd_per_hour: float | None = None
    provisioning: str | None = None
    quota_limit: float | None = None
    quota_used: float | None = None
    short_of: list[str] = Field(default_factory=list)
    note: str | None = None


class Capacity(Answer):
    """Where a target can run: quota, who sells the hardware, price, and what to ask for."""

    target: str
    needs: dict[str, str | int | float] = Field(default_factory=dict)
    items: list[Place]
    total: int
    next_cursor: str | None = None
    to_request: list[str] = Field(default_factory=list)
    not_answering: list[NotAsked] = Field(default_factory=list)


class Share(Part):
    """One revision or variant and the share of traffic it gets."""

    revision: str
    percent: int
    tag: str | None = None
    url: str | None = None
    state: str | None = None


class Traffic(Answer):
    """How traffic is split after a shift, and what a contract check found before it."""

    target: str
    name: str
    shares: list[Share]
    checks: list[Check] = Field(default_factory=list)
    done: list[str] = Field(default_factory=list)


class Staged(Answer):
    """Where a checkpoint's weights are, what was there already, and what runs or is to be run."""

    target: str
    model: str
    destination: str
    operation_id: str | None = None
    present: list[str] = Field(default_factory=list)
    commands: list[str] = Field(default_factory=list)
    usd_per_month: float | None = None


class TokenSaved(Answer):
    """Where a token is kept now; never the token."""

    target: str
    secret: str
    version: str | None = None
    readers: list[str] = Field(default_factory=list)
    done: list[str] = Field(default_factory=list)

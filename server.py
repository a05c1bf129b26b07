"""vllm-devops: the whole life of a self-hosted vLLM deployment of Gemma 4, over MCP (stdio).

Every tool, resource and prompt is here, in the order of a deployment's life. A tool validates,
dispatches to the target's backend, and shapes the answer; what a cloud needs is in `backends/`.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, Elicit, ElicitationResult, Resolve
from pydantic import Field, WithJsonSchema

from backends.app import App
from backends.base import Scaling
from backends.core import answers
from backends.core.lifecycle import closing, serve
from backends.core.names import SERVER_NAME, VERSION
from backends.core.tools import Kind, StrictServer, ToolBox, app_of
from backends.verbs import (
    about,
    comparing,
    deploying,
    diagnosing,
    importing,
    measuring,
    observing,
    operating,
    operations,
)
from backends.verbs.deploying import Approval

INSTRUCTIONS = """\
Runs self-hosted vLLM deployments of Gemma 4: plan, deploy, wait, verify, query, watch, \
benchmark, compare, destroy. Start with get_help or list_deployments. Order: plan_deployment -> \
deploy(plan_id) -> wait_until_ready -> verify_model_health -> query_model, run_benchmark -> \
destroy.
deploy, stop_serving and destroy called without plan_id only answer with a plan: its steps, price \
and plan_id. Show the person the price, then call again with that plan_id; an id works once and \
expires. Destructive tools also need the person's yes.
No call takes over 45 s. Longer work goes on by itself: wait_until_ready says when to call again; \
run_benchmark gives an operation_id for get_operation, then get_benchmarks shows table and chart.
target=local runs on this machine: engine=simulator (no GPU, no account, default) or engine=vllm. \
Figures are labelled measured, simulated or predicted: never quote a simulated one as real.
Answers end with next_steps: exact calls. Errors have a code, a cause and a next_action. A field \
that is absent is unknown, never zero. Nothing is deleted that this server did not make.
"""

box = ToolBox()
read, write, destructive = Kind.READ, Kind.WRITE, Kind.DESTRUCTIVE

Target = Annotated[str, Field(description="Where.")]
AnyTarget = Annotated[str | None, Field(description="Only this target.")]
Name = Annotated[str, Field(description="The deployment.", max_length=63)]
NameOrOnly = Annotated[
    str | None, Field(description="The deployment; may be left out if there is one.", max_length=63)
]
PlanId = Annotated[
    str | None,
    Field(description="From the plan; without it, only a plan.", pattern="^plan-[0-9a-f-]+$"),
]
Cursor = Annotated[str | None, Field(description="next_cursor of the page before.", max_length=64)]
Limit = Annotated[int, Field(ge=1, le=100, description="Items a page.")]
WaitS = Annotated[float, Field(ge=0, le=40, description="Seconds to wait.")]
Options = Annotated[
    dict[str, Any] | None,
    # Any JSON: the target's own model checks every entry, by name.
    WithJsonSchema({"type": "object"}),
    Field(description="More settings, see get_help(topic='options')."),
]
Model = Annotated[
    str | None, Field(description="Checkpoint: Hugging Face id, folder or path.", max_length=512)
]
MaxModelLen = Annotated[int | None, Field(ge=256, description="Longest context, tokens.")]
MaxNumSeqs = Annotated[int | None, Field(ge=1, le=4096, description="Engine batch limit.")]


# ------------------------------------------------------------------------------- know and plan


@box.add(read, "Help, settings and doctor", anthropic__alwaysLoad=True)
async def get_help(
    ctx: Context,
    topic: Literal[
        "overview", "settings", "targets", "options", "benchmark", "doctor", "errors"
    ] = "overview",
    target: AnyTarget = None,
) -> answers.Help:
    """Start here: order of work, what each target can do, settings and what is wrong with them.

    topic=options lists a target's deploy options, benchmark those of run_benchmark; doctor checks
    CLIs, engines and folders.
    """
    return await about.help_about(app_of(ctx), topic, target)


@box.add(
    read,
    "List deployments and their cost",
    ability="list_deployments",
    anthropic__searchHint="running endpoints services VMs cost bill now",
)
async def list_deployments(
    ctx: Context, target: AnyTarget = None, limit: Limit = 50, cursor: Cursor = None
) -> answers.DeploymentList:
    """What is deployed everywhere, its state and what it costs per hour now.

    A target that did not answer is named; the list is then not complete.
    """
    return await observing.list_deployments(app_of(ctx), target, limit, cursor)


@box.add(read, "List or inspect models", ability="list_models")
async def list_models(
    ctx: Context,
    target: AnyTarget = None,
    inspect: Annotated[
        str | None,
        Field(description="A folder or id to look into instead.", min_length=1, max_length=512),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> answers.ModelList | answers.ModelFacts:
    """Checkpoints known, on disk, being served. inspect reads config.json: what one really is."""
    return await observing.list_models(app_of(ctx), target, inspect, limit, cursor)


@box.add(
    read,
    "Plan a deployment",
    ability="plan_deployment",
    anthropic__searchHint="price cost estimate dry run commands gpu",
)
async def plan_deployment(
    ctx: Context,
    target: Annotated[str | None, Field(description="Where; without: compare targets.")] = None,
    name: Annotated[str | None, Field(description="Name for it.", max_length=63)] = None,
    model: Model = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    options: Options = None,
    format: Annotated[  # the word a user says
        Literal["plan", "shell", "gke"],
        Field(description="shell adds a script, gke (tpu-v6e) a manifest."),
    ] = "plan",
    load: Annotated[
        dict[str, Any] | None,
        # Any JSON: the load's own model checks every entry, by name.
        WithJsonSchema({"type": "object"}),
        Field(
            description="requests_per_hour, prompt_tokens, output_tokens, hours_a_day, ttft_ms, "
            "e2e_s: for cost and speed."
        ),
    ] = None,
    detail: Annotated[
        bool, Field(description="Every offer, price sources; of a plan what settings mean.")
    ] = False,
) -> answers.PlanAnswer | answers.Comparison:
    """Settings, exact commands, price, predicted speed, and the plan_id that runs it.

    Changes and costs nothing. Next: deploy with that plan_id. Without a target: which one serves
    a model and load cheapest, and why.
    """
    request = deploying.parse_request(name, model, max_model_len, max_num_seqs, options)
    if target is None:
        return await comparing.compare_targets(
            app_of(ctx), request, load, form=format, detail=detail
        )
    return await deploying.plan_deploy(
        app_of(ctx), target, request, form=format, load=load, detail=detail
    )


@box.add(
    read,
    "Find quota and capacity",
    ability="find_capacity",
    anthropic__searchHint="quota gpu tpu region zone price available",
)
async def find_capacity(
    ctx: Context,
    target: Target,
    place: Annotated[str | None, Field(description="Only this region or zone.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> answers.Capacity:
    """Where a target can run: quota against need, who sells the hardware, price."""
    return await operating.find_capacity(app_of(ctx), target, place, limit, cursor)


@box.add(write, "Stage model weights", ability="stage_model")
async def stage_model(
    ctx: Context,
    target: Target,
    model: Annotated[str, Field(description="Hugging Face id or local folder.", max_length=512)],
    destination: Annotated[str | None, Field(description="Bucket folder; default: ours.")] = None,
    commands_only: bool = False,
) -> answers.Staged:
    """Copy weights to where the target reads them, in the background; resumes, skips what is there.

    Next: get_operation, then plan_deployment.
    """
    return await operating.stage_model(
        app_of(ctx), target, model, destination, commands_only=commands_only
    )


@box.add(write, "Save a Hugging Face token", ability="save_hf_token")
async def save_hf_token(
    ctx: Context,
    target: Target,
    file: Annotated[str | None, Field(description="Default: HF_TOKEN or hf's own file.")] = None,
) -> answers.TokenSaved:
    """Keep the token from the server's environment or a file in the target's secret store.

    Never pass a token in a call.
    """
    return await operating.save_hf_token(app_of(ctx), target, file)


# ---------------------------------------------------------------------------------------- deploy


@box.add(
    write,
    "Deploy vLLM",
    ability="deploy",
    anthropic__alwaysLoad=True,
    anthropic__searchHint="serve create endpoint gpu gemma",
)
async def deploy(
    ctx: Context,
    target: Target,
    name: Annotated[str | None, Field(description="Name for it.", max_length=63)] = None,
    model: Model = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    options: Options = None,
    plan_id: PlanId = None,
) -> answers.PlanAnswer | answers.Changed:
    """Run a plan: costs money from then on, except on local. Without plan_id it only plans.

    Returns as soon as the target has accepted. Next: wait_until_ready.
    """
    request = deploying.parse_request(name, model, max_model_len, max_num_seqs, options)
    if plan_id is None:
        return await deploying.plan_deploy(app_of(ctx), target, request)
    return await deploying.deploy(app_of(ctx), target, request, plan_id)


@box.add(read, "Wait until ready", ability="wait_until_ready")
async def wait_until_ready(
    ctx: Context, target: Target, name: NameOrOnly = None, timeout_s: WaitS = 40
) -> answers.Waited:
    """Watch a deployment become ready, phase by phase; call again while it is starting."""
    return await deploying.wait_until_ready(
        app_of(ctx), target, name, timeout_s, ctx.report_progress
    )


@box.add(read, "Status of a deployment", ability="get_status")
async def get_status(
    ctx: Context,
    target: Target,
    name: NameOrOnly = None,
    detail: Annotated[bool, Field(description="Add host and accelerator facts.")] = False,
) -> answers.Status:
    """Infrastructure, engine health, endpoint, model, next step. Never wakes a sleeping GPU."""
    return await observing.get_status(app_of(ctx), target, name, detail=detail)


# ---------------------------------------------------------------------------------- use and watch


@box.add(read, "Verify model health", ability="verify_model_health")
async def verify_model_health(
    ctx: Context,
    target: Target,
    name: NameOrOnly = None,
    deep: Annotated[
        bool, Field(description="Also streaming, tool calls, context limit, usage.")
    ] = False,
) -> answers.Health:
    """One real chat request: does it answer, how fast, and is it the right model."""
    return await observing.verify(app_of(ctx), target, name, deep=deep)


@box.add(
    read,
    "Query the model",
    ability="query_model",
    anthropic__searchHint="chat ask prompt completion gemma tokens per second",
)
async def query_model(
    ctx: Context,
    target: Target,
    prompt: Annotated[str, Field(min_length=1, max_length=200_000)],
    name: NameOrOnly = None,
    system: Annotated[str | None, Field(max_length=50_000)] = None,
    max_tokens: Annotated[int, Field(ge=1, le=32_768)] = 512,
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None,
) -> answers.ChatAnswer:
    """A chat completion, with TTFT, tokens/s and the server's own token counts."""
    return await observing.query(app_of(ctx), target, name, prompt, system, max_tokens, temperature)


@box.add(read, "Serving metrics", ability="get_metrics")
async def get_metrics(
    ctx: Context,
    target: Target,
    name: NameOrOnly = None,
    interval_s: Annotated[
        float, Field(ge=0, le=30, description="Rates over this many seconds; 0: totals only.")
    ] = 0,
    raw: Annotated[bool, Field(description="Add the Prometheus text.")] = False,
) -> answers.MetricsAnswer:
    """Engine statistics: running, waiting, KV use, prefix hits, preemptions, latencies."""
    return await observing.get_metrics(app_of(ctx), target, name, interval_s, raw=raw)


@box.add(read, "Logs", ability="get_logs")
async def get_logs(
    ctx: Context,
    target: Target,
    name: NameOrOnly = None,
    source: Annotated[
        str | None, Field(description="Which log; the answer lists them.", max_length=32)
    ] = None,
    lines: Annotated[int, Field(ge=1, le=2000)] = 100,
) -> answers.LogsAnswer:
    """The newest log lines of a deployment, at most 20,000 characters."""
    return await observing.get_logs(app_of(ctx), target, name, source, lines)


@box.add(
    read,
    "Diagnose a failure",
    ability="diagnose",
    anthropic__searchHint="error failed why log analyze root cause fix not answering",
)
async def diagnose(
    ctx: Context,
    target: AnyTarget = None,
    name: NameOrOnly = None,
    text: Annotated[
        str | None,
        Field(description="Pasted log or error, instead of looking.", max_length=1_000_000),
    ] = None,
    ask_model: Annotated[
        bool, Field(description="Let the deployed model sum up what is not known.")
    ] = False,
) -> answers.Diagnosis:
    """Why something fails: reads status, logs, metrics and recent errors, or pasted text.

    Names known causes with the lines and the fix, and false alarms; says unknown when it is.
    """
    return await diagnosing.diagnose(app_of(ctx), target, name, text, ask_model=ask_model)


# ---------------------------------------------------------------------------------------- measure


@box.add(
    write,
    "Run a benchmark",
    ability="run_benchmark",
    anthropic__searchHint="load test throughput latency TTFT concurrency sweep",
)
async def run_benchmark(
    ctx: Context,
    target: Target,
    name: NameOrOnly = None,
    concurrency: Annotated[
        list[Annotated[int, Field(ge=1, le=4096)]],
        Field(min_length=1, max_length=16, description="Levels."),
    ] = [1, 2, 4, 8],  # noqa: B006 (never changed; a schema default)
    requests: Annotated[
        int | None, Field(ge=1, le=100_000, description="Requests a level; default by level.")
    ] = None,
    max_tokens: Annotated[int, Field(ge=1, le=8192, description="Output tokens a request.")] = 128,
    prompt_tokens: Annotated[
        int | None, Field(ge=1, le=131_072, description="Generated prompts of about this length.")
    ] = None,
    prompt: Annotated[
        str | None, Field(max_length=50_000, description="One fixed prompt instead.")
    ] = None,
    options: Annotated[
        dict[str, Any] | None,
        # Any JSON: the benchmark's own model checks every entry, by name.
        WithJsonSchema({"type": "object"}),
        Field(description="mode (knee, grid), slo, rates, data: get_help(topic='benchmark')."),
    ] = None,
) -> answers.Started | answers.BenchmarkAnswer:
    """Load the endpoint level by level, in the background; it is real traffic.

    Returns an operation_id at once. Next: get_operation, then get_benchmarks. With
    options.import_paths it takes in results of `vllm bench serve` instead.
    """
    if options is not None and importing.OPTION in options:
        return await importing.import_results(app_of(ctx), target, name, options)
    arguments = (concurrency, requests, max_tokens, prompt_tokens, prompt)
    return await measuring.run_benchmark(app_of(ctx), target, name, *arguments, options or {})


@box.add(write, "Time a cold start", ability="probe_cold_start")
async def probe_cold_start(ctx: Context, target: Target, name: Name) -> answers.Started:
    """Scale from zero and time each phase, in the background. Interrupts who uses it."""
    return await operating.probe_cold_start(app_of(ctx), target, name)


@box.add(read, "Benchmark results", ability="run_benchmark")
async def get_benchmarks(
    ctx: Context,
    benchmark_ids: Annotated[
        list[Annotated[str, Field(max_length=64)]] | None,
        Field(max_length=8, description="None: list. One: table and chart. Several: compare."),
    ] = None,
    target: AnyTarget = None,
    detail: Annotated[bool, Field(description="All figures of one, and what they mean.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> answers.BenchmarkList | answers.BenchmarkAnswer:
    """Benchmark runs: list them, show one with its chart, or compare several."""
    ids = benchmark_ids or []
    return await measuring.get_benchmarks(app_of(ctx), ids, target, limit, cursor, detail=detail)


@box.add(read, "Progress of long work")
async def get_operation(
    ctx: Context,
    operation_id: Annotated[str | None, Field(description="Without: list.", max_length=64)] = None,
    wait_s: WaitS = 0,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> answers.OperationAnswer | answers.OperationList:
    """State, progress and partial results of a long operation; wait_s waits for it to finish."""
    if operation_id is None:
        return await operations.list_operations(app_of(ctx), limit, cursor)
    return await operations.get_operation(app_of(ctx), operation_id, wait_s, ctx.report_progress)


@box.add(write, "Cancel long work")
async def cancel_operation(
    ctx: Context, operation_id: Annotated[str, Field(max_length=64)]
) -> answers.OperationAnswer:
    """Stop an operation. What it has measured stays."""
    return await operations.cancel_operation(app_of(ctx), operation_id)


# ------------------------------------------------------------------------------ scale and release


@box.add(write, "Scale", ability="update_scaling")
async def update_scaling(
    ctx: Context,
    target: Target,
    name: Name,
    min_instances: Annotated[int | None, Field(ge=0, le=100)] = None,
    max_instances: Annotated[int | None, Field(ge=1, le=100)] = None,
    instances: Annotated[int | None, Field(ge=0, le=100, description="Manual scaling.")] = None,
    automatic: Annotated[bool | None, Field(description="Back from manual scaling.")] = None,
) -> answers.Changed:
    """Change how many instances serve, within the budget; what is not said stays as it is."""
    scaling = Scaling(min_instances, max_instances, instances, automatic)
    return await operating.update_scaling(app_of(ctx), target, name, scaling)


@box.add(write, "Shift traffic", ability="shift_traffic")
async def shift_traffic(
    ctx: Context,
    target: Target,
    name: Name,
    to: Annotated[str, Field(description="candidate, previous, or a revision.", max_length=128)],
    percent: Annotated[int, Field(ge=0, le=100)] = 100,
    check: Annotated[
        bool, Field(description="First compare both on the same prompts; refuse if worse.")
    ] = True,
) -> answers.Traffic:
    """Send a share of traffic to a candidate (deployed with options candidate=true), or back."""
    return await operating.shift_traffic(app_of(ctx), target, name, to, percent, check=check)


# --------------------------------------------------------------------------------- stop and delete


@box.add(write, "Prepare a machine", ability="prepare_host")
async def prepare_host(
    ctx: Context,
    target: Target,
    name: Name,
    check_only: Annotated[bool, Field(description="Change nothing.")] = False,
    options: Options = None,
) -> answers.Started:
    """Make a machine ready to serve: disks, swap, GPU driver (may restart it), vLLM; in background.

    Each step looks before it acts, so it can be called again at any time.
    """
    return await operating.prepare_host(app_of(ctx), target, name, options or {}, check_only)


@box.add(write, "Start serving", ability="start_serving")
async def start_serving(
    ctx: Context,
    target: Target,
    name: Name,
    restart: Annotated[bool, Field(description="Stop it first if it runs.")] = False,
) -> answers.Changed:
    """Start the server of a stopped or failed deployment again. May start billing again."""
    return await deploying.start_serving(app_of(ctx), target, name, restart=restart)


async def ask_before_stop(
    ctx: Context, target: str, name: str, plan_id: str | None
) -> Approval | Elicit[Approval]:
    """What the person is asked before a stop; nothing while only planning."""
    return await deploying.question(ctx, "stop_serving", target, name, plan_id)


async def ask_before_destroy(
    ctx: Context, target: str, name: str, plan_id: str | None
) -> Approval | Elicit[Approval]:
    """What the person is asked before a deletion; nothing while only planning."""
    return await deploying.question(ctx, "destroy", target, name, plan_id)


@box.add(destructive, "Stop serving", ability="stop_serving")
async def stop_serving(
    ctx: Context,
    target: Target,
    name: Name,
    approval: Annotated[ElicitationResult[Approval], Resolve(ask_before_stop)],
    options: Options = None,
    plan_id: PlanId = None,
) -> answers.PlanAnswer | answers.Changed:
    """Stop a deployment's server without deleting it; says what goes on billing.

    Without plan_id it only answers with the plan.
    """
    if plan_id is None:
        return await deploying.plan_end(app_of(ctx), "stop_serving", target, name, options)
    return await deploying.run_destructive(
        ctx, "stop_serving", target, name, plan_id, approval, options
    )


@box.add(destructive, "Destroy a deployment", ability="destroy")
async def destroy(
    ctx: Context,
    target: Target,
    name: Name,
    approval: Annotated[ElicitationResult[Approval], Resolve(ask_before_destroy)],
    options: Options = None,
    plan_id: PlanId = None,
) -> answers.PlanAnswer | answers.Changed:
    """Delete a deployment and what was made for it; says what goes on billing.

    Without plan_id it only answers with the plan. Never touches what this server did not make.
    """
    if plan_id is None:
        return await deploying.plan_end(app_of(ctx), "destroy", target, name, options)
    return await deploying.run_destructive(ctx, "destroy", target, name, plan_id, approval, options)


# --------------------------------------------------------------------------- resources and prompts


def add_resources(server: StrictServer, app: App) -> None:
    """Register what a client can read without a tool call."""

    @server.resource(
        "config://targets", mime_type="application/json", description="What each target can do."
    )
    def targets() -> str:
        return about.targets_json(app)

    @server.resource(
        "config://vllm-deployment-template",
        mime_type="application/json",
        description="The arguments of plan_deployment, with every target's options.",
    )
    def template() -> str:
        return about.template_json(app)

    @server.resource(
        "deployment://{target}/{name}",
        mime_type="application/json",
        description="Status of one deployment.",
    )
    async def deployment(target: str, name: str) -> str:
        return await observing.deployment_json(app, target, name)

    @server.resource(
        "benchmark://{benchmark_id}",
        mime_type="application/json",
        description="One benchmark run, whole.",
    )
    def benchmark(benchmark_id: str) -> str:
        return measuring.benchmark_json(app, benchmark_id)

    @server.resource(
        "audit://log",
        mime_type="application/jsonl",
        description="Who changed what, newest last; the last 20 kB.",
    )
    def audit() -> str:
        return app.audit.tail()


def add_prompts(server: StrictServer) -> None:
    """Register the four jobs people ask for."""

    @server.prompt(name="deploy-and-verify", title="Deploy and verify")
    def deploy_and_verify(target: str = "local", model: str = "google/gemma-4-E2B-it") -> str:
        """Deploy a model on a target, wait for it, and prove that it works."""
        return (
            f"Deploy {model} with vLLM on {target}. Call plan_deployment and show me the price per "
            "hour and the warnings before anything is created. When I agree, call deploy with the "
            "plan_id, then wait_until_ready until it is ready or failed, then verify_model_health "
            "with deep=true, then query_model once. Report the endpoint, the model, TTFT and "
            "tokens/s, and what it costs per hour. If it fails, read get_logs and say why."
        )

    @server.prompt(name="benchmark-and-compare", title="Benchmark and compare")
    def benchmark_and_compare(target: str = "local", name: str = "") -> str:
        """Benchmark a deployment and compare it with earlier runs."""
        which = f" deployment {name}" if name else ""
        return (
            f"Benchmark{which} on {target}: run_benchmark at concurrency 1, 2, 4 and 8, follow it "
            "with get_operation, then show the table and chart with get_benchmarks. Compare it "
            "with the newest earlier runs by passing their ids together. Say where throughput "
            "stops rising and why, and what a million tokens costs. Say whether the figures are "
            "measured or simulated, and leave out levels marked invalid."
        )

    @server.prompt(name="triage-outage", title="Triage an outage")
    def triage_outage(target: str = "local", name: str = "", symptom: str = "") -> str:
        """Find out why a deployment does not answer."""
        which = f"{target}/{name}" if name else target
        told = f" The symptom: {symptom}." if symptom else ""
        return (
            f"{which} does not answer as it should.{told} Change nothing yet. Call diagnose, then "
            "look at get_status with detail=true, get_metrics, get_logs and verify_model_health "
            "as far as it leaves open. Name the cause with the evidence line, what it means, and "
            "the exact call that mends it. If you cannot tell, say so and show the most telling "
            "lines."
        )

    @server.prompt(name="tear-down-everything", title="Tear down everything")
    def tear_down_everything(target: str = "") -> str:
        """Delete deployments so that nothing goes on billing by accident."""
        where = f" on {target}" if target else ""
        return (
            f"List what is deployed{where} with list_deployments. Show me each with its price per "
            "hour and ask which to delete. For each one I name, call destroy without plan_id, show "
            "the plan and what keeps billing, and only when I agree call it with the plan_id. "
            "Finish with list_deployments and say what still costs money, or which target could "
            "not be asked."
        )


def create_server(app: App | None = None) -> StrictServer:
    """The server with every tool that the mode and the targets allow.

    Args:
        app: The application; by default one made from the environment.
    """
    app = app or App.from_environment()
    options: dict[str, Any] = {
        "name": SERVER_NAME,
        "title": "vLLM DevOps",
        "version": VERSION,
        "description": "Runs self-hosted vLLM deployments of Gemma 4 from plan to teardown.",
        "instructions": INSTRUCTIONS,
        "log_level": app.settings.log_level,
        "lifespan": closing(app),
    }
    server = StrictServer(app, box.specs, app.abilities, **options)
    add_resources(server, app)
    add_prompts(server)
    return server


def main() -> int:
    """Serve on stdin and stdout until the client leaves."""
    return serve(create_server())


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)

"""The whole job, through a real MCP client: deploy, wait, verify, query, benchmark, destroy.

`make demo` runs it on the simulator, `make demo ENGINE=vllm` on a real vLLM on this machine's CPU
with a tiny random Gemma 4. It starts server.py as any client would and leaves nothing running.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.types import (
    CallToolResult,
    ElicitRequestFormParams,
    ElicitResult,
    ErrorData,
    ImageContent,
    Implementation,
    TextContent,
)

from backends.core.names import VERSION
from backends.core.settings import PROJECT_DIR, variable_of
from backends.rehearsal.launch import server_parameters
from backends.rehearsal.terminal import Terminal

TARGET, NAME = "local", "demo"
PROMPT = "In one sentence: what does vLLM do?"
LEVELS = [1, 2, 4, 8]
REQUESTS, MAX_TOKENS = 16, 48

# Every process the demo's server starts inherits it, so that none can be missed.
MARK = "VLLM_DEVOPS_DEMO"

_CALL_TIMEOUT_S = 60.0
_READY_TIMEOUT_S = {"simulator": 120.0, "vllm": 600.0}
_BENCHMARK_TIMEOUT_S = 900.0
_CLEAN_UP_TIMEOUT_S = 30.0
_END_PATIENCE_S = 10.0

Json = dict[str, Any]


class DemoError(Exception):
    """The walk cannot go on; the text says at which call and why."""


class Guest:
    """An MCP client that shows what it asks and what it is told.

    Args:
        client: A connected client.
        terminal: Where it is shown.
    """

    def __init__(self, client: Client, terminal: Terminal) -> None:
        self.client = client
        self.terminal = terminal

    async def call(self, tool: str, **arguments: Any) -> CallToolResult:  # noqa: ANN401 (JSON)
        """Call a tool; progress notifications become the live line.

        Raises:
            DemoError: The tool answered with an error, or not at all.
        """
        self.terminal.call(tool, arguments)

        async def show(progress: float, total: float | None, message: str | None) -> None:
            self.terminal.progress(progress / total if total else None, message or "")

        with anyio.move_on_after(_CALL_TIMEOUT_S):
            result = await self.client.call_tool(tool, arguments, progress_callback=show)
            if result.is_error:
                raise DemoError(f"{tool} answered with an error.\n{_text(result)}")
            answer = _structured(result)
            self.terminal.say(str(answer["summary"]))
            for warning in answer.get("warnings", []):
                self.terminal.warn(str(warning))
            return result
        raise DemoError(f"{tool} did not answer within {_CALL_TIMEOUT_S:.0f} s.")

    async def ask(self, tool: str, **arguments: Any) -> Json:  # noqa: ANN401 (JSON)
        """Call a tool; returns the structured part of its answer."""
        return _structured(await self.call(tool, **arguments))


async def walk(guest: Guest, deployment: Json, out: Path, ready_timeout_s: float) -> None:
    """The main job, from the first question to the last check.

    Args:
        guest: The client.
        deployment: Arguments of plan_deployment.
        out: Folder for the benchmark's chart and figures.
        ready_timeout_s: How long the engine may take to start, in seconds.

    Raises:
        DemoError: Something is not as it should be.
    """
    show = guest.terminal
    here: Json = {"target": TARGET, "name": NAME}

    show.heading("1. What is there, and what would be done")
    for line in (await guest.ask("get_help"))["order_of_work"]:
        show.detail(line)
    plan = await guest.ask("plan_deployment", **here, **deployment)
    for index, step in enumerate(plan["steps"], 1):
        show.say(f"step {index}: {step['title']}")
        show.say(f"$ {step['command']}")
    price = plan["price"]
    show.say(f"price: {price['usd_per_hour']} USD per hour ({price['basis']})")

    show.heading("2. Deploy exactly that plan, and wait")
    await guest.ask("deploy", **here, plan_id=plan["plan_id"])
    await _until_ready(guest, here, ready_timeout_s)

    show.heading("3. Does it work, and how fast")
    health = await guest.ask("verify_model_health", **here)
    show.table(health["checks"], {"name": "check", "ok": "ok", "detail": "what was found"})
    if not health["healthy"]:
        raise DemoError("The model is not healthy.")
    chat = await guest.ask("query_model", **here, prompt=PROMPT, max_tokens=MAX_TOKENS)
    show.detail(f"“{' '.join(str(chat['text']).split())}”")
    metrics = await guest.ask("get_metrics", **here)
    columns = {key: key for key in ("count", "mean", "p50", "p99")}
    show.table(metrics["latency_ms"][:4], {"latency_ms": "latency, ms"} | columns)
    logs = await guest.ask("get_logs", **here, lines=4)
    for line in str(logs["text"]).splitlines():
        show.detail(line)

    show.heading("4. Benchmark it")
    started = await guest.ask(
        "run_benchmark", **here, concurrency=LEVELS, requests=REQUESTS, max_tokens=MAX_TOKENS
    )
    await _until_finished(guest, str(started["operation_id"]))
    benchmark = await guest.call("get_benchmarks", benchmark_ids=[started["benchmark_id"]])
    files = _keep(benchmark, out)

    show.heading("5. Destroy it: once for the plan, once with its id")
    plan = await guest.ask("destroy", **here)
    for index, step in enumerate(plan["steps"], 1):
        show.say(f"step {index}: {step['title']}")
    await guest.ask("destroy", **here, plan_id=plan["plan_id"])
    left = await guest.ask("list_deployments")
    if not left["complete"] or any(item["name"] == NAME for item in left["items"]):
        raise DemoError(f"{TARGET}/{NAME} is still listed after it was destroyed.")

    show.heading(f"Benchmark ({', '.join(_structured(benchmark)['basis'])})")
    print_benchmark(show, _structured(benchmark))
    if "vllm" in str(deployment.get("options", {})):
        show.say(
            "A tiny random model on this machine's CPU: it shows that all of it works, no speed."
        )
    for what, path in files.items():
        show.good(f"{what}: {path}")


async def _until_ready(guest: Guest, here: Json, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        status = await guest.ask("wait_until_ready", **here)
        if status["ready"]:
            phases = [phase for phase in status.get("phases", []) if phase.get("seconds")]
            guest.terminal.detail(
                ", ".join(f"{phase['name']} {phase['seconds']:.3g} s" for phase in phases)
            )
            return
        if status["state"] != "starting" or time.monotonic() > deadline:
            raise DemoError(f"It did not become ready: {status.get('error') or status['summary']}")


async def _until_finished(guest: Guest, operation_id: str) -> None:
    deadline = time.monotonic() + _BENCHMARK_TIMEOUT_S
    while True:
        operation = await guest.ask("get_operation", operation_id=operation_id, wait_s=40)
        if operation["finished"]:
            if operation["state"] != "succeeded":
                raise DemoError(f"The benchmark {operation['state']}: {operation.get('error')}")
            return
        if time.monotonic() > deadline:
            raise DemoError(f"The benchmark took longer than {_BENCHMARK_TIMEOUT_S:.0f} s.")


def print_benchmark(show: Terminal, benchmark: Json) -> None:
    """The levels of one run as a table, and what was found."""
    rows = [
        level
        | {f"{name}_p50": level[f"{name}_ms"]["p50"] for name in ("ttft", "itl", "e2e")}
        | {"ttft_p99": level["ttft_ms"]["p99"]}
        for level in benchmark["levels"]
        if level["requests"] > level["errors"]
    ]
    columns = {
        "concurrency": "concurrency",
        "errors": "errors",
        "requests_per_s": "req/s",
        "output_tokens_per_s": "tok/s",
        "ttft_p50": "TTFT p50",
        "ttft_p99": "p99",
        "itl_p50": "ITL p50",
        "e2e_p50": "E2E p50 ms",
        "usd_per_million_output_tokens": "USD/Mtok",
        "valid": "valid",
    }
    show.table(rows, columns)
    for finding in benchmark.get("findings", []):
        show.say(str(finding))


def _keep(benchmark: CallToolResult, out: Path) -> dict[str, str]:
    """Keep the chart from the answer, and the figures, which go with the state directory."""
    out.mkdir(parents=True, exist_ok=True)
    kept: dict[str, str] = {}
    chart = next((block for block in benchmark.content if isinstance(block, ImageContent)), None)
    if chart is None:
        raise DemoError("get_benchmarks answered without a chart.")
    path = out / "benchmark.png"
    path.write_bytes(base64.b64decode(chart.data))
    kept["chart"] = _near(path)
    for key, source in _structured(benchmark)["files"].items():
        if key != "chart_png":
            copy = out / Path(source).name
            shutil.copyfile(source, copy)
            kept[key] = _near(copy)
    return kept


def _near(path: Path) -> str:
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else path)


async def clean_up(guest: Guest) -> None:
    """After a failure: destroy what the walk deployed, through the tools as far as they answer."""
    here: Json = {"target": TARGET, "name": NAME}
    guest.terminal.heading("Cleaning up")
    with anyio.CancelScope(shield=True), anyio.move_on_after(_CLEAN_UP_TIMEOUT_S):
        try:
            running = _structured(await guest.client.call_tool("get_operation", {}))
            for operation in running["items"]:
                if operation["name"] == NAME and operation["state"] == "running":
                    await guest.ask("cancel_operation", operation_id=operation["operation_id"])
            left = _structured(await guest.client.call_tool("list_deployments", {}))
            if any(item["name"] == NAME for item in left["items"]):
                plan = await guest.ask("destroy", **here)
                await guest.ask("destroy", **here, plan_id=plan["plan_id"])
        except Exception as error:  # noqa: BLE001 (the first failure matters; this one is shown)
            guest.terminal.warn(f"Cleaning up through the tools failed: {error}")


def processes_of(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark in their environment: what this demo started."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        # Other people's processes do not show their environment; ours do.
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_processes(mark: str) -> list[str]:
    """End what still carries the mark; returns their command lines."""
    left = processes_of(mark)
    named: list[str] = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            named.append(f"pid {process.pid}: {' '.join(process.cmdline())[:80]}")
            process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=_END_PATIENCE_S)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(stubborn, timeout=_END_PATIENCE_S)
    return named


@contextlib.asynccontextmanager
async def connect(
    environment: Mapping[str, str], errors: Path, terminal: Terminal, *, legacy: bool
) -> AsyncIterator[Guest]:
    """Start server.py and connect to it over its stdin and stdout, as any client does.

    Args:
        environment: Settings of this server; those of the caller do not count.
        errors: File for the server's stderr.
        terminal: Where the conversation is shown.
        legacy: Speak the `initialize` handshake instead of protocol 2026-07-28.
    """

    async def person(context: object, params: object) -> ElicitResult | ErrorData:
        """The server asks; the person at this demo says yes."""
        del context
        if not isinstance(params, ElicitRequestFormParams):
            return ElicitResult(action="decline")
        terminal.ask(params.message, "yes")
        return ElicitResult(action="accept", content={"approve": True})

    with errors.open("w", encoding="utf-8") as errlog:
        client = Client(
            stdio_client(server_parameters(environment), errlog=errlog),
            mode="legacy" if legacy else "auto",
            client_info=Implementation(name="vllm-devops-demo", version=VERSION),
            elicitation_callback=person,
        )
        async with client:
            tools = (await client.list_tools()).tools
            server = client.server_info
            named = f"{server.name} {server.version}" if server else "a server without a name"
            terminal.heading(
                f"Connected to {named} over stdio, protocol {client.protocol_version}: "
                f"{len(tools)} tools"
            )
            yield Guest(client, terminal)


async def demo(options: argparse.Namespace, terminal: Terminal, state_dir: Path, mark: str) -> None:
    """Connect and walk; on any failure destroy what was deployed.

    Raises:
        DemoError: The walk failed, or something is left running.
    """
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    deployment, environment = await asyncio.to_thread(engine, options.engine, terminal)
    environment = environment | {variable_of("state_dir"): str(state_dir), MARK: mark}
    errors = state_dir / "demo-server-stderr.log"
    try:
        async with connect(environment, errors, terminal, legacy=options.legacy) as guest:
            try:
                await walk(guest, deployment, options.out, _READY_TIMEOUT_S[options.engine])
            except BaseException:
                await clean_up(guest)
                raise
    except BaseException:
        if said := errors.read_text(encoding="utf-8", errors="replace") if errors.exists() else "":
            terminal.bad("The server's stderr:\n" + "\n".join(said.splitlines()[-10:]))
        raise


def engine(name: str, terminal: Terminal) -> tuple[Json, dict[str, str]]:
    """Arguments of plan_deployment for an engine, and what the server's environment needs for it.

    Args:
        name: simulator or vllm; for vllm, a CPU build and a tiny model are made first, once.
        terminal: Where it is told that this takes a while.

    Raises:
        DemoError: vLLM cannot be had here.
    """
    if name == "simulator":
        return {}, {}
    made = _tiny_vllm("paths")
    if not json.loads(made)["ready"]:
        terminal.heading("Getting a CPU build of vLLM and making a tiny Gemma 4 (once, ~0.4 GB)")
        for command in ("install", "model"):
            _tiny_vllm(command, quiet=False)
        made = _tiny_vllm("paths")
    paths = json.loads(made)
    return (
        {"model": paths["model"], "max_model_len": 2048, "options": {"engine": "vllm"}},
        {variable_of("vllm_bin"): paths["vllm"]},
    )


def _tiny_vllm(command: str, *, quiet: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "backends.rehearsal.tiny_vllm", command],
        cwd=PROJECT_DIR,
        stdout=subprocess.PIPE if quiet else None,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DemoError(f"`python -m backends.rehearsal.tiny_vllm {command}` failed; see above.")
    return done.stdout or ""


def _structured(result: CallToolResult) -> Json:
    if result.structured_content is None:
        raise DemoError(f"An answer has no structured content: {_text(result)[:200]}")
    return dict(result.structured_content)


def _text(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def _causes(error: BaseException) -> list[str]:
    """The failures in a group of them, as the transport's task groups wrap what they pass on."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for part in error.exceptions for cause in _causes(part)]
    name = "" if isinstance(error, DemoError) else f"{type(error).__name__}: "
    return [f"{name}{error}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0 if all of it worked and nothing is left running."""
    options = _parser().parse_args(arguments)
    options.out = options.out or PROJECT_DIR / "build" / "demo" / options.engine
    terminal = Terminal()
    mark = secrets.token_hex(8)
    began = time.monotonic()
    failure = ""
    with contextlib.ExitStack() as stack:
        if options.state_dir is None:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="vllm-devops-demo-"))
            state_dir = Path(made)
        else:
            state_dir = options.state_dir.absolute()
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A shell that starts jobs in the background has them ignore interrupts; this one cleans up.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            asyncio.run(demo(options, terminal, state_dir, mark))
        except (KeyboardInterrupt, asyncio.CancelledError):
            failure = "Interrupted."
        except BaseException as error:  # noqa: BLE001 (the edge: shown, cleaned up after, exit 1)
            failure = "\n".join(_causes(error))
        left = end_processes(mark)
    if left and not failure:
        failure = "Was left running and had to be ended:\n" + "\n".join(left)
    if failure:
        terminal.heading("The demo failed")
        terminal.bad(failure)
        terminal.say("What it had started was ended.")
        return 1
    terminal.good("nothing left running: no process of this demo is alive")
    terminal.good(f"done in {time.monotonic() - began:.0f} s")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m backends.rehearsal.demo",
        description="Deploys, verifies, queries, benchmarks and destroys a deployment on this "
        "machine through a real MCP client.",
    )
    parser.add_argument("--engine", choices=["simulator", "vllm"], default="simulator")
    parser.add_argument(
        "--legacy", action="store_true", help="speak the initialize handshake (2025-11-25)"
    )
    parser.add_argument(
        "--state-dir", type=Path, help="keep the state there; default: a temporary one"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for chart and figures; default: build/demo/ENGINE"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

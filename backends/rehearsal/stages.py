"""The parts of a walk that are the same on every target: plan, wait, look, benchmark, destroy."""

from __future__ import annotations

import asyncio
import base64
import shutil
import time
from pathlib import Path

from mcp.types import CallToolResult, ImageContent

from backends.rehearsal.guest import Guest, Json, WalkError, structured
from backends.rehearsal.terminal import Terminal

PROMPT = "In one sentence: what does vLLM do?"
OPERATION_TIMEOUT_S = 900.0

STOPPING_EVERY_S = 2.0
BECOMING = frozenset({"creating", "starting", "unknown"})
"""States that end by themselves."""


def show_plan(show: Terminal, plan: Json) -> None:
    """A plan's steps as they will be run, and its price."""
    for index, step in enumerate(plan["steps"], 1):
        show.say(f"step {index}: {step['title']}")
        show.say(f"$ {step['command']}")
    price = plan.get("price")
    if price is not None:
        per_hour = price.get("usd_per_hour")
        known = "not known" if per_hour is None else f"{per_hour} USD per hour"
        show.say(f"price: {known} ({price['basis']})")


async def until_ready(guest: Guest, here: Json, timeout_s: float) -> Json:
    """Wait for a deployment; returns its status.

    Raises:
        WalkError: It failed, or is not ready after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        status = await guest.ask("wait_until_ready", **here)
        if status["ready"]:
            phases = [phase for phase in status.get("phases", []) if phase.get("seconds")]
            if phases:
                guest.terminal.detail(
                    ", ".join(f"{phase['name']} {phase['seconds']:.3g} s" for phase in phases)
                )
            return status
        if status["state"] not in BECOMING or time.monotonic() > deadline:
            raise WalkError(f"It did not become ready: {status.get('error') or status['summary']}")


async def until_finished(guest: Guest, operation_id: str, what: str) -> Json:
    """Follow an operation to its end; returns it.

    Args:
        guest: The client.
        operation_id: The operation.
        what: What to call it, e.g. "The benchmark".

    Raises:
        WalkError: It failed, or took too long.
    """
    deadline = time.monotonic() + OPERATION_TIMEOUT_S
    while True:
        operation = await guest.ask("get_operation", operation_id=operation_id, wait_s=40)
        if operation["finished"]:
            if operation["state"] != "succeeded":
                raise WalkError(f"{what} {operation['state']}: {operation.get('error')}")
            return operation
        if time.monotonic() > deadline:
            raise WalkError(f"{what} took longer than {OPERATION_TIMEOUT_S:.0f} s.")


async def look(guest: Guest, here: Json, *, max_tokens: int, deep: bool = False) -> None:
    """Verify it, ask it something, read its metrics and its log.

    Raises:
        WalkError: The model is not healthy.
    """
    show = guest.terminal
    health = await guest.ask("verify_model_health", **here, **({"deep": True} if deep else {}))
    show.table(health["checks"], {"name": "check", "ok": "ok", "detail": "what was found"})
    if not health["healthy"]:
        raise WalkError("The model is not healthy.")
    chat = await guest.ask("query_model", **here, prompt=PROMPT, max_tokens=max_tokens)
    show.detail(f"“{' '.join(str(chat['text']).split())}”")
    metrics = await guest.ask("get_metrics", **here)
    columns = {key: key for key in ("count", "mean", "p50", "p99")}
    show.table(metrics["latency_ms"][:4], {"latency_ms": "latency, ms"} | columns)
    logs = await guest.ask("get_logs", **here, lines=4)
    for line in str(logs["text"]).splitlines():
        show.detail(line)


async def benchmark(
    guest: Guest, here: Json, *, levels: list[int], requests: int, max_tokens: int
) -> CallToolResult:
    """Run a benchmark to its end; returns what get_benchmarks answers."""
    started = await guest.ask(
        "run_benchmark", **here, concurrency=levels, requests=requests, max_tokens=max_tokens
    )
    await until_finished(guest, str(started["operation_id"]), "The benchmark")
    return await guest.call("get_benchmarks", benchmark_ids=[started["benchmark_id"]], detail=True)


def print_benchmark(show: Terminal, figures: Json) -> None:
    """The levels of one run as a table, and what was found."""
    rows = [
        level
        | {f"{name}_p50": level[f"{name}_ms"]["p50"] for name in ("ttft", "itl", "e2e")}
        | {"ttft_p99": level["ttft_ms"]["p99"]}
        for level in figures["levels"]
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
    for finding in figures.get("findings", []):
        show.say(str(finding))


def keep(answer: CallToolResult, out: Path) -> dict[str, str]:
    """Keep the chart from the answer, and the figures, which go with the state directory."""
    out.mkdir(parents=True, exist_ok=True)
    kept: dict[str, str] = {}
    chart = next((block for block in answer.content if isinstance(block, ImageContent)), None)
    if chart is None:
        raise WalkError("get_benchmarks answered without a chart.")
    path = out / "benchmark.png"
    path.write_bytes(base64.b64decode(chart.data))
    kept["chart"] = _near(path)
    for key, source in structured(answer)["files"].items():
        if key != "chart_png":
            copy = out / Path(source).name
            shutil.copyfile(source, copy)
            kept[key] = _near(copy)
    return kept


def _near(path: Path) -> str:
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else path)


async def end(guest: Guest, verb: str, here: Json) -> Json:
    """Stop or destroy: once for the plan, once with its id."""
    plan = await guest.ask(verb, **here)
    for index, step in enumerate(plan["steps"], 1):
        guest.terminal.say(f"step {index}: {step['title']}")
    return await guest.ask(verb, **here, plan_id=plan["plan_id"])


async def until_stopped(guest: Guest, here: Json, timeout_s: float) -> None:
    """Look until what was told to stop has stopped.

    Raises:
        WalkError: It goes on stopping for longer than `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while (status := await guest.ask("get_status", **here))["state"] == "stopping":
        if time.monotonic() > deadline:
            raise WalkError(f"It did not stop: {status['summary']}")
        await asyncio.sleep(STOPPING_EVERY_S)


async def make_sure_it_is_gone(guest: Guest, here: Json) -> None:
    """Look at everything there is, everywhere; what is left at no cost is shown.

    Raises:
        WalkError: It is still listed, or some target could not be asked.
    """
    left = await guest.ask("list_deployments")
    found = [(item["target"], item["name"]) for item in left["items"]]
    if not left["complete"] or (here["target"], here["name"]) in found:
        raise WalkError(f"{here['target']}/{here['name']} is still listed after it was destroyed.")
    for line in left.get("left_over", []):
        guest.terminal.say(line)

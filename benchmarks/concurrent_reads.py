"""How fast reads are answered while a benchmark runs.

A server over stdio, a deployment on the simulator, and a benchmark of it as an operation. Then 200
calls of read tools, spread over some seconds, each sent when it is due whatever the others do, so
that a slow answer is not hidden by later sending: their p99 is the figure with a target.

Also 200 calls written at once, beside the same against a bare one-tool server. That is a matter of
CPU time a call: the SDK alone takes 0.7 ms (measured 2026-11-30), so 200 at once take it 140 ms.

Run: `python -m benchmarks.concurrent_reads [--seconds S]`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.startup import BARE
from tests.support.probe import Probe
from tests.support.processes import end_all_under

CALLS = 200
TARGET_P99_MS = 100.0

WHERE = {"target": "local", "name": "bench"}


def reads(operation: str, run: str) -> list[tuple[str, dict[str, Any]]]:
    """The mix: what an agent and a person's dashboard ask while a benchmark runs."""
    return [
        ("get_operation", {"operation_id": operation}),
        ("list_deployments", {}),
        ("get_status", WHERE),
        ("get_help", {}),
        ("get_benchmarks", {}),
        ("get_logs", WHERE | {"lines": 20}),
        ("get_metrics", WHERE),
        ("get_operation", {}),
        ("list_models", {}),
        ("get_help", {"topic": "settings"}),
        ("plan_deployment", {"target": "local", "name": "another"}),
        ("get_benchmarks", {"benchmark_ids": [run]}),
    ]


class Timed:
    """One call: when it was due, and the milliseconds until its answer."""

    def __init__(self, tool: str, due: float, future: Future[dict[str, Any]]) -> None:
        self.tool = tool
        self.due = due
        self.future = future
        self.ms = 0.0
        future.add_done_callback(self._done)

    def _done(self, _: Future[dict[str, Any]]) -> None:
        self.ms = (time.perf_counter() - self.due) * 1000


def send(
    probe: Probe, mix: list[tuple[str, dict[str, Any]]], rate_per_s: float | None, count: int
) -> list[Timed]:
    """Send `count` calls, at once or at a steady rate, and wait for all answers."""
    began = time.perf_counter()
    sent: list[Timed] = []
    for index in range(count):
        tool, arguments = mix[index % len(mix)]
        due = began if rate_per_s is None else began + index / rate_per_s
        if (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        _, future = probe.start_tool(tool, **arguments)
        sent.append(Timed(tool, due, future))
    for call in sent:
        answer = call.future.result(60)
        assert not answer["result"].get("isError"), answer
    return sent


def report(title: str, calls: list[Timed]) -> float:
    """Print percentiles, whole and by tool; returns the p99 in ms."""
    cuts = statistics.quantiles([call.ms for call in calls], n=100)
    worst = max(call.ms for call in calls)
    print(f"{title}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, max {worst:.1f} ms")
    if len({call.tool for call in calls}) == 1:
        return cuts[98]
    for tool in sorted({call.tool for call in calls}):
        times = [call.ms for call in calls if call.tool == tool]
        middle = statistics.median(times)
        print(f"  {tool:18} n {len(times):4}  p50 {middle:7.1f}  max {max(times):7.1f}")
    return cuts[98]


def main(argv: list[str]) -> int:
    """Print the figures; returns 1 where a p99 is over the target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="how long 200 calls are spread over"
    )
    options = parser.parse_args(argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        env = {"HOME": folder, "XDG_STATE_HOME": folder, "VLLM_DEVOPS_ENV_FILE": os.devnull}
        try:
            bare = Path(folder) / "bare.py"
            bare.write_text(BARE, encoding="utf-8")
            with Probe(argv=(sys.executable, str(bare)), env=env) as probe:
                probe.tool("ping")
                report(
                    f"{CALLS} pings of a bare server, written at once",
                    send(probe, [("ping", {})], None, CALLS),
                )
            return measure(env, options.seconds)
        finally:
            end_all_under(Path(folder))


def measure(env: dict[str, str], seconds: float) -> int:
    """Deploy, start a benchmark, and read meanwhile."""
    with Probe(env=env) as probe:
        planned = probe.tool("plan_deployment", **WHERE, options={"startup_speed": 1000})
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        assert probe.tool("wait_until_ready", target="local").ok["state"] == "ready"
        started = probe.tool("run_benchmark", **WHERE, concurrency=[4, 8], requests=400).ok
        operation, run = started["operation_id"], started["benchmark_id"]
        while "measuring" not in probe.tool("get_operation", operation_id=operation).text:
            time.sleep(0.1)
        mix = reads(operation, run)
        send(probe, mix, None, len(mix))  # first uses import what they need
        light = [call for call in mix if call[0] == "get_operation"]
        report(f"{CALLS} get_operation written at once", send(probe, light, None, CALLS))
        report(f"{CALLS} mixed reads written at once", send(probe, mix, None, CALLS))
        p99 = report(
            f"{CALLS} mixed reads over {seconds:g} s", send(probe, mix, CALLS / seconds, CALLS)
        )
        still = probe.tool("get_operation", operation_id=operation).ok["state"]
        probe.tool("cancel_operation", operation_id=operation)
    print(f"the benchmark was {still} throughout")
    print(f"target: p99 of the spread reads under {TARGET_P99_MS:g} ms")
    return 0 if p99 < TARGET_P99_MS else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))

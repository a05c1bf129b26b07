"""Long operations: they outlive the server, can be cancelled, and never lie about their end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import FAST
from tests.support.probe import ACCEPT, ERAS, Era, Probe
from tests.support.processes import end_all_under, gone, wait_for

WHERE = {"target": "local", "name": "demo"}
# The fastest of the imitated machines with a small checkpoint: requests take a tenth of a second.
QUICK = FAST | {"profile": "cloudrun-rtx6000"}


class Bench:
    """A state directory with one deployment, and servers on it, one after another."""

    def __init__(self, root: Path) -> None:
        self.state_dir = root / "state"
        self.env = {"VLLM_DEVOPS_STATE_DIR": str(self.state_dir), "HOME": str(root)}

    def server(self, era: Era = "modern") -> Probe:
        return Probe(era=era, env=self.env, answering=lambda _: ACCEPT)

    def worker(self, operation_id: str) -> int:
        path = self.state_dir / "operations" / operation_id / "operation.json"
        return int(json.loads(path.read_text(encoding="utf-8"))["pid"])

    def run_json(self, benchmark_id: str) -> dict[str, Any]:
        path = self.state_dir / "benchmarks" / benchmark_id / "run.json"
        if not path.exists():
            return {}
        run = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(run, dict)
        return run


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("operations")
    bench = Bench(root)
    with bench.server() as probe:
        planned = probe.tool("plan_deployment", **WHERE, model="gemma-4-E2B-it", options=QUICK)
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        assert probe.tool("wait_until_ready", target="local").ok["state"] == "ready"
    yield bench
    end_all_under(root)


def start(probe: Probe, **arguments: object) -> tuple[str, str]:
    """Start a benchmark; returns the ids of the operation and of the run."""
    started = probe.tool("run_benchmark", **WHERE, **arguments).ok
    return started["operation_id"], started["benchmark_id"]


def wait_until_measuring(probe: Probe, operation_id: str) -> None:
    def measuring() -> bool:
        answer = probe.tool("get_operation", operation_id=operation_id).ok
        assert not answer["finished"], answer
        return "measuring" in answer.get("progress", "")

    wait_for(measuring, 20)


def test_killing_the_server_in_the_middle_of_a_benchmark_loses_nothing(bench: Bench) -> None:
    with bench.server("legacy") as probe:
        operation, run = start(probe, concurrency=[1, 2], requests=40, max_tokens=24)
        wait_until_measuring(probe, operation)
        probe.process.kill()
        probe.wait(5)
    with bench.server("modern") as probe:
        answer = probe.tool("get_operation", operation_id=operation).ok
        assert answer["state"] == "running"
        assert operation in [
            item["operation_id"] for item in probe.tool("get_operation").ok["items"]
        ]
        answer = probe.tool("get_operation", operation_id=operation, wait_s=40).ok
        assert answer["state"] == "succeeded"
        levels = probe.tool("get_benchmarks", benchmark_ids=[run]).ok["levels"]
    assert [(level["concurrency"], level["requests"]) for level in levels] == [(1, 40), (2, 40)]
    assert all(level["errors"] == 0 for level in levels)
    assert gone(bench.worker(operation))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_server_does_not_end_the_operation(
    bench: Bench, number: signal.Signals
) -> None:
    with bench.server() as probe:
        operation, _ = start(probe, concurrency=[1], requests=6, max_tokens=24)
        wait_until_measuring(probe, operation)
        probe.signal(number)
        assert probe.wait(5) == 0
    with bench.server() as probe:
        answer = probe.tool("get_operation", operation_id=operation, wait_s=30).ok
    assert answer["state"] == "succeeded"


def test_a_plan_that_would_cut_a_benchmark_off_says_so_before_anybody_agrees(bench: Bench) -> None:
    with bench.server() as probe:
        operation, _ = start(probe, concurrency=[1], requests=50, max_tokens=24)
        for tool in ("stop_serving", "destroy"):
            planned = probe.tool(tool, **WHERE)
            assert f"benchmark {operation} is running on it" in planned.ok["warnings"][0]
        probe.tool("cancel_operation", operation_id=operation).expect_ok()
        assert operation not in probe.tool("stop_serving", **WHERE).text


def test_a_benchmark_whose_deployment_is_destroyed_ends_as_cancelled(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.server() as probe:
        planned = probe.tool("plan_deployment", **WHERE, model="gemma-4-E2B-it", options=QUICK)
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        assert probe.tool("wait_until_ready", target="local").ok["state"] == "ready"
        key = "sk-0123456789abcdef"
        operation, run = start(
            probe, concurrency=[1, 2], requests=20, max_tokens=24, prompt=f"Say {key} twice"
        )
        wait_for(lambda: bench.run_json(run).get("levels"), 20)
        plan = probe.tool("destroy", **WHERE)
        destroyed = probe.tool("destroy", **WHERE, plan_id=plan.plan_id).ok
        assert destroyed["done"][0] == f"benchmark {operation}: cancelled"
        assert probe.tool("get_operation", operation_id=operation).ok["state"] == "cancelled"
        assert gone(bench.worker(operation))
    kept = bench.run_json(run)
    assert kept["state"] == "cancelled"
    assert kept["levels"][0]["requests"] == 20
    # A prompt stays on disk with its run, so what looks like a credential in it does not.
    assert kept["spec"]["prompt"] == "Say sk-*** twice"
    assert not [path for path in tmp_path.rglob("*.json") if key in path.read_text()]


def test_cancelling_stops_it_soon_and_keeps_what_was_measured(bench: Bench) -> None:
    with bench.server() as probe:
        operation, run = start(probe, concurrency=[1, 2, 4], requests=12, max_tokens=24)
        wait_for(lambda: bench.run_json(run).get("levels"), 20)
        began = time.monotonic()
        answer = probe.tool("cancel_operation", operation_id=operation).ok
        assert time.monotonic() - began < 5
        assert answer["state"] == "cancelled"
        assert answer["finished"] is True
        assert gone(bench.worker(operation))
        shown = probe.tool("get_benchmarks", benchmark_ids=[run]).ok
        assert shown["levels"][0]["concurrency"] == 1
        assert shown["levels"][0]["requests"] == 12
        assert "cancelled" in shown["summary"]
        # Cancelling again says the same.
        assert probe.tool("cancel_operation", operation_id=operation).ok["state"] == "cancelled"


def test_a_worker_that_was_killed_is_a_failed_operation_with_a_reason(bench: Bench) -> None:
    with bench.server() as probe:
        operation, run = start(probe, concurrency=[1], requests=200, max_tokens=24)
        wait_until_measuring(probe, operation)
        os.killpg(bench.worker(operation), signal.SIGKILL)
        answer = probe.tool("get_operation", operation_id=operation, wait_s=10).ok
        assert answer["state"] == "failed"
        assert answer["finished"] is True
        assert "killed" in answer["error"]
        (listed,) = [
            item
            for item in probe.tool("get_operation").ok["items"]
            if item["operation_id"] == operation
        ]
        assert listed["state"] == "failed"
        # The run does not claim to be going on either.
        (item,) = [
            item for item in probe.tool("get_benchmarks").ok["items"] if item["benchmark_id"] == run
        ]
        assert item["state"] == "failed"
        shown = probe.tool("get_benchmarks", benchmark_ids=[run]).ok
        assert ": failed, " in shown["summary"]
        assert any("died without a word" in said for said in shown["warnings"])


def test_a_benchmark_of_an_endpoint_that_dies_fails_with_the_reason_and_the_log(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    with bench.server() as probe:
        planned = probe.tool("plan_deployment", **WHERE, options=FAST | {"fail": "crash-after:3"})
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        assert probe.tool("wait_until_ready", target="local").ok["state"] == "ready"
        operation, run = start(probe, concurrency=[1], requests=20, max_tokens=16)
        answer = probe.tool("get_operation", operation_id=operation, wait_s=40).ok
        assert answer["finished"] is True
        shown = probe.tool("get_benchmarks", benchmark_ids=[run]).ok
        if answer["state"] == "failed":
            assert answer["error"]
            assert answer["log_tail"]
        else:
            (level,) = shown["levels"]
            assert level["valid"] is False
            assert level["errors"] > 0
        assert any("invalid" in said or "failed" in said for said in shown["warnings"])


@pytest.mark.parametrize("era", ERAS)
def test_waiting_for_an_operation_is_bounded_and_sends_progress(bench: Bench, era: Era) -> None:
    with bench.server(era) as probe:
        operation, _ = start(probe, concurrency=[1], requests=400, max_tokens=24)
        _, future = probe.start_tool("get_operation", token="w", operation_id=operation, wait_s=2)
        # The server answers others meanwhile.
        probe.tool("get_operation", operation_id=operation).expect_ok()
        assert not future.done()
        result = future.result(20)["result"]["structuredContent"]
        # It waited no longer than it was told: what it waited for goes on.
        assert result["state"] in {"queued", "running"}
        assert 1 < result["waited_s"] < 5
        notes = probe.progress("w")
        assert notes
        values = [note["progress"] for note in notes]
        assert values == sorted(values)
        assert probe.tool("cancel_operation", operation_id=operation).ok["state"] == "cancelled"


def test_a_benchmark_of_something_that_is_not_ready_is_refused_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.server() as probe:
        planned = probe.tool("plan_deployment", **WHERE, options={"fail": "stall-startup"})
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        reply = probe.tool("run_benchmark", **WHERE)
        assert reply.error["code"] == "conflict"
        assert "wait_until_ready" in reply.error["next_action"]
        assert probe.tool("get_operation").ok["items"] == []
    end_all_under(tmp_path)


def test_refused_and_finished_changes_are_in_the_audit_log_with_the_client(bench: Bench) -> None:
    with bench.server("legacy") as probe:
        probe.tool("cancel_operation", operation_id="op-20261130-000000-none")
        probe.tool("run_benchmark", target="local", name="nobody")
        (content,) = probe.call("resources/read", {"uri": "audit://log"})["contents"]
    lines = [json.loads(line) for line in content["text"].splitlines()]
    last = [(line["tool"], line["event"]) for line in lines[-4:]]
    assert last == [
        ("cancel_operation", "started"),
        ("cancel_operation", "refused"),
        ("run_benchmark", "started"),
        ("run_benchmark", "refused"),
    ]
    assert lines[-1]["client"] == "probe 1.0"
    assert lines[-1]["outcome"].startswith("not_found:")
    assert lines[-1]["name"] == "nobody"


def test_operations_and_benchmarks_are_listed_in_pages_newest_first(bench: Bench) -> None:
    with bench.server() as probe:
        whole = probe.tool("get_operation").ok
        assert whole["total"] >= 3
        ids = [item["operation_id"] for item in whole["items"]]
        assert ids == sorted(ids, reverse=True)
        seen: list[str] = []
        page: dict[str, Any] = {"next_cursor": None}
        while "next_cursor" in page:
            more = {} if page["next_cursor"] is None else {"cursor": page["next_cursor"]}
            page = probe.tool("get_operation", limit=2, **more).ok
            assert page["total"] == whole["total"]
            seen += [item["operation_id"] for item in page["items"]]
        assert seen == ids
        one = probe.tool("get_benchmarks", limit=1).ok
        assert len(one["items"]) == 1
        assert one["next_cursor"] == "1"

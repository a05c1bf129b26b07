"""The whole life of a deployment on the simulator, over stdio, in both protocol eras."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.probe import ACCEPT, ERAS, Probe
from tests.support.processes import end_all_under
from tests.support.reply import Reply, missing_in_text

# About a second of start-up, so that there is something to watch.
STARTUP_SPEED = 200
LEVELS = [1, 2]


@dataclass
class Life:
    """One life, as it went.

    Attributes:
        replies: What each call answered, in order.
        progress: Progress notifications, by call.
        questions: What the person was asked.
        foreign: Lines on stdout that were no JSON-RPC.
        state_dir: The server's files.
        stderr: What the server wrote to its error output.
        after: The life's resources, read at its end.
    """

    state_dir: Path
    replies: dict[str, Reply] = field(default_factory=dict)
    progress: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    questions: list[dict[str, Any]] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    stderr: str = ""
    after: dict[str, str] = field(default_factory=dict)

    def structured(self, call: str) -> dict[str, Any]:
        return self.replies[call].ok


def live(probe: Probe, life: Life) -> None:
    where: dict[str, Any] = {"target": "local", "name": "demo"}

    def call(label: str, tool: str, **arguments: object) -> Reply:
        life.replies[label] = probe.tool(tool, **arguments).expect_ok()
        return life.replies[label]

    def watch(label: str, tool: str, **arguments: object) -> Reply:
        _, future = probe.start_tool(tool, token=label, **arguments)
        life.replies[label] = Reply.of(future.result(50)["result"]).expect_ok()
        life.progress[label] = probe.progress(label)
        return life.replies[label]

    for topic in ("overview", "settings", "targets", "options", "doctor", "errors"):
        call(f"help {topic}", "get_help", topic=topic)
    call("list empty", "list_deployments")
    call("models", "list_models")
    call("inspect", "list_models", inspect="google/gemma-4-E2B-it")
    options = {"startup_speed": STARTUP_SPEED}
    planned = call("plan", "plan_deployment", **where, options=options, format="shell")
    call("deploy", "deploy", target="local", plan_id=planned.plan_id)
    call("status starting", "get_status", **where)
    watch("wait", "wait_until_ready", **where, timeout_s=30)
    call("status", "get_status", **where, detail=True)
    call("list", "list_deployments")
    call("verify", "verify_model_health", **where)
    call("verify deep", "verify_model_health", **where, deep=True)
    call("query", "query_model", **where, prompt="Say hello | and\ngo on.", max_tokens=16)
    call("metrics", "get_metrics", **where)
    call("metrics rates", "get_metrics", **where, interval_s=0.3, raw=True)
    call("logs", "get_logs", **where, lines=50)
    started = call(
        "benchmark", "run_benchmark", **where, concurrency=LEVELS, requests=4, max_tokens=12
    )
    operation, run = started.ok["operation_id"], started.ok["benchmark_id"]
    watch("operation", "get_operation", operation_id=operation, wait_s=40)
    call("operations", "get_operation")
    call("benchmarks", "get_benchmarks")
    call("one benchmark", "get_benchmarks", benchmark_ids=[run], detail=True)
    call("one benchmark in brief", "get_benchmarks", benchmark_ids=[run])
    again = call(
        "benchmark again", "run_benchmark", **where, concurrency=[1], requests=3, max_tokens=12
    )
    call("wait again", "get_operation", operation_id=again.ok["operation_id"], wait_s=40)
    call("comparison", "get_benchmarks", benchmark_ids=[run, again.ok["benchmark_id"]])
    call("cancel finished", "cancel_operation", operation_id=operation)
    planned = call("plan stop", "stop_serving", **where)
    call("stop", "stop_serving", **where, plan_id=planned.plan_id)
    call("status stopped", "get_status", **where)
    call("start", "start_serving", **where)
    watch("wait after start", "wait_until_ready", **where, timeout_s=30)
    call("logs before", "get_logs", **where, source="previous", lines=5)
    planned = call("plan destroy", "destroy", **where)
    call("destroy", "destroy", **where, plan_id=planned.plan_id)
    call("list after", "list_deployments")
    for uri in ("config://targets", "config://vllm-deployment-template", "audit://log"):
        life.after[uri] = read(probe, uri)
    life.after["benchmark://"] = read(probe, f"benchmark://{run}")


def read(probe: Probe, uri: str) -> str:
    (content,) = probe.call("resources/read", {"uri": uri})["contents"]
    return str(content["text"])


@pytest.fixture(scope="module", params=ERAS)
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Life:
    root = tmp_path_factory.mktemp("life")
    life = Life(root / "state")
    env = {"VLLM_DEVOPS_STATE_DIR": str(life.state_dir), "HOME": str(root)}
    with Probe(era=request.param, env=env, answering=lambda _: ACCEPT) as probe:
        try:
            live(probe, life)
        finally:
            end_all_under(root)
        life.questions = probe.questions
        life.foreign = probe.foreign
        life.stderr = probe.stderr
    return life


def test_every_fact_of_every_structured_answer_is_in_its_text(life: Life) -> None:
    for label, reply in life.replies.items():
        assert missing_in_text(reply) == [], label


def test_every_answer_says_what_is_and_is_of_bounded_length(life: Life) -> None:
    for label, reply in life.replies.items():
        assert reply.structured["summary"], label
        assert reply.text.startswith(reply.structured["summary"]), label
        assert len(reply.text) < 60_000, label


def test_stdout_carries_nothing_but_json_rpc_and_stderr_no_error(life: Life) -> None:
    assert life.foreign == []
    assert "Traceback" not in life.stderr
    assert not (life.state_dir / "server.log").exists()


def test_the_list_is_empty_before_and_after_and_says_that_everything_answered(life: Life) -> None:
    for label in ("list empty", "list after"):
        answer = life.structured(label)
        assert answer["items"] == []
        assert answer["total"] == 0
        assert answer["complete"] is True
        assert answer["usd_per_hour_now"] == 0
    (item,) = life.structured("list")["items"]
    assert (item["name"], item["state"], item["engine"]) == ("demo", "ready", "simulator")


def test_a_plan_shows_settings_steps_price_and_the_call_that_runs_it(life: Life) -> None:
    plan = life.structured("plan")
    settings = {row["name"]: row["value"] for row in plan["settings"]}
    assert settings["startup_speed"] == str(STARTUP_SPEED)
    assert "1.4209" in plan["price"]["basis"]
    assert plan["price"]["source"]
    assert plan["price"]["as_of"]
    assert f"plan_id='{plan['plan_id']}'" in plan["next_steps"][0]


def test_deploy_returns_at_once_and_says_to_wait(life: Life) -> None:
    assert life.structured("deploy")["state"] == "starting"
    assert life.structured("deploy")["next_steps"] == [
        "wait_until_ready(target='local', name='demo')"
    ]
    starting = life.structured("status starting")
    assert starting["state"] == "starting"
    assert starting["ready"] is False
    assert starting["expected_s"] > 0


def test_waiting_reports_progress_phase_by_phase_until_ready(life: Life) -> None:
    for label in ("wait", "wait after start"):
        answer = life.structured(label)
        assert answer["state"] == "ready"
        assert answer["waited_s"] < 30
        names = [phase["name"] for phase in answer["phases"]]
        assert "loading_weights" in names
        notes = life.progress[label]
        assert len(notes) >= 2
        values = [note["progress"] for note in notes]
        assert values == sorted(values), "progress never goes back"
        assert "starting" in notes[0]["message"]
        assert "ready" in notes[-1]["message"]


def test_a_status_with_detail_knows_the_host(life: Life) -> None:
    status = life.structured("status")
    assert status["ready"] is True
    assert status["simulated"] is True
    assert status["host"]["engine_processes"] >= 1
    assert status["host"]["memory_gib"] > 0
    assert {check["name"] for check in status["checks"]} == {"process", "health"}


def test_health_is_verified_with_real_requests(life: Life) -> None:
    quick, deep = life.structured("verify"), life.structured("verify deep")
    assert quick["healthy"] is True
    assert deep["healthy"] is True
    names = {check["name"] for check in deep["checks"]}
    assert {"chat", "streaming", "tool_call", "context_limit", "usage"} <= names
    assert quick["basis"] == "simulated"


def test_a_query_reports_the_servers_own_token_counts(life: Life) -> None:
    answer = life.structured("query")
    assert answer["usage"]["completion_tokens"] <= 16
    assert answer["usage"]["prompt_tokens"] > 0
    assert answer["token_count_source"] == "server usage"
    assert answer["ttft_ms"] > 0
    assert answer["e2e_ms"] >= answer["ttft_ms"]
    assert answer["basis"] == "simulated"
    assert answer["text"]


def test_metrics_are_totals_or_rates_and_raw_on_request(life: Life) -> None:
    totals, rates = life.structured("metrics"), life.structured("metrics rates")
    assert totals["now"]["running"] == 0
    assert {row["latency_ms"] for row in totals["latency_ms"]} >= {"ttft", "e2e"}
    assert rates["interval_s"] >= 0.3
    assert rates["rates"]
    assert "vllm:num_requests_running" in rates["raw"]


def test_logs_are_the_engines_own_and_list_their_sources(life: Life) -> None:
    answer = life.structured("logs")
    assert answer["source"] == "engine"
    assert "/v1/chat/completions" in answer["text"]
    assert life.structured("logs before")["sources"] == ["engine", "previous"]


def test_a_benchmark_runs_as_an_operation_with_progress_and_a_result(life: Life) -> None:
    assert "simulated" in life.structured("benchmark")["summary"]
    operation = life.structured("operation")
    assert operation["state"] == "succeeded"
    assert operation["finished"] is True
    assert operation["result"]["levels_done"] == len(LEVELS)
    assert Path(operation["result"]["run_json"]).is_file()
    assert Path(operation["result"]["levels_csv"]).is_file()
    notes = life.progress["operation"]
    assert notes
    assert all(0 <= note["progress"] <= 1 for note in notes)
    listed = life.structured("operations")["items"]
    assert [item["operation_id"] for item in listed] == [operation["operation_id"]]
    # Cancelling what has finished changes nothing.
    assert life.structured("cancel finished")["state"] == "succeeded"
    assert "nothing to cancel" in life.structured("cancel finished")["summary"]


def test_one_benchmark_is_a_table_and_a_chart_that_is_a_real_png(life: Life) -> None:
    reply = life.replies["one benchmark"]
    levels = reply.ok["levels"]
    assert [level["concurrency"] for level in levels] == LEVELS
    for level in levels:
        assert level["requests"] == 4
        assert level["errors"] == 0
        for metric in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            assert set(level[metric]) == {"mean", "p50", "p90", "p95", "p99"}, metric
    check_png(reply, Path(reply.ok["files"]["chart_png"]))
    assert any("simulated" in warning.lower() for warning in reply.ok["warnings"])


def test_a_benchmark_is_told_in_brief_unless_all_of_it_is_asked_for(life: Life) -> None:
    whole, brief = life.replies["one benchmark"], life.replies["one benchmark in brief"]
    assert len(brief.text) <= 3000
    assert len(json.dumps(brief.ok)) <= 3000
    assert brief.ok["findings"] == whole.ok["findings"]
    assert brief.images
    assert "detail=true" in brief.ok["next_steps"][0]
    for short, long in zip(brief.ok["levels"], whole.ok["levels"], strict=True):
        assert set(short["ttft_ms"]) == {"p50", "p95"}
        assert short["output_tokens_per_s"] == pytest.approx(long["output_tokens_per_s"], rel=1e-3)


def test_several_benchmarks_are_compared_in_a_table_and_a_chart(life: Life) -> None:
    reply = life.replies["comparison"]
    assert len(reply.ok["comparison"]) == 2
    assert len(reply.ok["benchmark_ids"]) == 2
    check_png(reply, Path(reply.ok["files"]["chart_png"]))


def check_png(reply: Reply, file: Path) -> None:
    (content,) = reply.images
    assert file.read_bytes() == content
    image = Image.open(io.BytesIO(content))
    image.load()
    assert image.format == "PNG"
    assert min(image.size) >= 300
    # A chart, not an empty canvas.
    assert len(image.convert("RGB").getcolors(maxcolors=1 << 24) or []) > 20


def test_stopping_keeps_the_deployment_and_starting_brings_it_back(life: Life) -> None:
    assert life.structured("stop")["state"] == "stopped"
    assert life.structured("status stopped")["state"] == "stopped"
    assert life.structured("start")["state"] == "starting"
    assert "removed" in life.structured("destroy")["done"][1]
    assert not (life.state_dir / "deployments" / "local" / "demo").exists()


def test_the_person_was_asked_exactly_for_the_stop_and_the_deletion(life: Life) -> None:
    messages = [question["message"] for question in life.questions]
    assert [message.split("\n")[0] for message in messages] == [
        "Stop serving local/demo?",
        "Destroy local/demo?",
    ]


def test_the_audit_log_tells_who_did_what_with_which_plan(life: Life) -> None:
    lines = [json.loads(line) for line in life.after["audit://log"].splitlines()]
    told = [(line["tool"], line["event"]) for line in lines]
    assert ("deploy", "started") in told
    assert ("deploy", "finished") in told
    assert ("destroy", "plan") in told
    assert not any(tool.startswith(("get_", "list_", "query_")) for tool, _ in told)
    plan = next(line for line in lines if line["tool"] == "deploy" and line["event"] == "plan")
    assert plan["plan_hash"] == life.structured("deploy")["plan_hash"]
    assert "backends.serving.simulator" in plan["steps"]
    for line in lines:
        assert line["client"] == "probe 1.0", line
        assert line["time"]
    by_call = [line["event"] for line in lines if line["call_id"] == plan["call_id"]]
    assert by_call == ["started", "plan", "finished"]
    assert life.after["audit://log"] == (life.state_dir / "audit.jsonl").read_text(encoding="utf-8")


def test_the_other_resources_hold_the_targets_the_arguments_and_the_run(life: Life) -> None:
    (target,) = json.loads(life.after["config://targets"])
    assert target["target"] == "local"
    assert "run_benchmark" in target["can"]
    template = json.loads(life.after["config://vllm-deployment-template"])
    assert "startup_speed" in template["local"]["properties"]
    run = json.loads(life.after["benchmark://"])
    assert [level["concurrency"] for level in run["levels"]] == LEVELS

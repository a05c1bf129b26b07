"""How the server ends, what it leaves behind, and what its two pipes carry."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import fake_vllm
from tests.support.probe import ACCEPT, ERAS, ROOT, SERVER, VERSIONS, Era, Probe
from tests.support.processes import gone, wait_for
from tests.support.reply import Reply

# The promise of an end within a second, and what a busy machine may add to it.
SOON_S = 1.0
BUSY_S = 1.0

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


class Busy:
    """A server with a child process running: planning a real vLLM asks a slow nvidia-smi."""

    def __init__(self, probe: Probe, pids: Path) -> None:
        self.probe = probe
        self.number, self.call = probe.start_tool(
            "plan_deployment",
            target="local",
            name="demo",
            model="google/gemma-4-E2B-it",
            options={"engine": "vllm"},
        )

        def started() -> list[int]:
            words = pids.read_text(encoding="utf-8").split() if pids.exists() else []
            return [int(word) for word in words] if len(words) == 2 else []

        # The child and a child of its own.
        self.children = wait_for(started, 15)
        assert not any(gone(pid) for pid in self.children)


@contextmanager
def busy_server(tmp_path: Path, era: Era = "modern") -> Iterator[Busy]:
    tools = tmp_path / "tools"
    tools.mkdir()
    pids = tmp_path / "pids"
    slow = tools / "nvidia-smi"
    slow.write_text(
        f"#!/bin/sh\nsleep 300 &\necho $$ $! > {pids}.new\nmv {pids}.new {pids}\nwait\n",
        encoding="utf-8",
    )
    slow.chmod(0o755)
    env = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "VLLM_DEVOPS_VLLM_BIN": str(fake_vllm.make_program(tmp_path / "vllm")),
    }
    with Probe(era=era, env=env) as probe:
        yield Busy(probe, pids)


def check_gone(busy: Busy) -> None:
    """Wait until what was killed has been scheduled once more, to end."""
    children = busy.children

    def all_gone() -> bool:
        """no child is left"""
        return all(gone(pid) for pid in children)

    wait_for(all_gone, 5)


def check_ends_soon(probe: Probe, code: int | None = 0) -> None:
    began = time.monotonic()
    ended = probe.wait(10)
    took = time.monotonic() - began
    assert took < SOON_S + BUSY_S, f"took {took:.2f} s"
    if code is not None:
        assert ended == code
    assert probe.foreign == []
    assert "Traceback" not in probe.stderr


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("era", ERAS)
def test_a_signal_ends_an_idle_server_within_a_second(era: Era, number: signal.Signals) -> None:
    with Probe(era=era) as probe:
        probe.tool("get_help").expect_ok()
        probe.signal(number)
        check_ends_soon(probe)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_busy_server_with_all_that_its_children_started(
    tmp_path: Path, number: signal.Signals
) -> None:
    with busy_server(tmp_path) as busy:
        busy.probe.signal(number)
        check_ends_soon(busy.probe)
        check_gone(busy)


def test_an_interrupt_followed_by_a_termination_ends_it_once(tmp_path: Path) -> None:
    # As Claude Code does it: SIGINT, and SIGTERM a tenth of a second later.
    with busy_server(tmp_path) as busy:
        busy.probe.signal(signal.SIGINT)
        time.sleep(0.1)
        busy.probe.signal(signal.SIGTERM)
        check_ends_soon(busy.probe)
        check_gone(busy)


def test_a_script_that_is_piped_in_gets_all_its_answers() -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello["clientInfo"] = {"name": "pipe", "version": "1"}
    lines: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "get_help", "arguments": {}}},
        {"id": 4, "method": "tools/call", "params": {"name": "list_deployments"}},
    ]
    script = "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines)
    done = subprocess.run(
        SERVER, input=script, capture_output=True, text=True, timeout=30, check=True
    )
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert sorted(answers) == [1, 2, 3, 4]
    assert all("result" in answer for answer in answers.values())


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_leaves_an_idle_server_ends_it(era: Era) -> None:
    with Probe(era=era) as probe:
        probe.tool("list_deployments").expect_ok()
        probe.end_input()
        check_ends_soon(probe)


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_leaves_while_waiting_for_a_deployment_ends_the_server_not_the_engine(
    era: Era, state_dir: Path
) -> None:
    with Probe(era=era) as probe:
        planned = probe.tool(
            "plan_deployment", target="local", name="demo", options={"fail": "stall-startup"}
        )
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        _, waiting = probe.start_tool("wait_until_ready", token="w", target="local", timeout_s=40)
        wait_for(lambda: probe.progress("w"), 10)
        probe.end_input()
        check_ends_soon(probe)
        assert waiting.done()
    record = state_dir / "deployments" / "local" / "demo" / "deployment.json"
    assert not gone(int(json.loads(record.read_text(encoding="utf-8"))["pid"]))


def test_a_client_that_leaves_a_busy_server_leaves_no_child_behind(tmp_path: Path) -> None:
    with busy_server(tmp_path) as busy:
        busy.probe.end_input()
        check_ends_soon(busy.probe)
        check_gone(busy)


def test_a_client_that_vanishes_without_reading_its_answers_ends_the_server() -> None:
    process = subprocess.Popen(
        SERVER, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdout.close()
        hello = {"protocolVersion": VERSIONS["legacy"], "capabilities": {}}
        hello["clientInfo"] = {"name": "gone", "version": "0"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.close()
        process.wait(10)


@pytest.mark.parametrize("era", ERAS)
def test_lines_that_are_no_json_rpc_do_not_end_the_server(era: Era) -> None:
    with Probe(era=era) as probe:
        for line in (
            b"\n",
            b"not json\n",
            b'{"half": \n',
            b"[]\n",
            b'"text"\n',
            b"null\n",
            b'{"jsonrpc": "2.0"}\n',
            b'{"jsonrpc": "2.0", "id": 900}\n',
            b'{"jsonrpc": "1.0", "id": 901, "method": "tools/list"}\n',
            b'{"jsonrpc": "2.0", "id": {}, "method": "tools/list"}\n',
            b"\xff\xfe\x00 not utf-8\n",
            b'{"jsonrpc": "2.0", "method": "notifications/nonsense"}\n',
            b'{"jsonrpc": "2.0", "id": "never-asked", "result": {}}\n',
            b"{" * 5000 + b"\n",
            b" " * 100_000 + b"\n",
        ):
            probe.send_raw(line)
        assert probe.tool("get_help").ok["version"]
        assert probe.process.poll() is None
        assert probe.foreign == []


@pytest.mark.parametrize("era", ERAS)
def test_an_unknown_method_and_wrong_parameters_are_json_rpc_errors(era: Era) -> None:
    with Probe(era=era) as probe:
        for method, params, code in (
            ("tools/nonsense", {}, -32601),
            ("tools/call", {}, -32602),
            ("tools/call", {"name": 7}, -32602),
            ("resources/read", {"uri": "config://nonsense"}, -32602),
        ):
            answer = probe.request(method, params).result(20)
            assert answer["error"]["code"] == code, (method, answer)


def cancel(probe: Probe, number: int) -> None:
    probe.notify("notifications/cancelled", {"requestId": number, "reason": "test"})


@pytest.mark.parametrize("era", ERAS)
def test_a_cancelled_call_ends_its_child_and_the_server_goes_on(tmp_path: Path, era: Era) -> None:
    with busy_server(tmp_path, era) as busy:
        cancel(busy.probe, busy.number)
        wait_for(lambda: all(gone(pid) for pid in busy.children), 5)
        busy.probe.tool("list_deployments").expect_ok()
        check_not_answered_with_a_result(busy.call)


@pytest.mark.parametrize("era", ERAS)
def test_a_cancelled_wait_ends_at_once(era: Era) -> None:
    with Probe(era=era) as probe:
        planned = probe.tool(
            "plan_deployment", target="local", name="demo", options={"fail": "stall-startup"}
        )
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        number, waiting = probe.start_tool(
            "wait_until_ready", token="w", target="local", timeout_s=40
        )
        wait_for(lambda: probe.progress("w"), 10)
        cancel(probe, number)
        # Asked after the cancellation, so that has been read when this is answered.
        probe.tool("list_deployments").expect_ok()
        told = len(probe.progress("w"))
        # As long as it takes to tell somebody who does listen three times more.
        other, _ = probe.start_tool("wait_until_ready", token="v", target="local", timeout_s=40)
        wait_for(lambda: len(probe.progress("v")) >= 3, 20)
        assert len(probe.progress("w")) <= told, "it goes on although nobody listens"
        cancel(probe, other)
        check_not_answered_with_a_result(waiting)


def check_not_answered_with_a_result(call: Future[dict[str, Any]]) -> None:
    if call.done():
        answer = call.result()
        assert "error" in answer or Reply.of(answer["result"]).is_error


@contextmanager
def stopping_server(state_dir: Path) -> Iterator[tuple[Probe, int]]:
    """A server in the middle of stopping an engine that does not end when asked; the call's id."""
    record = state_dir / "deployments" / "local" / "demo" / "deployment.json"
    with Probe(era="legacy", answering=lambda _: ACCEPT) as probe:
        planned = probe.tool(
            "plan_deployment", target="local", name="demo", options={"fail": "stall-startup"}
        )
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        pid = int(json.loads(record.read_text(encoding="utf-8"))["pid"])
        os.kill(pid, signal.SIGSTOP)
        planned = probe.tool("stop_serving", target="local", name="demo")
        number, _ = probe.start_tool(
            "stop_serving", target="local", name="demo", plan_id=planned.plan_id
        )
        wait_for(lambda: '"event": "plan"' in audit(state_dir, "stop_serving"), 10)
        yield probe, number
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: gone(pid), 10)


def audit(state_dir: Path, tool: str) -> str:
    lines = (state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if f'"tool": "{tool}"' in line)


def test_a_cancelled_change_is_in_the_audit_log(state_dir: Path) -> None:
    with stopping_server(state_dir) as (probe, number):
        cancel(probe, number)
        wait_for(lambda: '"event": "cancelled"' in audit(state_dir, "stop_serving"), 5)


def test_a_client_that_leaves_during_a_stop_is_not_waited_for_and_the_stop_is_remembered(
    state_dir: Path,
) -> None:
    with stopping_server(state_dir) as (probe, _):
        probe.end_input()
        check_ends_soon(probe)
    with Probe() as probe:
        assert probe.tool("get_status", target="local").ok["state"] == "stopped"


@pytest.mark.parametrize("era", ERAS)
def test_at_the_most_talkative_log_level_stdout_still_carries_only_json_rpc(era: Era) -> None:
    with Probe(era=era, env={"VLLM_DEVOPS_LOG_LEVEL": "DEBUG"}) as probe:
        for topic in ("overview", "doctor"):
            probe.tool("get_help", topic=topic).expect_ok()
        probe.tool("get_status", target="local")
        probe.call("tools/list")
        probe.call("resources/list")
        probe.call("prompts/list")
        assert probe.foreign == []


def test_two_servers_share_one_state_directory(state_dir: Path) -> None:
    with Probe(era="modern", answering=lambda _: ACCEPT) as one, Probe(era="legacy") as two:
        planned = one.tool(
            "plan_deployment", target="local", name="demo", options={"startup_speed": 1000}
        )
        two.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        assert one.tool("wait_until_ready", target="local").ok["state"] == "ready"
        planned = one.tool("destroy", target="local", name="demo")
        one.tool("destroy", target="local", name="demo", plan_id=planned.plan_id).expect_ok()
        assert two.tool("list_deployments").ok["items"] == []
        # The other server started it: it must not leave a zombie there.
        zombies = [
            child
            for child in psutil.Process(two.process.pid).children(recursive=True)
            if child.status() == psutil.STATUS_ZOMBIE
        ]
        assert zombies == []
    assert not (state_dir / "deployments" / "local" / "demo").exists()

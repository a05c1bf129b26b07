"""An endpoint that somebody else runs: it can be used, watched and measured, never changed."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.serving.mock_servers import Reply as Answer
from tests.serving.mock_servers import Route, scripted, whole
from tests.support.clients import connected, make_app
from tests.support.engines import simulator
from tests.support.probe import ACCEPT, ERAS, Era, Probe
from tests.support.processes import end_all_under, tree_of
from tests.support.reply import Reply, missing_in_text

KEY = "sk-attached-0123456789abcdef"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Attached:
    """Replies of a server that is attached to somebody's endpoint, and what it left behind."""

    url: str
    replies: dict[str, Reply]
    files: dict[str, bytes]
    stderr: str


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Attached:
    root = tmp_path_factory.mktemp("attached")
    replies: dict[str, Reply] = {}
    with simulator(free_port(), env={"VLLM_API_KEY": KEY}) as url:
        # Written as people write it: with the /v1 of the OpenAI base URL.
        env = {
            "VLLM_BASE_URL": f"{url}/v1",
            "VLLM_API_KEY": KEY,
            "VLLM_DEVOPS_STATE_DIR": str(root / "state"),
            "VLLM_DEVOPS_LOG_LEVEL": "DEBUG",
        }
        try:
            with Probe(era="modern", env=env, answering=lambda _: ACCEPT) as probe:

                def call(tool: str, **arguments: Any) -> Reply:
                    replies[tool] = probe.tool(tool, **arguments)
                    return replies[tool]

                call("list_deployments")
                # The only deployment needs no name.
                for tool in ("get_status", "verify_model_health", "get_metrics", "get_logs"):
                    call(tool, target="local")
                call("query_model", target="local", prompt="hello", max_tokens=16)
                started = call(
                    "run_benchmark", target="local", concurrency=[1], requests=2, max_tokens=16
                )
                operation = started.ok["operation_id"]
                call("get_operation", operation_id=operation, wait_s=30)
                call("get_benchmarks", benchmark_ids=[started.ok["benchmark_id"]])
                call("get_help", topic="settings")
                for tool in ("stop_serving", "start_serving", "destroy"):
                    call(tool, target="local", name="attached")
                seen = Attached(url, replies, tree_of(root), probe.stderr)
        finally:
            end_all_under(root)
    return seen


def test_it_is_listed_as_not_ours(attached: Attached) -> None:
    (item,) = attached.replies["list_deployments"].ok["items"]
    assert item["name"] == "attached"
    assert item["managed"] is False
    assert item["state"] == "ready"
    assert item["url"] == attached.url
    assert attached.replies["get_status"].ok["engine"] == "attached"


def test_it_is_verified_queried_watched_and_benchmarked(attached: Attached) -> None:
    replies = attached.replies
    assert replies["verify_model_health"].ok["healthy"] is True
    assert replies["query_model"].ok["usage"]["completion_tokens"] > 0
    assert replies["get_metrics"].ok["now"]["running"] == 0
    assert replies["get_operation"].ok["state"] == "succeeded"
    (level,) = replies["get_benchmarks"].ok["levels"]
    assert level["errors"] == 0
    # Nobody knows what it costs, so no cost is made up.
    assert "usd_per_million_output_tokens" not in level


def test_what_turns_out_to_be_a_simulator_is_never_called_measured(attached: Attached) -> None:
    for tool in ("verify_model_health", "query_model", "get_benchmarks"):
        basis = attached.replies[tool].ok["basis"]
        assert "simulated" in basis, tool
    assert attached.replies["get_status"].ok["simulated"] is True


def test_it_is_never_stopped_started_or_destroyed(attached: Attached) -> None:
    for tool in ("stop_serving", "start_serving", "destroy"):
        error = attached.replies[tool].error
        assert error["code"] == "not_managed"
        assert "VLLM_BASE_URL" in error["next_action"]


def test_its_logs_are_said_to_be_out_of_reach(attached: Attached) -> None:
    error = attached.replies["get_logs"].error
    assert error["code"] == "not_supported"
    assert "not reachable" in error["message"]
    assert "get_metrics" in error["next_action"]


def test_its_api_key_is_used_but_never_shown_or_written_down(attached: Attached) -> None:
    for tool, reply in attached.replies.items():
        assert KEY not in str(reply.whole), tool
    for path, content in attached.files.items():
        assert KEY.encode() not in content, path
    assert KEY not in attached.stderr
    settings = {row["variable"]: row for row in attached.replies["get_help"].ok["settings"]}
    assert settings["VLLM_API_KEY"]["value"] == "(set, not shown)"


def test_its_answers_carry_the_same_facts_in_text_and_structure(attached: Attached) -> None:
    for tool, reply in attached.replies.items():
        assert missing_in_text(reply) == [], tool


@pytest.mark.parametrize("era", ERAS)
async def test_an_endpoint_that_is_down_is_unknown_and_not_absent(
    state_dir: Path, era: Era
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with connected(make_app(state_dir, base_url=url), era) as caller:
        (item,) = (await caller.tool("list_deployments")).ok["items"]
        assert item["state"] == "unknown"
        status = (await caller.tool("get_status", target="local")).ok
        assert status["ready"] is False
        assert status["error"]
        for tool, arguments in (
            ("query_model", {"prompt": "hello"}),
            ("get_metrics", {}),
            ("run_benchmark", {}),
        ):
            reply = await caller.tool(tool, target="local", **arguments)
            assert reply.is_error
            assert "local/attached" in reply.text
            assert reply.error["next_action"]


async def test_a_wrong_api_key_is_named_as_the_cause(state_dir: Path) -> None:
    with simulator(free_port(), env={"VLLM_API_KEY": KEY}) as url:
        app = make_app(state_dir, base_url=url, api_key="sk-another-key-000000")
        async with connected(app) as caller:
            reply = await caller.tool("query_model", target="local", prompt="hello")
            assert reply.error["code"] == "endpoint_auth"
            assert "API key" in reply.error["next_action"]
            assert "sk-another" not in reply.text


async def test_an_endpoint_that_publishes_no_queue_is_not_said_to_run_none(state_dir: Path) -> None:
    metrics = b"vllm:num_requests_running NaN\nprocess_start_time_seconds 1\n"
    routes: dict[str, Route | Answer] = {"/metrics": whole(200, metrics, kind="text/plain")}
    async with scripted(routes) as server:
        app = make_app(state_dir, base_url=server.base_url)
        async with connected(app) as caller:
            answer = (await caller.tool("get_metrics", target="local", name="attached")).ok
    assert "None" not in answer["summary"]
    assert "not published" in answer["summary"]

"""Load from the nodes of a Ray cluster: two nodes on this machine, one clock, one result."""

from __future__ import annotations

import importlib.util
import json
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends.core.errors import EndpointUnreachableError, NotFoundError, NotSupportedError
from backends.serving import benchmark
from backends.serving.endpoint import Endpoint
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.engine.member import put_back
from backends.serving.engine.messages import Go
from backends.serving.engine.packing import worker_source
from backends.serving.engine.ray_crew import NodeMember, RayNodes, check_ray
from backends.serving.engine.ray_node import NodeWorker, boot_id
from backends.serving.engine.target import Target
from backends.serving.levels import level_result
from backends.serving.loadgen import LevelProgress, LevelRaw, LevelSpec, RequestRecord
from backends.serving.spec import BenchmarkSpec
from tests.serving.engine.runs import CHAT, bodies, errors, kinds
from tests.serving.mock_servers import MockSse
from tests.support.clients import FAST
from tests.support.probe import Probe
from tests.support.processes import wait_for
from tests.support.ray_cluster import ON_LOOPBACK, RayCluster, ray_cluster

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(
    not HAS_RAY, reason="the ray package is not installed (requirements-ray.txt)"
)
NODE = {"NodeID": "0123456789abcdef", "NodeManagerAddress": "10.0.0.7", "Resources": {"CPU": 4.0}}
TARGET = Target(
    family=2,
    address=("127.0.0.1", 8000),
    tls=None,
    tunnel=b"",
    head=b"",
    path="/",
    host="127.0.0.1:8000",
    where=("127.0.0.1", 8000),
    is_loopback=True,
)
ABOUT = {"host": "n", "boot_id": boot_id(), "missing": [], "family": 2, "address": ("1.2.3.4", 80)}


# ---- without a cluster --------------------------------------------------------------------------


@pytest.mark.skipif(HAS_RAY, reason="the ray package is installed")
def test_without_the_package_it_is_said_how_to_get_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, http_mock: MockSse
) -> None:
    with pytest.raises(NotSupportedError, match="needs the ray package"):
        check_ray()
    output = ("--output", str(tmp_path / "run.json"))
    asked = ["--base-url", http_mock.base_url, "--model", "mock-model", "--runner", "ray", *output]
    assert benchmark.main(asked) == 1
    assert "pip install -r requirements-ray.txt" in capsys.readouterr().err


def test_settings_of_a_cluster_go_with_its_runner_only() -> None:
    for given in ({"ray_nodes": 2}, {"ray_resource": "load"}, {"ray_address": "10.0.0.1:6379"}):
        with pytest.raises(ValueError, match="go with runner=ray"):
            BenchmarkSpec.asked(given)
        assert BenchmarkSpec.asked({"runner": "ray", **given}).runner == "ray"
    kept = BenchmarkSpec().model_dump(mode="json")
    assert BenchmarkSpec.model_validate(kept).runner == "local"


def test_what_a_worker_on_another_clock_says_is_put_onto_ours() -> None:
    heard: list[Any] = []
    member = NodeMember(1, lambda _, message: heard.append(message), NODE, b"")
    member.ahead_ns = 5_000
    assert member.on_its_clock(Go(1_000)) == Go(6_000)
    record = RequestRecord(0, "r", sent_ns=7_000, end_ns=9_000)
    record.content_ns = array("q", [8_000, 8_500])
    record.first_answer_ns = 8_000
    put_back(record, 5_000)
    assert (record.sent_ns, record.end_ns, record.first_answer_ns) == (2_000, 4_000, 3_000)
    assert list(record.content_ns) == [3_000, 3_500]
    assert record.first_byte_ns == 0
    assert record.intended_ns is None


@pytest.mark.parametrize(
    ("found", "kind", "words"),
    [
        ({"missing": ["certifi"]}, NotSupportedError, "lacks what a worker needs"),
        ({"boot_id": "another"}, NotSupportedError, "is this machine alone"),
        ({"unreachable": "Connection refused"}, EndpointUnreachableError, "does not reach"),
    ],
)
def test_a_node_that_cannot_do_it_is_named_with_what_it_lacks(
    found: dict[str, Any], kind: type[Exception], words: str
) -> None:
    member = NodeMember(1, lambda *_: None, NODE, b"")
    with pytest.raises(kind, match=words) as caught:
        member._check(ABOUT | found, TARGET)
    assert "node 10.0.0.7 (01234567)" in str(caught.value)


def test_the_worker_on_a_node_runs_from_what_was_sent_alone(
    http_mock: MockSse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an actor does, done here: the archive is enough, and the end is told."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    port = int(http_mock.base_url.rpartition(":")[2])
    node = NodeWorker(worker_source(), "backends.serving.engine.worker")
    about = node.about(["json", "no_such_module"], ("127.0.0.1", port))
    assert about["missing"] == ["no_such_module"]
    assert about["address"] == ("127.0.0.1", port)
    assert "unreachable" in node.about([], ("127.0.0.1", 1))
    assert node.hear(0.0) == (b"", "was never started")
    node.start()
    assert node.hear(0.01) == (b"", "")
    assert node._process is not None
    child = psutil.Process(node._process.pid)
    child.kill()
    assert node.hear(10.0) == (b"", "was killed by signal 9")
    node.end()
    assert not child.is_running()


# ---- on a cluster -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    patch = pytest.MonkeyPatch()
    for name, value in ON_LOOPBACK.items():
        patch.setenv(name, value)
    with ray_cluster() as running:
        yield running
        import ray

        ray.shutdown()
    patch.undo()


async def run(
    nodes: RayNodes, server: MockSse, spec: LevelSpec, watch: Any = lambda _: None
) -> LevelRaw:
    engine = EpollEngine(workforce=nodes)
    return await engine.run_level(spec, Endpoint(server.base_url), watch, lambda: False)


@needs_ray
async def test_two_nodes_make_one_level_on_one_clock(cluster: RayCluster, mock: MockSse) -> None:
    nodes = RayNodes(cluster.address)
    raw = await run(nodes, mock, LevelSpec(8, CHAT, bodies(32), warmup_bodies=bodies(8)))
    assert kinds(raw) == ["ok"] * 32
    off = errors(raw, mock.truth())
    assert off.ttft_median_ms < 0.5
    assert off.itl_median_ms < 0.5
    assert raw.workers == 2
    assert [(share.requests, share.events) for share in raw.shares.values()] == [(16, 256)] * 2
    # both began together: the first send of each lies within what a busy machine takes to wake
    first = [min(r.sent_ns for r in raw.records if r.index % 2 == odd) for odd in (0, 1)]
    assert abs(first[0] - first[1]) < 200_000_000
    result = level_result(raw, BenchmarkSpec(), 8, started_at="now")
    assert len({node.node for node in result.nodes}) == 2
    assert all(node.timestamp_source.startswith("kernel") for node in result.nodes)
    assert all(node.cpu_share for node in result.nodes)


@needs_ray
async def test_a_resource_says_which_nodes_are_used(cluster: RayCluster, mock: MockSse) -> None:
    nodes = RayNodes(cluster.address, resource="load")
    raw = await run(nodes, mock, LevelSpec(4, CHAT, bodies(4)))
    assert kinds(raw) == ["ok"] * 4
    assert (nodes.least, nodes.most, raw.workers) == (1, 2, 1)
    with pytest.raises(NotFoundError, match="with the resource gpu"):
        await RayNodes(cluster.address, resource="gpu").look()


@needs_ray
def test_an_agent_and_a_person_can_both_ask_for_it(
    cluster: RayCluster, mock: MockSse, tmp_path: Path
) -> None:
    """Over MCP against a deployment; on the command line the same spec is read the same way."""
    env = {"VLLM_DEVOPS_STATE_DIR": str(tmp_path / "state"), "HOME": str(tmp_path), **ON_LOOPBACK}
    where = {"target": "local", "name": "demo"}
    with Probe(era="modern", env=env) as probe:
        quick = FAST | {"profile": "cloudrun-rtx6000"}
        planned = probe.tool("plan_deployment", **where, model="gemma-4-E2B-it", options=quick)
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        assert probe.tool("wait_until_ready", target="local").ok["state"] == "ready"
        options = {"runner": "ray", "ray_address": cluster.address}
        started = probe.tool(
            "run_benchmark", **where, concurrency=[4], max_tokens=16, options=options
        ).ok
        done = probe.tool("get_operation", operation_id=started["operation_id"], wait_s=40).ok
        assert done["state"] == "succeeded", done
    run_json = tmp_path / "state" / "benchmarks" / started["benchmark_id"] / "run.json"
    found = json.loads(run_json.read_text())
    assert found["environment"]["engine"] == "epoll over ray"
    assert len({node["node"] for node in found["levels"][0]["nodes"]}) == 2
    assert sum(node["requests"] for node in found["levels"][0]["nodes"]) == 8


@needs_ray
def test_a_cluster_that_does_not_answer_is_said_at_once(
    http_mock: MockSse, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import ray

    ray.shutdown()
    asked = ["--base-url", http_mock.base_url, "--model", "mock-model", "--runner", "ray"]
    asked += ["--ray-address", "127.0.0.1:1", "--output", str(tmp_path / "run.json")]
    assert benchmark.main(asked) == 1
    assert "No Ray cluster could be reached at 127.0.0.1:1" in capsys.readouterr().err


@needs_ray
async def test_a_node_that_is_lost_makes_the_level_invalid(
    cluster: RayCluster, mock: MockSse
) -> None:
    killed = False

    def watch(progress: LevelProgress) -> None:
        nonlocal killed
        if progress.phase == "measuring" and progress.done >= 4 and not killed:
            killed = True
            cluster.kill_second_node()

    nodes = RayNodes(cluster.address)
    raw = await run(nodes, mock, LevelSpec(4, CHAT, bodies(2000)), watch)
    assert "of 2 on node 127.0.0.1" in raw.cut_short
    assert "lost with its node" in raw.cut_short
    assert 4 <= len(raw.records) < 2000
    result = level_result(raw, BenchmarkSpec(), 4, started_at="now")
    assert not result.valid
    assert any("lost with its node" in reason for reason in result.invalid_reasons)
    wait_for(lambda: not _workers(), 10)


def _workers() -> list[int]:
    """Workers of ours, wherever in the tree below us they have gone."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "environ"])
        if "backends.serving.engine.worker" in (process.info["cmdline"] or ())
        and (process.info["environ"] or {})
        .get("PYTEST_CURRENT_TEST", "")
        .startswith(os.environ["PYTEST_CURRENT_TEST"].partition("::")[0])
    ]

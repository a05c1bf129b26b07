"""Load made next to the engine: the real workers on a machine, against the simulator."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from backends.clouds.hosts import TunnelKeeper, serving
from backends.clouds.hosts.workers import HostWorkers
from backends.serving.endpoint import Endpoint
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.engine.messages import Ready, Unpacker, packed
from backends.serving.spec import BenchmarkSpec
from backends.serving.sweep import run_benchmark
from tests.hosts.conftest import Grounds
from tests.hosts.test_preparing import up
from tests.hosts.test_serving import LAUNCH, settled


def spec(**more: object) -> BenchmarkSpec:
    """Two short levels, made on the host."""
    return BenchmarkSpec.model_validate(
        {"levels": [1, 4], "requests_per_level": 8, "max_tokens": 16, "runner": "host"} | more
    )


async def test_load_is_made_next_to_the_engine_and_its_figures_come_back(
    grounds: Grounds, tmp_path: Path
) -> None:
    grounds.ready()
    host = await up(grounds.host())
    await serving.start(host, LAUNCH)
    assert (await settled(host)).state == "ready"
    # Control calls come over the tunnel, from far away; load does not.
    tunnels = TunnelKeeper()
    tunnel = await tunnels.get("t4", host, 8000)
    endpoint = Endpoint(base_url=f"http://127.0.0.1:{tunnel.local_port}", simulated=True)
    engine = EpollEngine(workforce=HostWorkers(host, 8000))
    run = await run_benchmark(spec(), endpoint, tmp_path / "run", engine=engine)
    await tunnels.close()
    assert run.state == "completed"
    assert [(level.requests, level.errors) for level in run.levels] == [(8, 0), (8, 0)]
    for level in run.levels:
        assert [node.node for node in level.nodes] == [host.label]
    log = (await host.read(serving.ENGINE_LOG, limit=1 << 22)).decode()
    assert log.count("/v1/chat/completions HTTP/1.1") >= 16
    await serving.stop(host)


def test_what_is_no_part_of_a_message_is_not_made() -> None:
    [message] = Unpacker().feed(packed(Ready()))
    assert message == Ready()
    evil = pickle.dumps(Path("/"))
    with pytest.raises(pickle.UnpicklingError, match="no part of a message"):
        Unpacker().feed(len(evil).to_bytes(8, "big") + evil)


def test_without_a_machine_of_its_own_the_host_cannot_make_load() -> None:
    from backends.core.errors import NotSupportedError
    from backends.serving.sweep import _engine

    with pytest.raises(NotSupportedError, match="runner=host"):
        _engine(spec())

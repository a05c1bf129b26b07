"""The serving layer against the simulator: two programs agree on what happened between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.core.errors import EndpointAuthError
from backends.serving.benchmark import BenchmarkSpec, run_benchmark
from backends.serving.endpoint import Endpoint, EndpointClient
from backends.serving.health import check_health
from backends.serving.metrics import parse_metrics, serving_metrics
from tests.serving.simulator.running import Simulator, start

KEY = "sk-simulated"


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    arguments = (
        *("--profile", "cloudrun-l4", "--startup-speed", "0", "--admission-cap", "4"),
        *("--time-scale", "2", "--served-model-name", "gemma"),
    )
    folder = tmp_path_factory.mktemp("simulator")
    with start(folder, *arguments, env={"VLLM_API_KEY": KEY}) as running:
        running.wait_until_ready()
        yield running


def endpoint(simulator: Simulator, key: str = KEY) -> Endpoint:
    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    return Endpoint(f"http://127.0.0.1:{simulator.port}", headers=headers, simulated=True)


async def test_a_deep_examination_finds_nothing_wrong(simulator: Simulator) -> None:
    async with EndpointClient(endpoint(simulator)) as client:
        report = await check_health(client, deep=True)
    assert report.healthy, report.summary
    assert [check.name for check in report.checks if not check.ok] == []
    assert report.simulated


async def test_a_wrong_key_is_refused_as_vllm_refuses_it(simulator: Simulator) -> None:
    async with EndpointClient(endpoint(simulator, "wrong")) as client:
        assert await client.health() > 0, "/health needs no key"
        with pytest.raises(EndpointAuthError) as caught:
            await client.models()
    assert caught.value.words == "Unauthorized"


async def test_client_and_engine_agree_and_the_admission_cap_is_named(
    simulator: Simulator, tmp_path: Path
) -> None:
    spec = BenchmarkSpec(levels=[1, 8], max_tokens=40, prompt_source="generated", prompt_tokens=150)
    run = await run_benchmark(spec, endpoint(simulator), tmp_path)
    assert [level.errors for level in run.levels] == [0, 0]
    for level in run.levels:
        server, itl_ms = level.server, level.itl_ms.mean
        assert server is not None
        assert server.itl_ms is not None
        assert itl_ms is not None
        assert server.generation_tokens == level.output_tokens_total
        assert itl_ms == pytest.approx(server.itl_ms.mean, rel=0.1)
        assert level.prompt_tokens_mean == pytest.approx(150, abs=5)
        assert (level.prefix_cache_hit_rate or 0.0) < 0.05, "the salt keeps the cache out"
    crowded = run.levels[-1].server
    assert crowded is not None
    assert crowded.mean_running == pytest.approx(4, abs=0.6)
    async with EndpointClient(endpoint(simulator)) as client:
        assert serving_metrics(parse_metrics(await client.metrics_text())).missing == []

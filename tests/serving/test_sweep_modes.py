"""Searches, grids, rates, repetitions and stop rules against servers whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.core.errors import EndpointError, InvalidInputError
from backends.knowledge.targets import CLOUDRUN_L4
from backends.serving.benchmark import BenchmarkProgress, BenchmarkRun, BenchmarkSpec, run_benchmark
from backends.serving.endpoint import Endpoint
from backends.serving.engine.epoll_engine import EpollEngine
from tests.serving.mock_servers import (
    MockSse,
    Reply,
    Request,
    Route,
    compile_mock,
    content,
    run_mock,
    scripted,
    stream,
    usage,
    whole,
)
from tests.serving.simulator.running import start

MODEL = "gemma-4-E2B-it"


class OneWorker(EpollEngine):
    """The engine as it is, but for measuring a level again, which costs a test its time."""

    def add_worker(self) -> bool:
        return False


@pytest.fixture(scope="module")
def l4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """An L4 on Cloud Run four times as fast: 8 sequences in a batch, 4 admitted."""
    yield from _simulated(tmp_path_factory, "--time-scale", "4")


@pytest.fixture(scope="module")
def small_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """An L4 with a KV cache of about 76,000 tokens and no admission cap."""
    yield from _simulated(
        tmp_path_factory,
        *("--time-scale", "8", "--max-model-len", "8192", "--admission-cap", "0"),
        *("--gpu-memory-utilization", "0.484"),
    )


def _simulated(factory: pytest.TempPathFactory, *arguments: str) -> Iterator[Endpoint]:
    profile = ("--profile", "cloudrun-l4", "--startup-speed", "0", "--served-model-name", MODEL)
    with start(factory.mktemp("simulator"), *profile, *arguments) as running:
        running.wait_until_ready()
        yield Endpoint(f"http://127.0.0.1:{running.port}", simulated=True)


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockSse]:
    program = compile_mock(tmp_path_factory.mktemp("mock"))
    with run_mock(program, ttft_us=20_000, itl_us=4_000) as server:
        yield server


async def measured(spec: BenchmarkSpec, endpoint: Endpoint, folder: Path) -> BenchmarkRun:
    run = await run_benchmark(spec, endpoint, folder, engine=OneWorker())
    written = BenchmarkRun.model_validate_json((folder / "run.json").read_text(encoding="utf-8"))
    assert written == run, "what is returned is what is on disk"
    return run


# ---- the knee ---------------------------------------------------------------------------------


async def test_the_search_finds_the_admission_cap_as_the_knee(l4: Endpoint, tmp_path: Path) -> None:
    seen: list[float] = []
    spec = BenchmarkSpec(
        mode="knee", levels=[2, 64], slo=["ttft_p95<=200"], max_tokens=96, usd_per_hour=1.42
    )
    run = await run_benchmark(
        spec, l4, tmp_path, lambda progress: seen.append(progress.fraction), engine=OneWorker()
    )
    knee = run.knee
    assert knee is not None
    assert (knee.load, knee.first_miss, knee.settled) == (4, 5, True)
    assert [step.load for step in knee.steps] == [2, 4, 8, 6, 5]
    assert knee.steps[-1].misses[0].startswith("TTFT p95 <= 200 ms: was")
    at_knee = next(level for level in run.levels if level.concurrency == 4)
    assert at_knee.goodput_requests_per_s == pytest.approx(at_knee.requests_per_s)
    assert knee.usd_per_million_output_tokens == at_knee.usd_per_million_output_tokens
    said = (
        "Knee: concurrency 4 is the highest load that met TTFT p95 <= 200 ms; concurrency 5 missed"
    )
    assert any(finding.startswith(said) for finding in run.findings)
    crowded = next(level for level in run.levels if level.concurrency == 8)
    ttft = next(row for row in crowded.beside_server if row.figure == "ttft")
    assert "admission queue" in ttft.where
    assert not ttft.agrees
    tokens = next(row for row in crowded.beside_server if row.figure == "output tokens/s")
    assert tokens.agrees, "both count the same tokens"
    assert crowded.slo_attainment is not None
    assert crowded.slo_attainment < 0.6
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    assert seen == sorted(seen)


async def test_an_objective_nothing_meets_ends_after_one_step(
    mock: MockSse, tmp_path: Path
) -> None:
    spec = BenchmarkSpec(mode="knee", levels=[2, 8], slo=["ttft_p50<=5"], max_tokens=4)
    run = await measured(spec, Endpoint(mock.base_url), tmp_path)
    assert run.state == "completed"
    assert run.knee is not None
    assert (run.knee.load, run.knee.first_miss) == (None, 2)
    said = " ".join(run.findings)
    assert "No load met TTFT p50 <= 5 ms: concurrency 2 missed it already" in said


async def test_errors_miss_the_objective_and_do_not_end_the_search(tmp_path: Path) -> None:
    asked = 0

    def overrun(_: Request) -> Reply:
        nonlocal asked
        asked += 1
        # warm-up and requests of concurrency 1 (1 + 4) and 2 (2 + 4), then everything is refused
        return ANSWER if asked <= 11 else whole(429, b'{"error":{"message":"full"}}')

    async with vllm(overrun) as endpoint:
        spec = BenchmarkSpec(mode="knee", levels=[1, 4], slo=["ttft_p95<=2000"], max_tokens=2)
        run = await measured(spec, endpoint, tmp_path)
    assert run.state == "completed"
    assert run.knee is not None
    assert (run.knee.load, run.knee.first_miss, run.knee.settled) == (2, 3, True)
    assert "of the requests failed" in run.knee.steps[-1].misses[0]


async def test_a_search_where_nothing_succeeds_fails_with_the_servers_words(tmp_path: Path) -> None:
    refused = whole(400, b'{"error":{"message":"no such thing"}}')
    async with vllm(refused) as endpoint:
        spec = BenchmarkSpec(mode="knee", levels=[1, 4], slo=["ttft_p95<=2000"], max_tokens=2)
        with pytest.raises(EndpointError) as caught:
            await run_benchmark(spec, endpoint, tmp_path)
    assert caught.value.words == "no such thing"


async def test_a_rate_is_searched_in_an_open_loop(mock: MockSse, tmp_path: Path) -> None:
    """The mock answers any load, so the highest rate is the knee; latency is from the schedule."""
    spec = BenchmarkSpec(
        mode="knee",
        request_rates=[20, 60],
        arrivals="constant",
        requests_per_level=20,
        slo=["e2e_p95<=500"],
        max_tokens=4,
    )
    run = await measured(spec, Endpoint(mock.base_url), tmp_path)
    assert run.knee is not None
    assert (run.knee.kind, run.knee.load) == ("requests_per_s", 60)
    assert [level.request_rate for level in run.levels] == [20, 40, 60]
    for level in run.levels:
        assert level.offered_requests_per_s == pytest.approx(level.request_rate, rel=0.02)
        assert level.steady is None


# ---- the grid ---------------------------------------------------------------------------------


async def test_a_grid_marks_what_does_not_fit_before_it_is_run(
    small_pool: Endpoint, tmp_path: Path
) -> None:
    spec = BenchmarkSpec(
        mode="grid", contexts=[256, 6000, 8190], levels=[1, 16], max_tokens=8, warmup_requests=0
    )
    run = await measured(spec, small_pool, tmp_path)
    assert run.endpoint.kv_cache_source == "engine"
    pool = run.endpoint.kv_cache_tokens
    assert pool is not None
    assert 6008 * 16 > pool > 264 * 16, "the pool the test needs"
    status = {(cell.context_tokens, cell.concurrency): cell.status for cell in run.grid}
    assert status == {
        (256, 1): "ok",
        (256, 16): "ok",
        (6000, 1): "ok",
        (6000, 16): "infeasible",
        (8190, 1): "infeasible",
        (8190, 16): "infeasible",
    }
    reasons = {(c.context_tokens, c.concurrency): c.reason for c in run.grid}
    assert reasons[6000, 16] == f"16 x 6008 = 96128 tokens of KV cache, the engine publishes {pool}"
    assert reasons[8190, 1] == "8198 tokens a request, the context limit is 8192"
    assert [(lv.context_tokens, lv.concurrency) for lv in run.levels] == [
        (256, 1),
        (256, 16),
        (6000, 1),
    ], "what is infeasible is not sent"
    for level in run.levels:
        assert level.prompt_tokens_min == level.prompt_tokens_max == level.context_tokens
    assert any("At 8190 prompt tokens" in finding for finding in run.findings)


async def test_a_cell_that_fails_is_marked_and_the_larger_ones_of_its_row_are_not_run(
    tmp_path: Path,
) -> None:
    def long_prompts_fail(request: Request) -> Reply:
        size = len(json.loads(request.body)["messages"][0]["content"])
        return whole(500, b'{"error":{"message":"out of memory"}}') if size > 1000 else ANSWER

    async with vllm(long_prompts_fail) as endpoint:
        spec = BenchmarkSpec(mode="grid", contexts=[50, 500], levels=[1, 2], max_tokens=2)
        run = await measured(spec, endpoint, tmp_path)
    assert run.state == "completed"
    cells = {(cell.context_tokens, cell.concurrency): cell for cell in run.grid}
    assert cells[50, 2].status == "ok"
    assert cells[500, 1].status == "failed"
    assert "no request succeeded" in cells[500, 1].reason
    assert cells[500, 2].status == "not run"
    assert cells[500, 2].reason == "concurrency 1 x 500 tokens failed before it"
    assert "not known: no cell can be called infeasible" in " ".join(run.warnings)


async def test_without_metrics_the_pool_comes_from_the_memory_plan(tmp_path: Path) -> None:
    async with vllm(ANSWER, model=MODEL, max_model_len=16_384) as endpoint:
        spec = BenchmarkSpec(
            mode="grid", contexts=[50, 16_000], levels=[1, 128], max_tokens=2, accelerator="l4"
        )
        run = await measured(spec, endpoint, tmp_path)
    assert run.endpoint.kv_cache_source == "memory plan"
    last = run.grid[-1]
    assert (last.status, last.needed_kv_tokens) == ("infeasible", 128 * 16_002)
    assert "tokens of KV cache, is planned" in last.reason


# ---- levels: rates, repetitions, rules ---------------------------------------------------------


async def test_repetitions_have_other_prompts_and_a_spread(mock: MockSse, tmp_path: Path) -> None:
    spec = BenchmarkSpec(levels=[1], repetitions=3, max_tokens=8)
    run = await measured(spec, Endpoint(mock.base_url), tmp_path)
    assert [(level.concurrency, level.repetition) for level in run.levels] == [
        (1, 1),
        (1, 2),
        (1, 3),
    ]
    assert [(group.concurrency, group.repetitions) for group in run.repeated] == [(1, 3)]
    rate = run.repeated[0].output_tokens_per_s
    if run.repeated[0].valid == 3:
        assert rate is not None
        assert rate.min <= rate.mean <= rate.max
        assert rate.mean == pytest.approx(8 / (0.020 + 7 * 0.004), rel=0.2)


async def test_a_ramp_and_a_cap_of_an_open_loop_are_counted(mock: MockSse, tmp_path: Path) -> None:
    spec = BenchmarkSpec(
        request_rates=[50], ramp_to=200, max_in_flight=2, requests_per_level=40, max_tokens=16
    )
    run = await measured(spec, Endpoint(mock.base_url), tmp_path)
    level = run.levels[0]
    assert level.turned_away > 0
    assert level.requests + level.turned_away == 40
    assert not level.valid
    assert "were never sent" in " ".join(level.invalid_reasons)


@pytest.mark.parametrize(
    ("limits", "rule", "words"),
    [
        ({"max_duration_s": 2}, "time", "the time limit of 2 s was reached at concurrency 1"),
        (
            {"max_usd": 0.002, "usd_per_hour": 3.6},
            "money",
            "the limit of 0.002 USD was reached at concurrency 1",
        ),
    ],
)
async def test_a_limit_ends_the_run_within_a_level_and_keeps_what_it_has(
    mock: MockSse, tmp_path: Path, limits: dict[str, float], rule: str, words: str
) -> None:
    spec = BenchmarkSpec.asked(
        {"levels": [1, 2], "requests_per_level": 200, "max_tokens": 8} | limits
    )
    run = await measured(spec, Endpoint(mock.base_url), tmp_path)
    assert (run.state, run.stopped_by, run.state_reason) == ("stopped", rule, words)
    level = run.levels[0]
    assert level.partial
    assert 0 < level.requests < 200
    assert level.invalid_reasons[0].startswith("cut short: the ")
    assert run.spent_s is not None
    assert run.spent_s < 8, "of the ten that the level takes"


async def test_saturation_ends_the_levels_to_come(l4: Endpoint, tmp_path: Path) -> None:
    spec = BenchmarkSpec(levels=[4, 8, 16], stop_at_saturation=True, max_tokens=32)
    run = await measured(spec, l4, tmp_path)
    if all(level.valid for level in run.levels):  # what is not valid is no evidence of saturation
        assert (run.state, run.stopped_by) == ("stopped", "saturation")
        assert run.state_reason.startswith("throughput stopped rising at concurrency 4")
        assert [level.concurrency for level in run.levels] == [4, 8]
    else:
        assert run.state in ("stopped", "completed")


async def test_the_share_of_the_bandwidth_is_that_of_the_simulated_chip(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """At its true speed the simulator decodes at the fitted efficiency, so the share is known."""
    for endpoint in _simulated(tmp_path_factory):
        spec = BenchmarkSpec(
            levels=[1],
            requests_per_level=2,
            warmup_requests=1,
            max_tokens=32,
            accelerator="l4",
            kv_cache_dtype="fp8",
            usd_per_hour=CLOUDRUN_L4.usd_per_hour.value,
        )
        run = await measured(spec, endpoint, tmp_path)
    found = run.levels[0].efficiency
    assert found is not None
    assert (found.accelerator, found.checkpoint) == ("l4", MODEL)
    assert found.batch == pytest.approx(1.0, abs=0.05)
    assert found.batch_source == "engine: mean running"
    assert 0.7 < found.share_of_bound < 0.85
    assert found.measured_over_predicted == pytest.approx(1.0, abs=0.08)
    assert any("of what the memory bandwidth of l4 allows" in text for text in run.findings)


async def test_an_unknown_checkpoint_gives_no_share_and_says_so(tmp_path: Path) -> None:
    async with vllm(ANSWER) as endpoint:
        run = await measured(
            BenchmarkSpec(levels=[1], max_tokens=2, accelerator="l4"), endpoint, tmp_path
        )
    assert run.levels[0].efficiency is None
    assert "m is no checkpoint known here" in " ".join(run.warnings)


async def test_a_dataset_that_cannot_be_used_fails_before_any_load(
    mock: MockSse, tmp_path: Path
) -> None:
    mock.forget()
    spec = BenchmarkSpec(prompt_source="file", dataset_path=tmp_path / "none.csv")
    with pytest.raises(InvalidInputError, match="dataset_path"):
        await run_benchmark(spec, Endpoint(mock.base_url), tmp_path)
    assert mock.truth() == {}


async def test_shared_prefixes_hit_the_cache_and_the_level_says_so(
    l4: Endpoint, tmp_path: Path
) -> None:
    spec = BenchmarkSpec.asked(
        {"levels": [2], "prefix_tokens": 1000, "prompt_tokens": 40, "max_tokens": 4}
    )
    run = await measured(spec, l4, tmp_path)
    level = run.levels[0]
    assert level.prompt_tokens_mean == 1040
    assert (level.prefix_cache_hit_rate or 0) > 0.8
    assert "as these data want it" in " ".join(level.warnings)


async def test_progress_is_told_by_load_and_context(mock: MockSse, tmp_path: Path) -> None:
    said: list[str] = []

    def note(progress: BenchmarkProgress) -> None:
        said.append(progress.message)

    spec = BenchmarkSpec(request_rates=[40], requests_per_level=8, max_tokens=2)
    await run_benchmark(spec, Endpoint(mock.base_url), tmp_path, note, engine=OneWorker())
    assert any(message.startswith("40 requests/s done: ") for message in said)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mode": "knee"}, "mode=knee needs slo"),
        ({"slo": ["fast"]}, "is not figure_statistic<=limit"),
        ({"mode": "grid"}, "contexts and mode=grid go together"),
        ({"contexts": [8], "mode": "levels"}, "contexts and mode=grid go together"),
        ({"contexts": [8], "prompt": "x"}, "leave prompt out"),
        ({"request_rates": [0]}, "above 0"),
        ({"request_rates": [1, 1]}, "only once"),
        ({"ramp_to": 3}, "ramp_to goes with request_rates"),
        ({"max_usd": 1}, "max_usd needs usd_per_hour"),
        ({"prompt_source": "file"}, "go together"),
        ({"turns": 3, "endpoint_kind": "completions"}, "endpoint_kind=chat"),
        ({"accelerator": "abacus"}, "known: l4"),
        ({"checkpoint": "llama"}, "known: gemma"),
        ({"kv_cache_dtype": "int3"}, "known: auto"),
    ],
)
def test_a_spec_whose_parts_do_not_fit_says_which(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        BenchmarkSpec.asked(wrong)
    assert words in str(caught.value)


# ---- a scripted vLLM ---------------------------------------------------------------------------


ANSWER = stream([content("one"), content("two", finish="length"), usage(9, 2), "[DONE]"])


def vllm(chat: Reply | Route, *, model: str = "m", max_model_len: int = 2048) -> _Served:
    return _Served(chat, model, max_model_len)


class _Served:
    """A scripted vLLM that answers chats like this, as a context."""

    def __init__(self, chat: Reply | Route, model: str, max_model_len: int) -> None:
        listed = {"data": [{"id": model, "max_model_len": max_model_len}]}
        self._context = scripted(
            {
                "/v1/models": whole(200, json.dumps(listed).encode()),
                "/v1/chat/completions": chat,
            }
        )

    async def __aenter__(self) -> Endpoint:
        return Endpoint((await self._context.__aenter__()).base_url)

    async def __aexit__(self, *about: object) -> None:
        await self._context.__aexit__(None, None, None)

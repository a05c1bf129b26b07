"""What a log says about a start: recorded logs whole, published lines of GPUs and TPUs alone."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from backends.core.errors import NotFoundError
from backends.serving.startup_log import (
    Phase,
    StartupFailure,
    StartupLog,
    StartupProgress,
    read_startup_log,
    tail_lines,
)

RECORDED = Path(__file__).parents[1] / "recorded" / "startup_logs"


def read(lines: Iterable[str]) -> StartupProgress:
    log = StartupLog()
    for line in lines:
        log.feed(line + "\n")
    return log.progress


def failure_of(*lines: str) -> StartupFailure:
    progress = read(lines)
    assert progress.phase is Phase.FAILED, progress
    assert progress.failure is not None
    return progress.failure


def test_a_recorded_start_tells_its_phases_facts_and_when_it_was_ready() -> None:
    progress = read_startup_log(RECORDED / "ok-uni-gemma4-full.log")
    assert [(start.phase.value, start.offset_s) for start in progress.phases] == [
        ("loading_config", 0.0),
        ("starting_engine", 0.0),
        ("loading_weights", 15.0),
        ("allocating_kv", 17.0),
        ("warming_up", 17.0),
        ("starting_api", 18.0),
        ("ready", 19.0),
        ("stopped", 202.0),
    ]
    assert progress.ready_after_s == 19.0
    assert progress.facts.model_dump(exclude_none=True) == {
        "vllm_version": "0.32.0",
        "model": "/srv/vllm/models/tiny-gemma4",
        "architecture": "Gemma4ForCausalLM",
        "url": "http://127.0.0.1:8000",
        "max_model_len": 2048,
        "weights_s": 0.01,
        "available_kv_gib": 1.0,
        "kv_tokens": 2684354,
        "max_concurrency": 1310.72,
        "engine_init_s": 0.82,
    }
    assert progress.failure is None
    assert progress.starts == 1


@pytest.mark.parametrize(
    ("name", "last", "ready_after_s"),
    [
        ("ok-torch-compile.log", Phase.STOPPED, 94.0),
        ("ok-gemma4-mm-image.log", Phase.STOPPED, 29.0),
        ("ok-gemma4-mm-text.log", Phase.STOPPED, 80.0),
        ("engine-killed.log", Phase.FAILED, 21.0),
    ],
)
def test_every_recorded_start_that_became_ready_says_so(
    name: str, last: Phase, ready_after_s: float
) -> None:
    progress = read_startup_log(RECORDED / name)
    assert progress.phase is last
    assert progress.ready_after_s == ready_after_s
    assert progress.facts.kv_tokens == 2684354


def test_compiling_is_a_phase_of_its_own_when_the_log_tells_of_it() -> None:
    progress = read_startup_log(RECORDED / "ok-torch-compile.log")
    starts = {start.phase: start.offset_s for start in progress.phases}
    assert starts[Phase.COMPILING] == 32.0
    assert starts[Phase.PROFILING] == 85.0


@pytest.mark.parametrize(
    ("name", "kind", "in_lines", "in_action"),
    [
        (
            "fail-bad-flag.log",
            "bad_argument",
            "unrecognized arguments: --no-such-flag",
            "--no-such-flag",
        ),
        ("fail-kv-too-small.log", "kv_too_small", "max seq len (8192)", "to 768 or less"),
        (
            "fail-max-model-len.log",
            "max_model_len",
            "max_model_len (100000) is greater",
            "to 8192 or less",
        ),
        ("fail-no-such-model.log", "model_not_found", "LocalEntryNotFoundError", "`model`"),
        ("fail-tensor-parallel.log", "tensor_parallel", "divisible", "a divisor of 2"),
        ("fail-port-in-use.log", "port_in_use", "[Errno 98]", "`port`"),
        ("fail-tool-parser.log", "bad_argument", "invalid tool call parser: nope", "lists those"),
    ],
)
def test_every_recorded_failure_is_named_with_its_own_words_and_what_to_change(
    name: str, kind: str, in_lines: str, in_action: str
) -> None:
    progress = read_startup_log(RECORDED / name)
    assert progress.phase is Phase.FAILED
    failure = progress.failure
    assert failure is not None
    assert failure.kind == kind
    assert in_lines in " ".join(failure.lines)
    assert in_action in failure.next_action
    assert failure.cause
    text = (RECORDED / name).read_text()
    assert all(line in text for line in failure.lines)


def test_an_engine_that_dies_while_serving_turns_ready_into_failed() -> None:
    progress = read_startup_log(RECORDED / "engine-killed.log")
    assert progress.failure is not None
    assert progress.failure.kind == "engine_died"
    assert "engine core exited unexpectedly" in progress.failure.lines[0]
    assert progress.failure.offset_s == 27.0


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_pieces_a_log_arrives_in_make_no_difference(size: int) -> None:
    path = RECORDED / "fail-kv-too-small.log"
    data = path.read_bytes()
    log = StartupLog()
    for start in range(0, len(data), size):
        log.feed(data[start : start + size])
    log.feed(b"\n")
    assert log.progress == read_startup_log(path)


def test_a_start_can_be_watched_while_it_goes_on() -> None:
    lines = (RECORDED / "ok-uni-gemma4-full.log").read_text().splitlines(keepends=True)
    log = StartupLog()
    seen: list[Phase] = []
    for line in lines:
        log.feed(line)
        if log.progress.phase not in seen[-1:]:
            seen.append(log.progress.phase)
    assert seen == [Phase.STARTING, *(start.phase for start in log.progress.phases)]


CUDA = """\
(APIServer pid=1) INFO 08-20 10:00:00 [utils.py:293] version 0.30.0
(APIServer pid=1) INFO 08-20 10:00:00 [utils.py:293]   model   google/gemma-4-E2B-it
(APIServer pid=1) INFO 08-20 10:00:05 [model.py:733] Resolved architecture: Gemma4ForConditionalGeneration
(APIServer pid=1) INFO 08-20 10:00:05 [model.py:2152] Using max model len 16384
(EngineCore pid=71) INFO 08-20 10:00:20 [core.py:105] Initializing a V1 LLM engine (v0.30.0) with config: model='google/gemma-4-E2B-it', speculative_config=None, max_seq_len=16384, download_dir=None
(EngineCore pid=71) INFO 08-20 10:00:24 [gpu_model_runner.py:4820] Starting to load model google/gemma-4-E2B-it...
(EngineCore pid=71) INFO 08-20 10:01:44 [weight_utils.py:533] Time spent downloading weights for google/gemma-4-E2B-it: 78.123456 seconds
Loading safetensors checkpoint shards:   0% Completed | 0/3 [00:00<?, ?it/s]
\rLoading safetensors checkpoint shards:  67% Completed | 2/3 [00:16<00:08,  8.94s/it]
(EngineCore pid=71) INFO 08-20 10:02:10 [default_loader.py:384] Loading weights took 24.84 seconds
(EngineCore pid=71) INFO 08-20 10:02:11 [gpu_model_runner.py:4879] Model loading took 9.75 GiB memory and 82.750000 seconds
(EngineCore pid=71) INFO 08-20 10:02:20 [backends.py:1069] Using cache directory: /root/.cache/vllm/torch_compile_cache/7b98594710/rank_0_0/backbone for vLLM's torch.compile
(EngineCore pid=71) INFO 08-20 10:02:24 [backends.py:1128] Dynamo bytecode transform time: 3.54 s
(EngineCore pid=71) INFO 08-20 10:02:40 [backends.py:393] Compiling a graph for compile range (1, 2048) takes 15.65 s
(EngineCore pid=71) INFO 08-20 10:02:45 [monitor.py:53] torch.compile took 20.21 s in total
(EngineCore pid=71) INFO 08-20 10:02:46 [monitor.py:81] Initial profiling/warmup run took 0.43 s
(EngineCore pid=71) INFO 08-20 10:02:50 [gpu_worker.py:760] Available KV cache memory: 9.42 GiB
(EngineCore pid=71) INFO 08-20 10:02:50 [kv_cache_utils.py:2327] GPU KV cache size: 723,484 tokens, Maximum concurrency for 16,384 tokens per request: 44.16x
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  12%|## | 8/67 [00:01<00:08,  7.1it/s]
(EngineCore pid=71) INFO 08-20 10:03:01 [gpu_model_runner.py:6582] Graph capturing finished in 9 secs, took 0.73 GiB
(EngineCore pid=71) INFO 08-20 10:03:02 [core.py:396] init engine (profile, create kv cache, warmup model) took 51.30 s (compilation: 20.21 s)
(APIServer pid=1) INFO 08-20 10:03:04 [api_server.py:140] Starting vLLM server on http://0.0.0.0:8000
(APIServer pid=1) INFO:     Started server process [1]
(APIServer pid=1) INFO:     Application startup complete.
(APIServer pid=1) INFO 08-20 10:03:30 [loggers.py:335] Engine 000: Avg prompt throughput: 115.4 tokens/s, Avg generation throughput: 57.6 tokens/s, Running: 8 reqs, Waiting: 16 reqs, Preemptions: 2, GPU KV cache usage: 12.3%, Prefix cache hit rate: 50.1%, External prefix cache hit rate: 3.0%
"""  # noqa: E501 (a log's lines are as long as they are)


def test_a_cuda_start_tells_downloads_compilation_graphs_and_statistics() -> None:
    progress = read(CUDA.splitlines())
    assert progress.phase is Phase.READY
    assert [(start.phase.value, start.offset_s) for start in progress.phases] == [
        ("loading_config", 0.0),
        ("starting_engine", 5.0),
        ("loading_weights", 24.0),
        ("profiling", 131.0),
        ("compiling", 140.0),
        ("profiling", 166.0),
        ("allocating_kv", 170.0),
        ("warming_up", 170.0),
        ("starting_api", 184.0),
        ("ready", 184.0),
    ]
    facts = progress.facts
    assert (facts.vllm_version, facts.model) == ("0.30.0", "google/gemma-4-E2B-it")
    assert (facts.weights_gib, facts.weights_s, facts.download_s) == (9.75, 82.75, 78.123456)
    assert (facts.available_kv_gib, facts.kv_tokens, facts.max_concurrency) == (9.42, 723484, 44.16)
    assert (facts.compile_s, facts.graph_capture_s, facts.engine_init_s) == (20.21, 9, 51.3)
    stats = progress.stats
    assert stats is not None
    assert (stats.running, stats.waiting, stats.kv_cache_usage_percent) == (8, 16, 12.3)
    assert (stats.prompt_tokens_per_s, stats.generation_tokens_per_s) == (115.4, 57.6)
    assert stats.prefix_cache_hit_percent == 50.1


def test_progress_bars_say_how_far_a_phase_has_come() -> None:
    lines = CUDA.splitlines()
    at = next(n for n, line in enumerate(lines) if "67% Completed" in line)
    assert read(lines[: at + 1]).detail == "weights file 2 of 3"
    at = next(n for n, line in enumerate(lines) if "8/67" in line)
    assert read(lines[: at + 1]).detail == "CUDA graph 8 of 67"
    assert read(lines).detail == ""


def test_a_tpu_start_gives_memory_tokens_and_concurrency_on_lines_of_their_own() -> None:
    progress = read(
        [
            "(EngineCore pid=9) INFO 07-25 07:40:36 [tpu_worker.py:437] Memory statistics | "
            "total_hbm_limit_gb=31.24GiB | total_hbm_limit_cap_gb=28.74GiB | "
            "total_hbm_used_gb=8.97GiB | total_hbm_avail_gb=19.77GiB",
            "(EngineCore pid=9) INFO 07-25 07:40:36 [kv_cache_utils.py:1733] "
            "GPU KV cache size: 1,151,744 tokens",
            "(EngineCore pid=9) INFO 07-25 07:40:36 [kv_cache_utils.py:1734] "
            "Maximum concurrency for 32,768 tokens per request: 35.15x",
            "(EngineCore pid=9) INFO 07-25 07:40:37 [compilation_manager.py:100] "
            "Precompile worker0 sample --> {'num_reqs': 8, 'do_sampling': True}",
            "(EngineCore pid=9) INFO 07-25 07:51:00 [compilation_manager.py:105] "
            "Compilation finished in 622.09 [secs].",
        ]
    )
    assert progress.phase is Phase.COMPILING
    assert progress.elapsed_s == 624.0
    facts = progress.facts
    assert (facts.weights_gib, facts.available_kv_gib) == (8.97, 19.77)
    assert (facts.kv_tokens, facts.max_concurrency) == (1151744, 35.15)


def test_no_memory_left_for_the_cache_keeps_the_negative_figure_and_the_error() -> None:
    lines = (
        "(EngineCore pid=71) INFO 08-20 10:02:50 [gpu_worker.py:760] "
        "Available KV cache memory: -0.29 GiB",
        "(EngineCore pid=71) ERROR 08-20 10:02:50 [core.py:1510] "
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        "RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {}",
    )
    failure = failure_of(*lines)
    assert failure.kind == "kv_too_small"
    assert failure.lines == lines[:2]
    assert "gpu_memory_utilization" in failure.next_action
    assert read(lines).facts.available_kv_gib == -0.29


@pytest.mark.parametrize(
    ("line", "kind", "in_action"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62 GiB. GPU 0 has a "
            "total capacity of 21.96 GiB of which 1.84 GiB is free.",
            "out_of_memory",
            "max_model_len",
        ),
        (
            "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM",
            "out_of_memory",
            "max_num_seqs",
        ),
        (
            "ValueError: Free memory on device cuda:0 (3.1/21.96 GiB) on startup is less than "
            "desired GPU memory utilization (0.9, 19.76 GiB). Decrease GPU memory utilization or "
            "reduce GPU memory used by other processes.",
            "out_of_memory",
            "below 3.1/21.96",
        ),
        (
            "RuntimeError: unable to mmap 23265352448 bytes from file </m/model.safetensors>: "
            "Cannot allocate memory (12)",
            "out_of_memory",
            "more RAM",
        ),
        (
            "  Value error, Total number of attention heads (8) must be divisible by tensor "
            "parallel size (3). [type=value_error, input_value=ArgsKwargs(())]",
            "tensor_parallel",
            "a divisor of 8",
        ),
        (
            "ValueError: World size (4) is larger than the number of available GPUs (1) in this "
            "node. If this is intentional and you are using:",
            "tensor_parallel",
            "to 1 or less",
        ),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has "
            "unsupported display driver / cuda driver combination",
            "no_gpu",
            "VLLM_ENABLE_CUDA_COMPATIBILITY=0",
        ),
        ("RuntimeError: Failed to infer device type, please set", "no_gpu", "CPU build"),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, "
            "Required: 98304, Hardware limit: 65536. Reducing block sizes may help.",
            "unsupported_gpu",
            "prepare_host",
        ),
        (
            "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
            "model_gated",
            "save_hf_token",
        ),
        (
            "OSError: no/such is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'",
            "model_not_found",
            "config.json",
        ),
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to "
            "locate the files on the Hub and we cannot find the appropriate snapshot folder",
            "hub_unreachable",
            "stage_model",
        ),
        (
            "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'int8' (choose from "
            "auto, bfloat16)",
            "bad_argument",
            "--kv-cache-dtype",
        ),
        (
            "[  812.1] Out of memory: Killed process 1503 (VLLM::EngineCor) total-vm:1kB",
            "killed",
            "swap",
        ),
        ("Memory limit of 32768 MiB exceeded with 33102 MiB used.", "killed", "memory"),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {'EngineCore': -9}",
            "killed",
            "RAM",
        ),
        ("OSError: [Errno 28] No space left on device", "disk_full", "HF_HOME"),
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): "
            "address already in use",
            "port_in_use",
            "`port`",
        ),
    ],
)
def test_the_lines_by_which_gpus_tpus_hubs_and_kernels_refuse_are_known(
    line: str, kind: str, in_action: str
) -> None:
    failure = failure_of(line)
    assert failure.kind == kind
    assert failure.lines == (line,)
    assert in_action in failure.next_action
    assert "{" not in failure.cause + failure.next_action


def test_an_unknown_exception_is_told_with_the_logs_own_root_cause() -> None:
    failure = failure_of(
        "(EngineCore pid=5) ERROR 11-30 18:00:00 [core.py:1510] EngineCore failed to start.",
        "(EngineCore pid=5) ERROR 11-30 18:00:00 [core.py:1510] Traceback (most recent call last):",
        '(EngineCore pid=5) ERROR 11-30 18:00:00 [core.py:1510]   File "x.py", line 1, in y',
        "(EngineCore pid=5) ERROR 11-30 18:00:00 [core.py:1510] NotImplementedError: no kernel",
        "Traceback (most recent call last):",
        '  File "vllm", line 6, in <module>',
        "RuntimeError: Engine core initialization failed. See root cause above.",
    )
    assert failure.kind == "unknown"
    assert failure.lines[0].endswith("NotImplementedError: no kernel")
    assert "get_logs" in failure.next_action


def test_a_traceback_that_start_up_survives_is_no_failure() -> None:
    log = StartupLog()
    log.feed("Traceback (most recent call last):\n  File x\nKeyError: 'usage'\n")
    log.feed("INFO 11-30 18:00:00 [gpu.py:1] Starting to load model m...\n")
    log.process_ended(None)
    assert log.progress.failure is not None
    assert log.progress.failure.lines[-1].endswith("Starting to load model m...")


def test_warnings_that_name_a_failure_are_not_one() -> None:
    progress = read(
        [
            "INFO 11-30 18:00:00 [u.py:1] non-default args: {'model': 'CUDA out of memory'}",
            "WARNING 11-30 18:00:01 [u.py:2] limits can cause errors like `OSError: [Errno 24]`",
            "HTTP Error 429 thrown while requesting HEAD https://hub/resolve/main/config.json",
            "Rate limited. Waiting 253.0s before retry [Retry 1/5].",
        ]
    )
    assert progress.phase is Phase.LOADING_CONFIG
    assert progress.failure is None
    assert progress.notice == "Rate limited. Waiting 253.0s before retry [Retry 1/5]."


def test_what_users_send_to_a_ready_server_cannot_make_it_look_failed_or_restarted() -> None:
    progress = read(
        [
            *CUDA.splitlines(),
            "(APIServer pid=1) INFO 08-20 10:04:00 [logger.py:1] Received request: prompt: "
            "'torch.OutOfMemoryError: CUDA out of memory. version 1.0'",
            "(APIServer pid=1) ERROR 08-20 10:04:01 [serving.py:274] Error with model error="
            "ErrorInfo(message='The model `EngineDeadError: x` does not exist.', code=404)",
            "Traceback (most recent call last):",
            "ValueError: No available memory for the cache blocks",
        ]
    )
    assert progress.phase is Phase.READY
    assert progress.starts == 1


def test_memory_that_runs_out_while_serving_is_the_named_reason_of_the_death() -> None:
    progress = read(
        [
            *CUDA.splitlines(),
            "(EngineCore pid=71) ERROR 08-20 10:05:00 [core.py:9] torch.OutOfMemoryError: CUDA "
            "out of memory. Tried to allocate 1.00 GiB.",
            "(APIServer pid=1) ERROR 08-20 10:05:01 [async_llm.py:906] vllm.v1.engine.exceptions."
            "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
            "root cause.",
        ]
    )
    assert progress.failure is not None
    assert progress.failure.kind == "out_of_memory"
    assert len(progress.failure.lines) == 2


def test_a_container_that_starts_again_begins_anew_and_keeps_why_the_last_one_failed() -> None:
    failed = (RECORDED / "fail-kv-too-small.log").read_text().splitlines()
    progress = read([*failed, *CUDA.splitlines()])
    assert progress.phase is Phase.READY
    assert progress.starts == 2
    assert progress.failure is None
    assert progress.failure_before is not None
    assert progress.failure_before.kind == "kv_too_small"
    assert progress.facts.kv_tokens == 723484
    assert progress.ready_after_s == 184.0


@pytest.mark.parametrize("exit_code", [-9, 137])
def test_a_process_killed_without_a_word_is_told_by_its_exit_code(exit_code: int) -> None:
    log = StartupLog()
    log.feed("INFO 11-30 18:00:00 [gpu.py:1] Starting to load model m...\nLoading model from scr")
    log.process_ended(exit_code)
    failure = log.progress.failure
    assert failure is not None
    assert (failure.kind, failure.exit_code) == ("killed", exit_code)
    assert failure.lines[-1] == "Loading model from scr"


@pytest.mark.parametrize("exit_code", [0, -15, 143, -2])
def test_a_process_told_to_stop_has_not_failed(exit_code: int) -> None:
    log = StartupLog()
    log.feed("INFO 11-30 18:00:00 [gpu.py:1] Starting to load model m...\n")
    log.process_ended(exit_code)
    assert log.progress.phase is Phase.STOPPED
    assert log.progress.failure is None


def test_the_exit_code_joins_a_failure_the_log_has_told() -> None:
    log = StartupLog()
    log.feed((RECORDED / "fail-bad-flag.log").read_bytes())
    log.process_ended(2)
    assert log.progress.failure is not None
    assert log.progress.failure.kind == "bad_argument"
    assert log.progress.failure.exit_code == 2


def test_lines_of_a_cloud_log_may_carry_its_own_time_colours_and_no_prefix() -> None:
    progress = read(
        [
            "2026-11-30T18:00:00.250Z \x1b[36m(EngineCore_DP0 pid=2)\x1b[0;0m INFO 11-30 10:00:00 "
            "[gpu.py:1] Starting to load model m...",
            "2026-11-30T18:01:40.750000000Z Model loading took 5.5 GB and 99.5 seconds",
        ]
    )
    assert progress.phase is Phase.PROFILING
    assert progress.elapsed_s == 100.5
    assert progress.facts.weights_gib == 5.5


def test_a_source_that_dates_each_line_itself_goes_before_the_lines_own_clock() -> None:
    log = StartupLog()
    log.feed_line("INFO 12-31 23:59:50 [gpu.py:1] Starting to load model m...", at_s=1000.0)
    log.feed_line("INFO 01-01 00:00:10 [gpu.py:1] Model loading took 1 GiB and 2 s", at_s=1021.5)
    assert log.progress.elapsed_s == 21.5


def test_a_clock_without_a_year_survives_new_year() -> None:
    progress = read(
        [
            "INFO 12-31 23:59:50 [gpu.py:1] Starting to load model m...",
            "INFO 01-01 00:00:10 [gpu.py:1] Available KV cache memory: 1.0 GiB",
        ]
    )
    assert progress.elapsed_s == 20.0


def test_a_log_without_any_clock_still_tells_its_phase() -> None:
    progress = read(["Starting to load model m...", "KV cache size: 1,024 tokens"])
    assert progress.phase is Phase.ALLOCATING_KV
    assert progress.phases[0].offset_s is None


def test_an_endless_line_and_a_busy_log_are_read_in_bounded_memory() -> None:
    log = StartupLog()
    for line in CUDA.splitlines():
        log.feed(line + "\n")
    for _ in range(200):
        log.feed("x" * 100_000)
    log.feed("\n")
    access = 'INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n' * 1000
    for _ in range(20):
        log.feed(access)
    assert log.progress.phase is Phase.READY
    assert log.progress.lines > 20_000
    held = sum(sys.getsizeof(value) for value in vars(log).values())
    assert held < 100_000
    assert len(log.progress.model_dump_json()) < 20_000


def test_of_a_huge_file_the_beginning_and_the_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    access = '(APIServer pid=1) INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 200 OK\n'
    last = "(APIServer pid=1) INFO 08-20 10:09:00 [launcher.py:254] [shutdown] API server: "
    path.write_text(CUDA + access * 5000 + last + "shutdown triggered\n")
    progress = read_startup_log(path, max_bytes=20_000)
    assert progress.phase is Phase.STOPPED
    assert progress.facts.kv_tokens == 723484
    assert progress.lines < 500


def test_a_log_that_does_not_exist_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no\.log"):
        read_startup_log(tmp_path / "no.log")
    with pytest.raises(NotFoundError, match=r"no\.log"):
        tail_lines(tmp_path / "no.log", 5)


def test_the_tail_of_a_huge_file_is_read_from_its_end_alone(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    with path.open("wb") as file:
        file.truncate(3 * 1024**3)  # sparse: reading it whole would take seconds and 3 GiB
        file.seek(0, 2)
        file.write("\n".join(f"line {n} ü" for n in range(50_000)).encode() + b"\n")
    assert tail_lines(path, 3) == ["line 49997 ü", "line 49998 ü", "line 49999 ü"]
    assert len(tail_lines(path, 20_000, max_chars=10_000_000)) == 20_000


def test_a_tail_keeps_whole_lines_within_its_characters(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("first line\n\x1b[31msecond\x1b[0m\n 10%\r 90%\r100%\nlast")
    assert tail_lines(path, 10) == ["first line", "second", "100%", "last"]
    assert tail_lines(path, 10, max_chars=12) == ["100%", "last"]
    assert tail_lines(path, 1, max_chars=3) == ["ast"]
    path.write_text("")
    assert tail_lines(path, 10) == []

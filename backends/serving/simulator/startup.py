"""The start of a simulated vLLM: its phases, its log lines, and the failures it can play."""

from __future__ import annotations

import logging
import time
from typing import Final, NoReturn

from backends.serving.simulator.config import Failure, SimulatorConfig
from backends.serving.simulator.log import log, raw
from backends.serving.simulator.protocol import VLLM_VERSION

_CORE: Final = "EngineCore"
_API: Final = "APIServer"
_KV_WANTED_GIB = 0.29
_OOM_TRIED_GIB = 2.62
# Token counts a TPU compiles its graphs for; the reference log has one line each.
_TPU_GRAPHS = (16, 64, 256, 1024, 4096)


class StartupError(SystemExit):
    """The engine did not start; the log says why. Exit code 1, as vLLM's."""

    def __init__(self) -> None:
        super().__init__(1)


class Startup:
    """Plays the start-up of one run.

    Args:
        config: Settings.
    """

    def __init__(self, config: SimulatorConfig) -> None:
        self._config = config
        self._failure = config.failure or Failure("")

    def run(self) -> None:
        """Go through all phases, logging what vLLM logs; returns when the engine is ready.

        Raises:
            StartupError: A failure was asked for, or the model does not fit.
        """
        self._announce()
        self._phase("provision")
        self._phase("container")
        self._banner()
        if self._failure.kind == "bad-model":
            self._fail_bad_model()
        self._check_context()
        self._phase("import")
        self._load_weights()
        if self._tpu:
            # On a TPU the memory is laid out first, and every graph is compiled after that.
            engine_s = self._phase("kv_cache")
            self._size_kv_cache()
            compile_s = self._compile_graphs()
            engine_s += compile_s
        else:
            compile_s = self._phase("compile")
            log(_CORE, "monitor.py:64", f"torch.compile takes {compile_s:.2f} s in total")
            engine_s = compile_s + self._phase("kv_cache")
            self._size_kv_cache()
        log(
            _CORE,
            "core.py:402",
            f"init engine (profile, create kv cache, warmup model) took {engine_s:.2f} s "
            f"(compilation: {compile_s:.2f} s)",
        )
        self._phase("api")
        log(_API, "entry.py:136", "Supported tasks: ['generate']")

    @property
    def _tpu(self) -> bool:
        return self._config.profile.accelerator.kind == "tpu"

    def _compile_graphs(self) -> float:
        """Compile one graph after the other; returns the seconds it took."""
        total_s = 0.0
        for index, tokens in enumerate(_TPU_GRAPHS):
            seconds = self._phase("compile", share=1 / len(_TPU_GRAPHS))
            total_s += seconds
            log(
                _CORE,
                "compilation_manager.py:102",
                f"Compilation of worker0 backbone graph {index}, {tokens} tokens, finished in "
                f"{seconds:.2f} [secs].",
            )
        return total_s

    def _phase(self, name: str, share: float = 1.0) -> float:
        """Wait for one phase; returns the seconds it took."""
        reference_s = sum(p.seconds.value for p in self._config.profile.startup if p.name == name)
        speed = self._config.startup_speed
        seconds = reference_s * share / speed if speed else 0.0
        if seconds:
            time.sleep(seconds)
        return seconds

    def _announce(self) -> None:
        config = self._config
        log(
            "Simulator",
            "startup.py",
            "SIMULATOR: this is the vllm-devops simulator, not vLLM. No model is loaded and every "
            f"figure is simulated: profile {config.profile.name}, checkpoint "
            f"{config.checkpoint.name}, {config.tensor_parallel_size} x "
            f"{config.profile.accelerator.title}, time scale {config.time_scale:g}, seed "
            f"{config.seed}.",
            logging.WARNING,
        )

    def _banner(self) -> None:
        config = self._config
        log(_API, "api_utils.py:347", f"version {VLLM_VERSION}\nmodel   {config.model}")
        arguments = {
            "model_tag": config.model,
            "host": config.host,
            "port": config.port,
            "model": config.model,
            "max_model_len": config.max_model_len,
            "served_model_name": list(config.served_model_names),
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "kv_cache_dtype": config.kv_cache_dtype,
            "tensor_parallel_size": config.tensor_parallel_size,
        }
        if config.api_key:
            arguments["api_key"] = "***"
        log(_API, "api_utils.py:286", f"non-default args: {arguments}")

    def _check_context(self) -> None:
        config = self._config
        log(_API, "model.py:733", "Resolved architecture: Gemma4ForConditionalGeneration")
        limit = config.checkpoint.attention.max_context_tokens
        if config.max_model_len > limit:
            raw(
                "Traceback (most recent call last):\n"
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
                f"  Value error, User-specified max_model_len ({config.max_model_len}) is greater "
                f"than the derived max_model_len (max_position_embeddings={limit}.0 or "
                "model_max_length=None in model's config.json). To allow overriding this maximum, "
                "set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
            )
            raise StartupError
        log(_API, "model.py:2152", f"Using max model len {config.max_model_len}")

    def _load_weights(self) -> None:
        config = self._config
        weights_gib = config.step_model().weights_gib
        log(
            _CORE,
            "core.py:133",
            f"Initializing a V1 LLM engine (v{VLLM_VERSION}) with config: model='{config.model}', "
            f"max_seq_len={config.max_model_len}, "
            f"tensor_parallel_size={config.tensor_parallel_size}, "
            f"kv_cache_dtype={config.kv_cache_dtype}, seed={config.seed}",
        )
        log(_CORE, "gpu_model_runner.py:68", f"Starting to load model {config.model}...")
        total_gib = config.profile.accelerator.memory_gib.value
        if self._failure.kind == "oom" or weights_gib > total_gib:
            self._fail_out_of_memory(total_gib)
        raw("Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]")
        if self._failure.kind == "stall-startup":
            while True:
                time.sleep(3600)
        seconds = self._phase("weights")
        raw("Loading safetensors checkpoint shards: 100% Completed | 1/1")
        log(_CORE, "default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")
        log(
            _CORE,
            "gpu_model_runner.py:4820",
            f"Model loading took {weights_gib:.2f} GiB memory and {seconds:.6f} seconds",
        )

    def _size_kv_cache(self) -> None:
        config = self._config
        kv_gib = config.kv_cache_gib()
        if self._failure.kind == "kv":
            kv_gib = -_KV_WANTED_GIB
        if self._tpu:
            self._say_tpu_memory(kv_gib)
        log(_CORE, "gpu_worker.py:424", f"Available KV cache memory: {kv_gib:.2f} GiB")
        if kv_gib <= 0:
            self._fail_engine_core(
                "ValueError: No available memory for the cache blocks. Try increasing "
                "`gpu_memory_utilization` when initializing the engine."
            )
        tokens = config.kv_tokens()
        if tokens < config.max_model_len:
            needed_gib = kv_gib * config.max_model_len / max(tokens, 1)
            self._fail_engine_core(
                "ValueError: To serve at least one request with the model's max seq len "
                f"({config.max_model_len}), ({needed_gib:.2f} GiB KV cache is needed, which is "
                f"larger than the available KV cache memory ({kv_gib:.2f} GiB). Based on the "
                f"available memory, the estimated maximum model length is {tokens}. Try "
                "increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
                "initializing the engine."
            )
        size = f"GPU KV cache size: {tokens:,} tokens"
        concurrency = (
            f"Maximum concurrency for {config.max_model_len:,} tokens per request: "
            f"{tokens / config.max_model_len:.2f}x"
        )
        # CUDA's line has both; on a TPU each has its own.
        for text in (size, concurrency) if self._tpu else (f"{size}, {concurrency}",):
            log(_CORE, "kv_cache_utils.py:2327", text)

    def _say_tpu_memory(self, kv_gib: float) -> None:
        """The memory statistics of a TPU, and its wrong word about fp8."""
        config = self._config
        chip = config.profile.accelerator
        limit = chip.memory_gib.value
        cap = limit * chip.default_memory_utilization.value
        log(
            _CORE,
            "tpu_worker.py:266",
            f"Memory statistics | total_hbm_limit_gb={limit:.2f}GiB | "
            f"total_hbm_limit_cap_gb={cap:.2f}GiB | "
            f"total_hbm_used_gb={config.step_model().weights_gib:.2f}GiB | "
            f"total_hbm_avail_gb={kv_gib:.2f}GiB",
        )
        if config.kv_cache_dtype == "fp8":
            for _ in range(20):
                log(
                    _CORE,
                    "tpu_runner.py:311",
                    "Automatically using fp8_e5m2 for FP8 KV cache on TPU v6e.",
                )

    def _fail_out_of_memory(self, total_gib: float) -> NoReturn:
        free_gib = total_gib - min(
            self._config.step_model().weights_gib, total_gib - _OOM_TRIED_GIB * 0.7
        )
        if self._tpu:
            self._fail_engine_core(
                "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM. HLO "
                f"temporaries (16.23G) exceeds available HBM ({free_gib:.2f}G)"
            )
        self._fail_engine_core(
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_OOM_TRIED_GIB} GiB. "
            f"GPU 0 has a total capacity of {total_gib:.2f} GiB of which {free_gib:.2f} GiB is "
            "free."
        )

    def _fail_bad_model(self) -> NoReturn:
        raw(
            "Traceback (most recent call last):\n"
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached "
            "snapshot folder for the specified revision on the local disk and outgoing traffic has "
            "been disabled. To enable repo look-ups and downloads online, pass "
            "'local_files_only=False' as input."
        )
        raise StartupError

    def _fail_engine_core(self, error: str) -> NoReturn:
        log(
            _CORE,
            "core.py:1510",
            f"EngineCore failed to start.\nTraceback (most recent call last):\n{error}",
            logging.ERROR,
        )
        raw(f"Process EngineCore:\nTraceback (most recent call last):\n{error}")
        raw(
            "Traceback (most recent call last):\nRuntimeError: Engine core initialization failed. "
            "See root cause above. Failed core proc(s): {}"
        )
        raise StartupError

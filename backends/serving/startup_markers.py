"""The lines of a vLLM log that mark its progress: one table of phases, one of facts.

Data, read by `startup_log`. Taken from recorded logs of vLLM 0.32.0 (CPU build, 2026-11-30), from
the log calls in vLLM 0.32.0's source, and from published CUDA and TPU logs of 0.7 to 0.30. All
patterns see a line's text only: time, process, level and colours are off already.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where a start stands, in the usual order.

    On CUDA compiling happens inside profiling, and on TPU after the KV cache was laid out; the
    list of phases in a `StartupProgress` tells the order of a given start.
    """

    STARTING = "starting"
    LOADING_CONFIG = "loading_config"
    STARTING_ENGINE = "starting_engine"
    DOWNLOADING = "downloading"
    LOADING_WEIGHTS = "loading_weights"
    PROFILING = "profiling"
    COMPILING = "compiling"
    ALLOCATING_KV = "allocating_kv"
    WARMING_UP = "warming_up"
    STARTING_API = "starting_api"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PhaseMarker:
    """A line that says that a phase has begun, or is going on."""

    phase: Phase
    pattern: re.Pattern[str]


def _marker(phase: Phase, *patterns: str) -> PhaseMarker:
    return PhaseMarker(phase, re.compile("|".join(patterns)))


# The first that matches wins. A phase is entered whenever its line appears, whatever came before.
PHASE_MARKERS: tuple[PhaseMarker, ...] = (
    _marker(
        Phase.STARTING_API,
        r"^Starting vLLM (?:API )?server",
        r"^Supported[ _]tasks:",
        r"^Started server process",
    ),
    _marker(Phase.LOADING_CONFIG, r"^non-default args:", r"^Resolved architecture:"),
    # The engine's own process is spawned once the configuration is settled, and spends its first
    # ten seconds on imports without a word; "Initializing" is printed only after that.
    _marker(
        Phase.STARTING_ENGINE,
        r"^Using max model len",
        r"^Initializing an? (?:V\d )?LLM engine",
    ),
    _marker(
        Phase.DOWNLOADING,
        r"^Fetching \d+ files",
        r"^Downloading (?:shards|\d+ files|weights)",
        r"^model\S*\.safetensors:\s+\d+%",
    ),
    _marker(
        Phase.LOADING_WEIGHTS,
        r"^Starting to load model",
        r"^Time spent downloading weights",
        r"checkpoint shards:\s+\d+%",
        r"^Loading (?:drafter model|weights took)",
    ),
    _marker(
        Phase.COMPILING,
        r"^(?:\[\S+\] )?(?:Starting torch\.compile|Dynamo bytecode transform|Compiling a graph)",
        r"for vLLM's torch\.compile$",
        r"^Warming up model for the compilation",
        r"^Precompile worker",
        r"^Compiling .* with different input shapes",
        r"^Compilation (?:of .*)?finished in",
    ),
    _marker(
        Phase.PROFILING,
        r"^Model loading took",
        r"^Loading model weights took",
        r"^Encoder cache will be initialized",
        r"^Profiling CUDA graph memory",
        r"Initial profiling/warmup run took",
    ),
    _marker(
        Phase.ALLOCATING_KV,
        r"^Available KV cache memory",
        r"^(?:Explicitly|Auto) set \(",
        r"^Memory statistics \|",
        r"KV cache size: [\d,]+ tokens",
        r"^Warming up done",
    ),
    _marker(
        Phase.WARMING_UP,
        r"^Capturing CUDA graph",
        r"^Graph capturing finished",
        r"^JIT kernel warmup",
        r"^Compile and warming up model",
        r"^Warming up",
        r"^init engine \(",
    ),
)


@dataclass(frozen=True, slots=True)
class FactMarker:
    """A line that carries a number or name worth keeping; its one group is the value.

    Args:
        name: The field of `StartupFacts`.
        pattern: With one group.
        convert: From the group's text.
        replaces: Whether a later line may replace the value; a less exact source does not.
    """

    name: str
    pattern: re.Pattern[str]
    convert: Callable[[str], str | int | float]
    replaces: bool = True


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


FACT_MARKERS: tuple[FactMarker, ...] = (
    FactMarker("vllm_version", re.compile(r"LLM engine \(v(\S+?)\) with config"), str),
    FactMarker("model", re.compile(r"^\W*model {2,}(\S+)$"), str),
    FactMarker("model", re.compile(r"LLM engine \(v\S+\) with config: model='([^']+)'"), str),
    FactMarker("architecture", re.compile(r"^Resolved architecture: (\S+)"), str),
    FactMarker("url", re.compile(r"^Starting vLLM (?:API )?server.* on (\S+)"), str),
    FactMarker("max_model_len", re.compile(r"^Using max model len (\d+)"), int),
    FactMarker("max_model_len", re.compile(r"LLM engine .*\bmax_seq_len=(\d+)"), int),
    FactMarker("weights_s", re.compile(r"^Loading weights took ([\d.]+) s"), float, replaces=False),
    FactMarker("weights_s", re.compile(r"^Model loading took .* and ([\d.]+) seconds"), float),
    FactMarker("weights_gib", re.compile(r"^Model loading took ([\d.]+) Gi?B"), float),
    # A TPU says what is in use once the weights are loaded, not what the weights take.
    FactMarker(
        "weights_gib",
        re.compile(r"^Memory statistics .*total_hbm_used_gb=([\d.]+)"),
        float,
        replaces=False,
    ),
    FactMarker("download_s", re.compile(r"^Time spent downloading weights.*: ([\d.]+) s"), float),
    FactMarker(
        "available_kv_gib", re.compile(r"^Available KV cache memory: (-?[\d.]+) Gi?B"), float
    ),
    FactMarker("available_kv_gib", re.compile(r"^(?:Explicitly|Auto) set \(([\d.]+)/"), float),
    FactMarker(
        "available_kv_gib",
        re.compile(r"^Memory statistics .*total_hbm_avail_gb=(-?[\d.]+)"),
        float,
    ),
    FactMarker("kv_tokens", re.compile(r"KV cache size: ([\d,]+) tokens"), _whole),
    FactMarker(
        "max_concurrency",
        re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
        float,
    ),
    FactMarker("compile_s", re.compile(r"torch\.compile (?:took|takes) ([\d.]+) s"), float),
    FactMarker("compile_s", re.compile(r"^init engine .*\(compilation: ([\d.]+) s"), float),
    FactMarker("graph_capture_s", re.compile(r"^Graph capturing finished in (\d+) sec"), float),
    FactMarker("engine_init_s", re.compile(r"^init engine .*?\) took ([\d.]+) s"), float),
)

# Progress bars: what is counted, and the pattern whose groups are the count and the total.
PROGRESS_BARS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("weights file", re.compile(r"checkpoint shards:\s+\d+% Completed \| (\d+)/(\d+)")),
    ("CUDA graph", re.compile(r"^Capturing CUDA graphs?.*?(\d+)/(\d+)")),
    ("file", re.compile(r"^(?:Fetching|Downloading) \d+ files?:.*?(\d+)/(\d+)")),
)

# The banner (or, before 0.12, one line) with which every start of the API server begins.
START = re.compile(r"^\W*version (\d+\.\d+\S*)$|^vLLM API server version (\S+)")

# Slow, not failed.
NOTICE = re.compile(
    r"Rate limited\. Waiting|thrown while requesting|Retrying in"
    r"|No available shared memory broadcast block found"
)

STATS = re.compile(
    r"^(?:Engine (\d+): )?Avg prompt throughput: ([\d.]+) tokens/s, "
    r"Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs,.*? Waiting: (\d+) reqs,"
    r".*? KV cache usage: ([\d.]+)%(?:, Prefix cache hit rate: ([\d.]+)%)?"
)

SHUTDOWN = re.compile(r"^\[shutdown\] API server: shutdown triggered|^Shutting down$")

ACCESS = re.compile(r'"[A-Z]+ \S+ HTTP/[\d.]+" \d{3}')

EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]: )?[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?::\s.*)?$"
)

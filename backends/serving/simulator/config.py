"""The simulator's settings: vLLM's flags where vLLM has them, and what to simulate."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from backends.core.errors import DevopsError, InvalidInputError
from backends.knowledge.checkpoints import Checkpoint, find_checkpoint
from backends.knowledge.roofline import KV_BYTE_SIZE, StepModel
from backends.knowledge.targets import PROFILES, TargetProfile, find_profile

FAILURES = ("oom", "kv", "bad-model", "stall", "stall-startup")
CRASH_AFTER = "crash-after"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure to play.

    Args:
        kind: One of `FAILURES`, or `crash-after`.
        after_requests: For `crash-after`: requests answered before the engine dies.
    """

    kind: str
    after_requests: int = 0

    @classmethod
    def parse(cls, text: str) -> Failure:
        """Read `--fail`.

        Raises:
            InvalidInputError: Nothing of that name can be played.
        """
        kind, _, count = text.partition(":")
        if kind in FAILURES and not count:
            return cls(kind)
        if kind == CRASH_AFTER and count.isdecimal():
            return cls(kind, int(count))
        raise InvalidInputError(
            "--fail", "is not known", allowed=f"{', '.join(FAILURES)}, {CRASH_AFTER}:N"
        )


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """Everything one run of the simulator depends on.

    Args:
        profile: The target whose hardware, limits and start-up are simulated.
        checkpoint: The weights.
        host: Address to listen on.
        port: Port to listen on; 0 lets the system choose.
        socket_fd: A bound socket handed over by the parent, instead of host and port.
        model: What `/v1/models` calls `root`.
        served_model_names: Names the model answers to; the first is used in answers.
        max_model_len: Context limit, tokens.
        max_num_seqs: Most sequences in a batch.
        max_num_batched_tokens: Token budget of a step.
        memory_utilization: Share of the chip's memory vLLM may claim.
        kv_cache_dtype: `auto` or `fp8`.
        tensor_parallel_size: Chips.
        prefix_caching: Whether equal prefixes are computed once.
        admission_cap: Requests let through to the engine at once; 0 for no cap.
        startup_speed: Start-up phases take this many times less; 0 means no wait at all.
        time_scale: Steps take this many times less.
        seed: Changes the replies.
        tool_call_parser: `gemma4`, or empty: tool choice is refused as vLLM does without one.
        reasoning_parser: `gemma4`, or empty: no reasoning is split off.
        language_model_only: Whether images are refused.
        prompt_tokens_details: Whether `usage` says how many prompt tokens were cached.
        api_key: Key that `/v1` wants; empty for none.
        failure: A failure to play.
    """

    profile: TargetProfile
    checkpoint: Checkpoint
    host: str
    port: int
    socket_fd: int | None
    model: str
    served_model_names: tuple[str, ...]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_utilization: float | None
    kv_cache_dtype: str
    tensor_parallel_size: int
    prefix_caching: bool
    admission_cap: int
    startup_speed: float
    time_scale: float
    seed: int
    tool_call_parser: str
    reasoning_parser: str
    language_model_only: bool
    prompt_tokens_details: bool
    api_key: str
    failure: Failure | None

    def step_model(self) -> StepModel:
        """The timing of this run."""
        return StepModel(
            self.profile.accelerator,
            self.checkpoint,
            chips=self.tensor_parallel_size,
            kv_cache_dtype=self.kv_cache_dtype,
        )

    def kv_cache_gib(self) -> float:
        """Memory left for the KV cache on each chip, GiB; negative if the weights do not fit."""
        return self.step_model().kv_cache_gib(
            memory_utilization=self.memory_utilization,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )

    def kv_tokens(self) -> int:
        """Tokens the KV cache holds."""
        return self.step_model().kv_capacity_tokens(
            self.max_model_len,
            memory_utilization=self.memory_utilization,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value


def _speed(text: str) -> float:
    value = 0.0 if text == "instant" else float(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be a positive number, 0 or 'instant'")
    return value


def _scale(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m backends.serving.simulator",
        description="A vLLM-compatible server with simulated timing: no GPU, no weights.",
        epilog="The API key, if any, is read from VLLM_API_KEY.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=_count, default=8000, help="0 lets the system choose")
    add("--fd", type=_count, default=None, help="serve on this bound socket instead")
    add("--profile", default="cloudrun-l4", help=f"one of: {', '.join(PROFILES)}")
    add("--checkpoint", default=None, help="the profile's own unless given")
    add("--model", default=None, help="root of /v1/models; the checkpoint's id unless given")
    add("--served-model-name", nargs="+", default=None)
    add("--max-model-len", type=_positive_int, default=None)
    add("--max-num-seqs", type=_positive_int, default=None)
    add("--max-num-batched-tokens", type=_positive_int, default=None)
    add("--gpu-memory-utilization", type=_share, default=None)
    add("--kv-cache-dtype", default=None, choices=sorted(KV_BYTE_SIZE))
    add("--tensor-parallel-size", type=_positive_int, default=None)
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    add("--admission-cap", type=_count, default=None, help="requests let in at once; 0: no cap")
    add("--startup-speed", type=_speed, default=0.0, help="0 or 'instant': do not wait")
    add("--time-scale", type=_scale, default=1.0, help="divide all engine times by this")
    add("--seed", type=int, default=0)
    add("--tool-call-parser", default="gemma4", help="empty: refuse tool choice, as vLLM would")
    add("--reasoning-parser", default="gemma4", help="empty: do not split off reasoning")
    add("--language-model-only", action="store_true", help="refuse images")
    add("--enable-prompt-tokens-details", action="store_true")
    add("--fail", default=None, help=f"play a failure: {', '.join(FAILURES)}, {CRASH_AFTER}:N")
    return parser


def parse_config(argv: Sequence[str] | None = None) -> SimulatorConfig:
    """Read the command line; what is not given comes from the profile.

    Args:
        argv: Arguments without the program's name; the process's own unless given.

    Raises:
        SystemExit: 2, with argparse's message, if an argument is wrong.
    """
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        profile = find_profile(options.profile)
        checkpoint = find_checkpoint(options.checkpoint or profile.checkpoint)
        failure = Failure.parse(options.fail) if options.fail else None
    except DevopsError as error:
        parser.error(f"{error.message} {error.next_action}".strip())
    model = options.model or checkpoint.repo_id

    def chosen(name: str) -> int:
        value = getattr(options, name)
        return int(getattr(profile, name) if value is None else value)

    max_model_len = options.max_model_len or min(
        profile.max_model_len, checkpoint.attention.max_context_tokens
    )
    return SimulatorConfig(
        profile=profile,
        checkpoint=checkpoint,
        host=options.host,
        port=options.port,
        socket_fd=options.fd,
        model=model,
        served_model_names=tuple(options.served_model_name or (model,)),
        max_model_len=max_model_len,
        max_num_seqs=chosen("max_num_seqs"),
        max_num_batched_tokens=chosen("max_num_batched_tokens"),
        memory_utilization=options.gpu_memory_utilization or profile.memory_utilization,
        kv_cache_dtype=options.kv_cache_dtype or profile.kv_cache_dtype,
        tensor_parallel_size=options.tensor_parallel_size or profile.chips,
        prefix_caching=options.enable_prefix_caching,
        admission_cap=chosen("admission_cap"),
        startup_speed=options.startup_speed,
        time_scale=options.time_scale,
        seed=options.seed,
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
        language_model_only=options.language_model_only,
        prompt_tokens_details=options.enable_prompt_tokens_details,
        api_key=os.environ.get("VLLM_API_KEY", ""),
        failure=failure,
    )

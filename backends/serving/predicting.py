"""Throughput, TTFT and ITL at each concurrency, predicted: the simulator's engine, off the clock.

The same scheduler and the same step times as the simulator, in virtual time, so that a plan, a
benchmark's comparison and the simulator never disagree. One factor of each accelerator is fitted,
at concurrency 1; docs/KNOWLEDGE.md has the error of every published cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.knowledge.accelerators import Accelerator
from backends.knowledge.checkpoints import Checkpoint, find_checkpoint
from backends.knowledge.roofline import StepLoad, StepModel
from backends.knowledge.targets import TargetProfile
from backends.serving.simulator.engine import Engine, Group, SequenceState
from backends.serving.simulator.kv_pool import BLOCK_TOKENS
from backends.serving.simulator.virtual import Run, run_closed_loop

ROUNDS = 3
"""Requests of each client in a predicted run: enough for the ramp to matter little."""
_MOST_WORK = 40_000
"""Output tokens and blocks of prompts of a predicted run, so that it takes a fraction of a second;
each client sends one request at least."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What serves.

    Args:
        accelerator: The chip.
        checkpoint: The weights.
        chips: Tensor-parallel size.
        max_model_len: Context limit, tokens.
        max_num_seqs: Most sequences in a batch.
        max_num_batched_tokens: Token budget of a step.
        memory_utilization: vLLM's `--gpu-memory-utilization`; None for the chip's default.
        kv_cache_dtype: vLLM's `--kv-cache-dtype`.
        admission_cap: Requests the platform lets through at once; 0 for no cap.
    """

    accelerator: Accelerator
    checkpoint: Checkpoint
    chips: int = 1
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    memory_utilization: float | None = None
    kv_cache_dtype: str = "auto"
    admission_cap: int = 0

    @classmethod
    def of(cls, profile: TargetProfile, checkpoint: Checkpoint | None = None) -> Setup:
        """The reference deployment of a target, or the same with other weights."""
        return cls(
            profile.accelerator,
            checkpoint or find_checkpoint(profile.checkpoint),
            profile.chips,
            profile.max_model_len,
            profile.max_num_seqs,
            profile.max_num_batched_tokens,
            profile.memory_utilization,
            profile.kv_cache_dtype,
            profile.admission_cap,
        )

    def step_model(self) -> StepModel:
        """The timing of one step."""
        return StepModel(
            self.accelerator, self.checkpoint, self.chips, kv_cache_dtype=self.kv_cache_dtype
        )

    def engine(self) -> Engine:
        """A cold engine."""
        model = self.step_model()
        tokens = model.kv_capacity_tokens(
            self.max_model_len,
            memory_utilization=self.memory_utilization,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
        return Engine(
            model,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_tokens=tokens,
            max_model_len=self.max_model_len,
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted figures of one load.

    Args:
        concurrency: Requests in flight.
        requests_per_s: Finished requests.
        output_tokens_per_s: Output tokens of all requests together.
        ttft_ms: Mean time to the first token.
        itl_ms: Mean time between tokens.
        e2e_s: Mean time of a request.
        bound_tokens_per_s: What the memory's bandwidth would allow, prefill apart.
    """

    concurrency: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft_ms: float
    itl_ms: float
    e2e_s: float
    bound_tokens_per_s: float


def predict(
    setup: Setup,
    concurrency: int,
    *,
    prompt_tokens: int,
    output_tokens: int,
    same_prompt: bool = False,
    rounds: int = ROUNDS,
) -> Prediction:
    """What a closed loop of clients would measure.

    Args:
        setup: What serves.
        concurrency: Requests in flight, at least 1.
        prompt_tokens: Length of each prompt, at least 1.
        output_tokens: Tokens each gets, at least 1.
        same_prompt: Whether all prompts are one, and the prefix cache serves it.
        rounds: Requests of each client.

    Raises:
        InvalidInputError: The KV cache cannot hold one such request.
    """
    work = concurrency * (output_tokens + prompt_tokens // BLOCK_TOKENS)
    most = max(1, _MOST_WORK // work)
    run = virtual_run(
        setup,
        concurrency,
        max(concurrency * min(rounds, most), 2),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        same_prompt=same_prompt,
    )
    model = setup.step_model()
    batch = min(concurrency, setup.max_num_seqs, setup.admission_cap or concurrency)
    middle = prompt_tokens + output_tokens // 2
    load = StepLoad.of([(middle, 1)] * batch, model.window_tokens)
    ideal_s = model.read_bytes(load) / (setup.accelerator.bandwidth_gb_per_s.value * 1e9)
    return Prediction(
        concurrency,
        run.requests_per_s,
        run.output_tokens_per_s,
        run.mean_ttft_s * 1e3,
        run.mean_tpot_s * 1e3,
        run.mean_latency_s,
        batch / ideal_s,
    )


def virtual_run(
    setup: Setup,
    concurrency: int,
    requests: int,
    *,
    prompt_tokens: int,
    output_tokens: int,
    same_prompt: bool = False,
) -> Run:
    """A closed loop on a virtual clock.

    Raises:
        InvalidInputError: The KV cache cannot hold one such request.
    """
    # What a prompt says does not matter, only whether the prefix cache can know its blocks.
    hashes = list(range(1, prompt_tokens // BLOCK_TOKENS + 1)) if same_prompt else []

    def make(_number: int) -> SequenceState:
        return SequenceState(
            prompt_tokens=prompt_tokens,
            block_hashes=hashes,
            target_tokens=output_tokens,
            ends_with="length",
            max_tokens=output_tokens,
            group=Group(1, 1),
        )

    return run_closed_loop(
        setup.engine(),
        make,
        concurrency=concurrency,
        requests=requests,
        admission_cap=setup.admission_cap,
        handling_s=setup.accelerator.request_overhead_ms.value / 1e3,
    )


def predictions(
    setup: Setup, levels: Sequence[int], *, prompt_tokens: int, output_tokens: int
) -> list[Prediction]:
    """What would be measured at several concurrencies; levels that cannot run are left out."""
    if prompt_tokens + output_tokens > setup.max_model_len:
        return []
    return [
        predict(setup, level, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        for level in levels
    ]

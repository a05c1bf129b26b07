"""How long a step of vLLM takes: a roofline of one accelerator and one checkpoint.

    step = max(memory, compute) + layers x launch overhead + sequences x sequence overhead
    memory  = (weights read + KV read) / (chips x bandwidth x efficiency)
    compute = matrix products / (chips x TFLOP/s x utilisation) + attention / (...)

One number, `efficiency`, is fitted: once for each accelerator, at concurrency 1. Everything here
is a pure function of its arguments; nothing is measured, read or written. Results are
predictions and must be labelled so wherever they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backends.core.errors import InvalidInputError
from backends.knowledge.accelerators import Accelerator
from backends.knowledge.checkpoints import GIB, Checkpoint
from backends.knowledge.kv_cache import KvLayout, layout

KV_BYTE_SIZE = {"auto": 2, "bf16": 2, "bfloat16": 2, "fp16": 2, "fp8": 1, "fp8_e4m3": 1}
"""Bytes of one cached number by vLLM's `--kv-cache-dtype`."""

VOCABULARY = 262_144
"""Gemma 4's vocabulary (config.json, 2026-11-30): sizes the logits a step keeps in memory."""

BASE_RESERVE_GIB = 0.4
"""Activations and CUDA graphs outside weights and KV: 0.39 to 0.47 GiB in four runs on T4
(GCE T4 article: 13.1 GiB claimed, less weights, less KV; collected 2026-11-30)."""

LOGIT_BYTES = 12
"""Bytes a sequence's logits take for each word of the vocabulary: fp32, a sorted copy and a working
copy. Set by one log: E2B on the SageMaker L4 with 256 sequences keeps 1.18 GiB beside weights and
KV cache, on T4 with 8 sequences 0.42 (collected 2026-11-30)."""

EXPERT_BYTES_PER_WIDTH = 4
"""Bytes an expert's output takes for each unit of the model's width: the output and the wider
activation inside it, in bf16 (vLLM's fused_moe buffers for widths 704 of 2816; 2026-11-30)."""

_EVERY_EXPERT = 1_000_000
"""So many tokens touch every expert."""

MIN_EFFICIENCY = 0.01
MAX_EFFICIENCY = 1.5


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step has to do.

    Args:
        new_tokens: Tokens computed in the step, prefill and decode together.
        sequences: Sequences in the batch.
        context_tokens: Sum over the sequences of the tokens each attends to.
        window_tokens: The same, each cut to the sliding window.
        attended_full: Sum over the new tokens of the tokens each attends to (full layers).
        attended_window: The same, each cut to the sliding window.
    """

    new_tokens: int
    sequences: int
    context_tokens: int
    window_tokens: int
    attended_full: int
    attended_window: int

    @classmethod
    def of(cls, parts: Iterable[tuple[int, int]], window: int) -> StepLoad:
        """The load of a batch.

        Args:
            parts: For each sequence, tokens already in the cache and new tokens of this step.
            window: Sliding window of the checkpoint, tokens.
        """
        new_tokens = sequences = context = windowed = full = sliding = 0
        for cached, new in parts:
            end = cached + new
            new_tokens += new
            sequences += 1
            context += end
            windowed += min(end, window)
            # Token i attends to i + 1 tokens; summed over cached <= i < end.
            full += (end * (end + 1) - cached * (cached + 1)) // 2
            sliding += _attended_in_window(cached, end, window)
        return cls(new_tokens, sequences, context, windowed, full, sliding)


def _attended_in_window(start: int, end: int, window: int) -> int:
    """Sum over start <= i < end of min(i + 1, window)."""
    if end <= window:
        return (end * (end + 1) - start * (start + 1)) // 2
    if start >= window:
        return (end - start) * window
    inside = (window * (window + 1) - start * (start + 1)) // 2
    return inside + (end - window) * window


@dataclass(frozen=True, slots=True)
class StepModel:
    """Step times and memory of one checkpoint on some chips of one accelerator.

    Args:
        accelerator: The chip.
        checkpoint: The weights.
        chips: Tensor-parallel size, at least 1.
        efficiency: Share of the bandwidth reached; the accelerator's own unless given.
        kv_cache_dtype: vLLM's `--kv-cache-dtype`: `auto`, `fp8`, ...

    Raises:
        InvalidInputError: A value is out of range.
    """

    accelerator: Accelerator
    checkpoint: Checkpoint
    chips: int = 1
    efficiency: float | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.chips < 1:
            raise InvalidInputError("chips", "must be at least 1")
        if self.efficiency is not None and not MIN_EFFICIENCY <= self.efficiency <= MAX_EFFICIENCY:
            raise InvalidInputError(
                "efficiency", "is out of range", allowed=f"{MIN_EFFICIENCY} to {MAX_EFFICIENCY}"
            )
        if self.kv_cache_dtype not in KV_BYTE_SIZE:
            raise InvalidInputError(
                "kv_cache_dtype", "is not known", allowed=", ".join(KV_BYTE_SIZE)
            )

    def decode_step_s(self, batch: int, context_tokens: int) -> float:
        """Seconds of a step in which `batch` sequences each gain one token.

        Args:
            batch: Sequences decoding together, at least 1.
            context_tokens: Tokens each has in the cache before the step.
        """
        return self.step_s(StepLoad.of([(context_tokens, 1)] * batch, self.window_tokens))

    def prefill_s(
        self, tokens: int, *, cached_tokens: int = 0, max_num_batched_tokens: int = 2048
    ) -> float:
        """Seconds until the first token of a prompt that has the engine to itself.

        Args:
            tokens: Tokens of the prompt.
            cached_tokens: Of those, tokens found in the prefix cache.
            max_num_batched_tokens: Token budget of a step: longer prompts go in chunks.
        """
        total_s = 0.0
        done = min(cached_tokens, max(tokens - 1, 0))
        while done < tokens:
            chunk = min(max_num_batched_tokens, tokens - done)
            total_s += self.step_s(StepLoad.of([(done, chunk)], self.window_tokens))
            done += chunk
        return total_s

    def step_s(self, load: StepLoad) -> float:
        """Seconds of one step."""
        return max(self.memory_s(load), self.compute_s(load)) + self.overhead_s(load.sequences)

    def memory_s(self, load: StepLoad) -> float:
        """Seconds to read weights and KV cache at the fitted share of the bandwidth."""
        efficiency = self.accelerator.efficiency.value
        if self.efficiency is not None:
            efficiency = self.efficiency
        return self._ideal_memory_s(load) / efficiency

    def compute_s(self, load: StepLoad) -> float:
        """Seconds of arithmetic: matrix products of the layers, and attention."""
        chip = self.accelerator
        peak = chip.peak_tflops() * 1e12 * self.chips
        return self._product_flops(load) / (peak * chip.compute_utilization.value) + (
            self._attention_flops(load) / (peak * chip.attention_utilization.value)
        )

    def overhead_s(self, sequences: int) -> float:
        """Seconds a step takes besides memory and compute: kernel launches and bookkeeping."""
        chip = self.accelerator
        layers = self.checkpoint.attention.layers
        return 1e-6 * (
            chip.launch_overhead_us_per_layer.value * layers
            + chip.sequence_overhead_us.value * sequences
        )

    def flops(self, load: StepLoad) -> float:
        """Floating-point operations of a step, on all chips together."""
        return self._product_flops(load) + self._attention_flops(load)

    def read_bytes(self, load: StepLoad) -> float:
        """Bytes of weights and KV cache a step reads on each chip."""
        return self._ideal_memory_s(load) * self.accelerator.bandwidth_gb_per_s.value * 1e9

    def fit_efficiency(self, step_s: float, load: StepLoad) -> float:
        """The efficiency at which a memory-bound step of this load takes `step_s`.

        Args:
            step_s: Measured seconds of one step at concurrency 1.
            load: What that step did.

        Raises:
            InvalidInputError: The step is shorter than its overhead alone.
        """
        left_s = step_s - self.overhead_s(load.sequences)
        if left_s <= 0:
            raise InvalidInputError("step_s", "is not more than the overhead of a step")
        return self._ideal_memory_s(load) / left_s

    @property
    def window_tokens(self) -> int:
        """Sliding window of the checkpoint."""
        return self.checkpoint.attention.window_tokens

    @property
    def weights_gib(self) -> float:
        """Weights on each chip, GiB."""
        resident = self.checkpoint.resident_gib
        if self.accelerator.kind == "tpu" and self.checkpoint.resident_tpu_gib is not None:
            resident = self.checkpoint.resident_tpu_gib
        return resident.value / self.chips

    def kv_cache_gib(
        self,
        *,
        memory_utilization: float | None = None,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
    ) -> float:
        """Memory left for the KV cache on each chip, GiB; negative if weights do not fit.

        Args:
            memory_utilization: vLLM's `--gpu-memory-utilization`; the accelerator's default.
            max_num_seqs: Sequences whose logits have to be held.
            max_num_batched_tokens: Tokens of a step, whose experts' outputs have to be held.
        """
        share = memory_utilization
        if share is None:
            share = self.accelerator.default_memory_utilization.value
        working = self.working_gib(max_num_seqs, max_num_batched_tokens)
        return self.accelerator.memory_gib.value * share - self.weights_gib - working

    def working_gib(self, max_num_seqs: int = 256, max_num_batched_tokens: int = 2048) -> float:
        """Memory beside weights and KV cache that vLLM finds in its profiling run, GiB a chip.

        A TPU's share is in what its default utilization leaves free.
        """
        if self.accelerator.kind == "tpu":
            return 0.0
        moe = self.checkpoint
        per_token = moe.experts_per_token * moe.attention.hidden_size * EXPERT_BYTES_PER_WIDTH
        logits = max_num_seqs * VOCABULARY * LOGIT_BYTES
        return BASE_RESERVE_GIB + (logits + max_num_batched_tokens * per_token) / GIB

    @property
    def kv_layout(self) -> KvLayout:
        """How the KV cache lies on each chip."""
        return layout(
            self.checkpoint.attention,
            kind=self.accelerator.kind,
            chips=self.chips,
            byte_size=KV_BYTE_SIZE[self.kv_cache_dtype],
        )

    def kv_bytes_per_token(self, max_model_len: int, max_num_batched_tokens: int = 2048) -> float:
        """Bytes of KV cache one token of a full-length request takes on each chip.

        On a GPU a sliding-window layer keeps its window and two steps' tokens only, so the figure
        falls with the context: 9.4 KiB for E2B at 16 384 and 2 048 batched tokens, as vLLM's own
        log shows on T4 (4.66 GiB for 519 681 tokens). On TPU every layer keeps every token.
        """
        return self.kv_layout.bytes_per_token(max_model_len, max_num_batched_tokens)

    def kv_capacity_tokens(
        self,
        max_model_len: int,
        *,
        memory_utilization: float | None = None,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
    ) -> int:
        """Tokens the KV cache holds, as vLLM's "GPU KV cache size" line would say; 0 if none."""
        gib = self.kv_cache_gib(
            memory_utilization=memory_utilization,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        return self.kv_layout.tokens(gib * GIB, max_model_len, max_num_batched_tokens)

    def _product_flops(self, load: StepLoad) -> float:
        return 2 * self.checkpoint.parameters_billion.value * 1e9 * load.new_tokens

    def _attention_flops(self, load: StepLoad) -> float:
        attention = self.checkpoint.attention
        full_layers = attention.layers - attention.sliding_layers
        return (
            4
            * attention.query_heads
            * (
                full_layers * attention.head_dim_full * load.attended_full
                + attention.sliding_layers * attention.head_dim * load.attended_window
            )
        )

    def _ideal_memory_s(self, load: StepLoad) -> float:
        attention = self.checkpoint.attention
        size = KV_BYTE_SIZE[self.kv_cache_dtype]
        # Layers that share a cache still read it, so reads count all layers, not the owners.
        sliding_reads = attention.sliding_layers / attention.kv_sliding_layers
        full_reads = (attention.layers - attention.sliding_layers) / attention.kv_full_layers
        kv_bytes = attention.kv_bytes_full(size) * full_reads * load.context_tokens / min(
            self.chips, attention.kv_heads_full
        ) + attention.kv_bytes_sliding(size) * sliding_reads * load.window_tokens / min(
            self.chips, attention.kv_heads
        )
        # On a TPU every expert is read whatever the batch: one stream of 26B-A4B on v6e-4 is slower
        # than even that (94 tok/s, TPU v6e article), and nowhere near reading 8 of 128.
        tokens = load.new_tokens if self.accelerator.kind == "gpu" else _EVERY_EXPERT
        weight_bytes = self.checkpoint.read_gb(tokens) * 1e9 / self.chips
        return (weight_bytes + kv_bytes) / (self.accelerator.bandwidth_gb_per_s.value * 1e9)


def usd_per_million_tokens(usd_per_hour: float, tokens_per_s: float) -> float | None:
    """Cost of a million output tokens at a steady rate; None where nothing is produced.

    Args:
        usd_per_hour: Price of the deployment.
        tokens_per_s: Output tokens per second it sustains.
    """
    if tokens_per_s <= 0:
        return None
    return usd_per_hour / 3600 / tokens_per_s * 1e6

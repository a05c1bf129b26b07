"""The Gemma 4 checkpoints: what they weigh, what a step reads of them, and what a token caches.

Sizes are of the text path unless said otherwise. E2B and E4B keep a per-layer embedding table in
memory that a step only looks up, so they read far less than they weigh; 26B-A4B reads 8 of its
128 experts for each token. 12B and larger share keys and values in their full-attention layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from backends.core.errors import NotFoundError
from backends.knowledge.facts import Fact, derived, measured, published

KIB = 1024
GIB = 1024**3

EXPERT_DIVERSITY = derived(
    0.65,
    "SageMaker L4 article: 26B-A4B w4a16 gives 515.4 tok/s at 16 streams, so a step of 16 tokens "
    "reads a third of the experts, not the 64 % that independent draws would",
)
"""n tokens of a batch draw experts like n to this power independent ones."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Layers and KV cache of one model size; the same for each of its weight formats.

    Args:
        layers: Decoder layers.
        sliding_layers: Of those, layers that look back `window_tokens` only.
        kv_sliding_layers: Sliding layers with a KV cache of their own (the rest share one).
        kv_full_layers: Full-attention layers with a KV cache of their own.
        query_heads: Query heads of a layer.
        kv_heads: KV heads of a sliding layer.
        kv_heads_full: KV heads of a full-attention layer.
        head_dim: Head size of a sliding layer.
        head_dim_full: Head size of a full-attention layer.
        window_tokens: Sliding window.
        hidden_size: Width of the model.
        max_context_tokens: Longest context the checkpoint's config allows.
        source: Where these were read.
        date: When.
    """

    layers: int
    sliding_layers: int
    kv_sliding_layers: int
    kv_full_layers: int
    query_heads: int
    kv_heads: int
    kv_heads_full: int
    head_dim: int
    head_dim_full: int
    window_tokens: int
    hidden_size: int
    max_context_tokens: int
    source: str
    date: str

    def kv_bytes_sliding(self, kv_byte_size: int = 2) -> int:
        """Bytes of KV cache one token takes in all sliding layers together."""
        return self.kv_sliding_layers * 2 * self.kv_heads * self.head_dim * kv_byte_size

    def kv_bytes_full(self, kv_byte_size: int = 2) -> int:
        """Bytes of KV cache one token takes in all full-attention layers together."""
        return self.kv_full_layers * 2 * self.kv_heads_full * self.head_dim_full * kv_byte_size

    def kv_bytes_per_token(self, kv_byte_size: int = 2) -> int:
        """Bytes of KV cache of one token while it is inside the window of every layer."""
        return self.kv_bytes_sliding(kv_byte_size) + self.kv_bytes_full(kv_byte_size)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One set of weights.

    Args:
        name: Folder name, which is also the last part of its Hugging Face id.
        repo_id: Hugging Face id.
        size: Model size (`E2B`, ...).
        weight_format: `bf16`, `w4a16` (QAT export), `fp8` (quantised while loading) or `nvfp4`.
        parameters_billion: Parameters a token passes through in the layers (not embeddings).
        resident_gib: What vLLM's "Model loading took" line shows on a GPU.
        resident_tpu_gib: The same on a TPU, where known.
        disk_gb: Size of the files, 1e9 bytes.
        read_gb_per_step: Bytes a decode step reads whatever the batch, 1e9 (experts apart).
        expert_gb: All routed experts together, 1e9 bytes; 0 for dense models.
        experts: Number of routed experts.
        experts_per_token: How many of them a token uses.
        attention: Layers and KV cache.
        image_tokens: Tokens one image takes in the prompt; 0 if the checkpoint takes none.
    """

    name: str
    repo_id: str
    size: str
    weight_format: str
    parameters_billion: Fact
    resident_gib: Fact
    resident_tpu_gib: Fact | None
    disk_gb: Fact
    read_gb_per_step: Fact
    attention: Attention
    expert_gb: Fact | None = None
    experts: int = 0
    experts_per_token: int = 0
    image_tokens: int = 256

    def with_resident(self, gib: float, source: str) -> Checkpoint:
        """The same checkpoint, of which so much is loaded (e.g. without the vision tower)."""
        return replace(self, resident_gib=measured(gib, source), resident_tpu_gib=None)

    def read_gb(self, tokens: int) -> float:
        """Weights a step reads for `tokens` new tokens, 1e9 bytes.

        With experts, each token draws `experts_per_token` of them; the expected share of experts
        touched at least once grows with the number of tokens, as far as they are unalike.
        """
        if self.expert_gb is None:
            return self.read_gb_per_step.value
        draws: float = max(tokens, 1) ** EXPERT_DIVERSITY.value
        untouched: float = (1 - self.experts_per_token / self.experts) ** draws
        return self.read_gb_per_step.value + self.expert_gb.value * (1 - untouched)


_CONFIGS = "config.json of the checkpoints, as listed on ollama.com and in gemma.cpp pull 919"

E2B = Attention(
    35, 28, 12, 3, 8, 1, 1, 256, 512, 512, 1536, 131_072, source=_CONFIGS, date="2026-11-30"
)
E4B = Attention(
    42, 35, 20, 4, 8, 2, 2, 256, 512, 512, 2560, 131_072, source=_CONFIGS, date="2026-11-30"
)
DENSE_12B = Attention(
    48,
    40,
    40,
    8,
    16,
    8,
    1,
    256,
    512,
    1024,
    3840,
    262_144,
    source="model table of the reference repositories; width and query heads as Gemma 3 12B",
    date="2026-11-30",
)
MOE_26B = Attention(
    30, 25, 25, 5, 16, 8, 2, 256, 512, 1024, 2816, 262_144, source=_CONFIGS, date="2026-11-30"
)
DENSE_31B = Attention(
    60, 50, 50, 10, 32, 16, 4, 256, 512, 1024, 5376, 262_144, source=_CONFIGS, date="2026-11-30"
)

_SAGEMAKER = "SageMaker L4 article and repository"
_T4 = "GCE T4 repository (tpu.env, bandwidth bound)"
_TABLE = "model table of the reference repositories"
_FP8 = "computed: one byte per parameter of the layers, bf16 embedding"

_NVFP4 = "computed: 4.5 bits a parameter of the layers, bf16 embedding"

_P_E2B = derived(1.90, "4.597 GB read per token in bf16, less the output embedding 0.805 GB")
_P_E4B = derived(4.01, "9.36 GB read per token in bf16, less the output embedding 1.34 GB")
_P_12B = derived(11.2, "22.83 GiB in bf16, less the embedding 2.01 GB")
_P_26B = derived(3.1, "3.8 B active, less the output embedding 0.74 B")
_P_31B = derived(29.3, "30.7 B, less the embedding 1.41 B")

_ALL = (
    Checkpoint(
        name="gemma-4-E2B-it",
        repo_id="google/gemma-4-E2B-it",
        size="E2B",
        weight_format="bf16",
        parameters_billion=_P_E2B,
        resident_gib=measured(9.75, f"{_SAGEMAKER}: 'weights 9.75 GiB'"),
        resident_tpu_gib=measured(8.97, "TPU v6e repository: 'total_hbm_used_gb=8.97GiB'"),
        disk_gb=measured(10.247, "safetensors, 10 246 621 918 bytes"),
        read_gb_per_step=derived(4.597, f"{_T4}: bytes per token in bf16"),
        attention=E2B,
    ),
    Checkpoint(
        name="gemma-4-E2B-it-qat-w4a16-ct",
        repo_id="google/gemma-4-E2B-it-qat-w4a16-ct",
        size="E2B",
        weight_format="w4a16",
        parameters_billion=_P_E2B,
        resident_gib=measured(8.01, f"{_SAGEMAKER}, {_T4}"),
        resident_tpu_gib=None,
        disk_gb=measured(8.316, f"{_T4}: 8 316 306 646 bytes"),
        read_gb_per_step=derived(1.862, f"{_T4}: bytes per token in w4a16"),
        attention=E2B,
    ),
    Checkpoint(
        name="gemma-4-E4B-it",
        repo_id="google/gemma-4-E4B-it",
        size="E4B",
        weight_format="bf16",
        parameters_billion=_P_E4B,
        resident_gib=measured(15.08, _TABLE),
        resident_tpu_gib=None,
        disk_gb=published(16.0, _TABLE),
        read_gb_per_step=derived(9.36, "files less per-layer embeddings 5.64 GB and encoders"),
        attention=E4B,
    ),
    Checkpoint(
        name="gemma-4-E4B-it-qat-w4a16-ct",
        repo_id="google/gemma-4-E4B-it-qat-w4a16-ct",
        size="E4B",
        weight_format="w4a16",
        parameters_billion=_P_E4B,
        resident_gib=measured(11.04, _TABLE),
        resident_tpu_gib=None,
        disk_gb=derived(11.85, "resident size"),
        read_gb_per_step=derived(3.60, "layers at 4.5 bits a weight, bf16 output embedding"),
        attention=E4B,
    ),
    Checkpoint(
        name="gemma-4-12B-it",
        repo_id="google/gemma-4-12B-it",
        size="12B",
        weight_format="bf16",
        parameters_billion=_P_12B,
        resident_gib=measured(22.83, _TABLE),
        resident_tpu_gib=measured(22.83, _TABLE),
        disk_gb=published(24.0, _TABLE),
        read_gb_per_step=derived(24.4, "resident size less the vision embedder"),
        attention=DENSE_12B,
    ),
    Checkpoint(
        name="gemma-4-12B-it-fp8",
        repo_id="google/gemma-4-12B-it",
        size="12B",
        weight_format="fp8",
        parameters_billion=_P_12B,
        resident_gib=derived(12.3, _FP8),
        resident_tpu_gib=None,
        disk_gb=published(24.0, _TABLE),
        read_gb_per_step=derived(13.2, _FP8),
        attention=DENSE_12B,
    ),
    Checkpoint(
        name="gemma-4-12B-it-qat-w4a16-ct",
        repo_id="google/gemma-4-12B-it-qat-w4a16-ct",
        size="12B",
        weight_format="w4a16",
        parameters_billion=_P_12B,
        resident_gib=measured(8.28, _TABLE),
        resident_tpu_gib=None,
        disk_gb=derived(8.89, "resident size"),
        read_gb_per_step=derived(8.3, "layers at 4.5 bits a weight, bf16 output embedding"),
        attention=DENSE_12B,
    ),
    Checkpoint(
        name="gemma-4-26B-A4B-it",
        repo_id="google/gemma-4-26B-A4B-it",
        size="26B-A4B",
        weight_format="bf16",
        parameters_billion=_P_26B,
        resident_gib=derived(48.1, "size of the files"),
        resident_tpu_gib=None,
        disk_gb=published(51.61, _TABLE),
        read_gb_per_step=derived(4.7, "dense part 1.6 B and output embedding 0.74 B in bf16"),
        attention=MOE_26B,
        expert_gb=derived(45.7, "30 layers x 128 experts x 3 x 2816 x 704 in bf16"),
        experts=128,
        experts_per_token=8,
    ),
    Checkpoint(
        name="gemma-4-26B-A4B-it-fp8",
        repo_id="google/gemma-4-26B-A4B-it",
        size="26B-A4B",
        weight_format="fp8",
        parameters_billion=_P_26B,
        resident_gib=derived(24.9, _FP8),
        resident_tpu_gib=derived(38.8, "9.70 GiB a chip on v6e-4 (TPU v6e article)"),
        disk_gb=published(51.61, _TABLE),
        read_gb_per_step=derived(3.1, _FP8),
        attention=MOE_26B,
        expert_gb=derived(22.84, "30 layers x 128 experts x 3 x 2816 x 704, one byte each"),
        experts=128,
        experts_per_token=8,
    ),
    Checkpoint(
        name="gemma-4-26B-A4B-it-qat-w4a16-ct",
        repo_id="google/gemma-4-26B-A4B-it-qat-w4a16-ct",
        size="26B-A4B",
        weight_format="w4a16",
        parameters_billion=_P_26B,
        resident_gib=measured(15.88, f"{_SAGEMAKER}: 26B on L4, 'Weights in GPU memory'"),
        resident_tpu_gib=None,
        disk_gb=derived(17.05, "resident size"),
        read_gb_per_step=derived(2.38, "dense part at 4.5 bits, bf16 output embedding 1.48 GB"),
        attention=MOE_26B,
        expert_gb=derived(12.85, "22.84 B expert weights at 4.5 bits"),
        experts=128,
        experts_per_token=8,
    ),
    Checkpoint(
        name="gemma-4-31B-it",
        repo_id="google/gemma-4-31B-it",
        size="31B",
        weight_format="bf16",
        parameters_billion=_P_31B,
        resident_gib=derived(57.7, "size of the files"),
        resident_tpu_gib=None,
        disk_gb=published(62.0, _TABLE),
        read_gb_per_step=derived(61.4, "30.7 B parameters in bf16"),
        attention=DENSE_31B,
    ),
    Checkpoint(
        name="gemma-4-31B-it-qat-w4a16-ct",
        repo_id="google/gemma-4-31B-it-qat-w4a16-ct",
        size="31B",
        weight_format="w4a16",
        parameters_billion=_P_31B,
        resident_gib=measured(19.77, _TABLE),
        resident_tpu_gib=None,
        disk_gb=derived(23.27, "'unable to mmap 23265352448 bytes', SageMaker log"),
        read_gb_per_step=derived(19.3, "layers at 4.5 bits a weight, bf16 output embedding"),
        attention=DENSE_31B,
    ),
    Checkpoint(
        name="gemma-4-E2B-it-fp8",
        repo_id="google/gemma-4-E2B-it",
        size="E2B",
        weight_format="fp8",
        parameters_billion=_P_E2B,
        resident_gib=derived(7.8, f"{_FP8}; per-layer embedding 4.70 GB and encoders stay bf16"),
        resident_tpu_gib=None,
        disk_gb=measured(10.247, "safetensors, 10 246 621 918 bytes"),
        read_gb_per_step=derived(2.7, _FP8),
        attention=E2B,
    ),
    Checkpoint(
        name="gemma-4-E4B-it-fp8",
        repo_id="google/gemma-4-E4B-it",
        size="E4B",
        weight_format="fp8",
        parameters_billion=_P_E4B,
        resident_gib=derived(11.3, f"{_FP8}; per-layer embedding 5.64 GB and encoders stay bf16"),
        resident_tpu_gib=None,
        disk_gb=published(16.0, _TABLE),
        read_gb_per_step=derived(5.35, _FP8),
        attention=E4B,
    ),
    Checkpoint(
        name="gemma-4-31B-it-fp8",
        repo_id="google/gemma-4-31B-it",
        size="31B",
        weight_format="fp8",
        parameters_billion=_P_31B,
        resident_gib=derived(30.9, f"{_FP8}; vision tower stays bf16"),
        resident_tpu_gib=None,
        disk_gb=published(62.0, _TABLE),
        read_gb_per_step=derived(32.1, _FP8),
        attention=DENSE_31B,
    ),
    Checkpoint(
        name="gemma-4-12B-it-NVFP4",
        repo_id="nvidia/gemma-4-12B-it-NVFP4",
        size="12B",
        weight_format="nvfp4",
        parameters_billion=_P_12B,
        resident_gib=derived(8.4, _NVFP4),
        resident_tpu_gib=None,
        disk_gb=derived(9.0, "resident size"),
        read_gb_per_step=derived(8.3, _NVFP4),
        attention=DENSE_12B,
    ),
    Checkpoint(
        name="gemma-4-26B-A4B-it-NVFP4",
        repo_id="nvidia/gemma-4-26B-A4B-it-NVFP4",
        size="26B-A4B",
        weight_format="nvfp4",
        parameters_billion=_P_26B,
        resident_gib=derived(16.0, f"{_NVFP4}; as w4a16"),
        resident_tpu_gib=None,
        disk_gb=derived(17.2, "resident size"),
        read_gb_per_step=derived(2.38, _NVFP4),
        attention=MOE_26B,
        expert_gb=derived(12.85, "22.84 B expert weights at 4.5 bits"),
        experts=128,
        experts_per_token=8,
    ),
    Checkpoint(
        name="gemma-4-31B-it-NVFP4",
        repo_id="nvidia/gemma-4-31B-it-NVFP4",
        size="31B",
        weight_format="nvfp4",
        parameters_billion=_P_31B,
        resident_gib=derived(19.8, f"{_NVFP4}; as w4a16"),
        resident_tpu_gib=None,
        disk_gb=derived(21.3, "resident size"),
        read_gb_per_step=derived(19.3, _NVFP4),
        attention=DENSE_31B,
    ),
    # Denoises a canvas of tokens at a time: what the roofline says of token-by-token decoding does
    # not hold for it, its memory does.
    Checkpoint(
        name="diffusiongemma-26B-A4B-it-NVFP4",
        repo_id="nvidia/diffusiongemma-26B-A4B-it-NVFP4",
        size="DiffusionGemma-26B-A4B",
        weight_format="nvfp4",
        parameters_billion=_P_26B,
        resident_gib=measured(17.53, "DiffusionGemma repository: size of the weights"),
        resident_tpu_gib=None,
        disk_gb=derived(18.8, "resident size"),
        read_gb_per_step=derived(2.38, _NVFP4),
        attention=MOE_26B,
        expert_gb=derived(12.85, "22.84 B expert weights at 4.5 bits"),
        experts=128,
        experts_per_token=8,
    ),
)

CHECKPOINTS: Mapping[str, Checkpoint] = MappingProxyType({c.name: c for c in _ALL})
DEFAULT_CHECKPOINT = "gemma-4-E2B-it"


def find_checkpoint(name: str) -> Checkpoint:
    """The checkpoint a name, Hugging Face id or path stands for.

    Args:
        name: `gemma-4-E2B-it`, `google/gemma-4-E2B-it`, `/mnt/models/gemma-4-E2B-it`; case is
            ignored.

    Raises:
        NotFoundError: There is no such checkpoint in the table.
    """
    wanted = name.rstrip("/").rsplit("/", 1)[-1].lower()
    for checkpoint in _ALL:
        if checkpoint.name.lower() == wanted:
            return checkpoint
    raise NotFoundError(
        f"No checkpoint named {name!r} is known.",
        next_action=f"Use one of: {', '.join(CHECKPOINTS)}.",
    )

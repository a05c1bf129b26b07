"""How vLLM lays out the KV cache: the blocks one request takes, and the tokens a pool holds.

GPU: layers of one kind form groups of equal size that share one pool of blocks; a sliding-window
group keeps its window and two steps' tokens only. The layer kind with the smaller page gets longer
blocks, so that all pages are as large. TPU: every layer keeps every token, and heads are padded to
what a 32-bit word packs. Read from vLLM's kv_cache_utils and tpu-inference's KV layout, and checked
against their logs (docs/KNOWLEDGE.md), 2026-11-30.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from backends.knowledge.checkpoints import Attention

BLOCK_TOKENS = 16
"""Tokens of a block of the layer kind with the largest page (vLLM's default on GPUs)."""

STEPS_IN_FLIGHT = 2
"""Steps whose tokens a sliding-window layer keeps beside its window: with async scheduling one is
computed while the next is prepared. Six logs on T4, L4 and L40S agree to 3 % with two, none with
one (docs/KNOWLEDGE.md)."""

_ALIKE = 1.25
"""Layer kinds whose numbers differ by less than this factor form groups of the larger number."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The KV cache of one model on one chip.

    Args:
        block_bytes: Bytes of one block of the pool, all layers of a group together.
        full_groups: Groups of full-attention layers.
        sliding_groups: Groups of sliding-window layers; 0 where all layers keep every token.
        full_block_tokens: Tokens of a block of a full-attention group.
        sliding_block_tokens: Tokens of a block of a sliding-window group.
        window_tokens: Sliding window.
    """

    block_bytes: int
    full_groups: int
    sliding_groups: int
    full_block_tokens: int
    sliding_block_tokens: int
    window_tokens: int

    def blocks_of_request(self, length: int, max_num_batched_tokens: int) -> int:
        """Blocks a request of full length takes at most.

        Args:
            length: `--max-model-len`, tokens.
            max_num_batched_tokens: vLLM's token budget of a step.
        """
        blocks = self.full_groups * math.ceil(length / self.full_block_tokens)
        if self.sliding_groups:
            kept = self.window_tokens - 1 + STEPS_IN_FLIGHT * max_num_batched_tokens
            kept = min(kept, length)
            # One more, since a window need not begin where a block does.
            blocks += self.sliding_groups * (math.ceil(kept / self.sliding_block_tokens) + 1)
        return blocks

    def tokens(self, pool_bytes: float, length: int, max_num_batched_tokens: int) -> int:
        """Tokens a pool holds, as vLLM's line "GPU KV cache size" counts them; 0 if none."""
        blocks = int(pool_bytes // self.block_bytes)
        return max(0, int(blocks / self.blocks_of_request(length, max_num_batched_tokens) * length))

    def bytes_per_token(self, length: int, max_num_batched_tokens: int) -> float:
        """Bytes one token of a request of full length takes."""
        return self.block_bytes * self.blocks_of_request(length, max_num_batched_tokens) / length


def layout(
    attention: Attention, *, kind: Literal["gpu", "tpu"], chips: int, byte_size: int
) -> KvLayout:
    """The KV cache of a model on each of some chips.

    Args:
        attention: Its layers.
        kind: The chip's kind.
        chips: Tensor-parallel size.
        byte_size: Bytes of one cached number.
    """
    if kind == "tpu":
        return _tpu(attention, chips, byte_size)
    # A KV head is never split: past one chip a head, chips hold copies.
    sliding_page = _page(attention.kv_heads, attention.head_dim, chips, byte_size)
    full_page = _page(attention.kv_heads_full, attention.head_dim_full, chips, byte_size)
    sliding, full = attention.kv_sliding_layers, attention.kv_full_layers
    if not sliding or not full:
        page, layers = (full_page, full) if full else (sliding_page, sliding)
        return KvLayout(
            page * layers,
            full_groups=1 if full else 0,
            sliding_groups=1 if sliding else 0,
            full_block_tokens=BLOCK_TOKENS,
            sliding_block_tokens=BLOCK_TOKENS,
            window_tokens=attention.window_tokens,
        )
    fewer, more = min(sliding, full), max(sliding, full)
    size = more if more < _ALIKE * fewer else fewer
    page = max(sliding_page, full_page)
    return KvLayout(
        page * size,
        full_groups=math.ceil(full / size),
        sliding_groups=math.ceil(sliding / size),
        full_block_tokens=BLOCK_TOKENS * max(1, page // full_page),
        sliding_block_tokens=BLOCK_TOKENS * max(1, page // sliding_page),
        window_tokens=attention.window_tokens,
    )


def _page(heads: int, head_dim: int, chips: int, byte_size: int) -> int:
    return BLOCK_TOKENS * 2 * math.ceil(heads / chips) * head_dim * byte_size


def _tpu(attention: Attention, chips: int, byte_size: int) -> KvLayout:
    packed = max(1, 4 // byte_size)

    def token_bytes(heads: int, head_dim: int) -> int:
        both = 2 * math.ceil(heads / chips)
        return math.ceil(both / packed) * packed * head_dim * byte_size

    one = attention.kv_sliding_layers * token_bytes(attention.kv_heads, attention.head_dim)
    one += attention.kv_full_layers * token_bytes(attention.kv_heads_full, attention.head_dim_full)
    return KvLayout(one, 1, 0, 1, 1, attention.window_tokens)

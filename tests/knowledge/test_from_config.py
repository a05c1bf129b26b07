"""A checkpoint's figures from its own config.json: near the catalogue's where both are known."""

from __future__ import annotations

from typing import Any

import pytest

from backends.core.errors import InvalidInputError
from backends.knowledge.checkpoints import E2B, MOE_26B, find_checkpoint
from backends.knowledge.from_config import (
    attention_of,
    checkpoint_from,
    encoding_of,
    flags_of,
    loaded_as_fp8,
    parameter_count,
)

# The text part of the checkpoints' config.json, as vLLM and transformers read it (2026-11-30).
E2B_CONFIG: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "dtype": "bfloat16",
    "vision_config": {"hidden_size": 768},
    "text_config": {
        "num_hidden_layers": 35,
        "num_kv_shared_layers": 20,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        "hidden_size": 1536,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "max_position_embeddings": 131_072,
        "vocab_size": 262_144,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
    },
}
MOE_CONFIG: dict[str, Any] = {
    "model_type": "gemma4",
    "text_config": {
        "num_hidden_layers": 30,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        "hidden_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 1024,
        "max_position_embeddings": 262_144,
        "vocab_size": 262_144,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
}
PLAIN_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "vocab_size": 128_256,
    "torch_dtype": "bfloat16",
}


def shape(attention: object) -> dict[str, object]:
    names = attention.__slots__  # type: ignore[attr-defined]
    return {n: getattr(attention, n) for n in names if n not in {"source", "date"}}


@pytest.mark.parametrize(("config", "known"), [(E2B_CONFIG, E2B), (MOE_CONFIG, MOE_26B)])
def test_layers_and_cache_are_those_of_the_catalogue(config: dict[str, Any], known: object) -> None:
    assert shape(attention_of(config, "test")) == shape(known)


def test_e2b_is_read_as_it_was_measured() -> None:
    made = checkpoint_from("E2B", E2B_CONFIG, 10_246_621_918, "test")
    known = find_checkpoint("gemma-4-E2B-it")
    assert made.weight_format == "bf16"
    assert made.resident_gib.value == pytest.approx(known.resident_gib.value, rel=0.01)
    # The vision and audio towers, which a step does not read, cannot be told from the size alone.
    assert made.read_gb(1) == pytest.approx(known.read_gb(1), rel=0.25)
    assert parameter_count(E2B_CONFIG, 10_246_621_918) == pytest.approx(5.12e9, rel=0.01)


def test_experts_are_told_apart_from_what_every_token_reads() -> None:
    made = checkpoint_from("26B", MOE_CONFIG, 51_610_000_000, "test")
    known = find_checkpoint("gemma-4-26B-A4B-it")
    assert made.expert_gb is not None
    assert known.expert_gb is not None
    assert made.expert_gb.value == pytest.approx(known.expert_gb.value, rel=0.01)
    assert made.read_gb(1) == pytest.approx(known.read_gb(1), rel=0.25)


def test_a_plain_model_keeps_every_token_in_every_layer() -> None:
    made = checkpoint_from("llama", PLAIN_CONFIG, 16_060_000_000, "test")
    assert made.attention.kv_bytes_per_token() == 32 * 2 * 8 * 128 * 2
    assert made.attention.sliding_layers == 0


@pytest.mark.parametrize(
    ("quantization", "wanted"),
    [
        ({"quant_method": "compressed-tensors", "format": "pack-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}, "w4a16"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "w4a16"),
    ],
)  # fmt: skip
def test_the_encoding_is_what_the_quantization_says(
    quantization: dict[str, Any], wanted: str
) -> None:
    assert encoding_of(PLAIN_CONFIG | {"quantization_config": quantization}) == wanted


def test_each_architecture_names_its_parsers() -> None:
    assert "--tool-call-parser=gemma4" in flags_of(E2B_CONFIG).words()
    assert "llama3_json" in flags_of(PLAIN_CONFIG).words()
    assert flags_of({"model_type": "something-new"}).words() == "none"


def test_a_config_that_says_nothing_of_its_layers_is_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match="num_hidden_layers"):
        attention_of({"model_type": "x"}, "test")
    with pytest.raises(InvalidInputError, match="no weights"):
        checkpoint_from("x", PLAIN_CONFIG, 0, "test")


def test_weights_quantised_while_loading_take_half_but_for_the_embeddings() -> None:
    made = loaded_as_fp8(checkpoint_from("26B", MOE_CONFIG, 51_610_000_000, "test"), MOE_CONFIG)
    known = find_checkpoint("gemma-4-26B-A4B-it-fp8")
    assert made.weight_format == "fp8"
    assert made.resident_gib.value == pytest.approx(known.resident_gib.value, rel=0.05)
    assert made.read_gb(1) == pytest.approx(known.read_gb(1), rel=0.25)

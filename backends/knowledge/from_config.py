"""A checkpoint that is in no table, from its own files: config.json and the size of its weights.

What vLLM will load, cache and read of it follows from the configuration; nothing is downloaded but
that. Figures made so are derived, never measured: the catalogue's are better where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from backends.core.errors import InvalidInputError
from backends.knowledge.checkpoints import GIB, Attention, Checkpoint
from backends.knowledge.facts import Fact

Config = Mapping[str, Any]

RESIDENT_OVER_FILES = 1.02
"""What is loaded over what is on disk: E2B 9.75 GiB of 9.54, 26B w4a16 15.88 of about 15.5
(SageMaker repository, 2026-11-30)."""

_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0, "int8": 1.0,
          "w4a16": 0.5625, "nvfp4": 0.5625}  # fmt: skip
"""Bytes a weight of the layers takes, scales included."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What vLLM has to be told of an architecture.

    Args:
        tool_call_parser: `--tool-call-parser`; empty where there is none.
        reasoning_parser: `--reasoning-parser`.
    """

    tool_call_parser: str = ""
    reasoning_parser: str = ""

    def words(self) -> str:
        """As arguments."""
        said = []
        if self.tool_call_parser:
            said += ["--enable-auto-tool-choice", f"--tool-call-parser={self.tool_call_parser}"]
        if self.reasoning_parser:
            said.append(f"--reasoning-parser={self.reasoning_parser}")
        return " ".join(said) or "none"


# By the beginning of `model_type`; vLLM documentation, tool calling and reasoning outputs,
# 2026-11-30. The first that matches counts.
FLAGS: tuple[tuple[str, Flags], ...] = (
    ("gemma4", Flags("gemma4", "gemma4")),
    ("diffusion_gemma", Flags()),
    ("gpt_oss", Flags("openai", "openai_gptoss")),
    ("qwen3", Flags("hermes", "qwen3")),
    ("qwen2", Flags("hermes")),
    ("deepseek_v3", Flags("deepseek_v3", "deepseek_r1")),
    ("llama4", Flags("llama4_pythonic")),
    ("llama", Flags("llama3_json")),
    ("mistral", Flags("mistral")),
    ("granite", Flags("granite", "granite")),
)


def flags_of(config: Config) -> Flags:
    """The parsers an architecture needs; none where vLLM has none for it."""
    kind = str(config.get("model_type", ""))
    return next((flags for start, flags in FLAGS if kind.startswith(start)), Flags())


def encoding_of(config: Config) -> str:
    """How weights are stored, in the words of our tables (`bf16`, `w4a16`, `fp8`, `nvfp4`, ...)."""
    quantization = config.get("quantization_config") or _text(config).get("quantization_config")
    if isinstance(quantization, dict):
        return _quantized(quantization)
    said = config.get("dtype") or config.get("torch_dtype") or _text(config).get("dtype") or ""
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    return names.get(str(said).removeprefix("torch."), str(said) or "bf16")


def _quantized(quantization: Mapping[str, Any]) -> str:
    method = str(quantization.get("quant_method") or quantization.get("quant_algo") or "").lower()
    form = str(quantization.get("format") or quantization.get("quant_algo") or "").lower()
    if "nvfp4" in method + form:
        return "nvfp4"
    if method in {"awq", "gptq", "auto-round"}:
        return "w4a16"
    groups = quantization.get("config_groups")
    bits = None
    if isinstance(groups, dict):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, dict) else None
            if isinstance(weights, dict):
                bits = weights.get("num_bits")
                if bits == 8:
                    return "fp8" if weights.get("type") == "float" else "int8"
    if bits == 4 or "pack" in form or "int4" in form:
        return "w4a16"
    return "fp8" if "fp8" in method + form or "float" in form else method or "unknown"


def attention_of(config: Config, source: str) -> Attention:
    """Layers and KV cache.

    Raises:
        InvalidInputError: config.json lacks what the KV cache follows from.
    """
    text = _text(config)

    def number(key: str, default: int | None = None) -> int:
        value = text.get(key, config.get(key, default))
        if not isinstance(value, int) or isinstance(value, bool):
            if default is not None:
                return default
            raise InvalidInputError("model", f"has a config.json without {key} ({source}).")
        return value

    layers = number("num_hidden_layers")
    hidden, heads = number("hidden_size"), number("num_attention_heads")
    kv_heads = number("num_key_value_heads", heads)
    head_dim = number("head_dim", hidden // heads)
    longest = number("max_position_embeddings", 8192)
    kinds = _layer_kinds(text, layers)
    owners = kinds[: layers - number("num_kv_shared_layers", 0)]
    window = number("sliding_window", longest)
    return Attention(
        layers=layers,
        sliding_layers=kinds.count("sliding"),
        kv_sliding_layers=owners.count("sliding"),
        kv_full_layers=owners.count("full"),
        query_heads=heads,
        kv_heads=kv_heads,
        kv_heads_full=number("num_global_key_value_heads", kv_heads),
        head_dim=head_dim,
        head_dim_full=number("global_head_dim", head_dim),
        window_tokens=window,
        hidden_size=hidden,
        max_context_tokens=longest,
        source=source,
        date=_today(),
    )


def _layer_kinds(text: Config, layers: int) -> list[str]:
    named = text.get("layer_types")
    if isinstance(named, list) and len(named) == layers:
        return ["sliding" if "sliding" in str(kind) else "full" for kind in named]
    pattern = text.get("sliding_window_pattern")
    if text.get("sliding_window") and isinstance(pattern, int) and pattern > 1:
        return ["full" if (index + 1) % pattern == 0 else "sliding" for index in range(layers)]
    return ["full"] * layers


def checkpoint_from(
    name: str, config: Config, weight_bytes: int, source: str, *, repo_id: str = ""
) -> Checkpoint:
    """The figures of a checkpoint.

    Args:
        name: What to call it.
        config: Its config.json.
        weight_bytes: Size of its weight files.
        source: Where these were read.
        repo_id: Hugging Face id, if it has one.

    Raises:
        InvalidInputError: config.json lacks what the figures follow from, or there are no weights.
    """
    if weight_bytes <= 0:
        raise InvalidInputError("model", f"has no weights ({source}).")
    attention = attention_of(config, source)
    text = _text(config)
    encoding = encoding_of(config)
    size = _BYTES.get(encoding, 2.0)
    vocabulary = int(text.get("vocab_size", config.get("vocab_size", 0)) or 0)
    embedding = vocabulary * attention.hidden_size
    # A table with a row of its own for each layer is only looked up, never read whole.
    per_layer = (
        int(text.get("vocab_size_per_layer_input", vocabulary) or 0)
        * int(text.get("hidden_size_per_layer_input", 0) or 0)
        * attention.layers
    )
    experts = int(text.get("num_experts") or text.get("num_local_experts") or 0)
    used = int(
        text.get("top_k_experts")
        or text.get("num_experts_per_tok")
        or text.get("num_experts_per_token")
        or 0
    )
    expert_parameters = 0
    if experts and used:
        width = int(text.get("moe_intermediate_size") or text.get("intermediate_size") or 0)
        expert_parameters = attention.layers * experts * 3 * attention.hidden_size * width
    today = _today()

    def fact(value: float, how: str) -> Fact:
        return Fact(value, f"{source}: {how}", today, "derived")

    expert_bytes = expert_parameters * size
    read = weight_bytes - per_layer * 2 - expert_bytes
    read = max(read, weight_bytes * 0.02)
    dense = max((read - embedding * 2) / size, 1e6)
    active = dense + (expert_parameters * used / experts if experts else 0)
    return Checkpoint(
        name=name,
        repo_id=repo_id or name,
        size=f"{(weight_bytes / size) / 1e9:.3g}B",
        weight_format=encoding,
        parameters_billion=fact(active / 1e9, "parameters of the layers a token passes through"),
        resident_gib=fact(weight_bytes * RESIDENT_OVER_FILES / GIB, "size of the weights"),
        resident_tpu_gib=None,
        disk_gb=fact(weight_bytes / 1e9, "size of the weights"),
        read_gb_per_step=fact(read / 1e9, "weights less lookup tables and experts"),
        attention=attention,
        expert_gb=fact(expert_bytes / 1e9, "all experts") if expert_parameters else None,
        experts=experts if expert_parameters else 0,
        experts_per_token=used if expert_parameters else 0,
        image_tokens=256 if config.get("vision_config") else 0,
    )


def loaded_as_fp8(checkpoint: Checkpoint, config: Config) -> Checkpoint:
    """The same 16-bit weights, quantised to fp8 while vLLM loads them; embeddings stay as they are.

    Args:
        checkpoint: As `checkpoint_from` made it.
        config: Its config.json.
    """
    weight_bytes = checkpoint.disk_gb.value * 1e9
    table = _table_bytes(config, weight_bytes)
    read = checkpoint.read_gb_per_step
    embedding = min(table, read.value * 1e9) / 1e9
    experts = checkpoint.expert_gb
    resident = (table + (weight_bytes - table) / 2) * RESIDENT_OVER_FILES / GIB
    return replace(
        checkpoint,
        name=f"{checkpoint.name}-fp8",
        weight_format="fp8",
        resident_gib=replace(checkpoint.resident_gib, value=resident),
        read_gb_per_step=replace(read, value=embedding + (read.value - embedding) / 2),
        expert_gb=replace(experts, value=experts.value / 2) if experts is not None else None,
    )


def parameter_count(config: Config, weight_bytes: int) -> float:
    """Parameters in all, from the size of the weights and their encoding; about, where packed."""
    size = _BYTES.get(encoding_of(config), 2.0)
    # Embeddings stay in 16 bits in every encoding that is met.
    table_bytes = _table_bytes(config, weight_bytes)
    return table_bytes / 2 + (weight_bytes - table_bytes) / size


def _table_bytes(config: Config, at_most: float) -> float:
    """Size of the embedding tables, 16 bits a number."""
    text = _text(config)
    vocabulary = int(text.get("vocab_size", config.get("vocab_size", 0)) or 0)
    table = vocabulary * int(text.get("hidden_size", 0) or 0)
    table += (
        int(text.get("vocab_size_per_layer_input", vocabulary) or 0)
        * int(text.get("hidden_size_per_layer_input", 0) or 0)
        * int(text.get("num_hidden_layers", 0) or 0)
    )
    return min(table * 2.0, at_most)


def _text(config: Config) -> Config:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _today() -> str:
    return datetime.now(UTC).date().isoformat()

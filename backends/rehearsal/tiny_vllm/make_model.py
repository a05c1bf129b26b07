# mypy: disable-error-code="import-not-found"
# ruff: noqa: S106 (tokens of text, not of access)
"""Makes a tiny Gemma 4 with random weights that vLLM serves offline: `make_model.py FOLDER`.

Runs with the interpreter of the environment that holds vLLM (torch, transformers and tokenizers
are there), so it imports nothing of this project. Two layers, hidden size 64, 486 thousand
parameters, 1.3 MB; a byte-level vocabulary of 4096 trained on Python's own library; Gemma 4's turn
markers. Takes about 12 s.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

MAX_CONTEXT_TOKENS = 8192
VOCABULARY = 4096

# Gemma 4's own special tokens; order fixes their ids.
SPECIAL = (
    *("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>"),
    *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    *('<|"|>', "<|think|>", "<|image>", "<|image|>", "<image|>"),
    *("<|audio>", "<|audio|>", "<audio|>", "<|video|>"),
)

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}<turn|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def make_model(folder: Path) -> None:
    """Write the model into `folder`, whole or not at all: config.json arrives last."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import (
        Gemma4ForCausalLM,
        Gemma4TextConfig,
        GenerationConfig,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(0)
    tokens = Tokenizer(models.BPE(unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    tokens.train([str(file) for file in library], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        additional_special_tokens=list(SPECIAL[4:]),
        model_max_length=MAX_CONTEXT_TOKENS,
    )
    vocabulary = tokens.get_vocab_size()
    bos, eos, pad, turn = (tokens.token_to_id(t) for t in ("<bos>", "<eos>", "<pad>", "<turn|>"))
    # Head sizes are among those vLLM's CPU attention has kernels for, mixed as in Gemma 4.
    config = Gemma4TextConfig(
        vocab_size=vocabulary,
        vocab_size_per_layer_input=vocabulary,
        hidden_size=64,
        hidden_size_per_layer_input=16,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        global_head_dim=64,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=512,
        max_position_embeddings=MAX_CONTEXT_TOKENS,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    model = Gemma4ForCausalLM(config).to(torch.bfloat16)
    model.config.dtype = "bfloat16"
    generation = GenerationConfig(
        bos_token_id=bos,
        eos_token_id=[eos, turn],
        pad_token_id=pad,
        do_sample=True,
        temperature=1.0,
        top_k=64,
        top_p=0.95,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as temporary:
        tokenizer.save_pretrained(temporary)
        model.save_pretrained(temporary)
        generation.save_pretrained(temporary)
        # A folder with a config.json counts as whole, so that file is moved last.
        for file in sorted(Path(temporary).iterdir(), key=lambda f: f.name == "config.json"):
            file.replace(folder / file.name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"Made a Gemma 4 of {parameters:,} parameters and {vocabulary} tokens: {folder}")


if __name__ == "__main__":
    make_model(Path(sys.argv[1]).absolute())

"""vLLM's command line, wherever it stands, and the simulator that plays it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backends.core.errors import NotFoundError
from backends.knowledge.checkpoints import Checkpoint, find_checkpoint
from backends.knowledge.targets import TargetProfile

# vLLM's flags that the simulator takes as they are.
_PASSED = (
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--gpu-memory-utilization",
    "--tensor-parallel-size",
)


@dataclass(frozen=True)
class VllmCommand:
    """vLLM's arguments, wherever in a template or command line they stand.

    Attributes:
        model: `--model`, or what `vllm serve` is given.
        flags: Flag (with dashes) -> values.
    """

    model: str
    flags: Mapping[str, tuple[str, ...]]

    def value(self, flag: str, default: str = "") -> str:
        """The first value of a flag."""
        values = self.flags.get(flag)
        return values[0] if values else default


def parse_vllm(words: Sequence[str], env: Mapping[str, str]) -> VllmCommand:
    """Read a command line: `vllm serve M …`, `python -m … --model M …`, or `bash -c` of either.

    Args:
        words: The command line.
        env: Its environment, for variables in the model's name.
    """
    words = list(words)
    shell = next((i for i, word in enumerate(words) if word in {"-c", "-lc"}), None)
    if shell is not None and shell + 1 < len(words):
        try:
            words = shlex.split(words[shell + 1])
        except ValueError:
            words = words[shell + 1].split()
    if "serve" in words:
        words = words[words.index("serve") + 1 :]
    elif "-m" in words:
        words = words[words.index("-m") + 2 :]
    flags: dict[str, tuple[str, ...]] = {}
    model = ""
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--"):
            model = model or word
            continue
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        values = [value] if equals else []
        while not equals and index < len(words) and not words[index].startswith("--"):
            values.append(words[index])
            index += 1
        flags[name] = tuple(values)
    model = flags["--model"][0] if flags.get("--model") else model
    return VllmCommand(_expanded(model or env.get("MODEL", ""), env), flags)


def served_checkpoint(command: VllmCommand) -> Checkpoint | None:
    """The checkpoint of the table that a command's model stands for."""
    if not command.model:
        return None
    try:
        found = find_checkpoint(command.model)
    except NotFoundError:
        return None
    if command.value("--quantization") == "fp8" and found.weight_format == "bf16":
        try:
            return find_checkpoint(f"{found.name}-fp8")
        except NotFoundError:
            return found
    return found


def simulator_argv(
    profile: TargetProfile, checkpoint: Checkpoint | None, command: VllmCommand
) -> list[str]:
    """The simulator's command for it, without its socket and speed."""
    name = checkpoint.name if checkpoint else profile.checkpoint
    argv = [
        sys.executable,
        "-m",
        "backends.serving.simulator",
        f"--profile={profile.name}",
        f"--checkpoint={name}",
        "--admission-cap=0",
        f"--kv-cache-dtype={command.value('--kv-cache-dtype', 'auto')}",
    ]
    if command.model:
        argv.append(f"--model={command.model}")
    served = command.flags.get("--served-model-name") or (command.model or name,)
    argv += ["--served-model-name", *served]
    for flag in _PASSED:
        value = command.value(flag)
        if value:
            argv.append(f"{flag}={value}")
    automatic = "--enable-auto-tool-choice" in command.flags
    tools = command.value("--tool-call-parser")
    argv.append(f"--tool-call-parser={'gemma4' if automatic and tools == 'gemma4' else ''}")
    reasoning = command.value("--reasoning-parser")
    argv.append(f"--reasoning-parser={'gemma4' if reasoning == 'gemma4' else ''}")
    if "--no-enable-prefix-caching" in command.flags:
        argv.append("--no-enable-prefix-caching")
    for flag in ("--language-model-only", "--enable-prompt-tokens-details"):
        if flag in command.flags:
            argv.append(flag)
    return argv


def _expanded(text: str, env: Mapping[str, str]) -> str:
    for name, value in env.items():
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return text

"""What vLLM would refuse after a minute of imports, said before anything is started.

Each check needs files, sockets and arithmetic only, and refuses only what is certain or obvious:
a start that might work is let through, with a warning.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.core.errors import DevopsError, InvalidInputError, NotFoundError
from backends.serving.local_machine import LocalMachine
from backends.serving.vllm_process import (
    CPU_OVERHEAD_GIB,
    TINY_GIB,
    LocalModel,
    VllmServeSpec,
    check_extra_args,
    cpu_kv_gib,
    read_model,
    runs_on_cpu,
)
from backends.serving.vllm_program import POINT_AT_VLLM, VllmProgram, find_program

DEFAULT_GPU_MEMORY_UTILIZATION = 0.92  # vLLM 0.32
_BYTES_PER_ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2}
# Only names that surely generate no text: several that do end in "Model".
_NO_TEXT = re.compile(
    r"For(?:SequenceClassification|TokenClassification|QuestionAnswering|MaskedLM"
    r"|ImageClassification|AudioClassification|CTC)$|(?:Bert|Roberta|MPNet|Deberta\w*)Model$"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason not to start, or to think twice.

    Args:
        check: executable, arguments, device, port, model, memory, tensor_parallel or context.
        problem: What is wrong, with the figures.
        next_action: The setting to change.
    """

    check: str
    problem: str
    next_action: str


@dataclass(frozen=True, slots=True)
class Preflight:
    """All findings at once: `refusals` forbid the start, `warnings` do not."""

    refusals: tuple[Finding, ...]
    warnings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True when nothing forbids the start."""
        return not self.refusals

    def raise_if_refused(self) -> None:
        """Raise all refusals as one error.

        Raises:
            InvalidInputError: The start would fail. `next_action` answers the first refusal.
        """
        if self.refusals:
            problems = " ".join(finding.problem for finding in self.refusals)
            raise InvalidInputError(
                self.refusals[0].check,
                f"vLLM would not start. {problems}",
                next_action=" ".join(finding.next_action for finding in self.refusals),
            )


def preflight(
    spec: VllmServeSpec,
    machine: LocalMachine,
    environ: Mapping[str, str] = os.environ,
) -> Preflight:
    """Check everything that can be checked without starting vLLM.

    Args:
        spec: What is to be served.
        machine: From `inspect_machine`.
        environ: The environment vLLM will inherit.
    """
    refusals: list[Finding] = []
    warnings: list[Finding] = []
    try:
        check_extra_args(spec.extra_args)
    except DevopsError as error:
        refusals.append(Finding("arguments", error.message, error.next_action))
    program: VllmProgram | None = None
    try:
        program = find_program(spec.executable, environ)
    except NotFoundError as error:
        refusals.append(Finding("executable", error.message, error.next_action))
    model = read_model(spec.model)
    on_cpu = not machine.accelerators
    if program is not None:
        on_cpu = runs_on_cpu(program, machine, environ)
        if program.problem:
            refusals.append(Finding("executable", program.problem, POINT_AT_VLLM))
        elif program.version is None:
            warnings.append(
                Finding(
                    "executable",
                    f"The version of {program.path} cannot be read from its files.",
                    f"{program.path} --version tells it, in about ten seconds.",
                )
            )
        refusals += _check_device(program, machine, on_cpu=on_cpu)
    refusals += _check_port(spec.host, spec.port)
    if model is not None:
        given = {argument.partition("=")[0].replace("_", "-") for argument in spec.extra_args}
        refusals += _check_files(model, given)
        if model.config:
            refusals += _check_config(spec, model, given, environ)
            check_memory = _check_ram if on_cpu else _check_accelerators
            refusals += check_memory(spec, machine, model, environ)
    elif _looks_like_a_path(spec.model):
        refusals.append(
            Finding(
                "model",
                f"There is no folder {spec.model}.",
                "Set `model` to a folder with config.json, tokenizer and safetensors files, or to "
                "a Hugging Face id (organisation/name).",
            )
        )
    else:
        warnings += _warn_of_download(spec.model, environ)
        if environ.get("HF_HUB_OFFLINE") == "1":
            refusals.append(
                Finding(
                    "model",
                    f"{spec.model} is not in the local cache and HF_HUB_OFFLINE=1 forbids to "
                    "download it.",
                    "Unset HF_HUB_OFFLINE, or download it first and set `model` to the folder.",
                )
            )
    if not on_cpu:
        refusals += _check_tensor_parallel(spec, machine)
    if not _is_loopback(spec.host) and spec.api_key is None and not environ.get("VLLM_API_KEY"):
        warnings.append(
            Finding(
                "arguments",
                f"Anyone who reaches {spec.host}:{spec.port} may use the model: there is no key.",
                "Set VLLM_API_KEY, or `host` to 127.0.0.1.",
            )
        )
    return Preflight(tuple(refusals), tuple(warnings))


def _check_device(
    program: VllmProgram, machine: LocalMachine, *, on_cpu: bool
) -> Iterator[Finding]:
    # Intel GPUs show no device file that is theirs alone, so their builds are let through.
    if not on_cpu and not machine.accelerators and "xpu" not in (program.version or ""):
        yield Finding(
            "device",
            f"{program.path} is vLLM {program.version}, built for accelerators, and this machine "
            "shows none (no /dev/nvidia*, /dev/kfd, /dev/accel* or /dev/vfio).",
            "Check the driver with nvidia-smi and that the container was given the device, or set "
            "VLLM_DEVOPS_VLLM_BIN to a CPU build.",
        )


def _check_port(host: str, port: int) -> Iterator[Finding]:
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        yield Finding("port", f"{host} is no address here: {error}.", "Set `host` to 127.0.0.1.")
        return
    try:
        _bind(address, reuse=False)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            yield from _explain_taken(address, host, port)
        elif error.errno == errno.EACCES:
            yield Finding("port", f"Port {port} needs root.", "Choose a `port` of 1024 or more.")
        else:
            yield Finding("port", f"{host}:{port}: {error}.", "Set `host` to 127.0.0.1.")


_Address = tuple[Any, ...]


def _bind(address: _Address, *, reuse: bool) -> None:
    with socket.socket(address[0], address[1]) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address[4])


def _explain_taken(address: _Address, host: str, port: int) -> Iterator[Finding]:
    action = "Choose another `port`, or stop what listens there."
    try:
        _bind(address, reuse=True)
    except OSError:
        yield Finding("port", f"Port {port} of {host} is in use{_owner_of(port)}.", action)
        return
    # Two things look so: connections that ended a moment ago, which vLLM's own bind ignores, and
    # a server that has its port but does not listen yet, as vLLM until its model is loaded.
    if not _connections(port):
        yield Finding("port", f"Port {port} of {host} is held by a server still starting.", action)


def _owner_of(port: int) -> str:
    import psutil

    for status, pid in _connections(port):
        if status == psutil.CONN_LISTEN and pid:
            with contextlib.suppress(psutil.Error):  # it may be another user's, or gone
                return f" by {psutil.Process(pid).name()} (pid {pid})"
    return ""


def _connections(port: int) -> list[tuple[str, int | None]]:
    """State and process of the TCP sockets on a local port; empty where that may not be seen."""
    import psutil

    try:
        seen = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    return [(c.status, c.pid) for c in seen if c.laddr and c.laddr.port == port]


def _check_files(model: LocalModel, given: set[str]) -> Iterator[Finding]:
    folder = model.folder
    whole = "Download or stage the whole checkpoint again."
    if not model.config:
        yield Finding(
            "model",
            f"{folder} has no readable config.json.",
            "Set `model` to the folder that holds config.json, the tokenizer and the safetensors "
            "files.",
        )
        return
    weights = sorted(folder.glob("*.safetensors"))
    others = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.gguf")]
    if not weights and not others and "--load-format" not in given:
        yield Finding("model", f"{folder} holds no weights (*.safetensors).", whole)
    pointers = [file.name for file in weights if _is_lfs_pointer(file)]
    if pointers:
        yield Finding(
            "model",
            f"{', '.join(pointers[:3])} in {folder} are Git LFS pointers, not weights.",
            "Run `git lfs pull` there.",
        )
    missing = sorted(_indexed(folder) - {file.name for file in weights})
    if missing:
        yield Finding(
            "model",
            f"{folder} lacks {len(missing)} weights files its index names: "
            f"{', '.join(missing[:3])}.",
            whole,
        )
    tokenizers = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")
    if given.isdisjoint({"--tokenizer", "--skip-tokenizer-init"}) and not any(
        (folder / name).exists() for name in tokenizers
    ):
        yield Finding("model", f"{folder} holds no tokenizer.", whole)


def _is_lfs_pointer(file: Path) -> bool:
    if file.stat().st_size > 1024:
        return False
    return file.read_bytes().startswith(b"version https://git-lfs")


def _indexed(folder: Path) -> set[str]:
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
        return {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no index: one file
        return set()


def _check_config(
    spec: VllmServeSpec, model: LocalModel, given: set[str], environ: Mapping[str, str]
) -> Iterator[Finding]:
    architectures = model.config.get("architectures") or []
    if given.isdisjoint({"--runner", "--convert", "--task", "--hf-overrides", "--model-impl"}):
        name = str(architectures[0]) if architectures else ""
        if not name or _NO_TEXT.search(name):
            what = f"is a {name}, which generates no text" if name else "names no architecture"
            yield Finding(
                "model",
                f"The model in {model.folder} {what}.",
                "Set `model` to a checkpoint that generates (…ForCausalLM or "
                "…ForConditionalGeneration).",
            )
    heads = model.text_config.get("num_attention_heads")
    if isinstance(heads, int) and heads % spec.tensor_parallel_size:
        yield Finding(
            "tensor_parallel",
            f"The model's {heads} attention heads cannot be shared evenly by "
            f"{spec.tensor_parallel_size}.",
            f"Set `tensor_parallel_size` to a divisor of {heads}.",
        )
    limit = model.text_config.get("max_position_embeddings")
    stretched = _has_factor(model.text_config) or environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    asked = spec.max_model_len or 0
    if isinstance(limit, int) and asked > limit and not stretched:
        yield Finding(
            "context",
            f"max_model_len {asked} is more than the model's {limit} (max_position_embeddings).",
            f"Set `max_model_len` to {limit} or less.",
        )


def _has_factor(config: Mapping[str, Any]) -> bool:
    """Whether rope scaling stretches the context beyond max_position_embeddings."""
    text = json.dumps([config.get("rope_scaling"), config.get("rope_parameters")])
    return '"factor"' in text


def _check_ram(
    spec: VllmServeSpec, machine: LocalMachine, model: LocalModel, environ: Mapping[str, str]
) -> Iterator[Finding]:
    weights_gib = model.weights_gib * _growth(spec, model)
    kv_gib = float(cpu_kv_gib(machine, weights_gib, tiny=weights_gib < TINY_GIB))
    if environ.get("VLLM_CPU_KVCACHE_SPACE", "").isdigit():
        kv_gib = float(environ["VLLM_CPU_KVCACHE_SPACE"])
    elif spec.gpu_memory_utilization is not None:
        share_gib = machine.ram_total_gib * spec.gpu_memory_utilization
        kv_gib = max(0.0, share_gib - weights_gib - CPU_OVERHEAD_GIB)
    needed_gib = weights_gib + CPU_OVERHEAD_GIB + kv_gib
    if needed_gib > machine.ram_available_gib:
        yield Finding(
            "memory",
            f"About {needed_gib:.1f} GiB of RAM are needed (weights {weights_gib:.1f}, vLLM "
            f"{CPU_OVERHEAD_GIB:.0f}, KV cache {kv_gib:.1f}); {machine.ram_available_gib:.1f} are "
            "free.",
            "Stop something, serve a smaller checkpoint, lower `gpu_memory_utilization` or "
            "VLLM_CPU_KVCACHE_SPACE where set, or use a machine with more RAM.",
        )


def _check_accelerators(
    spec: VllmServeSpec, machine: LocalMachine, model: LocalModel, _environ: Mapping[str, str]
) -> Iterator[Finding]:
    weights_gib = model.weights_gib * _growth(spec, model)
    share = spec.gpu_memory_utilization or DEFAULT_GPU_MEMORY_UTILIZATION
    for accelerator in machine.accelerators[: spec.tensor_parallel_size]:
        total, free = accelerator.total_gib, accelerator.free_gib
        if total is None or free is None:
            continue
        part_gib = weights_gib / spec.tensor_parallel_size
        if part_gib > total * share:
            yield Finding(
                "memory",
                f"{part_gib:.1f} GiB of weights do not fit {share:.0%} of the {total:.1f} GiB of "
                f"{accelerator.name}.",
                "Serve a smaller or quantised checkpoint, raise `tensor_parallel_size` or "
                "`gpu_memory_utilization`, or use a larger accelerator.",
            )
        elif free < total * share:
            fits = int(free / total * 100) / 100
            yield Finding(
                "memory",
                f"{free:.1f} of {total:.1f} GiB of {accelerator.name} are free; vLLM wants "
                f"{share:.0%} and stops when it does not get it.",
                f"Stop what holds the rest (nvidia-smi), or set `gpu_memory_utilization` to "
                f"{fits:.2f} or less.",
            )


def _growth(spec: VllmServeSpec, model: LocalModel) -> float:
    """How much larger the weights are in memory than on disk, because of `dtype`."""
    if model.config.get("quantization_config"):
        return 1.0
    stored = str(model.text_config.get("dtype") or model.text_config.get("torch_dtype") or "")
    stored = stored or str(model.config.get("dtype") or model.config.get("torch_dtype") or "")
    # "auto" serves float32 checkpoints in a 16-bit type, as they are otherwise.
    loaded = spec.dtype if spec.dtype != "auto" else stored.replace("float32", "bfloat16")
    return _BYTES_PER_ELEMENT.get(loaded, 2) / _BYTES_PER_ELEMENT.get(stored, 2)


def _check_tensor_parallel(spec: VllmServeSpec, machine: LocalMachine) -> Iterator[Finding]:
    count = len(machine.accelerators)
    # One device file stands for all GPUs of an AMD machine.
    if count and spec.tensor_parallel_size > count and machine.accelerators[0].kind != "amd":
        yield Finding(
            "tensor_parallel",
            f"{spec.tensor_parallel_size} accelerators were asked for; this machine has {count}.",
            f"Set `tensor_parallel_size` to {count} or less.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _looks_like_a_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") != 1


def _warn_of_download(model: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    token = "set" if environ.get("HF_TOKEN") else "not set"
    yield Finding(
        "model",
        f"{model} is not in the local cache: vLLM downloads it first (HF_TOKEN is {token}; gated "
        "models need one).",
        "Nothing, if that is wanted; it can take many minutes.",
    )

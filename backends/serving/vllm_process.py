"""The exact command and environment of a real `vllm serve` on this machine.

Nothing is started here. `build_command` chooses what the machine and the checkpoint call for, and
says why in `notes`; `vllm_preflight` refuses, before anything runs, what vLLM would refuse after a
minute of imports.

Flags and variables as of vLLM 0.32.0; the choices for CPUs were measured on 2026-11-30 (2 cores,
no GPU, the CPU build, a model of 486 thousand parameters).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from backends.core.errors import InvalidInputError
from backends.serving.local_machine import LocalMachine
from backends.serving.vllm_program import VllmProgram, find_program

GIB = 1024**3

# A checkpoint this small is for tests: plumbing matters, not the speed of its mathematics.
TINY_GIB = 0.25
# What the CPU build holds beside weights and KV cache: 2.1 GB for a model of 1.3 MB.
CPU_OVERHEAD_GIB = 2.0
MAX_CPU_KV_GIB = 8

# Flags of `VllmServeSpec`'s own fields; given again they would contradict what was planned.
_OWNED_FLAGS = {
    "--host": "host",
    "--port": "port",
    "--model": "model",
    "--served-model-name": "served_model_name",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--dtype": "dtype",
    "--gpu-memory-utilization": "gpu_memory_utilization",
    "--tensor-parallel-size": "tensor_parallel_size",
    "-tp": "tensor_parallel_size",
}
_SECRET_FLAGS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}


class VllmServeSpec(BaseModel):
    """What to serve and how. None leaves the choice to vLLM or to this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1, description="A directory here, or a Hugging Face id.")
    executable: str | None = Field(
        None,
        description="A vllm program, a Python interpreter that has vllm, or a virtual "
        "environment's folder. None: vllm on PATH.",
    )
    served_model_name: str | None = Field(None, min_length=1)
    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=1, le=65535)
    max_model_len: int | None = Field(None, ge=1, description="Tokens, prompt and answer.")
    max_num_seqs: int | None = Field(None, ge=1, description="Requests served at once.")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=1, description="Share of the accelerator's memory; on a CPU, of RAM."
    )
    tensor_parallel_size: int = Field(1, ge=1)
    api_key: SecretStr | None = Field(
        None, description="Reaches vLLM by VLLM_API_KEY, never by its command line."
    )
    extra_args: tuple[str, ...] = Field((), description="From the operator, handed on as they are.")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """What a checkpoint's folder says. `config` is config.json, empty where there is none."""

    folder: Path
    config: Mapping[str, Any]

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of the configuration."""
        inner = self.config.get("text_config")
        return inner if isinstance(inner, dict) else self.config

    @property
    def is_gemma4(self) -> bool:
        """By `model_type`, never by the folder's name: gemma-2b has been served as gemma-4."""
        return str(self.config.get("model_type", "")).startswith("gemma4")

    @property
    def weights_gib(self) -> float:
        """Size of the safetensors files; 0 where there are none."""
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors")) / GIB


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """What to run.

    Args:
        argv: The whole command; no shell, no secret.
        env: Variables to set beside the environment that is there. May hold the API key, so it
            is left out of `repr`; show `shown_env` instead.
        notes: Why each choice was made that the spec did not ask for.
        program: The vLLM that runs.
        on_cpu: Whether it will serve from the CPU.
        url: Where it will answer, for a client on this machine.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    notes: tuple[str, ...]
    program: VllmProgram
    on_cpu: bool
    url: str

    @property
    def shown_env(self) -> dict[str, str]:
        """`env` with the API key masked."""
        return {name: "***" if name == "VLLM_API_KEY" else v for name, v in self.env.items()}


def read_model(model: str) -> LocalModel | None:
    """Read config.json of a checkpoint here: a folder, or an id in the local Hugging Face cache.

    Returns:
        None for an id that is not here. A folder without a readable config.json has an empty one.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        from backends.knowledge.model_files import hub_cache

        name = f"models--{model.replace('/', '--')}"
        cached = sorted(hub_cache().glob(f"{name}/snapshots/*/config.json"))
        if not cached:
            return None
        folder = cached[-1].parent
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        config = {}
    return LocalModel(folder, config if isinstance(config, dict) else {})


def _is_gemma4(name: str, model: LocalModel | None) -> bool:
    """By config.json where it is here, else by the catalogue; never by what a name looks like."""
    if model is not None:
        return model.is_gemma4
    from backends.knowledge.checkpoints import CHECKPOINTS

    return any(known.repo_id == name for known in CHECKPOINTS.values())


def runs_on_cpu(
    program: VllmProgram, machine: LocalMachine, environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether this vLLM will serve from the CPU here: by VLLM_TARGET_DEVICE, its build, or want.

    vLLM 0.32 takes the CPU only if told so or built so, or on macOS; it never falls back to it.
    """
    if environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        return True
    if program.cpu_build is not None:
        return program.cpu_build
    return not machine.accelerators


def build_command(
    spec: VllmServeSpec,
    machine: LocalMachine,
    environ: Mapping[str, str] = os.environ,
) -> ServeCommand:
    """The command and environment that serve `spec` on `machine`.

    Args:
        spec: What to serve.
        machine: From `inspect_machine`.
        environ: The environment the process will inherit; what the operator set there stands.

    Raises:
        NotFoundError: No vLLM was found.
        InvalidInputError: An extra argument carries a secret or contradicts a field.
    """
    check_extra_args(spec.extra_args)
    program = find_program(spec.executable, environ)
    model = read_model(spec.model)
    on_cpu = runs_on_cpu(program, machine, environ)
    is_folder = Path(spec.model).expanduser().is_dir()
    served = str(Path(spec.model).expanduser().absolute()) if is_folder else spec.model
    builder = _Builder(spec, environ)
    if is_folder:
        builder.set_env(
            "HF_HUB_OFFLINE", "1", "the model is a folder here, so no hub is asked for anything"
        )
    builder.set_env("VLLM_NO_USAGE_STATS", "1", "vLLM sends no usage statistics")
    builder.set_env("DO_NOT_TRACK", "1", "")
    if not builder.gave("--nnodes", "--node-rank", "--data-parallel-address"):
        builder.set_env(
            "VLLM_HOST_IP", "127.0.0.1", "the engine's processes talk to each other on loopback"
        )
    if spec.api_key is not None:
        builder.env["VLLM_API_KEY"] = spec.api_key.get_secret_value()
        builder.note("VLLM_API_KEY: /v1/* asks for the key; /health and /metrics never do")
    if on_cpu:
        _choose_for_cpu(builder, machine, model)
    if _is_gemma4(spec.model, model):
        _choose_for_gemma4(builder)
    argv = [*program.argv, "serve", served, "--host", spec.host, "--port", str(spec.port)]
    for flag, value in (
        ("--served-model-name", spec.served_model_name),
        ("--dtype", spec.dtype if spec.dtype != "auto" else None),
        ("--max-model-len", spec.max_model_len),
        ("--max-num-seqs", spec.max_num_seqs),
        ("--gpu-memory-utilization", spec.gpu_memory_utilization),
        ("--tensor-parallel-size", spec.tensor_parallel_size),
    ):
        if value is not None and not (flag == "--tensor-parallel-size" and value == 1):
            argv += [flag, str(value)]
    argv += [*builder.args, *spec.extra_args]
    return ServeCommand(
        argv=tuple(argv),
        env=builder.env,
        notes=tuple(builder.notes),
        program=program,
        on_cpu=on_cpu,
        url=f"http://{_client_host(spec.host)}:{spec.port}",
    )


def check_extra_args(extra_args: tuple[str, ...]) -> None:
    """Refuse extra arguments that carry a secret or repeat a field of the spec.

    argparse takes any unambiguous beginning of a flag, so beginnings count as the flag.

    Raises:
        InvalidInputError: Names the argument, and what to use instead; never its value.
    """
    for argument in extra_args:
        name = argument.partition("=")[0].replace("_", "-")
        if not name.startswith("-") or len(name) < 3:
            continue
        for flag, variable in _SECRET_FLAGS.items():
            if flag.startswith(name):
                raise InvalidInputError(
                    "extra_args",
                    f"{name} would put a secret on the command line, where every user of this "
                    "machine can read it.",
                    allowed=f"the environment variable {variable}",
                )
        for flag, owner in _OWNED_FLAGS.items():
            if flag == name or (name.startswith("--") and flag.startswith(name)):
                raise InvalidInputError(
                    "extra_args", f"{name} belongs to the field {owner}.", allowed=owner
                )


class _Builder:
    """Collects arguments and variables; never overrides what the operator said."""

    def __init__(self, spec: VllmServeSpec, environ: Mapping[str, str]) -> None:
        self.spec = spec
        self.environ = environ
        self.args: list[str] = []
        self.env: dict[str, str] = {}
        self.notes: list[str] = []
        self._given = {a.partition("=")[0].replace("_", "-") for a in spec.extra_args}

    def note(self, text: str) -> None:
        self.notes.append(text)

    def gave(self, *flags: str) -> bool:
        """Whether the operator gave one of these flags."""
        return not self._given.isdisjoint(flags)

    def set_env(self, name: str, value: str, why: str) -> None:
        """Set a variable unless the operator's environment has it."""
        if self.environ.get(name):
            if self.environ[name] != value:
                self.note(f"{name}={self.environ[name]} is kept from the environment")
            return
        self.env[name] = value
        if why:
            self.note(f"{name}={value}: {why}")

    def add_arg(self, flag: str, *values: str, why: str, unless: tuple[str, ...] = ()) -> None:
        """Add a flag unless the operator gave it, or one of `unless`."""
        if self.gave(flag, flag.replace("--", "--no-", 1), *unless):
            return
        self.args += [flag, *values]
        self.note(f"{' '.join((flag, *values))}: {why}")


def _choose_for_gemma4(builder: _Builder) -> None:
    # vLLM 0.32's CPU build takes all three with the tiny test model too, and answers the same.
    builder.add_arg(
        "--enable-auto-tool-choice",
        why="the model is a Gemma 4; without it tool calls come back as text",
    )
    builder.add_arg("--tool-call-parser", "gemma4", why="reads Gemma 4's tool calls")
    builder.add_arg("--reasoning-parser", "gemma4", why="keeps thoughts out of the answer's text")


def _choose_for_cpu(builder: _Builder, machine: LocalMachine, model: LocalModel | None) -> None:
    weights_gib = model.weights_gib if model is not None else 0.0
    tiny = model is not None and weights_gib < TINY_GIB
    if builder.spec.gpu_memory_utilization is None:
        kv_gib = cpu_kv_gib(machine, weights_gib, tiny=tiny)
        builder.set_env(
            "VLLM_CPU_KVCACHE_SPACE",
            str(kv_gib),
            f"{kv_gib} GiB for the KV cache; by itself vLLM would take 92 % of all RAM",
        )
    else:
        builder.note("gpu_memory_utilization: on a CPU build a share of this machine's RAM")
    if builder.spec.tensor_parallel_size > 1 or not (tiny or machine.cpus <= 2):
        builder.note(
            f"serving from {machine.cpus} CPU cores: vLLM binds its own threads and compiles; "
            "expect a few tokens per second"
        )
        return
    # Measured with two cores, one request at a time: 200 tokens/s this way, 24 with spinning
    # OpenMP threads that starve the API server, 149 with the worker in a process of its own.
    builder.set_env("OMP_NUM_THREADS", "1", "more threads spin and starve the API server here")
    builder.set_env(
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "0",
        "engine and worker share a process: 12 s less to start, 0.7 GB less RAM",
    )
    builder.add_arg(
        "--distributed-executor-backend", "uni", why="goes with the shared process on a CPU"
    )
    builder.add_arg(
        "--enforce-eager",
        why="compiling takes a minute of start-up and gains nothing here",
        unless=("--compilation-config", "-O", "-cc"),
    )


def cpu_kv_gib(machine: LocalMachine, weights_gib: float, *, tiny: bool) -> int:
    """Whole GiB of RAM to give the KV cache on a CPU: half of what is left, 1 to 8; 1 for tests."""
    if tiny:
        return 1
    left_gib = machine.ram_available_gib - weights_gib - CPU_OVERHEAD_GIB
    return max(1, min(MAX_CPU_KV_GIB, int(left_gib / 2)))


def _client_host(host: str) -> str:
    """Where a client here finds a server that listens on `host`."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 (what the operator asked for, made reachable)
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host

"""How the two engines of `local` are described and started, and what they are expected to take."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from backends.base import DeploySpec
from backends.clouds.process import run
from backends.core.errors import CloudError, ConflictError, InvalidInputError, NotFoundError
from backends.knowledge.checkpoints import CHECKPOINTS, find_checkpoint
from backends.knowledge.targets import PROFILES, TargetProfile, find_profile

if TYPE_CHECKING:
    from backends.serving.local_machine import LocalMachine

HOST = "127.0.0.1"
PORTS = range(8000, 10000)
DEFAULT_PROFILE = "cloudrun-l4"
# A reference start takes minutes; by default a rehearsal of it takes about ten seconds.
DEFAULT_STARTUP_SPEED = 25.0


class LocalSpec(DeploySpec):
    """Options of `local`."""

    engine: Literal["simulator", "vllm"] | None = Field(
        None, description="simulator (no GPU, nothing to download) or vllm (a real vllm serve)."
    )
    port: int | None = Field(None, ge=1, le=65535, description="Port on 127.0.0.1; default: free.")
    served_model_name: str | None = Field(None, description="Name the model is served under.")
    profile: str | None = Field(
        None, description="simulator: the target whose timing it imitates, e.g. cloudrun-l4."
    )
    admission_cap: int | None = Field(
        None,
        ge=0,
        description="simulator: requests let in at once, as Cloud Run's --concurrency; 0: no cap.",
    )
    startup_speed: float | None = Field(
        None,
        ge=0.01,
        le=1_000_000,
        description="simulator: divides the start-up time; 1 is as slow as the target.",
    )
    fail: str | None = Field(
        None, description="simulator: fail on purpose (oom, kv, bad-model, crash-after:N, stall)."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] | None = Field(
        None, description="vllm: --dtype."
    )
    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=1, description="vllm: --gpu-memory-utilization."
    )
    tensor_parallel_size: int | None = Field(
        None, ge=1, description="vllm: --tensor-parallel-size."
    )
    extra_args: list[str] | None = Field(
        None, description="vllm: further arguments of vllm serve, one item a word."
    )


@dataclass(frozen=True)
class Command:
    """How an engine is started.

    Attributes:
        argv: Program and arguments.
        env: Variables set for it.
        served_name: The name the model is served under.
        notes: Choices made for this machine, each with its reason.
        warnings: What the reader should know first.
        resolved: Values of settings that were not said.
        expected_s: Usual seconds of each start-up phase, where known.
    """

    argv: tuple[str, ...]
    served_name: str
    env: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    resolved: dict[str, object] = field(default_factory=dict)
    expected_s: dict[str, float] = field(default_factory=dict)


def free_port(taken: Collection[int] = ()) -> int:
    """A port on 127.0.0.1 that is free now and stays ours while a deployment is stopped.

    Chosen below the range from which the kernel gives ports to outgoing connections (32768 and up
    on Linux): one of those may be in somebody's use when the engine is started again.

    Args:
        taken: Ports that belong to other deployments.

    Raises:
        ConflictError: None is free.
    """
    for port in random.sample(PORTS, len(PORTS)):
        if port not in taken and port_is_free(port):
            return port
    raise ConflictError(f"No port from {PORTS.start} to {PORTS.stop - 1} is free on {HOST}.")


def port_is_free(port: int) -> bool:
    """Whether nothing listens on the port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def simulator_command(spec: LocalSpec, port: int) -> Command:
    """The simulator as a process of its own.

    Args:
        spec: The request.
        port: Where it listens.

    Raises:
        InvalidInputError: An unknown profile or checkpoint, or an option of the other engine.
    """
    _refuse_foreign(
        spec, "simulator", "dtype", "gpu_memory_utilization", "tensor_parallel_size", "extra_args"
    )
    profile = _profile(spec.profile or DEFAULT_PROFILE)
    checkpoint = _checkpoint(spec.model or profile.checkpoint)
    served = spec.served_model_name or checkpoint
    speed = spec.startup_speed if spec.startup_speed is not None else DEFAULT_STARTUP_SPEED
    seqs = spec.max_num_seqs or profile.max_num_seqs
    length = spec.max_model_len or profile.max_model_len
    cap = profile.admission_cap if spec.admission_cap is None else spec.admission_cap
    argv = [
        sys.executable,
        "-m",
        "backends.serving.simulator",
        f"--host={HOST}",
        f"--port={port}",
        f"--profile={profile.name}",
        f"--checkpoint={checkpoint}",
        f"--served-model-name={served}",
        f"--max-model-len={length}",
        f"--max-num-seqs={seqs}",
        f"--admission-cap={cap}",
        f"--startup-speed={speed:g}",
    ]
    if spec.fail is not None:
        argv.append(f"--fail={_failure(spec.fail)}")
    warnings: list[str] = []
    if 0 < cap < seqs:
        warnings.append(
            f"The platform admits {cap} requests at once, fewer than the {seqs} sequences the "
            "engine batches: throughput will stop rising there."
        )
    return Command(
        argv=tuple(argv),
        served_name=served,
        warnings=tuple(warnings),
        resolved={
            "profile": profile.name,
            "model": checkpoint,
            "max_model_len": length,
            "max_num_seqs": seqs,
            "admission_cap": cap,
            "startup_speed": speed,
        },
        expected_s=_expected_s(profile, speed),
    )


# A profile's start-up phases by the names the engine's log has for them.
_LOG_PHASES = {
    "provision": "starting",
    "container": "starting",
    "import": "starting_engine",
    "weights": "loading_weights",
    "compile": "profiling",
    "kv_cache": "profiling",
    "api": "starting_api",
}


def _expected_s(profile: TargetProfile, speed: float) -> dict[str, float]:
    expected: dict[str, float] = {}
    for phase in profile.startup:
        name = _LOG_PHASES[phase.name]
        expected[name] = expected.get(name, 0.0) + phase.seconds.value / speed
    return expected


async def this_machine() -> LocalMachine:
    """What this machine has for serving; NVIDIA's tool is asked where it is installed."""
    from backends.serving.local_machine import NVIDIA_SMI_ARGV, inspect_machine

    try:
        smi = await run(NVIDIA_SMI_ARGV, timeout_s=10)
    except CloudError:
        # Not installed, or hung: GPUs are then counted by their device files.
        return inspect_machine()
    return inspect_machine(smi.stdout if smi.code == 0 else None)


async def vllm_command(spec: LocalSpec, port: int, program: str | None) -> Command:
    """A real `vllm serve` on this machine, checked before anything is started.

    Args:
        spec: The request.
        port: Where it listens.
        program: The vllm program or an interpreter that has it; None looks on PATH.

    Raises:
        InvalidInputError: It would not start, with every reason; or an option of the simulator.
    """
    from backends.serving.vllm_preflight import preflight
    from backends.serving.vllm_process import VllmServeSpec, build_command

    _refuse_foreign(spec, "vllm", "profile", "admission_cap", "startup_speed", "fail")
    if not spec.model:
        raise InvalidInputError(
            "model", "is needed for engine=vllm.", allowed="a Hugging Face id or a model folder"
        )
    said = {
        "executable": program,
        "served_model_name": spec.served_model_name or _served_name(spec.model),
        "dtype": spec.dtype,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "gpu_memory_utilization": spec.gpu_memory_utilization,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "extra_args": tuple(spec.extra_args or ()),
    }
    given = {key: value for key, value in said.items() if value is not None}
    wanted = VllmServeSpec.model_validate({"model": spec.model, "host": HOST, "port": port} | given)
    machine = await this_machine()
    checked = await asyncio.to_thread(preflight, wanted, machine)
    checked.raise_if_refused()
    command = await asyncio.to_thread(build_command, wanted, machine)
    warnings = [f"{finding.problem} {finding.next_action}" for finding in checked.warnings]
    return Command(
        argv=command.argv,
        served_name=str(given["served_model_name"]),
        env=dict(command.env),
        notes=command.notes,
        warnings=tuple(warnings),
        resolved={"vllm": command.program.version or str(command.program.path)},
    )


def _served_name(model: str) -> str:
    """A folder is served under its last name, so that nobody needs its path."""
    return Path(model).name if Path(model).expanduser().is_dir() else model


def _refuse_foreign(spec: LocalSpec, engine: str, *options: str) -> None:
    for option in options:
        if getattr(spec, option) is not None:
            raise InvalidInputError(
                f"options.{option}", f"has no meaning for engine={engine}; leave it out."
            )


def _profile(name: str) -> TargetProfile:
    try:
        return find_profile(name)
    except NotFoundError as error:
        raise InvalidInputError(
            "options.profile", "is not a known profile.", allowed=", ".join(PROFILES)
        ) from error


def _failure(wanted: str) -> str:
    from backends.serving.simulator.config import CRASH_AFTER, FAILURES, Failure

    try:
        Failure.parse(wanted)
    except InvalidInputError as error:
        raise InvalidInputError(
            "options.fail",
            "is not a failure the simulator can play.",
            allowed=f"{', '.join(FAILURES)}, {CRASH_AFTER}:N",
        ) from error
    return wanted


def _checkpoint(model: str) -> str:
    name = model.rstrip("/").rpartition("/")[2]
    try:
        return find_checkpoint(name).name
    except NotFoundError as error:
        raise InvalidInputError(
            "model", "is not a checkpoint the simulator knows.", allowed=", ".join(CHECKPOINTS)
        ) from error

"""vLLM on a rehearsal machine: the simulator, after what the machine would have done to it.

Started as `python3 -m vllm.entrypoints.openai.api_server` (by the look-alike package that the
played pip installs) or by the played docker. What goes wrong follows from the machine: no swap, no
clamp, no driver, a torch without CUDA, an old vLLM.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from backends.core.errors import NotFoundError
from backends.knowledge.targets import GCE_T4, PROFILES, TPU_V6E, TargetProfile
from backends.rehearsal.cloud.hosts.machine import REPO, Json, Machine
from backends.rehearsal.cloud.vllm_command import (
    VllmCommand,
    parse_vllm,
    served_checkpoint,
    simulator_argv,
)

_PROFILE_BY_GPU = {"Tesla T4": GCE_T4.name, "NVIDIA L4": "cloudrun-l4"}
# Weights are first read into main memory: 7.68 GB are too few for 10.2 (GCE T4 article).
_FIRST = (
    "INFO 11-30 12:00:01 [api_utils.py:347] version {version}\n"
    "INFO 11-30 12:00:01 [api_utils.py:233] non-default args: {{'model': '{model}'}}\n"
)
_OUT_OF_SHARED_MEMORY = (
    "(EngineCore pid={pid}) ERROR 11-30 12:04:11 [core.py:1181] EngineCore failed to start.\n"
    "(EngineCore pid={pid}) triton.runtime.errors.OutOfResources: out of resource: shared memory, "
    "Required: 98304, Hardware limit: 65536. Reducing block sizes or `num_stages` may help.\n"
    "RuntimeError: Engine core initialization failed. See root cause above.\n"
)


_OLD = (
    "transformers.configuration_utils.AmbiguousGlobalPerLayerAttributeError: 'head_dim' is a "
    "per-layer attribute\n"
)
# TPU v6e repository: int8 is no choice, and w4a16 cannot be loaded (tpu-inference issue 3225).
_TPU_KV_TYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")
_NO_W4A16 = (
    "(EngineCore pid=1) ERROR 11-30 12:02:11 [core.py:1181] EngineCore failed to start.\n"
    "NotImplementedError: Unsupported compressed-tensors scheme: w4a16\n"
    "RuntimeError: Engine core initialization failed. See root cause above.\n"
)
_NO_KERNEL = (
    "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device\n"
)


def main(argv: list[str]) -> int:
    """Play it; returns the exit code where it does not become the simulator."""
    machine = Machine.here()
    state = machine.read()
    command = parse_vllm(argv, os.environ)
    version = os.environ.get("REHEARSAL_VLLM_VERSION", "0.30.0")
    _say(_FIRST.format(version=version, model=command.model or "?"))
    if _numbers(version) < (0, 27) and "gemma-4" in command.model.lower():
        _say(_OLD)
        return 1
    trouble = (
        _tpu_trouble(machine, command)
        if state.get("tpu")
        else _trouble(machine, state, argv, command.model, command.value("--load-format"))
    )
    if trouble is not None:
        return trouble
    profile = _profile(state)
    try:
        checkpoint = served_checkpoint(command)
    except NotFoundError:
        checkpoint = None
    port = command.value("--port", "8000")
    with machine.change() as kept:
        kept["engines"] = {
            **kept.get("engines", {}),
            str(os.getpid()): {"started_at": time.time(), "port": port, "pid": os.getpid()},
        }
    key = command.value("--api-key") or os.environ.get("VLLM_API_KEY", "")
    start = [
        *simulator_argv(profile, checkpoint, command),
        f"--host={state['address']}",
        f"--port={port}",
        f"--startup-speed={state['speed']}",
    ]
    if state.get("tpu") and machine.fault("hbm") is not None:
        start.append("--fail=oom")
    os.chdir(REPO)
    env = {**os.environ, "VLLM_API_KEY": key, "PYTHONPATH": str(REPO)}
    os.execve(start[0], start, env)  # noqa: S606 (no shell is meant)
    return 1


def _trouble(
    machine: Machine, state: Json, argv: list[str], model: str, load_format: str
) -> int | None:
    if not state.get("driver_loaded"):
        _say(
            "RuntimeError: Failed to infer device type, please set the environment variable "
            "`VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging.\n"
        )
        return 1
    if "fastsafetensors" in (*argv, load_format):
        _say("[FAIL] framework hinted GPU runtime 'libcudart.so' but no GPU was found\n")
        return 1
    weights = served_checkpoint(parse_vllm(argv, os.environ))
    needed = 0.0 if weights is None else weights.disk_gb.value * 1e9
    memory = int(state["ram_mib"]) * 2**20 + sum(
        int(size) for size in state.get("swaps", {}).values()
    )
    if machine.fault("oom") is not None or needed * 0.85 > memory:
        return _out_of_memory(machine)
    capability = float((state.get("gpu") or {}).get("capability", "9.0"))
    if machine.fault("no-kernel") is not None:
        _say(_NO_KERNEL)
        return 1
    folder = os.environ.get("REHEARSAL_VLLM_FOLDER", "")
    if capability < 8 and (machine.fault("no-clamp") is not None or not _clamped(folder)):
        time.sleep(machine.seconds(60))
        _say(_OUT_OF_SHARED_MEMORY.format(pid=os.getpid()))
        return 1
    return None


def _tpu_trouble(machine: Machine, command: VllmCommand) -> int | None:
    kv = command.value("--kv-cache-dtype", "auto")
    if kv not in _TPU_KV_TYPES:
        _say(
            f"vllm serve: error: argument --kv-cache-dtype: invalid choice: {kv!r} (choose from "
            f"{', '.join(map(repr, _TPU_KV_TYPES))})\n"
        )
        return 2
    if "w4a16" in command.model.lower():
        _say(_NO_W4A16)
        return 1
    return _out_of_memory(machine) if machine.fault("oom") is not None else None


def _out_of_memory(machine: Machine) -> int:
    """The kernel ends it while weights are read into main memory."""
    _say("(EngineCore) INFO 11-30 12:01:30 [gpu_model_runner.py:4601] Starting to load model\n")
    _say("(EngineCore) INFO 11-30 12:01:31 [cuda.py:401] Loading model from scratch...\n")
    time.sleep(machine.seconds(20))
    pid = os.getpid()
    machine.log_kernel(
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,"
        f"global_oom,task=VLLM::EngineCor,pid={pid},uid=1000"
    )
    machine.log_kernel(
        f"Out of memory: Killed process {pid} (VLLM::EngineCor) total-vm:38011240kB, "
        "anon-rss:6939808kB, file-rss:1152kB, shmem-rss:0kB, UID:1000 pgtables:15936kB "
        "oom_score_adj:0"
    )
    os.kill(pid, 9)
    return 1


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _clamped(folder: str) -> bool:
    """Whether the installed kernel was clamped; the file of the look-alike package."""
    if not folder:
        return True
    path = Path(folder) / "v1/attention/ops/triton_unified_attention.py"
    return "Turing shared-memory clamp" in path.read_text(encoding="utf-8")


def _profile(state: Json) -> TargetProfile:
    if state.get("tpu"):
        return TPU_V6E
    return PROFILES[_PROFILE_BY_GPU.get((state.get("gpu") or {}).get("name", ""), GCE_T4.name)]


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The played pip: installs look-alikes of vLLM and torch into the user's packages.

They are as much as our programs look at: versions, the kernel's file with the structure of vLLM's,
`torch.cuda`, and an API server that is the simulator.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from backends.rehearsal.cloud.hosts.machine import REPO, Json, Machine

# What a plain installation gave on 2026-11-20 (GCE T4 article).
NEWEST = "0.29.0"
_OTHERS = {"torch": "2.13.0+cu130", "triton": "3.7.1", "transformers": "5.17.0"}
_ARCH_LIST = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]

_SERVER = """import os, sys
os.environ["REHEARSAL_VLLM_VERSION"] = {version!r}
os.environ["REHEARSAL_VLLM_FOLDER"] = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
os.environ["PYTHONPATH"] = {repo!r}
start = "import sys; from backends.rehearsal.cloud.hosts.engine import main; "
start += "sys.exit(main(sys.argv[1:]))"
os.execve({python!r}, [{python!r}, "-c", start, *sys.argv[1:]], os.environ)
"""
_TORCH = """import json, os
{broken}
class version:
    cuda = {cuda!r}
class cuda:
    @staticmethod
    def _state():
        with open(os.path.join(os.environ["VLLM_DEVOPS_SANDBOX"], "machine.json")) as file:
            return json.load(file)
    @staticmethod
    def is_available():
        state = cuda._state()
        return bool({cuda!r} and state.get("driver_loaded") and state.get("gpu"))
    @staticmethod
    def get_device_capability(device=None):
        return tuple(int(part) for part in cuda._state()["gpu"]["capability"].split("."))
    @staticmethod
    def get_device_name(device=None):
        return cuda._state()["gpu"]["name"]
    @staticmethod
    def get_arch_list():
        return {arches!r}
"""
KERNEL = '''"""Look-alike of vLLM's launcher of its unified attention kernel: the same structure."""

from typing import Any

import torch
from vllm.triton_utils import tl, triton


@triton.jit
def kernel_unified_attention(output_ptr, TILE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr):
    pass


def _get_tile_size(head_size: int, sliding_window: int, element_size: int, is_prefill: bool):
    if is_prefill:
        return 32
    return 16 if element_size >= 2 else 32


def unified_attention(q, k, v, out, window_size, max_seqlen_q, use_td=False):
    num_queries_per_kv = q.shape[1] // k.shape[2]
    head_size = q.shape[2]
    block_size = v.shape[1]
    BLOCK_M = 16 if num_queries_per_kv <= 16 else triton.next_power_of_2(num_queries_per_kv)
    launch_num_stages: int | None = None
    tuned_large_head = head_size == 256 and max_seqlen_q > 1
    if tuned_large_head:
        BLOCK_M = 32
        launch_num_stages = 2
    sliding_window_val = 1 + window_size[0] if window_size[0] >= 0 else 0
    TILE_SIZE_PREFILL = _get_tile_size(
        head_size, sliding_window_val, q.element_size(), is_prefill=True
    )
    TILE_SIZE_DECODE = _get_tile_size(
        head_size, sliding_window_val, q.element_size(), is_prefill=False
    )
    if use_td:
        TILE_SIZE_PREFILL = min(TILE_SIZE_PREFILL, block_size)
        TILE_SIZE_DECODE = min(TILE_SIZE_DECODE, block_size)
    grid: tuple[Any, ...] = (q.shape[0], k.shape[2])
    use_3d = max_seqlen_q <= 1
    tile_size = TILE_SIZE_DECODE if use_3d else TILE_SIZE_PREFILL
    launch_kwargs: dict[str, int] = {}
    if launch_num_stages is not None:
        launch_kwargs["num_stages"] = launch_num_stages
    kernel_unified_attention[grid](
        output_ptr=out,
        TILE_SIZE=tile_size,
        BLOCK_M=BLOCK_M,
        **launch_kwargs,
    )
'''
_MOVED = '"""The kernels were moved elsewhere."""\n\n\ndef unified_attention(q):\n    return q\n'


def main(machine: Machine, argv: list[str]) -> int:
    """`--version`, or `install … REQUIREMENT`; returns its exit code."""
    if argv[:1] == ["--version"]:
        if "python3-pip" not in machine.read()["packages"]:
            sys.stderr.write("No module named pip\n")
            return 1
        return _out("pip 26.1 (python 3.13)")
    if "python3-pip" not in machine.read()["packages"]:
        sys.stderr.write("No module named pip\n")
        return 1
    requirement = argv[-1]
    temp = os.environ.get("TMPDIR", "")
    inside = str(machine.root / "tmp")
    if machine.fault("disk-full") is not None or not temp or temp.startswith(inside):
        sys.stderr.write("ERROR: Could not install packages due to an OSError: [Errno 28] No ")
        sys.stderr.write("space left on device\n")
        return 1
    asked = re.search(r"==([\d.]+)", requirement)
    version = asked.group(1) if asked else NEWEST
    _out(f"Collecting {requirement}\nDownloading vllm-{version}-cp38-abi3-manylinux1.whl (412 MB)")
    time.sleep(machine.seconds(120))
    if machine.fault("pip-network") is not None:
        sys.stderr.write("ERROR: Could not find a version that satisfies the requirement\n")
        return 1
    install(machine, version, Path(os.environ["PYTHONUSERBASE"]))
    _out(f"Successfully installed torch-{_OTHERS['torch']} vllm-{version}")
    return 0


def install(machine: Machine, version: str, base: Path) -> None:
    """Put the look-alikes of a version below a user base."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = base / "lib" / name / "site-packages"
    without_cuda = machine.fault("torch-cpu") is not None
    versions = {"vllm": version, **_OTHERS}
    if without_cuda:
        versions["torch"] = "2.13.0+cpu"
    for package, number in versions.items():
        for old in site.glob(f"{package}-*.dist-info"):
            (old / "METADATA").unlink(missing_ok=True)
            old.rmdir()
        info = site / f"{package}-{number}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {number}\n", encoding="utf-8"
        )
    arches = _ARCH_LIST[1:] if machine.fault("no-sm75") is not None else _ARCH_LIST
    library = "libcudart.so.13" if machine.fault("no-cudart") is not None else ""
    if machine.fault("no-cudnn") is not None:
        library = "libcudnn.so.9"
    missing = f"{library}: cannot open shared object file: No such file"
    broken = f'raise ImportError("{missing}")' if library else ""
    moved = machine.fault("kernel-moved") is not None
    files: Json = {
        "torch/__init__.py": _TORCH.format(
            cuda=None if without_cuda else "13.0", arches=arches, broken=broken
        ),
        "vllm/__init__.py": f'__version__ = "{version}"\n',
        "vllm/triton_utils.py": "tl = triton = None\n",
        "vllm/v1/__init__.py": "",
        "vllm/v1/attention/__init__.py": "",
        "vllm/v1/attention/ops/__init__.py": "",
        "vllm/v1/attention/ops/triton_unified_attention.py": _MOVED if moved else KERNEL,
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/openai/__init__.py": "",
        "vllm/entrypoints/openai/api_server.py": _SERVER.format(
            version=version, repo=str(REPO), python=sys.executable
        ),
    }
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")


def _out(text: str) -> int:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return 0

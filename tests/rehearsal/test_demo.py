"""The demo, shortened: it works in both eras, says why it failed, and leaves nothing running."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends.core.settings import PROJECT_DIR
from backends.rehearsal import demo
from backends.rehearsal.launch import server_parameters

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer requests, so that a walk takes seconds."""
    monkeypatch.setattr(demo, "LEVELS", [1, 2])
    monkeypatch.setattr(demo, "REQUESTS", 2)
    monkeypatch.setattr(demo, "MAX_TOKENS", 8)


def deploying(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Deploy a simulator with these options."""
    monkeypatch.setattr(demo, "engine", lambda *_: ({"options": options}, {}))


def left_running(state_dir: Path) -> list[str]:
    """Processes that know of this state directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(state_dir) in " ".join(process.environ().values()):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return [line for line in found if "pytest" not in line]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("era", "protocol"), [([], "2026-07-28"), (["--legacy"], "2025-11-25")])
def test_the_whole_job_is_walked_and_nothing_is_left(
    era: list[str],
    protocol: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deploying(monkeypatch, startup_speed=500)
    state_dir, out = tmp_path / "demo-state", tmp_path / "out"
    code = demo.main([*era, "--state-dir", str(state_dir), "--out", str(out)])
    said = capsys.readouterr().out
    assert code == 0, said
    assert f"protocol {protocol}" in said
    calls = [line.split("(")[0] for line in said.splitlines() if line.startswith("→ ")]
    walked = list(dict.fromkeys(call.removeprefix("→ ") for call in calls))
    assert walked == [
        "get_help",
        "plan_deployment",
        "deploy",
        "wait_until_ready",
        "verify_model_health",
        "query_model",
        "get_metrics",
        "get_logs",
        "run_benchmark",
        "get_operation",
        "get_benchmarks",
        "destroy",
        "list_deployments",
    ]
    assert "? Destroy local/demo?" in said
    assert "← yes" in said
    assert "Benchmark (simulated)" in said
    assert "nothing left running" in said
    assert (out / "benchmark.png").read_bytes().startswith(PNG)
    with (out / "levels.csv").open(encoding="utf-8", newline="") as file:
        assert [row["concurrency"] for row in csv.DictReader(file)] == ["1", "2"]
    assert left_running(state_dir) == []


@pytest.mark.usefixtures("short")
def test_a_failed_start_is_explained_and_cleaned_up_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deploying(monkeypatch, startup_speed=500, fail="oom")
    state_dir = tmp_path / "demo-state"
    code = demo.main(["--state-dir", str(state_dir), "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert code == 1
    assert "The demo failed" in said
    assert "It did not become ready" in said
    assert "out of memory" in said.lower()
    assert "local/demo was destroyed." in said
    assert not list((state_dir / "deployments" / "local").iterdir())
    assert left_running(state_dir) == []


def test_a_refused_call_is_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deploying(monkeypatch, profile="no-such-profile")
    assert demo.main(["--state-dir", str(tmp_path / "s"), "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "plan_deployment answered with an error" in said
    assert "options.profile" in said
    assert "cloudrun-l4" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_takes_down_what_it_had_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    state_dir = tmp_path / "demo-state"
    command = [sys.executable, "-m", "backends.rehearsal.demo"]
    command += ["--state-dir", str(state_dir), "--out", str(tmp_path)]
    # As a shell starts what it runs in the background.
    ignoring = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    ignoring += "os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", ignoring, *command]
    with subprocess.Popen(command, cwd=PROJECT_DIR, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "is starting: starting_engine" in line:
                break
        assert left_running(state_dir)
        os.kill(process.pid, number)
        rest = process.stdout.read()
        assert process.wait(timeout=30) == 1
    assert "local/demo was destroyed." in rest
    assert "Interrupted." in rest
    assert left_running(state_dir) == []


def test_the_callers_settings_do_not_change_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DEVOPS_MODE", "read-only")
    monkeypatch.setenv("VLLM_API_KEY", "sk-mine")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/certificate")
    environment = server_parameters({"VLLM_DEVOPS_STATE_DIR": "/there"}).env or {}
    assert "VLLM_DEVOPS_MODE" not in environment
    assert "VLLM_API_KEY" not in environment
    assert environment["VLLM_DEVOPS_ENV_FILE"] == os.devnull
    assert environment["VLLM_DEVOPS_STATE_DIR"] == "/there"
    assert environment["SSL_CERT_FILE"] == "/etc/certificate"

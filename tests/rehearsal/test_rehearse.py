"""A rehearsal walks a target's whole life through a client, by what the target can do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.rehearsal import rehearse
from tests.rehearsal.test_demo import left_running


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer requests, so that a walk takes seconds."""
    monkeypatch.setattr(rehearse, "LEVELS", [1])
    monkeypatch.setattr(rehearse, "REQUESTS", 2)
    monkeypatch.setattr(rehearse, "MAX_TOKENS", 8)


def walked(said: str) -> list[str]:
    """The tools that were called, once each, in order."""
    calls = [line.split("(")[0] for line in said.splitlines() if line.startswith("→ ")]
    return list(dict.fromkeys(call.removeprefix("→ ") for call in calls))


@pytest.mark.usefixtures("short")
def test_what_a_target_cannot_do_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state_dir, out = tmp_path / "state", tmp_path / "out"
    chosen = ["--option=startup_speed=1000", "--option=served_model_name=mine"]
    code = rehearse.main(["local", f"--state-dir={state_dir}", f"--out={out}", *chosen])
    said = capsys.readouterr().out
    assert code == 0, said
    assert walked(said) == [
        *("get_help", "plan_deployment", "deploy", "wait_until_ready", "verify_model_health"),
        *("query_model", "get_metrics", "get_logs", "get_status", "run_benchmark"),
        *("get_operation", "get_benchmarks", "stop_serving", "start_serving", "destroy"),
        "list_deployments",
    ]
    assert (out / "levels.csv").is_file()
    # What was chosen is what was measured.
    assert json.loads((out / "run.json").read_text(encoding="utf-8"))["endpoint"]["model"] == "mine"
    assert left_running(state_dir) == []


def test_a_target_that_is_none_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        rehearse.main(["no-such-target"])
    assert refused.value.code == 2
    assert "cloudrun-l4" in capsys.readouterr().err


def test_a_target_that_cannot_scale_to_zero_says_so_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = rehearse.main(["local", "--scale-to-zero", f"--state-dir={tmp_path}"])
    assert code == 2
    assert "local has no option to scale to zero" in capsys.readouterr().err
    assert not (tmp_path / "rehearsal").exists()


def test_an_option_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rehearse.main(["tpu-v6e", "--option=size"])
    assert "'size' is not KEY=VALUE" in capsys.readouterr().err

"""The raw JSON-RPC probe."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from backends.core.settings import PROJECT_DIR
from backends.rehearsal import probe
from backends.rehearsal.terminal import Terminal


def test_every_era_is_asked_and_every_tool_shown_with_its_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert probe.main([]) == 0
    said = capsys.readouterr().out
    for version in ("2025-06-18", "2025-11-25", "2026-07-28"):
        assert f"Protocol {version}: vllm-devops" in said
    rows = {line.split()[0]: line.split()[1] for line in said.splitlines() if line.strip()}
    assert rows["plan_deployment"] == "read"
    assert rows["deploy"] == "write"
    assert rows["destroy"] == "destructive"
    assert "topc: get_help has no such argument" in said


def test_a_read_only_server_lists_no_tool_that_changes_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_DEVOPS_MODE", "read-only")
    command = [sys.executable, str(PROJECT_DIR / "server.py")]
    tools = probe.probe(probe.MODERN, command, Terminal())
    assert {probe.kind_of(tool) for tool in tools} == {"read"}


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("print('hello', flush=True); input()", "stdout has a line that is no JSON"),
        ("raise SystemExit(3)", "the server left with 3"),
    ],
)
def test_a_server_that_does_not_speak_the_protocol_is_named_as_such(
    program: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "server.py"
    script.write_text(program, encoding="utf-8")
    assert probe.main([sys.executable, str(script)]) == 1
    assert complaint in " ".join(capsys.readouterr().out.split())


def test_a_server_that_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "_ANSWER_TIMEOUT_S", 0.5)
    script = tmp_path / "server.py"
    script.write_text("for line in __import__('sys').stdin: pass", encoding="utf-8")
    assert probe.main([sys.executable, str(script)]) == 1
    assert "no answer" in capsys.readouterr().out


def test_an_answer_that_is_an_error_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no such method"}}
    script = tmp_path / "server.py"
    script.write_text(f"input(); print({json.dumps(answer)!r}); input()", encoding="utf-8")
    assert probe.main(["--", sys.executable, "-u", str(script)]) == 1
    assert "no such method" in capsys.readouterr().out

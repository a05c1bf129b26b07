"""Text that is no UTF-8 comes from file names, arguments and models; it ends no server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backends.core.audit import AuditLog
from backends.core.state import StateDir, read_json, write_json
from tests.support.clients import FAST
from tests.support.probe import ACCEPT, ERAS, Era, Probe

HALF = "\ud83d"


@pytest.mark.parametrize("era", ERAS)
def test_a_folder_whose_name_is_no_utf8_does_for_a_whole_life(era: Era, tmp_path: Path) -> None:
    state_dir = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    env = {"VLLM_DEVOPS_STATE_DIR": state_dir}
    where = {"target": "local", "name": "demo"}
    with Probe(era=era, env=env, answering=lambda _: ACCEPT) as probe:
        planned = probe.tool("plan_deployment", **where, options=FAST)
        assert "caf\ufffd" in planned.text
        probe.tool("deploy", target="local", plan_id=planned.plan_id).expect_ok()
        assert probe.tool("wait_until_ready", **where).ok["state"] == "ready"
        assert "caf\ufffd" in probe.tool("get_logs", **where).ok["summary"]
        planned = probe.tool("destroy", **where)
        probe.tool("destroy", **where, plan_id=planned.plan_id).expect_ok()
        (content,) = probe.call("resources/read", {"uri": "audit://log"})["contents"]
        assert "caf" in content["text"]
        assert probe.stderr == ""


def test_half_a_character_is_kept_on_disk(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"name": f"ü{HALF}"})
    assert read_json(tmp_path / "x.json") == {"name": f"ü{HALF}"}
    AuditLog(StateDir(tmp_path)).record(
        event="started",
        call_id="1",
        tool="deploy",
        client="test",
        arguments={"name": f"ü{HALF}"},
        outcome="",
    )
    assert json.loads((tmp_path / "audit.jsonl").read_text("utf-8"))["name"] == f"ü{HALF}"

"""How failures reach the client: whole, in words it can act on, and never as a traceback."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import NoReturn

import pytest

from backends.cloudrun.backend import CloudRunBackend
from backends.clouds.google import GoogleCloud
from backends.core import tools
from backends.core.answers import ModelEntry
from backends.core.errors import CapacityError, NotSetUpError, StepFailedError
from backends.knowledge.model_files import catalogue
from backends.local import LocalBackend
from tests.support.clients import connected, make_app
from tests.support.probe import ERAS, Era
from tests.support.reply import missing_in_text


@pytest.mark.parametrize("era", ERAS)
async def test_an_error_reaches_the_client_whole_in_text_and_structure(
    state_dir: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: LocalBackend) -> NoReturn:
        raise CapacityError(
            "No L4 is free in us-east4.",
            words="ZONE_RESOURCE_POOL_EXHAUSTED:\nThe zone does not have enough resources.",
            cause="Hardware is short there.",
            next_action="find_capacity(target='gce-t4')",
            retry_after_s=30,
            details={"zone": "us-east4-a"},
        )

    monkeypatch.setattr(LocalBackend, "deployments", refuse)
    async with connected(make_app(state_dir), era) as caller:
        reply = await caller.tool("get_status", target="local")
    assert reply.error == {
        "code": "capacity",
        "message": "No L4 is free in us-east4.",
        "words": "ZONE_RESOURCE_POOL_EXHAUSTED:\nThe zone does not have enough resources.",
        "cause": "Hardware is short there.",
        "retry_after_s": 30,
        "zone": "us-east4-a",
        "next_action": "find_capacity(target='gce-t4')",
    }
    assert missing_in_text(reply) == []


async def test_a_list_that_could_not_be_asked_for_is_never_an_empty_one(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: LocalBackend) -> NoReturn:
        raise CapacityError("The control plane is gone.")

    monkeypatch.setattr(LocalBackend, "deployments", refuse)
    async with connected(make_app(state_dir)) as caller:
        answer = (await caller.tool("list_deployments")).ok
    assert answer["complete"] is False
    assert answer["not_answering"] == [
        {"target": "local", "error": "capacity: The control plane is gone."}
    ]
    assert "usd_per_hour_now" not in answer
    assert "Nothing is deployed" not in answer["summary"]


async def test_a_target_without_a_project_is_named_and_leaves_the_list_complete(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_set_up(self: LocalBackend) -> NoReturn:
        raise NotSetUpError("No project is set.", next_action="Set one.")

    monkeypatch.setattr(LocalBackend, "deployments", not_set_up)
    async with connected(make_app(state_dir)) as caller:
        answer = (await caller.tool("list_deployments")).ok
        named = await caller.tool("list_deployments", target="local")
    assert answer["complete"] is True
    assert {"target": "local", "error": "No project is set."} in answer["not_set_up"]
    assert "not asked: " in answer["summary"]
    assert "local" in answer["summary"]
    assert named.error["code"] == "not_set_up", "one that is asked for by name is an error"
    assert named.error["next_action"] == "Set one."


async def test_targets_that_cannot_be_asked_for_models_hide_none_of_the_others(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_set_up(self: CloudRunBackend) -> NoReturn:
        raise NotSetUpError("No project is set.", next_action="Set one.")

    async def refuse(self: CloudRunBackend) -> NoReturn:
        raise CapacityError("The control plane is gone.")

    targets = ("cloudrun-l4", "local")
    for models, field, error in (
        (not_set_up, "not_set_up", "No project is set."),
        (refuse, "not_answering", "capacity: The control plane is gone."),
    ):
        monkeypatch.setattr(CloudRunBackend, "models", models)
        async with connected(make_app(state_dir, targets=targets)) as caller:
            listed = (await caller.tool("list_models")).ok
            named = await caller.tool("list_models", target="cloudrun-l4")
        assert any(item["where"] == "catalogue" for item in listed["items"])
        assert listed[field] == [{"target": "cloudrun-l4", "error": error}]
        assert named.is_error, "one that is asked for by name is an error"


async def test_the_catalogue_that_every_target_has_is_listed_once(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def models(self: CloudRunBackend) -> list[ModelEntry]:
        return [*catalogue(), ModelEntry(id="gs://b/gemma", where="bucket")]

    monkeypatch.setattr(CloudRunBackend, "models", models)
    app = make_app(state_dir, targets=("cloudrun-l4", "cloudrun-rtx6000", "local"))
    async with connected(app) as caller:
        items = (await caller.tool("list_models", limit=100)).ok["items"]
    listed = [item["id"] for item in items if item["where"] == "catalogue"]
    assert listed == [entry.id for entry in catalogue()]
    assert [item["id"] for item in items if item["where"] == "bucket"] == ["gs://b/gemma"]


async def test_the_doctor_calls_what_nobody_set_up_neither_well_nor_ill(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_set_up(self: GoogleCloud) -> NoReturn:
        raise NotSetUpError("No project is set.", next_action="Set one.")

    monkeypatch.setattr(GoogleCloud, "project", not_set_up)
    async with connected(make_app(state_dir, targets=("cloudrun-l4", "local"))) as caller:
        told = (await caller.tool("get_help", topic="doctor")).ok
    (check,) = [item for item in told["doctor"] if item["name"] == "cloudrun-l4"]
    assert check["state"] == "not set up"
    assert "ok" not in check
    assert "Set one." in check["detail"]
    assert "Not set up, so not looked at: " in told["summary"]
    assert "Needs attention" not in told["summary"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_fault_of_our_own_is_an_id_and_a_log_and_no_traceback(
    state_dir: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(self: LocalBackend) -> NoReturn:
        raise RuntimeError("a detail that is nobody's business")

    monkeypatch.setattr(LocalBackend, "deployments", crash)
    async with connected(make_app(state_dir), era) as caller:
        reply = await caller.tool("list_deployments")
        assert (await caller.tool("get_help")).ok, "the server goes on"
    assert "Traceback" not in reply.text
    assert "nobody's business" not in json.dumps(reply.whole)
    found = re.search(r"Internal error ([0-9a-f]{8}) in list_deployments: RuntimeError", reply.text)
    assert found is not None
    log = state_dir / "server.log"
    assert str(log) in reply.text
    logged = log.read_text(encoding="utf-8")
    assert found[1] in logged
    assert "Traceback" in logged
    assert "a detail that is nobody's business" in logged
    assert missing_in_text(reply) == []


async def test_where_the_log_cannot_be_written_the_traceback_goes_to_stderr(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def crash(self: LocalBackend) -> NoReturn:
        raise RuntimeError("a detail for the operator")

    monkeypatch.setattr(LocalBackend, "deployments", crash)
    state_dir.parent.mkdir(parents=True)
    state_dir.write_text("a file where the folder should be", encoding="utf-8")
    async with connected(make_app(state_dir)) as caller:
        reply = await caller.tool("list_deployments")
    assert "stderr" in reply.error["cause"]
    assert "a detail for the operator" in caplog.text
    assert "a detail for the operator" not in reply.text


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_over_the_time_limit_is_stopped_and_says_so_while_others_are_answered(
    state_dir: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = asyncio.Event()

    async def hang(self: LocalBackend) -> NoReturn:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        raise AssertionError

    monkeypatch.setattr(LocalBackend, "deployments", hang)
    monkeypatch.setattr(tools, "CALL_LIMIT_S", 0.5)
    async with connected(make_app(state_dir), era) as caller:
        began = time.monotonic()
        slow = asyncio.create_task(caller.tool("list_deployments"))
        assert (await caller.tool("get_help")).ok
        assert not slow.done()
        reply = await slow
        assert time.monotonic() - began < 5
    assert stopped.is_set()
    assert "list_deployments took longer than" in reply.error["message"]
    assert "was stopped" in reply.text
    assert "may have happened" in reply.error["cause"]
    assert "get_status" in reply.error["next_action"]


async def test_a_time_out_inside_a_tool_is_not_taken_for_the_limit_of_the_call(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def time_out(self: LocalBackend) -> NoReturn:
        raise TimeoutError("something inside")

    monkeypatch.setattr(LocalBackend, "deployments", time_out)
    async with connected(make_app(state_dir)) as caller:
        reply = await caller.tool("list_deployments")
    assert "took longer than" not in reply.text
    assert "Internal error" in reply.text


async def test_the_time_limit_of_a_call_is_below_what_clients_allow() -> None:
    assert tools.CALL_LIMIT_S <= 45


async def test_get_help_explains_every_error_code(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        answer = (await caller.tool("get_help", topic="errors")).ok
    codes = {row["code"]: row["meaning"] for row in answer["error_codes"]}
    assert {"invalid_input", "plan", "confirmation", "over_budget", "capacity"} <= set(codes)
    assert StepFailedError.code in codes
    assert all(codes.values())


async def test_a_file_that_holds_no_hugging_face_token_never_leaves_the_machine(
    state_dir: Path, tmp_path: Path
) -> None:
    other = tmp_path / "hostname"
    other.write_text("a-word-that-is-nobody-elses\n", encoding="utf-8")
    async with connected(make_app(state_dir, targets=("cloudrun-l4",))) as caller:
        reply = await caller.tool("save_hf_token", target="cloudrun-l4", file=str(other))
    assert reply.error["code"] == "invalid_input"
    assert str(other) in reply.text
    assert "nobody-elses" not in json.dumps(reply.whole)

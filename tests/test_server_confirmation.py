"""Nothing is stopped or deleted without a plan id, nor without a person's yes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connected, make_app
from tests.support.probe import ACCEPT, CANCEL, DECLINE, ERAS, REFUSE, Era, Probe
from tests.support.processes import gone

TOOLS = ("stop_serving", "destroy")


def record_path(state_dir: Path, name: str) -> Path:
    return state_dir / "deployments" / "local" / name / "deployment.json"


def pid_of(state_dir: Path, name: str) -> int:
    return int(json.loads(record_path(state_dir, name).read_text(encoding="utf-8"))["pid"])


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("era", ERAS)
async def test_a_persons_yes_and_the_plan_id_together_run_the_plan(
    state_dir: Path, era: Era, tool: str
) -> None:
    async with connected(make_app(state_dir), era, answer=ACCEPT) as caller:
        await caller.deploy("demo")
        pid = pid_of(state_dir, "demo")
        planned = await caller.tool(tool, target="local", name="demo")
        assert caller.questions == [], "nobody is asked while only planning"
        assert not gone(pid)
        done = await caller.tool(tool, target="local", name="demo", plan_id=planned.plan_id)
        assert f"stopped pid {pid}" in done.ok["done"]
    assert gone(pid)
    assert record_path(state_dir, "demo").exists() is (tool == "stop_serving")
    (question,) = caller.questions
    assert "local/demo" in question
    for step in planned.ok["steps"]:
        assert step["title"] in question, "the person sees what is to be run"


@pytest.mark.parametrize(
    ("answer", "word"),
    [(REFUSE, "accept"), (DECLINE, "decline"), (CANCEL, "cancel")],
    ids=["says no", "declines", "cancels"],
)
@pytest.mark.parametrize("era", ERAS)
async def test_without_a_persons_yes_nothing_is_done_and_the_plan_id_still_works(
    state_dir: Path, era: Era, answer: dict[str, Any], word: str
) -> None:
    async with connected(make_app(state_dir), era, answer=answer) as caller:
        await caller.deploy("demo")
        pid = pid_of(state_dir, "demo")
        plans = {t: (await caller.tool(t, target="local", name="demo")).plan_id for t in TOOLS}
        for tool, plan_id in plans.items():
            reply = await caller.tool(tool, target="local", name="demo", plan_id=plan_id)
            assert reply.error["code"] == "confirmation"
            assert f"answer: {word}" in reply.text
            assert "Nothing was done" in reply.text
        assert len(caller.questions) == 2
        assert not gone(pid)
    async with connected(make_app(state_dir), era, answer=ACCEPT) as caller:
        plan_id = plans["destroy"]
        (await caller.tool("destroy", target="local", name="demo", plan_id=plan_id)).expect_ok()
    assert gone(pid)


@pytest.mark.parametrize("era", ERAS)
async def test_where_nobody_can_be_asked_the_answer_is_no(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir), era, answer=None) as caller:
        await caller.deploy("demo")
        pid = pid_of(state_dir, "demo")
        for tool in TOOLS:
            planned = await caller.tool(tool, target="local", name="demo")
            reply = await caller.tool(tool, target="local", name="demo", plan_id=planned.plan_id)
            assert reply.error["code"] == "confirmation"
            assert "VLLM_DEVOPS_CONFIRM=plan" in reply.error["next_action"]
        assert not gone(pid)


@pytest.mark.parametrize("era", ERAS)
async def test_an_operator_may_let_the_plan_id_be_enough(state_dir: Path, era: Era) -> None:
    app = make_app(state_dir, confirm="plan")
    async with connected(app, era, answer=None) as caller:
        await caller.deploy("demo")
        pid = pid_of(state_dir, "demo")
        # The plan id itself is still needed.
        assert (await caller.tool("destroy", target="local", name="demo")).ok["plan_id"]
        assert not gone(pid)
        (await caller.destroy("demo")).expect_ok()
    assert gone(pid)


@pytest.mark.parametrize("era", ERAS)
async def test_with_confirm_set_to_plan_a_client_that_can_ask_is_not_asked_either(
    state_dir: Path, era: Era
) -> None:
    async with connected(make_app(state_dir, confirm="plan"), era, answer=DECLINE) as caller:
        await caller.deploy("demo")
        (await caller.destroy("demo")).expect_ok()
        assert caller.questions == []


@pytest.mark.parametrize("era", ERAS)
async def test_nobody_is_asked_about_a_plan_that_cannot_run(state_dir: Path, era: Era) -> None:
    async with connected(make_app(state_dir), era) as caller:
        await caller.deploy("demo")
        deploying = await caller.plan("other")
        for plan_id in ("plan-20261130-000000-beef", deploying):
            reply = await caller.tool("destroy", target="local", name="demo", plan_id=plan_id)
            assert reply.error["code"] == "plan"
        assert caller.questions == []
        assert not gone(pid_of(state_dir, "demo"))


@pytest.mark.parametrize("era", ERAS)
async def test_a_deployment_that_changes_while_the_person_thinks_is_not_destroyed(
    state_dir: Path, era: Era
) -> None:
    path = record_path(state_dir, "demo")

    def meanwhile(_: str) -> None:
        record = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(record | {"created_at": "2020-01-01T00:00:00.000Z"}))

    async with connected(make_app(state_dir), era, on_question=meanwhile) as caller:
        await caller.deploy("demo")
        planned = await caller.tool("destroy", target="local", name="demo")
        reply = await caller.tool("destroy", target="local", name="demo", plan_id=planned.plan_id)
        assert reply.error["reason"] == "stale"
        assert "2020-01-01" in reply.text
        assert not gone(pid_of(state_dir, "demo"))


@pytest.mark.parametrize("era", ERAS)
async def test_what_does_not_carry_our_label_is_never_stopped_destroyed_or_started(
    state_dir: Path, era: Era
) -> None:
    async with connected(make_app(state_dir, confirm="plan"), era) as caller:
        await caller.deploy("demo")
        planned = await caller.tool("destroy", target="local", name="demo")
        path = record_path(state_dir, "demo")
        record = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(record | {"managed-by": "somebody-else"}), encoding="utf-8")
        for tool in (*TOOLS, "start_serving"):
            reply = await caller.tool(tool, target="local", name="demo")
            assert reply.error["code"] == "not_managed"
        # Nor with a plan from before it lost the label.
        reply = await caller.tool("destroy", target="local", name="demo", plan_id=planned.plan_id)
        assert reply.is_error
        assert not gone(pid_of(state_dir, "demo"))
        assert path.exists()


@pytest.mark.parametrize("era", ERAS)
async def test_an_attached_endpoint_is_never_stopped_destroyed_or_started(
    state_dir: Path, era: Era
) -> None:
    app = make_app(state_dir, base_url="http://127.0.0.1:9", confirm="plan")
    async with connected(app, era) as caller:
        for tool in (*TOOLS, "start_serving"):
            reply = await caller.tool(tool, target="local", name="attached")
            assert reply.error["code"] == "not_managed"
            assert "VLLM_BASE_URL" in reply.error["next_action"]
        taken = await caller.tool("plan_deployment", target="local", name="attached")
        assert taken.error["code"] == "invalid_input"


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_can_only_open_urls_cannot_ask_a_person(state_dir: Path, era: Era) -> None:
    del state_dir
    with Probe(era=era, capabilities={"elicitation": {"url": {}}}) as probe:
        planned = probe.tool(
            "plan_deployment", target="local", name="demo", options={"startup_speed": 1000}
        )
        probe.tool("deploy", target="local", plan_id=planned.plan_id)
        planned = probe.tool("destroy", target="local", name="demo")
        reply = probe.tool("destroy", target="local", name="demo", plan_id=planned.plan_id)
        assert reply.error["code"] == "confirmation"
        assert probe.questions == []


def test_in_the_modern_era_an_answer_does_not_fit_another_deployment(state_dir: Path) -> None:
    del state_dir
    with Probe(era="modern", answering=lambda _: ACCEPT) as probe:
        plans = {}
        for name in ("one", "two"):
            planned = probe.tool(
                "plan_deployment", target="local", name=name, options={"startup_speed": 1000}
            )
            probe.tool("deploy", target="local", plan_id=planned.plan_id)
            plans[name] = probe.tool("destroy", target="local", name=name).plan_id

        def call(name: str) -> dict[str, Any]:
            arguments = {"target": "local", "name": name, "plan_id": plans[name]}
            return {"name": "destroy", "arguments": arguments}

        asked = probe.call("tools/call", call("one"))
        (key,) = asked["inputRequests"]
        forged = call("two") | {
            "inputResponses": {key: ACCEPT},
            "requestState": asked["requestState"],
        }
        answer = probe.request("tools/call", forged).result(20)
        assert answer["error"]["code"] == -32602
        listed = probe.tool("list_deployments").ok
        assert [item["name"] for item in listed["items"]] == ["one", "two"]


# What a client may send as the content of an accepted form, and that is no yes.
NO_YES: tuple[dict[str, Any] | None, ...] = (
    None,
    {},
    {"approve": None},
    {"approve": "perhaps"},
    {"approve": "yes"},
    {"approve": "true"},
    {"approve": 1},
)


@pytest.mark.parametrize("era", ERAS)
def test_an_answer_in_another_form_is_no_yes_and_says_what_to_do(state_dir: Path, era: Era) -> None:
    given: list[dict[str, Any] | None] = []

    def answer(_: object) -> dict[str, Any]:
        return {"action": "accept", "content": given[-1]}

    with Probe(era=era, answering=answer) as probe:
        planned = probe.tool(
            "plan_deployment", target="local", name="demo", options={"startup_speed": 1000}
        )
        probe.tool("deploy", target="local", plan_id=planned.plan_id)
        for asked, content in enumerate(NO_YES, 1):
            given.append(content)
            planned = probe.tool("destroy", target="local", name="demo")
            reply = probe.tool("destroy", target="local", name="demo", plan_id=planned.plan_id)
            assert reply.error["code"] == "confirmation", content
            assert "Nothing was done" in reply.text, content
            assert "ask_before_destroy" not in reply.text, content
            assert len(probe.questions) == asked, content
            assert record_path(state_dir, "demo").exists(), content
    assert not gone(pid_of(state_dir, "demo"))

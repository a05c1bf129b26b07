"""Two ask for one name at once: one request is made, and the other is told who has it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.core.errors import CloudError, ConflictError, DevopsError
from backends.core.plans import Plan, Step
from backends.core.state import StateDir
from backends.tpu import running
from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import Cloud
from tests.tpu.acting import ACCOUNT, TARGET
from tests.tpu.fake_google import Google, Target

ZONE = "us-east5-a"
EXISTS = ConflictError("refused", words="ALREADY_EXISTS: Resource 'g' already exists")


async def made(google: Google, folder: Path, digest: str = "abc") -> str:
    """What the step of a plan says that asks for a request; or the error."""
    step = Step(
        title="Ask", kind="create", argv=("gcloud", "create", f"--zone={ZONE}"),
        data={"zone": ZONE, "digest": digest, "plane": "tpu"},
    )  # fmt: skip
    plan = Plan(verb="deploy", target=TARGET, name="g", summary="deploy", steps=[step])
    target: Any = Target(google, StateDir(folder))
    return await running.run_step(target, plan, step)


async def test_two_servers_that_deploy_one_name_at_once_make_one_request(
    cloud: Cloud, caller: Caller
) -> None:
    options = {"zone": ZONE, "provisioning": "spot", "service_account": ACCOUNT}
    app = make_app(cloud.state_dir, rehearsal=True, targets=(TARGET,))
    async with connected(app) as other:
        planned = [
            await who.tool("plan_deployment", target=TARGET, name="gemma4", options=options)
            for who in (caller, other)
        ]
        replies = await asyncio.gather(
            *(
                who.tool("deploy", target=TARGET, name="gemma4", plan_id=plan.plan_id)
                for who, plan in zip((caller, other), planned, strict=True)
            )
        )
    (refused,) = [reply for reply in replies if reply.is_error]
    assert "Another server here is asking for tpu-v6e/gemma4" in refused.text
    assert "get_status" in refused.text
    assert len(cloud.requests("POST", "/queuedResources")) == 1
    # Also once it is there: the refusal says what is, and what it is about.
    late = await caller.tool("plan_deployment", target=TARGET, name="gemma4", options=options)
    assert "tpu-v6e/gemma4 still lives" in late.text


@pytest.mark.parametrize(
    ("labels", "who"),
    [
        ({"vllm-devops-spec": "abc"}, "with the same state directory"),
        ({"vllm-devops-spec": "other"}, "by another vLLM DevOps server"),
        ({"managed-by": "me"}, "it does not carry our label"),
    ],
)
async def test_what_is_there_before_anything_is_asked_is_named_with_whose_it_is(
    tmp_path: Path, labels: dict[str, str], who: str
) -> None:
    google = Google({ZONE: "WAITING_FOR_RESOURCES"})
    google.put(ZONE, "WAITING_FOR_RESOURCES")
    there = google.alive[ZONE]
    google.alive[ZONE] = replace(there, labels=dict(there.labels) | labels)
    with pytest.raises(ConflictError, match="is there already, in us-east5-a since") as caught:
        await made(google, tmp_path)
    assert who in caught.value.message
    assert "Nothing was made twice" in caught.value.message
    assert google.commands == []


@pytest.mark.parametrize(("digest", "ours"), [("abc", True), ("other", False)])
async def test_that_it_exists_already_is_ours_only_where_it_carries_our_mark(
    tmp_path: Path, digest: str, ours: bool
) -> None:
    google = Google({ZONE: EXISTS})

    async def run(argv: object, **more: object) -> str:
        google.put(ZONE, "ACCEPTED", digest=digest)
        raise EXISTS

    google.run = run  # type: ignore[method-assign]
    if ours:  # gcloud asked again by itself, after the answer to its first try was lost
        assert "found there by its label" in await made(google, tmp_path)
    else:
        with pytest.raises(ConflictError, match="by another vLLM DevOps server"):
            await made(google, tmp_path)


async def test_a_refusal_of_another_kind_is_no_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOOK_FOR_S", 0.0)
    error: DevopsError = CloudError("refused", words="INTERNAL")
    with pytest.raises(CloudError, match="refused") as caught:
        await made(Google({ZONE: error}), tmp_path)
    assert "makes no second one" in str(caught.value.next_action)


def test_each_state_directory_has_a_name_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    first, second = StateDir(tmp_path / "a"), StateDir(tmp_path / "b")
    assert first.identity() == StateDir(tmp_path / "a").identity()
    assert first.identity() != second.identity()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["identity"]


def test_who_comes_second_is_told_so_until_the_first_has_ended(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    with state.alone("it") as first, StateDir(tmp_path).alone("it") as second:
        assert (first, second) == (True, False)
    with state.alone("it") as again:
        assert again

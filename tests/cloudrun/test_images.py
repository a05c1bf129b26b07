"""An image of one's own is made from a folder by Cloud Build, as steps of the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.cloudrun import images
from backends.cloudrun.images import read_source
from backends.clouds.google_builds import follow_build
from backends.core.errors import InvalidInputError, OperationError
from tests.cloudrun.acting import ACCOUNT, L4, settled
from tests.cloudrun.conftest import Cloud
from tests.support.clients import Caller


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a Dockerfile."""
    path = tmp_path / "image"
    path.mkdir()
    (path / "Dockerfile").write_text("FROM vllm/vllm-openai:v0.26.0-cu129\n", encoding="utf-8")
    return path


async def finished(caller: Caller, operation_id: str) -> dict[str, Any]:
    """An operation once it has ended."""
    async with asyncio.timeout(60):
        while True:
            answer = await caller.tool("get_operation", operation_id=operation_id, wait_s=20)
            if answer.ok["finished"]:
                return answer.ok


async def test_a_folder_becomes_an_image_and_then_a_service_while_nobody_waits(
    cloud: Cloud, caller: Caller, folder: Path
) -> None:
    asked = {"build": str(folder), "service_account": ACCOUNT}
    planned = await caller.tool("plan_deployment", target=L4, name="gemma4", options=asked)
    titles = [step["title"].split()[0:2] for step in planned.ok["steps"]]
    assert titles == [["Make", "the"], ["Make", "the"], ["Deploy", "to"]]
    command = planned.ok["steps"][1]["command"]
    assert command.startswith(f"gcloud builds submit {folder} --tag=us-east4-docker.pkg.dev/")
    assert "gcloud artifacts docker images delete" in planned.ok["steps"][1]["undo"]

    cloud.fault("build-disk-full")
    started = await caller.tool("deploy", target=L4, name="gemma4", plan_id=planned.plan_id)
    assert started.ok["state"] == "creating"
    early = await caller.tool("wait_until_ready", target=L4, name="gemma4", timeout_s=0)
    assert early.error["code"] == "conflict"
    assert started.ok["operation_id"] in early.error["next_action"]
    failed = await finished(caller, started.ok["operation_id"])
    assert failed["state"] == "failed"
    assert "No space left on device" in failed["error"]
    assert "smaller than what it holds" in failed["error"]
    assert "Artifact Registry repository vllm-devops in us-east4" in failed["error"]
    assert cloud.world()["services"] == {}
    cloud.mend()

    planned = await caller.tool("plan_deployment", target=L4, name="gemma4", options=asked)
    assert len(planned.ok["steps"]) == 2, "the repository is there now"
    started = await caller.tool("deploy", target=L4, name="gemma4", plan_id=planned.plan_id)
    done = await finished(caller, started.ok["operation_id"])
    assert done["state"] == "succeeded", done
    assert (await settled(caller))["state"] == "ready"
    (image,) = cloud.world()["images"]
    body = cloud.requests("POST", "/namespaces/vllm-rehearsal/services")[0]["body"]
    assert body["spec"]["template"]["spec"]["containers"][0]["image"] == image

    again = await caller.tool("plan_deployment", target=L4, name="gemma4", options=asked)
    assert len(again.ok["steps"]) == 1, "what was made from this folder is not made again"
    (folder / "start.py").write_text("print('changed')\n", encoding="utf-8")
    stale = await caller.tool("deploy", target=L4, name="gemma4", plan_id=again.plan_id)
    assert stale.error["reason"] == "stale"
    assert "its folder and image" in stale.text


def test_the_digest_is_of_what_is_sent(folder: Path) -> None:
    first = read_source(str(folder))
    assert (first.files, first.folder) == (1, folder)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x", encoding="utf-8")
    assert read_source(str(folder)).digest == first.digest
    (folder / "a").write_text("x", encoding="utf-8")
    second = read_source(str(folder)).digest
    (folder / "a").rename(folder / "b")
    assert len({first.digest, second, read_source(str(folder)).digest}) == 3


def test_what_is_no_source_of_an_image_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_MAX_SOURCE_BYTES", 1024**2)
    with pytest.raises(InvalidInputError, match="absolute"):
        read_source("image")
    with pytest.raises(InvalidInputError, match="Dockerfile"):
        read_source(str(tmp_path))
    (folder / "model.safetensors").write_bytes(b"0" * 2 * 1024**2)
    with pytest.raises(InvalidInputError, match="without weights"):
        read_source(str(folder))


async def test_cancelling_cancels_the_build_at_google() -> None:
    ran: list[Sequence[str]] = []

    class Rest:
        async def get(self, *_: object) -> dict[str, str]:
            return {"status": "WORKING"}

    class Gcloud:
        async def run(self, argv: Sequence[str]) -> str:
            ran.append(argv)
            return ""

    async def project() -> str:
        return "p"

    cloud: Any = SimpleNamespace(rest=Rest(), gcloud=Gcloud(), project=project)
    job: Any = SimpleNamespace(should_stop=lambda: True, progress=lambda *_: None)
    with pytest.raises(OperationError, match="cancelled as asked"):
        await follow_build(cloud, "us-east4", "b-1", "It did not", job)
    assert ran[0][:4] == ["gcloud", "builds", "cancel", "b-1"]

"""A server that is killed between two steps of a deploy leaves nothing that is not mentioned."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.sagemaker.acting import NAME, TARGET, deploy, destroy, settled, status, without_cli
from tests.support.clients import Caller
from tests.support.cloud import Cloud
from tests.support.probe import Probe, ServerGoneError

_TYPES = {"instance_types": ["ml.g6.xlarge"]}
_ROLE = f"The role vllm-devops-{NAME}"
_AWS = shutil.which("aws")


def _aws_that_kills_its_server(folder: Path, after: str) -> None:
    """An aws whose caller is gone with signal 9 as soon as one operation was done."""
    program = folder / "aws"
    program.write_text(
        f'#!/bin/sh\n{_AWS} "$@"\ncode=$?\n'
        f'case "$*" in *"sagemaker {after} "*|*"iam {after} "*) kill -9 $PPID;; esac\nexit $code\n',
        encoding="utf-8",
    )
    program.chmod(0o755)


async def _killed_after(cloud: Cloud, caller: Caller, folder: Path, step: str) -> None:
    """Run a plan in a server of its own, which is killed after a step."""
    _aws_that_kills_its_server(folder, step)
    planned = await caller.tool("plan_deployment", target=TARGET, name=NAME, options=_TYPES)
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "VLLM_DEVOPS_STATE_DIR": str(cloud.state_dir),
        "VLLM_DEVOPS_REHEARSAL": "1",
        "VLLM_DEVOPS_TARGETS": TARGET,
        "VLLM_DEVOPS_AWS_REGIONS": "us-east-2,us-west-2",
    }
    with Probe(env=env) as server:
        with pytest.raises(ServerGoneError):
            server.tool("deploy", target=TARGET, name=NAME, plan_id=planned.plan_id)
        assert server.process.wait(10) == -9


async def test_a_server_killed_after_any_step_leaves_nothing_unmentioned(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_cli(monkeypatch)
    left: list[str] = []
    for step in ("create-role", "put-role-policy", "create-model"):
        await _killed_after(cloud, caller, tmp_path, step)
        listed = (await caller.tool("list_deployments")).ok
        assert listed["items"] == []
        left = listed["left_over"]
        assert _ROLE in left[0], step
        assert f"destroy(target='{TARGET}', name='{NAME}')" in left[0]
    assert f"the model {NAME}-vllm-" in left[0]
    # What costs nothing goes by its own plan, whole.
    assert not (await destroy(caller)).is_error
    assert NAME not in str(cloud.world()["aws"])
    assert "left_over" not in (await caller.tool("list_deployments")).ok
    # Once there is a configuration it is a deployment that is stopped; then one that starts.
    await _killed_after(cloud, caller, tmp_path, "create-endpoint-config")
    assert (await status(caller))["state"] == "stopped"
    await _killed_after(cloud, caller, tmp_path, "create-endpoint")
    assert (await settled(caller))["state"] == "ready"


async def test_a_role_that_destroy_kept_is_mentioned_and_can_be_deleted_later(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cli(monkeypatch)
    await deploy(caller, instance_types=["ml.g6.xlarge"])
    await settled(caller)
    assert "left_over" not in (await caller.tool("list_deployments")).ok
    await destroy(caller)
    while (listed := (await caller.tool("list_deployments")).ok)["items"]:
        assert listed["items"][0]["state"] == "stopping"
    assert _ROLE in listed["left_over"][0]
    assert not (await destroy(caller)).is_error
    assert f"vllm-devops-{NAME}" not in str(cloud.world())
    assert (await caller.tool("destroy", target=TARGET, name=NAME)).error["code"] == "not_found"
    cloud.fault(kind="aws-deny", action="iam:ListRoles")
    denied = (await caller.tool("list_deployments")).ok
    assert "is not known" in denied["left_over"][0]

"""Weights of one's own in S3: put there with the real aws, looked into, deployed, refused early."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from backends.rehearsal.cloud import launcher
from tests.sagemaker.acting import NAME, TARGET, bucket_folder, deploy, settled, without_cli
from tests.support.clients import Caller
from tests.support.cloud import Cloud

FOLDER = "s3://weights/gemma-4-E2B-it"


def _aws(cloud: Cloud, *args: str) -> str:
    done = subprocess.run(
        ["aws", *args, "--region", "us-east-2"],
        env={**os.environ, **launcher.environment(cloud.running)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_checkpoint_is_synced_by_the_real_cli_looked_into_and_served(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_cli(monkeypatch)
    folder = tmp_path / "gemma"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma4"}))
    (folder / "tokenizer.json").write_text("{}")
    # Large enough to be sent in parts.
    (folder / "model.safetensors").write_bytes(os.urandom(9 << 20))
    _aws(cloud, "s3", "mb", "s3://weights")
    _aws(cloud, "s3", "sync", str(folder), FOLDER)
    listed = _aws(cloud, "s3", "ls", f"{FOLDER}/")
    assert f"{9 << 20} model.safetensors" in listed
    _aws(cloud, "s3", "cp", f"{FOLDER}/model.safetensors", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (folder / "model.safetensors").read_bytes()

    found = (await caller.tool("list_models", target=TARGET, inspect=FOLDER)).ok
    assert found["facts"]["is_gemma4"], found
    assert found["facts"]["whole"]
    done = await deploy(caller, instance_types=["ml.g6.xlarge"], model=FOLDER)
    assert not done.is_error, done.text
    assert (await settled(caller))["models"] == ["gemma-4-E2B-it"]


async def test_a_folder_that_cannot_be_served_from_is_refused_before_anything_is_made(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = without_cli(monkeypatch)
    absent = (await deploy(caller, model=FOLDER)).error
    assert "is not there" in absent["message"]
    assert "aws s3 mb s3://weights" in absent["next_action"]
    await bucket_folder(cloud, "weights", "gemma-4-E2B-it", config=False)
    assert "has no config.json" in (await deploy(caller, model=FOLDER)).error["message"]
    await bucket_folder(cloud, "elsewhere", "gemma-4-E2B-it", "us-west-2")
    there = "s3://elsewhere/gemma-4-E2B-it"
    other = (await deploy(caller, model=there)).error
    assert "is in a bucket of us-west-2" in other["message"]
    assert "options.region='us-west-2'" in other["next_action"]
    # Reading follows a bucket to its region.
    seen = await caller.tool("list_models", target=TARGET, inspect=there)
    assert seen.ok["facts"]["whole"]
    assert not sent
    # Who may not look into it is told so; SageMaker reads it with a role, not with this login.
    cloud.fault(kind="aws-deny", action="s3:*")
    denied = (await caller.tool("list_models", target=TARGET, inspect=FOLDER)).error
    assert denied["code"] == "permission_denied"
    planned = await caller.tool("plan_deployment", target=TARGET, name=NAME, model=FOLDER)
    assert any("was not looked into" in item for item in planned.ok["warnings"])

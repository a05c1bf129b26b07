"""Weights into the bucket, what is in it, and the Hugging Face token: with the real gcloud."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.cloudrun.building import build_config
from backends.cloudrun.transfer import Transfer
from backends.knowledge.cloudbuild_failures import signature_of
from tests.cloudrun.acting import L4
from tests.cloudrun.conftest import Cloud
from tests.support.clients import Caller

_TOKEN = "hf_aVerySecretTokenOfATest"
_SECOND = "hf_anotherSecretTokenOfATest"


async def _finished(caller: Caller, operation_id: str) -> dict[str, Any]:
    while True:
        answer = await caller.tool("get_operation", operation_id=operation_id, wait_s=40)
        if answer.ok["finished"]:
            return answer.ok


async def test_a_local_folder_is_copied_once_and_checked(
    cloud: Cloud, caller: Caller, tmp_path: Path
) -> None:
    folder = tmp_path / "gemma-mine"
    (folder / ".cache").mkdir(parents=True)
    (folder / ".cache" / "left-out").write_text("x", encoding="utf-8")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"]}),
        encoding="utf-8",
    )
    (folder / "model.safetensors").write_bytes(b"w" * 200_000)
    started = (await caller.tool("stage_model", target=L4, model=str(folder))).ok
    assert "gcloud storage rsync" in started["commands"][0]
    done = await _finished(caller, started["operation_id"])
    assert done["state"] == "succeeded", done
    assert done["result"]["files"] == 2
    assert done["result"]["is_gemma4"] is True
    objects = cloud.world()["objects"]["vllm-rehearsal-bucket"]
    assert sorted(name for name in objects if name.startswith("gemma-mine/")) == [
        "gemma-mine/config.json",
        "gemma-mine/model.safetensors",
    ]
    again = (await caller.tool("stage_model", target=L4, model=str(folder))).ok
    assert "operation_id" not in again
    assert again.get("commands", []) == []


async def test_a_hugging_face_model_is_brought_by_cloud_build_with_the_token_as_a_secret(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", _TOKEN)
    saved = await caller.tool("save_hf_token", target=L4)
    assert saved.ok["version"] == "1"
    monkeypatch.setenv("HF_TOKEN", _SECOND)
    assert (await caller.tool("save_hf_token", target=L4)).ok["version"] == "2"
    versions = cloud.world()["secrets"]["hf-token"]["versions"]
    assert [version["state"] for version in versions] == ["DISABLED", "ENABLED"]

    model = "google/gemma-4-E4B-it"
    started = (await caller.tool("stage_model", target=L4, model=model)).ok
    done = await _finished(caller, started["operation_id"])
    assert done["state"] == "succeeded", done
    build = cloud.requests("POST", "/builds")[0]["body"]
    text = json.dumps(build)
    assert "versions/latest" in text
    assert "hf_" not in text
    assert model in text
    assert "$" not in text, "Cloud Build would take it for a variable"
    # Nowhere on this machine's side, nor in what was answered, does a token appear.
    for path in cloud.state_dir.rglob("*"):
        inside = "rehearsal/cloud" in str(path)
        if path.is_file() and not inside and path.stat().st_size < 5_000_000:
            content = path.read_bytes()
            assert _TOKEN.encode() not in content, path
            assert _SECOND.encode() not in content, path
    assert _TOKEN not in saved.text


async def test_the_bucket_is_believed_by_config_json_and_never_by_a_folders_name(
    cloud: Cloud, caller: Caller
) -> None:
    cloud.fault("wrong-architecture")
    listed = (await caller.tool("list_models", target=L4, limit=100)).ok["items"]
    mine = next(item for item in listed if item["id"].endswith("bucket/gemma-4-E2B-it"))
    assert "not a Gemma 4" in mine["note"]
    facts = (await caller.tool("list_models", target=L4, inspect="gemma-4-E2B-it")).ok["facts"]
    assert facts["is_gemma4"] is False
    refused = (await caller.tool("plan_deployment", target=L4)).error
    assert "not a Gemma 4" in refused["message"]
    missing = (await caller.tool("plan_deployment", target=L4, model="gs://no-such-bucket/x")).error
    assert "There is no bucket" in missing["message"]
    empty = (await caller.tool("plan_deployment", target=L4, model="no-such-folder")).error
    assert "stage_model" in empty["next_action"]
    no_secret = await caller.tool("plan_deployment", target=L4, options={"source": "huggingface"})
    assert "save_hf_token" in no_secret.error["next_action"]


_HUB = """
import json, os
class HfApi:
    def __init__(self, token=None):
        assert token == "hf_x"
    def model_info(self, model, files_metadata=False):
        assert files_metadata
        size = int(os.environ["SIZE"])
        return type("Info", (), {"siblings": [type("File", (), {"size": size}), type(
            "File", (), {"size": None})]})
def snapshot_download(**asked):
    print("downloading", json.dumps(asked))
"""


@pytest.mark.parametrize(("size", "room"), [(1000, True), (10**16, False)])
def test_a_build_looks_at_the_room_of_every_folder_before_it_downloads(
    size: int, room: bool, tmp_path: Path
) -> None:
    transfer = Transfer(
        "google/gemma-4-E2B-it", None, "b", "gemma", "us-east4", None, {}, True, "p"
    )
    step = build_config(transfer)["steps"][0]
    assert "$" not in step["args"][1]
    (tmp_path / "huggingface_hub.py").write_text(_HUB, encoding="utf-8")
    for name, script in (("pip", "exit 0"), ("python", f'exec {sys.executable} "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    env = dict(item.partition("=")[::2] for item in step["env"])
    env = {name: value.replace("/workspace", str(tmp_path / "disk")) for name, value in env.items()}
    env |= {"HF_TOKEN": "hf_x", "SIZE": str(size), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [step["entrypoint"], *step["args"]],
        env={**env, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    assert (done.returncode == 0) is room, said
    assert ("downloading" in said) is room
    assert f"{tmp_path / 'disk' / 'model'}: " in said
    assert room or "Nothing was downloaded" in said
    found = signature_of(said)
    assert (found is None) is room

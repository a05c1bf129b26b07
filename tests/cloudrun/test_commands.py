"""The exact commands, word for word. Golden files: TESTS_UPDATE_SNAPSHOTS=1 writes them anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from backends.cloudrun.commands import deploy_argv
from backends.clouds.gcloud import joined
from backends.clouds.google_facts import account_email, account_id
from backends.core.names import TARGETS
from backends.knowledge.cloudrun import PROFILES
from tests.cloudrun.made import PROJECT, request

_GOLDEN = Path(__file__).parent / "golden"

_CASES: dict[str, tuple[str, dict[str, Any], dict[str, bool]]] = {
    "l4": ("cloudrun-l4", {}, {}),
    "l4-huggingface": ("cloudrun-l4", {"source": "huggingface"}, {}),
    "l4-again": ("cloudrun-l4", {"min_instances": 1}, {"exists": True}),
    "l4-candidate": ("cloudrun-l4", {"candidate": True}, {"exists": True}),
    "l4-json-argument": (
        "cloudrun-l4",
        {"extra_args": ['--limit-mm-per-prompt={"image":1,"video":0}'], "env": ["A=1,2"]},
        {},
    ),
    "rtx6000": ("cloudrun-rtx6000", {}, {}),
    "rtx6000-nvfp4-copied": (
        "cloudrun-rtx6000",
        {"model": "gs://w/nvidia/gemma-4-26B-A4B-it-NVFP4", "load": "copy", "scaling": 2},
        {"quantised": True},
    ),
    "rtx6000-own-image": (
        "cloudrun-rtx6000",
        {
            "server": "image",
            "image": "us-central1-docker.pkg.dev/fake-proj/dgem/dgemma:v0.1.0",
            "model": "gs://w/dgemma",
            "load": "copy",
            "env": ["MAX_INFLIGHT=8", "ATTN=TRITON_ATTN"],
            "concurrency": 32,
        },
        {},
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_the_deploy_command_is_exactly_as_recorded(case: str) -> None:
    target, options, facts = _CASES[case]
    profile = PROFILES[target]
    argv = deploy_argv(
        request(profile, **options),
        profile,
        PROJECT,
        account_email(target, "gemma4", PROJECT),
        exists=facts.get("exists", False),
        quantised=facts.get("quantised", False),
    )
    path = _GOLDEN / f"deploy-{case}.json"
    if os.environ.get("TESTS_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(argv, indent=1) + "\n", encoding="utf-8")
    assert argv == json.loads(path.read_text(encoding="utf-8"))


def test_a_list_with_commas_gets_a_delimiter_that_is_in_no_item() -> None:
    assert joined(["a", "b"]) == "a,b"
    assert joined(['{"x":1,"y":2}', "b"]) == '^|^{"x":1,"y":2}|b'
    assert joined(["a,b|c", "d"]) == "^;^a,b|c;d"
    assert joined(["a,|;#~!"]).startswith("^@@@^")


@pytest.mark.parametrize(
    "name", ["a", "gemma4", "a-name-of-forty-eight-characters-which-is-the-mos"]
)
def test_an_account_id_is_what_iam_accepts_and_its_own_for_each_name(name: str) -> None:
    made = account_id("cloudrun-l4", name)
    assert 6 <= len(made) <= 30
    assert made[0].isalpha()
    assert not made.endswith("-")
    assert made != account_id("cloudrun-l4", f"{name[:40]}x")
    # Destroying one deployment deletes its account: another target's of that name has its own.
    google = [target for target in TARGETS if target not in {"sagemaker-l4", "local"}]
    assert len({account_id(target, name) for target in google}) == len(google)


def test_no_flag_appears_twice_and_none_carries_a_secret() -> None:
    profile = PROFILES["cloudrun-l4"]
    spec = request(profile, source="huggingface")
    argv = deploy_argv(spec, profile, PROJECT, "a@b", exists=False)
    names = [item.partition("=")[0] for item in argv if item.startswith("--")]
    assert len(names) == len(set(names))
    assert "--set-secrets=HF_TOKEN=hf-token:latest" in argv

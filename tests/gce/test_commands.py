"""The exact commands, word for word. Golden files: TESTS_UPDATE_SNAPSHOTS=1 writes them anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from backends.gce.commands import create_argv, engine_argv, label_of, serving_spec
from tests.gce.made import PROJECT, request

_GOLDEN = Path(__file__).parent / "golden"
_ACCOUNT = f"vllm-t4-t4@{PROJECT}.iam.gserviceaccount.com"

_CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "reference": ({}, False),
    "spot-external": ({"provisioning": "spot", "external": True}, False),
    "kept-disk": ({"max_model_len": 4096, "extra_args": ["--seed", "7"]}, True),
}


def compare(name: str, value: object) -> None:
    """Compare with a recorded value."""
    path = _GOLDEN / f"{name}.json"
    if os.environ.get("TESTS_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert value == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", _CASES)
def test_the_create_command_is_exactly_as_recorded(case: str) -> None:
    options, old_disk = _CASES[case]
    spec = request(**options)
    argv = create_argv(spec, PROJECT, "us-west2-b", _ACCOUNT, old_disk=old_disk)
    compare(f"create-{case}", list(argv))


def test_a_time_to_live_is_enforced_by_google() -> None:
    spec = request(ttl_hours=1.5)
    argv = create_argv(spec, PROJECT, "us-west2-b", _ACCOUNT, old_disk=False)
    assert "--max-run-duration=5400s" in argv
    assert "--instance-termination-action=STOP" in argv


def test_vllm_is_told_what_the_reference_tells_it() -> None:
    argv = engine_argv(serving_spec(request()))
    compare("engine", list(argv))


def test_what_is_recognised_is_the_same_in_every_zone_and_other_for_another_request() -> None:
    def label(zone: str, **options: Any) -> str:
        return label_of(create_argv(request(**options), PROJECT, zone, _ACCOUNT, old_disk=False))

    assert label("us-west2-b") == label("us-central1-a")
    assert label("us-west2-b") != label("us-west2-b", max_model_len=4096)


def test_no_flag_appears_twice_and_nothing_of_a_token_is_there() -> None:
    argv = create_argv(request(), PROJECT, "us-west2-b", _ACCOUNT, old_disk=False)
    names = [item.partition("=")[0] for item in argv if item.startswith("--")]
    assert len(names) == len(set(names))
    assert not any("HF_TOKEN" in item for item in argv)

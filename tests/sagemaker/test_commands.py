"""The exact commands, word for word. Golden files: TESTS_UPDATE_SNAPSHOTS=1 writes them anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from backends.core.errors import ConflictError
from backends.core.plans import Plan, Step
from backends.core.script import shell_script
from backends.sagemaker import component_steps
from backends.sagemaker.commands import config_name, deployment_of, policy, role_name, tags_of
from backends.sagemaker.deploying import _fallback
from backends.sagemaker.steps import create_steps, role_steps, update_steps, wanted
from tests.sagemaker.made import ACCOUNT, TAG, deployed, hosting, place, request, world

_GOLDEN = Path(__file__).parent / "golden"


def created(**options: Any) -> list[Step]:
    spec = request(**options)
    here = place()
    there = world(here)
    new = create_steps(spec, there, here, model_there=False, config_there=False)
    return [*role_steps(spec, there), *new]


def updated(**options: Any) -> list[Step]:
    spec, here = request(**options), place()
    return update_steps(spec, world(here), here, deployed(), model_there=False)


def zero(**options: Any) -> list[Step]:
    spec, here = request(scale_to_zero=True, **options), place()
    there = world(here)
    new = component_steps.create_steps(spec, there, here, model_there=False, config_there=False)
    return [*role_steps(spec, there), *new]


def replaced(**options: Any) -> list[Step]:
    spec, here = request(scale_to_zero=True, **options), place()
    there = world(here)
    return component_steps.replace_steps(spec, there, here, hosting(), model_there=False)


_CASES: dict[str, list[Step]] = {
    "zero-create": zero(types=["ml.g6.xlarge"], instances=2),
    "zero-pool": zero(capacity_timeout_s=600),
    "zero-replace": replaced(types=["ml.g6.xlarge"], instances=2, max_model_len=4096),
    "create": created(),
    "create-one-type": created(types=["ml.g6.2xlarge"], instances=2, capacity_timeout_s=900),
    "create-from-bucket": created(
        model="s3://weights/gemma-4-E2B-it", role=f"arn:aws:iam::{ACCOUNT}:role/mine"
    ),
    "create-text-only": created(
        text_only=True,
        max_num_seqs=64,
        kv_cache_dtype="fp8",
        env=["SM_VLLM_ENFORCE_EAGER="],
        tags=["team=sre"],
    ),
    "update": updated(max_model_len=16384),
    "update-canary-own-alarms": updated(rollout="canary", rollout_wait_s=60, rollback_alarms=["a"]),
    "update-candidate": updated(candidate=True, max_model_len=16384),
}


@pytest.mark.parametrize("case", _CASES)
def test_the_commands_are_exactly_as_recorded(case: str) -> None:
    argvs = [list(step.argv) for step in _CASES[case]]
    path = _GOLDEN / f"{case}.json"
    if os.environ.get("TESTS_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(argvs, indent=1) + "\n", encoding="utf-8")
    assert argvs == json.loads(path.read_text(encoding="utf-8"))


def test_everything_that_is_made_is_named_with_its_undo_and_tagged_ours() -> None:
    for step in _CASES["create"]:
        assert step.creates
        assert step.undo
        if step.data["thing"] != "policy":
            assert '"Key":"managed-by","Value":"vllm-devops"' in " ".join(step.argv)


def test_what_scales_to_zero_has_no_model_on_its_instances_and_a_way_back() -> None:
    shown = [step.shown() for step in _CASES["zero-create"]]
    config = next(command for command in shown if "create-endpoint-config" in command)
    assert "ModelName" not in config
    assert '"MinInstanceCount":0,"MaxInstanceCount":2' in config
    assert "--execution-role-arn" in config
    order = [step.data.get("thing") for step in _CASES["zero-create"] if step.kind == "later"]
    assert order == ["component", "copies scaling", "copies policy", "wake policy", "wake alarm"]


def test_other_settings_of_vllm_leave_the_instances_of_what_scales_to_zero_alone() -> None:
    requests = request(scale_to_zero=True), request(scale_to_zero=True, max_model_len=4096)
    one, other = (component_steps.hosted(item, "us-east-2", TAG) for item in requests)
    assert one[0].name != other[0].name
    assert one[1] == other[1]
    with pytest.raises(ConflictError, match="InstanceType differ"):
        replaced(types=["ml.g6.2xlarge"], instances=2)
    # Other tags are no other instances: the component is put where they are.
    tagged = replaced(types=["ml.g6.xlarge"], instances=2, tags=["team=sre"], max_model_len=4096)
    create = next(step for step in tagged if step.data.get("thing") == "component")
    running = hosting().config
    assert running is not None
    assert create.argv[create.argv.index("--variant-name") + 1] == running.variants[0].name


def test_a_pool_and_a_single_type_exclude_each_other() -> None:
    pool = wanted(request(), "us-east-2", TAG, 1.0).raw
    one = wanted(request(types=["ml.g6.xlarge"]), "us-east-2", TAG, 1.0).raw
    assert "InstanceType" not in pool
    assert [item["Priority"] for item in pool["InstancePools"]] == [1, 2]
    assert "InstancePools" not in one


def test_the_machine_image_follows_the_cuda_of_the_image() -> None:
    assert wanted(request(), "us-east-2", TAG, 1.0).ami.endswith("gpu-4-1")
    told = wanted(request(ami="al2-ami-sagemaker-inference-gpu-3-1"), "us-east-2", TAG, 1.0)
    assert told.ami.endswith("gpu-3-1")


def test_other_settings_have_another_name_and_the_same_ones_the_same() -> None:
    names = {
        wanted(request(**options), "us-east-2", TAG, 1.0).name
        for options in ({}, {}, {"max_model_len": 4096}, {"instances": 2}, {"tags": ["a=b"]})
    }
    assert len(names) == 4


def test_names_keep_within_sagemakers_and_iams_limits() -> None:
    longest = "a-name-of-forty-eight-characters-which-is-the-mos"[:48]
    assert len(config_name(longest, "1a2b3c4d")) <= 63
    assert len(role_name(longest)) <= 64
    assert deployment_of(config_name(longest, "1a2b3c4d")) == longest
    assert deployment_of("somebody-elses-config") is None


def test_the_role_may_do_nothing_but_pull_log_and_read_its_weights() -> None:
    plain = policy(request(), "aws", ACCOUNT)
    actions = json.dumps(plain)
    assert "s3:" not in actions
    assert "iam:" not in actions
    assert '"*"' not in json.dumps([s["Action"] for s in plain["Statement"]])
    bucket = json.dumps(policy(request(model="s3://weights/g/e2b"), "aws", ACCOUNT))
    assert "arn:aws:s3:::weights/g/e2b/*" in bucket
    own = "123456789012.dkr.ecr.us-east-2.amazonaws.com/team/vllm:1"
    assert "ecr:*:123456789012:repository/team/vllm" in json.dumps(
        policy(request(image=own), "aws", ACCOUNT)
    )


def test_tags_of_ones_own_do_not_replace_ours() -> None:
    tags = {tag["Key"]: tag["Value"] for tag in tags_of("gemma4", ["vllm-devops-name=x", "a=b"])}
    assert tags["vllm-devops-name"] == "gemma4"
    assert tags["a"] == "b"


def test_a_fallback_shows_every_region_in_order_and_runs_none_of_it_at_once() -> None:
    spec = request(fallback_regions=["us-west-2", "eu-central-1"])
    places = [place(), place("us-west-2"), place("eu-central-1")]
    notes: list[str] = []
    steps = _fallback(spec, world(*places), ["ml.g6.xlarge", "ml.g6.4xlarge"], notes)
    assert [step.kind for step in steps] == ["operation", *["later"] * 6]
    assert [step.data["place"] for step in steps[1:]] == [*["us-west-2"] * 3, *["eu-central-1"] * 3]
    assert "Only if us-east-2 has no capacity" in steps[1].title
    assert "Only if us-west-2 has no capacity" in steps[4].title
    assert "--region us-west-2" in steps[1].shown()
    assert any("us-west-2: ml.g6.4xlarge is left out" in note for note in notes)


def test_as_a_script_what_has_to_wait_is_shown_and_not_run() -> None:
    steps = _CASES["zero-create"]
    plan = Plan(verb="deploy", target="sagemaker-l4", name="gemma4", summary="", steps=steps)
    lines = shell_script(plan).splitlines()
    assert any(line.startswith("aws sagemaker create-endpoint ") for line in lines)
    assert not any(line.startswith("aws sagemaker create-inference-component") for line in lines)
    assert any(line.startswith("# when that is so: aws sagemaker create-inf") for line in lines)

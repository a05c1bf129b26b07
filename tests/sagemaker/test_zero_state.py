"""One state of what scales to zero, from endpoint, component and logs."""

from __future__ import annotations

from typing import Any

import pytest

from backends.core.answers import State
from backends.sagemaker.component_state import judge_component, wake_s, while_put_on
from backends.sagemaker.components import Bounds
from tests.sagemaker.made import READY, STARTING, hosting, sight
from tests.sagemaker.test_state import OOM

NOW = 1400.0
BY_HAND = Bounds()
UNKNOWN = Bounds(problem="permission_denied: no")


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "ready", "1 copy on 1 x ml.g6.xlarge"),
        ({"desired": 2, "status": "Updating"}, "ready", "going to 2"),
        ({"desired": 0, "status": "Updating"}, "stopping", "its copies end now"),
        ({"copies": 0, "desired": 0}, "scaled_to_zero", "still there and paid for until SageMaker"),
        ({"copies": 0, "desired": 0, "count": 0}, "scaled_to_zero", "nothing is billed but its"),
        ({"copies": 0, "desired": 0, "count": None}, "scaled_to_zero", "? x ml.g6.xlarge still"),
        ({"endpoint_status": "Updating"}, "ready", "1 copy on 1 x ml.g6.xlarge"),
        ({"endpoint_status": "Updating", "empty": True}, "creating", "is updating"),
        ({"endpoint_status": "Creating", "empty": True}, "creating", "an instance is placed"),
        ({"endpoint_status": "Creating", "empty": True, "count": 0}, "creating", "for capacity"),
        ({"endpoint_status": "Deleting"}, "stopping", "is being deleted"),
        ({"copies": 0, "desired": 0, "bounds": BY_HAND}, "stopped", "no request starts it"),
        ({"copies": 0, "desired": 0, "bounds": UNKNOWN}, "scaled_to_zero", "a request wakes it"),
        ({"copies": 0, "status": "Updating"}, "starting", "is waking up: an instance is there"),
        ({"copies": 0, "status": "Updating", "count": 0}, "starting", "waiting for capacity"),
        ({"copies": 0, "status": "Creating"}, "creating", "is starting"),
        ({"status": "Deleting"}, "stopping", "model taken off"),
        ({"status": "Failed"}, "failed", "could not be put on the endpoint"),
        ({"empty": True}, "failed", "hosts no model yet"),
    ],
)
def test_every_word_of_sagemaker_has_a_state(
    changes: dict[str, Any], state: State, words: str
) -> None:
    judged = judge_component(hosting(**changes), sight(), NOW, None)
    assert (judged.state, words in judged.words) == (state, True), judged.words


def test_what_was_asked_for_a_moment_ago_is_waking_though_sagemaker_does_not_say_so_yet() -> None:
    asleep = hosting(copies=0, desired=0, count=0)
    judged = judge_component(asleep, sight(), NOW, 12.0)
    assert judged.state == "starting"
    assert judged.phase == "waking"
    assert judged.expected_s == pytest.approx(wake_s())
    # Without automatic scaling nothing comes of having asked.
    stopped = hosting(copies=0, desired=0, count=0, bounds=BY_HAND)
    assert judge_component(stopped, sight(), NOW, 12.0).state == "stopped"


def test_a_wake_up_that_failed_says_why_and_what_mends_it() -> None:
    reason = "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity"
    judged = judge_component(hosting(copies=0, desired=0, reason=reason), sight(), NOW, None)
    assert judged.state == "scaled_to_zero"
    assert judged.error == reason
    assert "Quota is permission" in str(judged.cause)


def test_no_room_for_a_copy_is_explained() -> None:
    reason = (
        "There is not enough hardware resources on the instances for this endpoint to create a "
        "copy of the inference component."
    )
    failed = hosting(status="Failed", copies=0, reason=reason)
    judged = judge_component(failed, sight(), NOW, None)
    assert "a copy takes whole GPUs" in str(judged.cause)
    assert "options.instances" in str(judged.fix)


def test_a_start_is_told_phase_by_phase_from_the_components_own_log() -> None:
    starting = hosting(copies=0, status="Creating")
    loading = judge_component(starting, sight(STARTING), NOW, None)
    assert loading.phase == "loading_weights"
    assert loading.elapsed_s == pytest.approx(200)
    assert judge_component(starting, sight(READY), NOW, None).phase == "health_checks"
    crashed = judge_component(starting, sight(OOM), NOW, None)
    assert crashed.state == "failed"
    assert "goes on saying Creating" in crashed.words
    assert judge_component(hosting(), sight(OOM), NOW, None).state == "degraded"


def test_what_an_operation_still_puts_on_has_not_failed() -> None:
    empty = hosting(empty=True)
    judged = while_put_on(judge_component(empty, sight(), NOW, None), empty, "op-1", "waiting")
    assert judged.state == "creating"
    assert "operation op-1 puts the model on it (waiting)" in judged.words
    ready = hosting(bounds=BY_HAND)
    judged = while_put_on(judge_component(ready, sight(), NOW, None), ready, "op-1", "")
    assert judged.warnings == ("Operation op-1 sets its automatic scaling up.",)


def test_scaling_that_is_off_is_said_of_what_was_made_to_scale() -> None:
    judged = judge_component(hosting(bounds=BY_HAND), sight(), NOW, None)
    assert "does not go to zero by itself" in judged.warnings[0]

"""One state from what Cloud Run and the logs say."""

from __future__ import annotations

from typing import Any

import pytest

from backends.cloudrun.instances import Counted, newest_count
from backends.cloudrun.logs import Sight
from backends.cloudrun.services import Condition, Share
from backends.cloudrun.state import counts, judge
from backends.knowledge.cloudrun import L4
from tests.cloudrun.made import READY, STARTING, service, sight

NOW = 5000.0


def test_a_service_nobody_has_asked_for_a_while_is_scaled_to_zero_and_no_fault() -> None:
    judged = judge(L4, service(), sight(READY, last_at=NOW - 2000), NOW)
    assert judged.state == "scaled_to_zero"
    assert judged.error is None
    assert "next request wakes it" in judged.words


def test_an_instance_heard_of_just_now_is_up() -> None:
    assert judge(L4, service(), sight(READY, last_at=NOW - 30), NOW).state == "ready"


def test_an_instance_that_said_goodbye_is_gone_at_once() -> None:
    gone = sight([*READY, "INFO:     Shutting down"], last_at=NOW - 5)
    assert judge(L4, service(), gone, NOW).state == "scaled_to_zero"


def test_a_woken_instance_that_still_loads_is_starting() -> None:
    judged = judge(L4, service(), sight(STARTING, last_at=NOW - 1), NOW)
    assert judged.state == "starting"
    assert judged.phase == "loading_weights"
    assert "has an instance starting" in judged.words


def test_logs_that_cannot_be_read_never_become_scaled_to_zero() -> None:
    judged = judge(L4, service(), sight(problem="permission_denied: no"), NOW)
    assert judged.state == "ready"
    assert "cannot be told" in judged.words
    assert judged.warnings


@pytest.mark.parametrize(
    ("told", "counted", "state", "words"),
    [
        (sight(READY, last_at=NOW - 2000), Counted(2, NOW - 90), "ready", "2 instances up"),
        (sight(READY, last_at=NOW - 300), Counted(0, NOW), "scaled_to_zero", "counts no instance"),
        (sight(problem="rate_limited"), Counted(0, NOW), "scaled_to_zero", "counts no instance"),
        (sight(problem="rate_limited"), Counted(1, NOW), "ready", "by Cloud Monitoring"),
        (sight(STARTING, last_at=NOW - 300), Counted(1, NOW), "starting", "instance starting"),
        (
            sight(READY, last_at=NOW - 2000),
            Counted(problem="api_disabled"),
            "scaled_to_zero",
            "judged by its logs alone",
        ),
    ],
    ids=[
        "quiet but up", "gone without a word", "no logs, none up", "no logs, one up", "loading",
        "not counted",
    ],
)  # fmt: skip
def test_a_count_of_instances_is_believed_over_silence(
    told: Sight, counted: Counted, state: str, words: str
) -> None:
    judged = judge(L4, service(), told, NOW, counted)
    assert judged.state == state
    assert words in judged.words
    assert judged.instances == counted.number or state == "starting"
    assert all(problem in " ".join(judged.warnings) for problem in [counted.problem, told.problem])


def test_instances_are_counted_only_where_the_logs_do_not_tell() -> None:
    assert not counts(service(), sight(READY, last_at=NOW - 30), NOW)
    assert counts(service(), sight(READY, last_at=NOW - 300), NOW)
    assert counts(service(), sight(problem="no"), NOW)
    gone = sight([*READY, "INFO:     Shutting down"], last_at=NOW - 5)
    assert not counts(service(), gone, NOW)
    assert counts(service(max_instances=2), gone, NOW)
    for other in (service(manual=0), service(min_instances=1), service(ready=None)):
        assert not counts(other, sight(READY, last_at=NOW - 300), NOW)


def test_the_newest_points_of_all_revisions_and_states_are_added_up() -> None:
    def series(*points: tuple[float, int]) -> dict[str, Any]:
        shown = [
            {
                "interval": {"endTime": f"1970-01-01T01:{int(at) // 60:02d}:{int(at) % 60:02d}Z"},
                "value": {"int64Value": str(number)},
            }
            for at, number in points
        ]
        return {"points": shown}

    hour = 3600.0
    both = [series((600, 1), (540, 3)), series((600, 2)), series((300, 7))]
    assert newest_count(both, hour + 700) == Counted(3, hour + 600)
    assert newest_count(both, hour + 1000).number == 0, "points that are missing are instances"
    assert newest_count([], hour).number == 0


def test_warm_instances_are_up_whatever_the_logs_say() -> None:
    assert judge(L4, service(min_instances=1), sight(), NOW).state == "ready"
    assert judge(L4, service(manual=2), sight(), NOW).state == "ready"


def test_manual_scaling_at_zero_is_stopped_and_says_how_to_start() -> None:
    judged = judge(L4, service(manual=0), sight(), NOW)
    assert judged.state == "stopped"
    assert "Service is disabled" in judged.words
    assert judged.fix is not None
    assert "start_serving" in judged.fix


def test_a_new_service_is_starting_with_its_phases_beside_what_is_usual() -> None:
    new = service(ready=None, reconciling=True, ready_revision="", traffic=())
    judged = judge(L4, new, sight(STARTING, last_at=NOW), NOW)
    assert judged.state == "starting"
    names = [phase.name for phase in judged.phases]
    assert names[0] == "pulling_image"
    assert "loading_weights" in names
    assert judged.expected_s == pytest.approx(sum(p.seconds.value for p in L4.reference.startup))
    running = [phase.name for phase in judged.phases if phase.state == "running"]
    assert running == ["loading_weights"]


def test_a_redeploy_is_starting_while_the_old_revision_goes_on_serving() -> None:
    again = service(created_revision="gemma4-00002-xyz")
    judged = judge(L4, again, sight(STARTING, last_at=NOW), NOW)
    assert judged.state == "starting"
    assert "gemma4-00001-abc goes on serving" in judged.words


def test_a_failed_redeploy_is_degraded_not_failed() -> None:
    again = service(
        ready=False,
        created_revision="gemma4-00002-xyz",
        conditions=(Condition("Ready", False, "HealthCheckContainerError", "probe failed"),),
    )
    assert judge(L4, again, sight(), NOW).state == "degraded"


def test_the_engines_own_words_explain_more_than_the_platforms() -> None:
    failed = service(
        ready=False,
        ready_revision="",
        traffic=(Share("", 100, latest=True),),
        conditions=(
            Condition(
                "Ready",
                False,
                "HealthCheckContainerError",
                "The user-provided container failed to start and listen on the port defined "
                "provided by the PORT=8000 environment variable within the allocated timeout.",
            ),
        ),
    )
    lines = [
        *STARTING,
        "ERROR 11-30 10:01:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 2.00 GiB.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    judged = judge(L4, failed, sight(lines, last_at=NOW), NOW)
    assert judged.state == "failed"
    assert judged.cause is not None
    assert "memory is full" in judged.cause
    assert judged.error is not None
    assert "failed to start and listen" in judged.error


PROBE = "STARTUP HTTP probe failed 10 times consecutively for container gemma4-1 on port 8000."
LIMITED = (
    "HTTP Error 429 thrown while requesting HEAD https://huggingface.co/google/gemma-4-E2B-it",
    "Rate limited. Waiting 253.0s before retry [Retry 1/5].",
)


@pytest.mark.parametrize("ready", [None, False])
@pytest.mark.parametrize(
    "told",
    [
        sight([*STARTING, *LIMITED], last_at=NOW, trouble=PROBE),
        sight(STARTING, last_at=NOW, trouble=PROBE, before=LIMITED[1]),
        sight(last_at=NOW, before=LIMITED[1]),
    ],
    ids=["said by this instance", "said by the one before", "the new one is silent"],
)
def test_what_the_log_waited_for_explains_more_than_the_probe(
    ready: bool | None, told: Sight
) -> None:
    failed = service(
        ready=ready,
        reconciling=ready is None,
        ready_revision="",
        conditions=(Condition("Ready", ready, "", PROBE),),
    )
    judged = judge(L4, failed, told, NOW)
    assert judged.state == ("failed" if ready is False else "starting")
    assert judged.cause is not None
    assert "Hugging Face limits requests" in judged.cause
    assert "Rate limited" in (judged.error or "") + " ".join(judged.warnings)


def test_a_probe_that_gives_up_on_a_loading_model_says_so() -> None:
    failed = service(
        ready=False,
        ready_revision="",
        conditions=(Condition("Ready", False, "", "failed to start and listen on the port"),),
    )
    judged = judge(L4, failed, sight(STARTING, last_at=NOW), NOW)
    assert judged.fix is not None
    assert "failure threshold" in judged.fix


def test_what_is_being_deleted_is_neither_ready_nor_stopped_yet() -> None:
    judged = judge(L4, service(being_deleted=True, manual=0), sight(READY, last_at=NOW), NOW)
    assert judged.state == "stopping"
    assert "cost ends when it is gone" in judged.words

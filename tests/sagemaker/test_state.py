"""One state from what SageMaker and the logs say."""

from __future__ import annotations

import pytest

from backends.core.answers import State
from backends.sagemaker.endpoints import Deployed, Variant
from backends.sagemaker.state import judge, looked_after
from tests.sagemaker.made import READY, STARTING, config, deployed, sight

NOW = 1400.0
UNPLACED = (Variant("v-1a2b3c4d"),)
PLACED = (Variant("v-1a2b3c4d", count=1),)
OOM = (
    *STARTING,
    "ERROR 11-30 10:01:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to "
    "allocate 2.62 GiB. GPU 0 has a total capacity of 21.96 GiB of which 1.84 GiB is free.",
    "RuntimeError: Engine core initialization failed. See root cause above.",
)
MMAP = (
    *STARTING,
    "ERROR 11-30 10:01:00 [core.py:1] RuntimeError: unable to mmap 23265352448 bytes from file "
    "</root/m.safetensors>: Cannot allocate memory (12)",
)
NO_KV = (
    *STARTING,
    "INFO 11-30 10:01:00 [gpu_worker.py:1] Available KV cache memory: -0.29 GiB",
    "ERROR 11-30 10:01:00 [core.py:1] ValueError: No available memory for the cache blocks.",
)


@pytest.mark.parametrize(
    ("variants", "lines", "phase"),
    [
        (UNPLACED, (), "waiting_for_capacity"),
        (PLACED, (), "pulling_image"),
        (PLACED, STARTING, "loading_weights"),
        (PLACED, READY, "health_checks"),
    ],
)
def test_a_start_is_told_phase_by_phase_beside_what_is_usual(
    variants: tuple[Variant, ...], lines: tuple[str, ...], phase: str
) -> None:
    judged = judge(deployed("Creating", variants=variants), sight(lines), NOW)
    assert judged.phase == phase
    assert judged.state in {"creating", "starting"}
    assert judged.expected_s == pytest.approx(593.75)
    assert judged.elapsed_s == pytest.approx(400)
    assert "400 s of about 594 s" in judged.words
    running = [view.name for view in judged.phases if view.state == "running"]
    assert running == [phase]


def test_a_container_that_has_said_nothing_of_vllm_yet_is_pulling() -> None:
    began = judge(deployed("Creating", variants=PLACED), sight(stream="v/i-1"), NOW)
    assert began.phase == "pulling_image"


def test_waiting_long_for_capacity_is_explained_and_no_failure() -> None:
    judged = judge(deployed("Creating", variants=UNPLACED), sight(), NOW)
    assert judged.state == "creating"
    assert judged.cause is not None
    assert "quota is permission" in judged.cause


def test_in_service_is_ready_and_names_the_instance_that_was_placed() -> None:
    judged = judge(deployed(), sight(READY), NOW)
    assert judged.state == "ready"
    assert "1 x ml.g6.xlarge" in judged.words


@pytest.mark.parametrize(
    ("lines", "cause", "fix"),
    [
        (OOM, "21.96 GiB", "text_only"),
        (MMAP, "host's RAM", "ml.g6.2xlarge"),
        (NO_KV, "nothing is left for the KV cache", "gpu_memory_utilization"),
    ],
)
def test_an_engine_that_failed_is_told_before_sagemaker_says_so(
    lines: tuple[str, ...], cause: str, fix: str
) -> None:
    judged = judge(deployed("Creating", variants=PLACED), sight(lines), NOW)
    assert judged.state == "failed"
    assert "until its health-check window of 1800 s" in judged.words
    assert cause in str(judged.cause)
    assert fix in str(judged.fix)
    assert any("when_settled" in w or "operation" in w for w in judged.warnings)


@pytest.mark.parametrize(
    ("reason", "lines", "words"),
    [
        (
            "Unable to provision requested ML compute capacity due to "
            "InsufficientInstanceCapacity error.",
            (),
            "fallback_regions",
        ),
        ("CannotStartContainerError. Please ensure the model container ...", (), "gpu-4-1"),
        (
            "The primary container for production variant v-1 did not pass the ping health check.",
            STARTING,
            "startup_timeout_s",
        ),
        (
            "The primary container for production variant v-1 did not pass the ping health check.",
            OOM,
            "text_only",
        ),
    ],
)
def test_a_failed_endpoint_has_cause_and_fix(
    reason: str, lines: tuple[str, ...], words: str
) -> None:
    judged = judge(deployed("Failed", reason=reason, variants=UNPLACED), sight(lines), NOW)
    assert judged.state == "failed"
    assert reason in str(judged.error)
    assert words in str(judged.fix)


def test_no_container_was_started_where_there_is_no_log() -> None:
    judged = judge(deployed("Failed", reason="x", variants=UNPLACED), sight(), NOW)
    assert "before a container was started" in judged.words


def test_a_configuration_without_endpoint_is_stopped() -> None:
    judged = judge(Deployed("gemma4", "us-east-2", config()), sight(), NOW)
    assert judged.state == "stopped"
    assert "start_serving" in str(judged.fix)


@pytest.mark.parametrize(
    ("status", "state"),
    [("Deleting", "stopping"), ("Updating", "starting"), ("RollingBack", "starting"),
     ("OutOfService", "failed"), ("UpdateRollbackFailed", "failed")],
)  # fmt: skip
def test_every_word_of_sagemaker_has_a_state(status: str, state: State) -> None:
    assert judge(deployed(status), sight(), NOW).state == state


def test_an_update_says_that_the_old_one_goes_on_serving() -> None:
    judged = judge(deployed("Updating", next_config="gemma4-vllm-x"), sight(STARTING), NOW)
    assert "goes on serving" in judged.words


def test_a_failed_update_is_degraded_not_failed() -> None:
    assert judge(deployed("Updating", next_config="n"), sight(OOM), NOW).state == "degraded"


def test_logs_that_cannot_be_read_are_a_warning() -> None:
    judged = judge(deployed(), sight(problem="permission_denied: no"), NOW)
    assert judged.state == "ready"
    assert "permission_denied" in judged.warnings[0]


def test_want_of_capacity_is_the_phase_that_failed_and_there_is_no_log_to_read() -> None:
    reason = "Unable to provision ML compute capacity due to InsufficientInstanceCapacity error."
    judged = judge(deployed("Failed", variants=UNPLACED, reason=reason), sight(), NOW)
    states = {view.name: view.state for view in judged.phases}
    assert (states["waiting_for_capacity"], states["pulling_image"]) == ("failed", "pending")
    assert judged.unlogged
    image = "CannotStartContainerError. Please ensure the model container starts."
    judged = judge(deployed("Failed", variants=UNPLACED, reason=image), sight(), NOW)
    states = {view.name: view.state for view in judged.phases}
    assert (states["waiting_for_capacity"], states["pulling_image"]) == ("done", "failed")


def test_what_an_operation_goes_on_with_has_not_failed_for_good() -> None:
    failed = judge(deployed("Failed", variants=UNPLACED, reason="no capacity"), sight(), NOW)
    goes_on = looked_after(failed, "deploy_fallback", "op-1", "us-east-2 has no capacity")
    assert goes_on.state == "creating"
    assert "op-1 goes on in the next region (us-east-2 has no capacity)" in goes_on.words
    assert "get_operation(operation_id='op-1'" in str(goes_on.fix)
    serving = judge(deployed(), sight(READY), NOW)
    assert looked_after(serving, "deploy_fallback", "op-1", "").state == "ready"
    ending = looked_after(failed, "destroy_when_settled", "op-2", "")
    assert ending.state == "failed"
    assert "op-2 deletes it" in ending.warnings[-1]

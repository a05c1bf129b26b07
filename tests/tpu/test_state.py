"""From Google's words and a look at the machine to one state, with its phases and reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.tpu.advice import context_advice, facts_of, misleading
from backends.tpu.records import Stage, seconds_of_time
from backends.tpu.sight import Machine
from backends.tpu.state import judge
from tests.tpu.made import COMPILED, CREATED, READY, TPU_LOG, look, request

BORN_S = seconds_of_time(CREATED)
BOOT = f"{BORN_S:.0f} booting\n{BORN_S + 60:.0f} pulling\n"
LOADING = "".join(TPU_LOG.splitlines(keepends=True)[:2])
STARTED = f"{BOOT}{BORN_S + 150:.0f} starting\n"


@pytest.mark.parametrize("word", ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"])
def test_waiting_for_resources_is_waiting_and_not_failing(word: str) -> None:
    judged = judge(request(word, None), None, BORN_S + 600)
    assert (judged.state, judged.phase) == ("creating", "queued")
    assert "waiting, not failing" in judged.words
    assert "10 min" in judged.words
    assert [phase.state for phase in judged.phases] == ["running", *["pending"] * 5]


@pytest.mark.parametrize(
    ("phases", "log", "phase", "words"),
    [
        (BOOT.splitlines()[0] + "\n", "", "booting", "is booting"),
        (BOOT, "", "pulling", "is pulling"),
        (STARTED, "", "loading", "is loading"),
        (STARTED, LOADING, "loading", "is loading"),
        (STARTED, TPU_LOG, "compiling", "the long part of a cold start"),
        (STARTED, TPU_LOG + COMPILED, "compiling", "of about 685"),
    ],
)
def test_each_phase_of_a_start_is_told_beside_what_is_usual(
    phases: str, log: str, phase: str, words: str
) -> None:
    judged = judge(request(), look(phases, log), BORN_S + 300)
    assert (judged.state, judged.phase) == ("starting", phase)
    assert words in judged.words
    running = next(item for item in judged.phases if item.state == "running")
    assert running.name == phase
    assert running.expected_s


def test_a_ready_engine_shows_how_long_each_phase_took() -> None:
    machine = look(f"{STARTED}{BORN_S + 600:.0f} ready\n", TPU_LOG + COMPILED + READY)
    judged = judge(request(), machine, BORN_S + 9000)
    assert judged.state == "ready"
    seconds = {phase.name: phase.seconds for phase in judged.phases}
    assert seconds["booting"] == 60
    assert seconds["pulling"] == 90
    assert seconds["loading"] == 70
    assert judged.elapsed_s == 600


def test_what_is_left_of_an_earlier_boot_is_not_taken_for_this_one() -> None:
    machine = look(f"{BORN_S:.0f} booting\n", TPU_LOG + READY, "exited 1 x")
    assert judge(request(), machine, BORN_S + 5).phase == "booting"


def test_a_machine_that_does_not_answer_is_booting_while_young_and_unknown_later() -> None:
    silent = Machine(problem="ssh: connect to host port 22: Connection refused", unreachable=True)
    assert judge(request(), silent, BORN_S + 100).phase == "booting"
    old = judge(request(), silent, BORN_S + 4000)
    assert old.state == "unknown"
    assert old.cause is not None
    assert "firewall" in old.cause


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("cannot read the secret hf-token: no scope, or no roles/x", "may not read the secret"),
        ("docker could not be installed", None),
        ("the image x could not be pulled", None),
    ],
)
def test_a_start_script_that_failed_says_why(words: str, cause: str | None) -> None:
    judged = judge(request(), look(f"{BOOT}{BORN_S + 90:.0f} failed: {words}\n"), BORN_S + 100)
    assert judged.state == "failed"
    assert words in judged.words
    assert judged.cause is None if cause is None else cause in str(judged.cause)


def test_an_engine_out_of_memory_is_named_with_the_setting_to_change() -> None:
    log = TPU_LOG + (
        "(EngineCore pid=1) ERROR 11-30 10:09:00 [core.py:1] EngineCore failed to start.\n"
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM. HLO temporaries "
        "(16.23G) exceeds available HBM (15.75G)\n"
    )
    failed = f"{STARTED}{BORN_S + 700:.0f} failed: the container has ended\n"
    judged = judge(request(), look(failed, log, "exited 1 x"), BORN_S + 800)
    assert judged.state == "failed"
    assert "max_model_len" in str(judged.fix)


def test_a_stopped_container_is_stopped_and_not_failed() -> None:
    machine = look(f"{STARTED}{BORN_S + 900:.0f} stopped\n", TPU_LOG + READY, "exited 143 x")
    judged = judge(request(), machine, BORN_S + 950)
    assert judged.state == "stopped"
    assert "start_serving" in str(judged.fix)


def test_a_preempted_node_is_told_from_a_run_that_is_over_and_from_a_failure() -> None:
    gone = judge(request("SUSPENDED", None), None, BORN_S)
    assert "preempted" in gone.words
    assert "on-demand and flex-start are not preempted" in str(gone.fix)
    taken = judge(request("ACTIVE", "PREEMPTED"), None, BORN_S)
    assert "preempted" in taken.words
    over = request(
        "SUSPENDED", None, provisioningModel="FLEX_START", runDuration={"maxRunDuration": "600s"}
    )
    assert "as long as it asked for" in judge(over, None, BORN_S).words
    words = "There is no more capacity in the zone"
    failed = judge(replace(request("FAILED", None), said=words), None, BORN_S)
    assert failed.error == words
    assert "options.zones" in str(failed.fix)


def test_the_last_hour_of_a_run_is_warned_about() -> None:
    flex = request(provisioningModel="FLEX_START", runDuration={"maxRunDuration": "14400s"})
    machine = look(STARTED, TPU_LOG + READY)
    early = judge(flex, machine, BORN_S + 3600)
    assert early.left_s == 10_800
    assert early.warnings == ()
    late = judge(flex, machine, BORN_S + 12_600)
    assert "Google ends it in 30 min" in late.warnings[0]


def test_memory_and_capacity_come_from_the_engines_own_lines() -> None:
    machine = look(STARTED, TPU_LOG + COMPILED + READY)
    facts = facts_of(machine.log, machine.progress, 1)
    assert facts["hbm_gib_per_chip"] == 31.24
    assert facts["hbm_weights_gib_per_chip"] == 8.97
    assert facts["hbm_kv_gib_per_chip"] == 19.77
    assert facts["hbm_free_gib_per_chip"] == 2.5
    assert facts["kv_tokens"] == 1_151_744
    assert facts["max_concurrency_full_length"] == 35.15
    assert facts["kv_kib_per_token_per_chip"] == 18.0
    advice = " ".join(context_advice(machine.log, machine.progress, [16_384]))
    assert "16384: 70" in advice
    assert "2.50 GiB are left for activations" in advice


def test_memory_is_not_made_up_before_the_log_tells_of_it() -> None:
    machine = look(STARTED, LOADING)
    assert facts_of(machine.log, machine.progress, 4) == {"chips": 4}
    assert context_advice(machine.log, machine.progress) == []


def test_the_fp8_line_is_named_as_the_false_signal_it_is() -> None:
    line = "INFO 11-30 [x.py:1] Automatically using fp8_e5m2 for FP8 KV cache on TPU v6e.\n"
    said = misleading(TPU_LOG + line * 20)
    assert len(said) == 1
    assert "stays bf16" in said[0]


def test_a_stopped_machine_keeps_its_disk_and_not_its_chips() -> None:
    judged = judge(request("ACTIVE", "STOPPED"), None, BORN_S)
    assert judged.state == "stopped"
    assert "chips are given up" in judged.words


def test_a_request_of_somebody_else_is_read_and_not_ours() -> None:
    foreign = replace(request(), labels={"team": "other"}, settings={})
    assert not foreign.managed
    assert foreign.model is None


@pytest.mark.parametrize(
    ("stage", "words"),
    [("deleting", "cost ends when it is gone"), ("stopping", "chips bill until it is")],
)
def test_what_is_on_its_way_out_says_until_when_it_is_paid_for(stage: Stage, words: str) -> None:
    judged = judge(replace(request(), stage=stage), None, BORN_S + 600)
    assert judged.state == "stopping"
    assert words in judged.words

"""From what is seen to one state, with phases, cause and the next call."""

from __future__ import annotations

from typing import Any

import pytest

from backends.clouds.google_compute_prices import ComputePrices
from backends.gce.costs import disks_per_hour, rate_now, running_price
from backends.gce.looking import worth_a_look
from backends.gce.machines import Disk
from backends.gce.sights import EngineSight, HostSight, Preparing
from backends.gce.state import judge, judge_absent
from backends.serving.judgement import Judgement
from backends.serving.startup_log import StartupLog, StartupProgress
from tests.gce.made import NOW, machine, operation

_READY = """\
INFO 11-30 12:00:00 [api_server.py:100] vLLM API server version 0.29.0
INFO 11-30 12:06:00 [launcher.py:50] Starting vLLM API server on http://127.0.0.1:8000
INFO:     Application startup complete.
"""

TABLES = ComputePrices(None)


def progress(text: str) -> StartupProgress:
    """What a log tells."""
    log = StartupLog()
    log.feed(text)
    return log.progress


def judged(sight: HostSight | None, **more: Any) -> Judgement:
    """The state of a machine that runs, with what is seen on it."""
    return judge(machine(), sight, more.pop("work", None), NOW, **more)


def phases(found: Judgement) -> dict[str, str]:
    """Phases with their state."""
    return {phase.name: phase.state for phase in found.phases}


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        ("PROVISIONING", "creating", "Google makes or starts it"),
        ("STAGING", "creating", "Google makes or starts it"),
        ("STOPPING", "stopping", "is being stopped"),
        ("TERMINATED", "stopped", "only its disks are paid for"),
        ("SUSPENDED", "stopped", "only its disks are paid for"),
    ],
)
def test_google_decides_while_the_machine_is_not_on(status: str, state: str, words: str) -> None:
    found = judge(machine(status=status), None, None, NOW)
    assert found.state == state
    assert words in found.words


def test_a_machine_that_google_took_back_says_so() -> None:
    found = judge(machine(status="TERMINATED", spot=True), None, None, NOW, preempted=True)
    assert "taken back by Google" in found.words
    assert found.fix == "start_serving(target='gce-t4', name='t4')"


def test_phases_are_shown_in_order_beside_what_is_usual() -> None:
    found = judged(None, work=operation(progress="preparing (5 of 9): driver"))
    assert found.state == "starting"
    assert found.words == "preparing: step 5 of 9: driver"
    assert list(phases(found))[:4] == ["creating", "booting", "preparing", "starting_engine"]
    assert phases(found)["booting"] == "done"
    assert phases(found)["preparing"] == "running"
    assert found.elapsed_s == 600
    assert found.expected_s == 60 + 45 + 1500 + 531


def test_what_the_worker_knows_is_not_asked_again_over_ssh() -> None:
    assert not worth_a_look(machine(), operation(progress="preparing (1 of 9): data_disk"))
    assert worth_a_look(machine(), operation(progress="loading: loading_weights"))
    assert worth_a_look(machine(), operation("succeeded"))
    assert worth_a_look(machine(), None)
    assert not worth_a_look(machine(status="STAGING"), None)


def test_a_loading_engine_tells_its_phase_and_the_gpus_memory() -> None:
    log = progress("INFO 11-30 12:00:00 [x.py:1] Starting to load model google/gemma-4-E2B-it...\n")
    engine = EngineSight("running", log, started_at=NOW - 100, vram_mib=4096)
    found = judged(HostSight(preparing=Preparing("done"), engine=engine))
    assert found.state == "starting"
    assert "loading_weights, 100 s of about 531 s, 4096 MiB of GPU memory" in found.words
    assert phases(found)["preparing"] == "done"


def test_an_engine_whose_log_says_so_is_ready() -> None:
    found = judged(HostSight(engine=EngineSight("running", progress(_READY))))
    assert found.state == "ready"
    assert all(phase.state == "done" for phase in found.phases)


def test_a_step_that_failed_is_named_with_its_words_and_what_mends_it() -> None:
    sight = HostSight(
        preparing=Preparing("failed", 5, 9, "driver", "dkms failed", "no headers", "prepare again")
    )
    found = judged(sight, work=operation("failed"))
    assert found.state == "failed"
    assert "step 5 of 9 failed (driver)" in found.words
    assert (found.error, found.cause, found.fix) == ("dkms failed", "no headers", "prepare again")


def test_a_dead_engine_is_failed_with_the_kernels_words() -> None:
    engine = EngineSight("died", words="Out of memory: Killed process 9", cause="RAM", fix="swap")
    found = judged(HostSight(preparing=Preparing("done"), engine=engine))
    assert (found.state, found.cause, found.fix) == ("failed", "RAM", "swap")


@pytest.mark.parametrize(
    "sight",
    [
        HostSight(preparing=Preparing("done"), engine=EngineSight("died", words="killed")),
        HostSight(preparing=Preparing("failed", 5, 9, "driver", "dkms failed")),
    ],
    ids=["engine", "preparation"],
)
def test_what_died_before_the_work_that_mends_it_is_not_shown_as_its_end(sight: HostSight) -> None:
    assert judged(sight, work=operation("running", "booting: waiting for ssh")).state == "starting"
    assert judged(sight, work=operation("succeeded")).state == "failed"


def test_a_machine_that_does_not_answer_is_booting_first_and_degraded_later() -> None:
    silent = HostSight(problem="Connection refused")
    young = judge(machine(started_at=NOW - 30), silent, None, NOW)
    assert (young.state, young.phase) == ("starting", "booting")
    old = judged(silent)
    assert old.state == "degraded"
    assert old.error == "Connection refused"
    assert old.fix == "get_logs(target='gce-t4', name='t4', source='serial')"


@pytest.mark.parametrize("preparing", ["absent", "done"])
def test_a_machine_nobody_works_on_says_that_it_is_paid_for_and_how_to_go_on(
    preparing: Any,
) -> None:
    work = operation("failed", error="host_unreachable: it is gone")
    found = judged(HostSight(preparing=Preparing(preparing)), work=work)
    assert found.state == "stopped"
    assert "is paid for" in found.words
    assert found.fix == "start_serving(target='gce-t4', name='t4')"
    assert "host_unreachable: it is gone" in found.warnings[0]


@pytest.mark.parametrize(
    ("unit", "state", "words"),
    [
        ("", "stopped", "the machine has restarted, and no vLLM runs"),
        ("failed", "stopped", "the machine has restarted, and no vLLM runs"),
        ("queued", "starting", "its systemd unit starts vLLM"),
        ("inactive", "stopped", "the machine has restarted, and no vLLM runs"),
        ("activating", "starting", "its systemd unit starts vLLM"),
    ],
)
def test_after_a_restart_its_unit_is_waited_for_where_there_is_one(
    unit: str, state: str, words: str
) -> None:
    engine = EngineSight("stopped", restarted=True, unit=unit)
    found = judged(HostSight(preparing=Preparing("done"), engine=engine))
    assert found.state == state
    assert words in found.words
    assert (unit or "start_at_boot") in str(found.cause) or state == "starting"


def test_a_preparation_that_nobody_follows_says_so() -> None:
    found = judged(HostSight(preparing=Preparing("running", 7, 9, "vllm")))
    assert found.words == "preparing: step 7 of 9: vllm"
    assert "Nobody follows it" in found.warnings[0]


def test_without_a_machine_only_the_work_tells() -> None:
    under_way = judge_absent(operation(progress="creating: asking us-west2-b for a T4 (1 of 6)"))
    assert under_way.state == "creating"
    assert "us-west2-b" in under_way.words
    failed = judge_absent(
        operation("failed", error="capacity: ... ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS ...")
    )
    assert failed.state == "failed"
    assert failed.cause == "Quota is there, but the zone has no free T4 now."


def test_a_machine_that_is_off_costs_its_disks_only() -> None:
    data = Disk("t4-data", "us-west2-b", 250, "pd-balanced", {}, ("t4",), "")
    on, off = machine(), machine(status="TERMINATED")
    held = (32 * 0.17 + 250 * 0.10) / 730
    assert disks_per_hour(on, [data], TABLES) == pytest.approx(held)
    assert rate_now(off, [data], TABLES) == round(held, 4)
    price = running_price(on, [data], TABLES)
    assert price.usd_per_hour == pytest.approx(0.5241 + held, abs=2e-4)
    assert price.source
    assert running_price(machine(zone="mars-west1-a"), [], TABLES).usd_per_hour is None


def test_a_public_address_and_spot_have_their_own_rates() -> None:
    spot = running_price(machine(spot=True, external="34.1.2.3"), [], TABLES)
    assert "address 0.0025" in spot.basis
    assert spot.usd_per_hour is not None
    assert spot.usd_per_hour < 0.26


def test_a_machine_that_is_being_switched_off_says_until_when_it_is_paid_for() -> None:
    found = judge(machine(status="STOPPING"), None, None, NOW)
    assert found.state == "stopping"
    assert "cost ends when it is off" in found.words

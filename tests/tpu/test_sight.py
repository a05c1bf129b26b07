"""What a look at a machine prints, and what is concluded from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.clouds.hosts.workers import HostWorkers
from backends.core.errors import ConflictError, HostKeyError, HostUnreachableError
from backends.tpu.backend import TpuBackend
from backends.tpu.sight import Machine, read_look
from backends.tpu.state import Judgement, judge
from tests.support.clients import make_app
from tests.tpu.made import COMPILED, NOW_S, READY, TPU_LOG, request

_SERVED = "1796079000 booting\n1796079100 starting\n1796079900 ready"
_FULL = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/x 9 9 2048 99% /"


def look(**parts: str) -> Machine:
    """What is read of a look that printed these parts."""
    given = {"container": "running 0 false", "boot": "b1 b1"} | parts
    return read_look("".join(f"\n@@vllm-devops@@ {name}\n{text}\n" for name, text in given.items()))


def judged(machine: Machine) -> Judgement:
    """How the deployment then is."""
    return judge(request(), machine, NOW_S)


def test_notes_of_the_boot_before_are_not_believed_until_the_start_script_has_run() -> None:
    log, gone = TPU_LOG + COMPILED + READY, "exited 137 false"
    before = judged(look(boot="b2 b1", phases=_SERVED, log=log, container=gone))
    assert (before.state, before.phase) == ("starting", "booting")
    assert judged(look(boot="b1 b1", phases=_SERVED, log=log, container=gone)).state == "failed"
    # A machine that was deployed before notes had a boot.
    assert judged(look(boot="b1", phases=_SERVED, log=log)).state == "ready"


def test_what_killed_a_server_is_told_in_the_kernels_words_and_the_logs_last() -> None:
    line = "[  812.4] Out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:21474836kB"
    log, tail = TPU_LOG + COMPILED + READY, "the last that it said"
    found = look(phases=_SERVED, log=log, tail=tail, container="exited 137 true", kernel=line)
    dead = judged(found)
    assert dead.state == "failed"
    assert dead.words.startswith("has died")
    assert dead.error == f"{line}\n{tail}"
    assert "main memory ran out" in str(dead.cause)
    # A line of another process, when this one ended by itself.
    assert look(container="exited 1 false", kernel=line).oom == ""


def test_a_full_disk_is_a_warning_while_it_starts_and_a_failure_where_nothing_was_noted() -> None:
    starting = judged(look(phases="1796079000 booting\n1796079100 pulling", free=_FULL))
    assert starting.state == "starting"
    assert "disk is full" in str(starting.cause)
    assert judged(look(free=_FULL)).state == "failed"
    roomy = _FULL.replace(" 2048 ", " 20480000 ")
    assert judged(look(free=roomy)).state == "starting"


@pytest.mark.parametrize("phases", [_SERVED, "1796079000 booting\n1796079100 pulling"])
def test_without_its_daemon_docker_says_nothing_of_a_container(phases: str) -> None:
    words = "[]\nCannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?"
    found = judged(look(phases=phases, log=TPU_LOG, container=words))
    assert found.state == "degraded"
    assert "restart=true" in str(found.fix)
    installing = judged(look(phases="1796079000 installing docker", container=words))
    assert installing.state == "starting"


def test_what_could_not_be_seen_keeps_its_cause_and_what_is_to_be_done() -> None:
    key = Machine.unseen(HostKeyError("Another key.", words="CHANGED!", cause="c", next_action="f"))
    found = judged(key)
    assert (found.state, found.cause, found.fix) == ("unknown", "c", "f")
    assert found.error == "host_key: Another key.\nCHANGED!"
    away = Machine.unseen(HostUnreachableError("No.", words="a\nport 22: refused", begun=False))
    assert (away.unreachable, away.problem) == (True, "port 22: refused")


async def test_load_beside_the_engine_of_several_hosts_is_made_on_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_app(tmp_path, google_cloud_project="fake-proj").backends.get("tpu-v6e")
    assert isinstance(backend, TpuBackend)
    states = ["ACTIVE", "SUSPENDED"]

    async def ours(name: str) -> Any:
        return request(states.pop(0))

    monkeypatch.setattr(backend, "ours", ours)
    workers = await backend.load_workers("gemma4")
    assert isinstance(workers, HostWorkers)
    assert "--worker=0" in await workers._host.connect_argv()  # type: ignore[attr-defined]
    with pytest.raises(ConflictError, match="runner=host"):
        await backend.load_workers("gemma4")

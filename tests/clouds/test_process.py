"""The process runner: secrets stay hidden, deadlines hold, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from backends.clouds.process import Secret, end_all, run
from backends.core.errors import CliMissingError, OutcomeUnknownError
from tests.support.processes import gone, wait_for

pytestmark = pytest.mark.anyio

_ECHO = "import sys; print(sys.argv[1:]); print(sys.stdin.read(), file=sys.stderr)"
_FAMILY = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "open(sys.argv[1], 'w').write(str(child.pid))\n"
    "print('begun', file=sys.stderr, flush=True)\n"
    "time.sleep(60)\n"
)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_a_secret_is_masked_however_it_is_shown() -> None:
    secret = Secret("hf_abcdefgh1234")
    shown = f"{secret} {secret!r} {secret:>5} {[secret]} %s" % secret
    assert "hf_" not in shown
    assert secret.reveal() == "hf_abcdefgh1234"


async def test_a_secret_argument_reaches_the_process_and_nobody_else() -> None:
    done = await run(
        [sys.executable, "-c", "import sys; print(len(sys.argv[1])); print(sys.argv[1])",
         Secret("s3cret-value")],
        timeout_s=20,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["12", "***"]
    assert "s3cret-value" not in repr(done)


async def test_a_secret_on_standard_input_is_masked_in_what_comes_back() -> None:
    done = await run([sys.executable, "-c", _ECHO], timeout_s=20, stdin=Secret("s3cret-value"))
    assert done.stderr.strip() == "***"


async def test_output_is_bounded_in_memory_and_says_that_it_was_cut() -> None:
    done = await run(
        [sys.executable, "-c", "print('x' * 9_000_000)"],
        timeout_s=30,
    )
    assert done.cut
    assert len(done.stdout) == 8 * 1024 * 1024


async def test_a_missing_program_is_named() -> None:
    with pytest.raises(CliMissingError, match="no-such-program is not installed"):
        await run(["no-such-program"], timeout_s=5)


async def test_at_the_deadline_the_whole_family_is_ended_and_the_outcome_is_unknown(
    tmp_path: Path,
) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(OutcomeUnknownError) as caught:
        await run([sys.executable, "-c", _FAMILY, str(pid_file)], timeout_s=2)
    assert "begun" in caught.value.words
    pid = int(pid_file.read_text())
    wait_for(lambda: _is_gone(pid), 5)


async def test_cancelling_ends_the_whole_family(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    task = asyncio.create_task(run([sys.executable, "-c", _FAMILY, str(pid_file)], timeout_s=60))
    began = time.monotonic()
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() - began < 10
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid = int(pid_file.read_text())
    wait_for(lambda: _is_gone(pid), 5)


async def test_colours_are_off_and_given_variables_win() -> None:
    done = await run(
        [sys.executable, "-c", "import os; print(os.environ['TERM'], os.environ['X'])"],
        timeout_s=20,
        env={"X": "given"},
    )
    assert done.stdout.split() == ["dumb", "given"]
    assert "X" not in os.environ


async def test_a_command_is_ended_that_runs_before_its_id_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine runs the program at once and this process a while later."""
    started = asyncio.create_subprocess_exec

    async def slowly(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        await started(*args, **options)
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)
    # What is started otherwise, as an engine is, goes on.
    engine = subprocess.Popen(["sleep", "60"], start_new_session=True)
    pids = tmp_path / "pid"
    call = asyncio.create_task(run([sys.executable, "-c", _FAMILY, str(pids)], timeout_s=30))
    try:
        deadline = time.monotonic() + 20
        while not (pids.exists() and pids.read_text()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        end_all()
        assert wait_for(lambda: gone(int(pids.read_text())))
        assert engine.poll() is None
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        engine.kill()
        engine.wait()

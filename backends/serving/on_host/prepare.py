"""Runs the steps in order, remembers how far it is, and goes on after a restart by itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time

from . import serve
from .disks import DataDisk, Space, Swap
from .driver import Driver, Headers
from .packages import Clamp, Cuda, Docker, Image, Python, Unit, Vllm
from .settings import Settings
from .step import RebootNeeded, Step
from .system import (
    HOME_FOLDER,
    PROGRAM,
    Json,
    StepError,
    at,
    boot_id,
    end_with_children,
    must,
    read_json,
    report,
    run,
    write_json,
    write_root,
)

FOLDER = HOME_FOLDER / "prepare"
EXIT_FAILED = 1
EXIT_REBOOT = 75
_RESUME = "vllm-devops-prepare"
_RESUME_UNIT = f"/etc/systemd/system/{_RESUME}.service"
_PENDING_S = 600.0

_STEPS: list[type[Step]] = [
    DataDisk,
    Swap,
    Space,
    Headers,
    Driver,
    Python,
    Vllm,
    Cuda,
    Clamp,
    Docker,
    Image,
    Unit,
]
# What may not be changed under an engine that runs.
_UNDER_THE_ENGINE = {"driver", "vllm", "clamp"}


def prepare(settings: Settings, *, check: bool) -> int:
    """Take all steps; returns the exit code. One runs at a time; a second one waits.

    Args:
        settings: What the machine is to become.
        check: Only look.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    end_with_children()
    with (FOLDER / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(event="waiting", message="another preparation is running here; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        if not check:
            write_json(FOLDER / "settings.json", settings.shown())
        return _run(settings, check)


def is_running() -> bool:
    """Whether a preparation is under way here, whoever started it."""
    try:
        with (FOLDER / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def is_pending() -> bool:
    """Whether a restart was asked for lately, after which the machine goes on by itself."""
    try:
        age_s = time.time() - (FOLDER / "state.json").stat().st_mtime
    except FileNotFoundError:
        return False
    return at(_RESUME_UNIT).exists() and age_s < _PENDING_S


def stop() -> bool:
    """End a preparation that is under way, and do not go on after a restart; whether there was."""
    pending = is_pending()
    _forget_resume()
    if not is_running():
        return pending
    with contextlib.suppress(ValueError, ProcessLookupError):
        os.kill(int((FOLDER / "lock").read_text(encoding="utf-8")), signal.SIGTERM)
    return True


def _run(settings: Settings, check: bool) -> int:
    state = read_json(FOLDER / "state.json")
    steps = [step(settings, state) for step in _STEPS if step.name in settings.steps]
    report(event="begin", steps=[step.name for step in steps], check=check, boot=boot_id())
    failed: list[str] = []
    changed: list[str] = []
    order = [step.name for step in steps]
    for step in steps:
        if failed and not check:
            break
        report(event="step", step=step.name)
        began = time.monotonic()
        facts = _taken(step, settings, state, check)
        if not check:
            write_json(FOLDER / "state.json", state)
        report(step=step.name, seconds=round(time.monotonic() - began, 1), **facts)
        if facts["state"] == "failed":
            failed.append(step.name)
        elif facts["state"] == "restarting":
            return _restart()
        elif facts["state"] != "checked":
            changed.append(step.name)
    _forget_resume()
    report(event="end", ok=not failed, failed=failed, changed=changed, order=order)
    return EXIT_FAILED if failed else 0


def _taken(step: Step, settings: Settings, state: Json, check: bool) -> Json:
    """Take a step; whatever goes wrong is its result."""
    try:
        try:
            return _take(step, check)
        except RebootNeeded:
            return _before_restart(settings, state)
    except StepError as error:
        return {"state": "failed", **error.facts()}
    except OSError as error:
        return {"state": "failed", "error": f"{step.name}: {error}", "kind": "no_access"}


def _take(step: Step, check: bool) -> Json:
    before = step.look()
    if before.ok:
        return {"state": "checked", "found": before.found, "facts": before.facts}
    if check:
        return {"state": "would_change", "found": before.found, "facts": before.facts}
    if step.name in _UNDER_THE_ENGINE and serve.running_pid() is not None:
        raise StepError(
            f"The engine is running; {step.name} is not changed under it.",
            words=before.found,
            next_action="Call stop_serving, then prepare again.",
            kind="engine_running",
        )
    did = step.act()
    after = step.look()
    if not after.ok:
        raise StepError(
            "After the change it is still not as it should be: " + after.found,
            words="; ".join(did),
            kind="not_verified",
        )
    return {"state": "changed", "found": after.found, "did": did, "facts": after.facts}


def _before_restart(settings: Settings, state: Json) -> Json:
    """Get ready to restart: a unit goes on after it, whether or not anybody comes back."""
    if serve.running_pid() is not None or not settings.may_reboot:
        raise StepError(
            "The machine has to restart to load the driver.",
            next_action="Call stop_serving, then prepare again with may_reboot=true.",
            kind="reboot_needed",
        )
    state["restarts"] = int(state.get("restarts", 0)) + 1
    _write_resume()
    return {"state": "restarting", "found": "the driver is loaded by a restart"}


def _restart() -> int:
    report(event="reboot", boot=boot_id())
    must(["systemctl", "reboot"], "Restarting", root=True)
    return EXIT_REBOOT


def _write_resume() -> None:
    import getpass

    log = HOME_FOLDER / "jobs" / "prepare" / "log"
    write_root(
        _RESUME_UNIT,
        "[Unit]\nDescription=Go on preparing this machine for vLLM\n"
        "After=network-online.target local-fs.target\nWants=network-online.target\n\n"
        f"[Service]\nType=exec\nUser={getpass.getuser()}\nWorkingDirectory={HOME_FOLDER.parent}\n"
        f'ExecStart=/bin/sh -c \'exec python3 "{HOME_FOLDER / PROGRAM}" prepare --resume '
        f'>> "{log}" 2>&1\'\n\n'
        "[Install]\nWantedBy=multi-user.target\n",
    )
    run(["systemctl", "daemon-reload"], root=True)
    must(["systemctl", "enable", _RESUME], "Enabling the unit that goes on", root=True)


def _forget_resume() -> None:
    path = _RESUME_UNIT
    if at(path).exists():
        run(["systemctl", "disable", _RESUME], root=True)
        run(["rm", "-f", at(path)], root=True)

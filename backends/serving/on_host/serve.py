"""Starts and stops the engine on this machine, watches over it, and says how it is.

`start` checks what a start depends on, mends what a restart of the machine undoes (mounts, swap),
and leaves a supervisor behind that runs the engine, samples the GPU's memory and writes down how it
ended. Everything is in `~/.vllm-devops/serve`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import clamp
from .disks import DataDisk, Swap, active_swap
from .driver import gpu_query
from .packages import Unit, kernel_file, python_env, read_clamp
from .settings import Settings
from .step import Step
from .system import (
    HOME_FOLDER,
    LOOPBACK,
    Json,
    StepError,
    at,
    boot_id,
    born,
    free_gib,
    kernel_log,
    read_json,
    report,
    run,
    write_json,
)

FOLDER = HOME_FOLDER / "serve"
LOG = FOLDER / "engine.log"
EXIT_RUNNING = 3
_EARLY_S = 1.5
_STOP_S = 30.0
_VRAM_S = 20.0
_VRAM_FREE_MIB = 600
_SAMPLE_S = 2.0
_MAX_SAMPLES = 1_000
_LAST_LINES = 40
Guard = Callable[["Config"], list[str]]
_KILLED = re.compile(r"Out of memory: Killed process (\d+) \(([^)]*)\)")


class Config:
    """What is served and how; kept on the machine, so that a boot can start it again.

    Args:
        given: `argv` (the engine's command after Python), `env` (no secrets), `port`,
            `host_settings` (those of `prepare`), `guards`.
    """

    def __init__(self, given: Json) -> None:
        self.argv: list[str] = list(given["argv"])
        self.env: dict[str, str] = dict(given.get("env") or {})
        self.port = int(given.get("port", 8000))
        self.settings = Settings(dict(given.get("host_settings") or {}))
        self.guards: list[str] = list(
            given.get("guards", ["data_disk", "swap", "driver", "clamp", "port"])
        )


def start(given: Json, secrets: dict[str, str]) -> int:
    """Check, launch, and see it through its first second; returns the exit code.

    Args:
        given: See `Config`; empty: as it was last started.
        secrets: Variables for the engine alone; never written down.
    """
    given = given or read_json(FOLDER / "config.json")
    if not given:
        report(event="failed", error="Nothing was ever started here.", kind="no_config")
        return 2
    config = Config(given)
    pid = running_pid()
    if pid is not None:
        report(event="already_running", pid=pid)
        return EXIT_RUNNING
    for guard in config.guards:
        began = time.monotonic()
        try:
            did = _GUARDS[guard](config)
        except StepError as error:
            report(guard=guard, state="failed", **error.facts())
            report(event="failed", error=error.message, kind=error.kind)
            return 1
        seconds = round(time.monotonic() - began, 1)
        report(guard=guard, state="changed" if did else "checked", did=did, seconds=seconds)
    write_json(FOLDER / "config.json", given)
    return _launch(config, secrets)


def _launch(config: Config, secrets: dict[str, str]) -> int:
    for name in ("exit.json", "engine.json"):
        with contextlib.suppress(FileNotFoundError):
            (FOLDER / name).unlink()
    if LOG.exists():
        LOG.replace(FOLDER / "engine.log.1")
    program = Path(sys.argv[0]).resolve()
    supervisor = subprocess.Popen(
        [sys.executable, str(program), "serve", "supervise"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=(FOLDER / "supervisor.log").open("ab"),
        start_new_session=True,
    )
    assert supervisor.stdin is not None  # noqa: S101
    supervisor.stdin.write(json.dumps(secrets).encode())
    supervisor.stdin.close()
    until = time.monotonic() + 20
    while time.monotonic() < until and not (FOLDER / "engine.json").exists():
        if supervisor.poll() is not None:
            break
        time.sleep(0.05)
    engine = read_json(FOLDER / "engine.json")
    if not engine:
        words = (FOLDER / "supervisor.log").read_text(encoding="utf-8", errors="replace")
        report(event="failed", error="The engine could not be launched.", words=words[-2000:])
        return 1
    # A server that is gone at once has printed why, or nothing at all.
    end = time.monotonic() + _EARLY_S
    while time.monotonic() < end:
        if (FOLDER / "exit.json").exists():
            report(event="died", **status())
            return 1
        time.sleep(0.05)
    report(event="started", pid=engine["pid"], log=str(LOG))
    return 0


def supervise() -> int:
    """Run the engine to its end and write down how that came."""
    secrets = dict(json.loads(sys.stdin.read() or "{}"))
    config = Config(read_json(FOLDER / "config.json"))
    settings = config.settings
    started = time.time()
    with LOG.open("ab") as log:
        engine = subprocess.Popen(
            [settings.python, *config.argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **python_env(settings), **config.env, **secrets},
            start_new_session=True,
        )
    record = {
        "pid": engine.pid,
        "born": born(engine.pid),
        "started_at": started,
        "boot": boot_id(),
        "port": config.port,
        "argv": config.argv,
    }
    write_json(FOLDER / "engine.json", record)
    samples = (FOLDER / "vram.jsonl").open("w", encoding="utf-8")
    taken, code = 0, None
    while code is None:
        if taken < _MAX_SAMPLES:
            taken += 1
            used = vram_used_mib()
            samples.write(json.dumps({"s": round(time.time() - started, 1), "mib": used}) + "\n")
            samples.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = engine.wait(timeout=_SAMPLE_S if taken > 30 else _SAMPLE_S / 4)
    samples.close()
    # What the engine started must not hold the GPU's memory after it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(engine.pid, signal.SIGKILL)
    killed = oom_kill(engine.pid)
    write_json(
        FOLDER / "exit.json",
        {"code": code, "ended_at": time.time(), "oom": killed, "after_s": time.time() - started},
    )
    return 0


def stop() -> int:
    """End the engine: asked first, then killed; then see that the GPU's memory is free."""
    pid, before = running_pid(), vram_used_mib()
    if pid is None:
        report(event="not_running", vram_mib=before)
        return 0
    write_json(FOLDER / "stopping.json", {"at": time.time()})
    how = "ended when asked"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
    until = time.monotonic() + _STOP_S
    while running_pid() is not None and time.monotonic() < until:
        time.sleep(0.05)
    if running_pid() is not None:
        how = f"killed after {_STOP_S:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        while running_pid() is not None:
            time.sleep(0.05)
    until = time.monotonic() + _VRAM_S
    after = vram_used_mib()
    while after is not None and after > _VRAM_FREE_MIB and time.monotonic() < until:
        time.sleep(0.2)
        after = vram_used_mib()
    freed = after is None or after <= _VRAM_FREE_MIB
    report(event="stopped", how=how, vram_before_mib=before, vram_mib=after, vram_free=freed)
    return 0 if freed else 1


def status() -> Json:
    """How the engine is: absent, starting, ready, stopped or failed; with what tells why."""
    engine = read_json(FOLDER / "engine.json")
    if not engine:
        return {"state": "absent"}
    found: Json = {
        "started_at": engine["started_at"],
        "pid": engine["pid"],
        "port": engine["port"],
        "log": str(LOG),
        "vram": _samples(),
    }
    if running_pid() is not None:
        found["elapsed_s"] = round(time.time() - float(engine["started_at"]), 1)
        found["vram_mib"] = vram_used_mib()
        found["state"] = "ready" if healthy(int(engine["port"])) else "starting"
        return found
    ended = read_json(FOLDER / "exit.json")
    killed = ended.get("oom") or oom_kill(int(engine["pid"]))
    stopping = read_json(FOLDER / "stopping.json").get("at", 0)
    found["exit_code"] = ended.get("code")
    found["last_lines"] = last_lines()
    if killed:
        found.update(state="failed", reason="oom_kill", oom=killed)
    elif engine.get("boot") != boot_id():
        found.update(state="stopped", reason="machine_restarted", unit=_unit_state())
    elif stopping >= float(engine["started_at"]):
        found.update(state="stopped", reason="stopped")
    else:
        found.update(state="failed", reason="exited" if ended else "killed")
    return found


def _unit_state() -> str:
    """What systemd says of the unit that serves after a boot; empty where there is none.

    A unit that has its start before it is `inactive`, as is one that somebody stopped. The former
    has a job: boot queues the starts of all enabled units before anybody can log in.
    """
    asked = ["systemctl", "show", Unit.unit, "--property=UnitFileState,ActiveState,Job"]
    shown = dict(line.split("=", 1) for line in run(asked).out.splitlines() if "=" in line)
    if shown.get("UnitFileState") != "enabled":
        return ""
    state = shown.get("ActiveState", "")
    return "queued" if state == "inactive" and shown.get("Job", "0") not in {"", "0"} else state


def running_pid() -> int | None:
    """The engine's process, if it runs."""
    engine = read_json(FOLDER / "engine.json")
    if not engine or not engine.get("born"):
        return None
    pid = int(engine["pid"])
    return pid if born(pid) == engine["born"] else None


def healthy(port: int) -> bool:
    """Whether `/health` answers."""
    # Half of the time this program takes to start, and only needed here.
    import http.client

    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def vram_used_mib() -> int | None:
    """The GPU's used memory; None where there is no driver."""
    seen = gpu_query("memory.used")
    try:
        return int(seen.out.split()[0]) if seen.code == 0 else None
    except (IndexError, ValueError):
        return None


def oom_kill(pid: int) -> str:
    """The kernel's line, if it killed the engine (or one of its processes) for want of memory."""
    engine = read_json(FOLDER / "engine.json")
    for line in reversed(kernel_log()):
        found = _KILLED.search(line)
        if found and (
            int(found.group(1)) == pid
            or "VLLM" in found.group(2)
            or "python" in found.group(2).lower()
        ):
            # The log begins with the boot; an engine of an earlier boot was not killed in this one.
            return line.strip() if engine.get("boot") == boot_id() else ""
    return ""


def last_lines() -> list[str]:
    """The end of the engine's log."""
    try:
        with LOG.open("rb") as file:
            file.seek(max(0, LOG.stat().st_size - 16_384))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-_LAST_LINES:]


def _samples() -> list[list[float]]:
    """Memory beside the clock: pairs of seconds and MiB, at most sixty."""
    try:
        text = (FOLDER / "vram.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    rows = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if row["mib"] is not None:
                rows.append([row["s"], row["mib"]])
    every = max(1, -(-len(rows) // 60))
    return rows[::every]


# ----------------------------------------------------------------------------------- guards


def _step_guard(kind: type[Step]) -> Guard:
    def guard(config: Config) -> list[str]:
        step = kind(config.settings, {})
        if step.look().ok:
            return []
        did = step.act()
        found = step.look()
        if not found.ok:
            raise StepError(step.name + ": " + found.found, kind=step.name)
        return did

    return guard


def _driver_guard(config: Config) -> list[str]:
    del config
    seen = gpu_query("name")
    if seen.code != 0:
        raise StepError(
            "nvidia-smi does not see a GPU.",
            words=seen.words,
            cause="The driver is not installed, or not loaded since the last restart.",
            next_action="Call prepare_host.",
            kind="driver_missing",
        )
    return []


def _clamp_guard(config: Config) -> list[str]:
    """Below capability 8 an upgrade of vLLM takes the clamp away; it is put back."""
    seen = gpu_query("compute_cap")
    try:
        major = int(seen.out.split(".")[0])
    except ValueError:
        raise StepError("The GPU's capability is unknown.", words=seen.words) from None
    if major >= 8 or not config.settings.clamp:
        return []
    path = kernel_file(config.settings)
    if read_clamp(path):
        return []
    try:
        clamp.apply(path)
    except clamp.AnchorsError as error:
        raise StepError(
            "The kernel cannot be clamped.", words=str(error), kind="no_anchors"
        ) from None
    return [f"clamped {path} again: an upgrade had taken it away"]


def _port_guard(config: Config) -> list[str]:
    with socket.socket() as probe:
        probe.settimeout(2)
        if probe.connect_ex((LOOPBACK, config.port)) == 0:
            raise StepError(
                f"Port {config.port} is taken by another program.",
                next_action="Stop that program, or deploy with another port.",
                kind="port_taken",
            )
    return []


_GUARDS = {
    "data_disk": _step_guard(DataDisk),
    "swap": _step_guard(Swap),
    "driver": _driver_guard,
    "clamp": _clamp_guard,
    "port": _port_guard,
}


def facts() -> Json:
    """The machine in figures: GPU, memory, swap, disks, kernel; what is unknown is absent."""
    found: Json = {"boot": boot_id(), "kernel": run(["uname", "-r"]).out.strip()}
    seen = gpu_query(",".join(_GPU_FACTS))
    if seen.code == 0 and "," in seen.out:
        values = [item.strip() for item in seen.out.splitlines()[0].split(",")]
        found["gpu"] = _gpu_facts(values)
    else:
        found["gpu_error"] = seen.words
    try:
        found["swap_gib"] = round(sum(active_swap().values()) / 2**30, 1)
    except StepError as error:
        found["swap_error"] = error.message
    with contextlib.suppress(OSError):
        for line in at("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name in _MEMORY_FACTS:
                found[_MEMORY_FACTS[name]] = round(int(value.split()[0]) / 2**20, 2)
    settings = Settings(dict(read_json(HOME_FOLDER / "prepare" / "settings.json")))
    measured = {path: free_gib(path) for path in ("/", "/tmp", settings.data_folder)}  # noqa: S108
    found["free_gib"] = {
        path: round(free, 1) for path, free in measured.items() if free is not None
    }
    return found


def _gpu_facts(values: list[str]) -> Json:
    gpu: Json = {}
    for (field, name), value in zip(_GPU_FACTS.items(), values):  # noqa: B905 (Python 3.9)
        if field == _THROTTLING:
            with contextlib.suppress(ValueError):
                reasons = int(value, 16)
                words = [word for bit, word in _THROTTLES.items() if reasons & bit]
                gpu[name] = ", ".join(words) or "nothing"
        elif "[" not in value:  # [N/A], [Not Supported]
            with contextlib.suppress(ValueError):
                gpu[name] = float(value) if field not in _WORDS else value
    return gpu


_THROTTLING = "clocks_throttle_reasons.active"
_WORDS = {"name", "driver_version", "compute_cap"}
_GPU_FACTS = {
    "name": "name",
    "driver_version": "driver",
    "compute_cap": "compute_capability",
    "memory.total": "memory_mib",
    "memory.used": "memory_used_mib",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "clocks.sm": "clock_mhz",
    "clocks.max.sm": "clock_max_mhz",
    "utilization.gpu": "utilization_percent",
    _THROTTLING: "throttled_by",
}
_MEMORY_FACTS = {"MemTotal": "memory_gib", "MemAvailable": "memory_available_gib"}

# NVML's bits of clocks_throttle_reasons (nvml.h).
_THROTTLES = {
    0x1: "idle",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}

"""Starts and stops the engine on a host, and says how it is: the program there does the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.clouds.hosts.host import STATE_FOLDER, Host
from backends.clouds.hosts.program import Json, call, install
from backends.core.errors import EngineError

ENGINE_LOG = f"{STATE_FOLDER}/serve/engine.log"
"""The engine's output on the host; the start before it is in `engine.log.1`."""

GUARDS = ("data_disk", "swap", "driver", "clamp", "port")
"""What a start checks first, and mends where a restart or an upgrade undid it."""

_START_S = 90.0
_STOP_S = 90.0
_STATUS_S = 40.0
_LAST = 30


@dataclass(frozen=True)
class Launch:
    """What is to be served, and how.

    Attributes:
        argv: The engine's command after Python: `["-m", "vllm.entrypoints.openai.api_server", …]`.
        port: The port it listens on, on 127.0.0.1.
        settings: Those the host was prepared with; mounts, swap and packages follow from them.
        env: Variables of the engine; no secrets, they are kept on the host.
        guards: Some of `GUARDS`.
    """

    argv: Sequence[str]
    port: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    guards: Sequence[str] = GUARDS

    def given(self) -> Json:
        """As the program reads it."""
        return {
            "argv": list(self.argv),
            "port": self.port,
            "host_settings": dict(self.settings),
            "env": dict(self.env),
            "guards": list(self.guards),
        }


@dataclass(frozen=True)
class Engine:
    """How an engine on a host is.

    Attributes:
        state: absent, starting, ready, stopped or failed.
        facts: All the program said: pid, elapsed_s, vram_mib, exit_code, reason, …
        vram: The GPU's used memory beside the clock: pairs of seconds since the start and MiB.
        last_lines: The end of its log, once it has ended.
    """

    state: str
    facts: Json
    vram: list[tuple[float, int]] = field(default_factory=list)
    last_lines: list[str] = field(default_factory=list)

    @property
    def killed_for_memory(self) -> str:
        """The kernel's own line, where it killed the engine for want of main memory."""
        return str(self.facts.get("oom") or "")


async def start(
    host: Host, launch: Launch | None, *, secrets: Mapping[str, str] | None = None
) -> list[str]:
    """Launch the engine, detached, after its guards; it goes on when we do not.

    Args:
        host: Where.
        launch: What to serve; None: as it was last started (after a restart of the machine).
        secrets: Variables for the engine alone (HF_TOKEN); they are never written down.

    Returns:
        What was checked and mended, in words; ends with `already running` where it was.

    Raises:
        EngineError: A guard failed, or the engine died at once; the words are its own.
        HostError: The host cannot be reached.
    """
    await install(host)
    given: Json = {} if launch is None else launch.given()
    if secrets:
        given["secrets"] = dict(secrets)
    # A second start finds the first one running, so it may be repeated.
    answer = await call(host, ["serve", "start"], given, timeout_s=_START_S, repeatable=True)
    done = []
    for report in answer:
        if "guard" in report and report.get("state") != "failed":
            did = "; ".join(report.get("did") or [])
            done.append(f"{report['guard']}: {did or 'checked'}")
    last = answer[-1]
    event = last.get("event")
    if event == "already_running":
        return [*done, f"already running (pid {last['pid']})"]
    if event == "started":
        return [*done, f"launched (pid {last['pid']})"]
    guard = next((report for report in answer if report.get("state") == "failed"), last)
    raise EngineError(
        f"{host.label}: "
        + (
            f"the engine died at once: {_why(_engine(last))}"
            if event == "died"
            else str(guard.get("error", "the engine was not started."))
        ),
        words=str(guard.get("words", "")) or "\n".join((last.get("last_lines") or [])[-_LAST:]),
        cause=str(guard.get("cause", "")),
        next_action=str(guard.get("next_action", "")) or "Call get_logs, then prepare_host.",
        details={"kind": str(guard["kind"])} if guard.get("kind") else None,
    )


async def stop(host: Host) -> tuple[str, bool]:
    """End the engine and wait until the GPU's memory is free.

    Returns:
        What was done, and whether the memory is free.
    """
    await install(host)
    last = (await call(host, ["serve", "stop"], timeout_s=_STOP_S, repeatable=True))[-1]
    if last.get("event") == "not_running":
        return "it was not running", True
    before, after = last.get("vram_before_mib"), last.get("vram_mib")
    text = f"engine {last.get('how', 'ended')}"
    if before is not None and after is not None:
        text += f"; GPU memory went from {before} to {after} MiB"
    return text, bool(last.get("vram_free"))


async def status(host: Host) -> Engine:
    """How the engine is; changes nothing.

    Raises:
        HostError: The host cannot be reached.
    """
    await install(host)
    return _engine(
        (await call(host, ["serve", "status"], timeout_s=_STATUS_S, repeatable=True))[-1]
    )


async def facts(host: Host) -> Json:
    """The machine in figures: gpu, swap_gib, free_gib by path, memory, kernel, boot.

    Raises:
        HostError: The host cannot be reached.
    """
    await install(host)
    return (await call(host, ["facts"], timeout_s=_STATUS_S, repeatable=True))[-1]


def raise_if_failed(engine: Engine, label: str) -> None:
    """Raise why an engine died.

    Raises:
        EngineError: It failed.
    """
    if engine.state != "failed":
        return
    killed = engine.killed_for_memory
    raise EngineError(
        f"{label}: {_why(engine)}",
        words="\n".join(([killed] if killed else []) + engine.last_lines[-_LAST:]),
        cause="Main memory ran out while weights were loaded; there is too little swap."
        if killed
        else "",
        next_action="Call prepare_host (it makes the swap file), then start_serving."
        if killed
        else "Call get_logs(source='engine').",
    )


def _why(engine: Engine) -> str:
    if engine.killed_for_memory:
        return "the kernel killed it for want of main memory."
    code = engine.facts.get("exit_code")
    if code is None:
        return "it is gone without an exit code."
    return f"it ended with exit code {code}." if code >= 0 else f"signal {-code} ended it."


def _engine(report: Json) -> Engine:
    rest = {
        key: value for key, value in report.items() if key not in {"vram", "last_lines", "event"}
    }
    return Engine(
        str(report.get("state", "absent")),
        rest,
        [(float(row[0]), int(row[1])) for row in report.get("vram") or []],
        [str(line) for line in report.get("last_lines") or []],
    )

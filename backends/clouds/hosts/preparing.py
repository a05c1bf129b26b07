"""Prepares a host: starts the program there, follows it through restarts, says what it did.

The work is done by the host itself. This side may die, lose the connection or be started again at
any time: whoever comes back finds the job by its name and follows it on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from backends.clouds.hosts.host import Host, HostJob
from backends.clouds.hosts.program import PYTHON, UNPACKED, Json, call, install, reports
from backends.clouds.hosts.remote import SshHost
from backends.core.errors import HostError, HostUnreachableError, StepFailedError

if TYPE_CHECKING:
    from backends.base import WorkerJob

JOB = "prepare"
_FOLLOW_EVERY_S = 1.0
# A restart takes 20 to 60 s at Google; a machine that is not back by then is not coming.
_BACK_WITHIN_S = 600.0
# Each after a death or a restart of the host; more is no accident any more.
_MOST_BEGINS = 6

_log = logging.getLogger("vllm_devops.worker")

Tell = Callable[[Json], None]
"""Takes each report of the host as it comes: `{"step": …, "state": …}` or `{"event": …}`."""


@dataclass
class Prepared:
    """How a preparation went.

    Attributes:
        steps: The last report of each step, in order.
        restarts: How often the host restarted.
        ok: Whether all steps are done (or, when only looking, nothing failed).
        resumed: Whether it was found under way.
    """

    steps: list[Json] = field(default_factory=list)
    restarts: int = 0
    ok: bool = False
    resumed: bool = False

    @property
    def failed(self) -> Json | None:
        """The step that failed."""
        return next((step for step in self.steps if step["state"] == "failed"), None)

    def words(self) -> list[str]:
        """A line a step."""
        return [step_words(step) for step in self.steps]

    def raise_if_failed(self, label: str) -> None:
        """Raise what the failed step reported.

        Raises:
            StepFailedError: A step failed; names what the earlier ones changed.
        """
        failed = self.failed
        if failed is None:
            if not self.ok:
                raise HostError(f"{label}: the preparation ended without a word.")
            return
        raise StepFailedError(
            f"{label}: {failed['step']}: {failed.get('error', 'failed')}",
            done=[step_words(step) for step in self.steps if step["state"] == "changed"],
            words=str(failed.get("words", "")),
            cause=str(failed.get("cause", "")),
            next_action=str(failed.get("next_action", ""))
            or "Mend it, then call prepare_host again: what is done is not done twice.",
            code=str(failed.get("kind", "")),
        )

    def take(self, report: Json) -> None:
        """Note one report."""
        if "state" in report and "step" in report:
            before = {step["step"]: step for step in self.steps}
            earlier = before.pop(report["step"], {})
            if report["state"] == "checked" and earlier.get("state") in {"changed", "restarting"}:
                # Changed before a restart, and found so after it: it is what this call changed.
                report = report | {
                    "state": "changed",
                    "did": earlier.get("did") or [str(earlier.get("found", ""))],
                }
            self.steps = [*before.values(), report]
        event = report.get("event")
        if event == "begin":
            kept = {"changed", "restarting"}
            self.steps = [step for step in self.steps if step["state"] in kept]
            self.ok = False
        elif event == "failed":
            self.steps.append({"step": "program", "state": "failed", **report})
        elif event == "reboot":
            self.restarts += 1
        elif event == "end":
            self.ok = bool(report.get("ok"))
            order = list(report.get("order") or [])
            if order:
                self.steps.sort(key=lambda step: order.index(step["step"]))


def step_words(report: Json) -> str:
    """One report of a step, for people."""
    text = f"{report.get('step')}: {report.get('state', 'began')}"
    did = "; ".join(report.get("did") or [])
    told = did or report.get("error") or report.get("found")
    seconds = report.get("seconds")
    took = f" ({seconds:.0f} s)" if isinstance(seconds, int | float) and seconds >= 1 else ""
    return f"{text}{f': {told}' if told else ''}{took}"


async def look(host: Host, settings: Mapping[str, Any], *, timeout_s: float = 600) -> Prepared:
    """See what `prepare` would do; changes nothing but the program's own copy.

    Raises:
        HostError: The host cannot be reached or has no Python.
    """
    await install(host)
    found = Prepared()
    answer = await call(
        host, ["prepare", "--check"], settings, timeout_s=timeout_s, repeatable=True
    )
    for report in answer:
        found.take(report)
    return found


async def under_way(host: Host) -> bool:
    """Whether a preparation is going on there, started by us or going on after a restart.

    Raises:
        HostError: The host cannot be reached.
    """
    await install(host)
    answer = await call(host, ["prepare", "--status"], timeout_s=30, repeatable=True)
    return bool(answer[-1].get("running"))


async def prepare(
    host: Host,
    settings: Mapping[str, Any],
    tell: Tell,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    every_s: float = _FOLLOW_EVERY_S,
) -> Prepared:
    """Make a host what the settings say, or go on with that where it is under way.

    Args:
        host: Which.
        settings: Fields of `on_host.settings.Settings`; no secrets.
        tell: Told each report.
        should_stop: Whether somebody asked for an end; the host is then told to stop too.
        every_s: Seconds between looks.

    Returns:
        How it went; a step that failed is in it, not raised.

    Raises:
        HostUnreachableError: It did not come back within ten minutes.
        HostError: The program does not run there.
    """
    following = _Following(host, tell)
    await following.reconnect()
    await _begin(host, settings, following)
    begun = 1
    while not following.ended:
        try:
            if should_stop():
                await host.end_job(JOB)
                # After a restart it goes on as a unit, which is no job of ours.
                await call(host, ["prepare", "--stop"], timeout_s=60, repeatable=True)
                return following.found
            if await following.busy():
                await asyncio.sleep(every_s)
            elif not following.ended:
                if begun == _MOST_BEGINS:
                    return following.found
                begun += 1
                await _begin(host, settings, following)
        except HostUnreachableError:
            await following.reconnect()
    return following.found


async def _begin(host: Host, settings: Mapping[str, Any], following: _Following) -> None:
    for _ in range(3):
        try:
            await install(host)
            running = await host.job(JOB)
            following.found.resumed = following.found.resumed or running.state == "running"
            if running.state != "running":
                following.begin()
            folder = running.log_path.rpartition("/")[0]
            await host.put(json.dumps(dict(settings)).encode(), f"{folder}.json", mode=0o600)
            script = f"exec {PYTHON} {UNPACKED} prepare < {folder}.json"
            await host.start_detached(script, name=JOB)
        except HostUnreachableError:
            await following.reconnect()
        else:
            return
    raise HostUnreachableError(f"{host.label}: the connection drops again and again.")


class _Following:
    """Reads a job's log from where it was, line by line."""

    def __init__(self, host: Host, tell: Tell) -> None:
        self._host = host
        self._tell = tell
        self._offset = 0
        self._rest = b""
        self._boot = ""
        self._restarting_since: float | None = None
        self.found = Prepared()
        self.ended = False

    def begin(self) -> None:
        """The job starts anew, and its log with it."""
        self._offset, self._rest = 0, b""
        self._restarting_since = None
        self.ended = False

    async def busy(self) -> bool:
        """Take what is new; returns whether the host is at work, or about to restart.

        After a restart it goes on by itself, as a unit of systemd and no job of ours.

        Raises:
            HostUnreachableError: It does not answer, or has not restarted when it should have.
        """
        if (await self._read()).state == "running" or self.ended:
            return not self.ended
        [now] = await call(self._host, ["prepare", "--status"], timeout_s=30, repeatable=True)
        if now["running"]:
            return True
        if self._restarting_since is None or now["boot"] != self._boot:
            # It may have ended between the two looks.
            await self._read()
            return False
        if time.monotonic() - self._restarting_since > _BACK_WITHIN_S:
            raise HostError(f"{self._host.label} was told to restart, and did not.")
        return True

    async def _read(self) -> HostJob:
        while True:
            job = await self._host.job(JOB, offset=self._offset)
            self._offset += len(job.since)
            *lines, self._rest = (self._rest + job.since).split(b"\n")
            for report in reports(b"\n".join(lines).decode("utf-8", "replace")):
                self._take(report)
            if not job.since or self._offset >= job.log_size:
                return job

    def _take(self, report: Json) -> None:
        self.found.take(report)
        event = report.get("event")
        if event == "begin":
            self._boot = str(report.get("boot", ""))
            self._restarting_since = None
            self.ended = False
        elif event == "reboot":
            self._restarting_since = time.monotonic()
        elif event in {"end", "failed"}:
            self.ended = True
        self._tell(report)

    async def reconnect(self) -> None:
        """Wait until the host answers."""
        if isinstance(self._host, SshHost):
            await self._host.wait_until_up(timeout_s=_BACK_WITHIN_S, every_s=1.0)


class HostOptions(BaseModel):
    """What a caller of `prepare_host` may choose on a machine that serves on an NVIDIA GPU."""

    model_config = ConfigDict(extra="forbid")

    swap_gib: int = Field(16, ge=0, le=256, description="Swap file, GiB; weights load through it.")
    fstab: bool = Field(False, description="Mount and swap at boot, by /etc/fstab.")
    unit: bool = Field(False, description="Serve again by itself after a boot, by systemd.")
    vllm: str = Field(
        "vllm>=0.27.2",
        pattern=r"^vllm(?:(?:==|>=)[0-9][0-9A-Za-z.+-]{0,31})?$",
        description="Requirement: vllm, vllm==V or vllm>=V.",
    )
    upgrade: bool = Field(False, description="Upgrade vLLM where it satisfies that already.")
    extra_index_url: str = Field(
        "",
        max_length=256,
        pattern=r"^(?:https://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+)?$",
        description="Of torch's CUDA builds, where pip would take one without CUDA.",
    )
    python: str = Field(
        "python3", pattern=r"^[A-Za-z0-9_./+-]{1,128}$", description="Python to serve with."
    )
    may_reboot: bool = Field(True, description="Restart the machine to load the driver.")


async def prepare_in_worker(
    host: Host, settings: Mapping[str, Any], job: WorkerJob, *, check_only: bool
) -> dict[str, Any]:
    """Prepare a host as a worker's job: progress out, each report into its log, the result as JSON.

    Raises:
        StepFailedError: A step failed.
        HostError: The host cannot be reached, or does not come back.
    """
    total, seen = 1, 0

    def tell(report: Json) -> None:
        nonlocal total, seen
        if report.get("event") == "begin":
            total, seen = len(report.get("steps") or [1]), 0
        words = event_words(report)
        if words:
            _log.info("%s", words)
            job.progress(min(seen, total), total, words)
        if "state" in report and "step" in report:
            seen += 1

    if check_only:
        found = await look(host, settings)
        for step in found.steps:
            tell(step)
        return {
            "ready": all(step["state"] == "checked" for step in found.steps),
            "steps": found.words(),
            "would_change": [s["step"] for s in found.steps if s["state"] == "would_change"],
            "failed": [s["step"] for s in found.steps if s["state"] == "failed"],
        }
    found = await prepare(host, settings, tell, should_stop=job.should_stop)
    if not (job.should_stop() and found.failed is None):
        found.raise_if_failed(host.label)
    return {
        "ready": found.ok,
        "steps": found.words(),
        "changed": [step["step"] for step in found.steps if step["state"] == "changed"],
        "restarts": found.restarts,
    }


def event_words(report: Json) -> str:
    """A report for people; empty where it says nothing new."""
    if "state" in report and "step" in report:
        return step_words(report)
    event = report.get("event")
    if event == "step":
        return f"{report['step']}: looking"
    if event == "reboot":
        return "the machine restarts"
    if event == "waiting":
        return str(report.get("message", ""))
    return ""

"""Brings a deployment up, in a worker: a machine, its way out, its preparation, its server.

Each part looks before it acts, so that the same work can be begun again at any point: a worker that
died, a machine that was restarted and one that was never finished are all brought up the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.core.errors import (
    CapacityError,
    CloudError,
    ConflictError,
    DevopsError,
    EngineError,
    QuotaError,
)
from backends.gce.placing import Placer, explained, stopped
from backends.serving.startup_log import Phase

if TYPE_CHECKING:
    from pydantic import BaseModel

    from backends.base import WorkerJob
    from backends.core.plans import Plan, Step
    from backends.gce.looking import GceLooking
    from backends.gce.machines import Machine

_UP_TIMEOUT_S = 600.0
_START_TIMEOUT_S = 300.0
_READY_TIMEOUT_S = 3600.0
_LOOK_EVERY_S = 1.0


async def run_long_step(target: GceLooking, plan: Plan, step: Step, job: WorkerJob) -> str:
    """Run one long step of a deployment plan; returns what it did, in words.

    Raises:
        OperationError: Somebody asked for an end.
        DevopsError: It failed, with the cause where the words are known.
    """
    try:
        if step.kind == "place":
            return await _place(target, plan, step, job)
        machine = await target.ours(plan.name)
        if step.kind == "prepare":
            return await _prepare(target, machine, job)
        if step.kind == "serve":
            return await _serve(target, machine, job)
    except DevopsError as error:
        raise explained(error, plan.name) from error
    raise CloudError(f"{target.target} has no long step of kind {step.kind!r}.")


async def _place(target: GceLooking, plan: Plan, step: Step, job: WorkerJob) -> str:
    placer = Placer(target.cloud, target.api, target.memory)
    machine, refusals = await placer.place(
        plan.name,
        str(step.data["wanted"]),
        step.data["zones"],
        kept_disk=bool(step.data["kept_disk"]),
        said=lambda words: job.progress(0.0, 1.0, words),
        should_stop=job.should_stop,
    )
    without = ", ".join(item.zone for item in refusals)
    return f"made {plan.name} in {machine.zone}" + (f"; none in {without}" if without else "")


async def _prepare(target: GceLooking, machine: Machine, job: WorkerJob) -> str:
    job.progress(0.05, 1.0, "booting: waiting for ssh")
    await target.hosting.wait_until_up(machine, timeout_s=_UP_TIMEOUT_S)

    def on_step(number: int, of: int, title: str) -> None:
        job.progress(0.1 + 0.5 * number / max(1, of), 1.0, f"preparing ({number} of {of}): {title}")

    job.progress(0.1, 1.0, "preparing: looking at what is there")
    done = await target.hosting.prepare(machine, on_step, job.should_stop)
    if job.should_stop():
        raise stopped(machine.name)
    return "; ".join(done.words())


async def _serve(target: GceLooking, machine: Machine, job: WorkerJob) -> str:
    job.progress(0.6, 1.0, "loading: starting vLLM")
    did = await target.hosting.serve(machine)
    await _follow(target, machine, job)
    return "; ".join([*did, "ready"])


async def start_again(
    target: GceLooking, name: str, params: Mapping[str, Any], job: WorkerJob
) -> dict[str, Any]:
    """Bring a machine that is there back to serving: power, boot, preparation, server.

    Raises:
        CapacityError: Its zone has no T4 for it now.
        DevopsError: A part failed.
    """
    machine = await target.ours(name)
    operation = str(params.get("operation") or "")
    if operation:
        job.progress(0.0, None, "creating: Google looks for a T4 to start it on")
        await _power_on(target, machine, operation)
        machine = await target.api.machine(machine.zone, name)
    if params.get("restart"):
        job.progress(0.0, None, "booting: stopping vLLM")
        await target.hosting.stop(machine)
    began = time.monotonic()
    prepared = await _prepare(target, machine, job)
    between = time.monotonic()
    served = await _serve(target, machine, job)
    return {
        "zone": machine.zone,
        "prepared": prepared,
        "served": served,
        "preparing_s": round(between - began, 1),
        "loading_s": round(time.monotonic() - between, 1),
    }


async def _power_on(target: GceLooking, machine: Machine, operation: str) -> None:
    """Wait for Google's start to end.

    Raises:
        CapacityError: There is no hardware in its zone.
    """
    until = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until:
        outcome = await target.api.operation(machine.zone, operation)
        if outcome.code:
            from backends.clouds.google_errors import error_of

            words = f"code: {outcome.code}\nmessage: {outcome.message}"
            error = explained(error_of(words, f"Starting {machine.name}"), machine.name)
            if isinstance(error, (CapacityError, QuotaError)):
                wanted = f"T4 {'spot' if machine.spot else 'on-demand'}"
                kind = "stockout" if isinstance(error, CapacityError) else "quota"
                target.memory.note(wanted, machine.zone, kind, outcome.message)
            raise error
        if outcome.done:
            return
        await asyncio.sleep(_LOOK_EVERY_S)
    raise CloudError(
        f"Google has not started {machine.name} within {_START_TIMEOUT_S:.0f} s.",
        next_action=target.call("get_status", machine.name),
    )


async def _follow(target: GceLooking, machine: Machine, job: WorkerJob) -> None:
    """Watch the engine load until it is ready.

    Raises:
        EngineError: It died, or is not ready within an hour.
        OperationError: Somebody asked for an end; the engine goes on.
    """
    until = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < until:
        if job.should_stop():
            raise stopped(machine.name)
        engine = (await target.hosting.sight(machine)).engine
        if engine.state == "died":
            raise EngineError(
                f"vLLM on {target.at(machine.name)} died while loading.",
                words=engine.words,
                cause=engine.cause,
                next_action=engine.fix or target.call("get_logs", machine.name),
            )
        if engine.progress.phase is Phase.READY:
            job.progress(1.0, 1.0, "ready")
            return
        memory = f", {engine.vram_mib:.0f} MiB of GPU memory" if engine.vram_mib else ""
        job.progress(0.7, 1.0, f"loading: {engine.progress.phase.value}{memory}")
        await asyncio.sleep(_LOOK_EVERY_S)
    raise EngineError(
        f"vLLM on {target.at(machine.name)} is not ready after {_READY_TIMEOUT_S / 60:.0f} min.",
        next_action=target.call("get_logs", machine.name),
    )


async def prepare(
    target: GceLooking, name: str, options: BaseModel, job: WorkerJob, *, check_only: bool
) -> dict[str, Any]:
    """Take the steps of the preparation, or only look; returns what each found or did.

    Raises:
        ConflictError: The machine is off, or there is none yet.
        StepFailedError: A step failed; what the earlier ones changed is named.
    """
    from backends.clouds.hosts.preparing import prepare_in_worker

    machine = await target.ours(name)
    if machine.status != "RUNNING":
        raise ConflictError(
            f"{target.at(name)} does not run ({machine.status}).",
            next_action=target.call("start_serving", name),
        )
    job.progress(0.0, 1.0, "waiting for ssh")
    await target.hosting.wait_until_up(machine, timeout_s=_UP_TIMEOUT_S)
    settings = target.hosting.settings(machine) | options.model_dump(exclude_unset=True)
    host = await target.hosting.host(machine)
    return await prepare_in_worker(host, settings, job, check_only=check_only)

"""Container actions on every host of a slice, and the machine's own start.

The start script is the one way in which a container comes to be: it is run again by the machine at
boot, or by us over ssh from the machine's own metadata, so that what runs is what was planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from backends.core.answers import Changed
from backends.core.errors import CloudError, ConflictError, DevopsError, HostError
from backends.core.plans import Step
from backends.knowledge.tpu import CONTAINER
from backends.tpu.commands import power_argv
from backends.tpu.sight import STATE_FOLDER
from backends.tpu.state import STOPPED

if TYPE_CHECKING:
    from backends.clouds.hosts.host import Host, HostResult
    from backends.tpu.looking import TpuLooking
    from backends.tpu.records import TpuRequest

_STOP_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 20.0
_STOP_PATIENCE_S = 10

_FOLDER = f'd="${{VLLM_DEVOPS_HOST_ROOT:-}}{STATE_FOLDER}"'
# `$1` is the container, `$2` the seconds it gets, `$3` the step that is noted down.
_STOP = (
    f'{_FOLDER}; sudo docker stop --time "$2" "$1" > /dev/null || exit; '
    'printf \'%s %s\\n\' "$(date +%s)" "$3" | sudo tee -a "$d/phases" > /dev/null'
)
# As Google's own runner of startup scripts does at boot.
_START = (
    "set -eu; u=http://metadata.google.internal/computeMetadata/v1/instance/attributes; "
    "s=$(curl -sf --max-time 10 -H 'Metadata-Flavor: Google' \"$u/startup-script\"); "
    "printf '%s\\n' \"$s\" > .vllm-devops-start.sh; chmod 700 .vllm-devops-start.sh; "
    "exec sudo bash .vllm-devops-start.sh"
)
_JOB = "start"
# What an earlier run has noted down is of a server that is no more; the run itself ends by it.
_FORGET = f'{_FOLDER}; sudo rm -f "$d/run" "$d/phases"'
_BEGUN = f'{_FOLDER}; for _ in $(seq 100); do [ -s "$d/phases" ] && exit 0; sleep 0.1; done; exit 1'


def stop_step(request: TpuRequest) -> Step:
    """End the containers of a deployment on all of its hosts."""
    return Step(
        title=f"Stop the container on {request.hosts} host{'s' if request.hosts > 1 else ''}",
        kind="containers",
        data={
            "action": "stop",
            "zone": request.zone,
            "command": f"sudo docker stop --time {_STOP_PATIENCE_S} {CONTAINER}",
            "hosts": request.hosts,
        },
        undo=f"start_serving(target='tpu-v6e', name={request.name!r})",
    )


async def run_on_hosts(target: TpuLooking, name: str, step: Step) -> str:
    """Run a container action on every host; all are tried, those that failed are named.

    Raises:
        CloudError: It failed on some host; says which, and which are done.
    """
    request = await target.find(name)

    async def stopped(worker: int) -> None:
        host = await target.host(request, worker)
        await host.run(
            ["bash", "-c", _STOP, "stop", CONTAINER, str(_STOP_PATIENCE_S), STOPPED],
            timeout_s=_STOP_TIMEOUT_S,
            repeatable=True,
        )

    done, failed = await _on_each(request, stopped)
    target.forget(request)
    if failed:
        raise _partly(target, request, "stopped", done, failed)
    return f"stopped the container on {len(done)} of {request.hosts} hosts"


async def start(target: TpuLooking, name: str, *, restart: bool) -> Changed:
    """Start serving again: the machine if it is stopped, else the containers on every host.

    Raises:
        NotFoundError: There is none.
        NotManagedError: It is not ours.
        ConflictError: It is in no state to be started.
    """
    request = await target.ours(name)
    if request.stage == "stopped":
        project = await target.cloud.project()
        argv = power_argv(request, "start", project)
        await target.cloud.gcloud.run(argv, timeout_s=_START_TIMEOUT_S)
        target.forget(request)
        return await _changed(
            target, name, f"Google accepted the start of {target.at(name)}'s machine; its start "
            "script serves again.", [" ".join(argv)],
        )  # fmt: skip
    target.must_run(request, "start_serving")
    judged = await target.judge(request)
    if judged.state in {"ready", "starting"} and not restart:
        return await _changed(
            target, name, f"{target.at(name)} {judged.words}; nothing to start.", []
        )

    async def started(worker: int) -> None:
        host = await target.host(request, worker)
        if restart or judged.state in {"stopped", "failed"}:
            # It may still be waiting for the container that has ended.
            await host.end_job(_JOB)
            await _run(host, _FORGET)
        await host.start_detached(_START, name=_JOB, timeout_s=_START_TIMEOUT_S)
        # From here on a status tells of this start, not of the end before it.
        begun = await _run(host, _BEGUN, check=False)
        if begun.exit_code:
            job = await host.job(_JOB)
            raise HostError(
                "The start script did not begin.",
                words=job.log,
                next_action=target.call("get_logs", name, source="startup"),
            )

    done, failed = await _on_each(request, started)
    target.forget(request)
    if failed:
        raise _partly(target, request, "started", done, failed)
    again = " again" if restart else ""
    return await _changed(
        target,
        name,
        f"The start script runs{again} on {len(done)} of {request.hosts} hosts of "
        f"{target.at(name)}.",
        [f"worker {worker}: the start script of its metadata" for worker in done],
    )


async def _run(host: Host, script: str, *, check: bool = True) -> HostResult:
    return await host.run(
        ["bash", "-c", script], timeout_s=_START_TIMEOUT_S, check=check, repeatable=True
    )


async def _on_each(
    request: TpuRequest,
    action: Callable[[int], Awaitable[None]],
) -> tuple[list[int], dict[int, DevopsError]]:
    """Run an action on all hosts at once."""

    async def one(worker: int) -> DevopsError | None:
        try:
            await action(worker)
        except DevopsError as error:
            return error
        return None

    answers = await asyncio.gather(*(one(worker) for worker in range(request.hosts)))
    failed = {worker: error for worker, error in enumerate(answers) if error is not None}
    return [worker for worker in range(request.hosts) if worker not in failed], failed


def _partly(
    target: TpuLooking,
    request: TpuRequest,
    verb: str,
    done: list[int],
    failed: dict[int, DevopsError],
) -> DevopsError:
    first = next(iter(failed.values()))
    which = ", ".join(f"worker {worker}" for worker in failed)
    kind = type(first) if isinstance(first, CloudError | ConflictError) else HostError
    return kind(
        f"{target.at(request.name)} was not {verb} on {which}"
        + (f"; it was on {', '.join(f'worker {worker}' for worker in done)}." if done else "."),
        words=first.words or first.message,
        cause=first.cause,
        next_action=f"Call again: hosts that are done are left alone. "
        f"{target.call('get_status', request.name)} says how it is.",
    )


async def _changed(target: TpuLooking, name: str, summary: str, done: list[str]) -> Changed:
    status = await target.status(name)
    return Changed(
        summary=f"{summary} It is {status.state}.",
        target=target.target,
        name=name,
        state=status.state,
        url=status.url,
        done=done,
        usd_per_hour=status.usd_per_hour,
        next_steps=[target.call("wait_until_ready", name)]
        if status.state != "ready"
        else status.next_steps,
    )

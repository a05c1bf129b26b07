"""Times a cold start: everything down, one request, and each phase until its first token."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from backends.cloudrun.commands import at
from backends.cloudrun.services import RunService
from backends.cloudrun.state import expected_of
from backends.core.errors import ConflictError, DevopsError, EndpointError
from backends.core.words import plural
from backends.serving.endpoint import EndpointClient
from backends.serving.startup_log import Phase

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.cloudrun.looking import CloudRunLooking

# A request may wait for an instance as long as the service lets requests take.
_FIRST_TOKEN_TIMEOUT_S = 1800.0
_LOOK_EVERY_S = 2.0
_DOWN_TIMEOUT_S = 120.0


async def cold_start(target: CloudRunLooking, name: str, job: WorkerJob) -> dict[str, Any]:
    """Scale to zero, wake it with one request, and read the phases from its log.

    Manual scaling at zero ends what runs at once, without a new revision; automatic scaling comes
    back in every case.

    Raises:
        ConflictError: It cannot serve, or keeps instances warm.
        DevopsError: Cloud Run refused.
    """
    service = await target.ours(name)
    if service.ready is not True:
        raise ConflictError(
            f"{target.at(name)} cannot serve, so its start cannot be timed.",
            next_action=target.call("get_status", name),
        )
    if service.warm_instances > 0:
        raise ConflictError(
            f"{target.at(name)} keeps {plural(service.warm_instances, 'instance')} up, so nothing "
            "starts from zero.",
            next_action=f"update_scaling(target={target.target!r}, name={name!r}, "
            "automatic=true, min_instances=0) first.",
        )
    job.progress(0.0, None, "scaling to zero")
    changed = False
    try:
        await _scale(target, service, "--scaling=0")
        changed = True
        await _gone(target, service, job)
        # Automatic and nothing kept warm: only our request brings an instance up.
        await _scale(target, service, "--scaling=auto")
        changed = False
        return await _timed(target, service, time.time(), job)
    finally:
        if changed:
            await _scale(target, service, "--scaling=auto")


async def _timed(
    target: CloudRunLooking, service: RunService, began: float, job: WorkerJob
) -> dict[str, Any]:
    endpoint = await target.endpoint_at(service, service.url)
    usual = sum(expected_of(target.timed).values())
    async with EndpointClient(endpoint, timeout_s=_FIRST_TOKEN_TIMEOUT_S) as client:
        asking = asyncio.create_task(_first_token(client, began))
        try:
            while not asking.done():
                if job.should_stop():
                    return {"stopped_after_s": round(time.time() - began, 3)}
                sight = await target.sight(service)
                phase = sight.progress.phase.value if sight.began_at >= began - 1 else "waiting"
                elapsed = time.time() - began
                job.progress(elapsed, usual, f"{phase}, {elapsed:.0f} s of about {usual:.0f} s")
                await asyncio.wait([asking], timeout=_LOOK_EVERY_S)
            first_token_s, refused = await asking
        finally:
            if not asking.done():
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
    # The last lines may come in after the answer.
    await asyncio.sleep(_LOOK_EVERY_S)
    sight = await target.sight(service)
    result: dict[str, Any] = {
        "first_token_s": round(first_token_s, 3),
        "expected_s": usual,
        "basis": "simulated" if target.cloud.rehearsal else "measured",
    }
    if refused:
        result["refused_before"] = refused
    progress = sight.progress
    if sight.began_at >= began - 1:
        first = sight.began_at - began
        result["first_log_s"] = round(first, 3)
        for start in progress.phases:
            if start.offset_s is not None and start.phase is not Phase.STOPPED:
                result[f"{start.phase.value}_s"] = round(first + start.offset_s, 3)
        for key, value in progress.facts.model_dump(exclude_none=True).items():
            if key in {"weights_s", "compile_s", "graph_capture_s", "engine_init_s", "download_s"}:
                result[f"engine_says_{key}"] = value
    elif sight.problem:
        result["phases_unknown"] = sight.problem
    return result


async def _first_token(client: EndpointClient, began: float) -> tuple[float, int]:
    """Seconds from `began` to the first token, and how often the platform refused before.

    Cloud Run answers 429 or 503 where a start takes longer than it keeps a request waiting.
    """
    refused = 0
    while True:
        try:
            said = await client.chat(
                "Say hello.",
                max_tokens=1,
                temperature=0.0,
                timeout_s=_FIRST_TOKEN_TIMEOUT_S,
            )
        except EndpointError as error:
            if error.status not in {429, 500, 502, 503, 504}:
                raise
            if time.time() - began > _FIRST_TOKEN_TIMEOUT_S:
                raise
            refused += 1
            await asyncio.sleep(_LOOK_EVERY_S)
            continue
        rest_s = (said.e2e_ms - said.ttft_ms) / 1000 if said.ttft_ms is not None else 0.0
        return time.time() - began - rest_s, refused


async def _gone(target: CloudRunLooking, service: RunService, job: WorkerJob) -> None:
    """Wait until manual zero has settled and the instance has said goodbye, within a bound."""
    until = time.monotonic() + _DOWN_TIMEOUT_S
    while time.monotonic() < until and not job.should_stop():
        now = await target.api.service(service.region, service.name)
        sight = await target.sight(service)
        quiet = sight.gone or not sight.last_at or time.time() - sight.last_at > 60
        if now.manual == 0 and not now.reconciling and quiet:
            return
        await asyncio.sleep(1.0)


async def _scale(target: CloudRunLooking, service: RunService, *flags: str) -> None:
    argv = [
        *("gcloud", "beta", "run", "services", "update", service.name),
        *at(await target.cloud.project(), service.region),
        *(*flags, "--quiet", "--async", "--format=json"),
    ]
    try:
        await target.cloud.gcloud.run(argv)
    except DevopsError as error:
        error.next_action = error.next_action or target.call("get_status", service.name)
        raise

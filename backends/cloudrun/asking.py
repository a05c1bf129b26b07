"""What a service's engine itself says goes before what Cloud Run says of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from backends.cloudrun.health import Said, read_health
from backends.cloudrun.state import why_not_ready
from backends.core.answers import Check, Status
from backends.core.errors import CloudError, EndpointError

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking
    from backends.cloudrun.services import RunService


async def ask_engine(target: CloudRunLooking, service: RunService, answer: Status) -> None:
    """Ask an engine that is up, and correct a status by what it says.

    Args:
        target: The target.
        service: The service; asking it must wake nobody.
        answer: Its status by Cloud Run and its logs; changed in place.
    """
    try:
        said = await read_health(await target.endpoint_at(service, service.url))
    except (EndpointError, CloudError) as error:
        answer.state, answer.ready = "degraded", False
        answer.summary = f"{target.at(service.name)} is up, but: {error.message}"
        answer.error, answer.error_cause = error.words or error.message, error.cause
        answer.next_steps = [error.next_action, target.call("get_logs", service.name)]
        return
    answer.checks.append(
        Check(name="health", ok=said.ready, detail=said.detail, duration_ms=said.took_ms)
    )
    answer.models, answer.max_model_len = said.models, said.max_model_len
    answer.version = said.version
    answer.facts |= said.facts
    if not said.ready:
        await _not_ready(target, service, answer, said)


async def _not_ready(
    target: CloudRunLooking, service: RunService, answer: Status, said: Said
) -> None:
    answer.state, answer.ready, answer.phase = "starting", False, said.phase
    answer.summary = (
        f"{target.at(service.name)}: the container answers, but the model is not ready: "
        f"{said.detail}."
    )
    answer.next_steps = [target.call("wait_until_ready", service.name)]
    waited_s = time.time() - (service.updated_at or service.created_at)
    sight = await target.sight(service)
    trouble = why_not_ready(target.timed, service, sight, str(said.phase), waited_s)
    if trouble is not None:
        answer.error, answer.error_cause, fix = trouble
        answer.next_steps += [fix, target.call("get_logs", service.name)]

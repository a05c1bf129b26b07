"""What SageMaker's front door says in place of vLLM, explained for this endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.core.errors import EndpointError
from backends.knowledge.sagemaker_failures import signature_of

if TYPE_CHECKING:
    from backends.sagemaker.endpoints import Deployed
    from backends.sagemaker.looking import SageMakerLooking


def explain_refusal(target: SageMakerLooking, deployed: Deployed, error: EndpointError) -> None:
    """Put SageMaker's own reasons into a refusal."""
    name = deployed.name
    found = signature_of(error.words)
    if found is not None and found.id == "no_copy" and deployed.component is not None:
        _explain_zero(target, deployed, error)
        return
    if found is not None:
        error.cause, error.next_action = found.explained(target.target, name)
    elif error.status in {401, 403}:
        error.cause = (
            "The login may not invoke this endpoint (sagemaker:InvokeEndpointWithResponseStream), "
            "or its signature has expired."
        )
        error.next_action = (
            "Call again (it is signed anew); if it stays so, ask the account's administrator to "
            f"allow sagemaker:InvokeEndpoint* on {_arn(deployed)}."
        )
    elif error.status == 429:
        error.cause = (
            "SageMaker throttles invocations of this account or endpoint, or the engine's queue is "
            "full."
        )
        error.next_action = (
            f"Ask with less concurrency, or update_scaling(target={target.target!r}, "
            f"name={name!r}, instances=2)."
        )
    elif error.status == 503:
        error.cause = "No container of it can take the request: it is starting, or being replaced."
        error.next_action = f"{target.call('wait_until_ready', name)}, then ask again."
    elif error.status == 500:
        error.cause = "The container failed over this request; SageMaker hands on its words."
        error.next_action = target.call("get_logs", name)


def _explain_zero(target: SageMakerLooking, deployed: Deployed, error: EndpointError) -> None:
    """What a request to a deployment at zero has done: it has woken it, or it has done nothing."""
    from backends.sagemaker.component_state import wake_s

    name, component = deployed.name, deployed.component
    minutes = f"{wake_s() / 60:.0f} minutes"
    if component is None or not (component.bounds.on or component.bounds.problem):
        error.cause = (
            "It is at zero copies, and automatic scaling is not set up, so no request starts one."
        )
        start = target.call("start_serving", name)
        error.next_action = f"{start}, then wait_until_ready; it takes about {minutes}."
        return
    target.asked_in_vain(name)
    error.cause = (
        "It was at zero copies, so nothing could answer. This request has begun to wake it: an "
        f"alarm on it has a copy started, which answers in about {minutes}; until then every "
        "request is refused."
    )
    error.next_action = f"{target.call('wait_until_ready', name)}, then ask again."


def _arn(deployed: Deployed) -> str:
    return deployed.endpoint.arn if deployed.endpoint else "its ARN"

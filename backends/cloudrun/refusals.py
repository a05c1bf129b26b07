"""What Cloud Run's front door says in place of vLLM, explained for this service."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from backends.core.errors import EndpointError
from backends.knowledge.cloudrun import IDLE_S
from backends.knowledge.cloudrun_failures import signature_of

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking
    from backends.cloudrun.services import RunService

_TAG = re.compile(r"<(?:head>.*?</head|[^<>]+)>", re.DOTALL | re.IGNORECASE)


def explain_refusal(target: CloudRunLooking, service: RunService, error: EndpointError) -> None:
    """Put Cloud Run's own reasons into a refusal, and its page into plain words."""
    if "<html" in error.words.lower():
        error.words = " ".join(html.unescape(_TAG.sub(" ", error.words)).split())
    name = service.name
    found = signature_of(error.words)
    if found is not None:
        error.cause, error.next_action = found.explained(target.target, name)
    elif error.status == 401:
        error.cause = (
            "Cloud Run could not verify the identity token: it has expired, or is for another "
            "audience."
        )
        error.next_action = "Call again (a new token is taken); if it stays so: get_help('doctor')."
    elif error.status == 403:
        error.cause = (
            f"The login is known, but has no {_INVOKER} on {name}: the service is private."
        )
        error.next_action = (
            f"plan_deployment(target={target.target!r}, name={name!r}, options={{'invokers': "
            "['user:...']}}) lets somebody call it; or ask the person to run: gcloud run services "
            f"add-iam-policy-binding {name} --region={service.region} --member=user:... "
            f"--role={_INVOKER}"
        )
    elif error.status == 429:
        error.cause = (
            f"Every instance admits {service.concurrency} requests at once and at most "
            f"{service.max_instances} may run: all are taken, or one is only starting."
        )
        error.next_action = (
            f"Ask with less concurrency, or update_scaling(target={target.target!r}, "
            f"name={name!r}, max_instances={service.max_instances + 1})."
        )
    elif error.status == 503:
        error.cause = (
            "No instance could take the request: it starts from zero (an instance without requests "
            f"ends after up to {IDLE_S.value / 60:.0f} minutes), or its start failed."
        )
        error.next_action = f"{target.call('wait_until_ready', name)}, then ask again."


_INVOKER = "roles/run.invoker"

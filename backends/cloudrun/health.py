"""What a service's engine says of itself, where asking wakes nobody.

Some images answer /health with 200 from the first second on and report phases in its body
(`vllm_ready`, `warmed`); those are believed over the status. vLLM itself answers 200 only when it
is up.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

from backends.core.errors import EndpointError, EndpointUnreachableError
from backends.serving.endpoint import Endpoint, EndpointClient
from backends.serving.refusals import refusal

_TIMEOUT_S = 8.0
_MAX_FACTS = 12


@dataclass(frozen=True)
class Said:
    """What the engine says.

    Attributes:
        ready: Whether requests are served at full speed.
        detail: In words.
        took_ms: How long it took to say so.
        phase: The image's own phase, where it reports one.
        models: Models served.
        max_model_len: Longest context of the first.
        version: vLLM's version.
        facts: Further numbers it reports.
    """

    ready: bool
    detail: str
    took_ms: float
    phase: str | None = None
    models: list[str] = field(default_factory=list)
    max_model_len: int | None = None
    version: str | None = None
    facts: dict[str, str | int | float | bool] = field(default_factory=dict)


async def read_health(endpoint: Endpoint) -> Said:
    """Ask /health, and when that is well, which models are served.

    Raises:
        EndpointError: It refused or did not answer.
    """
    body, took_ms = await _health_body(endpoint)
    facts = {
        f"health {key}": value
        for key, value in list(body.items())[:_MAX_FACTS]
        if isinstance(value, str | int | float | bool)
    }
    if "vllm_ready" in body:
        phase = str(body.get("phase") or body.get("status") or "loading")
        ready = bool(body["vllm_ready"]) and bool(body.get("warmed", True))
        if not ready:
            return Said(False, f"phase {phase}", took_ms, phase, facts=facts)
    async with EndpointClient(endpoint, timeout_s=_TIMEOUT_S) as client:
        models = await client.models()
        try:
            version = await client.version()
        except EndpointError:
            version = None  # an image's own server may have no /version
    return Said(
        True,
        f"/health is well, /v1/models lists {len(models)}",
        took_ms,
        "ready",
        [model.id for model in models],
        models[0].max_model_len if models else None,
        version,
        facts,
    )


async def _health_body(endpoint: Endpoint) -> tuple[dict[str, object], float]:
    import httpx

    what = f"the health check of {endpoint.base_url}"
    headers = await endpoint.auth_headers()
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            httpx.AsyncClient(
                verify=endpoint.ssl_context() or True,
                trust_env=not endpoint.is_loopback,
                timeout=None,  # noqa: S113 - bounded as a whole
            ) as http,
        ):
            began = time.perf_counter()
            answer = await http.get(f"{endpoint.base_url}/health", headers=headers)
    except (TimeoutError, httpx.RequestError) as error:
        raise EndpointUnreachableError(
            f"{what}: no answer.",
            words=f"{type(error).__name__}: {error}",
            cause="It is starting, or nothing answers there.",
            next_action="Look at get_status again in a minute.",
        ) from None
    took_ms = (time.perf_counter() - began) * 1000
    if answer.status_code != 200:
        raise refusal(answer.status_code, answer.content, answer.headers, what=what)
    try:
        body = json.loads(answer.content or b"{}")
    except ValueError:
        body = {}
    return (body if isinstance(body, dict) else {}), took_ms

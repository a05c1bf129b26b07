"""How a TPU deployment is asked: through a tunnel, or at its public address with its key."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from backends.tpu.commands import key_secret_of

if TYPE_CHECKING:
    from backends.serving.endpoint import Endpoint
    from backends.tpu.looking import TpuLooking
    from backends.tpu.records import TpuRequest

_SECRETS = "https://secretmanager.googleapis.com/v1/projects"


async def endpoint_of(target: TpuLooking, request: TpuRequest) -> Endpoint:
    """The endpoint of an active deployment.

    Raises:
        HostUnreachableError: There is no way to the machine.
        DevopsError: Its key could not be read.
    """
    from backends.serving.endpoint import Endpoint

    simulated = target.cloud.rehearsal
    url = target.public_url(request)
    if url is not None:
        key = await _key(target, request.name)

        async def authorised() -> dict[str, str]:
            return {"Authorization": f"Bearer {key}"}

        return Endpoint(
            url,
            headers=authorised,
            simulated=simulated,
            source=f"public address of {request.name} in {request.zone}",
        )
    which = f"{target.target}/{request.key}/{request.created_at:.0f}"
    target.tunnels.setdefault(request.key, set()).add(which)
    tunnel = await target.cloud.tunnels.get(which, await target.host(request), request.port)
    return Endpoint(
        f"http://127.0.0.1:{tunnel.local_port}",
        simulated=simulated,
        source=f"tunnel to {request.node_id} in {request.zone}",
    )


async def _key(target: TpuLooking, name: str) -> str:
    """The API key of a public deployment, from Secret Manager."""
    project = await target.cloud.project()
    secret = key_secret_of(name)
    answer = await target.cloud.rest.get(
        f"{_SECRETS}/{project}/secrets/{secret}/versions/latest:access",
        f"The API key of {name} (secret {secret})",
    )
    data = (answer.get("payload") or {}).get("data", "")
    return base64.b64decode(str(data)).decode().strip()

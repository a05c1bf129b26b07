"""The URLs of Cloud Run services: who may call, which revision answers, and its answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.identity import GCLOUD_CLIENT_ID, TokenError, may_invoke
from backends.rehearsal.cloud.log_store import REQUESTS, run_resource
from backends.rehearsal.cloud.run import names, pages
from backends.rehearsal.cloud.run.conditions import is_ready
from backends.rehearsal.cloud.run.fleet import Fleet, NoInstanceError
from backends.rehearsal.cloud.run.instance import Instance
from backends.rehearsal.cloud.run.names import Key
from backends.rehearsal.cloud.run.shape import INVOKER_CHECK_DISABLED, read_scaling, truth
from backends.rehearsal.cloud.web import Json, Request, Response

if TYPE_CHECKING:
    import httpx

    from backends.rehearsal.cloud.cloud import Cloud

_NOT_PASSED_ON = {
    "authorization",
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
}
_NOT_PASSED_BACK = {"connection", "content-length", "keep-alive", "transfer-encoding"}
_BUSY_WAIT_S = 30.0
_TRIES = 3
_DEAD_WAIT_S = 0.05


class Endpoints:
    """Answers requests to `https://....run.app`.

    Args:
        cloud: The parts of the cloud.
        fleet: Where instances come from.
    """

    def __init__(self, cloud: Cloud, fleet: Fleet) -> None:
        self._cloud = cloud
        self._fleet = fleet
        self._client: httpx.AsyncClient | None = None

    @staticmethod
    def serves(host: str) -> bool:
        """Whether a host name is a service's."""
        return names.is_endpoint(host)

    async def answer(self, request: Request) -> Response:
        """Answer one request, as Google's front end and the container would."""
        began = time.time()
        key, tag = self._find(request.host)
        if key is None:
            return pages.not_found()
        service = self._cloud.world.services[str(key)]
        refusal = self._refuse(request, key, service)
        if refusal is not None:
            self._log(request, key, "", refusal.status, began)
            return refusal
        revision = self._choose(service, tag)
        if revision is None:
            response = pages.not_available()
        elif read_scaling(service).manual == 0:
            response = pages.disabled()
        else:
            response = await self._pass_on(request, Key(key.region, revision))
        self._log(request, key, revision or "", response.status, began)
        return response

    async def close(self) -> None:
        """Close what is open towards containers."""
        if self._client is not None:
            await self._client.aclose()

    # ------------------------------------------------------------------------- inside

    def _find(self, host: str) -> tuple[Key | None, str]:
        tag, marker, rest = host.partition("---")
        wanted = rest if marker else host
        for text in self._cloud.world.services:
            key = Key.parse(text)
            if wanted in names.hosts(self._cloud.world.number, key):
                return key, tag if marker else ""
        return None, ""

    def _refuse(self, request: Request, key: Key, service: Json) -> Response | None:
        """Refuse who may not call."""
        world = self._cloud.world
        policy = names.policy_name(world.project, key)
        unchecked = truth(service["metadata"]["annotations"].get(INVOKER_CHECK_DISABLED))
        if unchecked or may_invoke(world, "", policy):
            return None
        header = request.headers.get("x-serverless-authorization") or request.headers.get(
            "authorization", ""
        )
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer" or not token:
            return pages.forbidden(request.path)
        request.account = self._caller(token.strip(), key)
        if not request.account:
            return pages.unauthorized(request.path, "could not be verified")
        if not may_invoke(world, request.account, policy):
            return pages.forbidden(request.path)
        return None

    def _caller(self, token: str, key: Key) -> str:
        """The account of an identity token for this service; empty where it is not valid here."""
        try:
            claims = self._cloud.identity.claims_of(token)
        except TokenError:
            return ""
        account, audience = str(claims["email"]), str(claims["aud"]).rstrip("/")
        hosts = names.hosts(self._cloud.world.number, key)
        # A person's token is for gcloud, whatever it is used for; Cloud Run takes it.
        person = not account.endswith(".gserviceaccount.com")
        if audience.removeprefix("https://") in hosts or (person and audience == GCLOUD_CLIENT_ID):
            return account
        return ""

    def _choose(self, service: Json, tag: str) -> str | None:
        """The revision that answers: by tag, or by the traffic's shares."""
        region = service["metadata"]["labels"]["cloud.googleapis.com/location"]
        targets = service["status"]["traffic"]
        if tag:
            chosen = [item for item in targets if item.get("tag") == tag]
        else:
            chosen = [item for item in targets if item.get("percent")]
        usable = [
            item
            for item in chosen
            if is_ready(self._cloud.world.revisions.get(f"{region}/{item.get('revisionName')}", {}))
        ]
        if not usable:
            return None
        weights = [int(item.get("percent") or 1) for item in usable]
        return str(random.choices(usable, weights)[0]["revisionName"])

    async def _pass_on(self, request: Request, revision: Key) -> Response:
        for _ in range(_TRIES):
            try:
                instance = await self._fleet.acquire(revision)
            except NoInstanceError as error:
                return pages.not_available() if error.started else pages.no_instance()
            try:
                if instance.plan.stages:
                    own = await self._staging(request, instance)
                    if own is not None:
                        self._fleet.release(revision, instance)
                        return own
                return await self._ask(request, revision, instance)
            except ConnectionRefusedError:
                # It died this moment, before the request was sent: another one may take it.
                self._fleet.release(revision, instance)
                await asyncio.sleep(_DEAD_WAIT_S)
            except BaseException:
                self._fleet.release(revision, instance)
                raise
        return pages.upstream_reset()

    async def _staging(self, request: Request, instance: Instance) -> Response | None:
        """What the image that stages weights answers by itself."""
        if request.path == "/health":
            return Response(body=instance.health())
        if not instance.engine_ready:
            return Response(503, {"error": "model is loading", **instance.health()})
        limit = instance.plan.max_inflight
        if limit and instance.inflight > limit:
            deadline = time.monotonic() + _BUSY_WAIT_S / self._cloud.speed
            while instance.inflight > limit:
                if time.monotonic() > deadline:
                    return Response(
                        503, b"server busy", {"content-type": "text/plain; charset=utf-8"}
                    )
                await asyncio.sleep(0.02)
        return None

    async def _ask(self, request: Request, revision: Key, instance: Instance) -> Response:
        import httpx

        client = self._client
        if client is None:
            client = self._client = httpx.AsyncClient(
                timeout=None,  # noqa: S113 (the service's own timeout holds, below)
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                trust_env=False,
            )
        # vLLM's key, where it has one, comes in the header that Google's token did not use.
        headers = {
            name: value for name, value in request.headers.items() if name not in _NOT_PASSED_ON
        }
        if "x-serverless-authorization" in headers and "authorization" in request.headers:
            headers["authorization"] = request.headers["authorization"]
            del headers["x-serverless-authorization"]
        headers["x-forwarded-proto"] = "https"
        query = f"?{request.raw_query}" if request.raw_query else ""
        outgoing = client.build_request(
            request.method,
            f"http://127.0.0.1:{instance.port}{request.raw_path}{query}",
            headers=headers,
            content=request.raw(),
        )
        try:
            async with asyncio.timeout(instance.shape.timeout_s):
                incoming = await client.send(outgoing, stream=True)
        except TimeoutError:
            self._fleet.release(revision, instance)
            return pages.upstream_timeout()
        except httpx.ConnectError as error:
            raise ConnectionRefusedError from error
        except httpx.HTTPError:
            self._fleet.release(revision, instance)
            return pages.upstream_reset()

        async def close() -> None:
            self._fleet.release(revision, instance)
            await incoming.aclose()

        return Response(
            incoming.status_code,
            headers={
                name: value
                for name, value in incoming.headers.items()
                if name.lower() not in _NOT_PASSED_BACK
            }
            | {"server": "Google Frontend"},
            stream=_stream(incoming),
            close=close,
        )

    def _log(self, request: Request, key: Key, revision: str, status: int, began: float) -> None:
        world = self._cloud.world
        self._cloud.logs.write(
            REQUESTS,
            run_resource(world, key.region, key.name, revision),
            _WORDS.get(status, ""),
            severity="INFO" if status < 400 else "WARNING" if status < 500 else "ERROR",
            httpRequest={
                "requestMethod": request.method,
                "requestUrl": f"{request.origin}{request.path}",
                "status": status,
                "userAgent": request.headers.get("user-agent", ""),
                "latency": f"{time.time() - began:.6f}s",
                "protocol": "HTTP/1.1",
            },
        )


async def _stream(incoming: httpx.Response) -> AsyncIterator[bytes]:
    import httpx

    # A container that dies in the middle ends the answer there, as it does at Google.
    try:
        async for piece in incoming.aiter_raw():
            yield piece
    except httpx.HTTPError:
        raise ConnectionResetError from None


_WORDS = {
    401: "The request was not authorized to invoke this service. Read more at "
    "https://cloud.google.com/run/docs/securing/authenticating Additional troubleshooting "
    "documentation can be found at: https://cloud.google.com/run/docs/troubleshooting#401",
    403: "The request was not authenticated. Either allow unauthenticated invocations or set the "
    "proper Authorization header. Read more at "
    "https://cloud.google.com/run/docs/securing/authenticating Additional troubleshooting "
    "documentation can be found at: https://cloud.google.com/run/docs/troubleshooting"
    "#unauthorized-client",
    429: "The request was aborted because there was no available instance. Additional "
    "troubleshooting documentation can be found at: "
    "https://cloud.google.com/run/docs/troubleshooting#abort-request",
}

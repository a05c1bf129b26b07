"""The ASGI application behind the door: faults, authentication, the APIs, and the request log."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import inspect
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from backends.rehearsal.cloud.aws.wire import operation_of, signed
from backends.rehearsal.cloud.faults import RequestFault
from backends.rehearsal.cloud.identity import TokenError
from backends.rehearsal.cloud.request_log import loggable
from backends.rehearsal.cloud.web import (
    JSON_TYPE,
    Answer,
    Api,
    ApiError,
    Json,
    Request,
    Response,
    Route,
    error_info,
)

if TYPE_CHECKING:
    from backends.rehearsal.cloud.aws.front import Front
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.run.endpoints import Endpoints

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Control = Callable[[Request], Awaitable[Response]]

# Bodies above this are kept on disk: model files are uploaded in pieces of 100 MB.
_BODY_IN_MEMORY = 1 << 20
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

_CREDENTIALS_PAGE = "See https://developers.google.com/identity/sign-in/web/devconsole-project."


class Application:
    """Answers every request the door lets in.

    Args:
        cloud: The parts of the cloud.
        apis: The APIs that are played.
        endpoints: The URLs of Cloud Run services.
        aws: All of AWS.
        control: Answers `/rehearsal/...` on loopback.
        cut: Breaks a client's connection.
        read_faults: Takes in faults from their file, if it has changed.
    """

    def __init__(
        self,
        cloud: Cloud,
        apis: Sequence[Api],
        endpoints: Endpoints,
        aws: Front,
        control: Control,
        cut: Callable[[tuple[str, int]], None],
        read_faults: Callable[[], None],
    ) -> None:
        self._read_faults = read_faults
        self._cloud = cloud
        self._apis = apis
        self._endpoints = endpoints
        self._aws = aws
        self._control = control
        self._cut = cut

    def serves(self, host: str) -> bool:
        """Whether a host name is played here."""
        if self._endpoints.serves(host) or self._aws.serves(host):
            return True
        return any(api.hosts.fullmatch(host) for api in self._apis)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        began = time.perf_counter()
        request = await _read(scope, receive)
        if request is None:
            return
        try:
            if request.scheme == "http" and request.host in _LOOPBACK and not signed(request):
                await _answer(await self._control(request), request, send)
                return
            await _unless_gone(self._serve(request, began, send), receive)
        finally:
            request.body.close()

    async def _serve(self, request: Request, began: float, send: Send) -> None:
        endpoint = self._endpoints.serves(request.host)
        aws = self._aws.serves(request.host) or signed(request)
        if aws:
            request.operation = operation_of(request)
        body = None if endpoint else loggable(request)
        self._read_faults()
        fault = self._cloud.faults.meet(request)
        if fault is not None and fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        status: int | None = None
        response: Response | None = None
        try:
            if fault is not None and fault.action == "cut":
                await self._break(request)
                return
            if fault is not None and fault.action == "answer":
                response = (self._aws.faulty(request, fault) if aws else None) or _faulty(fault)
            elif endpoint:
                response = await self._endpoints.answer(request)
            elif aws:
                response = await self._aws.answer(request)
            else:
                response = await self._dispatch(request)
            if fault is not None and fault.action == "lose-answer":
                await self._break(request)
                return
            status = response.status
            await _answer(response, request, send)
        except ConnectionResetError:
            await self._break(request)
        finally:
            if response is not None and response.close is not None:
                await response.close()
            self._cloud.requests.add(
                request, status, body=body, began=began, fault=fault.id if fault else ""
            )

    async def _break(self, request: Request) -> None:
        self._cut(request.connection)
        # uvicorn learns of it on the next turn of the loop, and then expects no answer.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _dispatch(self, request: Request) -> Response:
        api: Api | None = None
        try:
            api, route, groups = self._find(request)
            self._admit(request, api, route)
            answer: Answer | Awaitable[Answer] = route.handler(request, *groups)
            if inspect.isawaitable(answer):
                answer = await answer
            if request.method not in {"GET", "HEAD"}:
                self._cloud.world.dirty = True
            return answer if isinstance(answer, Response) else Response(body=answer)
        except ApiError as error:
            if api is not None and api.errors == "legacy" and not error.reason:
                error.reason = _LEGACY_REASONS.get(error.code, "backendError")
            return error.response()
        except Exception as error:  # noqa: BLE001 (a fault of the rehearsal must show as one)
            traceback.print_exc(file=sys.stderr)
            return ApiError(500, f"The rehearsal cloud failed: {error!r}").response()

    def _find(self, request: Request) -> tuple[Api, Route, tuple[str, ...]]:
        hosts = [api for api in self._apis if api.hosts.fullmatch(request.host)]
        for api in hosts:
            found = api.find(request)
            if found is not None:
                return api, *found
        if not hosts:
            raise ApiError(
                403, f"{request.host} is not part of the rehearsal; nothing leaves this machine."
            )
        raise ApiError(
            404,
            f"{request.method} {request.path} of {request.host} is not part of the rehearsal.",
        )

    def _admit(self, request: Request, api: Api, route: Route) -> None:
        """Check who asks, whether the API is on, and whether they may.

        Raises:
            ApiError: 401 or 403.
        """
        if api.open_to_all:
            return
        world = self._cloud.world
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise ApiError(
                401,
                "Request is missing required authentication credential. Expected OAuth 2 access "
                "token, login cookie or other valid authentication credential. "
                + _CREDENTIALS_PAGE,
                details=[error_info("CREDENTIALS_MISSING", {"service": api.service})],
            )
        try:
            request.account = self._cloud.identity.account_of(token.strip())
        except TokenError as error:
            raise ApiError(
                401,
                "Request had invalid authentication credentials. Expected OAuth 2 access token, "
                "login cookie or other valid authentication credential. " + _CREDENTIALS_PAGE,
                details=[
                    error_info(
                        "ACCESS_TOKEN_TYPE_UNSUPPORTED"
                        if str(error) == "unknown"
                        else "ACCESS_TOKEN_EXPIRED",
                        {"service": api.service},
                    )
                ],
                headers={"www-authenticate": 'Bearer realm="https://accounts.google.com/"'},
            ) from error
        if not api.always_on and api.service not in world.enabled:
            raise self._disabled(api)
        if route.permission and any(
            fnmatch.fnmatchcase(route.permission, pattern) for pattern in world.knobs.denied
        ):
            raise denied(api, request, route.permission)

    def _disabled(self, api: Api) -> ApiError:
        number = self._cloud.world.number
        url = (
            f"https://console.developers.google.com/apis/api/{api.service}/overview"
            f"?project={number}"
        )
        return ApiError(
            403,
            f"{api.title} has not been used in project {number} before or it is disabled. Enable "
            f"it by visiting {url} then retry. If you enabled this API recently, wait a few "
            "minutes for the action to propagate to our systems and retry.",
            details=[
                error_info(
                    "SERVICE_DISABLED",
                    {
                        "activationUrl": url,
                        "consumer": f"projects/{number}",
                        "containerInfo": number,
                        "service": api.service,
                        "serviceTitle": api.title,
                    },
                ),
                {
                    "@type": "type.googleapis.com/google.rpc.Help",
                    "links": [
                        {"description": "Google developers console API activation", "url": url}
                    ],
                },
            ],
        )


_LEGACY_REASONS = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "alreadyExists",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "backendError",
    503: "backendError",
}


def denied(api: Api, request: Request, permission: str) -> ApiError:
    """403 in the words of the API."""
    resource = request.path.strip("/")
    for prefix in ("apis/serving.knative.dev/v1/", "v1beta/", "v2beta/", "v1/", "v2/", "v3/"):
        resource = resource.removeprefix(prefix)
    resource = resource.partition(":")[0]
    match api.service:
        case "compute.googleapis.com":
            text = (
                f"Required '{permission}' permission for '{resource.removeprefix('compute/v1/')}'"
            )
        case "storage.googleapis.com":
            kind = "object" if "/o/" in resource else "bucket"
            text = (
                f"{request.account} does not have {permission} access to the Google Cloud Storage "
                f"{kind}. Permission '{permission}' denied on resource (or it may not exist)."
            )
        case "secretmanager.googleapis.com":
            text = (
                f"Permission '{permission}' denied for resource '{resource}' (or it may not exist)."
            )
        case "logging.googleapis.com":
            text = "Permission denied for all log views"
        case "serviceusage.googleapis.com" if permission.endswith("enable"):
            text = "Permission denied to enable service [{}]".format(resource.rpartition("/")[2])
        case "cloudresourcemanager.googleapis.com":
            text = "The caller does not have permission"
        case _:
            text = (
                f"Permission '{permission}' denied on resource '{resource}' (or resource may not "
                "exist)."
            )
    details: list[Json] = [
        error_info(
            "IAM_PERMISSION_DENIED",
            {"permission": permission, "resource": resource},
            "iam.googleapis.com",
        )
    ]
    return ApiError(403, text, details=details)


async def _unless_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do the work, but stop when the client has left: vLLM too stops then."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pending in (gone, task):
            if not pending.done():
                pending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _faulty(fault: RequestFault) -> Response:
    body = fault.body
    if body is None:
        return ApiError(fault.status, f"Fault {fault.id} of the rehearsal.").response()
    if isinstance(body, str):
        return Response(fault.status, body.encode(), fault.headers)
    return Response(fault.status, body, fault.headers)


async def _read(scope: Scope, receive: Receive) -> Request | None:
    """The request of an ASGI scope, or None where the client left before sending all of it."""
    # Closed when the request has been served.
    body = tempfile.SpooledTemporaryFile(max_size=_BODY_IN_MEMORY)  # noqa: SIM115
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            body.close()
            return None
        piece = message.get("body", b"")
        size += len(piece)
        body.write(piece)
        if not message.get("more_body"):
            break
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    raw_path = scope["raw_path"].decode("ascii", "replace")
    host = headers.get("host", "")
    if not raw_path.startswith("/"):
        # A proxy request without TLS carries the whole address.
        address = urlsplit(raw_path)
        host, raw_path = address.netloc, address.path or "/"
    if headers.get("content-encoding") == "gzip":
        size = _gunzip(body)
    body.seek(0)
    return Request(
        method=scope["method"],
        host=host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host,
        raw_path=raw_path,
        raw_query=scope["query_string"].decode("latin-1"),
        query=parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True),
        headers=headers,
        body=body,
        size=size,
        scheme=scope["scheme"],
        connection=scope.get("client") or ("", 0),
    )


def _gunzip(body: tempfile.SpooledTemporaryFile[bytes]) -> int:
    import gzip

    body.seek(0)
    plain = gzip.decompress(body.read())
    body.seek(0)
    body.truncate()
    body.write(plain)
    return len(plain)


async def _answer(response: Response, request: Request, send: Send) -> None:
    headers = {"content-type": JSON_TYPE} | {
        name.lower(): value for name, value in response.headers.items()
    }
    data = b""
    if response.stream is None:
        data = b"" if response.status == 204 else response.encoded()
        if response.status != 204:
            headers["content-length"] = headers.get("content-length", str(len(data)))
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
            ],
        }
    )
    if response.stream is None:
        await send({"type": "http.response.body", "body": data})
        return
    async for piece in response.stream:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
    del request

"""The serving endpoint and the client that talks to it: one request at a time, fully accounted.

Everything that asks a vLLM endpoint something goes through `EndpointClient`, except the load
engines, which measure and share only `backends.serving.wire` with it. A failure always leaves as
an `EndpointError` with the engine's own words, the likely cause and what to do next.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from backends.core.errors import (
    EndpointError,
    EndpointNotReadyError,
    EndpointRejectedError,
    EndpointUnreachableError,
    InvalidInputError,
)
from backends.serving.answers import ChatResult, ServedModel, Tokens, chat_result
from backends.serving.engine.eventstream import EVENT_STREAM, FrameDecoder
from backends.serving.invocations import not_passed_on, unwrapped
from backends.serving.refusals import mask, refusal, stream_failure
from backends.serving.wire import Failure, SseDecoder, StreamTally, WireError

if TYPE_CHECKING:
    import ssl

    import httpx

    from backends.serving.engine.signing import CredentialProvider, SageMakerWire

HeaderProvider = Callable[[], Awaitable[dict[str, str]]]
"""Returns the headers that authorise a request; called for each one, so it caches and refreshes."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

MAX_BODY_BYTES = 64 * 1024 * 1024
"""An answer that does not end by then is not vLLM's: 32,768 tokens stream in about 10 MiB."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Endpoint:
    """Where a vLLM server answers, and what it takes to ask it.

    Args:
        base_url: `http(s)://host[:port][/prefix]`, up to but without `/v1` (a trailing `/v1` or
            slash is taken off).
        model: The served model name to ask for; None means the first one `/v1/models` lists.
        headers: Provider of the headers that authorise a request, or None where none are needed.
        verify: Whether to check the server's certificate. Only ever False for a rehearsal.
        ca_file: A file of additional certificate authorities to trust, in PEM.
        simulated: Whether what answers is a simulator; every figure taken from it says so.
        source: Where this endpoint comes from, in words: "Cloud Run service gemma in us-central1".
        explain: Told each refusal before it is raised; puts in what only the platform in front of
            vLLM knows (its own error pages, who may call).
        wire: Set where SageMaker stands between: how its requests are signed and its answers
            framed. `base_url` is then the runtime's (`signing.sagemaker_url`), and only chat and
            load go through; whatever else is asked is an `EndpointRejectedError`.
        credentials: Gives what such requests are signed with, for each one and every few minutes
            of a load; so it caches and refreshes (see `invocations.credentials_of`).
        max_model_len: The context it was deployed with, in tokens, for where it cannot be asked.

    Raises:
        InvalidInputError: `base_url` is not an http or https URL, or carries credentials; or there
            is a wire without credentials or model.
    """

    base_url: str
    model: str | None = None
    headers: HeaderProvider | None = None
    verify: bool = True
    ca_file: Path | None = None
    simulated: bool = False
    source: str = ""
    explain: Callable[[EndpointError], None] | None = None
    wire: SageMakerWire | None = None
    credentials: CredentialProvider | None = None
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        url = self.base_url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
        try:
            parts = urlsplit(url)
            well_formed = parts.scheme in ("http", "https") and bool(parts.hostname)
            port = parts.port
        except ValueError:
            well_formed, port = False, None
        if not well_formed or port == 0 or parts.query or parts.fragment:
            raise InvalidInputError(
                "base_url", "not an endpoint address.", allowed="http(s)://host[:port][/prefix]"
            )
        if parts.username or parts.password:
            raise InvalidInputError(
                "base_url",
                "carries credentials.",
                allowed="an address without them; set the API key in the environment",
            )
        if self.wire is not None and (self.credentials is None or self.model is None):
            raise InvalidInputError(
                "wire", "needs credentials to sign with, and the model's name: it cannot be asked."
            )
        object.__setattr__(self, "base_url", url)

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine, where no proxy belongs in between."""
        return urlsplit(self.base_url).hostname in LOOPBACK

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings for it, or None for plain http."""
        if not self.base_url.startswith("https:"):
            return None
        from backends.serving.engine.target import Tls

        return Tls.of(self).context()

    async def auth_headers(self) -> dict[str, str]:
        """Return the headers that authorise a request now."""
        return {} if self.headers is None else await self.headers()

    async def post(self, path: str, body: bytes) -> tuple[str, dict[str, str]]:
        """Return where a request for `path` goes, and its headers.

        Raises:
            UnauthenticatedError: There is nothing to sign it with.
        """
        if self.wire is None or self.credentials is None:
            headers = {"content-type": "application/json", **await self.auth_headers()}
            return f"{self.base_url}{path}", headers
        from backends.serving.engine.signing import Signer

        url = f"{self.base_url}{self.wire.path}"
        return url, Signer(self.wire, url).sign(body, await self.credentials())

    async def secrets(self) -> list[str]:
        """Return what authorises requests now, none of which may be shown."""
        values = (await self.auth_headers()).values()
        parts = (p for v in values for p in (v, v.strip(), v.removeprefix("Bearer ").strip()))
        return [*parts, *([] if self.credentials is None else (await self.credentials()).secrets)]


class EndpointClient:
    """Asks one endpoint. Use as an async context manager; safe for concurrent requests.

    Args:
        endpoint: Whom to ask.
        timeout_s: Bound of every call that has no `timeout_s` of its own, above 0.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float = 10.0) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._http: httpx.AsyncClient | None = None
        self._model: str | None = endpoint.model

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def health(self, *, timeout_s: float | None = None) -> float:
        """Ask `/health` and return the time it took, in milliseconds.

        Raises:
            EndpointNotReadyError: It answers 503: loading, or the engine process has died.
            EndpointError: Any other failure, by its subclass.
        """
        await self._client()  # so that the time is the endpoint's, not that of our imports
        started = time.perf_counter()
        await self._get("/health", "the health check", timeout_s)
        return (time.perf_counter() - started) * 1000

    async def version(self, *, timeout_s: float | None = None) -> str:
        """Return vLLM's version as `/version` says it.

        Raises:
            EndpointError: It did not answer, or not with a version.
        """
        answer = await self._get_json("/version", "the version", timeout_s)
        version = answer.get("version") if isinstance(answer, dict) else None
        if not isinstance(version, str):
            raise self._foreign("the version", answer)
        return version

    async def models(self, *, timeout_s: float | None = None) -> list[ServedModel]:
        """Return the models that `/v1/models` lists, in its order (the first is the default).

        Raises:
            EndpointAuthError: An API key is needed, or the one given is wrong.
            EndpointError: Any other failure, by its subclass.
        """
        answer = await self._get_json("/v1/models", "the list of models", timeout_s)
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or not all(
            isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in data
        ):
            raise self._foreign("the list of models", answer)
        return [
            ServedModel(
                id=entry["id"],
                max_model_len=_known(entry, "max_model_len", int),
                root=_known(entry, "root", str),
            )
            for entry in data
        ]

    async def metrics_text(self, *, timeout_s: float | None = None) -> str:
        """Return the body of `/metrics` in Prometheus' text format.

        Raises:
            EndpointError: It did not answer, by its subclass.
        """
        return (await self._get("/metrics", "the metrics", timeout_s)).decode("utf-8", "replace")

    async def tokenize(
        self, prompt: str | Sequence[Mapping[str, Any]], *, timeout_s: float | None = None
    ) -> Tokens:
        """Count the tokens of a text, or of chat messages with the model's template applied.

        Raises:
            EndpointRejectedError: The server has no `/tokenize`.
            EndpointError: Any other failure, by its subclass.
        """
        body: dict[str, Any] = {"model": await self.model_name()}
        body["prompt" if isinstance(prompt, str) else "messages"] = prompt
        what = f"a token count of {self.endpoint.base_url}"
        content = await self._ask("POST", "/tokenize", what, timeout_s, body)
        parsed = self._parse(content, "a token count")
        if not isinstance(parsed, dict) or not isinstance(parsed.get("count"), int):
            raise self._foreign("a token count", parsed)
        return Tokens(count=parsed["count"], max_model_len=_known(parsed, "max_model_len", int))

    async def model_name(self) -> str:
        """Return the model that is asked for: the endpoint's own, else the first one served.

        Raises:
            EndpointNotReadyError: The endpoint lists no model.
        """
        if self._model is None:
            served = await self.models()
            if not served:
                raise EndpointNotReadyError(
                    f"{self.endpoint.base_url} lists no model.",
                    cause="The server is up but serves nothing.",
                    next_action="Read get_logs for why the model was not loaded.",
                )
            self._model = served[0].id
        return self._model

    async def first_look(self) -> str:
        """Return the model's name, having asked it for one token where it cannot be listed.

        Raises:
            EndpointError: It does not answer, by its subclass.
        """
        name = await self.model_name()
        if self.endpoint.wire is not None:
            await self.chat("Hi", max_tokens=1)
        return name

    async def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        system: str | None = None,
        max_tokens: int = 256,
        temperature: float | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        timeout_s: float = 40.0,
    ) -> ChatResult:
        """Ask for one chat completion, streaming inside, and return it whole.

        Args:
            messages: The user's words, or chat messages as the API takes them.
            model: A served name; None means `model_name()`.
            system: System words, put in front.
            max_tokens: Bound of the answer, reasoning included, 1 or more.
            temperature: 0 to 2; None leaves the server's default.
            tools: Tool definitions as the API takes them.
            tool_choice: `auto`, `none`, `required` or a named tool.
            extra: Further fields of the request body, for instance `ignore_eos`.
            timeout_s: Bound of the whole call in seconds.

        Raises:
            EndpointRejectedError: Wrong model (served names are listed), too long, bad field.
            EndpointAuthError, EndpointBusyError, EndpointNotReadyError: 401/403, 429, 502-504.
            EndpointUnreachableError: No connection, or no end within `timeout_s`.
            EndpointError: The stream carried an error or broke off.
        """
        name = model or await self.model_name()
        conversation: list[Mapping[str, Any]] = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        )
        if system:
            conversation.insert(0, {"role": "system", "content": system})
        body: dict[str, Any] = {
            "model": name,
            "messages": conversation,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if temperature is None else {"temperature": temperature}),
            **({} if tools is None else {"tools": list(tools)}),
            **({} if tool_choice is None else {"tool_choice": tool_choice}),
            **(extra or {}),
        }
        what = f"a chat completion of {name} at {self.endpoint.base_url}"
        tally = StreamTally(keep_text=True)
        clock = _SendClock()
        async with self._deadline(timeout_s, what, tally):
            streamed = await self._stream(body, tally, clock, what)
        failure = tally.failure()
        if failure is not None and not (failure.kind == "empty" and tally.finish_reason):
            raise stream_failure(
                failure,
                what=what,
                content_events=len(tally.content_ns),
                secrets=await self.endpoint.secrets(),
            )
        return chat_result(
            tally,
            sent_ns=clock.sent_ns,
            end_ns=clock.end_ns,
            connect_ms=clock.connect_ms,
            streamed=streamed,
            simulated=self.endpoint.simulated,
        )

    async def _stream(
        self, body: dict[str, Any], tally: StreamTally, clock: _SendClock, what: str
    ) -> bool:
        http = await self._client()
        content = json.dumps(body).encode()
        url, headers = await self.endpoint.post("/v1/chat/completions", content)
        clock.sent_ns = time.perf_counter_ns()
        async with http.stream(
            "POST", url, content=content, headers=headers, extensions={"trace": clock.trace}
        ) as answer:
            if answer.status_code != 200:
                refused = await self._whole(answer, what)
                raise await self._refused(answer.status_code, refused, answer.headers, what)
            kind = answer.headers.get("content-type", "")
            if not kind.startswith(("text/event-stream", EVENT_STREAM)):
                return self._take_whole_answer(await self._whole(answer, what), tally, clock)
            decoder = _EventDecoder(framed=kind.startswith(EVENT_STREAM))
            came = 0
            async for part in answer.aiter_bytes():
                now_ns = time.perf_counter_ns()
                came += len(part)
                if came > MAX_BODY_BYTES:
                    raise self._endless(what)
                try:
                    events = decoder.feed(part)
                except WireError as error:
                    tally.error = Failure("malformed_event", str(error))
                    return True
                for data in events:
                    tally.take(data, now_ns)
                if decoder.failure is not None:
                    tally.error = tally.error or decoder.failure
                    return True
            clock.end_ns = time.perf_counter_ns()
        return True

    def _take_whole_answer(self, body: bytes, tally: StreamTally, clock: _SendClock) -> bool:
        """Read an answer that came whole although a stream was asked for; it has no TTFT."""
        self._parse(body, "a chat completion")
        clock.end_ns = time.perf_counter_ns()
        tally.take(body, clock.end_ns)
        tally.done = True
        return False

    async def _get(self, path: str, what: str, timeout_s: float | None) -> bytes:
        return await self._ask("GET", path, f"{what} of {self.endpoint.base_url}", timeout_s)

    async def _ask(
        self,
        method: str,
        path: str,
        what: str,
        timeout_s: float | None,
        body: Mapping[str, Any] | None = None,
    ) -> bytes:
        if self.endpoint.wire is not None:
            raise not_passed_on(path)
        async with self._deadline(timeout_s or self.timeout_s, what):
            http = await self._client()
            headers = await self.endpoint.auth_headers()
            async with http.stream(method, self._url(path), json=body, headers=headers) as answer:
                content = await self._whole(answer, what)
        if answer.status_code != 200:
            raise await self._refused(answer.status_code, content, answer.headers, what)
        return content

    async def _whole(self, answer: httpx.Response, what: str) -> bytes:
        """The body of an answer; one that does not end would fill this server's memory."""
        parts: list[bytes] = []
        came = 0
        async for part in answer.aiter_bytes():
            parts.append(part)
            came += len(part)
            if came > MAX_BODY_BYTES:
                raise self._endless(what)
        return b"".join(parts)

    def _endless(self, what: str) -> EndpointError:
        return EndpointError(
            f"{what} was answered with more than {MAX_BODY_BYTES >> 20} MiB; it was given up.",
            cause="Something other than vLLM listens there.",
            next_action="Check the base URL; it must lead to vLLM's OpenAI-compatible server.",
        )

    async def _get_json(self, path: str, what: str, timeout_s: float | None) -> object:
        return self._parse(await self._get(path, what, timeout_s), what)

    def _parse(self, body: bytes, what: str) -> object:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self._foreign(what, body[:200].decode("utf-8", "replace")) from None

    def _foreign(self, what: str, answer: object) -> EndpointError:
        return EndpointError(
            f"{self.endpoint.base_url} did not answer {what} in the shape vLLM does.",
            words=str(answer)[:300],
            cause="Something other than vLLM listens there, or a proxy answered in its place.",
            next_action="Check the base URL; it must lead to vLLM's OpenAI-compatible server.",
        )

    async def _refused(
        self, status: int, body: bytes, headers: Mapping[str, str], what: str
    ) -> EndpointError:
        error = await self._refusal(status, body, headers, what)
        if self.endpoint.explain is not None:
            self.endpoint.explain(error)
        return error

    async def _refusal(
        self, status: int, body: bytes, headers: Mapping[str, str], what: str
    ) -> EndpointError:
        served: list[str] = []
        secrets = await self.endpoint.secrets()
        plain = {name.lower(): value for name, value in headers.items()}
        if self.endpoint.wire is not None:
            status, body = unwrapped(status, plain, body)
        error = refusal(status, body, plain, what=what, secrets=secrets)
        if status == 404 and isinstance(error, EndpointRejectedError) and "model" in error.words:
            try:
                served = [entry.id for entry in await self.models(timeout_s=5.0)]
            except EndpointError:
                return error
            error = refusal(status, body, plain, what=what, served=served, secrets=secrets)
        return error

    async def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            import httpx

            self._http = httpx.AsyncClient(
                # plain http verifies nothing; loading the authorities would take 50 ms all the same
                verify=self.endpoint.ssl_context() or False,
                timeout=None,  # noqa: S113 - _deadline bounds every call as a whole
                trust_env=not self.endpoint.is_loopback,
                headers={"accept-encoding": "identity", "user-agent": "vllm-devops"},
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            )
        return self._http

    def _url(self, path: str) -> str:
        return f"{self.endpoint.base_url}{path}"

    @asynccontextmanager
    async def _deadline(
        self, timeout_s: float, what: str, tally: StreamTally | None = None
    ) -> AsyncIterator[None]:
        import httpx

        came = len(tally.content_ns) if tally else 0
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            came = len(tally.content_ns) if tally else 0
            raise EndpointUnreachableError(
                f"{what} did not end within {timeout_s:g} s"
                + (f"; {came} content events had come." if came else "."),
                cause="It is generating slowly, its queue is long, or it has stalled."
                if came
                else "It is starting from zero, its queue is long, or nothing answers there.",
                next_action="Look at get_status and get_metrics (waiting, running), then ask again "
                "with fewer max_tokens or a longer timeout.",
            ) from None
        except httpx.ConnectError as error:
            raise EndpointUnreachableError(
                f"{what}: no connection.",
                words=mask(str(error), await self.endpoint.secrets()),
                cause=_connect_cause(str(error)),
                next_action="Check with get_status whether the deployment runs and at which "
                "address.",
            ) from None
        except httpx.RequestError as error:
            came = len(tally.content_ns) if tally else 0
            raise EndpointUnreachableError(
                f"{what}: the connection broke"
                + (f" after {came} content events." if came else " before an answer came."),
                words=mask(f"{type(error).__name__}: {error}", await self.endpoint.secrets()),
                cause="The server process ended, or a proxy between cut the connection.",
                next_action="Check with get_status whether it still runs, and read get_logs.",
            ) from None


class _EventDecoder:
    """Finds the events of an answer, taking SageMaker's frames off where there are any."""

    def __init__(self, *, framed: bool) -> None:
        self.failure: Failure | None = None
        self._events = SseDecoder()
        self._frames = FrameDecoder() if framed else None

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return the events they complete; `failure` is what a frame reported.

        Raises:
            WireError: They are neither frames nor events.
        """
        if self._frames is not None:
            data, failure = self._frames.feed(data)
            self.failure = self.failure or failure
        return self._events.feed(data)


class _SendClock:
    """When the request left and what the connection cost, from httpcore's trace events."""

    def __init__(self) -> None:
        self.sent_ns = 0
        self.end_ns = 0
        self.connect_started_ns: int | None = None
        self.connect_ms: float | None = None

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        del info
        now_ns = time.perf_counter_ns()
        if name == "connection.connect_tcp.started":
            self.connect_started_ns = now_ns
        elif name.endswith("send_request_headers.started"):
            self.sent_ns = now_ns
            if self.connect_started_ns is not None:
                self.connect_ms = (now_ns - self.connect_started_ns) / 1e6


def _known(values: Mapping[str, Any], key: str, kind: type[_T]) -> _T | None:
    """A value of the type that vLLM gives it; another server's idea of it is unknown."""
    value = values.get(key)
    return value if isinstance(value, kind) else None


def _connect_cause(words: str) -> str:
    lowered = words.lower()
    if "certificate" in lowered or "ssl" in lowered:
        return "The server's certificate is not trusted, or it does not speak TLS on that port."
    if "name or service" in lowered or "nodename" in lowered or "resolution" in lowered:
        return "The host name does not resolve."
    return "Nothing listens at that address: not deployed, still starting, or stopped."

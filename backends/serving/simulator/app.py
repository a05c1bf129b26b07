"""The ASGI application: vLLM's routes."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable

from backends.serving.simulator.config import SimulatorConfig
from backends.serving.simulator.driver import Driver
from backends.serving.simulator.exchange import (
    ClientGoneError,
    Exchange,
    Message,
    Receive,
    Send,
)
from backends.serving.simulator.exposition import CONTENT_TYPE, UNCOUNTED_PATHS, Exposition
from backends.serving.simulator.generation import Generation
from backends.serving.simulator.protocol import (
    SIMULATED_VERSION,
    DetokenizeRequest,
    RefusalError,
    TokenizeRequest,
    UnreadableBodyError,
    missing_refusal,
    model_card,
    parse_json,
    parse_request,
)
from backends.serving.simulator.text import Vocabulary, split

Handler = Callable[[Exchange], Awaitable[None]]


class SimulatorApp:
    """vLLM's HTTP interface over a simulated engine.

    Args:
        config: Settings.
        driver: The engine in time.
        exposition: `/metrics`.
    """

    def __init__(self, config: SimulatorConfig, driver: Driver, exposition: Exposition) -> None:
        self._config = config
        self._driver = driver
        self._exposition = exposition
        self._generation = Generation(config, driver)
        self._vocabulary = Vocabulary()
        self._started = int(time.time())
        self._routes: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._server_load},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/invocations": {"POST": self._invocations},
        }

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Paths and their methods, for the log."""
        return [(path, method) for path, methods in self._routes.items() for method in methods]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or follow the server's life."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(Exchange(scope, receive, send))

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._driver.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._driver.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, exchange: Exchange) -> None:
        started_s = time.perf_counter()
        methods = self._routes.get(exchange.path)
        try:
            if not self._authorized(exchange):
                await exchange.respond_json(401, {"error": "Unauthorized"})
            elif methods is None:
                await exchange.respond_json(404, {"detail": "Not Found"})
            elif exchange.method not in methods:
                allow = ((b"allow", ", ".join(methods).encode()),)
                await exchange.respond_json(405, {"detail": "Method Not Allowed"}, allow)
            else:
                await methods[exchange.method](exchange)
        except RefusalError as refusal:
            await exchange.respond_json(refusal.status, refusal.body)
        except UnreadableBodyError:
            await exchange.respond_json(400, {"detail": "There was an error parsing the body"})
        except ClientGoneError:
            exchange.status = 499
        finally:
            exchange.close()
        if exchange.path not in UNCOUNTED_PATHS:
            handled = methods is not None and exchange.method in methods
            self._exposition.count_request(
                method=exchange.method,
                handler=exchange.path if handled else "none",
                status=exchange.status,
                duration_s=time.perf_counter() - started_s,
                request_bytes=int(exchange.headers.get(b"content-length", b"0")),
                response_bytes=exchange.response_bytes,
            )

    def _authorized(self, exchange: Exchange) -> bool:
        if not self._config.api_key or not exchange.path.startswith("/v1"):
            return True
        given = exchange.headers.get(b"authorization", b"")
        return hmac.compare_digest(given, f"Bearer {self._config.api_key}".encode())

    async def _health(self, exchange: Exchange) -> None:
        await exchange.respond(503 if self._driver.dead else 200)

    async def _version(self, exchange: Exchange) -> None:
        await exchange.respond_json(200, {"version": SIMULATED_VERSION})

    async def _server_load(self, exchange: Exchange) -> None:
        await exchange.respond_json(200, {"server_load": self._generation.load})

    async def _metrics(self, exchange: Exchange) -> None:
        await exchange.respond(200, self._exposition.render(), CONTENT_TYPE)

    async def _models(self, exchange: Exchange) -> None:
        config = self._config
        cards = [
            model_card(name, config.model, config.max_model_len, self._started)
            for name in config.served_model_names
        ]
        await exchange.respond_json(200, {"object": "list", "data": cards})

    async def _tokenize(self, exchange: Exchange) -> None:
        data = await self._json(exchange)
        if isinstance(data, dict) and "prompt" not in data and "messages" not in data:
            raise missing_refusal(data, "prompt", "messages")
        request = parse_request(TokenizeRequest, data)
        self._generation.check_model(request.model)
        if request.messages is not None:
            pieces = self._generation.jobs.chat_prompt(
                request.messages,
                request.tools,
                add_generation_prompt=request.add_generation_prompt,
            )
        else:
            pieces = split(request.prompt or "")
        answer = {
            "count": len(pieces),
            "max_model_len": self._config.max_model_len,
            "tokens": self._vocabulary.encode(pieces),
            "token_strs": pieces if request.return_token_strs else None,
        }
        await exchange.respond_json(200, answer)

    async def _detokenize(self, exchange: Exchange) -> None:
        request = parse_request(DetokenizeRequest, await self._json(exchange))
        self._generation.check_model(request.model)
        await exchange.respond_json(200, {"prompt": self._vocabulary.decode(request.tokens)})

    async def _chat(self, exchange: Exchange) -> None:
        await self._generation.run(exchange, await self._json(exchange), chat=True)

    async def _completion(self, exchange: Exchange) -> None:
        await self._generation.run(exchange, await self._json(exchange), chat=False)

    async def _invocations(self, exchange: Exchange) -> None:
        body = await exchange.body()
        try:
            data = json.loads(body)
        except ValueError as error:
            raise RefusalError(400, f"JSON decode error: {error}", "Bad Request") from None
        # vLLM takes the first kind of request whose required fields are there; a plain
        # completion requires none.
        chat = isinstance(data, dict) and "messages" in data
        await self._generation.run(exchange, data, chat=chat)

    @staticmethod
    async def _json(exchange: Exchange) -> object:
        return parse_json(await exchange.body(), exchange.headers.get(b"content-type", b""))

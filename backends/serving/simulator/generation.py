"""Answers completions: through the gate, into the engine, out to the client."""

from __future__ import annotations

import asyncio
import logging

from backends.serving.simulator.answers import (
    DONE,
    EventWriter,
    UsageStyle,
    chat_body,
    completion_body,
    dump,
    event,
)
from backends.serving.simulator.config import SimulatorConfig
from backends.serving.simulator.driver import AdmissionGate, Driver
from backends.serving.simulator.exchange import ClientGoneError, Exchange
from backends.serving.simulator.jobs import Delivery, Job, JobBuilder
from backends.serving.simulator.log import log
from backends.serving.simulator.protocol import (
    ChatRequest,
    CompletionRequest,
    EngineDeadError,
    GenerationRequest,
    RefusalError,
    parse_request,
)


class Generation:
    """The completion routes.

    Args:
        config: Settings.
        driver: The engine in time.
    """

    def __init__(self, config: SimulatorConfig, driver: Driver) -> None:
        self.jobs = JobBuilder(config)
        self.load = 0
        self.gate = AdmissionGate(config.admission_cap)
        self._config = config
        self._driver = driver
        self._usage = UsageStyle(
            cached=config.prompt_tokens_details, reasoning=bool(config.reasoning_parser)
        )

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served.

        Raises:
            RefusalError: 404.
        """
        names = self._config.served_model_names
        if not name or name in names:
            return
        message = f"The model `{name}` does not exist. Valid aliases: {', '.join(names)}."
        log(
            "APIServer",
            "serving.py:274",
            f"Error with model error=ErrorInfo(message={message!r}, "
            "type='NotFoundError', param='model', code=404)",
            logging.ERROR,
        )
        raise RefusalError(404, message, "NotFoundError", "model")

    async def run(self, exchange: Exchange, data: object, *, chat: bool) -> None:
        """Answer one completion request whose body has been read.

        Args:
            exchange: The connection.
            data: The body's JSON.
            chat: Chat completion, or plain completion.

        Raises:
            RefusalError: It is refused; nothing has been sent.
            ClientGoneError: The client left.
        """
        delivery = Delivery()
        place: asyncio.Future[None] | None = None

        def leave() -> None:
            delivery.leave()
            if place is not None and not place.done():
                place.set_exception(ClientGoneError())

        exchange.watch_client(leave)
        place = self.gate.enter()
        if place is not None:
            await place
        self.load += 1
        try:
            await self._answer(exchange, data, delivery, chat=chat)
        finally:
            self.load -= 1
            self.gate.leave()

    async def _answer(
        self, exchange: Exchange, data: object, delivery: Delivery, *, chat: bool
    ) -> None:
        request: GenerationRequest
        if chat:
            request = chat_request = parse_request(ChatRequest, data)
            request.check_fields()
            self.check_model(request.model)
            job = self.jobs.chat(chat_request, delivery)
        else:
            request = completion_request = parse_request(CompletionRequest, data)
            request.check_fields()
            self.check_model(request.model)
            job = self.jobs.completion(completion_request, delivery)
        if self._driver.dead:
            raise EngineDeadError
        self._driver.submit(job)
        try:
            if request.stream:
                await self._stream(exchange, job, request)
            else:
                await self._whole(exchange, job)
        finally:
            self._driver.release(job)

    async def _whole(self, exchange: Exchange, job: Job) -> None:
        job.delivery.whole = True
        while job.delivery.unfinished:
            self._check_alive(job)
            await job.delivery.wait()
        self._check_alive(job)
        if any(sequence.finish_reason == "abort" for sequence in job.sequences):
            raise EngineDeadError
        usage = self._usage.whole(job)
        body = chat_body(job, usage) if job.chat else completion_body(job, usage)
        await exchange.respond_json(200, body)

    def _check_alive(self, job: Job) -> None:
        if job.delivery.gone:
            raise ClientGoneError
        if self._driver.dead:
            raise EngineDeadError

    async def _stream(self, exchange: Exchange, job: Job, request: GenerationRequest) -> None:
        options = request.stream_options
        writer = EventWriter(
            job,
            self._usage,
            include_usage=bool(options and options.include_usage),
            continuous=bool(options and options.continuous_usage_stats),
        )
        await exchange.start_stream()
        try:
            await self._stream_tokens(exchange, job, writer)
        except EngineDeadError as error:
            await exchange.write(event(dump(error.body)))
            await exchange.write(DONE)
        else:
            for chunk in writer.closing():
                await exchange.write(chunk)
        await exchange.end_stream()

    async def _stream_tokens(self, exchange: Exchange, job: Job, writer: EventWriter) -> None:
        remaining = list(job.choices)
        sent = dict.fromkeys(range(len(remaining)), 0)
        openings = writer.openings()
        while remaining:
            progress = False
            for choice in list(remaining):
                start, end = sent[choice.index], choice.sequence.generated
                if end > start:
                    progress = True
                    sent[choice.index] = end
                    for chunk in (*openings, *writer.tokens(choice, start, end)):
                        await exchange.write(chunk)
                    openings = []
                if end >= choice.sequence.target_tokens:
                    remaining.remove(choice)
                elif choice.sequence.finished:
                    raise EngineDeadError
            if not progress and remaining:
                self._check_alive(job)
                await job.delivery.wait()
            elif job.delivery.gone:
                raise ClientGoneError

"""SageMaker's runtime: invocations passed on to a container, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws.account import ACCOUNT_ID
from backends.rehearsal.cloud.aws.components import NAME_NEEDED, NO_CAPACITY
from backends.rehearsal.cloud.aws.endpoint_configs import hosts_components
from backends.rehearsal.cloud.aws.wire import (
    AwsError,
    Call,
    Service,
    payload_part,
    stream_failure,
)
from backends.rehearsal.cloud.web import Json, Response

if TYPE_CHECKING:
    import httpx

    from backends.rehearsal.cloud.aws.components import Components
    from backends.rehearsal.cloud.aws.endpoints import Endpoints
    from backends.rehearsal.cloud.aws.metrics import Metrics
    from backends.rehearsal.cloud.run.instance import Instance

_TIMEOUT_S = 60.0
_STREAM_TIMEOUT_S = 480.0
_MOST_BYTES = 25 * 1024 * 1024
_OVERHEAD_US = (3_000, 12_000)
_SERVES = {"InService", "Updating", "RollingBack", "SystemUpdating"}


class Runtime:
    """Answers invocations.

    Args:
        endpoints: Whose instances answer.
        components: Whose copies answer.
        metrics: Where latencies go.
    """

    def __init__(self, endpoints: Endpoints, components: Components, metrics: Metrics) -> None:
        self._endpoints = endpoints
        self._components = components
        self._metrics = metrics
        self._client: httpx.AsyncClient | None = None

    def service(self, control: Service) -> Service:
        """The handlers, added to the control plane's: both sign as `sagemaker`."""
        return control.on(
            InvokeEndpoint=self._whole, InvokeEndpointWithResponseStream=self._streamed
        )

    async def close(self) -> None:
        """Close what is open towards containers."""
        if self._client is not None:
            await self._client.aclose()

    # ------------------------------------------------------------------------- inside

    async def _whole(self, call: Call) -> Response:
        variant, instance = self._pick(call)
        began = time.perf_counter()
        instance.inflight += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                incoming = await self._ask(call, instance)
                body = await incoming.aread()
        except TimeoutError:
            raise self._timed_out(call, variant) from None
        except Exception as error:
            raise self._broke(call, variant, error) from error
        finally:
            instance.inflight -= 1
        took = time.perf_counter() - began
        if not incoming.is_success:
            raise self._model_error(call, variant, incoming.status_code, body)
        self._measure(call, variant, ModelLatency=took * 1e6)
        return Response(
            200, body, _headers(variant, incoming.headers.get("content-type", "application/json"))
        )

    async def _streamed(self, call: Call) -> Response:
        variant, instance = self._pick(call)
        began = time.perf_counter()
        instance.inflight += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                incoming = await self._ask(call, instance)
                if not incoming.is_success:
                    body = await incoming.aread()
                    raise self._model_error(call, variant, incoming.status_code, body)
        except TimeoutError:
            instance.inflight -= 1
            raise self._timed_out(call, variant) from None
        except AwsError:
            instance.inflight -= 1
            raise
        except Exception as error:
            instance.inflight -= 1
            raise self._broke(call, variant, error) from error

        async def close() -> None:
            instance.inflight -= 1
            await incoming.aclose()

        kind = incoming.headers.get("content-type", "application/octet-stream")
        headers = _headers(variant, "application/vnd.amazon.eventstream")
        return Response(
            200,
            headers=headers | {"x-amzn-sagemaker-content-type": kind},
            stream=self._frames(call, variant, incoming, began),
            close=close,
        )

    async def _frames(
        self, call: Call, variant: str, incoming: httpx.Response, began: float
    ) -> AsyncIterator[bytes]:
        """The container's bytes in frames that end wherever buffers do, not where events do."""
        import httpx

        first_us = 0.0
        try:
            async with asyncio.timeout(_STREAM_TIMEOUT_S):
                async for piece in incoming.aiter_raw():
                    first_us = first_us or (time.perf_counter() - began) * 1e6
                    cut = random.choice((0, 0, 1, 7, 40))
                    for part in (piece[:cut], piece[cut:]):
                        if part:
                            yield payload_part(part)
        except TimeoutError:
            yield stream_failure(
                "ModelStreamError",
                "Your model primary did not complete sending the inference response in the allowed "
                "time.",
                {"ErrorCode": "ModelInvocationTimeExceeded"},
            )
            return
        except httpx.HTTPError:
            yield stream_failure(
                "ModelStreamError",
                "The response of model primary was broken off.",
                {"ErrorCode": "StreamBroken"},
            )
            self._measure(call, variant, MidStreamErrors=1.0)
            return
        self._measure(
            call,
            variant,
            ModelLatency=(time.perf_counter() - began) * 1e6,
            FirstChunkModelLatency=first_us,
            FirstChunkLatency=first_us + random.uniform(*_OVERHEAD_US),
        )

    # ------------------------------------------------------------------------- helpers

    def _pick(self, call: Call) -> tuple[str, Instance]:
        """The variant and instance that answer.

        Raises:
            AwsError: There is none.
        """
        name = call.text("EndpointName")
        absent = AwsError("ValidationError", f"Endpoint {name} of account {ACCOUNT_ID} not found.")
        try:
            endpoint = self._endpoints.find(call.region, name)
        except AwsError:
            raise absent from None
        if endpoint["EndpointStatus"] not in _SERVES:
            raise absent
        if call.request.size > _MOST_BYTES:
            raise AwsError("ValidationError", "Request body is too large.", 413)
        variants = endpoint["_config"]["ProductionVariants"]
        component = _component(call)
        if any(hosts_components(variant) for variant in variants):
            return self._pick_copy(call, component)
        if component:
            raise AwsError(
                "ValidationError",
                "Inference Component Name header is not allowed for endpoints to which you dont "
                "plan to deploy inference components. Please remove the Inference Component Name "
                "header and try again.",
            )
        wanted = call.request.headers.get("x-amzn-sagemaker-target-variant", "")
        found = self._endpoints.pick(call.region, name, wanted)
        if found is None and wanted:
            raise AwsError(
                "ValidationError", f"Variant {wanted} not found for request endpoint {name}."
            )
        instance = found[1].pick() if found else None
        if found is None or instance is None:
            raise AwsError("ServiceUnavailable", "The service is currently unavailable.", 503)
        return found[0], instance

    def _pick_copy(self, call: Call, component: str) -> tuple[str, Instance]:
        """The variant and the copy that answer.

        Raises:
            AwsError: No component was named, there is none of that name, or it has no copy.
        """
        name = call.text("EndpointName")
        if not component:
            raise AwsError("ValidationError", NAME_NEEDED)
        found = self._components.find(call.region, component)
        if found is None or found["EndpointName"] != name:
            # The words are this rehearsal's.
            raise AwsError(
                "ValidationError", f"Inference Component {component} not found on endpoint {name}."
            )
        self._components.asked(call.region, component)
        instance = self._components.pick(call.region, component)
        if instance is None:
            self._metrics.without_capacity(call.region, component)
            raise AwsError("ValidationError", NO_CAPACITY)
        return str(found["VariantName"]), instance

    async def _ask(self, call: Call, instance: Instance) -> httpx.Response:
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=None,  # noqa: S113 (the runtime's own timeouts hold)
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                trust_env=False,
            )
        request = self._client.build_request(
            "POST",
            f"http://127.0.0.1:{instance.port}/invocations",
            headers={"content-type": call.request.headers.get("content-type", "application/json")},
            content=call.request.raw(),
        )
        return await self._client.send(request, stream=True)

    def _measure(self, call: Call, variant: str, **values: float) -> None:
        if "ModelLatency" in values:
            values["OverheadLatency"] = random.uniform(*_OVERHEAD_US)
            values["Invocation5XXErrors"] = values["Invocation4XXErrors"] = 0.0
        self._metrics.invoked(
            call.region,
            call.text("EndpointName"),
            variant,
            _component(call),
            Invocations=1.0,
            **values,
        )

    def _model_error(self, call: Call, variant: str, status: int, body: bytes) -> AwsError:
        """What the container refused, in SageMaker's words."""
        name = call.text("EndpointName")
        which = "client" if 400 <= status < 500 else "server"
        self._measure(
            call,
            variant,
            Invocation4XXErrors=float(which == "client"),
            Invocation5XXErrors=float(which == "server"),
        )
        words = body.decode("utf-8", "replace")
        log = f"/aws/sagemaker/Endpoints/{name}"
        return AwsError(
            "ModelError",
            f'Received {which} error ({status}) from primary with message "{words}". See '
            f"https://{call.region}.console.aws.amazon.com/cloudwatch/home?region={call.region}"
            f"#logEventViewer:group={log} in account {ACCOUNT_ID} for more information.",
            424,
            _original(call, status, words),
        )

    def _timed_out(self, call: Call, variant: str) -> AwsError:
        self._measure(call, variant, Invocation5XXErrors=1.0)
        words = (
            "Your invocation timed out while waiting for a response from container primary. Review "
            "the latency metrics for each container in Amazon CloudWatch, resolve the issue, and "
            "try again."
        )
        return AwsError(
            "ModelError",
            f'Received server error (0) from primary with message "{words}"',
            424,
            _original(call, 0, words),
        )

    def _broke(self, call: Call, variant: str, error: Exception) -> AwsError:
        import httpx

        if not isinstance(error, httpx.HTTPError):
            raise error
        self._measure(call, variant, Invocation5XXErrors=1.0)
        words = "The model server closed the connection."
        return AwsError(
            "ModelError",
            f'Received server error (500) from primary with message "{words}"',
            424,
            _original(call, 500, words),
        )


def _component(call: Call) -> str:
    return call.request.headers.get("x-amzn-sagemaker-inference-component", "")


def _original(call: Call, status: int, words: str) -> Json:
    group = f"/aws/sagemaker/Endpoints/{call.text('EndpointName')}"
    return {
        "OriginalStatusCode": status,
        "OriginalMessage": words,
        "LogStreamArn": f"arn:aws:logs:{call.region}:{ACCOUNT_ID}:log-group:{group}",
    }


def _headers(variant: str, kind: str) -> dict[str, str]:
    return {"content-type": kind, "x-amzn-invoked-production-variant": variant}

"""The frames of `application/vnd.amazon.eventstream`, in which SageMaker sends a container's bytes.

`InvokeEndpointWithResponseStream` cuts the container's server-sent events into `PayloadPart` events
wherever its buffers end, and says how it failed in an exception frame, under status 200 (SageMaker
Runtime API, `ResponseStream`: `ModelStreamError`, `InternalStreamFailure`; read 2026-11-30).
"""

from __future__ import annotations

from backends.serving.wire import Failure, WireError, body_words

EVENT_STREAM = "application/vnd.amazon.eventstream"


class FrameDecoder:
    """Takes the frames apart, with botocore's own parser (lengths, checksums, headers)."""

    def __init__(self) -> None:
        from botocore.eventstream import EventStreamBuffer  # type: ignore[import-untyped]

        self._buffer = EventStreamBuffer()

    def feed(self, body: bytes) -> tuple[bytes, Failure | None]:
        """Take a part of the body; returns the payload it completes, and the first failure.

        Raises:
            WireError: It is not an event stream, or a checksum does not match.
        """
        from botocore.eventstream import ParserError

        payload, failure = [], None
        try:
            self._buffer.add_data(body)
            for frame in self._buffer:
                kind = frame.headers.get(":message-type")
                if kind == "event":
                    if failure is None:
                        payload.append(frame.payload)
                elif failure is None:
                    failure = _failure(frame.headers, frame.payload)
        except ParserError as error:
            raise WireError(f"not an AWS event stream: {error}") from None
        return b"".join(payload), failure


def _failure(headers: dict[str, object], payload: bytes) -> Failure:
    name = headers.get(":exception-type") or headers.get(":error-code") or "unknown"
    words = str(headers.get(":error-message") or body_words(payload, 500))
    return Failure("in_stream_error", f"{name}: {words}")

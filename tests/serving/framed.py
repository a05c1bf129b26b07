"""What SageMaker puts around an answer, and a check of what it wants around a request."""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Sequence

from backends.serving.engine.signing import AwsCredentials, SageMakerWire
from tests.serving.mock_servers import GOOD, Reply, Request

WIRE = SageMakerWire("gemma 4", "us-west-2", inference_component="gemma-4-e2b")
PATH = "/endpoints/gemma%204/invocations-response-stream"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
FRAMED = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\n"
FRAMED += b"x-amzn-sagemaker-content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def credentials() -> AwsCredentials:
    return AwsCredentials("AKIDEXAMPLE", SECRET, "session-token")


def frame(payload: bytes, **headers: str) -> bytes:
    """Return one frame of an AWS event stream."""
    packed = b""
    for name, value in headers.items():
        key = f":{name.replace('_', '-')}".encode()
        packed += bytes([len(key)]) + key + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    begin = struct.pack(">II", 16 + len(packed) + len(payload), len(packed))
    begin += struct.pack(">I", zlib.crc32(begin))
    whole_frame = begin + packed + payload
    return whole_frame + struct.pack(">I", zlib.crc32(whole_frame))


def part(payload: bytes) -> bytes:
    return frame(
        payload,
        event_type="PayloadPart",
        content_type="application/octet-stream",
        message_type="event",
    )


def failure_frame() -> bytes:
    return frame(
        b'{"Message":"Your model timed out","ErrorCode":"ModelInvocationTimeExceeded"}',
        exception_type="ModelStreamError",
        content_type="application/json",
        message_type="exception",
    )


def reply(frames: Sequence[bytes]) -> Reply:
    chunks = [b"%x\r\n%s\r\n" % (len(data), data) for data in frames]
    return Reply([FRAMED, *chunks, b"0\r\n\r\n"])


def sse(events: Sequence[str] = GOOD) -> bytes:
    return b"".join(f"data: {event}\n\n".encode() for event in events)


def signature_is_right(request: Request) -> bool:
    """Check a signature by the steps of AWS's documentation of Signature Version 4."""
    scheme, _, rest = request.headers["authorization"].partition(" ")
    fields = dict(field.strip().split("=", 1) for field in rest.split(","))
    signed = fields["SignedHeaders"].split(";")
    path = request.path.replace("%", "%25")  # every service but S3 encodes the path once more
    canonical = "\n".join(
        [
            request.method,
            path,
            "",
            *(f"{name}:{request.headers[name].strip()}" for name in signed),
            "",
            fields["SignedHeaders"],
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
    scope = fields["Credential"].split("/", 1)[1]
    to_sign = "\n".join(
        [
            scheme,
            request.headers["x-amz-date"],
            scope,
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{SECRET}".encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    right = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    return hmac.compare_digest(right, fields["Signature"])

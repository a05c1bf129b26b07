"""The second wire: requests that AWS would accept, answers in its frames, the same definitions."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import struct
import zlib

import pytest

from backends.serving.endpoint import Endpoint
from backends.serving.engine import epoll_engine
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.engine.signing import AwsCredentials, SageMakerWire, sagemaker_url
from backends.serving.loadgen import LevelRaw, LevelSpec
from tests.serving.engine.runs import bodies, errors, kinds
from tests.serving.mock_servers import GOOD, MockSse, Reply, Request, Scripted, scripted, whole

pytest.importorskip("botocore", reason="requests are signed with botocore")

WIRE = SageMakerWire("gemma 4", "us-west-2", inference_component="gemma-4-e2b")
PATH = "/endpoints/gemma%204/invocations-response-stream"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
FRAMED = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\n"
FRAMED += b"x-amzn-sagemaker-content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def credentials() -> AwsCredentials:
    return AwsCredentials("AKIDEXAMPLE", SECRET, "session-token")


async def run(server: MockSse | Scripted, count: int = 4, lanes: int = 2) -> LevelRaw:
    ca_file = server.ca_file if isinstance(server, MockSse) else None
    spec = LevelSpec(
        lanes,
        "/ignored",
        bodies(count),
        warmup_bodies=bodies(lanes, 2) if isinstance(server, MockSse) else (),
        wire=WIRE,
        credentials=credentials,
    )
    endpoint = Endpoint(server.base_url, ca_file=ca_file)
    return await EpollEngine().run_level(spec, endpoint, lambda _: None, lambda: False)


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


def reply(frames: list[bytes]) -> Reply:
    chunks = [b"%x\r\n%s\r\n" % (len(data), data) for data in frames]
    return Reply([FRAMED, *chunks, b"0\r\n\r\n"])


def sse() -> bytes:
    return b"".join(f"data: {event}\n\n".encode() for event in GOOD)


@pytest.mark.parametrize("cut", [0, 1, 90, 171, 240])
async def test_events_in_frames_have_the_times_of_the_frame_that_completes_them(
    either_mock: MockSse, cut: int
) -> None:
    either_mock.configure(frame=cut)
    raw = await run(either_mock, 8)
    assert kinds(raw) == ["ok"] * 8
    off = errors(raw, either_mock.truth())
    # an event in two frames is there when the second is, 0.2 ms later
    assert off.ttft_median_ms < (0.5 if cut == 0 else 1.0)
    assert off.itl_median_ms < 0.5
    assert {record.completion_tokens for record in raw.records} == {16}


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
async def test_frames_are_cut_anywhere_and_put_together(size: int) -> None:
    body = sse()
    frames = b"".join(part(body[at : at + 33]) for at in range(0, len(body), 33))
    pieces = [frames[at : at + size] for at in range(0, len(frames), size)]
    async with scripted({PATH: Reply([FRAMED, _chunked(pieces)])}) as server:
        raw = await run(server, 1, 1)
    assert kinds(raw) == ["ok"]
    assert len(raw.records[0].content_ns) == 2


def _chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("frames", "kind", "words"),
    [
        (
            [
                part(sse()[:200]),
                frame(
                    b'{"Message":"Your model timed out","ErrorCode":"ModelInvocationTimeExceeded"}',
                    exception_type="ModelStreamError",
                    content_type="application/json",
                    message_type="exception",
                ),
            ],
            "in_stream_error",
            "ModelStreamError",
        ),
        (
            [
                frame(b"", error_code="InternalFailure", error_message="no", message_type="error"),
                part(sse()),
            ],
            "in_stream_error",
            "InternalFailure: no",
        ),
        ([part(sse())[:-1] + b"!"], "malformed_answer", "not an AWS event stream"),
        ([part(sse().replace(b"data: [DONE]\n\n", b""))], "missing_done", "without [DONE]"),
    ],
)
async def test_a_stream_that_fails_is_a_failed_request(
    frames: list[bytes], kind: str, words: str
) -> None:
    async with scripted({PATH: reply(frames)}) as server:
        raw = await run(server, 1, 1)
    assert kinds(raw) == [kind]
    failure = raw.records[0].failure
    assert failure is not None
    assert words in failure.message


async def test_a_refusal_has_its_words() -> None:
    refusal = whole(424, b'{"ErrorCode":"MODEL_ERROR","Message":"Received server error (500)"}')
    async with scripted({PATH: refusal}) as server:
        raw = await run(server, 1, 1)
    assert kinds(raw) == ["http_424"]
    assert raw.records[0].failure is not None
    assert "Received server error (500)" in raw.records[0].failure.message


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


async def test_every_request_is_signed_as_aws_wants_it() -> None:
    async with scripted({PATH: reply([part(sse())])}) as server:
        raw = await run(server, 5)
        sent = server.requests
    assert kinds(raw) == ["ok"] * 5
    assert len(sent) == 5
    for request in sent:
        assert signature_is_right(request)
        assert "/us-west-2/sagemaker/aws4_request" in request.headers["authorization"]
        assert request.headers["x-amz-security-token"] == "session-token"
        assert request.headers["x-amzn-sagemaker-inference-component"] == "gemma-4-e2b"
        assert json.loads(request.body)["stream"] is True
        assert SECRET not in str(request.headers)


async def test_credentials_are_asked_for_again_in_a_long_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epoll_engine, "HEADER_REFRESH_S", 0.2)
    asked = 0

    async def provide() -> AwsCredentials:
        nonlocal asked
        asked += 1
        return AwsCredentials(f"AKID{asked}", SECRET)

    async with scripted({PATH: reply([part(sse())])}) as server:
        spec = LevelSpec(2, "/", bodies(100), wire=WIRE, credentials=provide)
        endpoint = Endpoint(server.base_url)
        raw = await EpollEngine().run_level(spec, endpoint, lambda _: None, lambda: False)
        sent = server.requests
    assert kinds(raw) == ["ok"] * 100
    found = [re.search(r"AKID(\d+)/", request.headers["authorization"]) for request in sent]
    numbers = [int(match[1]) for match in found if match]
    assert numbers == sorted(numbers)
    assert numbers[-1] > numbers[0]
    assert all(map(signature_is_right, sent))


def test_the_address_of_a_region_is_that_of_its_partition() -> None:
    assert sagemaker_url("us-west-2") == "https://runtime.sagemaker.us-west-2.amazonaws.com"
    assert sagemaker_url("cn-north-1").endswith(".amazonaws.com.cn")

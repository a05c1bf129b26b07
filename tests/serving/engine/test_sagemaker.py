"""The second wire: requests that AWS would accept, answers in its frames, the same definitions."""

from __future__ import annotations

import json
import re

import pytest

from backends.serving.endpoint import Endpoint
from backends.serving.engine import epoll_engine
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.engine.signing import AwsCredentials, sagemaker_url
from backends.serving.loadgen import LevelRaw, LevelSpec
from tests.serving.engine.runs import bodies, errors, kinds
from tests.serving.framed import (
    FRAMED,
    PATH,
    SECRET,
    WIRE,
    credentials,
    failure_frame,
    frame,
    part,
    reply,
    signature_is_right,
    sse,
)
from tests.serving.mock_servers import MockSse, Reply, Scripted, scripted, whole

pytest.importorskip("botocore", reason="requests are signed with botocore")


async def run(server: MockSse | Scripted, count: int = 4, lanes: int = 2) -> LevelRaw:
    ca_file = server.ca_file if isinstance(server, MockSse) else None
    spec = LevelSpec(
        lanes,
        "/ignored",
        bodies(count),
        warmup_bodies=bodies(lanes, 2) if isinstance(server, MockSse) else (),
    )
    endpoint = Endpoint(
        server.base_url, model="m", ca_file=ca_file, wire=WIRE, credentials=credentials
    )
    return await EpollEngine().run_level(spec, endpoint, lambda _: None, lambda: False)


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
                failure_frame(),
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
        spec = LevelSpec(2, "/", bodies(100))
        endpoint = Endpoint(server.base_url, model="m", wire=WIRE, credentials=provide)
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

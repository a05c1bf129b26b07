"""An endpoint behind SageMaker: asked, examined and measured like any other."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backends.core.errors import (
    DevopsError,
    EndpointAuthError,
    EndpointBusyError,
    EndpointError,
    EndpointNotReadyError,
    EndpointRejectedError,
    InvalidInputError,
    UnauthenticatedError,
)
from backends.serving import benchmark
from backends.serving.endpoint import Endpoint, EndpointClient
from backends.serving.health import HealthReport, check_health
from backends.serving.invocations import credentials_of
from tests.serving.framed import (
    PATH,
    SECRET,
    WIRE,
    credentials,
    failure_frame,
    part,
    reply,
    signature_is_right,
    sse,
)
from tests.serving.mock_servers import (
    MockSse,
    Reply,
    Request,
    Route,
    compile_mock,
    content,
    run_mock,
    scripted,
    usage,
    whole,
)

pytest.importorskip("botocore", reason="requests are signed with botocore")

TOO_LONG = json.dumps(
    {
        "error": {
            "message": "max_tokens=2049 cannot be greater than max_model_len=2048.",
            "code": 400,
        }
    }
)


def refused(status: int, body: dict[str, object], *, headers: str = "") -> Reply:
    return whole(status, json.dumps(body).encode(), headers=headers)


def model_error(status: int, words: str) -> Reply:
    return refused(
        424,
        {
            "ErrorCode": "CLIENT_ERROR_FROM_MODEL",
            "Message": "Received client error from primary. See the logs.",
            "OriginalStatusCode": status,
            "OriginalMessage": words,
        },
    )


def behind(base_url: str, max_model_len: int | None = None) -> Endpoint:
    return Endpoint(
        base_url,
        model="m",
        wire=WIRE,
        credentials=credentials,
        max_model_len=max_model_len,
    )


async def chat_error(answer: Reply | Route) -> DevopsError:
    async with scripted({PATH: answer}) as server, EndpointClient(behind(server.base_url)) as asker:
        with pytest.raises(DevopsError) as caught:
            await asker.chat("Hi")
    return caught.value


@pytest.mark.parametrize("cut", [1, 33, 10_000])
async def test_a_question_is_signed_and_its_answer_taken_out_of_the_frames(cut: int) -> None:
    body = sse()
    frames = [part(body[at : at + cut]) for at in range(0, len(body), cut)]
    pieces = [b"".join(frames)] if cut == 1 else frames
    async with scripted({PATH: reply(pieces)}) as server:
        async with EndpointClient(behind(server.base_url)) as client:
            answer = await client.chat("What is the capital of France?")
        (request,) = server.requests
    assert answer.text == "Paris"
    assert answer.usage.completion_tokens == 2
    assert answer.streamed
    assert answer.ttft_ms is not None
    assert signature_is_right(request)
    assert SECRET not in str(request.headers)
    assert json.loads(request.body)["stream"] is True


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (model_error(400, TOO_LONG), EndpointRejectedError, "max_model_len=2048"),
        (
            model_error(404, '{"error":{"message":"The model `x` does not exist.","code":404}}'),
            EndpointRejectedError,
            "does not exist",
        ),
        (refused(424, {"Message": "no words of the model"}), EndpointError, "no words"),
        (
            refused(403, {"__type": "a.b#AccessDeniedException", "Message": "not authorized to"}),
            EndpointAuthError,
            "AccessDeniedException: not authorized to",
        ),
        (
            refused(400, {"message": "Rate exceeded"}, headers="x-amzn-errortype: Throttling:\r\n"),
            EndpointBusyError,
            "Rate exceeded",
        ),
        (
            refused(429, {"__type": "ModelNotReadyException", "Message": "is not ready"}),
            EndpointNotReadyError,
            "is not ready",
        ),
        (
            refused(400, {"__type": "ValidationError", "Message": "Endpoint gemma not found."}),
            EndpointRejectedError,
            "Endpoint gemma not found.",
        ),
        (reply([part(sse()[:200]), failure_frame()]), EndpointError, "ModelStreamError"),
        (reply([part(sse())[:-1] + b"!"]), EndpointError, "not an AWS event stream"),
        (
            refused(403, {"__type": "InvalidSignatureException", "Message": f"got {SECRET}"}),
            EndpointAuthError,
            "got ***",
        ),
    ],
)
async def test_a_refusal_is_what_the_one_who_refused_meant(
    answer: Reply, kind: type[EndpointError], words: str
) -> None:
    error = await chat_error(answer)
    assert type(error) is kind
    assert words in error.words
    assert SECRET not in f"{error.message}{error.words}{error.cause}"


async def test_what_sagemaker_does_not_pass_on_is_never_sent() -> None:
    async with scripted({}) as server, EndpointClient(behind(server.base_url)) as client:
        for ask in (client.health, client.version, client.models, client.metrics_text):
            with pytest.raises(EndpointRejectedError, match="SageMaker passes on no /"):
                await ask()
        with pytest.raises(EndpointRejectedError, match="/tokenize"):
            await client.tokenize("Hi")
        assert await client.model_name() == "m"
        assert server.requests == []


@pytest.mark.parametrize("lacks", ["model", "credentials"])
def test_an_endpoint_with_a_wire_needs_a_model_and_credentials(lacks: str) -> None:
    given = {"model": "m", "credentials": credentials, lacks: None}
    with pytest.raises(InvalidInputError, match="needs credentials to sign with, and the model"):
        Endpoint("http://127.0.0.1:1", wire=WIRE, **given)  # type: ignore[arg-type]


async def examine(
    answer: Reply | Route, *, deep: bool = False, max_model_len: int | None = None
) -> HealthReport:
    async with scripted({PATH: answer}) as server:
        client = EndpointClient(behind(server.base_url, max_model_len))
        async with client:
            return await check_health(client, chat=False, deep=deep, timeout_s=2.0)


def a_model(request: Request) -> Reply:
    asked = json.loads(request.body)
    if asked["max_tokens"] > 2048:
        return model_error(400, TOO_LONG)
    return reply([part(sse([content("Paris", finish="stop"), usage(9, 2), "[DONE]"]))])


async def test_its_health_is_what_a_chat_says() -> None:
    report = await examine(a_model, deep=True, max_model_len=2048)
    assert report.healthy, report.summary
    assert [check.name for check in report.checks if check.ok] == [
        "chat",
        "streaming",
        "usage",
        "context_limit",
    ]
    assert (report.model, report.max_model_len) == ("m", 2048)


async def test_without_a_known_context_its_limit_is_not_examined() -> None:
    report = await examine(a_model, deep=True)
    assert report.healthy
    details = {check.name: check.detail for check in report.checks}
    assert details["context_limit"].startswith("not examined")


async def test_a_silent_container_is_not_healthy_and_serves_nothing_we_know_of() -> None:
    report = await examine(refused(503, {"__type": "ServiceUnavailable", "Message": "no"}))
    assert not report.healthy
    assert report.served_models == []
    assert "ServiceUnavailable: no" in report.summary


# ---- credentials --------------------------------------------------------------------------------


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No credentials of this machine, and no question to a metadata server."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


async def test_no_credentials_are_said_with_the_command_that_gives_some(no_aws: Path) -> None:
    from botocore.session import Session  # type: ignore[import-untyped]

    with pytest.raises(UnauthenticatedError) as caught:
        await credentials_of(Session())()
    assert "aws configure" in caught.value.next_action


async def test_credentials_that_expire_are_refreshed_within_a_run(
    no_aws: Path, tmp_path: Path
) -> None:
    from botocore.session import Session

    made = tmp_path / "made"
    expires = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    script = tmp_path / "login"
    script.write_text(
        f'#!/bin/sh\nprintf x >> {made}\nn=$(wc -c < {made})\necho "{{\\"Version\\":1,'
        f'\\"AccessKeyId\\":\\"AKID$n\\",\\"SecretAccessKey\\":\\"s\\",\\"SessionToken\\":\\"t\\",'
        f'\\"Expiration\\":\\"{expires}\\"}}"\n'
    )
    script.chmod(0o700)
    (no_aws / "config").write_text(f"[default]\ncredential_process = {script}\n")
    provide = credentials_of(Session())
    first, second = await provide(), await provide()
    assert first.access_key != second.access_key
    assert "SecretAccessKey" not in repr(first)
    assert first.secrets == ["s", "t"]


async def test_a_login_that_fails_is_an_error_of_its_own(no_aws: Path) -> None:
    from botocore.session import Session

    (no_aws / "config").write_text("[default]\ncredential_process = /bin/false\n")
    with pytest.raises(UnauthenticatedError, match="could not be read or refreshed"):
        await credentials_of(Session())()


# ---- the command line ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> object:
    program = compile_mock(tmp_path_factory.mktemp("framed"))
    with run_mock(program, ttft_us=5_000, itl_us=1_000) as server:
        yield server


def measure(server: MockSse, folder: Path, *more: str) -> int:
    return benchmark.main(
        [
            *("--base-url", server.base_url, "--sagemaker-endpoint", "gemma"),
            *("--region", "us-west-2", "--model", "mock-model"),
            *("--concurrency", "2", "--max-tokens", "16"),
            *("--output", str(folder / "run.json"), *more),
        ]
    )


def test_the_command_line_measures_it_and_keeps_no_secret(
    mock: MockSse, no_aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert measure(mock, no_aws) in (0, 3)  # a busy machine may come late to read
    text = (no_aws / "run.json").read_text()
    run = json.loads(text)
    assert SECRET not in text
    assert run["levels"][0]["errors"] == 0
    assert run["levels"][0]["output_tokens_total"] == 64
    assert "the endpoint does not list its models" in run["warnings"]
    assert any("SageMaker passes on no /metrics" in said for said in run["warnings"])


def test_the_command_line_says_when_there_is_no_login(
    mock: MockSse, no_aws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(mock, no_aws) == 1
    assert "There are no AWS credentials" in capsys.readouterr().err


def test_the_command_line_wants_region_and_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["--sagemaker-endpoint", "gemma"])
    assert "needs --region and --model" in capsys.readouterr().err

"""Asking an endpoint: what comes back, and what an agent reads when it does not."""

from __future__ import annotations

import datetime
import json
import ssl
from pathlib import Path

import pytest

from backends.core.errors import (
    EndpointAuthError,
    EndpointBusyError,
    EndpointError,
    EndpointNotReadyError,
    EndpointRejectedError,
    EndpointUnreachableError,
    InvalidInputError,
)
from backends.serving.endpoint import Endpoint, EndpointClient
from tests.serving.mock_servers import (
    GOOD,
    MODELS,
    RECORDED,
    ROLE,
    Reply,
    Route,
    chunked,
    compile_mock,
    content,
    run_mock,
    scripted,
    stream,
    unused_port,
    usage,
    whole,
)

CHAT = "/v1/chat/completions"
SECRET = "sk-never-to-be-seen"


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def routes(chat: Reply | Route) -> dict[str, Route | Reply]:
    return {CHAT: chat, "/v1/models": whole(200, MODELS)}


async def chat_error(chat: Reply | Route, timeout_s: float = 5.0) -> EndpointError:
    """Return the error of a chat request that the server answers like this."""

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {SECRET}"}

    async with scripted(routes(chat)) as server:
        endpoint = Endpoint(server.base_url, headers=headers)
        async with EndpointClient(endpoint) as client:
            with pytest.raises(EndpointError) as caught:
                await client.chat("Hi", model="m", timeout_s=timeout_s)
    error = caught.value
    everything = f"{error} {error.message} {error.words} {error.cause} {error.next_action}"
    assert SECRET not in everything
    assert error.next_action
    assert error.cause
    return error


async def test_a_chat_is_returned_whole_with_what_it_cost() -> None:
    async with scripted(routes(stream(GOOD))) as server:
        endpoint = Endpoint(f"{server.base_url}/v1/", simulated=True)
        async with EndpointClient(endpoint) as client:
            result = await client.chat("Capital of France?", system="Be short.", max_tokens=64)
    assert (result.text, result.finish_reason, result.model) == ("Paris", "stop", "m")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (9, 2)
    assert result.usage.total_tokens == 11
    assert result.token_count_source == "server usage"
    assert result.streamed
    assert result.simulated
    assert result.ttft_ms is not None
    assert 0 < result.ttft_ms < result.e2e_ms
    assert result.output_tokens_per_s == pytest.approx(2000 / result.e2e_ms)
    assert result.itl_ms.mean is not None
    assert result.decode_tokens_per_s == pytest.approx(1000 / result.itl_ms.mean, rel=1e-3)
    sent = json.loads(server.requests[-1].body)
    assert sent["model"] == "m", "the first model that is served is asked for"
    assert sent["messages"][0] == {"role": "system", "content": "Be short."}
    assert sent["stream_options"] == {"include_usage": True}


async def test_ttft_itl_and_e2e_are_those_of_the_server(tmp_path: Path) -> None:
    with run_mock(compile_mock(tmp_path), ttft_us=60_000, itl_us=8_000) as mock:
        async with EndpointClient(Endpoint(mock.base_url)) as client:
            await client.health()
            results = [await client.chat("Hi", max_tokens=24) for _ in range(3)]
    best = min(results, key=lambda result: result.e2e_ms)
    assert best.ttft_ms == pytest.approx(60, abs=15)
    assert best.itl_ms.p50 == pytest.approx(8, abs=3)
    assert best.e2e_ms == pytest.approx(60 + 23 * 8, abs=40)
    assert best.decode_tokens_per_s == pytest.approx(125, rel=0.2)


async def test_without_usage_tokens_are_counted_as_events_and_called_a_lower_bound() -> None:
    events = [ROLE, content("a"), content("b", finish="stop"), "[DONE]"]
    async with (
        scripted(routes(stream(events))) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        result = await client.chat("Hi")
    assert result.usage.completion_tokens is None
    assert result.token_count_source == "content events (a lower bound)"


async def test_an_answer_that_comes_whole_has_no_ttft() -> None:
    body = recorded("gemma4-0.32.0/chat.body")
    async with (
        scripted(routes(whole(200, body))) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        result = await client.chat("Hi", model="tiny-gemma4")
    assert not result.streamed
    assert result.ttft_ms is None
    assert result.usage.completion_tokens == 24
    assert "inery" in result.text


async def test_reasoning_and_tool_calls_come_apart_from_the_text() -> None:
    events = [
        ROLE,
        '{"choices":[{"delta":{"reasoning":"think"}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"t","function":{"name":"f",'
        '"arguments":"{}"}}]},"finish_reason":"tool_calls"}]}',
        usage(5, 9),
        "[DONE]",
    ]
    async with (
        scripted(routes(stream(events))) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        result = await client.chat("Hi", tools=[{"type": "function"}], tool_choice="auto")
    assert (result.text, result.reasoning) == ("", "think")
    assert [(call.name, call.arguments) for call in result.tool_calls] == [("f", "{}")]


async def test_a_character_split_over_two_chunks_arrives_whole() -> None:
    body = "".join(
        f"data: {event}\n\n"
        for event in [ROLE, content("Größe 🚀", finish="stop"), usage(1, 2), "[DONE]"]
    ).encode()
    pieces = [body[at : at + 1] for at in range(len(body))]
    reply = Reply([b"".join(chunked(pieces))])
    async with (
        scripted(routes(reply)) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        assert (await client.chat("Hi")).text == "Größe 🚀"


async def test_a_wrong_model_is_answered_with_the_models_that_are_served() -> None:
    error = await chat_error(whole(404, recorded("gemma4-0.32.0/err_wrong_model.body")))
    assert isinstance(error, EndpointRejectedError)
    assert "does not exist" in error.words
    assert "It serves: m" in error.cause
    assert error.next_action == "Ask for m."


@pytest.mark.parametrize("name", ["err_too_long", "err_max_tokens"])
async def test_a_request_past_the_context_names_the_limit(name: str) -> None:
    error = await chat_error(whole(400, recorded(f"gemma4-0.32.0/{name}.body")))
    assert isinstance(error, EndpointRejectedError)
    assert "2048" in error.cause
    assert "max_model_len" in error.next_action


@pytest.mark.parametrize(
    ("status", "name", "words"),
    [
        (400, "gemma4-0.32.0/err_malformed_json.body", "JSON decode error"),
        (400, "gemma4-0.32.0/err_bad_temperature.body", "temperature must be non-negative"),
        (400, "gemma4-0.32.0/err_tool_choice_without_parser.body", "--tool-call-parser"),
        (404, "gemma4-0.32.0/err_unknown_route.body", "Not Found"),
        (405, "gemma4-0.32.0/err_get_on_post.body", "Method Not Allowed"),
    ],
)
async def test_a_rejected_request_carries_vllms_own_words(
    status: int, name: str, words: str
) -> None:
    error = await chat_error(whole(status, recorded(name)))
    assert isinstance(error, EndpointRejectedError)
    assert error.status == status
    assert words in error.words


async def test_no_key_and_a_forbidden_caller_are_told_apart() -> None:
    error = await chat_error(whole(401, recorded("auth-tools/noauth_v1_models.body")))
    assert isinstance(error, EndpointAuthError)
    assert (error.words, error.status) == ("Unauthorized", 401)
    assert "key" in error.cause
    page = b"<html><title>403 Forbidden</title></html>"
    error = await chat_error(whole(403, page, kind="text/html"))
    assert isinstance(error, EndpointAuthError)
    assert "IAM" in error.cause


async def test_a_key_that_the_server_echoes_is_masked() -> None:
    echo = f'{{"error":{{"message":"bad key Bearer {SECRET}, i.e. {SECRET}"}}}}'.encode()
    error = await chat_error(whole(401, echo))
    assert error.words == "bad key ***, i.e. ***"


async def test_busy_and_not_ready_carry_the_time_to_wait() -> None:
    body = b'{"error":{"message":"queue is full"}}'
    error = await chat_error(whole(429, body, headers="Retry-After: 7\r\n"))
    assert isinstance(error, EndpointBusyError)
    assert error.retry_after_s == 7
    assert "7 s" in error.next_action
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=90)
    when = later.strftime("%a, %d %b %Y %H:%M:%S GMT")
    error = await chat_error(whole(503, b"", headers=f"Retry-After: {when}\r\n"))
    assert isinstance(error, EndpointNotReadyError)
    assert error.retry_after_s == pytest.approx(90, abs=5)


async def test_an_error_inside_the_stream_is_no_success() -> None:
    failed = '{"error":{"message":"engine died","type":"InternalServerError","code":500}}'
    error = await chat_error(stream([ROLE, content("a"), failed, "[DONE]"]))
    assert error.words == "engine died"
    assert "inside the stream, after 1 content events" in error.message


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (stream([ROLE, content("a")]), "without [DONE]"),
        (stream([ROLE, content("a"), "[DONE]"]), "without a finish_reason"),
        (stream([ROLE, content("a"), "{broken", "[DONE]"]), "not JSON"),
        (whole(200, b"<html>hello</html>", kind="text/html"), "<html>"),
        (whole(200, b"[]"), "not an object"),
    ],
)
async def test_a_stream_that_does_not_end_as_vllm_ends_it_is_an_error(
    reply: Reply, words: str
) -> None:
    error = await chat_error(reply)
    assert words in error.words


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_connection_that_breaks_says_how_far_it_came(then: str) -> None:
    error = await chat_error(stream([ROLE, content("a"), content("b")], then=then, end=False))
    assert isinstance(error, EndpointUnreachableError)
    assert "after 2 content events" in error.message


async def test_a_stall_ends_at_the_time_limit_and_says_how_far_it_came() -> None:
    error = await chat_error(stream([ROLE, content("a")], then="stall", end=False), timeout_s=0.3)
    assert isinstance(error, EndpointUnreachableError)
    assert "0.3 s; 1 content events had come" in error.message
    error = await chat_error(Reply([], "stall"), timeout_s=0.2)
    assert error.message.endswith("did not end within 0.2 s.")


async def test_nobody_listening_is_said_so() -> None:
    async with EndpointClient(Endpoint(f"http://127.0.0.1:{unused_port()}")) as client:
        with pytest.raises(EndpointUnreachableError) as caught:
            await client.health()
    assert "Nothing listens" in caught.value.cause
    assert "get_status" in caught.value.next_action


async def test_an_answer_that_is_not_http_is_an_endpoint_error() -> None:
    error = await chat_error(Reply([b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n\r\n"], "close"))
    assert isinstance(error, EndpointUnreachableError)


async def test_the_plain_questions_are_answered_from_what_vllm_says() -> None:
    answers: dict[str, Route | Reply] = {
        "/health": whole(200, b""),
        "/version": whole(200, recorded("gemma4-0.32.0/version.body")),
        "/v1/models": whole(200, recorded("auth-tools/models.body")),
        "/metrics": whole(200, recorded("gemma4-0.32.0/metrics.body"), kind="text/plain"),
        "/tokenize": whole(200, recorded("gemma4-0.32.0/tokenize_chat.body")),
    }
    async with scripted(answers) as server, EndpointClient(Endpoint(server.base_url)) as client:
        assert await client.health() > 0
        assert await client.version() == "0.32.0"
        models = await client.models()
        assert [(m.id, m.max_model_len, m.root) for m in models] == [
            ("tiny-gemma4", 2048, "models/tiny-gemma4"),
            ("google/gemma-4-E4B-it", 2048, "models/tiny-gemma4"),
        ]
        assert (await client.metrics_text()).startswith("# HELP")
        counted = await client.tokenize([{"role": "user", "content": "Say hello."}])
        assert (counted.count, counted.max_model_len) == (16, 2048)


@pytest.mark.parametrize("body", [b"hello", b"{}", b'{"data":[{"name":"x"}]}', b"[]"])
async def test_a_list_of_models_that_is_none_is_refused(body: bytes) -> None:
    async with (
        scripted({"/v1/models": whole(200, body)}) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        with pytest.raises(EndpointError) as caught:
            await client.models()
    assert "base URL" in caught.value.next_action


async def test_a_loading_server_is_not_ready() -> None:
    async with (
        scripted({"/health": whole(503, b"")}) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        with pytest.raises(EndpointNotReadyError) as caught:
            await client.health()
    assert "wait_until_ready" in caught.value.next_action


async def test_an_endpoint_without_models_is_not_ready() -> None:
    async with (
        scripted({"/v1/models": whole(200, b'{"data":[]}')}) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        with pytest.raises(EndpointNotReadyError, match="lists no model"):
            await client.model_name()


async def test_the_headers_are_asked_for_at_every_request() -> None:
    tokens = iter(["one", "two", "three", "four"])

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {next(tokens)}"}

    async with (
        scripted({"/health": whole(200, b"")}) as server,
        EndpointClient(Endpoint(server.base_url, headers=headers)) as client,
    ):
        await client.health()
        await client.health()
    seen = [request.headers["authorization"] for request in server.requests]
    assert seen == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize(
    "base_url",
    [
        "localhost:8000",
        "ftp://host",
        "http://",
        "http://host:0",
        "http://host:99999",
        "http://user:pass@host",
        "http://host/?key=1",
    ],
)
def test_an_address_that_is_none_is_refused_without_echoing_it(base_url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Endpoint(base_url)
    assert "pass" not in caught.value.message
    assert "1" not in caught.value.message


def test_a_trailing_slash_and_v1_belong_to_no_address() -> None:
    assert Endpoint("https://host:8443/prefix/v1/").base_url == "https://host:8443/prefix"
    assert Endpoint("http://127.0.0.1:8000").is_loopback
    assert not Endpoint("https://example.com").is_loopback


def self_signed(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Return the certificate of a server on 127.0.0.1 and the TLS settings to serve with it."""
    pytest.importorskip("cryptography", reason="no way to make a certificate")
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(alternative, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "certificate.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file = folder / "key.pem"
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key_file)
    return pem, context


async def test_https_is_verified_against_the_given_authority(tmp_path: Path) -> None:
    pem, tls = self_signed(tmp_path)
    async with scripted(routes(stream(GOOD)), tls=tls) as server:
        async with EndpointClient(Endpoint(server.base_url, ca_file=pem)) as client:
            result = await client.chat("Hi")
            assert result.text == "Paris"
        async with EndpointClient(Endpoint(server.base_url)) as client:
            with pytest.raises(EndpointUnreachableError) as caught:
                await client.models()
    assert "certificate" in caught.value.cause


async def test_setting_up_the_connection_is_no_part_of_ttft() -> None:
    async with (
        scripted(routes(stream(GOOD))) as server,
        EndpointClient(Endpoint(server.base_url, model="m")) as client,
    ):
        first = await client.chat("Hi")
        second = await client.chat("Hi")
    assert first.connect_ms is not None
    assert second.connect_ms is None, "the connection is kept"


@pytest.mark.parametrize("path", ["/v1/models", CHAT])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_without_end_is_given_up_before_it_fills_the_memory(
    path: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.serving.endpoint.MAX_BODY_BYTES", 100_000)
    endless = whole(200, b": x\n" * 100_000, kind=kind)
    async with (
        scripted(routes(whole(200, MODELS)) | {path: endless}) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        with pytest.raises(EndpointError, match="more than") as caught:
            await client.chat("hello")
    assert "base URL" in caught.value.next_action


@pytest.mark.parametrize(
    "body", [b'{"data":[{"id":"x","max_model_len":"long","root":5}]}', b'{"data":[{"id":"x"}]}']
)
async def test_what_another_server_says_in_another_type_is_unknown(body: bytes) -> None:
    async with (
        scripted({"/v1/models": whole(200, body)}) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        (model,) = await client.models()
    assert (model.id, model.max_model_len, model.root) == ("x", None, None)


async def test_json_without_end_of_depth_is_no_answer_of_vllm() -> None:
    async with (
        scripted({"/v1/models": whole(200, b"[" * 200_000)}) as server,
        EndpointClient(Endpoint(server.base_url)) as client,
    ):
        with pytest.raises(EndpointError, match="shape"):
            await client.models()


async def test_content_that_is_no_text_is_a_malformed_event() -> None:
    chunk = '{"id":"c","model":"m","choices":[{"index":0,"delta":{"content":5}}]}'
    error = await chat_error(stream([chunk, "[DONE]"]))
    assert "malformed_event" in error.message


async def test_a_redirect_is_not_followed_and_said_to_be_one() -> None:
    error = await chat_error(whole(302, b"", headers="location: /login\r\n"))
    assert "sent elsewhere (302)" in error.message
    assert "address" in error.next_action

"""HTTPS: certificates, names, and proxies between."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from backends.core.errors import EndpointUnreachableError
from backends.serving.endpoint import Endpoint
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.loadgen import LevelRaw, LevelSpec
from tests.serving.engine.runs import CHAT, bodies, kinds, run_level
from tests.serving.mock_servers import GOOD, MockSse, scripted, stream
from tests.serving.test_endpoint import self_signed


async def through(endpoint: Endpoint, requests: int = 4) -> LevelRaw:
    spec = LevelSpec(2, CHAT, bodies(requests))
    return await EpollEngine().run_level(spec, endpoint, lambda _: None, lambda: False)


async def test_a_certificate_that_is_not_trusted_is_an_error_with_the_reason(
    https_mock: MockSse,
) -> None:
    with pytest.raises(EndpointUnreachableError) as caught:
        await run_level(replace(https_mock, ca_file=None), LevelSpec(2, CHAT, bodies(2)))
    assert "certificate is not trusted" in caught.value.words


async def test_a_certificate_for_another_name_is_not_accepted(https_mock: MockSse) -> None:
    elsewhere = https_mock.base_url.replace("127.0.0.1", "localhost")
    with pytest.raises(EndpointUnreachableError) as caught:
        await run_level(replace(https_mock, base_url=elsewhere), LevelSpec(1, CHAT, bodies(1)))
    assert "localhost" in caught.value.words


async def test_a_server_that_speaks_no_tls_is_an_error() -> None:
    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EndpointUnreachableError) as caught:
            await through(Endpoint(f"https://127.0.0.1:{port}"))
    assert "TLS" in caught.value.cause


class Proxy:
    """A proxy that tunnels wherever it is asked to, which is always this machine."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.heads: list[str] = []
        self.address = ""
        self._refuses = refuses
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        self.heads.append(head)
        if self._refuses:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            writer.close()
            return
        port = int(head.split(" ")[1].rpartition(":")[2])
        theirs, ours = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pass_on(reader, ours), _pass_on(theirs, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def proxy(*, refuses: bool = False) -> AsyncIterator[Proxy]:
    made = Proxy(refuses=refuses)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await asyncio.sleep(0)


async def test_https_goes_through_the_proxy_in_a_tunnel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tls = self_signed(tmp_path)
    names: list[str | None] = []
    tls.sni_callback = lambda _sock, name, _context: names.append(name)
    async with proxy() as between, scripted({CHAT: stream(GOOD)}, tls=tls) as server:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:s%40cret@{between.address}")
        port = server.base_url.rpartition(":")[2]
        raw = await through(Endpoint(f"https://gemma.test:{port}", verify=False))
    assert kinds(raw) == ["ok"] * 4
    assert raw.reconnects == 0
    assert set(names) == {"gemma.test"}
    assert len(between.heads) == 2
    assert between.heads[0].startswith(f"CONNECT gemma.test:{port} HTTP/1.1\r\n")
    pair = base64.b64encode(b"me:s@cret").decode()
    assert f"proxy-authorization: Basic {pair}" in between.heads[0]


async def test_a_proxy_that_refuses_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with proxy(refuses=True) as between:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@{between.address}")
        with pytest.raises(EndpointUnreachableError) as caught:
            await through(Endpoint("https://gemma.test"))
    assert caught.value.words == (
        f"the proxy {between.address} refused the tunnel: "
        "HTTP/1.1 407 Proxy Authentication Required"
    )


async def test_no_proxy_stands_before_what_no_proxy_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, tls = self_signed(tmp_path)
    assert isinstance(tls, ssl.SSLContext)
    async with proxy() as between, scripted({CHAT: stream(GOOD)}, tls=tls) as server:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{between.address}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        raw = await through(Endpoint(server.base_url, ca_file=certificate))
    assert kinds(raw) == ["ok"] * 4
    assert between.heads == []

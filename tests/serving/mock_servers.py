"""Servers on loopback for the tests of the serving layer.

`MockSse` runs the compiled server that knows when it sent what. `Scripted` answers with exactly
the bytes a test says, in the pieces it says, and closes, stalls or resets where it says.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import struct
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent.parent / "recorded" / "vllm"
SOURCE = Path(__file__).parent / "mock_sse_server.c"
PIECE_GAP_S = 0.003
"""Long enough for the client to read one piece before the next is sent."""


# ---- the server that knows the truth ------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """What the server did for one request, in nanoseconds of CLOCK_MONOTONIC."""

    request_id: str
    arrived_ns: int
    role_ns: int
    content_ns: tuple[int, ...]
    status: int


@dataclass(frozen=True)
class MockSse:
    """A running mock server; over TLS, `ca_file` is the certificate to trust."""

    base_url: str
    ca_file: Path | None = None

    def configure(self, **knobs: int) -> None:
        wishes = "&".join(f"{name}={value}" for name, value in knobs.items())
        self._ask(f"/mock/config?{wishes}")

    def forget(self) -> None:
        self._ask("/mock/reset")

    def truth(self) -> dict[str, Truth]:
        """Return what was sent, by request id."""
        log, at, out = self._ask("/mock/log"), 0, {}
        shape = struct.Struct("<9Q64s")
        while at < len(log):
            magic, _, arrived, _, role, _, _, count, status, raw_id = shape.unpack_from(log, at)
            assert magic == 0x4D4F434B
            at += shape.size
            times = struct.unpack_from(f"<{count}Q", log, at)
            at += 8 * count
            request_id = raw_id.rstrip(b"\0").decode()
            out[request_id] = Truth(request_id, arrived, role, times, status)
        return out

    def _ask(self, path: str) -> bytes:
        url = f"{self.base_url}{path}"
        tls = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None
        with urllib.request.urlopen(url, timeout=10, context=tls) as answer:  # noqa: S310 - ours
            body = answer.read()
        assert isinstance(body, bytes)
        return body


def compile_mock(folder: Path, *, tls: bool = False) -> Path:
    """Compile the mock server, with TLS where asked, or skip the test with the reason."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to build the mock server with")
    program = folder / ("mock_sse_server_tls" if tls else "mock_sse_server")
    argv = [compiler, "-O2", "-o", str(program), str(SOURCE)]
    argv += ["-DMOCK_TLS", "-lssl", "-lcrypto"] if tls else []
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        what = "Linux and OpenSSL's headers" if tls else "Linux"
        pytest.skip(f"the mock server does not build here (it needs {what}): {done.stderr[:300]}")
    return program


@contextmanager
def run_mock(
    program: Path,
    *,
    certificate: tuple[Path, Path] | None = None,
    prefix: Sequence[str] = (),
    **options: int,
) -> Iterator[MockSse]:
    """Run the mock server on a free port until the block ends.

    Args:
        program: The compiled server.
        certificate: The files of certificate and key, of a server compiled with TLS.
        prefix: A command that runs it, such as one that pins it to a core.
        **options: Its knobs, see the top of its source.
    """
    argv = [*prefix, str(program), "--port", "0"]
    if certificate is not None:
        argv += ["--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])]
    for name, value in options.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        if certificate is None:
            yield MockSse(f"http://127.0.0.1:{port}")
        else:
            yield MockSse(f"https://127.0.0.1:{port}", certificate[0])
    finally:
        process.terminate()
        process.communicate(timeout=10)


# ---- the server that says what it is told -------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """Bytes to send, piece by piece, and what to do then.

    Attributes:
        pieces: Sent one by one, with a gap between, so that the client reads them apart.
        then: `keep` the connection, `close` it, `reset` it, or `stall` until the client leaves.
    """

    pieces: Sequence[bytes]
    then: str = "keep"


Route = Callable[[Request], Reply]


@dataclass
class Scripted:
    """A running scripted server."""

    base_url: str = ""
    requests: list[Request] = field(default_factory=list)


def whole(status: int, body: bytes, *, kind: str = "application/json", headers: str = "") -> Reply:
    """Return an answer with a length, in one piece."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return Reply([head.encode() + headers.encode() + b"\r\n" + body])


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunked(pieces: Sequence[bytes], *, end: bool = True) -> list[bytes]:
    """Return HTTP chunks of a body, the head in front."""
    framed = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    return [STREAM_HEAD, *framed, *([b"0\r\n\r\n"] if end else [])]


def stream(events: Sequence[str], *, then: str = "keep", end: bool = True) -> Reply:
    """Return a stream of events, each `data:` line given without its prefix."""
    return Reply(chunked([f"data: {event}\n\n".encode() for event in events], end=end), then)


def content(text: str, *, finish: str | None = None) -> str:
    """Return a content chunk."""
    reason = "null" if finish is None else f'"{finish}"'
    return (
        f'{{"id":"c1","model":"m","choices":[{{"index":0,"delta":{{"content":"{text}"}},'
        f'"finish_reason":{reason}}}]}}'
    )


ROLE = (
    '{"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    '"finish_reason":null}]}'
)


def usage(prompt: int, completion: int) -> str:
    """Return the usage chunk."""
    total = prompt + completion
    return (
        f'{{"id":"c1","model":"m","choices":[],"usage":{{"prompt_tokens":{prompt},'
        f'"completion_tokens":{completion},"total_tokens":{total}}}}}'
    )


GOOD = [ROLE, content("Par"), content("is", finish="stop"), usage(9, 2), "[DONE]"]
MODELS = b'{"object":"list","data":[{"id":"m","max_model_len":2048,"root":"weights/m"}]}'


@asynccontextmanager
async def scripted(
    routes: dict[str, Route | Reply], *, tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[Scripted]:
    """Serve replies by path on a port (0: a free one); other paths answer 404 as vLLM does."""
    server_state = Scripted()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        task.add_done_callback(serving.discard)
        try:
            while await _answer_one(reader, writer, routes, server_state):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    server_state.base_url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield server_state
    finally:
        server.close()
        for task in list(serving):
            task.cancel()


async def _answer_one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    routes: dict[str, Route | Reply],
    state: Scripted,
) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (ln.partition(":") for ln in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    request = Request(method, path, headers, body)
    state.requests.append(request)
    route = routes.get(path, whole(404, b'{"detail":"Not Found"}'))
    reply = route(request) if callable(route) else route
    for piece in reply.pieces:
        writer.write(piece)
        await writer.drain()
        if len(reply.pieces) > 1:
            await asyncio.sleep(PIECE_GAP_S)
    if reply.then == "stall":
        await reader.read()
        return False
    if reply.then == "reset":
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        return False
    return reply.then == "keep"


def unused_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port

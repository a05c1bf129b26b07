"""Ready means that the model answers at full speed, whatever status /health comes with."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from backends.cloudrun.health import read_health
from backends.core.errors import EndpointNotReadyError, EndpointUnreachableError
from backends.serving.endpoint import Endpoint

pytestmark = pytest.mark.anyio


@contextmanager
def _engine(health: tuple[int, dict[str, Any]]) -> Iterator[Endpoint]:
    """A server with this answer to /health, one model, and no /version."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = health
            if self.path == "/v1/models":
                status, body = 200, {"data": [{"id": "m", "max_model_len": 4096}]}
            elif self.path != "/health":
                status, body = 404, {"detail": "Not Found"}
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words: object) -> None:
            del words

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Endpoint(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_an_image_that_answers_200_while_it_stages_weights_is_not_ready() -> None:
    body = {"status": "ok", "phase": "staging_tmpfs", "vllm_ready": False, "bytes_staged_gb": 3.5}
    with _engine((200, body)) as endpoint:
        said = await read_health(endpoint)
    assert not said.ready
    assert said.phase == "staging_tmpfs"
    assert said.facts["health bytes_staged_gb"] == 3.5


async def test_loaded_but_not_warmed_is_not_ready() -> None:
    body = {"phase": "ready", "vllm_ready": True, "warmed": False}
    with _engine((200, body)) as endpoint:
        assert not (await read_health(endpoint)).ready


async def test_loaded_and_warmed_is_ready_and_names_its_models() -> None:
    with _engine((200, {"vllm_ready": True, "warmed": True})) as endpoint:
        said = await read_health(endpoint)
    assert said.ready
    assert (said.models, said.max_model_len, said.version) == (["m"], 4096, None)


async def test_vllms_own_empty_200_is_ready() -> None:
    with _engine((200, {})) as endpoint:
        assert (await read_health(endpoint)).ready


async def test_503_is_not_ready_and_nobody_there_is_unreachable() -> None:
    with _engine((503, {"error": "loading"})) as endpoint, pytest.raises(EndpointNotReadyError):
        await read_health(endpoint)
    with pytest.raises(EndpointUnreachableError):
        await read_health(endpoint)

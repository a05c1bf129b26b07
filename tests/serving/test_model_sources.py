"""A model's config and size from a folder and from a hub, without its weights."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from backends.core.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from backends.serving.model_sources import read_checkpoint, read_source
from tests.knowledge.test_from_config import E2B_CONFIG

HEADER = json.dumps(
    {"__metadata__": {}, "a": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 10_246_621]}}
).encode()


class Hub(BaseHTTPRequestHandler):
    """Two repositories: one with an index, one with a single file of 10 MB that is never sent."""

    sent: ClassVar[list[int]] = []
    files: ClassVar[dict[str, bytes]] = {
        "/org/sharded/resolve/main/config.json": json.dumps(E2B_CONFIG).encode(),
        "/org/sharded/resolve/main/model.safetensors.index.json": json.dumps(
            {"metadata": {"total_size": 10_246_621_918}, "weight_map": {}}
        ).encode(),
        "/org/single/resolve/main/config.json": json.dumps(E2B_CONFIG).encode(),
        "/org/single/resolve/main/model.safetensors": struct.pack("<Q", len(HEADER))
        + HEADER
        + bytes(10_000_000),
        "/org/bare/resolve/main/config.json": json.dumps(E2B_CONFIG).encode(),
    }

    def do_GET(self) -> None:
        if self.path.startswith("/org/gated/"):
            self.send_response(403)
            self.send_header("x-error-message", "Access to model org/gated is restricted")
            self.end_headers()
            return
        content = self.files.get(self.path)
        if content is None:
            self.send_response(404)
            self.end_headers()
            return
        span = self.headers.get("Range", "").removeprefix("bytes=")
        if span:
            first, _, last = span.partition("-")
            content = content[int(first) : int(last) + 1]
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.sent.append(len(content))

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    Hub.sent.clear()
    yield Hub
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_repository_with_an_index_is_known_from_two_small_files(hub: type[Hub]) -> None:
    made = read_checkpoint("org/sharded")
    assert made.disk_gb.value == pytest.approx(10.2466, abs=1e-3)
    assert made.attention.kv_bytes_per_token() == 18 * 1024
    assert sum(hub.sent) < 10_000


def test_of_a_single_file_only_the_header_is_read(hub: type[Hub]) -> None:
    assert read_source("org/single").weight_bytes == 10_246_621
    assert sum(hub.sent) < 10_000, "its weights were not downloaded"


@pytest.mark.usefixtures("hub")
def test_what_the_hub_has_not_or_hides_is_said_so() -> None:
    with pytest.raises(NotFoundError, match="org/nothing"):
        read_source("org/nothing")
    with pytest.raises(PermissionDeniedError, match="gated") as refused:
        read_source("org/gated")
    assert "restricted" in refused.value.words
    with pytest.raises(InvalidInputError, match="no safetensors"):
        read_source("org/bare")


def test_a_hub_that_does_not_answer_is_not_a_model_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError):
        read_source("org/any")


def test_the_hub_is_not_asked_when_that_is_not_wanted() -> None:
    with pytest.raises(NotFoundError):
        read_source("org/sharded", ask_hub=False)


def test_a_folder_is_believed_by_its_files_not_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "gemma-4-E2B-it"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(E2B_CONFIG | {"model_type": "gemma"}))
    with pytest.raises(InvalidInputError, match="no weights"):
        read_source(str(folder))
    (folder / "model.safetensors").write_bytes(bytes(1000))
    found = read_source(str(folder))
    assert found.config["model_type"] == "gemma"
    assert found.weight_bytes == 1000

"""The way to a machine: ssh, or none where the server itself runs on it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backends.clouds.google import GoogleCloud
from backends.clouds.google_guest import own_number
from backends.clouds.hosts import GceHost, LocalHost
from backends.gce import hosting
from backends.gce.hosting import Hosting
from tests.gce.made import PROJECT, machine


class _Guest(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer as Google's metadata server does."""
        ours = self.headers.get("Metadata-Flavor") == "Google"
        self.send_response(200 if ours else 403)
        self.end_headers()
        self.wfile.write(b"4242")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def metadata() -> Iterator[str]:
    """A metadata server's address."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Guest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/computeMetadata/v1/instance/id"
        server.shutdown()


def test_only_a_machine_of_google_asks_which_it_is(metadata: str, tmp_path: Path) -> None:
    product = tmp_path / "product_name"
    assert own_number(product, metadata) == ""
    own_number.cache_clear()
    product.write_text("KVM\n")
    assert own_number(product, metadata) == ""
    own_number.cache_clear()
    product.write_text("Google Compute Engine\n")
    assert own_number(product, metadata) == "4242"
    own_number.cache_clear()
    assert own_number(product, metadata.replace("http://127.0.0.1:", "http://127.0.0.1:1")) == ""


@pytest.mark.parametrize(
    ("here", "rehearsal", "kind"),
    [("4242", False, LocalHost), ("4242", True, GceHost), ("7", False, GceHost)],
)
async def test_no_connection_is_made_to_the_machine_we_run_on(
    monkeypatch: pytest.MonkeyPatch, here: str, rehearsal: bool, kind: type
) -> None:
    monkeypatch.setattr(hosting, "own_number", lambda: here)

    async def project() -> str:
        return PROJECT

    cloud = SimpleNamespace(rehearsal=rehearsal, project=project)
    found = await Hosting(cast("GoogleCloud", cloud)).host(machine())
    assert type(found) is kind
    assert found.label == "gce-t4/t4 (us-west2-b)"

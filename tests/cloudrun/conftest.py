"""One rehearsal cloud for all tests of this folder, as good as new for each of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backends.rehearsal.cloud import launcher
from tests.support.clients import Caller, connected, make_app

TARGETS = ("cloudrun-l4", "cloudrun-rtx6000")
# Minutes of a start become less than a second.
SPEED = 400.0


@dataclass(frozen=True)
class Cloud:
    """A rehearsal cloud and what a test does to it.

    Attributes:
        running: The cloud.
        state_dir: The state directory of servers that rehearse in it.
    """

    running: launcher.Running
    state_dir: Path

    def control(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Call its control API."""
        return launcher.control(self.running, method, path, body)

    def fault(self, name: str = "", **fields: object) -> None:
        """Switch a fault on: a scenario by its name, or one of its own."""
        self.control("POST", "/faults", ({"name": name} if name else {}) | fields)

    def mend(self) -> None:
        """Switch all faults off."""
        self.control("DELETE", "/faults")

    def requests(self, method: str = "", path: str = "") -> list[dict[str, Any]]:
        """What it was asked: requests of a method whose path holds `path`."""
        return [
            request
            for request in self.control("GET", "/requests")["requests"]
            if method in ("", request["method"]) and path in request["path"]
        ]

    def world(self) -> dict[str, Any]:
        """Everything it has."""
        return self.control("GET", "/world")


@pytest.fixture(scope="session")
def running_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """The cloud, started once."""
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not installed; changes on Google Cloud are made with it")
    state_dir = tmp_path_factory.mktemp("cloud")
    folder = state_dir / "rehearsal" / "cloud"
    running = launcher.start(folder, speed=SPEED, idle_s=60)
    # What gcloud has found out for the next ten minutes: it need not look up a metadata server.
    (folder / "gcloud" / "gce").write_text("False", encoding="utf-8")
    yield Cloud(running, state_dir)
    launcher.stop(folder)


@pytest.fixture
def cloud(running_cloud: Cloud) -> Iterator[Cloud]:
    """A new project in that cloud; this process's environment is put back afterwards."""
    running_cloud.control("POST", "/reset")
    running_cloud.control("DELETE", "/requests")
    before = dict(os.environ)
    yield running_cloud
    os.environ.clear()
    os.environ.update(before)
    running_cloud.mend()


@pytest.fixture
async def caller(cloud: Cloud) -> AsyncIterator[Caller]:
    """A client of a server that rehearses in that cloud."""
    app = make_app(cloud.state_dir, rehearsal=True, targets=TARGETS)
    async with connected(app) as connection:
        yield connection

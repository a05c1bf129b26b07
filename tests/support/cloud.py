"""A rehearsal cloud for the tests of a target: started once, as good as new for each of them."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.rehearsal.cloud import launcher

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

    def google(self, method: str, url: str, body: Any = None) -> dict[str, Any]:
        """Ask one of its Google APIs, as somebody who is logged in; what it answers."""
        with httpx.Client(
            proxy=f"http://127.0.0.1:{self.running.port}",
            verify=ssl.create_default_context(cafile=self.running.ca_file),
            timeout=30,
            trust_env=False,
        ) as http:
            login = {"grant_type": "refresh_token", "refresh_token": "1//rehearsal-refresh-token"}
            login |= {"client_id": "x", "client_secret": "y"}
            token = http.post("https://oauth2.googleapis.com/token", data=login).json()
            headers = {"authorization": f"Bearer {token['access_token']}"}
            answer = http.request(method, url, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

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


@contextmanager
def running_cloud(state_dir: Path, program: str) -> Iterator[Cloud]:
    """A cloud that is started, and stopped at the end.

    Args:
        state_dir: A folder of its own.
        program: The CLI that changes are made with; without it the tests are skipped.
    """
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed; changes in that cloud are made with it")
    folder = state_dir / "rehearsal" / "cloud"
    # Not even a test run that is killed leaves a cloud behind.
    running = launcher.start(folder, speed=SPEED, idle_s=60, owner_pid=os.getpid())
    yield Cloud(running, state_dir)
    launcher.stop(folder)


@contextmanager
def as_good_as_new(cloud: Cloud) -> Iterator[Cloud]:
    """An empty account in that cloud; this process's environment is put back afterwards."""
    cloud.control("POST", "/reset")
    # What zones said in the last test is of another account.
    shutil.rmtree(cloud.state_dir / "rehearsal" / "zones", ignore_errors=True)
    cloud.control("DELETE", "/requests")
    before = dict(os.environ)
    yield cloud
    os.environ.clear()
    os.environ.update(before)
    cloud.mend()

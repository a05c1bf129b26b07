"""The guard under all tests: nothing they start reaches another machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

# Addresses reserved for documentation (RFC 5737, RFC 2606): nobody is there.
AWAY = "192.0.2.1"
NAME = "host.example"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's own refusals are noted, so that they do not fail the session."""
    path = tmp_path / "refused"
    monkeypatch.setenv("TESTS_NETWORK_REPORT", str(path))
    return path


def test_connecting_sending_binding_and_looking_up_are_refused(report: Path) -> None:
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        for attempt in (
            lambda: stream.connect((AWAY, 80)),
            lambda: stream.bind(("0.0.0.0", 0)),  # noqa: S104 (refused)
            lambda: datagram.sendto(b"x", (AWAY, 53)),
            lambda: socket.getaddrinfo(NAME, 80),
        ):
            with pytest.raises(OSError, match="tests stay on this machine"):
                attempt()
    assert len(report.read_text(encoding="utf-8").splitlines()) == 4


def test_the_loopback_and_unix_sockets_are_free(tmp_path: Path, report: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        socket.create_connection(listener.getsockname()).close()
        socket.create_connection(("localhost", listener.getsockname()[1])).close()
    with socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "s"))
    assert not report.exists()


def test_a_python_that_a_test_starts_is_guarded_and_its_attempts_are_noted(report: Path) -> None:
    code = f"import socket; socket.create_connection(({AWAY!r}, 80), timeout=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "tests stay on this machine" in done.stderr
    assert AWAY in report.read_text(encoding="utf-8")


def test_a_test_sees_no_credentials_no_proxies_and_a_home_of_its_own(private_home: Path) -> None:
    assert Path.home() == private_home
    for name in os.environ:
        assert not name.startswith(("GOOGLE", "AWS", "CLOUDSDK", "HF_", "VLLM_API"))
        assert "proxy" not in name.lower()
        assert "TOKEN" not in name

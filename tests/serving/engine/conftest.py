"""The mock servers that know the truth, over HTTP and HTTPS, and how to hold an engine to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.mock_servers import MockSse, compile_mock, run_mock
from tests.serving.test_endpoint import self_signed

AS_IT_WAS = {
    "ttft_us": 30_000,
    "itl_us": 5_000,
    "tpc": 1,
    "split": 0,
    "role": 1,
    "step": 0,
    "jitter": 0,
    "usage": 1,
    "style": 0,
    "frame": 0,
    "idle_us": 0,
}


@pytest.fixture(scope="session")
def http_mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockSse]:
    with run_mock(compile_mock(tmp_path_factory.mktemp("mock"))) as server:
        yield server


@pytest.fixture(scope="session")
def https_mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockSse]:
    folder: Path = tmp_path_factory.mktemp("mock")
    certificate, _ = self_signed(folder)
    program = compile_mock(folder, tls=True)
    with run_mock(program, certificate=(certificate, folder / "key.pem")) as server:
        yield server


@pytest.fixture
def mock(http_mock: MockSse) -> Iterator[MockSse]:
    """The mock over HTTP, with its knobs as they were and nothing in its log."""
    http_mock.configure(**AS_IT_WAS)
    http_mock.forget()
    yield http_mock
    http_mock.configure(**AS_IT_WAS)


@pytest.fixture(params=["http", "https"])
def either_mock(request: pytest.FixtureRequest) -> Iterator[MockSse]:
    """The mock over HTTP, then over HTTPS."""
    server: MockSse = request.getfixturevalue(f"{request.param}_mock")
    server.configure(**AS_IT_WAS)
    server.forget()
    yield server
    server.configure(**AS_IT_WAS)

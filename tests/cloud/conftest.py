"""One rehearsal cloud for the tests of a module; each begins with a new project in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cloud.rehearsal import Rehearsal, rehearsal

# A start of minutes takes a second; what is left is the simulator's own.
SPEED = 1000.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """A cloud for the module."""
    with rehearsal(tmp_path_factory.mktemp("cloud"), speed=SPEED, idle_s=30) as client:
        yield client


@pytest.fixture
def cloud(running: Rehearsal) -> Iterator[Rehearsal]:
    """The module's cloud with a new project."""
    running.control("POST", "/reset", {})
    running.login()
    yield running
    running.control("DELETE", "/faults")

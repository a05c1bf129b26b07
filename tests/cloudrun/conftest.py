"""One rehearsal cloud for all tests of this folder, as good as new for each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import SPEED, Cloud, as_good_as_new
from tests.support.cloud import running_cloud as started

__all__ = ["SPEED", "TARGETS", "Cloud"]

TARGETS = ("cloudrun-l4", "cloudrun-rtx6000")


@pytest.fixture(scope="session")
def running_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """The cloud, started once."""
    state_dir = tmp_path_factory.mktemp("cloud")
    with started(state_dir, "gcloud") as cloud:
        # What gcloud has found out for the next ten minutes: it need not look up a metadata server.
        folder = state_dir / "rehearsal" / "cloud"
        (folder / "gcloud" / "gce").write_text("False", encoding="utf-8")
        yield cloud


@pytest.fixture
def cloud(running_cloud: Cloud) -> Iterator[Cloud]:
    """A new project in that cloud."""
    with as_good_as_new(running_cloud) as fresh:
        yield fresh


@pytest.fixture
async def caller(cloud: Cloud) -> AsyncIterator[Caller]:
    """A client of a server that rehearses in that cloud."""
    app = make_app(cloud.state_dir, rehearsal=True, rehearsal_speed=SPEED, targets=TARGETS)
    async with connected(app) as connection:
        yield connection

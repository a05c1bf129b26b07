"""One rehearsal cloud for all tests of this folder, as good as new for each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.hosts.conftest import grounds
from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import Cloud, as_good_as_new, running_cloud

TARGET = "gce-t4"
__all__ = ["grounds"]


@pytest.fixture(scope="session")
def gce_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """The cloud, started once."""
    with running_cloud(tmp_path_factory.mktemp("gce"), "gcloud") as cloud:
        found = cloud.state_dir / "rehearsal" / "cloud" / "gcloud" / "gce"
        # What gcloud has found out for the next ten minutes: it need not look for a metadata
        # server.
        found.write_text("False", encoding="utf-8")
        yield cloud


@pytest.fixture
def cloud(gce_cloud: Cloud) -> Iterator[Cloud]:
    """A new project in that cloud."""
    with as_good_as_new(gce_cloud) as fresh:
        yield fresh


@pytest.fixture
async def caller(cloud: Cloud) -> AsyncIterator[Caller]:
    """A client of a server that rehearses in that cloud."""
    app = make_app(cloud.state_dir, rehearsal=True, targets=(TARGET,))
    async with connected(app) as connection:
        yield connection

"""One rehearsal cloud for all tests of this folder, as good as new for each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from backends.core.operations import Operations
from backends.core.state import StateDir
from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import Cloud, as_good_as_new, running_cloud
from tests.tpu.acting import TARGET, Zone


@pytest.fixture(scope="session")
def tpu_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """The cloud, started once."""
    with running_cloud(tmp_path_factory.mktemp("tpu"), "gcloud") as cloud:
        gcloud = cloud.state_dir / "rehearsal" / "cloud" / "gcloud" / "gce"
        # What gcloud has found out for the next ten minutes: it need not look for a metadata
        # server.
        gcloud.write_text("False", encoding="utf-8")
        yield cloud


@pytest.fixture
def cloud(tpu_cloud: Cloud) -> Iterator[Cloud]:
    """A new project in that cloud."""
    with as_good_as_new(tpu_cloud) as fresh:
        yield fresh
    # A worker that outlives its test would start the cloud again after its end.
    operations = Operations(StateDir(tpu_cloud.state_dir / "rehearsal"))
    for operation in operations.all():
        if not operation.finished:
            operations.cancel(operation.id)


@pytest.fixture
async def caller(cloud: Cloud) -> AsyncIterator[Caller]:
    """A client of a server that rehearses in that cloud."""
    app = make_app(cloud.state_dir, rehearsal=True, targets=(TARGET,))
    async with connected(app) as connection:
        yield connection


@pytest.fixture
def zone(cloud: Cloud) -> Iterator[Zone]:
    zone = Zone(cloud)
    yield zone
    zone.client.close()

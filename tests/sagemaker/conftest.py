"""One rehearsal cloud for all tests of this folder, as good as new for each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.clients import Caller, connected, make_app
from tests.support.cloud import Cloud, as_good_as_new, running_cloud

REGIONS = ("us-east-2", "us-west-2")


@pytest.fixture(scope="session")
def running_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """The cloud, started once."""
    with running_cloud(tmp_path_factory.mktemp("aws"), "aws") as cloud:
        yield cloud


@pytest.fixture
def cloud(running_aws: Cloud) -> Iterator[Cloud]:
    """A new account in that cloud."""
    with as_good_as_new(running_aws) as fresh:
        yield fresh


@pytest.fixture
async def caller(cloud: Cloud) -> AsyncIterator[Caller]:
    """A client of a server that rehearses in that cloud, and looks into two regions."""
    app = make_app(cloud.state_dir, rehearsal=True, targets=("sagemaker-l4",), aws_regions=REGIONS)
    async with connected(app) as connection:
        yield connection

"""The rehearsal cloud of the Cloud Run tests, for what sets a project up."""

from tests.cloudrun.conftest import cloud, running_cloud

__all__ = ["cloud", "running_cloud"]

"""Puts AWS's side of the rehearsal together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.aws import ec2, ecr, pricing, troubles
from backends.rehearsal.cloud.aws.account import Account
from backends.rehearsal.cloud.aws.component_scaling import ComponentScaling
from backends.rehearsal.cloud.aws.components import Components
from backends.rehearsal.cloud.aws.endpoints import Endpoints
from backends.rehearsal.cloud.aws.front import Front
from backends.rehearsal.cloud.aws.hosting import Hosting
from backends.rehearsal.cloud.aws.identity import Iam, sts
from backends.rehearsal.cloud.aws.logs import CloudWatchLogs
from backends.rehearsal.cloud.aws.metrics import Metrics
from backends.rehearsal.cloud.aws.quotas import Quotas
from backends.rehearsal.cloud.aws.runtime import Runtime
from backends.rehearsal.cloud.aws.s3 import S3
from backends.rehearsal.cloud.aws.sagemaker import SageMaker
from backends.rehearsal.cloud.aws.scaling import AutoScaling
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.object_store import ObjectStore


class AwsSide:
    """AWS's side: the front that answers, and what runs behind it.

    Args:
        cloud: The parts of the cloud.
        objects: Where buckets keep their bytes.

    Attributes:
        front: Answers requests.
    """

    def __init__(self, cloud: Cloud, objects: ObjectStore) -> None:
        account = Account(cloud.world)
        s3 = S3(account, cloud.world, objects)
        iam = Iam(account, cloud)
        self._logs = CloudWatchLogs(account)
        self._metrics = Metrics(account)
        self._hosting = Hosting(account, cloud, iam, self._logs)
        self._endpoints = Endpoints(account, cloud, self._hosting, self._metrics)
        self._components = Components(account, cloud, self._hosting, self._endpoints, self._metrics)
        self._component_scaling = ComponentScaling(account, cloud, self._components, self._metrics)
        self._runtime = Runtime(self._endpoints, self._components, self._metrics)
        control = SageMaker(account, iam, s3, self._endpoints, self._components).service()
        self._components.service(control)
        self.front = Front(
            account,
            [
                sts(),
                iam.service(),
                self._runtime.service(control),
                Quotas(account).service(),
                ecr.service(),
                self._logs.service(),
                self._metrics.service(),
                pricing.service(),
                AutoScaling(account, self._endpoints, self._component_scaling).service(),
                ec2.service(),
                s3.service(),
            ],
        )
        troubles.register(cloud.faults, account)

    def resume(self) -> None:
        """Take up what was there before a restart."""
        self._endpoints.resume()
        self._components.resume()
        self._component_scaling.resume()

    def shown(self) -> list[Json]:
        """Every instance, as the control API shows it."""
        return self._hosting.shown()

    async def clear(self) -> None:
        """Stop all that runs and forget what was written."""
        await self._component_scaling.clear()
        await self._components.clear()
        await self._endpoints.clear()
        self._logs.clear()
        self._metrics.clear()

    async def close(self) -> None:
        """End with the cloud; what it has is kept."""
        await self._component_scaling.clear()
        await self._components.clear()
        await self._endpoints.clear()
        await self._runtime.close()

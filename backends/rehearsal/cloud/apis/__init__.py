"""The Google APIs that are played, one module each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.apis import (
    artifacts,
    billing,
    builds,
    compute,
    iam,
    logs,
    monitoring,
    oauth,
    quotas,
    resource_manager,
    run_v1,
    run_v2,
    secrets,
    service_usage,
    storage,
    tpu,
    vertex,
)

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.object_store import ObjectStore
    from backends.rehearsal.cloud.run.services import Services
    from backends.rehearsal.cloud.web import Api


def all_apis(cloud: Cloud, services: Services, objects: ObjectStore) -> list[Api]:
    """Every API of the rehearsal."""
    return [
        run_v1.api(cloud, services),
        run_v2.api(cloud, services),
        quotas.api(cloud),
        service_usage.api(cloud),
        resource_manager.api(cloud),
        iam.api(cloud),
        iam.credentials_api(cloud),
        secrets.api(cloud),
        storage.api(cloud, objects),
        logs.api(cloud),
        monitoring.api(cloud),
        builds.api(cloud, objects),
        artifacts.api(cloud),
        compute.api(cloud),
        tpu.api(cloud),
        billing.api(cloud),
        vertex.api(cloud),
        oauth.api(cloud),
    ]

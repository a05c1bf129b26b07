"""What a plan depends on, looked at in one go; nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.cloudrun.facts import BucketFolder, bucket_folder
from backends.cloudrun.images import ImageWorld, Source, look_at_image
from backends.cloudrun.quotas import Limits, limits_of
from backends.cloudrun.services import RunService
from backends.cloudrun.spec import CloudRunSpec, folder_of
from backends.clouds.google_facts import (
    READER,
    SECRET_READER,
    account_email,
    account_exists,
    disabled_apis,
    has_role,
    or_problem,
    private_access,
    refuse_disabled,
    secret_exists,
    words_of,
)
from backends.core.errors import DevopsError
from backends.core.owned import together

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking
    from backends.clouds.google import GoogleCloud


@dataclass(frozen=True)
class World:
    """What a plan was made from.

    Attributes:
        project: The project.
        services: All services of the regions that sell the GPU.
        found: The service of that name in that region, if there is one.
        account_there: Whether the deployment's own account exists.
        folder: The bucket folder, for source=bucket.
        may_read: Whether that account may read the bucket or secret already.
        secret_there: Whether the secret exists, for source=huggingface.
        limits: Quota limits of the region, or why they are not known.
        private: Whether the subnet has Private Google Access; None: no such subnet or not asked.
        problems: What could not be looked at.
        image: What there is of an image that is to be made; None: none is.
    """

    project: str
    services: list[RunService]
    found: RunService | None
    account_there: bool
    may_read: bool
    folder: BucketFolder | None
    secret_there: bool
    limits: Limits | None
    private: bool | None
    problems: tuple[str, ...] = ()
    image: ImageWorld | None = None


async def look(
    target: CloudRunLooking,
    spec: CloudRunSpec,
    project: str,
    services: list[RunService],
    source: Source | None = None,
) -> World:
    """Everything a plan of `spec` depends on, asked at the same time.

    Args:
        target: The target.
        spec: The resolved request.
        project: The project.
        services: All services of the regions that sell the GPU.
        source: The folder that its image is made from.

    Raises:
        ApiDisabledError: An API it needs is off.
        DevopsError: Services, the account or the bucket could not be asked.
    """
    cloud, region = target.cloud, str(spec.region)
    needed = ["run", "iam"]
    needed.append("storage" if spec.source == "bucket" else "secretmanager")
    if spec.vpc:
        needed.append("compute")
    if source is not None:
        needed += ["artifactregistry", "cloudbuild"]
    off = await or_problem(disabled_apis(cloud, *needed))
    problems: list[str] = []
    if isinstance(off, DevopsError):
        problems.append(f"Whether APIs are enabled is not known ({words_of(off)}).")
    else:
        refuse_disabled(off, project)

    async def nothing() -> None:
        return None

    account = spec.service_account or account_email(target.target, spec.name, project)
    from_bucket = spec.source == "bucket"
    there, may_read, folder, secret, limits, private, image = await together(
        nothing() if spec.service_account else account_exists(cloud, account),
        or_problem(_may_read(cloud, spec, account, project)),
        bucket_folder(cloud, str(spec.bucket), folder_of(str(spec.model)))
        if from_bucket
        else nothing(),
        nothing() if from_bucket else or_problem(secret_exists(cloud, str(spec.secret))),
        or_problem(limits_of(cloud, target.profile, [region], zonal=spec.zonal_redundancy)),
        or_problem(private_access(cloud, region, spec.subnet or "default"))
        if spec.vpc
        else nothing(),
        look_at_image(cloud, region, str(spec.image), source) if source is not None else nothing(),
    )
    if isinstance(limits, DevopsError):
        problems.append(f"Quotas were not checked ({words_of(limits)}); Cloud Run itself will.")
    if isinstance(private, DevopsError):
        problems.append(f"Private Google Access was not checked ({words_of(private)}).")
    if isinstance(secret, DevopsError):
        problems.append(f"Whether the secret exists is not known ({words_of(secret)}).")
    return World(
        project=project,
        services=services,
        found=next(
            (item for item in services if (item.name, item.region) == (spec.name, region)), None
        ),
        account_there=bool(there) or spec.service_account is not None,
        may_read=may_read is True,
        folder=folder,
        secret_there=secret is True,
        limits=None if isinstance(limits, DevopsError) else limits[region],
        private=None if isinstance(private, DevopsError) else private,
        problems=tuple(problems),
        image=image,
    )


async def _may_read(cloud: GoogleCloud, spec: CloudRunSpec, account: str, project: str) -> bool:
    """Whether the account has its one right already; a redeploy then leaves policies alone."""
    member = f"serviceAccount:{account}"
    if spec.source == "bucket":
        url = f"https://storage.googleapis.com/storage/v1/b/{spec.bucket}/iam"
        return await has_role(cloud, url, f"gs://{spec.bucket}", member, READER)
    url = (
        f"https://secretmanager.googleapis.com/v1/projects/{project}/secrets/{spec.secret}"
        ":getIamPolicy"
    )
    return await has_role(cloud, url, f"the secret {spec.secret}", member, SECRET_READER)

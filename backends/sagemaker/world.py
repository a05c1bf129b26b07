"""What a plan depends on, looked at in one go; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from backends.core.errors import DevopsError, NotFoundError
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together
from backends.core.problems import or_problem, words_of
from backends.knowledge.sagemaker import ImageTag
from backends.sagemaker.commands import POLICY, role_name
from backends.sagemaker.endpoints import Deployed
from backends.sagemaker.quotas import Limits, used

if TYPE_CHECKING:
    from backends.clouds.aws import Aws
    from backends.sagemaker.looking import SageMakerLooking


@dataclass(frozen=True)
class Role:
    """An execution role.

    Attributes:
        arn: Its ARN.
        ours: Whether it carries our tag.
        policy: The inline policy of ours that it has; empty if none.
    """

    arn: str
    ours: bool
    policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """One region as a plan finds it.

    Attributes:
        region: Which.
        limits: Its quotas; None where they could not be asked.
        taken: Instances by type that endpoints hold.
        image: Its newest image; None where one was named.
        problems: What could not be looked at.
    """

    region: str
    limits: Limits | None
    taken: Mapping[str, int]
    image: ImageTag | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class World:
    """What a plan was made from.

    Attributes:
        account: The account's number.
        partition: `aws`, `aws-cn` or `aws-us-gov`.
        deployed: Every deployment with an L4, in all regions that answered.
        silent: Regions that did not answer, in words.
        role: The role of our naming, if there is one.
        places: The region, then those to fall back to.
    """

    account: str
    partition: str
    deployed: tuple[Deployed, ...]
    silent: tuple[str, ...]
    role: Role | None
    places: tuple[Place, ...]

    def found(self, name: str, region: str) -> Deployed | None:
        """The deployment of a name in a region."""
        return next(
            (item for item in self.deployed if (item.name, item.region) == (name, region)), None
        )

    def role_arn(self, name: str) -> str:
        """The ARN that a deployment's own role has, or will have."""
        if self.role is not None:
            return self.role.arn
        return f"arn:{self.partition}:iam::{self.account}:role/{role_name(name)}"


def partition_of(region: str) -> str:
    """The partition that ARNs of a region begin with."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


async def look(
    target: SageMakerLooking, name: str, regions: Sequence[str], *, image: bool
) -> World:
    """Everything a plan depends on, asked at the same time; quotas region by region.

    Args:
        target: The target.
        name: The deployment.
        regions: Where it is to be, then where it may go.
        image: Whether the newest image is needed.

    Raises:
        DevopsError: The region, the role or the image could not be asked.
    """
    account = await target.account()
    (deployed, silent), role = await together(
        target.everything(), role_of(target.aws, regions[0], role_name(name))
    )
    for region in regions:
        if region in silent:
            raise silent[region]
    places = await together(*(_place(target, region, deployed, image=image) for region in regions))
    return World(
        account=account,
        partition=partition_of(regions[0]),
        deployed=tuple(deployed),
        silent=tuple(f"{region}: {words_of(error)}" for region, error in silent.items()),
        role=role,
        places=tuple(places),
    )


async def _place(
    target: SageMakerLooking, region: str, deployed: Sequence[Deployed], *, image: bool
) -> Place:
    async def nothing() -> None:
        return None

    limits, tag = await together(
        or_problem(target.quotas.limits(region)),
        target.catalogue.image(region) if image else nothing(),
    )
    problems: tuple[str, ...] = ()
    if isinstance(limits, DevopsError):
        problems = (
            f"Quotas of {region} were not checked ({words_of(limits)}); SageMaker itself will.",
        )
    return Place(
        region=region,
        limits=None if isinstance(limits, DevopsError) else limits,
        taken=used(item for item in deployed if item.region == region),
        image=tag,
        problems=problems,
    )


async def role_of(aws: Aws, region: str, name: str) -> Role | None:
    """A role with its tags and our policy, or None.

    Args:
        aws: The account.
        region: Any of its partition; IAM has none.
        name: The role's name.
    """
    try:
        raw = (await aws.call("iam", "get_role", region, RoleName=name))["Role"]
    except NotFoundError:
        return None
    tags = {str(item["Key"]): str(item["Value"]) for item in raw.get("Tags") or ()}
    try:
        found = await aws.call("iam", "get_role_policy", region, RoleName=name, PolicyName=POLICY)
        document = found.get("PolicyDocument") or {}
    except NotFoundError:
        document = {}
    if isinstance(document, str):
        import json

        document = json.loads(unquote(document))
    return Role(str(raw["Arn"]), tags.get(MANAGED_BY) == MANAGED_BY_US, document)

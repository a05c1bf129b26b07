"""Which deployments there are on SageMaker and where: every region at the same time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from backends.base import Backend, Services
from backends.core.errors import (
    CloudError,
    ConflictError,
    DevopsError,
    InvalidInputError,
    NotFoundError,
    NotManagedError,
    NotSetUpError,
    RateLimitedError,
    UnauthenticatedError,
)
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together
from backends.core.problems import or_problem, words_of
from backends.knowledge.sagemaker import REGIONS, TARGET

if TYPE_CHECKING:
    from backends.sagemaker.api import SageMakerApi
    from backends.sagemaker.catalogue import Catalogue
    from backends.sagemaker.endpoints import Deployed
    from backends.sagemaker.logs import LogReader
    from backends.sagemaker.quotas import Quotas

# Any of these says that somebody wants AWS to be used from here.
_SIGNS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)

# `aws login` is renewed by every process at once (CreateOAuth2Token, "Rate exceeded").
_LOGIN_WAITS_S = (0.5, 1.0, 2.0)

_REHEARSED_SLACK_S = 0.01

# A start takes ten minutes.
_LOOK_EVERY_S = 3.0

DEFAULT_REGION = "us-east-2"
"""Where the reference deployment runs."""


class SageMakerFinding(Backend):
    """The account, its regions, and what is deployed in them."""

    target: ClassVar[str] = TARGET
    title: ClassVar[str] = "SageMaker real-time endpoint"
    hardware: ClassVar[str] = "NVIDIA L4, 24 GB"

    def __init__(self, services: Services) -> None:
        from backends.clouds.aws import Aws
        from backends.sagemaker.api import SageMakerApi
        from backends.sagemaker.catalogue import Catalogue
        from backends.sagemaker.logs import SLACK_S, LogReader
        from backends.sagemaker.quotas import Quotas

        super().__init__(services)
        self.aws = Aws(services)
        self.api: SageMakerApi = SageMakerApi(self.aws)
        self.quotas: Quotas = Quotas(self.aws)
        self.catalogue: Catalogue = Catalogue(self.aws)
        # A rehearsal has one clock, and in it half an hour may be less than the slack of two.
        slack_s = _REHEARSED_SLACK_S if self.aws.rehearsal else SLACK_S
        self.log_reader: LogReader = LogReader(self.aws, slack_s)
        self._where: dict[str, str] = {}
        self._asked_in_vain: dict[str, float] = {}

    # --------------------------------------------------------------------------------- finding

    @property
    def look_every_s(self) -> float:
        """How often a watch looks again: a look is four requests, and AWS throttles them."""
        return super().look_every_s if self.aws.rehearsal else _LOOK_EVERY_S

    def home(self) -> str:
        """The region to deploy to unless told otherwise."""
        return self.services.settings.aws_region or DEFAULT_REGION

    def regions(self) -> tuple[str, ...]:
        """Every region that is looked into, that of the settings first."""
        said = self.services.settings.aws_regions
        return tuple(dict.fromkeys((self.home(), *(said or REGIONS))))

    async def account(self) -> str:
        """The account's number.

        Raises:
            NotSetUpError: Nobody has logged in to AWS on this machine.
            UnauthenticatedError: The login has expired.
        """
        if not self.aws.rehearsal and not await asyncio.to_thread(self._named):
            raise NotSetUpError(
                f"{self.target} is not set up: nothing on this machine names an AWS account.",
                next_action="Ask the person to run `aws login` or `aws configure`; on a machine "
                "that has a role, to set AWS_REGION.",
            )
        try:
            return await self._account_number()
        except UnauthenticatedError as error:
            if error.words:
                raise  # there is a login, and it is dead: what it made may be running
            raise NotSetUpError(
                f"{self.target} is not set up: {error.message}", next_action=error.next_action
            ) from error

    async def _account_number(self) -> str:
        """Who we are; asked again where the sign-in service throttles a login that is renewed."""
        for wait_s in _LOGIN_WAITS_S:
            try:
                return (await self.aws.identity()).account
            except RateLimitedError:
                await asyncio.sleep(wait_s)
        return (await self.aws.identity()).account

    def _named(self) -> bool:
        """Whether anything here says that AWS is used. Blocks for two looks at the disk.

        Without a sign botocore would go on to ask whether this is a machine of EC2, which takes
        seconds anywhere else, at every list.
        """
        settings = self.services.settings
        if settings.aws_region or settings.aws_regions:
            return True
        if any(os.environ.get(variable) for variable in _SIGNS):
            return True
        files = (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials"))
        home = Path.home() / ".aws"
        return any(
            Path(os.environ.get(variable) or home / name).expanduser().exists()
            for variable, name in files
        )

    async def everything(self) -> tuple[list[Deployed], dict[str, DevopsError]]:
        """Every deployment with an L4 in every region, and the regions that did not answer."""
        await self.account()
        regions = self.regions()
        found = await together(*(or_problem(self.api.all_deployed(region)) for region in regions))
        deployed: list[Deployed] = []
        silent: dict[str, DevopsError] = {}
        for region, item in zip(regions, found, strict=True):
            if isinstance(item, DevopsError):
                silent[region] = item
            else:
                deployed += [one for one in item if one.config is None or one.config.is_l4]
        return deployed, silent

    async def find(self, name: str, region: str | None = None) -> Deployed:
        """The deployment of that name.

        Args:
            name: The deployment.
            region: Where it is; None looks everywhere.

        Raises:
            NotFoundError: Every region was asked and has none.
            InvalidInputError: Several regions have one.
            CloudError: No region has one, and some did not answer.
        """
        known = region or self._where.get(name)
        if known is not None:
            found = await self._in_region(known, name)
            if found is not None and (found.endpoint is not None or region is not None):
                return found
            # Stopped here, it may run elsewhere: an operation may have taken it there.
            self._where.pop(name, None)
            if region is not None:
                raise self._not_here(name, (region,))
        await self.account()
        regions = self.regions()
        answers = await together(*(or_problem(self._in_region(region, name)) for region in regions))
        silent = {
            region: item
            for region, item in zip(regions, answers, strict=True)
            if isinstance(item, DevopsError)
        }
        present: list[Deployed] = [
            item for item in answers if item and not isinstance(item, DevopsError)
        ]
        # A name that runs somewhere and is stopped elsewhere means the one that runs.
        running = [item for item in present if item.endpoint is not None] or present
        if len(running) > 1:
            chosen = [item for item in running if item.region == self.home()]
            if len(chosen) != 1:
                places = ", ".join(item.region for item in running)
                raise InvalidInputError(
                    "name",
                    f"{name} exists in several regions ({places}).",
                    allowed="set AWS_REGION to the one that is meant",
                )
            running = chosen
        if not running:
            if silent:
                raise self.unknown_regions(silent, f"whether there is a {name[:64]!r}")
            raise self._not_here(name, regions)
        self._where[name] = running[0].region
        return running[0]

    async def _in_region(self, region: str, name: str) -> Deployed | None:
        """The deployment of that name in a region, running or stopped."""
        from backends.sagemaker.endpoints import Deployed

        try:
            deployed = await self.api.deployed(region, name)
        except NotFoundError:
            configs = await self.api.configs_of(region, name)
            return Deployed(name, region, configs[0]) if configs else None
        if deployed.config is not None and not deployed.config.is_l4:
            types = ", ".join(deployed.types) or "no instance type of its own"
            raise ConflictError(
                f"The SageMaker endpoint {name} in {region} has {types}: it is not one of "
                f"{self.target}.",
                next_action="Use another name.",
            )
        return deployed

    def remember(self, name: str, region: str) -> None:
        """Keep in mind where a deployment is, so that it is found with one request."""
        self._where[name] = region

    async def ours(self, name: str) -> Deployed:
        """The deployment of that name, if it may be changed.

        Raises:
            NotFoundError: There is none.
            NotManagedError: It does not carry our tag.
        """
        deployed = await self.find(name)
        if not deployed.managed:
            arn = deployed.endpoint.arn if deployed.endpoint else "ARN"
            raise NotManagedError(
                f"{self.at(name)} in {deployed.region} does not carry "
                f"{MANAGED_BY}={MANAGED_BY_US}, so it is only read.",
                next_action="To adopt it, ask the person to run: aws sagemaker add-tags "
                f"--resource-arn {arn} --tags Key={MANAGED_BY},Value={MANAGED_BY_US} "
                f"--region {deployed.region}",
            )
        return deployed

    def unknown_regions(self, silent: Mapping[str, DevopsError], what: str) -> DevopsError:
        """The error for regions that did not answer: unknown is not empty."""
        first = next(iter(silent.values()))
        names = ", ".join(silent)
        said = "; ".join(f"{region}: {words_of(error)}" for region, error in silent.items())
        if isinstance(first, UnauthenticatedError) and len(silent) == len(self.regions()):
            return first  # the login is dead everywhere
        error = type(first) if type(first).__init__ is DevopsError.__init__ else CloudError
        return error(
            f"{len(silent)} AWS regions did not answer ({names}), so {what} is not known. {said}",
            words=first.words,
            cause=first.cause,
            next_action=f"{first.next_action or 'Try again'}; or leave the region out: set "
            "VLLM_DEVOPS_AWS_REGIONS to those in use.",
        )

    def _not_here(self, name: str, regions: Sequence[str]) -> NotFoundError:
        return NotFoundError(
            f"There is no deployment {name[:64]!r} on {self.target}.",
            cause=f"Asked, and answered: {', '.join(regions)}.",
            next_action="Call list_deployments.",
        )

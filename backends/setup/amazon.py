"""AWS's part: CLI, login, region, what the login may read, and the endpoint quota.

Looking goes the way the server goes (AWS's client library, with the login that lives), changing by
the aws CLI, so that each command can be read and run by hand. Roles and policies are not set up
here: a deployment shows the least that it needs in its own plan, and makes it.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from typing import Any

from backends.base import Services
from backends.clouds.aws import Aws
from backends.core.errors import DevopsError, PermissionDeniedError, UnauthenticatedError
from backends.knowledge.sagemaker import DEFAULT_POOL, PROFILE
from backends.setup.desk import Desk

_INSTALL = "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html"
_REGION = "us-east-2"
# What the targets were tested with; older ones do not know InstancePools.
_TESTED = {1: (1, 45, 11), 2: (2, 38, 5)}

# What the targets read: service, operation, parameters, the permission it takes.
_READS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("sagemaker", "list_endpoints", {"MaxResults": 1}, "sagemaker:ListEndpoints"),
    ("sagemaker", "list_models", {"MaxResults": 1}, "sagemaker:ListModels"),
    ("logs", "describe_log_groups", {"limit": 1}, "logs:DescribeLogGroups"),
    ("cloudwatch", "list_metrics", {"Namespace": "AWS/SageMaker"}, "cloudwatch:ListMetrics"),
    (
        "ecr",
        "describe_images",
        {"registryId": "763104351884", "repositoryName": "vllm", "maxResults": 1},
        "ecr:DescribeImages",
    ),
)


class AwsSetup:
    """Looks at one account, and offers what the targets miss.

    Args:
        desk: Where it is talked over.
        services: Settings, and the variables of the cloud.
        targets: The targets it is for.
        project: The account that is meant; None: whichever is logged in.
    """

    def __init__(
        self, desk: Desk, services: Services, targets: Sequence[str], project: str | None
    ) -> None:
        self._desk = desk
        self._targets = targets
        self._account = project
        self._aws = Aws(services)

    async def run(self) -> None:
        """Everything in order; what the rest stands on ends it when it is missing."""
        desk = self._desk
        desk.heading(f"AWS, for {', '.join(self._targets)}")
        if not await self._installed() or not await self._logged_in():
            return
        region = await self._where()
        lacking = [permission for permission in await self._unreadable(region) if permission]
        if lacking:
            desk.missing(f"permissions to read: {', '.join(lacking)}")
            desk.left("ask the account's administrator to allow them")
        else:
            desk.ok("you may read what these targets read")
        try:
            await self._quota(region)
        except DevopsError as error:
            desk.missing(f"the endpoint quota could not be told ({error.code}): {error.message}")
            desk.left(error.next_action)
        desk.note("The execution role is made by the first deployment; its plan shows the policy.")

    # ------------------------------------------------------------------------- who and where

    async def _installed(self) -> bool:
        desk = self._desk
        if shutil.which("aws") is None:
            desk.missing(f"the AWS CLI, version 2: {_INSTALL}")
            desk.left()
            return False
        version = await self._aws.cli_version()
        text = ".".join(map(str, version))
        if version < _TESTED.get(version[0], (0,)):
            desk.note(f"aws {text} is older than what this was tested with; update it: {_INSTALL}")
        desk.ok(f"aws {text}")
        return True

    async def _logged_in(self) -> bool:
        desk = self._desk
        try:
            who = await self._aws.identity()
        except UnauthenticatedError as error:
            desk.missing(f"a login at AWS: {error.message}")
            command = shlex.split(await self._aws.login.mend())
            if not desk.hand_over(command):
                return False
            self._aws.login.forget()
            who = await self._aws.identity()
        desk.ok(f"logged in as {who.arn}, by {await self._aws.login.source()}")
        if self._account and self._account != who.account:
            desk.missing(f"a login of account {self._account}; this one is of {who.account}")
            desk.left("log in to the other account, or set AWS_PROFILE to a profile of it")
            return False
        return True

    async def _where(self) -> str:
        region = await self._aws.region()
        if region is None:
            self._desk.note(f"AWS_REGION is not set; {_REGION} is looked at")
            return _REGION
        self._desk.ok(f"region {region}")
        return region

    # ------------------------------------------------------------------------- the account

    async def _unreadable(self, region: str) -> list[str]:
        """Permissions that are missing; what could not be told otherwise is said at once."""
        found = []
        for service, operation, params, permission in _READS:
            try:
                await self._aws.call(service, operation, region, **params)
            except PermissionDeniedError:
                found.append(permission)
            except DevopsError as error:
                self._desk.missing(f"{permission} could not be told ({error.code})")
                self._desk.left(error.next_action)
        return found

    async def _quota(self, region: str) -> None:
        """Offer to ask for one instance where the account may have none."""
        desk = self._desk
        quotas = await self._aws.items(
            "service-quotas", "list_service_quotas", "Quotas", region, ServiceCode="sagemaker"
        )
        by_name = {str(item["QuotaName"]): item for item in quotas}
        wanted = [by_name.get(f"{kind} for endpoint usage") for kind in DEFAULT_POOL]
        offered = [item for item in wanted if item is not None]
        if not offered:
            desk.missing(f"{PROFILE.accelerator.title} endpoints in {region}: not offered there")
            desk.left("set AWS_REGION to another one, e.g. us-east-2")
            return
        held = {str(item["QuotaName"]).split()[0]: int(item["Value"]) for item in offered}
        if any(held.values()):
            desk.ok(
                f"endpoint quota in {region}: "
                + ", ".join(f"{count} {kind}" for kind, count in held.items())
            )
            return
        first = offered[0]
        desk.missing(f"endpoint quota for {', '.join(held)} in {region}: all 0")
        asked = await self._aws.call(
            "service-quotas",
            "list_requested_service_quota_change_history",
            region,
            ServiceCode="sagemaker",
        )
        for request in asked.get("RequestedQuotas") or []:
            if request.get("QuotaCode") == first["QuotaCode"] and request.get("Status") in {
                "PENDING",
                "CASE_OPENED",
            }:
                desk.left(f"{request['QuotaName']}: asked for already, {request['Status']}")
                return
        argv = self._aws.argv(
            [
                "service-quotas",
                "request-service-quota-increase",
                "--service-code=sagemaker",
                f"--quota-code={first['QuotaCode']}",
                "--desired-value=1",
            ],
            region,
        )
        if await desk.change(argv, self._run):
            desk.left("AWS answers within hours to days; find_capacity shows when it is there")

    async def _run(self, argv: Sequence[str]) -> str:
        await self._aws.run(argv)
        return ""

"""What a plan depends on, looked at in one go; nothing is changed."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.clouds.google_facts import (
    account_email,
    account_exists,
    disabled_apis,
    or_problem,
    refuse_disabled,
    secret_exists,
    words_of,
)
from backends.core.errors import DevopsError
from backends.core.owned import together
from backends.gce.commands import TAG, TARGET, data_disk
from backends.gce.machines import Disk, Machine, Quota
from backends.gce.spec import GceSpec
from backends.knowledge import gce

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud
    from backends.gce.machines import ComputeApi

APIS = ("compute", "iam")
"""What every deployment needs."""


@dataclass(frozen=True)
class Limits:
    """GPU quotas.

    Attributes:
        everywhere: GPUS_ALL_REGIONS.
        by_region: Quotas by region and metric.
    """

    everywhere: Quota | None
    by_region: Mapping[str, Mapping[str, Quota]]

    def short_of(self, region: str, *, spot: bool, ssd_gib: int = 0) -> list[str]:
        """What a T4 machine there would pass, each by the quota's exact name; empty if it fits."""
        found: list[str] = []
        if self.everywhere is not None and self.everywhere.left < 1:
            found.append(_short(gce.GLOBAL_QUOTA, self.everywhere, 1, "GPU"))
        quotas = self.by_region.get(region, {})
        metric, quota = self.gpu_quota(region, spot=spot)
        if quota.left < 1:
            found.append(_short(metric, quota, 1, "GPU"))
        disks = quotas.get(gce.DISK_QUOTA)
        if disks is not None and disks.left < ssd_gib:
            found.append(_short(gce.DISK_QUOTA, disks, ssd_gib, "GB"))
        return found

    def gpu_quota(self, region: str, *, spot: bool) -> tuple[str, Quota]:
        """The regional quota that counts: spot's own where the project was given one."""
        quotas = self.by_region.get(region, {})
        own = quotas.get(gce.SPOT_GPU_QUOTA)
        if spot and own is not None and own.limit > 0:
            return gce.SPOT_GPU_QUOTA, own
        return gce.GPU_QUOTA, quotas.get(gce.GPU_QUOTA, Quota(0.0, 0.0))


def _short(metric: str, quota: Quota, wanted: float, unit: str) -> str:
    used = f" besides {quota.used:g} in use" if quota.used else ""
    return (
        f"{metric}: {wanted:g} {unit} needed{used}, {quota.limit:g} allowed; request "
        f"{quota.used + wanted:g}"
    )


async def limits_of(api: ComputeApi) -> Limits:
    """The project's GPU quotas.

    Raises:
        DevopsError: They could not be asked; never answered with "no quota".
    """
    project, regions = await together(api.project_quotas(), api.region_quotas())
    return Limits(project.get(gce.GLOBAL_QUOTA), regions)


@dataclass(frozen=True)
class World:
    """What a plan was made from.

    Attributes:
        project: The project.
        machines: Every machine of the project.
        kept: The data disk of that name that is there already, and in which zone.
        account_there: Whether the deployment's own account exists.
        secret_there: Whether the secret exists.
        limits: Quotas, or None where they could not be asked.
        selling: Zones that sell T4s now.
        ssh_open: Whether a firewall rule lets IAP reach ssh.
        nats: Regions whose subnets have a NAT already.
        problems: What could not be looked at.
    """

    project: str
    machines: Sequence[Machine]
    kept: Disk | None
    account_there: bool
    secret_there: bool
    limits: Limits | None
    selling: frozenset[str]
    ssh_open: bool
    nats: frozenset[str]
    problems: tuple[str, ...] = field(default=())


async def look(cloud: GoogleCloud, api: ComputeApi, spec: GceSpec) -> World:
    """Everything a plan of `spec` depends on, asked at the same time.

    Raises:
        ApiDisabledError: An API it needs is off.
        DevopsError: Machines, disks or the account could not be asked.
    """
    project = await cloud.project()
    account = spec.service_account or account_email(TARGET, spec.name, project)
    problems: list[str] = []
    off = await or_problem(disabled_apis(cloud, *APIS))
    if isinstance(off, DevopsError):
        problems.append(f"Whether APIs are enabled is not known ({words_of(off)}).")
    else:
        refuse_disabled(off, project)

    async def no() -> bool:
        return False

    machines, disks, there, secret, limits, selling, rules, routers = await together(
        api.machines(),
        api.disks(),
        no() if spec.service_account else account_exists(cloud, account),
        or_problem(secret_exists(cloud, spec.secret)),
        or_problem(limits_of(api)),
        or_problem(api.zones_with(gce.GPU_TYPE)),
        or_problem(api.firewall_rules()),
        or_problem(api.routers()),
    )
    for what, value in (
        ("Quotas were", limits),
        ("Zones that sell T4s were", selling),
        ("Firewall rules were", rules),
        ("Routers were", routers),
        ("The secret was", secret),
    ):
        if isinstance(value, DevopsError):
            problems.append(f"{what} not checked ({words_of(value)}).")
    return World(
        project=project,
        machines=machines,
        kept=next((disk for disk in disks if disk.name == data_disk(spec.name)), None),
        account_there=bool(there) or spec.service_account is not None,
        secret_there=secret is True,
        limits=None if isinstance(limits, DevopsError) else limits,
        selling=frozenset(gce.all_zones() if isinstance(selling, DevopsError) else selling),
        # What is not known is taken for open: a rule that is there twice harms nobody, but a
        # plan must not make rules that nobody asked for.
        ssh_open=isinstance(rules, DevopsError) or lets_iap_in(rules, spec.network),
        nats=frozenset(
            gce.REGIONS if isinstance(routers, DevopsError) else nat_regions(routers, spec.network)
        ),
        problems=tuple(problems),
    )


def lets_iap_in(rules: Sequence[Mapping[str, Any]], network: str) -> bool:
    """Whether a rule lets IAP's addresses reach ssh on our machines.

    Args:
        rules: All firewall rules.
        network: The network's name.
    """
    iap = ipaddress.ip_network(gce.IAP_RANGE)
    for rule in rules:
        if (
            str(rule.get("network", "")).rpartition("/")[2] != network
            or rule.get("disabled")
            or rule.get("direction", "INGRESS") != "INGRESS"
            or (rule.get("targetTags") and TAG not in rule["targetTags"])
            or rule.get("targetServiceAccounts")
            or not any(_opens_ssh(allowed) for allowed in rule.get("allowed") or [])
        ):
            continue
        for source in rule.get("sourceRanges") or []:
            place = ipaddress.ip_network(str(source), strict=False)
            if place.version == 4 and iap.subnet_of(place):  # type: ignore[arg-type]
                return True
    return False


def _opens_ssh(allowed: Mapping[str, Any]) -> bool:
    if str(allowed.get("IPProtocol")) not in {"tcp", "all", "6"}:
        return False
    ports = allowed.get("ports")
    if not ports:
        return True
    for port in ports:
        low, _, high = str(port).partition("-")
        if int(low) <= 22 <= int(high or low):
            return True
    return False


def nat_regions(routers: Sequence[Mapping[str, Any]], network: str) -> set[str]:
    """Regions in which all subnets of a network have a NAT."""
    return {
        str(router.get("region", "")).rpartition("/")[2]
        for router in routers
        if str(router.get("network", "")).rpartition("/")[2] == network
        for nat in router.get("nats") or []
        if str(nat.get("sourceSubnetworkIpRangesToNat", "")).startswith("ALL_SUBNETWORKS_ALL")
        or nat.get("subnetworks")
    }

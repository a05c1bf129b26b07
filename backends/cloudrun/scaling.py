"""How many instances serve: at least, at most, an exact number, or automatic again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from backends.base import Scaling
from backends.cloudrun.commands import at
from backends.cloudrun.quotas import Amount, limits_of, refuse_if_short, shortages, used
from backends.cloudrun.running import explained
from backends.cloudrun.services import RunService
from backends.clouds.google_facts import or_problem
from backends.core.answers import Changed, Price
from backends.core.errors import DevopsError, InvalidInputError
from backends.core.words import plural

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking


def most_of(service: RunService, scaling: Scaling) -> int:
    """The most instances a service could have once scaled so."""
    if scaling.instances is not None:
        return scaling.instances
    if service.manual is not None and not scaling.automatic:
        return service.manual
    high = scaling.max_instances or service.max_instances
    return max(high, scaling.min_instances or 0)


async def price_of(target: CloudRunLooking, name: str, scaling: Scaling) -> Price:
    """What it would cost per hour at most."""
    service = await target.find(name)
    return target.instance_price(
        service.region,
        service.cpu,
        service.memory_gib,
        service.zonal,
        max(1, most_of(service, scaling)),
    )


async def scale(target: CloudRunLooking, name: str, scaling: Scaling) -> Changed:
    """Change the numbers; what was not said stays, the scaling mode included.

    Raises:
        InvalidInputError: Minimum or maximum for a service in manual scaling.
        QuotaError: More than the region's quotas allow.
    """
    service = await target.ours(name)
    bounds = scaling.min_instances is not None or scaling.max_instances is not None
    if service.manual is not None and bounds and not scaling.automatic:
        raise InvalidInputError(
            "min_instances",
            f"and max_instances have no effect: {target.at(name)} is in manual scaling at "
            f"{service.manual}.",
            allowed="instances=N, or automatic=true together with them",
        )
    low = scaling.min_instances if scaling.min_instances is not None else service.min_instances
    high = scaling.max_instances or service.max_instances
    if scaling.instances is None and low > high:
        raise InvalidInputError(
            "min_instances", f"of {low} is above max_instances of {high}.",
            allowed="say both",
        )  # fmt: skip
    await _check_quota(target, service, most_of(service, scaling))
    flags = _flags(service, scaling)
    if not flags:
        raise InvalidInputError("max_instances", "is as asked already; nothing to change.")
    argv = [
        *("gcloud", "beta", "run", "services", "update", name),
        *at(await target.cloud.project(), service.region),
        *flags,
        *("--quiet", "--async", "--format=json"),
    ]
    try:
        await target.cloud.gcloud.run(argv)
    except DevopsError as error:
        raise explained(error, target.target, name) from error
    after = await target.find(name, service.region)
    status = await target.status(name)
    mode = "automatic" if after.manual is None else f"manual at {after.manual}"
    rate = target.instance_price(
        after.region, after.cpu, after.memory_gib, after.zonal, max(1, after.warm_instances)
    )
    warm = after.warm_instances
    return Changed(
        summary=f"{target.at(name)} scales now: {mode}, at least {after.min_instances}, at most "
        f"{after.max_instances}.",
        target=target.target,
        name=name,
        state=status.state,
        url=after.url or None,
        done=[" ".join(argv)],
        usd_per_hour=rate.usd_per_hour if warm else 0.0,
        warnings=[
            *([f"Paid for day and night now: {plural(warm, 'instance')}."] if warm else []),
            *(
                ["A new revision carries this: it starts once, and takes over when it is ready."]
                if any(flag.startswith(("--max-instances", "--min-instances")) for flag in flags)
                else []
            ),
        ],
        keeps_billing=[f"{plural(warm, 'instance')}, used or not."] if warm else [],
        next_steps=[target.call("get_status", name)],
    )


def _flags(service: RunService, scaling: Scaling) -> list[str]:
    if scaling.instances is not None:
        return [f"--scaling={scaling.instances}"]
    flags = ["--scaling=auto"] if scaling.automatic else []
    if scaling.min_instances is not None:
        flags.append(f"--min={scaling.min_instances}")
        if service.revision_min > scaling.min_instances:
            flags.append("--min-instances=0")
    if scaling.max_instances not in (None, service.max_instances):
        flags.append(f"--max-instances={scaling.max_instances}")
    return flags


async def _check_quota(target: CloudRunLooking, service: RunService, most: int) -> None:
    region = service.region
    limits = await or_problem(
        limits_of(target.cloud, target.profile, [region], zonal=service.zonal)
    )
    if isinstance(limits, DevopsError):
        return  # Cloud Run itself refuses what does not fit, and says so
    services = await target.api.services([region])
    others = [item for item in services if item.name != service.name]
    need = Amount(most, most * service.cpu, most * service.memory_gib)
    short = shortages(
        target.profile,
        limits[region],
        need,
        used(others, region, target.profile),
        zonal=service.zonal,
    )
    count = math.ceil(need.gpus)
    refuse_if_short(target.target, region, short, what=f"{count} x one {target.profile.hardware}")

"""Where a reference deployment could run: who sells the GPU, what quota allows, at which price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.cloudrun.quotas import Amount, limits_of, shortages, used
from backends.clouds.google_facts import or_problem
from backends.core.answers import Capacity, NotAsked, Place
from backends.core.errors import DevopsError, InvalidInputError
from backends.core.owned import together
from backends.knowledge.cloudrun import CPU_QUOTA, GIB, MEMORY_QUOTA, usd_per_instance_hour

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking


async def find_capacity(target: CloudRunLooking, place: str | None) -> Capacity:
    """Quota against need in every region that sells the GPU.

    Raises:
        InvalidInputError: `place` does not sell it.
        DevopsError: Quotas could not be asked.
    """
    profile = target.profile
    regions = [name for name in target.regions() if place in (None, name)]
    if not regions:
        raise InvalidInputError(
            "place",
            f"{place} does not sell {profile.hardware} on Cloud Run.",
            allowed=", ".join(target.regions()),
        )
    limits, services = await together(
        limits_of(target.cloud, profile, regions), or_problem(target.api.services(regions))
    )
    silent: list[NotAsked] = []
    if isinstance(services, DevopsError):
        silent = [NotAsked(target=target.target, error=f"{services.code}: {services.message}")]
        services = []
    need = Amount(1, profile.cpu, profile.memory_gib)
    places: list[Place] = []
    wanted: list[str] = []
    for region in regions:
        taken = used(services, region, profile)
        short = shortages(profile, limits[region], need, taken)
        sold = profile.sells(region)
        places.append(
            Place(
                place=region,
                verdict="short of quota" if short else "can run",
                usd_per_hour=usd_per_instance_hour(
                    profile, region, profile.cpu, profile.memory_gib
                ),
                provisioning="on demand, scales to zero",
                quota_limit=limits[region].gpus or 0.0,
                quota_used=None if silent else taken.gpus,
                short_of=short,
                note=(sold.note or None) if sold else None,
            )
        )
        wanted += [f"{region}: {item}" for item in short]
    able = [item.place for item in places if item.verdict == "can run"]
    where = f"can run in {', '.join(able)}" if able else "fits no region's quota now"
    return Capacity(
        summary=f"The reference deployment of {target.target} {where} "
        f"({len(regions)} sell the GPU).",
        target=target.target,
        needs={
            "gpus": 1,
            "cpu": profile.cpu,
            "memory_gib": profile.memory_gib,
            profile.quota: 1,
            CPU_QUOTA: profile.cpu * 1000,
            MEMORY_QUOTA: profile.memory_gib * GIB,
        },
        items=places,
        total=len(places),
        to_request=wanted,
        not_answering=silent,
        warnings=[
            "Used is what existing services may take at most (max_instances), as Cloud Run counts.",
            *(["Free hardware cannot be asked for; Cloud Run says when it deploys."]),
        ],
        next_steps=[
            f"plan_deployment(target={target.target!r}, options={{'region': {able[0]!r}}})"
            if able
            else "Ask the person to request the quotas under to_request at "
            "https://console.cloud.google.com/iam-admin/quotas (or g.co/cloudrun/gpu-quota)."
        ],
    )

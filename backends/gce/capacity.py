"""Where a T4 machine could run: who sells it, quota, price, and what zones said lately."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from backends.clouds.google_facts import or_problem, words_of
from backends.core.answers import Capacity, NotAsked, Place
from backends.core.errors import DevopsError, InvalidInputError
from backends.core.owned import together
from backends.gce.commands import TARGET
from backends.gce.world import Limits, limits_of
from backends.gce.zones import by_preference
from backends.knowledge import gce

if TYPE_CHECKING:
    from backends.clouds.google_compute_prices import ComputePrices
    from backends.clouds.zone_memory import ZoneNote
    from backends.gce.looking import GceLooking

_HOW = ("on-demand", "spot")


async def find_capacity(target: GceLooking, place: str | None) -> Capacity:
    """Zones times quotas times provisioning model, with price and with what was seen when.

    Args:
        target: The target.
        place: Only this region or zone.

    Raises:
        InvalidInputError: `place` does not sell T4s.
        DevopsError: Quotas could not be asked.
    """
    limits, selling, _ = await together(
        limits_of(target.api),
        or_problem(target.api.zones_with(gce.GPU_TYPE)),
        target.prices.learn(),
    )
    silent: list[NotAsked] = []
    if isinstance(selling, DevopsError):
        silent = [NotAsked(target=TARGET, error=words_of(selling))]
        selling = list(gce.all_zones())
    zones = [zone for zone in selling if place in (None, zone, gce.region_of(zone))]
    if not zones:
        regions = ", ".join(sorted({gce.region_of(zone) for zone in selling}))
        raise InvalidInputError("place", f"{place} sells no {gce.HARDWARE}.", allowed=regions)
    ordered = by_preference(zones, gce.DEFAULT_MACHINE, spot=False)
    memory = {how: target.memory.notes(f"T4 {how}") for how in _HOW}
    places = [
        _place(zone, how, limits, memory[how].get(zone), target.prices)
        for zone in ordered
        for how in _HOW
    ]
    able = [item for item in places if item.verdict == "can run"]
    short = sorted({item for found in places for item in found.short_of})
    best = able[0].place if able else ""
    return Capacity(
        summary=_summary(places, able, len(zones)),
        target=TARGET,
        needs={
            "gpus": 1,
            gce.GPU_QUOTA: 1,
            gce.GLOBAL_QUOTA: 1,
            gce.DISK_QUOTA: gce.BOOT_DISK_GIB + gce.DATA_DISK_GIB,
            "machine_type": gce.DEFAULT_MACHINE,
        },
        items=places,
        total=len(places),
        to_request=short[:20],
        not_answering=silent,
        warnings=[
            "Free hardware cannot be asked for; only a request tells. What zones said lately is "
            "remembered for a while, with its time.",
        ],
        next_steps=[
            f"plan_deployment(target={TARGET!r}, options={{'zones': [{best!r}]}})"
            if able
            else "Ask the person to request the quotas under to_request at "
            "https://console.cloud.google.com/iam-admin/quotas."
        ],
    )


def _place(
    zone: str, how: str, limits: Limits, note: ZoneNote | None, prices: ComputePrices
) -> Place:
    spot = how == "spot"
    region = gce.region_of(zone)
    _, quota = limits.gpu_quota(region, spot=spot)
    short = limits.short_of(region, spot=spot, ssd_gib=gce.BOOT_DISK_GIB + gce.DATA_DISK_GIB)
    rate = prices.machine_rate(zone, gce.DEFAULT_MACHINE, spot)
    lately = note is not None and note.kind != "got"
    return Place(
        place=zone,
        verdict="short of quota" if short else "no capacity lately" if lately else "can run",
        usd_per_hour=rate.machine if rate is not None else None,
        provisioning=how,
        quota_limit=quota.limit,
        quota_used=quota.used,
        short_of=short,
        note=note.shown(time.time()) if note is not None else None,
    )


def _summary(places: list[Place], able: list[Place], zones: int) -> str:
    if not able:
        lately = sum(item.verdict == "no capacity lately" for item in places)
        why = f"{lately} had none lately, the others lack quota" if lately else "quota is short"
        return f"A T4 machine fits nowhere now ({zones} zones sell T4s; {why})."
    priced = [item for item in able if item.usd_per_hour is not None]
    cheapest = min(priced, key=lambda item: item.usd_per_hour or 0.0, default=None)
    words = (
        f"; cheapest {cheapest.place} {cheapest.provisioning} at {cheapest.usd_per_hour} USD/h "
        "without disks"
        if cheapest
        else ""
    )
    names = len({item.place for item in able})
    return f"A T4 machine can be asked for in {names} of {zones} zones that sell T4s{words}."

"""Which zones a plan tries, in which order, and what stands against the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.clouds.zone_memory import FINAL, ZoneNote
from backends.core.errors import ConflictError, InvalidInputError, QuotaError
from backends.gce.commands import TARGET
from backends.gce.spec import GceSpec
from backends.gce.world import World
from backends.knowledge import gce

if TYPE_CHECKING:
    from backends.clouds.zone_memory import ZoneMemory


@dataclass(frozen=True)
class Choice:
    """The zones of a plan.

    Attributes:
        zones: To try, in order.
        notes: Why these, in words.
        warnings: What speaks against them.
    """

    zones: tuple[str, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def choose(spec: GceSpec, world: World, memory: ZoneMemory) -> Choice:
    """The zones to try: those asked for, or those with quota, without a recent no, cheapest first.

    Raises:
        InvalidInputError: A zone that was asked for does not sell T4s.
        ConflictError: The data disk of that name is in another zone.
        QuotaError: No zone fits the project's quotas.
    """
    candidates = _candidates(spec, world)
    warnings: list[str] = []
    notes: list[str] = []
    ssd = spec.boot_disk_gib + (0 if world.kept is not None else spec.data_disk_gib)
    fitting = list(candidates)
    if world.limits is not None:
        short = {
            zone: world.limits.short_of(gce.region_of(zone), spot=spec.spot, ssd_gib=ssd)
            for zone in candidates
        }
        fitting = [zone for zone in candidates if not short[zone]]
        if not fitting:
            raise _no_quota(short)
        left_out = sorted({gce.region_of(zone) for zone in candidates if short[zone]})
        if left_out:
            notes.append(f"Left out for want of quota: {', '.join(left_out)}.")
    zones, refused = _by_memory(spec, memory, fitting, warnings)
    if refused:
        notes.append("Left out: " + "; ".join(note.shown(time.time()) for note in refused) + ".")
    zones = zones[: gce.MAX_ZONES]
    if len(zones) > 1:
        notes.append(f"Zones are tried in this order while they have no T4: {', '.join(zones)}.")
    return Choice(tuple(zones), tuple(notes), tuple(warnings))


def _candidates(spec: GceSpec, world: World) -> list[str]:
    if world.kept is not None:
        # A disk is in one zone: what is on it can be used there only.
        zone = world.kept.zone
        if spec.zones is not None and zone not in spec.zones:
            raise ConflictError(
                f"The data disk {world.kept.name} of an earlier {spec.name} is in {zone}, which "
                "is not among options.zones.",
                next_action=f"Leave options.zones out to use it there, or delete it with "
                f"destroy(target={TARGET!r}, name={spec.name!r}, options={{'data_disk': true}}), "
                "or choose another name.",
            )
        return [zone]
    if spec.zones is not None:
        for zone in spec.zones:
            if zone not in world.selling:
                raise InvalidInputError(
                    "options.zones",
                    f"{zone} does not sell {gce.HARDWARE}.",
                    allowed=", ".join(sorted(world.selling)),
                )
        return list(spec.zones)
    return by_preference(sorted(world.selling), spec.machine_type, spot=spec.spot)


def by_preference(zones: Sequence[str], machine: str, *, spot: bool) -> list[str]:
    """Zones in our order: the reference's first, then by price, those we know no rate of last."""

    def key(zone: str) -> tuple[int, float, int, str]:
        rate = gce.machine_rate(zone, machine, spot)
        default = zone in gce.DEFAULT_ZONES
        return (
            0 if gce.region_of(zone) == gce.DEFAULT_REGION else 1 if default else 2,
            rate.machine if rate is not None else 99.0,
            gce.DEFAULT_ZONES.index(zone) if default else 99,
            zone,
        )

    return sorted(zones, key=key)


def _by_memory(
    spec: GceSpec, memory: ZoneMemory, zones: list[str], warnings: list[str]
) -> tuple[list[str], list[ZoneNote]]:
    """Zones that had none lately come last; those asked for by name keep their order."""
    notes = memory.notes(spec.wanted)
    lately = [note for zone in zones if (note := notes.get(zone)) and note.kind != "got"]
    if spec.zones is not None or len(zones) == 1:
        now = time.time()
        warnings += [f"{note.shown(now)}; it is tried all the same." for note in lately]
        return zones, []
    ordered, refused = memory.ordered(spec.wanted, zones)
    return ordered, [note for note in refused if note.kind in FINAL]


def _no_quota(short: dict[str, list[str]]) -> QuotaError:
    everywhere = {item for items in short.values() for item in items if gce.GLOBAL_QUOTA in item}
    if everywhere:
        words = "; ".join(sorted(everywhere))
    else:
        first = list(short.items())[:4]
        words = "; ".join(f"{zone}: {', '.join(items)}" for zone, items in first)
        words += f"; and {len(short) - 4} more zones" if len(short) > 4 else ""
    names = {item.partition(":")[0] for items in short.values() for item in items}
    return QuotaError(
        f"A T4 machine fits the project's quota in no zone that was considered: {words}.",
        cause="New projects may have no GPU (GPUS_ALL_REGIONS is 0), whatever the regions allow.",
        next_action=f"find_capacity(target={TARGET!r}) shows every zone; ask the person to request "
        "what is short at https://console.cloud.google.com/iam-admin/quotas.",
        details={"quota": ", ".join(sorted(names))},
    )

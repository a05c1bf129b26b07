"""The three gates before a TPU, kept apart: hardware, quota, capacity; and what it would cost.

Hardware and quota can be asked for. Capacity cannot: what is known of it is what was seen when it
was last asked for, which is told with its age.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from backends.clouds.google_facts import or_problem, words_of
from backends.clouds.zone_memory import ZoneMemory, ZoneNote
from backends.core.answers import Capacity, NotAsked, Place
from backends.core.errors import DevopsError, InvalidInputError
from backends.core.owned import together
from backends.knowledge.tpu import (
    FLEX_START_SEEN,
    ON_DEMAND_QUOTA,
    PREEMPTIBLE_QUOTA,
    PROVISIONING,
    SLICES,
    quota_id,
    region_of,
)
from backends.tpu.records import TpuRequest

if TYPE_CHECKING:
    from backends.clouds.google_compute_prices import ComputePrices
    from backends.tpu.looking import TpuLooking

REFERENCE = "v6e-1"

Verdict = Literal["can run", "short of quota", "not sold here", "no capacity lately"]


def asked_for(size: str, provisioning: str) -> str:
    """What zone memory is about."""
    return f"{size} {provisioning}"


def used_chips(
    requests: Sequence[TpuRequest], zone: str, provisioning: str, plane: str = "tpu"
) -> int:
    """Chips that count against a quota in a zone: failed and suspended requests' too."""
    quota = quota_id(provisioning, plane)
    return sum(
        item.chips
        for item in requests
        if item.plane == plane
        and quota_id(item.provisioning, plane) == quota
        and (item.zone == zone if plane == "tpu" else item.region == region_of(zone))
    )


async def find_capacity(target: TpuLooking, place: str | None) -> Capacity:
    """Hardware, quota, what was seen of capacity, and price, by zone and provisioning model.

    Raises:
        InvalidInputError: `place` is no zone or region of the TPU API.
        DevopsError: Quotas or zones could not be asked.
    """
    zones = [zone for zone in await target.api.zones() if place in (None, zone, region_of(zone))]
    if not zones:
        raise InvalidInputError(
            "place",
            f"{place} is no zone or region of the TPU API.",
            allowed="e.g. us-east5-b or us-east5",
        )
    sizes, on_demand, preemptible, world, _ = await together(
        target.api.sizes(zones),
        target.api.quota(ON_DEMAND_QUOTA),
        target.api.quota(PREEMPTIBLE_QUOTA),
        or_problem(target.world()),
        target.prices.learn(),
    )
    silent = [
        NotAsked(target=f"{target.target} {zone}", error=answer)
        for zone, answer in sizes.items()
        if isinstance(answer, str)
    ]
    requests: list[TpuRequest] = []
    if isinstance(world, DevopsError):
        silent.append(NotAsked(target=target.target, error=words_of(world)))
    else:
        requests = world[0]
    memory = ZoneMemory(target.services.state, target.target)
    limits: Mapping[str, Mapping[str, float]] = {
        ON_DEMAND_QUOTA: on_demand,
        PREEMPTIBLE_QUOTA: preemptible,
    }
    known = not isinstance(world, DevopsError)
    items = _places(sizes, limits, requests, memory, target.prices, used_known=known)
    able = [item for item in items if item.verdict == "can run"]
    without = [zone for zone, answer in sizes.items() if answer == []]
    first = able[0].place if able else None
    return Capacity(
        summary=f"{len({item.place for item in items})} of {len(zones)} zones have v6e hardware; "
        f"{len(able)} of their provisioning models are within quota. Whether chips are free is "
        "known only by asking for them.",
        target=target.target,
        needs={"chips": 1, ON_DEMAND_QUOTA: 1, PREEMPTIBLE_QUOTA: 1},
        items=items,
        total=len(items),
        to_request=_to_request(items),
        not_answering=silent,
        warnings=[
            "Three gates: hardware (asked), quota (asked), capacity (unknown until asked for; what "
            "was seen is noted with its age).",
            "Quota exists in zones without hardware; flex-start and spot share the preemptible "
            "quota.",
            *([f"Zones with quota but without v6e: {', '.join(without)}."] if without else []),
        ],
        next_steps=[
            f"plan_deployment(target={target.target!r}, options={{'zone': {first!r}}})"
            if first
            else "Ask the person to request the quotas under to_request at "
            "https://console.cloud.google.com/iam-admin/quotas",
            f"plan_deployment(target={target.target!r}, options={{'zones': ['any']}}) asks zone "
            "after zone",
        ],
    )


def _places(
    sizes: Mapping[str, list[str] | str],
    limits: Mapping[str, Mapping[str, float]],
    requests: Sequence[TpuRequest],
    memory: ZoneMemory,
    prices: ComputePrices,
    *,
    used_known: bool,
) -> list[Place]:
    notes = {model: memory.notes(asked_for(REFERENCE, model)) for model in PROVISIONING}
    items: list[Place] = []
    for zone, found in sizes.items():
        if not isinstance(found, list) or not found:
            continue
        order = sorted(found, key=lambda name: SLICES[name].chips if name in SLICES else 0)
        for model in PROVISIONING:
            if model == "reservation":
                continue
            quota = str(quota_id(model))
            limit = limits[quota].get(zone, 0.0)
            used = used_chips(requests, zone, model)
            short = [] if used + 1 <= limit else [f"{quota}: {used:g} of {limit:g} chips used"]
            refused = _refusal(zone, model, notes[model].get(zone))
            price, _ = prices.chip_hour(model, zone)
            items.append(
                Place(
                    place=zone,
                    verdict=_verdict(refused, short, notes[model].get(zone)),
                    usd_per_hour=price.value if price else None,
                    provisioning=model,
                    quota_limit=limit if limit != float("inf") else None,
                    quota_used=float(used) if used_known else None,
                    short_of=short,
                    note="; ".join(
                        filter(
                            None,
                            (
                                f"hardware: {', '.join(order)}",
                                refused,
                                _seen(notes[model].get(zone)),
                            ),
                        )
                    ),
                )
            )
    rank = {"can run": 0, "no capacity lately": 1, "short of quota": 2}
    items.sort(key=lambda item: (rank.get(item.verdict, 3), item.usd_per_hour or 99, item.place))
    return items


def _verdict(refused: str, short: Sequence[str], note: ZoneNote | None) -> Verdict:
    if refused:
        return "not sold here"
    if short:
        return "short of quota"
    lately = note is not None and note.kind in {"stockout", "waited"}
    return "no capacity lately" if lately else "can run"


def _refusal(zone: str, model: str, note: ZoneNote | None) -> str:
    if note is not None and note.kind == "model_refused":
        return f"{model} refused: {note.words}" if note.words else f"{model} refused"
    if model == "flex-start" and FLEX_START_SEEN.get(zone) is False:
        return "flex-start was refused here (TPU v6e repository, 2026)"
    return ""


def _seen(note: ZoneNote | None) -> str:
    return f"capacity seen: {note.shown(time.time())}" if note is not None else "capacity: unknown"


def _to_request(items: Sequence[Place]) -> list[str]:
    return [
        f"{item.place}: {quota_id(str(item.provisioning))} (for {item.provisioning})"
        for item in items
        if item.verdict == "short of quota"
    ]

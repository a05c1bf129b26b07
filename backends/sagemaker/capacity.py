"""Where a reference deployment could run: endpoint quota by type and region, use, price, image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backends.core.answers import Capacity, NotAsked, Place
from backends.core.errors import CloudError, DevopsError, InvalidInputError
from backends.core.owned import together
from backends.core.problems import or_problem, words_of
from backends.knowledge.sagemaker import DEFAULT_POOL, TYPES, ImageTag, ami_for
from backends.sagemaker.quotas import Limits, shortages, used

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking


async def find_capacity(target: SageMakerLooking, place: str | None) -> Capacity:
    """Quota against use of every L4 type in every region.

    Raises:
        InvalidInputError: `place` is not looked into.
        DevopsError: No region's quotas could be asked.
    """
    regions = [name for name in target.regions() if place in (None, name)]
    if not regions:
        raise InvalidInputError(
            "place",
            f"{place} is none of the regions looked into; VLLM_DEVOPS_AWS_REGIONS names them.",
            allowed=", ".join(target.regions()),
        )
    await target.account()
    found = await together(*(_of_region(target, region) for region in regions))
    places = [item for answer, _ in found for item in answer]
    silent = [item for _, missing in found for item in missing]
    if all(item.verdict == "unknown" for item in places):
        await target.account()  # a login that has died meanwhile says so itself
        problems = {item.target.rpartition(" ")[2]: item.error for item in silent}
        said = "; ".join(f"{region}: {error}" for region, error in problems.items())
        raise CloudError(
            f"No region's quotas could be asked, so what could run is not known. {said}",
            next_action=f"get_help(topic='doctor', target={target.target!r})",
        )
    able = [item for item in places if item.verdict == "can run"]
    first = able[0].place.partition(" ")[0] if able else ""
    wanted = [f"{item.place}: {short}" for item in places for short in item.short_of]
    where = f"can run as {', '.join(item.place for item in able)}" if able else "fits no quota now"
    return Capacity(
        summary=f"One instance of {target.target} {where}.",
        target=target.target,
        needs={"instances": 1, "gpus": 1, "first_choice": DEFAULT_POOL[0]},
        items=places,
        total=len(places),
        to_request=wanted,
        not_answering=silent,
        warnings=[
            "Used is what existing endpoints hold: a pool holds quota for every type it lists.",
            "Quota is permission, not hardware: free instances cannot be asked for. SageMaker "
            "looks for up to half an hour, and says InsufficientInstanceCapacity if there is none.",
        ],
        next_steps=[
            *_ask_again(target, places, place),
            f"plan_deployment(target={target.target!r}, options={{'region': {first!r}}})"
            if able
            else "Ask the person to request the quotas under to_request in the console (Service "
            "Quotas, Amazon SageMaker, 'for endpoint usage').",
        ],
    )


def _ask_again(target: SageMakerLooking, places: Sequence[Place], place: str | None) -> list[str]:
    """The same call, where quotas of some regions were not answered: it asks only for those."""
    left = [item.place for item in places if item.verdict == "unknown"]
    if not left:
        return []
    where = f", place={place!r}" if place is not None else ""
    return [
        f"find_capacity(target={target.target!r}{where}) again: the quotas of {', '.join(left)} "
        "were not answered (AWS throttles such calls); what was answered is kept for five minutes, "
        "and only these are asked"
    ]


async def _of_region(target: SageMakerLooking, region: str) -> tuple[list[Place], list[NotAsked]]:
    limits, deployed, image = await together(
        or_problem(target.quotas.limits(region)),
        or_problem(target.api.all_deployed(region)),
        or_problem(target.catalogue.image(region)),
    )
    silent = [
        NotAsked(target=f"{target.target} in {region}", error=f"{what}: {words_of(item)}")
        for what, item in (("quotas", limits), ("endpoints", deployed), ("images", image))
        if isinstance(item, DevopsError)
    ]
    if isinstance(limits, DevopsError):
        return [Place(place=region, verdict="unknown", note=f"quotas: {words_of(limits)}")], silent
    taken = None if isinstance(deployed, DevopsError) else used(deployed)
    return await _places(target, region, limits, taken, image), silent


async def _places(
    target: SageMakerLooking,
    region: str,
    limits: Limits,
    taken: dict[str, int] | None,
    image: ImageTag | DevopsError,
) -> list[Place]:
    if not limits:
        return [Place(place=region, verdict="not sold here", note="offers no L4 for endpoints")]
    note = "image: not known"
    if isinstance(image, ImageTag):
        note = f"vLLM {image.version}, {image.tag}, on {ami_for(image.cuda).name}"
    rates = await target.catalogue.rates(region, list(limits))
    sizes = {kind: f"{item.gpus} x L4, {item.memory_gib} GiB RAM" for kind, item in TYPES.items()}
    places: list[Place] = []
    for kind in (kind for kind in TYPES if kind in limits):
        short = shortages(limits, [kind], 1, taken or {})
        if limits[kind].value == 0 and kind not in DEFAULT_POOL:
            continue  # five more types without quota would only hide the three that matter
        places.append(
            Place(
                place=f"{region} {kind}",
                verdict="short of quota" if short else "can run",
                usd_per_hour=rates[kind].value if kind in rates else None,
                provisioning=f"on demand, {sizes[kind]}",
                quota_limit=limits[kind].value,
                quota_used=None if taken is None else float(taken.get(kind, 0)),
                short_of=short,
                note=note,
            )
        )
    return places

"""What is checked before anything is sent: the name, types, quotas, and habits that cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backends.core.errors import ConflictError, InvalidInputError, NotManagedError
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.knowledge.sagemaker import CAPACITY_WAIT_S, TYPES
from backends.sagemaker.endpoints import BROKEN, BUSY, Deployed
from backends.sagemaker.fit import too_small
from backends.sagemaker.quotas import refuse_if_short, shortages
from backends.sagemaker.spec import SageMakerSpec
from backends.sagemaker.world import Place, World

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking


def check_name(target: SageMakerLooking, spec: SageMakerSpec, world: World) -> None:
    """Refuse a name that is taken by something that we do not own or cannot change.

    Raises:
        ConflictError: It is elsewhere, is being changed, or has failed.
        NotManagedError: It is not ours.
        InvalidInputError: A candidate of nothing.
    """
    region, name = str(spec.region), spec.name
    found = world.found(name, region)
    elsewhere = [
        item.region for item in world.deployed if item.name == name and item.region != region
    ]
    if elsewhere:
        raise ConflictError(
            f"{name} exists in {', '.join(elsewhere)} already.",
            next_action=f"Choose another name, or options.region={elsewhere[0]!r} to deploy it "
            "there again.",
        )
    if found is None or found.endpoint is None:
        if spec.candidate:
            raise InvalidInputError(
                "options.candidate", "needs an endpoint that serves already; deploy that first."
            )
        return
    _check_found(target, spec, found)


def _check_found(target: SageMakerLooking, spec: SageMakerSpec, found: Deployed) -> None:
    endpoint = found.endpoint
    if endpoint is None:
        return
    if not found.managed:
        raise NotManagedError(
            f"The SageMaker endpoint {spec.name} in {found.region} exists and does not carry "
            f"{MANAGED_BY}={MANAGED_BY_US}.",
            next_action="Choose another name, or ask the person to run: aws sagemaker add-tags "
            f"--resource-arn {endpoint.arn} --tags Key={MANAGED_BY},Value={MANAGED_BY_US} "
            f"--region {found.region}",
        )
    if endpoint.status in BUSY:
        raise target.busy(spec.name, endpoint.status)
    if endpoint.status in BROKEN:
        raise ConflictError(
            f"{target.at(spec.name)} has failed, and a failed endpoint cannot be deployed over.",
            words=endpoint.reason,
            next_action=f"{target.call('destroy', spec.name)} first; get_status says why it "
            "failed.",
        )
    if spec.fallback_regions:
        raise InvalidInputError(
            "options.fallback_regions", f"are for new deployments; {spec.name} runs already."
        )


def chosen_types(
    spec: SageMakerSpec, types: Sequence[str], place: Place, need: int
) -> tuple[list[str], list[str]]:
    """The types to list, and why others were left out.

    Types that were named are taken or refused; of our own default those that cannot be are left
    out, for a pool that lists a type without quota is refused as a whole.

    Raises:
        InvalidInputError: A named type has too little RAM.
        QuotaError: No type fits, or a named one does not.
    """
    model = spec.model or ""
    small = too_small(model, types)
    region = place.region
    if spec.instance_types:
        if small:
            kind = next(iter(small))
            roomy = [name for name in TYPES if name not in too_small(model, list(TYPES))]
            raise InvalidInputError(
                "options.instance_types",
                f"{kind}: {small[kind]}",
                allowed=", ".join(roomy) or "none of the L4 types",
            )
        short = _short(place, list(types), need)
        if short and not spec.ignore_quota:
            refuse_if_short(region, short, what=_what(need, types))
        return list(types), [
            *([f"Quota looks short, planned all the same: {'; '.join(short)}."] if short else [])
        ]
    roomy = [kind for kind in types if kind not in small]
    if not roomy:
        roomy = [
            kind for kind, item in TYPES.items() if item.gpus == 1 and not too_small(model, [kind])
        ]
    left_out = [f"{kind} is left out: {reason}" for kind, reason in small.items()]
    able = [kind for kind in roomy if not _short(place, [kind], need)]
    if not able and not spec.ignore_quota:
        refuse_if_short(region, _short(place, roomy, need), what=_what(need, roomy))
    left_out += [
        f"{kind} is left out: {'; '.join(_short(place, [kind], need))}."
        for kind in roomy
        if able and kind not in able
    ]
    return (able or roomy), left_out


def check_beside(
    spec: SageMakerSpec, running: Deployed, place: Place, types: Sequence[str], count: int
) -> list[str]:
    """Quota for what serves once more: an update puts every variant on new instances.

    Args:
        spec: The request, a candidate.
        running: What serves.
        place: Its region.
        types: The candidate's types.
        count: Its instances.

    Raises:
        QuotaError: It does not fit beside the candidate.
    """
    serving = running.endpoint.serving if running.endpoint else None
    planned = running.config.variant(serving.name) if running.config and serving else None
    if place.limits is None or serving is None or planned is None:
        return []
    taken = dict(place.taken)
    for kind in types:
        taken[kind] = taken.get(kind, 0) + count
    again = int(serving.desired or serving.count or 1)
    short = shortages(place.limits, planned.types, again, taken)
    if short and not spec.ignore_quota:
        refuse_if_short(place.region, short, what=f"{_what(again, planned.types)}, once more")
    return [f"Quota looks short, planned all the same: {'; '.join(short)}."] if short else []


def _short(place: Place, types: Sequence[str], need: int) -> list[str]:
    if place.limits is None:
        return []
    return shortages(place.limits, types, need, place.taken)


def _what(need: int, types: Sequence[str]) -> str:
    return f"{need} x {' or '.join(types)}"


def habits(spec: SageMakerSpec, world: World, found: Deployed | None) -> list[str]:
    """What works, but costs money, quota or time."""
    warnings: list[str] = []
    if len(spec.instance_types) > 1:
        warnings.append(
            f"The pool holds quota for each of {', '.join(spec.instance_types)} as long as the "
            "endpoint exists, whichever it is placed on."
        )
    if not spec.fallback_regions and found is None:
        instead = " options.fallback_regions goes on in other regions by itself."
        warnings.append(
            "Whether an instance is free is not known before: if none is, it fails after about "
            f"{CAPACITY_WAIT_S.value / 60:.0f} minutes, at no cost."
            + ("" if spec.scale_to_zero else instead)
        )
    if found is not None and found.endpoint is not None and not found.of_components:
        what = "the candidate runs beside what serves" if spec.candidate else "old and new run"
        warnings.append(
            f"During the update {what} at the same time: both are paid for, and both hold quota."
        )
    if world.silent:
        warnings.append(
            "Whether the name is taken there is not known: " + "; ".join(world.silent) + "."
        )
    return warnings
